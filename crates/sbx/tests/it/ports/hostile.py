# A server that wants to harm who connects: by what it sends, when it ends, and what it never reads.
import socket, struct, threading

FLOOD = b"\xff" * 65536


def flood(peer):
    try:
        while True:
            peer.sendall(FLOOD)
    except OSError:
        pass


def reset(peer):
    peer.sendall(b"x" * 1000)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def deaf(peer):
    threading.Event().wait()


def serve(port, manner):
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=manner, args=(peer,), daemon=True).start()


threads = [threading.Thread(target=serve, args=pair) for pair in [(7001, flood), (7002, reset), (7003, deaf)]]
for thread in threads:
    thread.start()
print("ready", flush=True)
