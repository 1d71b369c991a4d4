# Write to what init reads, and take it back before it has: an init that waits for it stands still, and as long as
# this program lives and writes nothing more, for ever.
import fcntl, termios


def waiting(stream):
    return struct.unpack("i", fcntl.ioctl(stream, termios.FIONREAD, bytes(4)))[0]


def init_reads():
    os.write(2, b"x")
    end = time.monotonic() + 5
    while waiting(2):
        if time.monotonic() > end:
            return False
    return True


reader = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
for turn in range(int(TURNS)):
    os.write(1, b"x")
    # Init may be on its way to the byte at any moment.
    for _ in range(turn % 1000):
        pass
    try:
        os.read(reader, 65536)
    except BlockingIOError:
        continue
    if not init_reads():
        break
open(SAID, "w").close()
signal.pause()
