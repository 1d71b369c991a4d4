# Re-open what stdin, stdout and stderr are, and walk from them.
target = (int(DEVICE), int(INODE))
for number in range(3):
    path = "/proc/self/fd/%d" % number
    try:
        status = os.fstat(number)
        print("same_%d" % number, (status.st_dev, status.st_ino) == target, file=sys.stderr)
        kind = stat.S_IFMT(status.st_mode)
        print("kind_%d" % number, {stat.S_IFIFO: "pipe", stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFCHR: "device", stat.S_IFSOCK: "socket"}[kind], file=sys.stderr)
    except OSError as error:
        print("kind_%d" % number, name_of(error), file=sys.stderr)
    for flags in (os.O_RDWR | os.O_NONBLOCK, os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND, os.O_RDONLY | os.O_NONBLOCK, os.O_PATH):
        try:
            fd = os.open(path, flags)
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) == target:
                print("BREACH reopened %d" % number, file=sys.stderr)
                os.ftruncate(fd, 0)
        except OSError:
            pass
    for way in ("/..", "/../..", "/."):
        try:
            if MARKER in os.listdir(path + way):
                print("BREACH walked %d%s" % (number, way), file=sys.stderr)
        except OSError:
            pass
    try:
        os.fchdir(number)
        print("BREACH entered %d" % number, file=sys.stderr)
    except OSError:
        pass
print("done", file=sys.stderr)
