# Take hold of the process that waits to become a command; the same ways work on a process of one's own.
PTRACE_SEIZE = 0x4206


def comm(name):
    try:
        with open("/proc/%s/comm" % name) as file:
            return file.read()
    except OSError:
        return ""


def readv(pid):
    with open("/proc/self/maps") as file:
        start = int(file.readline().split("-")[0], 16)
    local = ctypes.create_string_buffer(8)
    mine = (ctypes.c_void_p * 2)(ctypes.addressof(local), 8)
    theirs = (ctypes.c_void_p * 2)(start, 8)
    call("process_vm_readv", pid, ctypes.addressof(mine), 1, ctypes.addressof(theirs), 1, 0)


ways = [
    ("fd", lambda pid: os.listdir("/proc/%d/fd" % pid)),
    ("environ", lambda pid: read("/proc/%d/environ" % pid)),
    ("mem", lambda pid: os.close(os.open("/proc/%d/mem" % pid, os.O_RDWR))),
    ("maps", lambda pid: read("/proc/%d/maps" % pid)[0]),
    ("root", lambda pid: os.listdir("/proc/%d/root" % pid)),
    ("cwd", lambda pid: os.listdir("/proc/%d/cwd" % pid)),
    ("exe", lambda pid: os.readlink("/proc/%d/exe" % pid)),
    ("ns", lambda pid: os.close(os.open("/proc/%d/ns/user" % pid, os.O_RDONLY))),
    ("getfd", lambda pid: call("pidfd_getfd", call("pidfd_open", pid, 0), 0, 0)),
    ("readv", readv),
    ("seize", lambda pid: call("ptrace", PTRACE_SEIZE, pid, 0, 0)),
]
own = os.fork()
if own == 0:
    signal.pause()
open("ready", "w").close()
# What is called so until then may be a command on its way.
sys.stdin.readline()
# The one before became this command; the next is made when a command ends.
subject = None
for _ in range(2000):
    found = [name for name in os.listdir("/proc") if name.isdigit() and comm(name) == "sbx-spare\n"]
    if found:
        subject = int(found[0])
        break
    time.sleep(0.005)
print("pid", subject)
for name, work in ways:
    attempt("own_" + name, lambda: work(own))
    if subject:
        attempt(name, lambda: work(subject))
os.kill(own, 9)
