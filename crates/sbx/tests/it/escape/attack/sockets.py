# Sockets of the host.
def connect_unix(address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(5)
        s.connect(address)


def connect_tcp(address, port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.settimeout(5)
        s.connect((address, port))


attempt("abstract", lambda: connect_unix("\0" + ABSTRACT))
for number, path in enumerate(PATHS.split("\n")):
    attempt("path_%d" % number, lambda: connect_unix(path))
attempt("loopback", lambda: connect_tcp("127.0.0.1", int(PORT)))
