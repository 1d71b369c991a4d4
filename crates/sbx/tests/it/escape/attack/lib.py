# Read before every attack: raw system calls, and one line per attempt. `ok` is what must not be seen.
import ctypes, errno, os, signal, socket, stat, struct, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 1, 32, 4096, 8192, 16384, 1 << 18
MNT_DETACH = 2
NR = dict(open=2, ioctl=16, mknod=133, chmod=90, fchmod=91, creat=85, ptrace=101, mount=165, umount2=166,
          openat=257, mknodat=259, linkat=265, fchmodat=268, setxattr=188, lsetxattr=189, fsetxattr=190,
          openat2=437, io_uring_setup=425, fchmodat2=452, setxattrat=463, fsopen=430, fsconfig=431,
          fsmount=432, fspick=433, open_tree=428, move_mount=429, mount_setattr=442, open_tree_attr=467,
          init_module=175, finit_module=313, delete_module=176, add_key=248, request_key=249, keyctl=250,
          process_vm_readv=310, process_vm_writev=311, pidfd_open=434, pidfd_getfd=438, pidfd_send_signal=424,
          kcmp=312, name_to_handle_at=303, open_by_handle_at=304, bpf=321, perf_event_open=298,
          userfaultfd=323, kexec_load=246, reboot=169, swapon=167, acct=163, quotactl=179, syslog=103,
          settimeofday=164, clock_settime=227, iopl=172, ioperm=173, setns=308, unshare=272, process_madvise=440,
          fanotify_init=300, fanotify_mark=301, statmount=457, listmount=458, pivot_root=155, chroot=161)


def call(name, *args):
    number = NR[name] if isinstance(name, str) else name
    values = [ctypes.c_char_p(a) if isinstance(a, bytes) else
              ctypes.c_char_p(a.encode()) if isinstance(a, str) else
              a if not isinstance(a, int) else ctypes.c_long(a) for a in args]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *values)
    if result < 0:
        raise OSError(ctypes.get_errno(), "%s" % name)
    return result


libc.syscall.restype = ctypes.c_long


def name_of(error):
    return errno.errorcode.get(error.errno, str(error.errno)) if error.errno else type(error).__name__


def attempt(name, work):
    """Says how it went; the value when it worked, else None."""
    try:
        value = work()
    except OSError as error:
        print(name, name_of(error), flush=True)
        return None
    print(name, "ok", flush=True)
    return True if value is None else value


def read(path, size=65536):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


def overwrite(path, data=b"breach"):
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


def mount(source, target, kind, flags, data=None):
    return call("mount", source or 0, target, kind or 0, flags, data or 0)


def unshare(flags):
    if libc.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def real_root():
    """Root of the sandbox, and not by name only."""
    with open("/proc/self/uid_map") as file:
        return os.geteuid() == 0 and sum(int(line.split()[2]) for line in file) > 1


def nested(uid=0, gid=0):
    """A user namespace below the sandbox's, in which this process is `uid`, with mounts of its own."""
    outer_uid, outer_gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | CLONE_NEWNS)
    try:
        with open("/proc/self/setgroups", "w") as file:
            file.write("deny")
    except OSError:
        pass
    with open("/proc/self/uid_map", "w") as file:
        file.write("%d %d 1" % (uid, outer_uid))
    with open("/proc/self/gid_map", "w") as file:
        file.write("%d %d 1" % (gid, outer_gid))
    mount(None, "/", None, MS_REC | MS_PRIVATE)


def nested_all():
    """A user namespace with every id of the one above it, and mounts of its own."""
    pid = os.getpid()
    ready, go = os.pipe(), os.pipe()
    helper = os.fork()
    if helper == 0:
        os.read(ready[0], 1)
        for name in ("uid_map", "gid_map"):
            with open("/proc/self/" + name) as file:
                lines = [line.split() for line in file]
            with open("/proc/%d/%s" % (pid, name), "w") as file:
                file.write("".join("%s %s %s\n" % (inside, inside, count) for inside, _, count in lines))
        os.write(go[1], b"x")
        os._exit(0)
    unshare(CLONE_NEWUSER | CLONE_NEWNS)
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    os.waitpid(helper, 0)
    for fd in ready + go:
        os.close(fd)
    mount(None, "/", None, MS_REC | MS_PRIVATE)


def in_child(work):
    """Runs `work` in a process of its own: what it changes about itself ends with it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            work()
        except BaseException as error:
            print("child", name_of(error) if isinstance(error, OSError) else repr(error))
            code = 1
        sys.stdout.flush()
        os._exit(code)
    os.waitpid(pid, 0)
