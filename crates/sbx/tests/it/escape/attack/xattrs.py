# Extended attributes of a workspace are the host's: names that an overlay, a container engine or the kernel
# there takes for a mode, an owner, a capability or a deleted file.
PRIVATE = ["user.overlay.opaque", "user.overlay.redirect", "user.overlay.metacopy", "user.containers.override_stat",
           "user.fuseoverlayfs.opaque", "user.fuseoverlayfs.override_stat"]
FOREIGN = ["trusted.overlay.opaque", "trusted.any", "security.capability", "security.selinux", "security.ima",
           "security.apparmor", "system.nfs4_acl", "system.other"]
VALUE = b"0:0:4755"
where = WHERE or os.getcwd()
# Owner rwx, group r, others r: version, then a tag, a right and an id for each.
ACL = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, right, 0xffffffff) for tag, right in ((1, 7), (4, 4), (32, 4)))


def ways(path, name, value):
    name = name.encode()
    size = len(value)

    def descriptor(flags, work):
        fd = os.open(path, flags)
        try:
            work(fd)
        finally:
            os.close(fd)
    return dict(
        setxattr=lambda: call("setxattr", path, name, value, size, 0),
        lsetxattr=lambda: call("lsetxattr", path, name, value, size, 0),
        fsetxattr=lambda: descriptor(os.O_RDONLY, lambda fd: call("fsetxattr", fd, name, value, size, 0)),
        link=lambda: descriptor(os.O_PATH, lambda fd: call("setxattr", "/proc/self/fd/%d" % fd, name, value, size, 0)),
    )


def tries():
    file, directory = (os.path.join(where, "%s-%s-%s" % (WHO, HOW, kind)) for kind in ("file", "directory"))
    open(file, "w").close()
    os.mkdir(directory)
    for kind, path in (("file", file), ("directory", directory)):
        for name in PRIVATE + FOREIGN:
            for way, work in ways(path, name, VALUE).items():
                attempt("%s/%s/%s" % (name, kind, way), work)
        for way, work in ways(path, "user.note", b"mine").items():
            attempt("note/%s/%s" % (kind, way), work)
        attempt("acl/" + kind, lambda: os.setxattr(path, "system.posix_acl_access", ACL))
    # Replaces the umask for new files in the directory, whichever user makes them.
    for way, work in ways(directory, "system.posix_acl_default", ACL).items():
        attempt("default-acl/" + way, work)
    own = "/tmp/%s-%s-own" % (WHO, HOW)
    if HOW != "host":
        open(own, "w").close()
        attempt("own", lambda: os.setxattr(own, "user.containers.override_stat", VALUE))
        os.mkdir(own + "-directory")
        attempt("own-default-acl", lambda: os.setxattr(own + "-directory", "system.posix_acl_default", ACL))


if HOW == "nested":
    nested()
tries()
