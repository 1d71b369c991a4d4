# The way out: there is no other than the engine, which answers nothing to a client that says nothing.
def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(1)
        s.connect(address)
        if not s.recv(1):
            raise OSError(errno.ECONNRESET, "closed")


def send(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(1)
        s.connect(address)
        s.send(b"x")
        s.recv(1)


print("links", ",".join(sorted(name for _, name in socket.if_nameindex())))
attempt("tcp4", lambda: connect(socket.AF_INET, ("192.0.2.1", 80)))
attempt("tcp6", lambda: connect(socket.AF_INET6, ("2001:db8::1", 80)))
attempt("udp4", lambda: send(socket.AF_INET, ("192.0.2.1", 9)))
attempt("udp6", lambda: send(socket.AF_INET6, ("2001:db8::1", 9)))
for address in ADDRESSES.split("\n"):
    attempt("host_" + address, lambda: connect(socket.AF_INET, (address, int(PORT))))
families = dict(ax25=3, ipx=4, appletalk=5, netrom=6, x25=9, key=15, llc=26, can=29, tipc=30, bluetooth=31, rxrpc=33,
                ieee802154=36, caif=37, alg=38, nfc=39, vsock=40, kcm=41, qipcrtr=42, smc=43, xdp=44, mctp=45, rds=21)
for name, number in families.items():
    for kind in (1, 2, 3, 5):
        attempt("family_%s_%d" % (name, kind), lambda: call(41, number, kind, 0))
    # The upper half of a register is no part of the number.
    attempt("wide_%s" % name, lambda: call(41, number | (1 << 32), 1, 0))
    attempt("pair_%s" % name, lambda: call(53, number, 1, 0, (ctypes.c_int * 2)()))
