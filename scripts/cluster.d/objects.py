"""What lives in the API: namespaces, warm pools, and accounts with some rights."""
import json, subprocess

from common import Failed
from image import DEBIAN, TINY
import settings

EXTENSIONS = "extensions.agents.x-k8s.io"
# What the provider asks for, and no more.
RIGHTS = (f"get,create,delete:sandboxclaims.{EXTENSIONS}", f"get:sandboxwarmpools.{EXTENSIONS}", "get:sandboxes.agents.x-k8s.io",
          "get,list:pods", "create:pods/exec")
WARM = "linux-pool"


class Objects:
    def __init__(self, kubectl, directory, chosen):
        self.program, self.directory, self.chosen = kubectl, directory, chosen

    def kubectl(self, *arguments, text=None):
        command = [self.program, "--kubeconfig", self.directory / "admin.kubeconfig", *arguments]
        done = subprocess.run([str(word) for word in command], input=text, text=True, capture_output=True)
        if done.returncode != 0:
            raise Failed(f"kubectl {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout

    def holds(self, *arguments, expected=None):
        """Whether kubectl succeeds, and prints what is expected."""
        try:
            said = self.kubectl(*arguments)
        except Failed:
            return False
        return expected is None or said.strip() == expected

    def apply(self, *objects):
        self.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def create_namespace(self, namespace):
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})

    def create_pools(self, namespace, replicas):
        """One warm, the others of size 0: each claim on them is a cold start."""
        self.apply(*pool(namespace, WARM, replicas, DEBIAN, "worker"), *pool(namespace, "cold-pool", 0, DEBIAN, "worker"),
                   *pool(namespace, "tiny-pool", 0, TINY, "worker"), *pool(namespace, "multi-pool", 0, DEBIAN, "worker", "sidecar"))

    def pool_is_ready(self, namespace, replicas):
        if replicas == 0:
            return True
        return self.holds("-n", namespace, "get", f"sandboxwarmpools.{EXTENSIONS}", WARM, "-o", "jsonpath={.status.readyReplicas}",
                          expected=str(replicas))

    def grant(self, namespace, account, rules):
        """A kubeconfig for an account with these rights in the namespace, and no others."""
        about = {"name": account, "namespace": namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account}
        self.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about},
                   {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": about,
                    "rules": [parse_rule(rule) for rule in rules]},
                   {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": about, "roleRef": role,
                    "subjects": [{"kind": "ServiceAccount", **about}]})
        token = self.kubectl("-n", namespace, "create", "token", account, "--duration=24h").strip()
        path = self.directory / "accounts" / f"{namespace}-{account}.kubeconfig"
        settings.write_kubeconfig(self.directory, self.chosen, path, account, token, namespace)
        return path


def parse_rule(text):
    """`get,list:pods/log.group` as Kubernetes writes it."""
    verbs, _, resource = text.partition(":")
    resource, _, group = resource.partition(".")
    if not verbs or not resource:
        raise Failed(f"{text}: a rule is VERB[,VERB]:RESOURCE[/SUBRESOURCE][.GROUP]")
    return {"apiGroups": [group], "resources": [resource], "verbs": verbs.split(",")}


def pool(namespace, name, replicas, image, *containers):
    about = {"name": name, "namespace": namespace}
    version = f"{EXTENSIONS}/v1beta1"
    pod = {"terminationGracePeriodSeconds": 1, "enableServiceLinks": False, "dnsPolicy": "Default",
           "containers": [container(one, image) for one in containers], "volumes": [{"name": "work", "emptyDir": {}}]}
    template = {"networkPolicyManagement": "Unmanaged", "podTemplate": {"spec": pod}}
    return ({"apiVersion": version, "kind": "SandboxTemplate", "metadata": about, "spec": template},
            {"apiVersion": version, "kind": "SandboxWarmPool", "metadata": about,
             "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": name}}})


def container(name, image):
    return {"name": name, "image": image, "imagePullPolicy": "Never", "command": ["sleep", "1000000000"],
            "volumeMounts": [{"name": "work", "mountPath": "/workspace"}]}
