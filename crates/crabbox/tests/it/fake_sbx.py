# A stand-in for Docker's sbx: keeps the contract of the command line, and keeps its sandboxes in a directory.
#
# It lies at WORLD/bin/sbx and everything of it in WORLD/engine: `sandboxes/NAME.json`, `log.jsonl` with one line per call,
# and `behave/KEY` with what it shall do differently. Commands are run here, with the variables of the env file alone.
import fcntl, json, os, sys

ENGINE = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "engine")
SANDBOXES = os.path.join(ENGINE, "sandboxes")


def behave(key):
    try:
        with open(os.path.join(ENGINE, "behave", key)) as file:
            return file.read()
    except FileNotFoundError:
        return None


def log(**entry):
    entry["who"] = os.environ.get("WHO", "")
    with open(os.path.join(ENGINE, "log.jsonl"), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(entry) + "\n")


def fail(code, text):
    sys.stderr.write(text + "\n")
    sys.exit(code)


def path(name):
    return os.path.join(SANDBOXES, name + ".json")


def gate(verb, when):
    if behave("gate-" + verb) != when:
        return
    with open(os.path.join(ENGINE, f"gate-{verb}.reached"), "w") as file:
        file.write("here\n")
    with open(os.path.join(ENGINE, f"gate-{verb}.go")) as file:
        file.readline()


def switched(verb, when):
    said = behave(f"fail-{when}-{verb}")
    if said is not None:
        code, _, text = said.partition("\n")
        fail(int(code), text)


# Words of a command line, by what the flags take.
def parse(words, values, switches):
    found, rest = {}, []
    words = list(words)
    while words:
        word = words.pop(0)
        if rest and rest[0] is not None and "exec" == sys.argv[1]:
            return found, rest + [word] + words
        if word in values:
            found.setdefault(word, []).append(words.pop(0))
        elif word in switches:
            found[word] = True
        elif word.startswith("-"):
            fail(125, f"unknown flag: {word}")
        else:
            rest.append(word)
    return found, rest


def version(words):
    print(behave("version") or "Client Version:  v0.31.3\nServer Version:  v0.31.3", end="\n")


def ls(words):
    parse(words, [], ["--json"])
    raw = behave("ls-raw")
    if raw is not None:
        sys.stdout.write(raw)
        return
    shape = json.loads(behave("ls-shape") or "{}")
    keys = shape.get("keys", {})
    everything = []
    for file in sorted(os.listdir(SANDBOXES)):
        try:
            with open(os.path.join(SANDBOXES, file)) as opened:
                one = json.load(opened)
        except FileNotFoundError:
            continue
        everything.append({keys.get(key, key): value for key, value in one.items()})
    wrapper = shape.get("wrapper")
    print(json.dumps({wrapper: everything} if wrapper else everything))


def diagnose(words):
    parse(words, ["--output"], [])
    print(behave("diagnose") or '{"checks":[{"name":"CLI","status":"pass","message":"fine"}]}')


def create(words):
    values = ["--name", "--template", "--cpus", "--memory", "--mcp", "--kit"]
    own = ["--progress", "--cache", "--rm"] if behave("own") else []
    values += ["--idle-timeout"] if behave("own") else []
    found, rest = parse(words, values, ["--clone", "-q"] + own)
    sys.stderr.write(behave("create-says") or "")
    sys.stderr.flush()
    name = found["--name"][0]
    if os.path.exists(path(name)):
        fail(1, f"ERROR: sandbox '{name}' already exists")
    agent, workspace = rest[0], rest[1]
    one = {"id": "id-" + name, "name": name, "status": behave("state") or "running", "agent": agent, "workspace": workspace}
    fresh = os.path.join(ENGINE, f"new-{os.getpid()}")
    with open(fresh, "w") as file:
        json.dump(one, file)
    os.rename(fresh, path(name))
    log(event="created", name=name)
    print(f"Created sandbox {name}")


def variables(file):
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/"}
    with open(file, "rb") as opened:
        content = opened.read()
    for line in content.decode().split("\n"):
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if equals:
            env[key] = value
        elif key in os.environ:
            env[key] = os.environ[key]
    mode = oct(os.stat(file).st_mode & 0o777)
    log(event="env", content=content.decode(), mode=mode, file=file)
    if behave("ignore-env-file"):
        return {"PATH": env["PATH"]}
    return env


def exec_(words):
    status = ["--status-file", "--detach-keys"] if behave("own") else []
    found, rest = parse(words, ["--workdir", "--env-file"] + status, ["-i", "-t"])
    name, command = rest[0], rest[1:]
    if not os.path.exists(path(name)):
        fail(1, f"ERROR: no sandbox named '{name}'")
    env = variables(found["--env-file"][0])
    os.chdir(found["--workdir"][0])
    if "-i" not in found:
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    if not status or "--status-file" not in found:
        try:
            os.execvpe(command[0], command, env)
        except FileNotFoundError:
            fail(127, f"{command[0]}: not found")
    pid = os.fork()
    if pid == 0:
        os.execvpe(command[0], command, env)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open(found["--status-file"][0], "w") as file:
        file.write(behave("status") or json.dumps({"by": "command", "code": code}))
    sys.exit(code if code >= 0 else 128 - code)


def rm(words):
    found, rest = parse(words, [], ["--force"])
    name = rest[0]
    if behave("stuck") == name:
        fail(1, f"ERROR: sandbox '{name}' is busy")
    if behave("noop-rm"):
        print(f"Error: sandbox '{name}' not found")
        return
    try:
        os.unlink(path(name))
    except FileNotFoundError:
        fail(1, f"ERROR: no sandbox named '{name}'")
    log(event="removed", name=name)


def ports(words):
    found, rest = parse(words, ["--publish", "--unpublish"], ["--json"])
    said = behave("ports")
    if said is not None:
        sys.stdout.write(said)
    elif "--json" in found:
        print('[{"host_port":3000,"container_port":3000}]')
    else:
        print("\n  3000/tcp -> 127.0.0.1:3000  \n")


def cp(words):
    parse(words, [], ["-L"])


def policy(words):
    if not behave("own"):
        fail(125, "unknown command: policy")
    found, rest = parse(words, ["--since"], ["--json"])
    if not os.path.exists(path(rest[1])):
        fail(1, f"sandbox '{rest[1]}' not found")
    print(behave("suggest") or '{"rules":[],"unsolved":[]}')


def cache(words):
    if not behave("own"):
        fail(125, "unknown command: cache")
    print(behave("cache") or "")


VERBS = dict(policy=policy, cache=cache, version=version, ls=ls, diagnose=diagnose, create=create, exec=exec_, rm=rm, ports=ports, cp=cp)
verb = sys.argv[1]
log(event="call", argv=sys.argv[1:], pid=os.getpid())
gate(verb, "before")
switched(verb, "before")
if verb not in VERBS:
    fail(125, f"unknown command: {verb}")
VERBS[verb](sys.argv[2:])
sys.stdout.flush()
gate(verb, "after")
switched(verb, "after")
