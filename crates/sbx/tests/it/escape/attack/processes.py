# A process of the host, by its number there.
pid = int(PID)
here = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
print("processes", len(here))
if pid in here:
    # By chance a process inside has this number: then nothing here is about the host's.
    print("same_number", pid)
else:
    attempt("kill_0", lambda: os.kill(pid, 0))
    attempt("kill_9", lambda: os.kill(pid, 9))
    attempt("group", lambda: os.killpg(pid, 9))
    attempt("pidfd", lambda: call("pidfd_open", pid, 0))
    attempt("trace", lambda: call("ptrace", 0x4206, pid, 0, 0))
    buffer = ctypes.create_string_buffer(64)


    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


    vector = ctypes.byref(Vector(ctypes.addressof(buffer), 64))
    attempt("readv", lambda: call("process_vm_readv", pid, vector, 1, vector, 1, 0))
    attempt("writev", lambda: call("process_vm_writev", pid, vector, 1, vector, 1, 0))
    attempt("proc", lambda: os.listdir("/proc/%d" % pid))
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    attempt("affinity", lambda: os.sched_setaffinity(pid, {0}))
seen = b"".join(read("/proc/%d/cmdline" % n) for n in here if os.path.exists("/proc/%d/cmdline" % n))
print("seen_by_name", MARK.encode() in seen)
# Everything that can be reached at once, but not this process.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
attempt("everything", lambda: os.kill(-1, signal.SIGTERM))
