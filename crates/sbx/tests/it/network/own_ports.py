for port in (22, 53, 80, 443, 3128):
    for host in ("0.0.0.0", "::"): serve(host, port, "own")
    for host in ("127.0.0.1", "127.9.9.9", "10.0.2.15", "::1", "fd00:5b0c::15"):
        say("%s:%d" % (host, port), lambda: tcp(host, port))
dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
dns.bind(("0.0.0.0", 53))
def answer():
    while True:
        _, peer = dns.recvfrom(99)
        dns.sendto(b"own", peer)
threading.Thread(target=answer, daemon=True).start()
say("own_dns", lambda: udp("127.0.0.1", 53))
# A program that looks which families there are finds both.
for host in ("1.2.3.4", "2001:db8::1"):
    say("found", lambda: len(socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)))
say("source", lambda: connected(socket.SOCK_DGRAM, "1.2.3.4", 80).getsockname()[0])
def foreign(): socket.socket().bind(("1.2.3.4", 9999))
say("foreign", foreign)
