"""The real crabbox against the real cluster. Each test has a home, a state and a repository of its own, and the rights
that the provider asks for; what it changes behind crabbox's back it does as administrator."""
import json, os, pathlib, re, shutil, signal, socket, subprocess, tempfile, time, unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXTENSIONS = "extensions.agents.x-k8s.io"
CLAIMS = f"sandboxclaims.{EXTENSIONS}"
SANDBOXES = "sandboxes.agents.x-k8s.io"
# What the provider asks for, one right at a time.
RIGHTS = (("get", CLAIMS), ("create", CLAIMS), ("delete", CLAIMS), ("get", f"sandboxwarmpools.{EXTENSIONS}"),
          ("get", SANDBOXES), ("get", "pods"), ("list", "pods"), ("create", "pods/exec"))
# For anything that must happen. Longer than it takes on the slowest machine, and never waited out by a test that passes.
EVENT_TIMEOUT = 120


class Cluster:
    """The cluster that scripts/live-agent-sandbox has started."""

    def __init__(self):
        told = json.loads(os.environ["CRABBOX_LIVE_CLUSTER"])
        self.script = [str(ROOT / "scripts/cluster"), *told["options"]]
        self.kubectl_program, self.namespace = told["kubectl"], told["namespace"]
        self.ports = json.loads((pathlib.Path(told["admin"]).parent / "cluster.json").read_text())["ports"]
        self.admin, self.limited, self.controller = told["admin"], told["limited"], told["controller"]

    def change(self, how, part):
        subprocess.run([*self.script, how, part], check=True)

    def grant(self, account, rights):
        rules = [f"{verb}:{resource}" for verb, resource in rights]
        made = subprocess.run([*self.script, "grant", self.namespace, account, *rules], check=True, capture_output=True, text=True)
        return made.stdout.strip()

    def kubectl(self, *words, check=True, text=None, timeout=EVENT_TIMEOUT):
        command = [self.kubectl_program, "--kubeconfig", self.admin, "--namespace", self.namespace, *words]
        return subprocess.run(command, check=check, capture_output=True, text=True, input=text, timeout=timeout).stdout

    def get(self, kind, name):
        """The object, or nothing where there is none."""
        said = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(said) if said.strip() else None

    def names(self, kind):
        return [name.partition("/")[2] for name in self.kubectl("get", kind, "-o", "name").split()]

    def apply(self, thing):
        self.kubectl("apply", "-f", "-", text=json.dumps(thing))

    def patch(self, kind, name, change):
        self.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(change))

    def inside(self, pod, script, container="worker", check=True):
        """What a script prints in a container."""
        return self.kubectl("exec", pod, "-c", container, "--", "sh", "-c", script, check=check)

    def answers(self):
        try:
            return self.kubectl("get", "--raw", "/readyz", check=False, timeout=10).strip() == "ok"
        except subprocess.TimeoutExpired:
            return False

    def node_answers(self):
        """The kubelet itself: what the API says of the node may be of a former life."""
        try:
            socket.create_connection(("127.0.0.1", self.ports["kubelet"]), timeout=5).close()
        except OSError:
            return False
        return True

    def make_pool(self, name, replicas=0, **pod):
        """A pool of pods that are as those of linux-pool except for what is given."""
        template = self.get(f"sandboxtemplates.{EXTENSIONS}", "linux-pool")["spec"]
        template["podTemplate"]["spec"].update(pod)
        about = {"name": name, "namespace": self.namespace}
        version = f"{EXTENSIONS}/v1beta1"
        self.apply({"apiVersion": version, "kind": "SandboxTemplate", "metadata": about, "spec": template})
        self.apply({"apiVersion": version, "kind": "SandboxWarmPool", "metadata": about,
                    "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": name}}})


class Ran:
    """What a command left behind."""

    def __init__(self, code, out, err):
        self.code, self.bytes, self.error_bytes = code, out, err
        self.out, self.err = out.decode(errors="replace"), err.decode(errors="replace")

    def json(self):
        return json.loads(self.out)


