"""What the benchmarks share: starting a program with as little around it as possible, and taking turns."""
import os, shutil, statistics, time

NULL = os.open(os.devnull, os.O_RDWR)


def quiet(argv, env):
    """Without the detours of `subprocess`, which would be a good part of a short program's time."""
    program = shutil.which(argv[0], path=env.get("PATH")) or argv[0]
    actions = [(os.POSIX_SPAWN_DUP2, NULL, fd) for fd in (0, 1, 2)]
    pid = os.posix_spawn(program, argv, env, file_actions=actions)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0:
        raise RuntimeError(f"{argv} exited with {code}")


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
