"""The outside world of the egress tests: every address of its network namespace is this program.

Usage: origin.py DIR. DIR holds `origin.pem` (chain and key), `www/` (files), `children` (other servers: a line of
JSON each, with their arguments and port), and gets `record.jsonl`: a line for each connection, request and query
that came here, written before it is answered. `ready` on stdout when everything listens; ends with its stdin. With
`sniff` in DIR every packet is recorded as well.
"""
import base64, ctypes, hashlib, json, os, signal, socket, ssl, struct, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from urllib.parse import parse_qs, urlsplit

DIR = sys.argv[1]
RECORD = os.open(os.path.join(DIR, "record.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
BLOCK = bytes(hashlib.shake_256(b"sbx").digest(1 << 20))
PLAIN, TLS, ECHO, BANNER = (80, 8000, 8001, 8080), (443,), (7000,), (2525,)
NAMES = {
    "origin.test": ["203.0.113.1"],
    "www.origin.test": ["203.0.113.1"],
    "deep.www.origin.test": ["203.0.113.1"],
    "six.origin.test": ["2001:db8::1"],
    "other.test": ["203.0.113.2"],
    "raw.test": ["203.0.113.3"],
    "private.test": ["10.9.9.9"],
    "metadata.test": ["169.254.169.254"],
    "loopback.test": ["127.0.0.1"],
    # The first is refused, the second is as good as any.
    "rebind.test": ["10.9.9.9", "203.0.113.1"],
    "mapped.test": ["::ffff:10.9.9.9"],
}
GATES = {}
GATES_LOCK = threading.Lock()


def record(kind, **fields):
    os.write(RECORD, (json.dumps({"kind": kind, **fields}) + "\n").encode())


def place(sock):
    host, port = sock.getsockname()[:2]
    return "%s:%d" % (host.removeprefix("::ffff:"), port)


def gate(name):
    """What one request waits for and another opens."""
    with GATES_LOCK:
        return GATES.setdefault(name, threading.Event())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        record("tcp", at=place(self.connection))

    def log_message(self, *_):
        pass

    def handle_expect_100(self):
        record("expect", at=place(self.connection), path=self.path)
        return super().handle_expect_100()

    def parse_request(self):
        if not super().parse_request():
            return False
        record("http", at=place(self.connection), method=self.command, path=self.path, host=self.headers.get("Host"))
        return True

    def body(self):
        """Pieces of the request's body."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return
        left = int(self.headers.get("Content-Length", 0))
        while left:
            piece = self.rfile.read1(min(left, 1 << 16))
            if not piece:
                raise ConnectionError("short body")
            left -= len(piece)
            yield piece

    def answer(self, body, kind="text/plain", status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        digest, size = hashlib.sha256(), 0
        for piece in self.body():
            digest.update(piece)
            size += len(piece)
        if self.path.startswith("/open/"):
            gate(self.path[6:]).set()
        self.answer(("%d %s\n" % (size, digest.hexdigest())).encode())

    do_PUT = do_POST

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", "12345")
        self.end_headers()

    def do_GET(self):
        url = urlsplit(self.path)
        query = {name: value[0] for name, value in parse_qs(url.query).items()}
        kind, _, rest = url.path[1:].partition("/")
        serve = getattr(self, "get_" + kind, None)
        if serve:
            return serve(query)
        self.get_file(url.path)

    def get_file(self, path):
        """Also a git repository over the simple protocol."""
        root = os.path.join(DIR, "www")
        file = os.path.normpath(root + path)
        if not file.startswith(root + "/") or not os.path.isfile(file):
            return self.answer(b"no such file\n", status=404)
        with open(file, "rb") as opened:
            self.answer(opened.read(), "application/octet-stream")

    def get_hello(self, _):
        self.answer(b"hello\n")

    def get_echo(self, _):
        head = {"at": place(self.connection), "path": self.path, "headers": self.headers.items()}
        self.answer(json.dumps(head).encode(), "application/json")

    def get_chunked(self, _):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Trailer", "X-Sum")
        self.end_headers()
        self.wfile.write(b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nX-Sum: 11\r\n\r\n")

    def get_close(self, _):
        """A body that ends with its connection."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"until the end\n")

    def get_sse(self, query):
        """A second event only when the client has read the first, and says so on another connection."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()
        for number in range(3):
            self.wfile.write(b"data: %d\n\n" % number)
            self.wfile.flush()
            if not gate("%s-%d" % (query["id"], number)).wait(60):
                return

    def get_hold(self, query):
        """Says one line and then nothing, until the other side goes."""
        self.close_connection = True
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"held\n")
        self.wfile.flush()
        self.connection.settimeout(60)
        try:
            end = self.rfile.read(1) or b"end"
        except OSError as error:
            end = error.__class__.__name__.encode()
        record("released", at=place(self.connection), id=query.get("id"), end=end.decode("latin1"))

    def get_big(self, query):
        left = int(query["n"])
        self.send_response(200)
        self.send_header("Content-Length", str(left))
        self.end_headers()
        while left:
            piece = BLOCK[:left]
            self.wfile.write(piece)
            left -= len(piece)

    def get_ws(self, _):
        """A WebSocket that says everything back, until its client closes it."""
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.close_connection = True
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.wfile.flush()
        while True:
            first, second = self.rfile.read(2)
            mask = self.rfile.read(4)
            text = bytes(byte ^ mask[n % 4] for n, byte in enumerate(self.rfile.read(second & 0x7F)))
            self.wfile.write(bytes([first, len(text)]) + text)
            self.wfile.flush()
            if first & 0xF == 8:
                return


class Web(ThreadingHTTPServer):
    daemon_threads = True
    address_family = socket.AF_INET6
    request_queue_size = 128
    tls = None

    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # The one above it would ask for the name of this machine.
        TCPServer.server_bind(self)

    def finish_request(self, request, client):
        if self.tls:
            # In the thread of the connection: a slow client keeps no other waiting.
            record("tls", at=place(request))
            request = self.tls.wrap_socket(request, server_side=True)
        super().finish_request(request, client)

    def handle_error(self, request, client):
        pass


def listener(port, kind=socket.SOCK_STREAM):
    sock = socket.socket(socket.AF_INET6, kind)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.bind(("::", port))
    if kind == socket.SOCK_STREAM:
        sock.listen(128)
    return sock


def thread(work, *args):
    threading.Thread(target=work, args=args, daemon=True).start()


def accept(sock, serve):
    while True:
        conn, _ = sock.accept()
        record("tcp", at=place(conn))
        thread(quietly, serve, conn)


def quietly(serve, conn):
    try:
        serve(conn)
    except OSError:
        # The other side has gone.
        pass


def echo(conn):
    with conn:
        while data := conn.recv(1 << 16):
            record("bytes", at=place(conn), count=len(data))
            conn.sendall(data)


def banner(conn):
    """Speaks first, like SMTP and SSH."""
    with conn:
        conn.sendall(b"220 origin ready\r\n")
        echo(conn)


def addresses(name):
    return NAMES.get(name, ["203.0.113.9"] if name.endswith(".wild.test") else None)


def dns_answer(query, over):
    """A and AAAA of the names above, nothing for others."""
    ident, labels, at = query[:2], [], 12
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode("latin1"))
        at += 1 + query[at]
    name, (kind,) = ".".join(labels).lower(), struct.unpack(">H", query[at + 1:at + 3])
    record("dns", name=name, type=kind, over=over)
    question, found, answers = query[12:at + 5], addresses(name), b""
    count = 0
    for address in found or []:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        if kind == {socket.AF_INET: 1, socket.AF_INET6: 28}[family]:
            data = socket.inet_pton(family, address)
            answers += b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 60, len(data)) + data
            count += 1
    flags = 0x8580 if found else 0x8583
    return ident + struct.pack(">HHHHH", flags, 1, count, 0, 0) + question + answers


def dns_udp(sock):
    """From the address that was asked: a client ignores an answer from another one."""
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    while True:
        query, ancillary, _, peer = sock.recvmsg(4096, 128)
        info = [(level, kind, data) for level, kind, data in ancillary if kind == socket.IPV6_PKTINFO]
        sock.sendmsg([dns_answer(query, "udp")], info, 0, peer)


def dns_tcp(conn):
    with conn, conn.makefile("rb") as stream:
        while len(length := stream.read(2)) == 2:
            reply = dns_answer(stream.read(struct.unpack(">H", length)[0]), "tcp")
            conn.sendall(struct.pack(">H", len(reply)) + reply)


def sniff():
    """Everything that moves, whatever it is. Each packet on `lo` is seen twice: once suffices."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sock.bind(("lo", 0))
    def listen():
        while True:
            frame, address = sock.recvfrom(65536)
            if address[2] != socket.PACKET_OUTGOING:
                record("packet", protocol=address[1], frame=frame[14:80].hex())
    thread(listen)


def child(args, port):
    """Another server, which ends with this program. It is there when it can be dialled."""
    def tie():
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    log = open(os.path.join(DIR, "log-%d" % port), "wb")
    started = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=tie)
    while started.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return started
        except ConnectionRefusedError:
            time.sleep(0.01)
    sys.exit("%s has ended" % args)


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(os.path.join(DIR, "origin.pem"))
    for port in PLAIN + TLS:
        web = Web(("::", port), Handler)
        web.tls = tls if port in TLS else None
        thread(web.serve_forever)
    for port in ECHO:
        thread(accept, listener(port), echo)
    for port in BANNER:
        thread(accept, listener(port), banner)
    thread(accept, listener(53), dns_tcp)
    thread(dns_udp, listener(53, socket.SOCK_DGRAM))
    with open(os.path.join(DIR, "children")) as lines:
        children = [child(**json.loads(line)) for line in lines]
    if os.path.exists(os.path.join(DIR, "sniff")):
        sniff()
    print("ready", flush=True)
    sys.stdin.buffer.read()
    for each in children:
        each.kill()
    os._exit(0)


main()
