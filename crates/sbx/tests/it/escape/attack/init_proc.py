# What /proc says about pid 1, through every instance of proc that can be had.
targets = ["/proc"]
os.makedirs("/tmp/escape-proc", exist_ok=True)


def look(proc):
    base = proc + "/1/"
    for name in ("root", "cwd", "exe"):
        attempt(name, lambda: os.readlink(base + name))
        attempt("enter_" + name, lambda: os.listdir(base + name))
    for name in ("fd", "map_files", "task/1/fd"):
        attempt("list_" + name.replace("/", "_"), lambda: os.listdir(base + name))
    for name in ("mem", "maps", "environ", "auxv", "stack", "syscall", "pagemap", "smaps", "io", "personality"):
        def contents():
            if not read(base + name):
                raise OSError(errno.ENODATA, name)
        attempt("read_" + name, contents)
    attempt("write_mem", lambda: os.open(base + "mem", os.O_RDWR))
    attempt("oom_score_adj", lambda: overwrite(base + "oom_score_adj", b"-1000"))
    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        def join():
            fd = os.open(base + "ns/" + name, os.O_RDONLY)
            call("setns", fd, 0)
        attempt("ns_" + name, join)


look("/proc")
