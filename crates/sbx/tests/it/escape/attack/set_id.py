# Every call that can give a file a mode or a capability, on files of the workspace. SCRATCH is a directory for
# what has to lie elsewhere.
where = os.getcwd()
serial = [0]


def fresh():
    """A file of our own in the workspace."""
    serial[0] += 1
    path = os.path.join(where, "%s-%d-%d" % (WHO, os.getpid(), serial[0]))
    with open(path, "w") as file:
        file.write("#!/bin/sh\nid\n")
    return path


def unused():
    serial[0] += 1
    return os.path.join(where, "%s-%d-%d" % (WHO, os.getpid(), serial[0]))


class How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


class XattrArgs(ctypes.Structure):
    _fields_ = [("value", ctypes.c_uint64), ("size", ctypes.c_uint32), ("flags", ctypes.c_uint32)]


def planted(path):
    """A call that returned is harmless when the bits are not there."""
    return os.path.lexists(path) and bool(os.lstat(path).st_mode & 0o6000)


def tried(name, work):
    try:
        path = work()
    except OSError as error:
        print(name, name_of(error))
        return
    print(name, "ok" if planted(path) else "without", flush=True)


def on(name, work):
    for mode in (0o4755, 0o2755, 0o6777):
        def run():
            path = fresh()
            work(path, mode)
            return path
        tried("%s_%o" % (name, mode), run)


def new(name, work):
    for mode in (0o4755, 0o2755):
        def run():
            path = unused()
            work(path, mode)
            return path
        tried("%s_%o" % (name, mode), run)


def fd_of(path, flags=os.O_RDWR):
    return os.open(path, flags)


O_CREATE = os.O_CREAT | os.O_WRONLY
WIDE = 0xffffffff << 32


