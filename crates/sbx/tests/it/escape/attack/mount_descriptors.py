# Mount points that are named by a descriptor, as container runtimes do. Nothing may be possible by it that is not by path.
def entries(place):
    """The types of what is mounted at a place, from the lowest to the topmost."""
    with open("/proc/self/mountinfo") as file:
        lines = [line.split() for line in file]
    return [line[line.index("-") + 1] for line in lines if line[4] == place]


def opened(path, flags=os.O_PATH):
    return os.open(path, flags)


before = opened("/tmp", os.O_RDONLY)
(lambda: unshare(CLONE_NEWNS) if real_root() else nested())()
mount(None, "/", None, MS_REC | MS_PRIVATE)

for name, form in (("self", "/proc/self/fd/%d"), ("thread", "/proc/thread-self/fd/%d"), ("dev", "/dev/fd/%d")):
    place = "/tmp/point-" + name + WHO
    os.mkdir(place)
    attempt("control_" + name, lambda: mount("x", form % opened(place), "tmpfs", 0))
    print("types_" + name, ",".join(entries(place)))

# A file: masked by another, and made private.
place = "/tmp/file-" + WHO
open(place, "w").close()
attempt("control_bind", lambda: mount("/dev/null", "/proc/self/fd/%d" % opened(place), None, MS_BIND))
attempt("control_private", lambda: mount(None, "/proc/self/fd/%d" % opened(place), None, MS_PRIVATE))
attempt("control_masked", lambda: os.stat(place).st_rdev == os.stat("/dev/null").st_rdev or os.stat("/none"))
open(place + "-plain", "w").close()
for name, target in (("path", place + "-plain"), ("fd", "/proc/self/fd/%d" % opened(place + "-plain"))):
    attempt("file_" + name, lambda: mount("x", target, "tmpfs", 0))

# File systems that may not be mounted stay so, wherever; a new devpts is the sandbox's one.
for name, place in (("workspace", os.getcwd()), ("readonly", READONLY), ("pts", "/dev/pts"), ("proc", "/proc")):
    for kind, data in (("overlay", "lowerdir=/usr,upperdir=%s,workdir=%s" % (os.getcwd(), os.getcwd())), ("cgroup2", None), ("ext4", None)):
        attempt("%s_%s_path" % (name, kind), lambda: mount("x", place, kind, 0, data))
        attempt("%s_%s_fd" % (name, kind), lambda: mount("x", "/proc/self/fd/%d" % opened(place), kind, 0, data))
terminals = os.stat("/dev/pts").st_dev
place = "/tmp/terminals" + WHO
os.mkdir(place)
attempt("control_devpts", lambda: mount("x", "/proc/self/fd/%d" % opened(place), "devpts", 0, "newinstance"))
print("same_terminals", os.stat(place).st_dev == terminals)

# Over a read-only workspace: what is written is in the memory that was mounted.
attempt("control_cover", lambda: mount("x", "/proc/self/fd/%d" % opened(READONLY), "tmpfs", 0))
attempt("control_covered", lambda: open(READONLY + "/inside", "w").close())

# Descriptors of another mount namespace, of another process, and of none.
attempt("elsewhere", lambda: mount("x", "/proc/self/fd/%d" % before, "tmpfs", 0))
mine = {int(name) for name in os.listdir("/proc/self/fd")}
for number in [number for number in range(3, 60) if number not in mine]:
    attempt("missing_%d" % number, lambda: mount("x", "/proc/self/fd/%d" % number, "tmpfs", 0))
    attempt("init_%d" % number, lambda: mount("x", "/proc/1/fd/%d" % number, "tmpfs", 0))
