# The machine: modules, keys, clocks, handles, tracing. Every argument is such that the real call could work.
buffer = ctypes.create_string_buffer(4096)
image = open("/bin/sh", "rb").read(64)


def calls(prefix):
    def tried(name, work):
        attempt(prefix + name, work)
    tried("init_module", lambda: call("init_module", image, len(image), b""))
    tried("finit_module", lambda: call("finit_module", os.open("/bin/sh", os.O_RDONLY), b"", 0))
    tried("delete_module", lambda: call("delete_module", b"dummy", 0))
    tried("kexec_load", lambda: call("kexec_load", 0, 0, 0, 0))
    tried("kexec_file_load", lambda: call(320, os.open("/bin/sh", os.O_RDONLY), -1, 1, b"", 8))
    tried("reboot", lambda: call("reboot", 0xfee1dead, 672274793, 0x89abcdef, 0))
    tried("swapon", lambda: call("swapon", b"/bin/sh", 0))
    tried("acct", lambda: call("acct", b"/tmp/acct"))
    tried("quotactl", lambda: call("quotactl", 0x800002 << 8, b"/dev/vda", 0, buffer))
    tried("syslog", lambda: call("syslog", 3, buffer, 4096))
    tried("settimeofday", lambda: call("settimeofday", struct.pack("qq", 1, 0), 0))
    tried("clock_settime", lambda: call("clock_settime", 0, struct.pack("qq", 1, 0)))
    tried("adjtimex", lambda: call(159, struct.pack("I", 0x4000) + bytes(204)))
    tried("iopl", lambda: call("iopl", 3))
    tried("ioperm", lambda: call("ioperm", 0x70, 2, 1))
    tried("add_key", lambda: call("add_key", b"user", b"escape", b"payload", 7, -3))
    tried("request_key", lambda: call("request_key", b"user", b"escape", b"", -3))
    for number in range(0, 33):
        tried("keyctl_%d" % number, lambda: call("keyctl", number, -4, 0, 0, 0))
    tried("bpf", lambda: call("bpf", 0, struct.pack("IIII", 1, 4, 8, 1) + bytes(112), 128))
    tried("perf", lambda: call("perf_event_open", struct.pack("II", 1, 120) + bytes(112), -1, 0, -1, 0))
    tried("perf_self", lambda: call("perf_event_open", struct.pack("II", 1, 120) + bytes(112), 0, -1, -1, 0))
    tried("userfaultfd", lambda: call("userfaultfd", 1))
    tried("vhangup", lambda: call(153))
    tried("nfsservctl", lambda: call(180, 0, 0, 0))
    tried("uselib", lambda: call(134, b"/lib/x"))
    tried("ustat", lambda: call(136, 0, buffer))
    tried("sysfs", lambda: call(139, 3))
    for number in (470, 480, 500, 511, 512, 547, 1000, 1 << 20):
        tried("unknown_%d" % number, lambda: call(number, 0, 0, 0, 0, 0, 0))
    # Files by number: the root directory of an ext4 is 2, and a handle needs no directory.
    for kind in (1, 0x81, 0xfe):
        for inode in (2, 11, 12):
            handle = struct.pack("IiII", 8, kind, inode, 0)
            for path in (os.getcwd(), "/", "/usr", "/dev/null"):
                def by_handle():
                    base = os.open(path, os.O_RDONLY)
                    try:
                        call("open_by_handle_at", base, handle, os.O_RDONLY)
                    finally:
                        os.close(base)
                tried("handle_%d_%d_%s" % (kind, inode, os.path.basename(path)), by_handle)

    def real_handle():
        handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
        number = ctypes.c_int()
        call("name_to_handle_at", AT_FDCWD, os.getcwd(), handle, ctypes.byref(number), 0)
        call("open_by_handle_at", os.open(os.getcwd(), os.O_RDONLY), handle, os.O_RDONLY)
    tried("handle_real", real_handle)

    def proc_handle():
        # Since 6.18 a namespace has a handle too.
        handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
        number = ctypes.c_int()
        call("name_to_handle_at", AT_FDCWD, "/proc/self/ns/mnt", handle, ctypes.byref(number), 0x400)
        call("open_by_handle_at", -10003, handle, os.O_RDONLY)
    tried("handle_namespace", proc_handle)
    for name, request in (("parent", 0xb702), ("owner", 0xb701)):
        for kind in ("user", "pid"):
            def related():
                fd = os.open("/proc/self/ns/" + kind, os.O_RDONLY)
                # In a nested namespace the first step is allowed: it is the sandbox's own.
                fd = call("ioctl", fd, request, 0)
                for _ in range(3):
                    fd = call("ioctl", fd, request, 0)
            tried("namespace_%s_%s" % (name, kind), related)

    def mount_namespaces():
        fd = os.open("/proc/self/ns/mnt", os.O_RDONLY)
        info = ctypes.create_string_buffer(struct.pack("IIQ", 16, 0, 0))
        call("ioctl", fd, 0x8010b70b, info)
        call("ioctl", fd, 0x8010b70c, info)
    tried("other_mount_namespace", mount_namespaces)

    def list_other():
        # mnt_id_req with the mount namespace of the host (its ids are small numbers at boot).
        request = struct.pack("IIQQQ", 32, 0, 0xffffffffffffffff, 0, int(MNT_NS))
        call("listmount", request, ctypes.create_string_buffer(4096), 512, 0)
    tried("listmount", list_other)
    tried("fanotify", lambda: call("fanotify_init", 4, 0))
    tried("fanotify_mount", lambda: call("fanotify_mark", call("fanotify_init", 0x200, 0), 0x11, 0x20, AT_FDCWD, os.getcwd()))


calls("")


def inner():
    nested()
    calls("nested_")


in_child(inner)
