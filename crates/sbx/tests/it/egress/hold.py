"""Opens connections to a host and says `ready`; then says of each whether it was broken off or ended, or, when the file `go` is
there, that it is still alive."""
import os, re, select, socket, ssl, sys

HOST, KINDS = sys.argv[1], sys.argv[2:]
GATEWAY = ("gateway.docker.internal", 3128)


def line(sock):
    said = b""
    while not said.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte:
            sys.exit("ended early: %r" % said)
        said += byte
    return said.decode()


def held(sock, kind, target):
    """An answer that has begun and does not go on."""
    sock.sendall(("GET %s?id=%s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, HOST, HOST)).encode())
    status = line(sock)
    if " 200 " not in status:
        sys.exit(status)
    while line(sock) != "held\n":
        pass
    return sock


def connect(kind, by):
    port = {"http": 80, "https": 443, "raw": 7000}[kind]
    proxied = by == "proxy"
    sock = socket.create_connection(GATEWAY if proxied else (HOST, port), 30)
    if kind == "http":
        return held(sock, kind, ("http://%s" % HOST if proxied else "") + "/hold")
    if kind == "https":
        if proxied:
            sock.sendall(("CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n" % (HOST, HOST)).encode())
            while line(sock) != "\r\n":
                pass
        context = ssl.create_default_context(cafile="ca.pem")
        wrapped = context.wrap_socket(sock, server_hostname=HOST, suppress_ragged_eofs=False)
        return held(wrapped, kind, "/hold")
    sock.sendall(b"ping\n")
    line(sock)
    return sock


open_ones = {kind: connect(*kind.split(":")) for kind in KINDS}
print("ready", flush=True)
for kind, sock in open_ones.items():
    sock.settimeout(0.1)
    for _ in range(600):
        if os.path.exists("go"):
            sock.settimeout(10)
            sock.sendall(b"ping\n")
            print(kind, "alive" if line(sock) == "ping\n" else "dead", flush=True)
            break
        try:
            print(kind, "ended" if not sock.recv(1) else "spoke", flush=True)
            break
        except TimeoutError:
            continue
        except OSError:
            print(kind, "cut", flush=True)
            break
