"""A stateful OpenSandbox server for failures that the official one does not show.

It keeps sandboxes with metadata, states and expiry, as the official server does, and runs our real execd for each of them on
this machine: what a command does is not faked. `faults` makes one request fail in a chosen way; `answers` replaces an answer.
`relay` puts a network between crabbox and the daemons that does what a mode of `RelayHandler` says.
"""
import datetime, http.client, http.server, json, os, pathlib, signal, socket, subprocess, tempfile, threading, time, urllib.parse, uuid

KEY = "fake-key-4f1d9c"


def own_group():
    """A group of files that no other program has: what a sandbox leaves in this machine's /tmp is known by it."""
    every_id = ["0", "0", "4294967295"]
    if os.geteuid() == 0 and pathlib.Path("/proc/self/gid_map").read_text().split() == every_id:
        return 10_000_000 + os.getpid()
    return None


class Server:
    def __init__(self, execd):
        self.execd = execd
        self.group = own_group()
        self.sandboxes = {}
        # What the next request of a name gets; of a list, each entry once.
        self.faults = {}
        self.answers = {}
        self.requests = []
        # Where the server's proxy of a sandbox redirects to, as a hostile daemon behind it can.
        self.redirect = None
        # (so many looks, state): a new sandbox is Pending for so many looks at it, and then in that state.
        self.state_after = None
        # Whether the answer to a creation says nothing about the end of the sandbox's life.
        self.no_expiry = False
        # Statuses that the relay answers to the next pings.
        self.ping_answers = []
        # (so many looks at a sandbox from now on, seconds): what is left of its life from the next look on.
        self.shorten = None
        self.relay = None
        # What came over the relay: method, path and the beginning of the body.
        self.calls = []
        # The relay's mode `cut` acts when it is set.
        self.cut = threading.Event()
        # How many downloads are cut from now on, in the mode `cut-downloads`.
        self.cuts = 3
        self.dir = tempfile.TemporaryDirectory(prefix="osb-fake-")
        handler = type("Handler", (Handler,), {"fake": self})
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        for sandbox in list(self.sandboxes.values()):
            sandbox.end()
        self.dir.cleanup()

    def take(self, name):
        fault = self.faults.get(name)
        if isinstance(fault, list) and len(fault) > 1:
            return fault.pop(0)
        self.faults.pop(name, None)
        return fault[0] if isinstance(fault, list) else fault

    def left(self):
        """The files of commands and syncs that are in /tmp; none are known where there is no group for them."""
        found = []
        for path in pathlib.Path("/tmp").iterdir() if self.group else ():
            try:
                if path.name.startswith((".crabbox-", "crabbox-sync-")) and path.lstat().st_gid == self.group:
                    found.append(str(path))
            except FileNotFoundError:
                pass
        return found


class Sandbox:
    def __init__(self, server, request):
        self.id = str(uuid.uuid4())
        self.metadata = request.get("metadata", {})
        self.state, self.message = "Running", ""
        self.state_after = server.state_after
        if self.state_after:
            self.state = "Pending"
        self.request = request
        now = datetime.datetime.now(datetime.timezone.utc)
        self.created = now
        self.expires = now + datetime.timedelta(seconds=request["timeout"])
        self.token = uuid.uuid4().hex if request.get("secureAccess") else None
        env = {"PATH": os.environ["PATH"], "TMPDIR": server.dir.name, "HOME": server.dir.name}
        if self.token:
            env["EXECD_ACCESS_TOKEN"] = self.token
        self.process = subprocess.Popen([server.execd, "--host", "127.0.0.1", "--port", "0"], env=env,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, group=server.group)
        self.address = self.process.stdout.readline().strip()
        self.server, self.relay = server, None

    def reached(self):
        """Where clients are told that the daemon is."""
        if self.server.relay is None:
            return self.address
        if self.relay is None:
            handler = type("RelayHandler", (RelayHandler,), {"fake": self.server, "upstream": self.address})
            self.relay = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
            self.relay.daemon_threads = True
            threading.Thread(target=self.relay.serve_forever, daemon=True).start()
        return f"127.0.0.1:{self.relay.server_address[1]}"

    def end(self):
        if self.relay:
            self.relay.shutdown()
            self.relay.server_close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def look(self):
        """A request for its state."""
        if self.state_after:
            looks, state = self.state_after
            self.state_after = (looks - 1, state)
            if looks <= 0:
                self.state, self.state_after = state, None
                self.message = "" if state == "Running" else "the fake container ended"

    def show(self):
        stamp = lambda at: at.isoformat().replace("+00:00", "Z")
        return {"id": self.id, "status": {"state": self.state, "reason": "FAKE", "message": self.message}, "metadata": self.metadata,
                "expiresAt": stamp(self.expires), "createdAt": stamp(self.created), "entrypoint": self.request["entrypoint"]}


