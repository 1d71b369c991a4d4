"""A stateful stand-in for kubectl and the cluster behind it, for failures that a real one cannot be made to show.

Objects are files below cluster/; the controller is here too: a claim gets its Sandbox and pod when it is created, in the
form of real ones (cluster/sample.json). `exec` runs a real shell in a session of its own. What is in cluster/behave makes
a verb fail: line 1 before, after (it had its effect) or lost, line 2 the exit code, the rest stderr. `once` fails
one call; what follows a NUL is for the next; `skip N MODE` is MODE (`once`) after the next N. `left` is a connection that ends once, while the command goes on; the rest is what the next call finds.
"""
import json, os, signal, subprocess, sys, time, uuid

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
    value["metadata"]["resourceVersion"] = str(time.monotonic_ns())
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


def not_found(name, kind="sandboxclaims.extensions.agents.x-k8s.io"):
    fail(f'Error from server (NotFound): {kind} "{name}" not found')


def is_api_gone(verb):
    """Whether the server no longer serves the custom resources: since the verb that api-gone names was called, if any."""
    since = behave("api-gone")
    if since and since == verb:
        open(os.path.join(ROOT, "behave", "api-gone"), "w").close()
    return since == ""


def get(argv):
    """As kubectl: what is found is printed although something else is not; the flag hides also an API that is not served."""
    wanted = [word for word in argv[1:] if "/" in word and not word.startswith("-")]
    found, missing = [], []
    for word in wanted:
        kind, name = word.split("/")
        gone = kind != "pods" and is_api_gone("get")
        one = None if gone else load(KINDS[kind.split(".")[0]], name)
        found += [one] if one else []
        if gone:
            missing.append("Error from server (NotFound): the server could not find the requested resource")
        elif not one:
            plural, _, group = kind.partition(".v1beta1")
            missing.append(f'Error from server (NotFound): {plural}{group} "{name}" not found')
    if "--output=jsonpath={.metadata.uid}" in argv:
        for one in found:
            print(one["metadata"]["uid"])
    elif "--output=name" in argv:
        for one in found:
            print(one["metadata"]["name"])
    elif len(wanted) > 1:
        json.dump({"apiVersion": "v1", "kind": "List", "items": found}, sys.stdout)
    elif found:
        json.dump(found[0], sys.stdout)
    sys.stdout.flush()
    if missing and "--ignore-not-found=true" not in argv:
        fail("\n".join(missing))


def create(body):
    name = body["metadata"]["name"]
    there = load("claim", name)
    if there:
        if "status" not in there and behave("no-controller") is None:
            provide(name)
        fail(f'Error from server (AlreadyExists): sandboxclaims.extensions.agents.x-k8s.io "{name}" already exists')
    body["metadata"]["uid"] = str(uuid.uuid4())
    store("claim", body)
    if behave("no-controller") is None:
        provide(name)
    return body


def create_late(body):
    """The request is in the hands of the server when its client is ended, and is carried out when the client looks for it."""
    log = os.path.join(ROOT, "log.jsonl")
    if os.fork():
        time.sleep(600)
    os.setsid()
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silent, stream)
    open(os.path.join(ROOT, "accepted"), "w").close()
    while '["get"' not in open(log).read():
        time.sleep(0.01)
    create(body)
    os._exit(0)


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
    # The pod has another name: an annotation says it, or only the selector finds it.
    how = behave("pod-name")
    if how:
        pod["metadata"]["name"] = "other-pod"
        sandbox["metadata"].setdefault("annotations", {})["agents.x-k8s.io/pod-name"] = "other-pod" if how == "annotated" else ""
    if behave("containers"):
        pod["spec"]["containers"] = [{"name": name} for name in behave("containers").split()]
        pod["status"]["containerStatuses"] = [{"name": name, "containerID": f"containerd://{name}"} for name in behave("containers").split()]
    if behave("default-container"):
        pod["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/default-container"] = behave("default-container")
    claim["status"] = sample["claim"]["status"]
    claim["status"]["sandbox"]["name"] = box
    for kind, one in (("sandbox", sandbox), ("pod", pod), ("claim", claim)):
        store(kind, one)


def delete(name, options):
    with open(os.path.join(ROOT, "deleted"), "w") as file:
        json.dump(options, file)
    claim = load("claim", name)
    if not claim:
        not_found(name)
    wanted, uid = options["preconditions"]["uid"], claim["metadata"]["uid"]
    if wanted != uid:
        fail(f'Error from server (Conflict): the UID in the precondition ({wanted}) does not match the UID in record ({uid})')
    os.remove(path("claim", name))
    box = claim.get("status", {}).get("sandbox", {}).get("name")
    for kind, name in (("sandbox", box), ("pod", box), ("pod", "other-pod")):
        if box and load(kind, name):
            os.remove(path(kind, name))
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
    # An image with few programs.
    tools = os.path.join(ROOT, "tools")
    if os.path.isdir(tools):
        os.environ["PATH"] = tools
    # The node says that this is another pod.
    if os.path.exists(os.path.join(ROOT, "mountinfo")):
        command = [word.replace("/proc/self/mountinfo", os.path.join(ROOT, "mountinfo")) for word in command]
    if lost in ("cut", "mute"):
        # Of stdout the first line arrives and no more: then the connection ends, or only stderr goes on.
        child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
        os.write(1, child.stdout.readline())
        os._exit(0 if lost == "cut" else child.wait())
    if behave("shell") and command[0] == "/bin/sh":
        command[:1] = behave("shell").split()
    if not lost and "-t" in argv[:argv.index("--")]:
        exec_in_terminal(command)
    if not lost:
        child = subprocess.Popen(command, start_new_session=True)
        sys.exit(child.wait())
    # The connection ends when the command has begun: no error, and no end.
    child = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, **({"stdout": subprocess.PIPE} if lost == "left" else {}))
    os.write(2, child.stderr.readline())
    if lost == "left":
        os.write(1, child.stdout.readline())
        sys.stdout.flush()
        os._exit(0)
    os.killpg(child.pid, signal.SIGKILL)
    sys.exit(0)


