# Watches on device nodes, by every name that they can have; and on what may be watched.
IN_ACCESS, IN_ONLYDIR, IN_DONT_FOLLOW, IN_ALL = 1, 0x1000000, 0x2000000, 0xfff
inotify = libc.inotify_init1(os.O_NONBLOCK)


def watch(path, mask=IN_ALL, by=inotify):
    if libc.inotify_add_watch(by, path.encode(), mask) < 0:
        raise OSError(ctypes.get_errno(), path)


for name in ("full", "null", "random", "tty", "urandom", "zero"):
    attempt(name, lambda: watch("/dev/" + name))
attempt("access", lambda: watch("/dev/tty", IN_ACCESS))
attempt("itself", lambda: watch("/dev/tty", IN_ACCESS | IN_DONT_FOLLOW))
null = os.open("/dev/null", os.O_RDWR)
place = os.open("/dev/tty", os.O_PATH)
attempt("by_descriptor", lambda: watch("/proc/self/fd/%d" % null))
attempt("by_place", lambda: watch("/dev/fd/%d" % place))
attempt("by_root", lambda: watch("/proc/self/root/dev/null"))
os.path.islink("to-null") or os.symlink("/dev/null", "to-null")
attempt("by_link", lambda: watch("to-null"))
attempt("fanotify", lambda: call("fanotify_init", 0x200, 0))
here = os.getcwd()
os.chdir("/dev")
attempt("relative", lambda: watch("zero"))
os.chdir(here)


def inner():
    nested()
    open(own, "w").close()
    mount("/dev/null", own, None, MS_BIND)
    attempt("bound", lambda: watch(own))


own = "/tmp/escape-null-%d" % os.getuid()
in_child(inner)
# The probe is real.
open("file", "w").close()
for name, path, mask in (("directory", ".", IN_ALL), ("only", ".", IN_ALL | IN_ONLYDIR), ("file", "file", IN_ALL),
                         ("link", "to-null", IN_ALL | IN_DONT_FOLLOW), ("dev", "/dev", IN_ALL)):
    attempt("control_" + name, lambda: watch(path, mask))
attempt("missing", lambda: watch("gone"))
attempt("bad_descriptor", lambda: watch(".", IN_ALL, 999))
attempt("no_inotify", lambda: watch(".", IN_ALL, null))
while True:
    try:
        os.read(inotify, 1 << 16)
    except BlockingIOError:
        break
open("file", "a").write("x")
print("event", len(os.read(inotify, 1 << 16)) > 0)
