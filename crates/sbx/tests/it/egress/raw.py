"""Dials each target and says what it hears: the first line, after a `ping` where the server does not speak first."""
import socket, sys

for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), 20) as sock:
            if port != "2525" and port != "22":
                sock.sendall(b"ping\n")
            print(sock.makefile("rb").readline().decode().strip() or "ended")
    except OSError as error:
        print(type(error).__name__, error)
