"""gRPC to a host, plain and over TLS: grpc_client.py ID HOST PLAIN TLS. A line for each of both, of what was heard."""
import sys

import grpc

ID, HOST, PLAIN, TLS = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
BIG = bytes(range(256)) * 12000
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.enable_retries", 0)]


def open_channel(scheme):
    if scheme == "plain":
        return grpc.insecure_channel("%s:%d" % (HOST, PLAIN), OPTIONS)
    with open("all.pem", "rb") as roots:
        return grpc.secure_channel("%s:%d" % (HOST, TLS), grpc.ssl_channel_credentials(roots.read()), OPTIONS)


def calls(channel, scheme):
    unary = {name: channel.unary_unary("/test.Test/" + name) for name in ("Echo", "Read", "Fail")}
    same, call = unary["Echo"].with_call(BIG, timeout=30)
    first, last = dict(call.initial_metadata()), dict(call.trailing_metadata())
    yield "unary", same == BIG, first["x-first"], int(last["x-last"]) == len(BIG)
    name = ("%s-%s" % (ID, scheme)).encode()
    stream = channel.unary_stream("/test.Test/Count")(name, timeout=30)
    numbers = []
    for number in stream:
        numbers.append(number.decode())
        unary["Read"](name + b"-" + number, timeout=30)
    yield "stream", *numbers, dict(stream.trailing_metadata())["x-last"], stream.code().name
    try:
        unary["Fail"](b"", timeout=30)
    except grpc.RpcError as error:
        yield error.code().name, error.details()


for scheme in "plain", "tls":
    try:
        with open_channel(scheme) as channel:
            for said in calls(channel, scheme):
                print(scheme, *said)
    except grpc.RpcError as error:
        print(scheme, error.code().name)
        print(error.details(), file=sys.stderr)
