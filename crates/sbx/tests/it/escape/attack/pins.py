# Rename and remove the mount points in a writable workspace, from every mount namespace that can be had. DIR and FILE are
# names in the workspace.
OPEN_TREE_CLONE, OPEN_TREE_NAMESPACE, AT_RECURSIVE, AT_EMPTY_PATH = 1, 2, 0x8000, 0x1000
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_BENEATH = 4, 0x200
UNSHARE_EMPTY_MNTNS, CLONE_EMPTY_MNTNS = 0x100000, 1 << 37
NR.update(clone3=435, pivot_root=155)
workspace = os.open(".", os.O_RDONLY | os.O_DIRECTORY)


def pivot():
    nested()
    mount("none", "/mnt", "tmpfs", 0)
    os.mkdir("/mnt/old")
    call("pivot_root", "/mnt", "/mnt/old")
    os.chdir("/")
    call("umount2", "/old", MNT_DETACH)


def pivot_in_place():
    nested()
    mount("none", "/mnt", "tmpfs", 0)
    os.chdir("/mnt")
    call("pivot_root", ".", ".")
    call("umount2", ".", MNT_DETACH)


def new_tmpfs(flags):
    context = call("fsopen", "tmpfs", 0)
    call("fsconfig", context, 6, 0, 0, 0)
    return call("fsmount", context, flags, 0)


def beneath():
    nested()
    call("move_mount", new_tmpfs(0), b"", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_BENEATH)
    call("umount2", "/", MNT_DETACH)


def detached_root():
    nested()
    call("umount2", "/", MNT_DETACH)


def moved_root():
    nested()
    mount("none", "/mnt", "tmpfs", 0)
    mount("/", "/mnt", None, MS_MOVE)


def over_the_root():
    nested()
    mount("none", "/", "tmpfs", 0)
    call("chroot", "/..")
    call("umount2", "/", MNT_DETACH)


def empty():
    unshare(CLONE_NEWUSER)
    unshare(CLONE_NEWNS | UNSHARE_EMPTY_MNTNS)


def empty_child():
    nested()
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls
    args = struct.pack("8Q", CLONE_NEWNS | CLONE_EMPTY_MNTNS, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    pid = call("clone3", args, len(args))
    if pid > 0:
        os.waitpid(pid, 0)
        os._exit(0)


def tree_namespace():
    nested()
    mount("none", "/mnt", "tmpfs", 0)
    fd = call("open_tree", AT_FDCWD, "/mnt", OPEN_TREE_NAMESPACE)
    call("setns", fd, CLONE_NEWNS)


def new_namespace():
    nested()
    call("setns", new_tmpfs(2), CLONE_NEWNS)


def inits_namespace():
    call("setns", os.open("/proc/1/ns/mnt", os.O_RDONLY), CLONE_NEWNS)


def twice():
    nested()
    nested()


def here():
    pass


def tries(way):
    def inner():
        attempt("way_" + way.__name__, way)
        name = way.__name__ + "_"
        at = dict(src_dir_fd=workspace, dst_dir_fd=workspace)
        for victim in (DIR, FILE):
            if victim:
                attempt(name + "rename_" + victim, lambda: os.rename(victim, "moved-" + victim, **at))
        attempt(name + "over_" + DIR, lambda: (os.mkdir("empty", dir_fd=workspace), os.rename("empty", DIR, **at)))
        attempt(name + "rmdir_" + DIR, lambda: os.rmdir(DIR, dir_fd=workspace))
        try:
            os.rmdir("empty", dir_fd=workspace)
        except OSError:
            pass
        if FILE:
            attempt(name + "unlink_" + FILE, lambda: os.unlink(FILE, dir_fd=workspace))
    in_child(inner)


for way in (here, twice, pivot, pivot_in_place, beneath, detached_root, moved_root, over_the_root, empty, empty_child,
            tree_namespace, new_namespace, inits_namespace):
    tries(way)