def calls(prefix):
    on(prefix + "chmod", lambda p, m: call("chmod", p, m))
    on(prefix + "chmod_wide", lambda p, m: call("chmod", p, m | WIDE))
    on(prefix + "chmod_type", lambda p, m: call("chmod", p, m | 0o100000))
    on(prefix + "fchmod", lambda p, m: call("fchmod", fd_of(p), m))
    on(prefix + "fchmod_readonly", lambda p, m: call("fchmod", fd_of(p, os.O_RDONLY), m))
    on(prefix + "fchmodat", lambda p, m: call("fchmodat", AT_FDCWD, p, m))
    on(prefix + "fchmodat_dir", lambda p, m: call("fchmodat", fd_of(where, os.O_RDONLY), os.path.basename(p), m))
    on(prefix + "fchmodat_path", lambda p, m: call("fchmodat", fd_of(where, os.O_PATH), os.path.basename(p), m))
    on(prefix + "fchmodat2", lambda p, m: call("fchmodat2", AT_FDCWD, p, m, 0))
    on(prefix + "fchmodat2_nofollow", lambda p, m: call("fchmodat2", AT_FDCWD, p, m, 0x100))
    on(prefix + "fchmodat2_empty", lambda p, m: call("fchmodat2", fd_of(p), b"", m, 0x1000))
    on(prefix + "fchmodat2_empty_path", lambda p, m: call("fchmodat2", fd_of(p, os.O_PATH), b"", m, 0x1000))
    on(prefix + "proc_fd", lambda p, m: call("chmod", "/proc/self/fd/%d" % fd_of(p), m))
    on(prefix + "proc_fd_path", lambda p, m: call("chmod", "/proc/self/fd/%d" % fd_of(p, os.O_PATH), m))
    on(prefix + "proc_root", lambda p, m: call("chmod", "/proc/self/root" + p, m))
    on(prefix + "proc_cwd", lambda p, m: call("chmod", "/proc/self/cwd/" + os.path.basename(p), m))

    def through_link(p, m):
        link = os.path.join(SCRATCH, "%s-%d-%d" % (WHO, os.getpid(), serial[0]))
        os.symlink(p, link)
        call("chmod", link, m)
    on(prefix + "symlink", through_link)
    new(prefix + "open", lambda p, m: call("open", p, O_CREATE, m))
    new(prefix + "open_wide", lambda p, m: call("open", p, O_CREATE | WIDE, m | WIDE))
    new(prefix + "openat", lambda p, m: call("openat", AT_FDCWD, p, O_CREATE, m))
    new(prefix + "openat_excl", lambda p, m: call("openat", AT_FDCWD, p, O_CREATE | os.O_EXCL, m))
    new(prefix + "openat_directory", lambda p, m: call("openat", AT_FDCWD, p, os.O_CREAT | os.O_DIRECTORY, m))
    new(prefix + "creat", lambda p, m: call("creat", p, m))
    new(prefix + "mknod", lambda p, m: call("mknod", p, stat.S_IFREG | m, 0))
    new(prefix + "mknod_untyped", lambda p, m: call("mknod", p, m, 0))
    new(prefix + "mknodat", lambda p, m: call("mknodat", AT_FDCWD, p, stat.S_IFREG | m, 0))
    new(prefix + "mkdir", lambda p, m: call(83, p, m))
    new(prefix + "mkdirat", lambda p, m: call(258, AT_FDCWD, p, m))

    def temporary(p, m):
        fd = call("openat", AT_FDCWD, where, os.O_TMPFILE | os.O_WRONLY, m)
        call("linkat", AT_FDCWD, "/proc/self/fd/%d" % fd, AT_FDCWD, p, 0x400)
    new(prefix + "tmpfile", temporary)

    def temporary_chmod(p, m):
        fd = call("openat", AT_FDCWD, where, os.O_TMPFILE | os.O_WRONLY, 0o755)
        call("fchmod", fd, m)
        call("linkat", AT_FDCWD, "/proc/self/fd/%d" % fd, AT_FDCWD, p, 0x400)
    new(prefix + "tmpfile_fchmod", temporary_chmod)

    def bare_temporary(p, m):
        # __O_TMPFILE alone is EINVAL to the kernel.
        call("openat", AT_FDCWD, where, (os.O_TMPFILE & ~os.O_DIRECTORY) | os.O_WRONLY, m)
    new(prefix + "bare_tmpfile", bare_temporary)

    def second(p, m):
        how = How(O_CREATE, m, 0)
        call("openat2", AT_FDCWD, p, ctypes.byref(how), ctypes.sizeof(how))
    new(prefix + "openat2", second)
    new(prefix + "ring", lambda p, m: call("io_uring_setup", 8, ctypes.create_string_buffer(120)))

    def socket_file(p, m):
        # A socket's file takes the mode of the socket.
        s = socket.socket(socket.AF_UNIX)
        call("fchmod", s.fileno(), m)
        s.bind(os.path.relpath(p))
    new(prefix + "socket", socket_file)
    on(prefix + "x32", lambda p, m: call(0x40000000 | 90, p, m))
    on(prefix + "x32_fchmod", lambda p, m: call(0x40000000 | 91, fd_of(p), m))
    on(prefix + "negative", lambda p, m: call(90 | 1 << 31, p, m))
    # The kernel takes the call's number from 32 bits.
    on(prefix + "number_wide", lambda p, m: call(90 | 1 << 32, p, m))
    on(prefix + "int80", int80)
    # From the own layer, where the bits may be.
    own = os.path.join(SCRATCH, "escape-own-%s" % WHO)
    with open(own, "w"):
        pass
    try:
        os.chmod(own, 0o6755)
        new(prefix + "rename", lambda p, m: os.rename(own, p))
        new(prefix + "link", lambda p, m: os.link(own, p))
        new(prefix + "link_fd", lambda p, m: call("linkat", AT_FDCWD, "/proc/self/fd/%d" % fd_of(own), AT_FDCWD, p, 0x400))
    except OSError as error:
        print(prefix + "own", name_of(error))
    directory = os.path.join(where, "%s-%d-dir" % (WHO, os.getpid()))
    os.makedirs(directory, exist_ok=True)
    for mode in (0o4777, 0o6777):
        tried("%sdirectory_%o" % (prefix, mode), lambda: (call("chmod", directory, mode), directory)[1])
    # Setgid alone may be on a directory. That does not make way for files in it.
    call("chmod", directory, 0o2777)
    assert os.stat(directory).st_mode & 0o2000
    for mode in (0o2755, 0o2777):
        def run():
            path = os.path.join(directory, os.path.basename(unused()))
            os.close(call("openat", AT_FDCWD, path, O_CREATE, mode))
            call("chmod", path, mode)
            return path
        tried("%sin_directory_%o" % (prefix, mode), run)