def exec_in_terminal(command):
    """In a terminal of its own, with the keys of this one. A code that is not 0 is told."""
    import fcntl, pty, select, termios, tty
    child, master = pty.fork()
    if child == 0:
        os.execvp(command[0], command)
    fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))
    tty.setraw(0)
    sources = [0, master]
    while master in sources:
        for source in select.select(sources, [], [])[0]:
            try:
                read = os.read(source, 65536)
            except OSError:
                read = b""
            if not read:
                sources.remove(source)
            os.write(1 if source == master else master, read)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = code if code >= 0 else 128 - code
    if code:
        fail(f"command terminated with exit code {code}", code)
    sys.exit(0)


def watch(name):
    """The version of a claim, and each other one that it gets."""
    known = None
    while True:
        claim = load("claim", name)
        now = claim["metadata"]["resourceVersion"] if claim else "deleted"
        if now != known:
            print(now, flush=True)
            known = now
        time.sleep(0.02)


def select(selector):
    key, value = selector.split("=", 1)
    pods = [load(*name.split(".")[:2]) for name in sorted(os.listdir(ROOT)) if name.startswith("pod.")]
    return {"apiVersion": "v1", "kind": "List", "items": [pod for pod in pods if pod["metadata"].get("labels", {}).get(key) == value]}


def main(argv):
    with open(os.path.join(ROOT, "log.jsonl"), "a") as log:
        log.write(json.dumps(argv) + "\n")
    with open(os.path.join(ROOT, "kubeconfig"), "w") as file:
        file.write(os.environ.get("KUBECONFIG", ""))
    verb = argv[0]
    api_gone = is_api_gone(verb)
    when, code, said = None, 0, ""
    told = behave("fail-" + verb)
    if told is not None:
        when, code, said = (told.split("\n", 2) + ["", ""])[:3]
    if when == "before":
        fail(said, int(code))
    if when and when.startswith("skip "):
        left, mode = (when[5:].split() + ["once"])[:2]
        with open(os.path.join(ROOT, "behave", "fail-" + verb), "w") as file:
            file.write("\n".join([f"skip {int(left) - 1} {mode}" if int(left) > 1 else mode, code, said]))
        when = None
    if when == "once":
        said, _, rest = said.partition("\0")
        place = os.path.join(ROOT, "behave", "fail-" + verb)
        os.remove(place)
        if rest:
            with open(place, "w") as file:
                file.write(rest)
        fail(said, int(code))
    if when in ("cut", "mute"):
        os.remove(os.path.join(ROOT, "behave", "fail-" + verb))
    if when == "left":
        rest = told.split("\n", 1)[1:]
        place = os.path.join(ROOT, "behave", "fail-" + verb)
        os.remove(place)
        if rest and rest[0]:
            with open(place, "w") as file:
                file.write(rest[0])
    raw = argv[argv.index("--raw") + 1].split("?")[0] if "--raw" in argv else None
    answer = None
    if verb == "exec" and behave("hang-exec") is not None:
        os.remove(os.path.join(ROOT, "behave", "hang-exec"))
        time.sleep(600)
    elif verb == "exec":
        if behave("slow-exec") is not None:
            time.sleep(float(behave("slow-exec")))
            os.remove(os.path.join(ROOT, "behave", "slow-exec"))
        exec_(argv, when if when in ("lost", "left", "cut", "mute") else None)
    elif api_gone and raw and raw.startswith("/apis/"):
        fail("Error from server (NotFound): the server could not find the requested resource")
    elif verb == "create" and raw == CLAIMS and behave("late-create") is not None:
        create_late(json.load(sys.stdin))
    elif verb == "create" and raw == CLAIMS:
        answer = create(json.load(sys.stdin))
    elif verb == "create":
        answer = {"kind": "List", "items": [review(one) for one in json.load(sys.stdin)["items"]]}
    elif verb == "delete":
        answer = delete(raw.rsplit("/", 1)[1], json.load(sys.stdin))
    elif "--watch" in argv:
        if behave("no-watch") is not None:
            fail('Error from server (Forbidden): x is forbidden: User "u" cannot watch resource "sandboxclaims"')
        watch(next(word for word in argv[1:] if "/" in word).split("/")[1])
    elif "pods" in argv:
        answer = select(next(word for word in argv if word.startswith("--selector=")).split("=", 1)[1])
    elif raw:
        names = ["sandboxes"] if "extensions" not in raw else ["sandboxclaims", "sandboxwarmpools"]
        answer = {"kind": "APIResourceList", "resources": [{"name": name} for name in names]}
    else:
        get(argv)
    if when == "after":
        fail(said, int(code))
    if answer is not None:
        json.dump(answer, sys.stdout)


main(sys.argv[1:])
