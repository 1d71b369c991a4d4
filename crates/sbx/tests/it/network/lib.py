import errno, os, socket, sys, threading, time
def say(name, work):
    try: result = work()
    except OSError as e: result = errno.errorcode.get(e.errno, type(e).__name__)
    print(name, result, flush=True)
def connected(kind, host, port, patience=5):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    s = socket.socket(family, kind)
    s.settimeout(patience)
    s.connect((host, port))
    return s
def tcp(host, port, patience=5):
    return connected(socket.SOCK_STREAM, host, port, patience).recv(99).decode()
def udp(host, port):
    s = connected(socket.SOCK_DGRAM, host, port)
    s.send(b"question")
    return s.recv(99).decode()
def serve(host, port, text):
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    if ":" in host: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind((host, port))
    s.listen(9)
    def run():
        while True:
            c, _ = s.accept()
            c.sendall(text.encode())
            c.close()
    threading.Thread(target=run, daemon=True).start()
def await_file(name):
    while not os.path.exists(name): time.sleep(0.02)
