# On the host: a terminal with `sbx exec -t` in it, as a user has it. argv: marker, command...
import json, os, pty, select, sys, termios
attack = sys.stdin.buffer.read() if not sys.stdin.isatty() else b""
master, slave = pty.openpty()
slave_status = os.fstat(slave)
pid = os.fork()
if pid == 0:
    os.setsid()
    import fcntl
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(slave, number)
    os.close(master)
    os.execvp(sys.argv[1], sys.argv[1:])
os.set_blocking(slave, False)
out = b""
while True:
    ready, _, _ = select.select([master], [], [], 0.05)
    if ready:
        out += os.read(master, 65536)
        continue
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        break
while select.select([master], [], [], 0)[0]:
    out += os.read(master, 65536)
# No input was typed: anything that can be read on the slave was injected.
attributes = termios.tcgetattr(slave)
attributes[3] &= ~(termios.ICANON | termios.ECHO)
termios.tcsetattr(slave, termios.TCSANOW, attributes)
try:
    typed = os.read(slave, 4096)
except BlockingIOError:
    typed = b""
json.dump({"out": out.decode(errors="replace"), "typed": typed.decode(errors="replace"), "code": os.waitstatus_to_exitcode(status),
           "device": [slave_status.st_dev, slave_status.st_ino]}, sys.stdout)
