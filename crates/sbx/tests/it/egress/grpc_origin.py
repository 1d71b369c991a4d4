"""gRPC of the world outside, plain and over TLS: grpc_origin.py DIR PLAIN TLS. What the methods do is what they are named for."""
import os, sys, threading
from concurrent.futures import ThreadPoolExecutor

import grpc

DIR, PLAIN, TLS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
GATES, LOCK = {}, threading.Lock()


def gate(name):
    with LOCK:
        return GATES.setdefault(name, threading.Event())


def echo(request, context):
    context.send_initial_metadata((("x-first", "head"),))
    context.set_trailing_metadata((("x-last", str(len(request))),))
    return request


def count(request, context):
    """The next only when its client has read the one before, and says so by another call."""
    for number in range(3):
        yield b"%d" % number
        if not gate(request + b"-%d" % number).wait(60):
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "it was not read")
    context.set_trailing_metadata((("x-last", "3"),))


def read(request, _):
    gate(request).set()
    return b""


def fail(request, context):
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not today")


METHODS = {
    "Echo": grpc.unary_unary_rpc_method_handler(echo),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Read": grpc.unary_unary_rpc_method_handler(read),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
}


def file(name):
    with open(os.path.join(DIR, name), "rb") as opened:
        return opened.read()


server = grpc.server(ThreadPoolExecutor(32), options=[("grpc.max_receive_message_length", -1)])
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", METHODS),))
server.add_insecure_port("[::]:%d" % PLAIN)
server.add_secure_port("[::]:%d" % TLS, grpc.ssl_server_credentials([(file("origin.key"), file("origin.crt"))]))
server.start()
server.wait_for_termination()
