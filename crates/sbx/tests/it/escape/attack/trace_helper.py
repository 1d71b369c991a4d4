# Catch a process of ours (named sbx-init, and not pid 1) between setns and execve, or one that answers a call
# for us, and take hold of it. What was taken counts only if it was still ours afterwards.
stop = os.path.join(os.getcwd(), "stop")
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
seen = taken = 0


def ours(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read(9) == b"sbx-init\0"
    except OSError:
        return False


def hold(pid):
    call("ptrace", PTRACE_SEIZE, pid, 0, 0)


def take_descriptor(pid):
    pidfd = call("pidfd_open", pid, 0)
    try:
        os.close(call("pidfd_getfd", pidfd, 0, 0))
    finally:
        os.close(pidfd)


ways = [
    ("seize", hold),
    ("fd", lambda pid: os.listdir("/proc/%d/fd" % pid)),
    ("environ", lambda pid: read("/proc/%d/environ" % pid)[0]),
    ("mem", lambda pid: os.close(os.open("/proc/%d/mem" % pid, os.O_RDWR))),
    ("maps", lambda pid: read("/proc/%d/maps" % pid)[0]),
    ("root", lambda pid: os.listdir("/proc/%d/root" % pid)),
    ("cwd", lambda pid: os.listdir("/proc/%d/cwd" % pid)),
    ("exe", lambda pid: os.readlink("/proc/%d/exe" % pid)),
    ("ns", lambda pid: os.close(os.open("/proc/%d/ns/user" % pid, os.O_RDONLY))),
    ("getfd", take_descriptor),
]


def ask():
    # Each of these is answered by a process of ours that acts in our place.
    with open("/tmp/escape-asked", "w"):
        pass
    while not os.path.exists(stop):
        os.chmod("/tmp/escape-asked", 0o4755)


if os.fork() == 0:
    ask()
    os._exit(0)
number = 0
while not os.path.exists(stop):
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1" or not ours(int(name)):
            continue
        pid = int(name)
        seen += 1
        way, work = ways[number % len(ways)]
        number += 1
        try:
            work(pid)
        except (OSError, IndexError):
            continue
        if ours(pid):
            taken += 1
            print("BREACH", way, pid)
        if way == "seize":
            try:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            except OSError:
                pass
os.wait()
print("seen", seen)
print("taken", taken)
