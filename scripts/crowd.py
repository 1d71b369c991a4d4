"""Many idle sandboxes at once, for scripts/load and scripts/bench: an engine of its own, and the memory of each."""
import json, os, pathlib, shutil, statistics, subprocess, tempfile, threading


class Engine:
    def __init__(self, programs):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="sbx-load-"))
        self.sbx = str(programs / "sbx")
        self.env = {**os.environ, "HOME": str(self.dir), "SBX_HOME": str(self.dir / "sbx")}
        self.workspace = self.dir / "work"
        self.workspace.mkdir()

    def call(self, *arguments):
        return subprocess.run([self.sbx, *arguments], env=self.env, cwd=self.workspace, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)

    def ok(self, *arguments):
        done = self.call(*arguments)
        if done.returncode != 0:
            raise RuntimeError(f"sbx {' '.join(arguments)}: {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def create(self, name):
        return self.ok("create", "--quiet", "--idle-timeout", "0", "--name", name, "shell", str(self.workspace))

    def daemon(self):
        return json.loads((self.dir / "sbx/daemon.json").read_text())["pid"]

    def inits(self):
        for path in (self.dir / "sbx").glob("vm/*/sandbox.json"):
            yield json.loads(path.read_text())["init"]["pid"]

    def end(self):
        self.call("rm", "--all", "--force")
        self.call("daemon", "stop")
        shutil.rmtree(self.dir, ignore_errors=True)


def pss(pid):
    """In bytes: private pages, and the process's share of what it has in common with others."""
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no Pss in smaps_rollup")


def in_threads(count, work):
    failures = []

    def guarded(number):
        try:
            work(number)
        except Exception as error:  # told at the end
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(f"{len(failures)} of {count} threads failed, the first with: {failures[0]}")


def empty(engine):
    """What the daemon has without a sandbox, but after its first: the template is built, and whatever it keeps is there."""
    engine.create("first")
    engine.ok("rm", "--force", "first")
    return pss(engine.daemon())


def fill(engine, few, count):
    """All but the first few, in threads."""
    in_threads(8, lambda worker: [engine.create(f"s{number}") for number in range(few + worker, count, 8)])


def memory(engine, before, count):
    """Of one idle sandbox, in bytes: the PSS of its init, and what the daemon's PSS grew by, divided by their number."""
    inits = statistics.median(pss(pid) for pid in engine.inits())
    return inits, (pss(engine.daemon()) - before) / count