class Quiet(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake = None

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (ConnectionError, socket.timeout):
            self.close_connection = True

    def do_GET(self):
        self.route("GET")

    def do_POST(self):
        self.route("POST")

    def do_DELETE(self):
        self.route("DELETE")

    def do_PATCH(self):
        self.route("PATCH")

    def drop(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class Handler(Quiet):
    def reply(self, status, value=None, headers=()):
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("x-request-id", uuid.uuid4().hex)
        for name, text in headers:
            self.send_header(name, text)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def error(self, status, code, message):
        self.reply(status, {"code": code, "message": message})

    def route(self, method):
        fake = self.fake
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        url = urllib.parse.urlsplit(self.path)
        path = url.path.removeprefix("/v1")
        if "/proxy/" in path and fake.redirect:
            fake.requests.append((method, path, dict(self.headers)))
            return self.reply(307, None, [("location", fake.redirect)])
        body = json.loads(body or b"null")
        query = urllib.parse.parse_qs(url.query)
        fake.requests.append((method, path, dict(self.headers)))
        parts = path.strip("/").split("/")
        name = {("POST", 1): "create", ("GET", 1): "list", ("GET", 2): "get", ("DELETE", 2): "delete",
                ("GET", 4): "endpoint", ("POST", 3): parts[-1], ("PATCH", 3): "patch"}.get((method, len(parts)))
        if self.headers.get("open-sandbox-api-key") != KEY:
            return self.error(401, "INVALID_API_KEY", "Authentication failed")
        fault = fake.take(name)
        if fault in ("refuse", "busy"):
            return self.error(*((503, "X::BUSY", "busy " + KEY) if fault == "busy" else (400, "X::NO", "no " + KEY)))
        if fault == "unknown":
            return self.reply(*self.missing)
        if fault == "drop-before":
            return self.drop()
        if fault == "hang":
            time.sleep(60)
            return self.drop()
        if fault == "endless":
            return self.endless()
        if fault == "drip":
            return self.drip()
        if fault == "redirect-away":
            return self.reply(307, None, [("location", "http://127.0.0.1:9/v1" + path)])
        if fault == "redirect-here":
            return self.reply(307, None, [("location", self.path)])
        if name in fake.answers:
            return self.reply(200, fake.answers[name])
        answer = getattr(self, name or "unknown")(parts, query, body)
        if fault == "drop-after":
            return self.drop()
        if fault == "hang-after":
            time.sleep(60)
            return self.drop()
        if fault == "garbage":
            return self.reply(200, {"unexpected": True})
        self.reply(*answer)

    def endless(self):
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        piece = b" " * 65536
        while True:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def drip(self):
        self.send_response(200)
        self.send_header("content-length", "100000")
        self.end_headers()
        while True:
            self.wfile.write(b" ")
            time.sleep(0.05)

    def known(self, id):
        sandbox = self.fake.sandboxes.get(id)
        if sandbox and sandbox.expires < datetime.datetime.now(datetime.timezone.utc):
            self.fake.sandboxes.pop(id).end()
            return None
        return sandbox

    missing = (404, {"code": "DOCKER::SANDBOX_NOT_FOUND", "message": "not found"})

    def unknown(self, *_):
        return 404, {"code": "NOT_FOUND", "message": "no such route"}

    def create(self, _parts, _query, body):
        sandbox = Sandbox(self.fake, body)
        self.fake.sandboxes[sandbox.id] = sandbox
        shown = sandbox.show()
        if self.fake.no_expiry:
            del shown["expiresAt"]
        return 202, shown

    def list(self, _parts, query, _body):
        wanted = dict(urllib.parse.parse_qsl(query.get("metadata", [""])[0]))
        items = [one.show() for one in self.fake.sandboxes.values()
                 if all(one.metadata.get(key) == value for key, value in wanted.items())]
        return 200, {"items": items, "pagination": {"page": 1, "totalItems": len(items)}}

    def get(self, parts, _query, _body):
        sandbox = self.known(parts[1])
        if sandbox and self.fake.shorten:
            looks, seconds = self.fake.shorten
            self.fake.shorten = (looks - 1, seconds)
            if looks <= 0:
                sandbox.expires = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
        if sandbox:
            sandbox.look()
        return (200, sandbox.show()) if sandbox else self.missing

    def delete(self, parts, _query, _body):
        sandbox = self.fake.sandboxes.pop(parts[1], None)
        if not sandbox:
            return self.missing
        sandbox.end()
        return 204, None

    def patch(self, parts, _query, body):
        sandbox = self.known(parts[1])
        if not sandbox:
            return self.missing
        sandbox.metadata.update(body)
        return 200, sandbox.show()

    def pause(self, parts, _query, _body):
        sandbox = self.known(parts[1])
        sandbox.process.send_signal(signal.SIGSTOP)
        sandbox.state = "Paused"
        return 202, None

    def resume(self, parts, _query, _body):
        sandbox = self.known(parts[1])
        sandbox.process.send_signal(signal.SIGCONT)
        sandbox.state = "Running"
        return 202, None

    def endpoint(self, parts, _query, _body):
        sandbox = self.known(parts[1])
        if not sandbox:
            return self.missing
        answer = {"endpoint": f"{sandbox.reached()}?trace=trace-value-1"}
        if sandbox.token:
            answer["headers"] = {"X-EXECD-ACCESS-TOKEN": sandbox.token}
        return 200, answer


class RelayHandler(Quiet):
    """Between crabbox and the daemon of one sandbox. Modes that concern a stream concern those of the user's commands:

    plain            passes everything on
    sse              frames as server-sent events
    hold-open        the stream stays open after the terminal event
    no-terminal      the stream ends properly, without the terminal event
    endless          the stream is one event that does not end
    cut              at `cut`, the client's side of the stream is lost; the daemon does not notice
    cut-off          the same, and everything after it is lost too
    ignore-ranges    downloads are whole files
    cut-downloads    the first downloads end in the middle
    no-headers       the request for a command is accepted and never answered
    no-upload        the same, with uploads
    late-upload      the archive of a sync is not read before `cut`
    late-keys        what the client of a terminal sends arrives after `cut`
    """
    upstream = None

    def route(self, method):
        fake = self.fake
        length = int(self.headers.get("content-length") or 0)
        if fake.relay == "late-upload" and self.path.startswith("/files/upload"):
            fake.cut.wait(60)
        body = self.rfile.read(length)
        fake.calls.append((method, self.path, body[:4096]))
        if fake.relay == "cut-off" and fake.cut.is_set():
            return self.drop()
        if self.path.startswith("/ping") and fake.ping_answers:
            self.send_response(fake.ping_answers.pop(0))
            self.send_header("content-length", "0")
            return self.end_headers()
        is_command = self.path.startswith("/command") and method == "POST" and b"/tmp/.crabbox-" in body
        if fake.relay == "no-headers" and is_command or fake.relay == "no-upload" and self.path.startswith("/files/upload"):
            self.connection.settimeout(120)
            self.connection.recv(1)
            return self.drop()
        if self.headers.get("upgrade"):
            return self.tunnel()
        headers = {name: text for name, text in self.headers.items() if name.lower() != "host"}
        if fake.relay == "ignore-ranges":
            headers = {name: text for name, text in headers.items() if name.lower() != "range"}
        far = http.client.HTTPConnection(self.upstream)
        try:
            far.request(method, self.path, body, headers)
            answer = far.getresponse()
            if is_command:
                return self.stream(answer)
            self.whole(answer)
        finally:
            far.close()

    def whole(self, answer):
        body = answer.read()
        self.send_response(answer.status)
        for name, text in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date"):
                self.send_header(name, text)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.fake.relay == "cut-downloads" and "/files/download" in self.path and len(body) > 1 and self.fake.cuts > 0:
            self.fake.cuts -= 1
            self.wfile.write(body[:len(body) // 2])
            self.wfile.flush()
            return self.drop()
        self.wfile.write(body)

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def stream(self, answer):
        fake = self.fake
        self.send_response(answer.status)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if fake.relay == "endless":
            self.chunk(b'{"type":"stdout","text":"')
            while True:
                self.chunk(b"x" * 65536)
        held = b""
        while piece := answer.read1(65536):
            *frames, held = (held + piece).split(b"\n\n")
            for frame in frames:
                kind = json.loads(frame)["type"]
                ends = kind in ("execution_complete", "error")
                if ends and fake.relay == "no-terminal":
                    continue
                self.chunk(b"event: %s\ndata: %s\n\n" % (kind.encode(), frame) if fake.relay == "sse" else frame + b"\n\n")
                if ends and fake.relay == "hold-open":
                    self.connection.settimeout(60)
                    self.connection.recv(1)
                    return
            if fake.relay in ("cut", "cut-off") and b"exact" in piece:
                fake.cut.wait(60)
                self.drop()
                # As a network that forgot the connection: the daemon goes on to send.
                if fake.relay == "cut":
                    answer.read()
                return
        self.wfile.write(b"0\r\n\r\n")

    def tunnel(self):
        host, port = self.upstream.split(":")
        far = socket.create_connection((host, int(port)))
        head = f"{self.command} {self.path} HTTP/1.1\r\n" + "".join(f"{name}: {text}\r\n" for name, text in self.headers.items())
        far.sendall(head.encode() + b"\r\n")

        def copy(source, to):
            try:
                while data := source.recv(65536):
                    to.sendall(data)
                to.shutdown(socket.SHUT_WR)
            except OSError:
                pass

        back = threading.Thread(target=copy, args=(far, self.connection), daemon=True)
        back.start()
        if self.fake.relay == "late-keys":
            self.fake.cut.wait(60)
        copy(self.connection, far)
        back.join()
        far.close()
        self.close_connection = True