def int80(path, mode):
    """chmod by the 32-bit door: its numbers are others, 15 is chmod."""
    import mmap
    MAP_32BIT = 0x40
    memory = mmap.mmap(-1, 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_32BIT, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert address < 1 << 32
    text = path.encode() + b"\0"
    memory[4096:4096 + len(text)] = text
    # push rbx; mov eax, 15; mov ebx, path; mov ecx, mode; int 0x80; pop rbx; ret
    code = b"\x53\xb8" + struct.pack("<I", 15) + b"\xbb" + struct.pack("<I", address + 4096) + b"\xb9" + struct.pack("<I", mode)
    memory[0:len(code) + 4] = code + b"\xcd\x80\x5b\xc3"
    result = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    if result < 0:
        raise OSError(-result, "int80")


CAPABILITY = struct.pack("<IIIII", 0x02000001, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff)
CAPABILITY_3 = struct.pack("<IIIIII", 0x03000001, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0)


def has_capability(path):
    try:
        os.getxattr(path, "security.capability")
        return True
    except OSError:
        return False


def capabilities(prefix):
    name = b"security.capability"
    for version, value in (("2", CAPABILITY), ("3", CAPABILITY_3)):
        size = len(value)
        ways = [
            ("setxattr", lambda p: call("setxattr", p, name, value, size, 0)),
            ("lsetxattr", lambda p: call("lsetxattr", p, name, value, size, 0)),
            ("fsetxattr", lambda p: call("fsetxattr", fd_of(p), name, value, size, 0)),
            ("proc_fd", lambda p: call("setxattr", "/proc/self/fd/%d" % fd_of(p, os.O_PATH), name, value, size, 0)),
            ("setxattrat", lambda p: xattrat(p, name, value)),
        ]
        for way, work in ways:
            path = fresh()
            try:
                work(path)
                print(prefix + way + version, "ok" if has_capability(path) else "without")
            except OSError as error:
                print(prefix + way + version, name_of(error))


def xattrat(path, name, value):
    buffer = ctypes.create_string_buffer(value, len(value))
    args = XattrArgs(ctypes.addressof(buffer), len(value), 0)
    call("setxattrat", AT_FDCWD, path, 0, name, ctypes.byref(args), ctypes.sizeof(args))


def overlays(prefix):
    """An overlay whose upper layer is the workspace copies setuid files into it."""
    for name in ("upper", "work"):
        os.makedirs(os.path.join(where, WHO + name), exist_ok=True)
    os.makedirs("/tmp/escape-overlay", exist_ok=True)
    options = "lowerdir=/usr/bin,upperdir=%s/%supper,workdir=%s/%swork,userxattr" % (where, WHO, where, WHO)
    MAGIC = 0xc0ed0000
    flags = dict(plain=0, magic=MAGIC, magic_shared=MAGIC | 1 << 20, magic_private=MAGIC | MS_PRIVATE, silent=0x8000,
                 magic_wide=MAGIC | WIDE, wide=WIDE, nosuid=2, rec=MS_REC)
    for name, value in flags.items():
        for kind in ("overlay", "overlayfs", "fuse", "cgroup", "cgroup2", "ext4", "9p", "nfs", "btrfs", "fuse.x", "overlay.x"):
            attempt(prefix + "mount_%s_%s" % (kind, name), lambda: mount("x", "/tmp/escape-overlay", kind, value, options))
    for kind in ("overlay", "fuse", "cgroup", "cgroup2", "ext4", "squashfs", "erofs", "binfmt_misc", "bpf", "debugfs", "tracefs", "securityfs"):
        attempt(prefix + "fsopen_" + kind, lambda: call("fsopen", kind, 0))


if HOW == "nested":
    nested(int(UID), int(UID))
elif HOW == "all":
    nested_all()
calls("")
capabilities("xattr_")
# On the host, as root, they would be mounted.
if HOW != "host":
    overlays("")
