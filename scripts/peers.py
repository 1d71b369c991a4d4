"""Other programs that run a command in isolation, for scripts/bench: `true` in each, made ready once. It is busybox's where
that is installed as one static program, else the host's own with its libraries."""
import json, os, re, shutil, subprocess, tarfile

NAMES = ("crun", "runc", "runsc", "podman", "docker", "srt")


def available(temp):
    """The peers that work on this machine: name -> argv that runs `true` once, from nothing, and cleans up.
    What is installed and does not work is told."""
    root = _root(os.path.join(temp, "rootfs"))
    if root is None:
        # The only one that needs no root file system.
        print("environment_blocked: " + ", ".join(NAMES[:-1]) + ": neither busybox-static nor ldd is installed, to make an image of")
        return _working([("srt", _srt())])
    image = os.path.join(temp, "busybox.tar")
    with tarfile.open(image, "w") as tar:
        tar.add(root, arcname=".")
    return _working([("crun", _bundle("crun", temp, root)), ("runc", _bundle("runc", temp, root)), ("runsc", _bundle("runsc", temp, root)),
                       ("podman", _podman(image)), ("docker", _docker(image)), ("srt", _srt())])


def _working(peers):
    found = {}
    for name, argv in peers:
        if argv is None:
            print(f"environment_blocked: {name} {_reason(name)}")
        elif (failure := _try(argv)) is not None:
            print(f"environment_blocked: {name} does not work here: {failure}")
        else:
            found[name] = argv
    return found


def _reason(name):
    if shutil.which(name) is None:
        return "is not installed"
    return "has no daemon that answers (DOCKER_HOST names one)" if name == "docker" else "cannot make an image here"


def _try(argv):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _root(root):
    """A root file system with `/bin/true`."""
    busybox = next((path for path in ("/usr/bin/busybox", "/bin/busybox") if os.path.exists(path)), None)
    usable = busybox is not None and _libraries(busybox) == [] and subprocess.run([busybox, "true"]).returncode == 0
    program = busybox if usable else shutil.which("true")
    libraries = [] if usable else _libraries(program)
    if libraries is None:
        return None
    for directory in ("bin", "proc", "dev", "sys", "tmp", "etc"):
        os.makedirs(os.path.join(root, directory), exist_ok=True)
    shutil.copy(program, os.path.join(root, "bin/true"))
    for library in libraries:
        target = os.path.join(root, library.lstrip("/"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(library, target)
    return root


def _libraries(program):
    """What is loaded with it; None where that cannot be found out."""
    if shutil.which("ldd") is None:
        return None
    said = subprocess.run(["ldd", program], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    if said.returncode != 0:
        return [] if "not a dynamic executable" in said.stdout + said.stderr else None
    return re.findall(r"(/\S+) \(0x", said.stdout)


def _bundle(program, temp, root):
    path = shutil.which(program)
    if path is None:
        return None
    bundle = os.path.join(temp, program)
    os.makedirs(bundle)
    spec = [path, "spec"] if program != "runsc" else [path, "spec", "--", "/bin/true"]
    if subprocess.run(spec, cwd=bundle, capture_output=True).returncode != 0:
        return None
    file = os.path.join(bundle, "config.json")
    with open(file) as text:
        config = json.load(text)
    config["root"] = {"path": root, "readonly": True}
    config["process"].update(terminal=False, args=["/bin/true"])
    with open(file, "w") as text:
        json.dump(config, text)
    return [path, "--root", os.path.join(temp, f"{program}-state"), "run", "--bundle", bundle, f"bench-{program}"]


def _podman(image):
    path = shutil.which("podman")
    if path is None or subprocess.run([path, "import", image, "localhost/bench-busybox"], capture_output=True).returncode != 0:
        return None
    return [path, "run", "--rm", "--network=none", "localhost/bench-busybox", "/bin/true"]


def _docker(image):
    """Only where a daemon answers already: the usual one, or that of DOCKER_HOST."""
    path = shutil.which("docker")
    if path is None or subprocess.run([path, "import", image, "bench-busybox"], capture_output=True).returncode != 0:
        return None
    return [path, "run", "--rm", "--network=none", "bench-busybox", "/bin/true"]


def _srt():
    """The npm package sandbox-runtime."""
    path = shutil.which("srt")
    return None if path is None else [path, "true"]
