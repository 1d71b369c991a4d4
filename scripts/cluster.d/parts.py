"""The processes of a cluster: how each is started, found again and ended."""
import os, pathlib, shutil, signal, subprocess, time

from common import Failed, run, wait_until

# In the order in which they start.
PARTS = ("etcd", "apiserver", "manager", "scheduler", "node", "kubelet", "controller")
HERE = pathlib.Path(__file__).parent


class Parts:
    def __init__(self, cache, directory, chosen):
        self.cache, self.directory, self.chosen = cache, directory, chosen
        self.ports, self.keys = chosen["ports"], directory / "keys"

    def alive(self, part):
        """Its process id, or nothing. A process is the one that we started only if it started at the same time."""
        try:
            pid, began = (self.directory / "pid" / part).read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if start_time(int(pid)) == began else None

    def start(self, part):
        if self.alive(part):
            return
        if part == "node":
            self.prepare_node()
        if part == "kubelet":
            self.start("node")
            wait_until((self.directory / "node.ready").exists, 120, "containerd", lambda: self.expect_alive("node"))
        self.launch(part, getattr(self, part)())

    def stop(self, part, how=signal.SIGTERM):
        pid = self.alive(part)
        if pid:
            # `unshare` and `nsenter` wait for the process that they started, and do not pass signals on.
            target = child_of(pid) or pid if part in ("node", "kubelet") else pid
            for attempt in (signal.SIGKILL if part == "node" else how, signal.SIGKILL):
                send(target, attempt)
                if gone_within(10, lambda: not self.alive(part)):
                    break
            else:
                raise Failed(f"{part} (process {pid}) does not end")
        (self.directory / "pid" / part).unlink(missing_ok=True)
        if part == "node":
            self.remove_cgroups()

    def expect_alive(self, *parts):
        for part in parts:
            if not self.alive(part):
                log = self.directory / "log" / f"{part}.log"
                last = "\n".join(log.read_text(errors="replace").splitlines()[-8:]) if log.exists() else ""
                raise Failed(f"{part} ended, see {log}\n{last}")

    def launch(self, part, command):
        with open(self.directory / "log" / f"{part}.log", "a") as log:
            environment = {**os.environ, **self.environment(part)}
            child = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                     start_new_session=True, cwd="/", env=environment)
        (self.directory / "pid" / part).write_text(f"{child.pid} {start_time(child.pid)}\n")

    def environment(self, part):
        if part != "node":
            return {}
        return {"CACHE": str(self.cache.path), "RUN": str(self.directory), "CGROUP": self.chosen["name"],
                "LIBRARIES": str(self.cache.debian_libraries()), "READY": str(self.directory / "node.ready")}

    def prepare_node(self):
        (self.directory / "node.ready").unlink(missing_ok=True)
        bridge, subnet = self.chosen["name"], self.chosen["subnet"]
        if not pathlib.Path("/sys/class/net", bridge).exists():
            run(["ip", "link", "add", bridge, "type", "bridge"])
            run(["ip", "address", "add", f"{subnet}.1/24", "dev", bridge])
            run(["ip", "link", "set", bridge, "up"])

    def remove_cgroups(self):
        """What a killed node leaves behind. Its processes may need a moment to end."""
        roots = [path for path in (pathlib.Path("/sys/fs/cgroup", self.chosen["name"]),
                                   *pathlib.Path("/sys/fs/cgroup").glob(f"*/{self.chosen['name']}")) if path.is_dir()]

        def removed():
            for root in roots:
                for directory, _, _ in os.walk(root, topdown=False):
                    try:
                        os.rmdir(directory)
                    except OSError:
                        pass
            return not any(root.exists() for root in roots)

        wait_until(removed, 20, "the end of the node's cgroups")

    def remove_outside(self):
        """All that is not in the cluster's own directory."""
        if (self.directory / "data").is_symlink():
            shutil.rmtree((self.directory / "data").resolve(), ignore_errors=True)
        if pathlib.Path("/sys/class/net", self.chosen["name"]).exists():
            run(["ip", "link", "delete", self.chosen["name"]])
        self.remove_cgroups()

    # The commands of the parts.

    def etcd(self):
        client, peer = (f"http://127.0.0.1:{self.ports[name]}" for name in ("etcd", "etcd_peer"))
        return [self.cache.debian / "usr/bin/etcd", "--name", "n", "--data-dir", self.directory / "data/etcd", "--log-level", "error",
                "--logger", "zap", "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"n={peer}"]

    def apiserver(self):
        keys = self.keys
        return [self.directory / "bin/kube-apiserver", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
                f"--secure-port={self.ports['api']}", f"--etcd-servers=http://127.0.0.1:{self.ports['etcd']}",
                f"--tls-cert-file={keys}/apiserver.crt", f"--tls-private-key-file={keys}/apiserver.key", f"--cert-dir={keys}",
                f"--token-auth-file={keys}/tokens.csv", "--authorization-mode=RBAC", "--anonymous-auth=false",
                "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={keys}/accounts.pub",
                f"--service-account-signing-key-file={keys}/accounts.key", "--service-cluster-ip-range=10.96.0.0/24",
                f"--kubelet-client-certificate={keys}/kubelet-client.crt", f"--kubelet-client-key={keys}/kubelet-client.key",
                f"--kubelet-certificate-authority={keys}/ca.crt", "--kubelet-preferred-address-types=InternalIP",
                "--endpoint-reconciler-type=none", "--allow-privileged=false", "--profiling=false"]

    def manager(self):
        controllers = ("garbage-collector", "namespace", "serviceaccount", "root-ca-certificate-publisher", "pod-garbage-collector",
                       "node-lifecycle")
        return [*self.of_the_api("kube-controller-manager", "manager"), f"--root-ca-file={self.keys}/ca.crt",
                f"--service-account-private-key-file={self.keys}/accounts.key",
                f"--controllers={','.join(f'{name}-controller' for name in controllers)}"]

    def scheduler(self):
        return self.of_the_api("kube-scheduler", "scheduler")

    def of_the_api(self, program, port):
        return [self.directory / "bin" / program, f"--kubeconfig={self.directory}/admin.kubeconfig", "--bind-address=127.0.0.1",
                f"--secure-port={self.ports[port]}", f"--cert-dir={self.keys}", "--leader-elect=false", "--profiling=false"]

    def node(self):
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", HERE / "node"]

    def kubelet(self):
        inside = child_of(self.alive("node"))
        if not inside:
            raise Failed("the node does not run")
        return ["nsenter", "--target", inside, "--mount", "--pid", self.directory / "bin/kubelet",
                f"--config={self.directory}/kubelet/config.yaml", f"--kubeconfig={self.directory}/admin.kubeconfig",
                f"--root-dir={(self.directory / 'data').resolve()}/kubelet", f"--cert-dir={self.keys}", "--hostname-override=127.0.0.1", "-v=1"]

    def controller(self):
        version = self.chosen["controller"]
        # The conversion webhook and its flag are gone in version 1.
        webhook = ["--enable-webhook=false"] if version.startswith("v0.") else []
        return [self.cache.controller(version), "--kubeconfig", self.directory / "admin.kubeconfig", "--extensions",
                "--leader-elect=false", *webhook, f"--metrics-bind-address=127.0.0.1:{self.ports['metrics']}",
                f"--health-probe-bind-address=127.0.0.1:{self.ports['health']}"]


def start_time(pid):
    """As the kernel counts it; nothing for a process that has ended, also where it is not reaped yet."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def child_of(pid):
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def send(pid, what):
    try:
        os.kill(pid, what)
    except ProcessLookupError:
        pass


def gone_within(seconds, condition):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
