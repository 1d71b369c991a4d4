"""Events one by one, WebSockets, pipelines, half-closed connections. Its argument makes its requests its own."""
import os, re, socket, ssl, struct, sys

PROXY = re.match(r"http://([^:/]+):(\d+)", os.environ.get("http_proxy", ""))
ID = sys.argv[1]


class Stream:
    def __init__(self, scheme, host, port=None):
        port = port or {"http": 80, "https": 443}[scheme]
        self.prefix = "http://%s" % host if PROXY and scheme == "http" else ""
        self.host = host
        tunnel = PROXY and scheme != "http"
        self.sock = socket.create_connection((PROXY[1], int(PROXY[2])) if PROXY else (host, port), 30)
        if tunnel:
            self.sock.sendall(("CONNECT %s:%d HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (host, port, host, port)).encode())
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += self.sock.recv(1)
            assert b" 200 " in head, head
        if scheme == "https":
            self.sock = ssl.create_default_context(cafile="all.pem").wrap_socket(self.sock, server_hostname=host)
        self.file = self.sock.makefile("rb")

    def request(self, path, method="GET", headers="", host=None):
        """The bytes of one, for the host of this connection or for another."""
        name = host or self.host
        prefix = self.prefix and "http://%s" % name
        return ("%s %s%s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (method, prefix, path, name, headers)).encode()

    def head(self):
        status, headers = self.file.readline().decode(), {}
        while (line := self.file.readline()).strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return int(status.split()[1]), headers

    def answer(self):
        status, headers = self.head()
        if "content-length" in headers:
            body = self.file.read(int(headers["content-length"]))
        elif "transfer-encoding" in headers:
            body = b""
            while size := int(self.file.readline().split(b";")[0], 16):
                body += self.file.read(size)
                self.file.readline()
            while self.file.readline().strip():
                pass
        else:
            body = self.file.read()
        return body.split()[-1].decode() if status == 200 and b"world" not in body else (
            body.decode().strip() if status == 200 else str(status))


def events(scheme):
    """The next is sent only when the one before was read here."""
    stream = Stream(scheme, "origin.test")
    name = "%s-%s" % (ID, scheme)
    stream.sock.sendall(stream.request("/sse?id=" + name))
    assert stream.head()[0] == 200
    seen = []
    while line := stream.file.readline():
        if line.startswith(b"data: "):
            seen.append(line[6:].strip().decode())
            other = Stream(scheme, "origin.test")
            path = "/open/%s-%s" % (name, seen[-1])
            other.sock.sendall(other.request(path, "POST", "Content-Length: 0\r\nConnection: close\r\n"))
            other.answer()
    return " ".join(seen)


def websocket(scheme):
    stream = Stream(scheme, "origin.test")
    headers = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n" \
              "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    stream.sock.sendall(stream.request("/ws", headers=headers))
    status, answered = stream.head()
    assert status == 101 and answered["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", (status, answered)
    said = []
    for first, text in (0x81, b"one"), (0x81, b"two"), (0x88, b""):
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[n % 4] for n, byte in enumerate(text))
        stream.sock.sendall(bytes([first, 0x80 | len(text)]) + mask + masked)
        kind, length = stream.file.read(2)
        assert kind == first
        said.append(stream.file.read(length).decode() or "close")
    return " ".join(said)


def pipelined():
    stream = Stream("http", "origin.test")
    last = stream.request("/close")
    stream.sock.sendall(stream.request("/hello") + stream.request("/chunked") + last)
    answers = [stream.answer() for _ in range(2)]
    assert stream.head()[0] == 200
    return " ".join(answers) + " " + stream.file.read().split()[0].decode()


def mixed():
    """Three requests at once: for its host, for one with the same address, and for one that is denied."""
    stream = Stream("http", "origin.test")
    hosts = "origin.test", "www.origin.test", "other.test"
    stream.sock.sendall(b"".join(stream.request("/hello", host=host) for host in hosts))
    answers = []
    for _ in hosts:
        try:
            answers.append(stream.answer())
        except (OSError, IndexError, ValueError):
            answers.append("cut")
    return " ".join(answers)


def half_closed():
    stream = Stream("raw", "origin.test", 7000)
    stream.sock.sendall(b"ping")
    stream.sock.shutdown(socket.SHUT_WR)
    return stream.file.read().decode() + " end"


for scheme in "http", "https":
    print("sse_" + scheme, events(scheme))
    print("websocket_" + scheme, websocket(scheme))
print("pipelined", pipelined())
print("mixed", mixed())
print("half_closed", half_closed())
