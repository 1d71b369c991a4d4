# End the process that becomes the next command, when it has been told what to execute and before it does.
def spare():
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and read("/proc/%s/comm" % name) == b"sbx-spare\n" and asleep(name):
                return name
        except OSError:
            pass


def asleep(name):
    return read("/proc/%s/stat" % name).rsplit(b") ", 1)[1][:1] == b"S"


subject = None
while subject is None:
    subject = spare()
open(SAID, "w").close()
# It sleeps until it gets its order.
while asleep(subject):
    pass
time.sleep(0.001)
os.kill(int(subject), signal.SIGKILL)
