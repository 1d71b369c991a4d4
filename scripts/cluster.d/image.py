"""Images without a registry: archives with one layer that containerd imports."""
import hashlib, json, os, pathlib, platform, shutil, subprocess, tarfile, tempfile

from common import Failed, run, say

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TINY, DEBIAN = "localhost/tiny:1", "localhost/debian:12"


def build_all(cache, nice):
    if not (cache.images / "tiny.tar").exists():
        build_tiny(cache)
    if not (cache.images / "debian.tar").exists():
        say("image: Debian, by debootstrap")
        build_debian(cache, nice)


def build_tiny(cache):
    """Busybox and bash. It also is the pause image of every pod, which must sleep."""
    with tempfile.TemporaryDirectory(dir=cache.path) as directory:
        root = pathlib.Path(directory)
        root.chmod(0o755)
        for name in ("bin", "tmp", "etc", "proc", "sys", "dev", "root", "workspace"):
            (root / name).mkdir()
        (root / "tmp").chmod(0o1777)
        shutil.copy(cache.debian / "bin/busybox", root / "bin/busybox")
        shutil.copy(cache.debian / "bin/bash-static", root / "bin/bash")
        for applet in run([root / "bin/busybox", "--list"]).split():
            if not (root / "bin" / applet).exists():
                (root / "bin" / applet).symlink_to("busybox")
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        pack(root, TINY, cache.images / "tiny.tar")


def build_debian(cache, nice):
    root = cache.path / "root.debian"
    shutil.rmtree(root, ignore_errors=True)
    suite = release()
    log = cache.path / "debootstrap.log"
    command = ["nice", "-n", str(nice), cache.debian / "usr/sbin/debootstrap", "--variant=minbase", "--include=procps", suite, root,
               mirror(suite)]
    with open(log, "w") as out:
        made = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT,
                              env={**os.environ, "DEBOOTSTRAP_DIR": str(cache.debian / "usr/share/debootstrap")})
    if made.returncode != 0:
        raise Failed(f"debootstrap failed, see {log}")
    for pattern in ("var/cache/apt/archives/*.deb", "var/lib/apt/lists/*", "usr/share/doc/*", "usr/share/man/*",
                    "usr/share/locale/*"):
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    (root / "workspace").mkdir()
    pack(root, DEBIAN, cache.images / "debian.tar")
    shutil.rmtree(root)


def release():
    lines = pathlib.Path("/etc/os-release").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line).get("VERSION_CODENAME", "bookworm").strip('"')


def mirror(suite):
    """Where this machine gets its own packages."""
    for condition in ([f"Codename: {suite}"], []):
        said = run(["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", *condition])
        if said.strip():
            return said.split()[0]
    raise Failed("apt has no package source")


def pack(root, name, archive):
    """What `docker save` writes."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        parts = pathlib.Path(directory)
        run(["tar", "--numeric-owner", "--sort=name", "-C", root, "-cf", parts / "layer.tar", "."])
        with open(parts / "layer.tar", "rb") as layer:
            digest = hashlib.file_digest(layer, "sha256").hexdigest()
        config = {"architecture": ARCHITECTURES[platform.machine()], "os": "linux",
                  "config": {"Env": [f"PATH={PATH}"], "Cmd": ["/bin/sleep", "1000000000"]},
                  "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}
        (parts / "config.json").write_text(json.dumps(config))
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        (parts / "manifest.json").write_text(json.dumps(manifest))
        fresh = archive.with_name(f"{archive.name}.new")
        with tarfile.open(fresh, "w") as tar:
            for part in ("manifest.json", "config.json", "layer.tar"):
                tar.add(parts / part, part)
        fresh.rename(archive)
