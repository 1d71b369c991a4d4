# Make a read-only mount writable, take it away, or reach around it. HOW is `here` or `nested`.
target, file = TARGET, TARGET + "/file"
OPEN_TREE_CLONE, AT_EMPTY_PATH, AT_RECURSIVE = 1, 0x1000, 0x8000


class Attr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def written(path):
    overwrite(path)


def remount(place, flags):
    mount(None, place, None, flags)
    written(place + "/file")


def set_attributes(fd, path, flags):
    attr = Attr(0, 1, 0, 0)
    call("mount_setattr", fd, path, flags, ctypes.byref(attr), ctypes.sizeof(attr))


def clone(flags):
    fd = call("open_tree", AT_FDCWD, target, OPEN_TREE_CLONE | flags)
    return fd


def bound(place):
    os.makedirs(place, exist_ok=True)
    mount(target, place, None, MS_BIND)
    return place


def all_ways(prefix):
    def tried(name, work):
        attempt(prefix + name, work)
    tried("write", lambda: written(file))
    tried("append", lambda: os.close(os.open(file, os.O_RDWR | os.O_APPEND)))
    tried("create", lambda: os.close(os.open(target + "/new", os.O_CREAT | os.O_WRONLY)))
    tried("unlink", lambda: os.unlink(file))
    tried("rename", lambda: os.rename(file, target + "/other"))
    tried("chmod", lambda: os.chmod(file, 0o777))
    tried("set_id", lambda: os.chmod(file, 0o4755))
    tried("chown", lambda: os.chown(file, os.getuid(), os.getgid()))
    tried("xattr", lambda: os.setxattr(file, "user.breach", b"1"))
    tried("utime", lambda: os.utime(file, (1, 1)))
    tried("truncate", lambda: os.truncate(file, 0))
    tried("reopen", lambda: os.close(os.open("/proc/self/fd/%d" % os.open(file, os.O_RDONLY), os.O_WRONLY)))
    tried("remount", lambda: remount(target, MS_REMOUNT))
    tried("bind_remount", lambda: remount(target, MS_REMOUNT | MS_BIND))
    tried("magic_remount", lambda: remount(target, 0xc0ed0000 | MS_REMOUNT | MS_BIND))
    tried("umount", lambda: call("umount2", target, 0))
    tried("detach", lambda: call("umount2", target, MNT_DETACH))
    tried("expire", lambda: call("umount2", target, 4))
    os.makedirs("/tmp/escape-moved", exist_ok=True)
    tried("move", lambda: mount(target, "/tmp/escape-moved", None, MS_MOVE))
    tried("move_mount", lambda: call("move_mount", AT_FDCWD, target, AT_FDCWD, "/tmp/escape-moved", 0))
    tried("setattr", lambda: set_attributes(AT_FDCWD, target, 0))
    tried("setattr_recursive", lambda: set_attributes(AT_FDCWD, target, AT_RECURSIVE))
    tried("copy_remount", lambda: remount(bound("/tmp/escape-copy"), MS_REMOUNT | MS_BIND))
    tried("copy_setattr", lambda: set_attributes(AT_FDCWD, bound("/tmp/escape-copy2"), 0))
    tried("tree_setattr", lambda: set_attributes(clone(0), b"", AT_EMPTY_PATH))
    tried("tree_setattr_recursive", lambda: set_attributes(clone(AT_RECURSIVE), b"", AT_EMPTY_PATH | AT_RECURSIVE))
    tried("tree_write", lambda: os.close(os.open("file", os.O_WRONLY, dir_fd=clone(0))))

    def tree_attr():
        attr = Attr(0, 1, 0, 0)
        call("open_tree_attr", AT_FDCWD, target, OPEN_TREE_CLONE, ctypes.byref(attr), ctypes.sizeof(attr))
    tried("tree_attr", tree_attr)

    def picked():
        fd = call("fspick", AT_FDCWD, target, 0)
        call("fsconfig", fd, 0, b"rw", 0, 0)
        call("fsconfig", fd, 7, 0, 0, 0)
    tried("fspick", picked)

    def mapped():
        attr = Attr(0x100000, 0, 0, os.open("/proc/self/ns/user", os.O_RDONLY))
        call("mount_setattr", clone(0), b"", AT_EMPTY_PATH, ctypes.byref(attr), ctypes.sizeof(attr))
    tried("idmap", mapped)
    # What lies below a mount or a mask: a copy without its children would show it.
    parent = os.path.dirname(target)

    def uncovered():
        place = "/tmp/escape-parent"
        os.makedirs(place, exist_ok=True)
        mount(parent, place, None, MS_BIND)
    tried("uncover_parent", uncovered)
    tried("uncover_tree", lambda: call("open_tree", AT_FDCWD, parent, OPEN_TREE_CLONE))
    tried("uncover_root", lambda: call("open_tree", AT_FDCWD, "/", OPEN_TREE_CLONE))
    tried("uncover_proc", lambda: call("open_tree", AT_FDCWD, "/proc", OPEN_TREE_CLONE))
    for place in ("/proc/kcore", "/proc/keys", "/sys/firmware", "/proc", "/sys", "/dev", "/usr", "/"):
        tried("umount_" + place.strip("/").replace("/", "_"), lambda: call("umount2", place, MNT_DETACH))
    tried("sys_rw", lambda: (mount(None, "/sys", None, MS_REMOUNT | MS_BIND), os.makedirs("/sys/x"))[0])
    tried("sys_setattr", lambda: set_attributes(AT_FDCWD, b"/sys", 0))


def control():
    """The same calls on a mount of one's own work."""
    place = "/tmp/escape-control"
    os.makedirs(place, exist_ok=True)
    mount("tmpfs", place, "tmpfs", 0)
    open(place + "/file", "w").close()
    mount(None, place, None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    attempt("control_readonly", lambda: written(place + "/file"))
    attempt("control_remount", lambda: remount(place, MS_REMOUNT | MS_BIND))
    attempt("control_tree", lambda: call("open_tree", AT_FDCWD, place, OPEN_TREE_CLONE))
    attempt("control_umount", lambda: call("umount2", place, MNT_DETACH))


if HOW == "nested":
    nested()
all_ways("")
if HOW == "nested" or real_root():
    control()
