# Pid 1 is visible, and cannot be traced or changed. The same calls on an own child show that they are real.
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


buffer = ctypes.create_string_buffer(64)
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
address = ctypes.addressof(buffer)


def touch(pid, prefix):
    local = Vector(address, 64)
    remote = Vector(address, 64)
    attempt(prefix + "readv", lambda: call("process_vm_readv", pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
    attempt(prefix + "writev", lambda: call("process_vm_writev", pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
    pidfd = attempt(prefix + "pidfd", lambda: call("pidfd_open", pid, 0))
    if pidfd:
        for number in range(3):
            attempt(prefix + "getfd_%d" % number, lambda: call("pidfd_getfd", pidfd, number, 0))
        advice = Vector(address & ~4095, 4096)
        attempt(prefix + "madvise", lambda: call("process_madvise", pidfd, ctypes.byref(advice), 1, 21, 0))
        os.close(pidfd)
    attempt(prefix + "kcmp", lambda: call("kcmp", pid, os.getpid(), 0, 0, 1))
    attempt(prefix + "seize", lambda: call("ptrace", PTRACE_SEIZE, pid, 0, 0))


ready, go = os.pipe()
child = os.fork()
if child == 0:
    os.close(go)
    os.read(ready, 1)
    os._exit(0)
touch(child, "control_")
os.kill(child, 9)
os.waitpid(child, 0)
touch(1, "init_")
attempt("init_attach", lambda: call("ptrace", PTRACE_ATTACH, 1, 0, 0))
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGHUP):
    try:
        os.kill(1, number)
    except OSError:
        pass
