"""First messages that are no line, each on a connection of its own: words.py WAY HOST PORT HEX... Says what came back."""
import socket, sys, threading

WAY, HOST, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
GATEWAY = ("gateway.docker.internal", 3128)
heard = {}


def connect():
    if WAY == "direct":
        return socket.create_connection((HOST, PORT), 20)
    sock = socket.create_connection(GATEWAY, 20)
    if WAY == "connect":
        sock.sendall(b"CONNECT %s:%d HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (HOST.encode(), PORT, HOST.encode(), PORT))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += sock.recv(1) or sys.exit("ended: %r" % head)
        assert b" 200 " in head, head
    else:
        sock.sendall(b"\5\1\0")
        assert sock.recv(2, socket.MSG_WAITALL) == b"\5\0"
        sock.sendall(b"\5\1\0\3" + bytes([len(HOST)]) + HOST.encode() + PORT.to_bytes(2, "big"))
        assert sock.recv(10, socket.MSG_WAITALL)[1] == 0
    return sock


def say(word):
    try:
        with connect() as sock:
            sock.sendall(bytes.fromhex(word))
            # The other side says it back; this one says no more and does not hang up.
            heard[word] = sock.recv(len(word) // 2, socket.MSG_WAITALL).hex() or "ended"
    except OSError as error:
        heard[word] = type(error).__name__


threads = [threading.Thread(target=say, args=(word,)) for word in sys.argv[4:]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for word in sys.argv[4:]:
    print(heard.get(word, "failed"))
