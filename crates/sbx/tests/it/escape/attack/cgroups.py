# release_agent runs a program of the host as root when a group empties.
place = "/tmp/escape-cgroup"
os.makedirs(place, exist_ok=True)


def tries(prefix):
    for kind in ("cgroup", "cgroup2"):
        for options in ("", "memory", "rdma", "cpu", "none,name=escape", "none,name=systemd", "release_agent=/tmp/x,none,name=y"):
            for flags in (0, 0xc0ed0000, 0xc0ed0000 | 1 << 20, 1 << 32):
                attempt("%smount_%s_%s_%x" % (prefix, kind, options, flags), lambda: mount("cgroup", place, kind, flags, options))
        attempt(prefix + "fsopen_" + kind, lambda: call("fsopen", kind, 0))
    for base in ("/sys/fs/cgroup", "/run/.visible/sys/fs/cgroup"):
        for name in ("release_agent", "notify_on_release", "cgroup.procs", "memory/release_agent", "cgroup.kill"):
            attempt(prefix + "write" + (base + "/" + name).replace("/", "_"), lambda: overwrite(base + "/" + name, b"1"))
        attempt(prefix + "mkdir" + base.replace("/", "_"), lambda: os.mkdir(base + "/escape"))


tries("")


def inner():
    nested()
    unshare(0x2000000)
    tries("nested_")


in_child(inner)
