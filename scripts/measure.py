"""What the benchmarks share: starting a program with as little around it as possible, and taking turns."""
import ctypes, os, shutil, statistics, subprocess, time

NULL = os.open(os.devnull, os.O_RDWR)


def quiet(argv, env):
    """Without the detours of `subprocess`, which would be a good part of a short program's time."""
    program = shutil.which(argv[0], path=env.get("PATH")) or argv[0]
    actions = [(os.POSIX_SPAWN_DUP2, NULL, fd) for fd in (0, 1, 2)]
    pid = os.posix_spawn(program, argv, env, file_actions=actions)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0:
        raise RuntimeError(f"{argv} exited with {code}")


def piped(writer, env, filtered=False):
    """`writer | cat >/dev/null`, the writer behind a seccomp filter that allows everything where it is asked for."""
    with subprocess.Popen(writer, env=env, stdin=NULL, stdout=subprocess.PIPE,
                          preexec_fn=empty_filter if filtered else None) as first:
        subprocess.run(["cat"], stdin=first.stdout, stdout=NULL, check=True)
    if first.returncode != 0:
        raise RuntimeError(f"{writer} exited with {first.returncode}")


class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Filter))]


LIBC = ctypes.CDLL(None, use_errno=True)
# One instruction: BPF_RET, SECCOMP_RET_ALLOW.
ALLOW = Program(1, ctypes.pointer(Filter(0x06, 0, 0, 0x7FFF0000)))


def empty_filter():
    """PR_SET_NO_NEW_PRIVS, then PR_SET_SECCOMP with SECCOMP_MODE_FILTER."""
    if LIBC.prctl(38, 1, 0, 0, 0) != 0 or LIBC.prctl(22, 2, ctypes.byref(ALLOW)) != 0:
        raise OSError(ctypes.get_errno(), "no seccomp filter")


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(ours, peer, runs):
    """Medians in milliseconds, one of each in turn, so that noise hits both."""
    mine, other = [], []
    for _ in range(runs):
        other.append(seconds(peer))
        mine.append(seconds(ours))
    return statistics.median(mine) * 1000, statistics.median(other) * 1000
