# End what init starts to hand files over: it is called as init is.
def helpers():
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and name != "1" and read("/proc/%s/comm" % name) == b"sbx-init\n":
                yield int(name)
        except OSError:
            pass


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
        return True
    except OSError:
        return False


left = int(KILLS)
open(SAID, "w").close()
while not os.path.exists(GO):
    pass
while left:
    for pid in helpers():
        left -= kill(pid)
        with open(SAID, "a") as file:
            file.write("killed\n")
