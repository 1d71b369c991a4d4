# Runs beside a copy of our own program (started through #!/proc/self/exe): find it, hold it and change it.
open(READY, "w").close()
deadline = time.monotonic() + 20
pid = None
while pid is None and time.monotonic() < deadline:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            try:
                if "memfd:" in os.readlink("/proc/%s/exe" % name):
                    os.kill(int(name), signal.SIGSTOP)
                    pid = int(name)
                    break
            except OSError:
                pass
print("found", pid is not None)
if pid is not None:
    exe = "/proc/%d/exe" % pid
    for name, flags in (("write", os.O_WRONLY), ("both", os.O_RDWR), ("truncate", os.O_WRONLY | os.O_TRUNC), ("append", os.O_WRONLY | os.O_APPEND)):
        def change():
            fd = os.open(exe, flags)
            os.write(fd, b"#!/bin/sh\n")
        attempt(name, change)
    fd = attempt("open", lambda: os.open(exe, os.O_RDONLY))
    if fd:
        import fcntl, mmap
        print("open", "readable")
        again = "/proc/self/fd/%d" % fd
        attempt("again_write", lambda: os.write(os.open(again, os.O_RDWR), b"x"))
        attempt("shared_map", lambda: mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
        attempt("ftruncate", lambda: os.truncate(exe, 0))
        attempt("unseal", lambda: fcntl.fcntl(os.open(again, os.O_RDWR), 1033, 0))
        attempt("fallocate", lambda: os.posix_fallocate(os.open(again, os.O_RDWR), 0, 1))
        attempt("chmod", lambda: os.chmod(exe, 0o000))
        attempt("fchmod", lambda: os.fchmod(fd, 0o600))
        attempt("set_id", lambda: os.chmod(exe, 0o4755))
        attempt("chown", lambda: os.chown(exe, 33, 33))
    try:
        os.kill(pid, 9)
    except OSError:
        pass  # it ended with its client
