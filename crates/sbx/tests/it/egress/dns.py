"""Questions of every kind, and what came back: an address, a name or the name of the code."""
import random, socket, struct, sys

DENIED, ALLOWED = sys.argv[1:3]
TYPES = dict(A=1, CNAME=5, NULL=10, PTR=12, MX=15, TXT=16, AAAA=28, SRV=33, HTTPS=65, AXFR=252, ANY=255)
CODES = {0: "NOERROR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}
GATEWAY = "10.0.2.2"


def encoded(name):
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def decoded(message, at):
    labels = []
    while message[at]:
        if message[at] >= 0xC0:
            at = struct.unpack(">H", message[at:at + 2])[0] & 0x3FFF
            continue
        labels.append(message[at + 1:at + 1 + message[at]].decode())
        at += 1 + message[at]
    return ".".join(labels)


def ask(name, kind, server=GATEWAY, tcp=False, qclass=1):
    ident = random.randrange(65536)
    question = encoded(name) + struct.pack(">HH", TYPES[kind], qclass)
    query = struct.pack(">HHHHHH", ident, 0x100, 1, 0, 0, 0) + question
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    if tcp:
        with socket.create_connection((server, 53), 20) as sock:
            sock.sendall(struct.pack(">H", len(query)) + query)
            reply = sock.makefile("rb").read(struct.unpack(">H", sock.recv(2, socket.MSG_WAITALL))[0])
    else:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.settimeout(20)
            # Connected: an answer from elsewhere is not heard.
            sock.connect((server, 53))
            sock.send(query)
            reply = sock.recv(4096)
    got, flags, _, answers = struct.unpack(">HHHH", reply[:8])
    assert got == ident and flags & 0x8000
    if flags & 0xF or not answers:
        return CODES.get(flags & 0xF, str(flags & 0xF))
    at = 12 + len(question) + 12
    data = reply[at:at + struct.unpack(">H", reply[at - 2:at])[0]]
    return {4: lambda: socket.inet_ntoa(data), 16: lambda: socket.inet_ntop(socket.AF_INET6, data)}.get(
        len(data) if kind != "PTR" else 0, lambda: decoded(reply, at))()


def resolve(name):
    try:
        return socket.getaddrinfo(name, 80, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        return type(error).__name__


print("getaddrinfo denied", resolve(DENIED))
print("getaddrinfo allowed", resolve(ALLOWED))
for kind in ("A", "AAAA"):
    print(kind, "denied", ask(DENIED, kind))
for kind in ("A", "AAAA", "HTTPS"):
    print(kind, "allowed", ask(ALLOWED, kind))
print("A case", ask(ALLOWED.upper(), "A"))
print("A below", ask("below." + ALLOWED, "A"))
print("A nowhere.test", ask("nowhere.test", "A"))
print("AAAA six.origin.test", ask("six.origin.test", "AAAA"))
for kind in ("TXT", "NULL", "MX", "CNAME", "SRV", "ANY", "AXFR"):
    print(kind, "allowed", ask(ALLOWED, kind))
print("chaos allowed", ask(ALLOWED, "TXT", qclass=3))
print("PTR told", "known" if ask("9.113.0.203.in-addr.arpa", "PTR").endswith(".wild.test") else "unknown")
print("PTR", ask("1." + "0." * 23 + "8.b.d.0.1.0.0.2.ip6.arpa", "PTR"))
print("PTR untold", ask("77.113.0.203.in-addr.arpa", "PTR"))
print("PTR private", ask("9.9.9.10.in-addr.arpa", "PTR"))
print("tcp A allowed", ask(ALLOWED, "A", tcp=True))
print("tcp TXT allowed", ask(ALLOWED, "TXT", tcp=True))
print("elsewhere A allowed", ask(ALLOWED, "A", server="198.51.100.53"))
print("elsewhere A denied", ask(DENIED, "A", server="198.51.100.53"))
print("elsewhere6 A denied", ask(DENIED, "A", server="2001:db8::53"))
for name in ("localhost", "host.docker.internal", "gateway.docker.internal"):
    print(name, ask(name, "A"))
