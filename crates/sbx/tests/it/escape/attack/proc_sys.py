# Every file below /proc/sys (and the masked ones) that can be opened for writing; nothing is written to those
# that are the network's or the ipc's, which belong to the sandbox.
opened = []
tried = 0
roots = ["/proc/sys", "/run/.visible/proc/sys"]
try:
    os.chmod("/run/.visible", 0o755)
except OSError:
    pass
for root in roots:
    for directory, _, files in os.walk(root):
        for name in files:
            path = os.path.join(directory, name)
            tried += 1
            try:
                fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                continue
            os.close(fd)
            opened.append(path[len(root) + 1:])
print("tried", tried)
for name in sorted(set(opened)):
    print("opened", name)
for base in ("/proc", "/run/.visible/proc"):
    prefix = "hidden_" if base != "/proc" else ""
    for name, data in (("sys/kernel/core_pattern", b"|/tmp/x"), ("sys/kernel/modprobe", b"/tmp/x"), ("sys/kernel/hotplug", b"/tmp/x"),
                       ("sys/kernel/sysrq", b"1"), ("sysrq-trigger", b"h"), ("sys/kernel/ns_last_pid", b"1"),
                       ("sys/fs/binfmt_misc/register", b":x:M::x::/tmp/x:"), ("sys/vm/drop_caches", b"1"), ("sys/fs/suid_dumpable", b"1"),
                       ("sys/kernel/yama/ptrace_scope", b"0"), ("sys/kernel/unprivileged_bpf_disabled", b"0"), ("irq/default_smp_affinity", b"1"),
                       ("bus/pci/devices", b"x"), ("scsi/scsi", b"x"), ("mtrr", b"x"), ("acpi/wakeup", b"x")):
        attempt(prefix + "write_" + name.replace("/", "_"), lambda: overwrite("%s/%s" % (base, name), data))
    for name in ("kcore", "kmsg", "kallsyms_not_zero", "timer_list", "sched_debug", "vmallocinfo", "slabinfo", "kpagecount", "kpageflags", "iomem_not_zero"):
        def look():
            if name.endswith("_not_zero"):
                text = read("%s/%s" % (base, name[:-9])).decode()
                if not any(line.split()[0].strip("0-") for line in text.splitlines()[:50]):
                    raise OSError(errno.ENODATA, name)
            elif not read("%s/%s" % (base, name)):
                raise OSError(errno.ENODATA, name)
        attempt(prefix + "read_" + name, look)
try:
    overwrite("/proc/sys/kernel/pid_max", b"12345")  # of this pid namespace, where the kernel has one per namespace
except OSError:
    pass
for path in ("/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/ksm/run", "/sys/module/kernel/parameters/panic",
             "/sys/kernel/debug/x", "/sys/fs/cgroup/release_agent", "/sys/block/vda/queue/scheduler"):
    for base in ("", "/run/.visible"):
        attempt("sys" + (base + path).replace("/", "_"), lambda: overwrite(base + path, b"x"))
