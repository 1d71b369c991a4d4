"""Listens on every address and says who came until the file `go` is there. Its addresses are in `addresses`."""
import os, re, select, socket

server = socket.create_server(("::", 9999), family=socket.AF_INET6, dualstack_ipv6=True)
found = set()
for family, probe in (socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"):
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((probe, 9))
        found.add(sock.getsockname()[0])
with open("addresses", "w") as file:
    file.write("\n".join(sorted(found)) + "\n")
print("ready", flush=True)
for address in found:
    socket.create_connection((address, 9999)).close()
    server.accept()
print("its own connection", flush=True)
while not os.path.exists("go"):
    if select.select([server], [], [], 0.1)[0]:
        conn, peer = server.accept()
        conn.sendall(b"from two\n")
        print("a connection from", peer, flush=True)
print("no other client", flush=True)