class World(unittest.TestCase):
    """A test."""
    pool = "linux-pool"
    workdir = "/workspace/crabbox"

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="crabbox-live-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        for name in ("home", "config", "state", "repo", "bin"):
            (self.dir / name).mkdir()
        self.repo = self.dir / "repo"
        self.kubeconfig, self.extra = self.cluster.limited, {}
        # The claims that local records named, each with its UID.
        self.recorded = {}
        self.git("init", "-q", "-b", "main")
        self.write("README", "hello\n")
        self.write("src/main.c", "int main;\n")
        self.addCleanup(self.remove_claims)

    def remove_claims(self):
        """What a failed test left and still knows of. The rest goes with the namespace."""
        left = [self.local(lease)["labels"].get("claim", "") for lease in self.leases()]
        if any(left):
            self.cluster.kubectl("delete", CLAIMS, *filter(None, left), "--wait=false", check=False)

    # The repository.

    def write(self, name, content, mode=None):
        path = self.repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if mode:
            path.chmod(mode)
        return path

    def git(self, *words):
        subprocess.run(["git", *words], cwd=self.repo, env=self.environment(), check=True)

    # crabbox.

    def environment(self):
        settings = {"KUBECTL": self.cluster.kubectl_program, "KUBECONFIG": self.kubeconfig, "CONTEXT": "agent-cluster",
                    "NAMESPACE": self.cluster.namespace, "WARM_POOL": self.pool, "WORKDIR": self.workdir}
        return {"PATH": f"{self.dir}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": f"{self.dir}/home",
                "XDG_CONFIG_HOME": f"{self.dir}/config", "XDG_STATE_HOME": f"{self.dir}/state", "TMPDIR": f"{self.dir}/home",
                "GIT_CONFIG_NOSYSTEM": "1", "CRABBOX_PROVIDER": "agent-sandbox",
                **{f"CRABBOX_AGENT_SANDBOX_{name}": value for name, value in settings.items()}, **self.extra}

    def start(self, *words, stdin=subprocess.DEVNULL):
        return subprocess.Popen([os.environ["CRABBOX_BIN"], *words], cwd=self.repo, env=self.environment(), stdin=stdin,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def end(self, child, given=None, timeout=EVENT_TIMEOUT):
        """The end of a command. One that hangs is a failure, and does not outlive the test."""
        try:
            out, err = child.communicate(given, timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
            self.fail(f"{child.args} did not end within {timeout} s\nstdout: {tail(out)}\nstderr: {tail(err)}")
        return Ran(child.returncode, out, err)

    def crabbox(self, *words, code=0, given=None, timeout=EVENT_TIMEOUT):
        """A command that must end with this code; None is any failure."""
        child = self.start(*words, stdin=subprocess.DEVNULL if given is None else subprocess.PIPE)
        ran = self.end(child, given, timeout)
        wrong = ran.code == 0 if code is None else ran.code != code
        if wrong:
            expected = "a failure" if code is None else code
            self.fail(f"crabbox {' '.join(words)} exited with {ran.code}, not {expected}\n"
                      f"stdout: {tail(ran.bytes)}\nstderr: {tail(ran.error_bytes)}")
        return ran

    def warm(self, slug, *flags):
        """A kept lease: what the local claim says of it."""
        ran = self.crabbox("warmup", "--slug", slug, *flags)
        lease = re.search(r"leased (\S+)", ran.out)
        self.assertIsNotNone(lease, ran.out + ran.err)
        return self.local(lease[1])

    def run_on(self, slug, *words, code=0, **options):
        return self.crabbox("run", "--id", slug, *words, code=code, **options)

    # Our own files.

    def local_path(self, lease):
        return self.dir / "state/crabbox/claims" / f"{lease}.json"

    def local(self, lease):
        claim = json.loads(self.local_path(lease).read_text())
        if {"claim", "claim_uid"} <= claim["labels"].keys():
            self.recorded.setdefault(claim["labels"]["claim"], claim["labels"]["claim_uid"])
        return claim

    def leases(self):
        """The local claims."""
        return sorted(path.stem for path in (self.dir / "state/crabbox/claims").glob("*.json"))

    def edit_local(self, lease, edit):
        claim = self.local(lease)
        edit(claim)
        self.local_path(lease).write_text(json.dumps(claim))

    # What is asserted often.

    def assert_says(self, ran, *texts):
        for text in texts:
            self.assertIn(text, ran.err)

    def claims_of(self, slug):
        """The names of the claims with this slug that are not about to end."""
        found = json.loads(self.cluster.kubectl("get", CLAIMS, "-l", f"crabbox.dev/slug={slug}", "-o", "json"))["items"]
        return [one["metadata"]["name"] for one in found if "deletionTimestamp" not in one["metadata"]]

    def assert_gone(self, claim):
        """Nothing answers to this name any more, or it is about to end."""
        found = self.cluster.get(CLAIMS, claim)
        self.assertTrue(found is None or "deletionTimestamp" in found["metadata"], found)

    def assert_clean(self):
        """Nothing of this test is left here, and of what was recorded here nothing there. Another object of the same name counts not."""
        self.assertEqual(self.leases(), [])
        for claim, uid in self.recorded.items():
            found = self.cluster.get(CLAIMS, claim)
            self.assertTrue(found is None or found["metadata"]["uid"] != uid or "deletionTimestamp" in found["metadata"], found)

    def wait_for(self, condition, what, seconds=EVENT_TIMEOUT):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            time.sleep(0.1)
        self.fail(f"{what}: not within {seconds} s")

    def pod_of(self, lease):
        return lease["labels"]["pod"]

    # A kubectl that does something at a certain call.

    def wrap_kubectl(self, script):
        """`script` is shell; `real "$@"` calls the real kubectl, and `words` is all arguments in one string."""
        path = self.dir / "bin/kubectl-wrapper"
        path.write_text(f'#!/bin/bash\nreal() {{ {self.cluster.kubectl_program} "$@"; }}\nwords=" $* "\n'
                        f'state={self.dir}\n{script}\nexec {self.cluster.kubectl_program} "$@"\n')
        path.chmod(0o755)
        self.extra["CRABBOX_AGENT_SANDBOX_KUBECTL"] = str(path)


def tail(data, most=4000):
    return data[-most:].decode(errors="replace")
