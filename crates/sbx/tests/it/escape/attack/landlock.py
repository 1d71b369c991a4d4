# A process that has taken from itself, with Landlock, the right to make files must not get one made by asking
# with set-id bits in the mode: such a call is answered by a process that Landlock does not confine.
# CONFINE: how it may confine itself, with `no_new_privs` or with power over its user namespace.
NR.update(landlock_create_ruleset=444, landlock_restrict_self=446)
PR_SET_NO_NEW_PRIVS = 38
# Writing, and making each of: device, directory, file, socket, FIFO, block device, link.
DENIED = 1 << 1 | sum(1 << bit for bit in range(6, 13))
SET_ID = 0o4600
where = os.getcwd()


class Ruleset(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


def confine():
    if CONFINE == "privileges":
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
    elif not real_root():
        nested()
    rules = Ruleset(DENIED)
    fd = call("landlock_create_ruleset", ctypes.byref(rules), ctypes.sizeof(rules), 0)
    call("landlock_restrict_self", fd, 0)


def tries(prefix):
    """Each in the workspace and in the own layer, which are not the same to who answers."""
    for place, directory in (("shared", where), ("own", "/tmp")):
        base = os.path.join(directory, "%s-%s-%s-" % (prefix, WHO, CONFINE))
        ways = dict(
            plain=lambda path: call("openat", AT_FDCWD, path, os.O_CREAT | os.O_WRONLY, 0o600),
            open=lambda path: call("open", path, os.O_CREAT | os.O_WRONLY, SET_ID),
            openat=lambda path: call("openat", AT_FDCWD, path, os.O_CREAT | os.O_WRONLY, SET_ID),
            creat=lambda path: call("creat", path, SET_ID),
            mknod=lambda path: call("mknod", path, stat.S_IFREG | SET_ID, 0),
            mknodat=lambda path: call("mknodat", AT_FDCWD, path, stat.S_IFREG | SET_ID, 0),
            fifo=lambda path: call("mknod", path, stat.S_IFIFO | SET_ID, 0),
        )
        for way, work in ways.items():
            attempt("%s_%s_%s" % (prefix, place, way), lambda: work(base + way))
            print("%s_%s_%s_made" % (prefix, place, way), os.path.lexists(base + way))
        # Not made but opened: what it may not write.
        existing = os.path.join(directory, "existing-%s-%s" % (WHO, CONFINE))
        attempt("%s_%s_write" % (prefix, place), lambda: call("open", existing, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, SET_ID))


def confined():
    try:
        confine()
    except OSError as error:
        print("confine", name_of(error))
        return
    print("confine ok")
    tries("confined")


try:
    print("version", call("landlock_create_ruleset", 0, 0, 1))
except OSError as error:
    print("version", name_of(error))
else:
    for directory in (where, "/tmp"):
        with open(os.path.join(directory, "existing-%s-%s" % (WHO, CONFINE)), "w") as file:
            file.write("untouched\n")
    tries("free")
    in_child(confined)
