"""Where things are, what is said, and how it ends."""
import contextlib, fcntl, os, pathlib, platform, subprocess, sys, time

KUBERNETES = "1.33.13"
CONTROLLERS = ("v0.5.6", "v1.0.3")
CONTEXT = "agent-cluster"
BEGAN = time.monotonic()


class Blocked(Exception):
    """What this machine lacks."""


class Failed(Exception):
    pass


def say(text):
    print(f"[cluster {time.monotonic() - BEGAN:4.0f}s] {text}", file=sys.stderr, flush=True)


def run(command, **options):
    """A program that must succeed; what it prints."""
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    if done.returncode != 0:
        raise Failed(f"{command[0]} exited with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def wait_until(condition, seconds, what, still_possible=lambda: None):
    """Until the condition holds. `still_possible` raises where waiting has become pointless."""
    end = time.monotonic() + seconds
    while not condition():
        still_possible()
        if time.monotonic() > end:
            raise Failed(f"{what} did not come within {seconds} s")
        time.sleep(0.2)


class Cache:
    """What takes minutes to make, and serves every cluster."""

    def __init__(self, path):
        self.path = pathlib.Path(path).absolute()
        self.bin, self.debian, self.images, self.crds = (self.path / name for name in ("bin", "deb", "images", "crds"))
        self.sources = self.path / "src"

    @property
    def hyperkube(self):
        return self.bin / f"hyperkube-{KUBERNETES}"

    def controller(self, version):
        return self.bin / f"agent-sandbox-controller-{version}"

    def debian_libraries(self):
        return self.debian / "usr/lib" / f"{platform.machine()}-linux-gnu"

    def missing(self, controller):
        """The first thing that a cluster with this controller needs and the cache does not have."""
        wanted = (self.debian / ".done", self.images / "tiny.tar", self.images / "debian.tar", self.kubectl_or_none(),
                  self.hyperkube, self.controller(controller), self.crds / controller)
        return next((str(path or "kubectl") for path in wanted if path is None or not path.exists()), None)

    def kubectl_or_none(self):
        from build import plain_kubectl
        return plain_kubectl(self)

    @contextlib.contextmanager
    def locked(self):
        """One process at a time builds, starts or ends something."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def default_cache():
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("CRABBOX_CLUSTER_CACHE") or os.path.join(home, "crabbox-cluster")
