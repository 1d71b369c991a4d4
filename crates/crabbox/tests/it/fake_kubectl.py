"""A stateful stand-in for kubectl and the cluster behind it, for failures that a real one cannot be made to show.

Objects are files below cluster/; the controller is here too: a claim gets its Sandbox and pod when it is created, in the
form of real ones (cluster/sample.json). `exec` runs a real shell in a session of its own. What is in cluster/behave makes
a verb fail: line 1 before, after (it had its effect) or lost, line 2 the exit code, the rest stderr.
"""
import json, os, signal, subprocess, sys, uuid

ROOT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0]))), "cluster")
CLAIMS = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/sandboxes/sandboxclaims"
KINDS = {"sandboxclaims": "claim", "sandboxes": "sandbox", "pods": "pod", "sandboxwarmpools": "pool"}


def path(kind, name):
    return os.path.join(ROOT, f"{kind}.{name}.json")


def load(kind, name):
    try:
        with open(path(kind, name)) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def store(kind, value):
    name = value["metadata"]["name"]
    with open(path(kind, name) + ".new", "w") as file:
        json.dump(value, file)
    os.rename(path(kind, name) + ".new", path(kind, name))


def behave(key):
    try:
        with open(os.path.join(ROOT, "behave", key)) as file:
            return file.read()
    except FileNotFoundError:
        return None


def fail(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)


def not_found(name):
    fail(f'Error from server (NotFound): sandboxclaims.extensions.agents.x-k8s.io "{name}" not found')


def create(body):
    name = body["metadata"]["name"]
    if load("claim", name):
        fail(f'Error from server (AlreadyExists): sandboxclaims.extensions.agents.x-k8s.io "{name}" already exists')
    body["metadata"]["uid"] = str(uuid.uuid4())
    store("claim", body)
    if behave("no-controller") is None:
        provide(name)
    return body


def provide(name):
    claim = load("claim", name)
    with open(os.path.join(ROOT, "sample.json")) as file:
        sample = json.load(file)["warm-ready"]
    sandbox, pod, uid = sample["sandbox"], sample["pod"], claim["metadata"]["uid"]
    box = "linux-pool-" + uid[:5]
    for one in (sandbox, pod):
        one["metadata"].update(name=box, uid=str(uuid.uuid4()))
    sandbox["metadata"]["ownerReferences"][0].update(uid=uid, name=name)
    sandbox["metadata"]["labels"]["agents.x-k8s.io/claim-uid"] = uid
    if "agents.x-k8s.io/pod-name" in sandbox["metadata"].get("annotations", {}):
        sandbox["metadata"]["annotations"]["agents.x-k8s.io/pod-name"] = box
    pod["metadata"]["ownerReferences"][0].update(uid=sandbox["metadata"]["uid"], name=box)
    pod["status"]["containerStatuses"][0]["containerID"] = "containerd://" + uuid.uuid4().hex
    claim["status"] = sample["claim"]["status"]
    claim["status"]["sandbox"]["name"] = box
    for kind, one in (("sandbox", sandbox), ("pod", pod), ("claim", claim)):
        store(kind, one)


def delete(name, options):
    claim = load("claim", name)
    if not claim:
        not_found(name)
    wanted, uid = options["preconditions"]["uid"], claim["metadata"]["uid"]
    if wanted != uid:
        fail(f'Error from server (Conflict): the UID in the precondition ({wanted}) does not match the UID in record ({uid})')
    os.remove(path("claim", name))
    box = claim.get("status", {}).get("sandbox", {}).get("name")
    for kind in ("sandbox", "pod"):
        if box and load(kind, box):
            os.remove(path(kind, box))
    return {"kind": "Status", "apiVersion": "v1", "status": "Success"}


def review(one):
    attributes = one["spec"]["resourceAttributes"]
    denied = behave("denied") or ""
    word = attributes["verb"] + " " + attributes["resource"]
    word += "/" + attributes["subresource"] if attributes.get("subresource") else ""
    one["status"] = {"allowed": word not in denied.splitlines()}
    return one


def exec_(argv, lost):
    pod = load("pod", next(word for word in argv if word.startswith("pod/"))[4:])
    if not pod:
        fail("Error from server (NotFound): pods not found")
    command = argv[argv.index("--") + 1:]
    if not lost:
        child = subprocess.Popen(command, start_new_session=True)
        sys.exit(child.wait())
    # The connection ends when the command has begun: no error, and no end.
    child = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)
    os.write(2, child.stderr.readline())
    os.killpg(child.pid, signal.SIGKILL)
    sys.exit(0)


def main(argv):
    with open(os.path.join(ROOT, "log.jsonl"), "a") as log:
        log.write(json.dumps(argv) + "\n")
    verb = argv[0]
    when, code, said = None, 0, ""
    told = behave("fail-" + verb)
    if told is not None:
        when, code, said = (told.split("\n", 2) + ["", ""])[:3]
    if when == "before":
        fail(said, int(code))
    raw = argv[argv.index("--raw") + 1].split("?")[0] if "--raw" in argv else None
    answer = None
    if verb == "exec":
        exec_(argv, when == "lost")
    elif verb == "create" and raw == CLAIMS:
        answer = create(json.load(sys.stdin))
    elif verb == "create":
        answer = {"kind": "List", "items": [review(one) for one in json.load(sys.stdin)["items"]]}
    elif verb == "delete":
        answer = delete(raw.rsplit("/", 1)[1], json.load(sys.stdin))
    elif raw:
        names = ["sandboxes"] if "extensions" not in raw else ["sandboxclaims", "sandboxwarmpools"]
        answer = {"kind": "APIResourceList", "resources": [{"name": name} for name in names]}
    else:
        wanted = [word for word in argv[1:] if "/" in word and not word.startswith("-")]
        found = []
        for word in wanted:
            kind, name = word.split("/")
            one = load(KINDS[kind.split(".")[0]], name)
            found += [one] if one else []
        if "--output=name" in argv:
            for one in found:
                print(one["metadata"]["name"])
        elif len(wanted) > 1:
            answer = {"apiVersion": "v1", "kind": "List", "items": found}
        else:
            answer = found[0] if found else None
    if when == "after":
        fail(said, int(code))
    if answer is not None:
        json.dump(answer, sys.stdout)


main(sys.argv[1:])
