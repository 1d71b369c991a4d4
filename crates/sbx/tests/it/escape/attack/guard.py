# Calls that are answered by a process of ours: its own /proc/self, descriptors and memory must not be what a
# path of the caller leads to. With O_CREAT and a set-id mode every open is answered that way.
MODE = 0o4600
mine = {}
for name in os.listdir("/proc/self/fd"):
    try:
        mine[int(name)] = os.stat("/proc/self/fd/" + name)
    except OSError:
        pass


def same(one, other):
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


breaches = opened = 0
for self in ("/proc/self", "/proc/thread-self"):
    for number in range(3, 80):
        for flags in (os.O_RDWR, os.O_RDONLY, os.O_WRONLY):
            try:
                fd = os.open("%s/fd/%d" % (self, number), flags | os.O_CREAT | os.O_NONBLOCK, MODE)
            except OSError:
                continue
            opened += 1
            if number not in mine or not same(os.fstat(fd), mine[number]):
                breaches += 1
                print("BREACH fd", number, flags, os.readlink("/proc/self/fd/%d" % fd))
            os.close(fd)
        for name in ("../../etc/hostname", "../etc/hostname", "etc/hostname", "1/status", "self/status", "1/environ", "self/mem"):
            try:
                fd = os.open("%s/fd/%d/%s" % (self, number, name), os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK, MODE)
            except OSError:
                continue
            breaches += 1
            print("BREACH walk", number, name, os.readlink("/proc/self/fd/%d" % fd))
            os.close(fd)
    for name in ("mem", "maps", "environ", "auxv", "status", "cmdline", "exe", "stat", "attr/current", "ns/mnt", "ns/pid"):
        try:
            fd = os.open("%s/%s" % (self, name), os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK, MODE)
        except OSError:
            continue
        opened += 1
        if name == "mem":
            other = os.open("/proc/self/mem", os.O_RDONLY)
            probe = ctypes.create_string_buffer(b"this is our own memory")
            try:
                if os.pread(fd, 22, ctypes.addressof(probe)) != b"this is our own memory":
                    raise OSError
            except OSError:
                breaches += 1
                print("BREACH memory of another process")
        elif not same(os.fstat(fd), os.stat("/proc/self/" + name)):
            breaches += 1
            print("BREACH file", name)
        elif name == "status":
            text = os.read(fd, 4096).decode()
            if "Name:\tpython3" not in text:
                breaches += 1
                print("BREACH status", text.splitlines()[:1])
        os.close(fd)
    for number in range(3, 80):
        if number in mine:
            continue
        for name, work in (("chmod", lambda p: os.chmod(p, 0o4755)), ("setxattr", lambda p: os.setxattr(p, "user.breach", b"1"))):
            try:
                work("%s/fd/%d" % (self, number))
            except OSError:
                continue
            breaches += 1
            print("BREACH", name, number)
print("breaches", breaches)
print("opened", opened)
