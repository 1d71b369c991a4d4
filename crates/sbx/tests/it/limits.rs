//! Limits of a sandbox: what a hostile or careless program inside cannot take from the host and from other sandboxes.

use std::path::{Path, PathBuf};

use crate::ModeTest;
use crate::exec::pty::Session;
use crate::harness::{Sandbox, World, blocked, eventually, programs, tester_is_root};

pub const TESTS: &[ModeTest] = &[
    ("limits::processes_are_bounded", processes),
    ("limits::invalid_ones_are_refused", invalid),
    ("limits::use_is_shown", use_is_shown),
    ("limits::use_is_drawn_again_and_again", stats_live),
];
/// Control groups need root.
pub const ROOT: &[ModeTest] = &[
    ("limits::memory_is_bounded", memory),
    ("limits::cpu_time_is_bounded", cpu),
    ("limits::groups_are_removed", groups),
    ("limits::no_process_escapes", escapes),
    ("limits::disk_is_bounded", disk),
    ("limits::a_hog_leaves_others_alone", hogs),
];
pub const USERS: &[ModeTest] = &[
    ("limits::what_cannot_be_enforced_is_refused", unenforceable),
    (
        "limits::what_is_preferred_is_enforced_where_possible",
        preferred,
    ),
    ("limits::defaults_warn_once", defaults_warn),
];
/// A user who was given a control group of version 1.
pub const DELEGATED: &[ModeTest] = &[("limits::a_delegated_group_is_used", delegated)];

const PYTHON: &str = "python3";

fn processes(world: &'static World) {
    let sandbox = world.sandbox_with("fork-bomb", &["--pids", "64"]);
    let limits = &world.inspect(&sandbox.name)["limits"];
    assert_eq!(limits["processes"], 64);
    // In a nested user namespace: what is in it counts too.
    let program = "
import ctypes, os, time
made = 0
def bomb():
    global made
    try:
        while made < 400:
            pid = os.fork()
            if pid == 0:
                time.sleep(600)
            made += 1
    except BlockingIOError:
        return 'EAGAIN'
    return 'none'
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x10000000) == 0
print(bomb(), made < 64, flush=True)
os.kill(-1, 9)
";
    let said = sandbox.exec([PYTHON, "-c", program]);
    assert_eq!(said.out.trim(), "EAGAIN True", "{said:?}");
    // The next command starts, and another sandbox has its own.
    assert_eq!(sandbox.exec(["echo", "alive"]).ok(), "alive");
    let other = world.sandbox("beside-fork-bomb");
    assert_eq!(other.exec(["echo", "alive"]).ok(), "alive");
}

/// MiB that wait in TCP sockets.
const UNREAD: &str = r#"
import socket
listener = socket.create_server(("127.0.0.1", 0))
held, count = [], 0
for _ in range(300):
    one = socket.create_connection(listener.getsockname())
    held.append((one, listener.accept()[0]))
    for end in held[-1]:
        end.setblocking(False)
        try:
            while True: count += end.send(bytes(65536))
        except OSError: pass
print(count >> 20)
"#;

fn memory(world: &'static World) {
    let sandbox = world.sandbox_with("memory-hog", &["--memory", "128m"]);
    let limits = &world.inspect(&sandbox.name)["limits"];
    assert_eq!(limits["memory_bytes"], 128 << 20);
    let init = world.init_pid(&sandbox.name);
    let hog = "held = [bytearray(b'x') * (1 << 20) for _ in range(1024)]; print(len(held))";
    let ran = sandbox.exec([PYTHON, "-c", hog]);
    assert_eq!((ran.code, ran.out.as_str()), (137, ""), "{ran:?}");
    assert_eq!(sandbox.exec(["echo", "alive"]).ok(), "alive");
    // A file in memory counts too, and stays until the sandbox stops.
    let tmpfs = sandbox.sh("head -c 512M /dev/zero > /dev/shm/big");
    assert_eq!(tmpfs.code, 137, "{tmpfs:?}");
    assert_eq!(world.init_pid(&sandbox.name), init, "init was killed");
    world.run(["stop", &sandbox.name]).ok();
    assert_eq!(sandbox.exec(["echo", "again"]).ok(), "again");
    // So does what waits unread in sockets, if by a count of its own.
    let ran = sandbox.exec([PYTHON, "-c", UNREAD]);
    let held = ran.out.trim().parse::<u64>();
    assert!(
        ran.code == 137 || held.is_ok_and(|held| held <= 192),
        "{ran:?}"
    );
    let usual = world.sandbox("usual-memory");
    let usual = world.inspect(&usual.name)["limits"]["memory_bytes"].as_u64();
    assert!(usual.is_some_and(|bytes| bytes <= 32 << 30), "{usual:?}");
}

fn cpu(world: &'static World) {
    let sandbox = world.sandbox_with("cpu-hog", &["--cpus", "0.25"]);
    let program = "
import os, time
end = time.monotonic() + 2
while time.monotonic() < end: pass
print(time.process_time())
";
    let used: f64 = sandbox.exec([PYTHON, "-c", program]).ok().parse().unwrap();
    // A quarter of two seconds, a period more, and what the kernel lends.
    assert!(used < 1.0, "{used} s");
}

pub fn group_dirs(sandbox: &Sandbox<'_>) -> Vec<PathBuf> {
    let path = sandbox.world.state().join("vm").join(&sandbox.name);
    let record = std::fs::read(path.join("sandbox.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let id = record["id"].as_str().unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = mounts.lines().filter(|line| line.contains(" - cgroup"));
    points
        .filter_map(|line| line.split(' ').nth(4))
        .map(|root| Path::new(root).join("sbx").join(id).join("box"))
        .filter(|dir| dir.exists())
        .collect()
}

fn groups(world: &'static World) {
    let sandbox = world.sandbox_with("groups", &["--cpus", "1", "--memory", "256m"]);
    sandbox.exec(["true"]).ok();
    let dirs = group_dirs(&sandbox);
    assert!(!dirs.is_empty());
    world.run(["stop", &sandbox.name]).ok();
    sandbox.exec(["true"]).ok();
    world.run(["rm", "--force", &sandbox.name]).ok();
    // The daemon removes them with the files, after it has answered.
    for dir in dirs {
        let group = dir.parent().unwrap();
        eventually(&format!("no {}", group.display()), || {
            (!group.exists()).then_some(())
        });
    }
}

/// Whatever a program does, it is in the sandbox's group, and init is not.
fn escapes(world: &'static World) {
    let sandbox = world.sandbox_with("escapes", &["--memory", "128m"]);
    let ways = "
        exec > /dev/null 2>&1
        sleep 600 & setsid -f sleep 600
        (setsid sh -c '(sleep 600 &) &' &)
        unshare -r sleep 600 & unshare -rmpf --mount-proc sleep 600 &
        unshare -rC sleep 600 & nsenter -t 1 -C sleep 600 &
        echo 0 > /sys/fs/cgroup/tasks; echo 0 > /sys/fs/cgroup/memory/tasks
        exit 0";
    sandbox.root_sh(ways).ok();
    let init = world.init_pid(&sandbox.name);
    let dirs = group_dirs(&sandbox);
    let dir = dirs.iter().find(|dir| dir.join("memory.stat").exists());
    let dir = dir.unwrap();
    let lines = |path: PathBuf| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let pids = text.split_whitespace().map(|pid| pid.parse().unwrap());
        pids.collect::<Vec<i32>>()
    };
    eventually("all of them sleep", || {
        let grouped = lines(dir.join("cgroup.procs"));
        let mut found = Vec::new();
        let mut open = vec![init];
        while let Some(pid) = open.pop() {
            let below = lines(format!("/proc/{pid}/task/{pid}/children").into());
            found.extend(&below);
            open.extend(below);
        }
        let slept = found.iter().filter(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim() == "sleep")
        });
        let enough = slept.count() >= 6 && !grouped.contains(&init);
        (enough && found.iter().all(|pid| grouped.contains(pid))).then_some(())
    });
    // They count together, from whatever namespace.
    let hog = "
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp('unshare', ['unshare', '-r', 'python3', '-c', 'x = [bytearray(b\"x\") * (1 << 20) for _ in range(1024)]; open(\"escaped\", \"w\")'])
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]) & 127)
os.wait()
";
    sandbox.exec([PYTHON, "-c", hog]).ok();
    sandbox.exec(["test", "!", "-e", "escaped"]).ok();
    assert_eq!(world.init_pid(&sandbox.name), init);
}

/// Why no disk can be limited here.
pub fn no_disks() -> Option<&'static str> {
    let control = std::fs::File::options()
        .write(true)
        .open("/dev/loop-control");
    if control.is_err() {
        return Some("no loop devices");
    }
    let dirs = ["/usr/sbin", "/sbin"];
    let found = dirs
        .iter()
        .any(|dir| Path::new(dir).join("mkfs.ext4").exists());
    (!found).then_some("no mkfs.ext4")
}

fn disk(world: &'static World) {
    if let Some(reason) = no_disks() {
        return blocked(reason);
    }
    let sandbox = world.sandbox_with("disk-filler", &["--disk", "64m"]);
    assert_eq!(
        world.inspect(&sandbox.name)["limits"]["disk_bytes"],
        64 << 20
    );
    let full = sandbox.root_sh("head -c 200M /dev/zero > /filler");
    assert!(
        full.code != 0 && full.err.contains("No space left"),
        "{full:?}"
    );
    // It goes on, with what is its own and what is not.
    sandbox.sh("head -c 80M /dev/zero > in-the-workspace").ok();
    // More than what the file system frees late of the write that failed.
    let more = sandbox.root_sh("head -c 8M /dev/zero > /one-more");
    assert!(more.code != 0, "{more:?}");
    let size = |world: &World| {
        let listed: serde_json::Value =
            serde_json::from_str(&world.run(["ls", "--size", "--json"]).ok()).unwrap();
        let all = listed["sandboxes"].as_array().unwrap();
        let own = all.iter().find(|it| it["name"] == sandbox.name.as_str());
        own.unwrap()["size_bytes"].as_u64().unwrap()
    };
    let filled = size(world);
    assert!((32 << 20..=64 << 20).contains(&filled), "{filled}");
    // Setuid programs work on it, and files survive a stop.
    sandbox.root_sh("rm /filler && echo kept > /kept").ok();
    sandbox
        .root_sh("cp /bin/true /true && chmod 4755 /true && test -u /true")
        .ok();
    world.run(["stop", &sandbox.name]).ok();
    assert_eq!(sandbox.exec(["cat", "/kept"]).ok(), "kept");
}

/// A fork bomb, a memory hog, a disk filler and a hog of descriptors run at once, and a neighbour does not notice: with
/// limits that were asked for, and with none but the usual.
fn hogs(world: &'static World) {
    let disk: &[&str] = match no_disks() {
        Some(_) => &[],
        None => &["--disk", "64m"],
    };
    let flags = [&["--pids", "200", "--memory", "128m"], disk].concat();
    let hog = world.sandbox_with("hog", &flags);
    let neighbour = world.sandbox("neighbour");
    let fds = "
import os, time
held = []
try:
    while True: held.append(os.open('/dev/null', 0))
except OSError: print(len(held), flush=True)
time.sleep(600)";
    for hogging in [
        FORK_BOMB,
        "while :; do head -c 1G /dev/zero | tail > /dev/null; done",
        "while :; do head -c 1G /dev/zero > ~/filler; done",
        &format!("python3 -c \"{fds}\""),
    ] {
        // Some of them may find no process left.
        world.run(["exec", "-d", &hog.name, "sh", "-c", hogging]);
    }
    is_undisturbed(&neighbour, &hog);
    let used = &world.inspect(&hog.name)["usage"];
    assert!(used["processes"].as_u64().unwrap() <= 200, "{used}");
    assert!(
        used["memory_bytes"].as_u64().unwrap() <= 128 << 20,
        "{used}"
    );
    world.run(["rm", "--force", &hog.name]).ok();

    let hog = world.sandbox("usual-hog");
    let loops = "for _ in $(seq 100); do while :; do :; done & done; wait";
    for hogging in [loops, FORK_BOMB] {
        world.run(["exec", "-d", &hog.name, "sh", "-c", hogging]);
    }
    is_undisturbed(&neighbour, &hog);
    shares_its_cpu_time(&hog);
    world.run(["rm", "--force", &hog.name]).ok();
}

const FORK_BOMB: &str = "b() { b | b & }; b; sleep 600";

fn is_undisturbed(neighbour: &Sandbox<'_>, hog: &Sandbox<'_>) {
    for _ in 0..10 {
        assert_eq!(neighbour.exec(["echo", "alive"]).ok(), "alive");
        assert!(hog.world.names().contains(&hog.name));
    }
}

/// However many processes it has, the kernel gives them together what it gives to one; and to all sandboxes together what
/// it gives to one process on each processor.
fn shares_its_cpu_time(sandbox: &Sandbox<'_>) {
    let number = |path: PathBuf| {
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let cpus = std::thread::available_parallelism().unwrap().get() as u64;
    let mut weighed = 0;
    for dir in group_dirs(sandbox) {
        let all = dir.parent().and_then(Path::parent).unwrap();
        for (file, usual, most) in [("cpu.shares", 1024, 262_144), ("cpu.weight", 100, 10_000)] {
            let Some(weight) = number(dir.join(file)) else {
                continue;
            };
            assert_eq!(weight, usual, "{file} of {}", dir.display());
            let expected = (cpus * usual).min(most);
            assert_eq!(number(all.join(file)), Some(expected), "{file} of all");
            eventually("its hundred loops run", || {
                let pids = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap();
                (pids.lines().count() > 100).then_some(())
            });
            weighed += 1;
        }
    }
    assert_eq!(weighed, 1, "one hierarchy has the cpu controller");
}

fn use_is_shown(world: &'static World) {
    let sandbox = world.sandbox("busy");
    let program = "
import time
held = bytearray(b'x') * (50 << 20)
print('ready', flush=True)
end = time.monotonic() + 600
while time.monotonic() < end: pass";
    world
        .run(["exec", "-d", &sandbox.name, PYTHON, "-c", program])
        .ok();
    sandbox.sh("head -c 3M /dev/urandom > /tmp/own").ok();
    let used = eventually("it is busy", || {
        let used = world.inspect(&sandbox.name)["usage"].clone();
        let enough = used["memory_bytes"].as_u64()? > 50 << 20
            && used["cpu_micros"].as_u64()? > 100_000
            && used["processes"].as_u64()? > 0;
        enough.then_some(used)
    });
    assert!(used["memory_bytes"].as_u64().unwrap() < 300 << 20, "{used}");
    let stats = world.run(["stats", "--json", &sandbox.name]).ok();
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    let row = &stats["sandboxes"][0];
    assert_eq!(row["name"], sandbox.name.as_str());
    assert!(row["cpu_millis"].as_u64().unwrap() > 0, "{row}");
    let table = world.run(["stats", "--no-stream"]).ok();
    assert!(
        table.contains("CPU") && table.contains(&sandbox.name),
        "{table}"
    );
    listed(world, &sandbox);
    world.run(["stop", &sandbox.name]).ok();
    let stopped = row_of(world, &sandbox, &["--size"]);
    assert!(stopped["usage"].is_null(), "{stopped}");
    assert!(stopped["size_bytes"].as_u64().unwrap() > 0, "{stopped}");
    assert!(world.inspect(&sandbox.name)["usage"].is_null());
    let missing = world
        .run(["stats", "--no-stream", "no-such-sandbox"])
        .refused();
    assert!(missing.err.contains("no-such-sandbox"), "{}", missing.err);
}

/// What the user did not ask for, and cannot be enforced, is told by the first command that meets it, and by no other.
fn defaults_warn(world: &'static World) {
    let world = World::fresh(world.mode);
    let warning = "the memory of sandboxes is not limited here";
    let (first, second) = (world.workspace(), world.workspace());
    let made = world.create("first", &first);
    assert_eq!(made.err.matches(warning).count(), 1, "{}", made.err);
    made.ok();
    let silent = |said: crate::harness::Ran| {
        assert!(!said.err.contains(warning), "{}", said.err);
        said.ok();
    };
    silent(world.create("second", &second));
    silent(world.run(["exec", "first", "true"]));
    silent(world.run(["stop", "first"]));
    silent(world.run(["exec", "first", "true"]));
    // The next daemon does not know what this one has said.
    world.run(["daemon", "restart"]).ok();
    let third = world.create("third", &world.workspace());
    assert_eq!(third.err.matches(warning).count(), 1, "{}", third.err);
}

fn stats_live(world: &'static World) {
    let sandbox = world.sandbox("stats");
    let session = Session::start(world, &["stats", &sandbox.name]);
    // The cursor to the top, and everything below it erased.
    session.expect_times("\u{1b}[H\u{1b}[J", 3);
    session.expect_times(&sandbox.name, 3);
    session.type_in("\u{3}");
    let (code, shown) = session.end();
    assert_eq!(code, None, "it is ended by SIGINT: {shown}");
    assert!(!shown.contains("error"), "{shown}");
}

/// A sandbox in `ls --json`.
fn row_of(world: &World, sandbox: &Sandbox<'_>, flags: &[&str]) -> serde_json::Value {
    let listed = world.run([&["ls", "--json"], flags].concat()).ok();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let all = listed["sandboxes"].as_array().unwrap();
    let own = all.iter().find(|it| it["name"] == sandbox.name.as_str());
    own.unwrap().clone()
}

/// What `ls` shows of a busy sandbox: limits always, use where it is asked for.
fn listed(world: &World, sandbox: &Sandbox<'_>) {
    let limits = world.inspect(&sandbox.name)["limits"].clone();
    assert!(limits["processes"].as_u64().unwrap() > 0, "{limits}");
    let row = row_of(world, sandbox, &[]);
    assert_eq!(row["limits"], limits);
    assert!(row.get("usage").is_none() && row.get("size_bytes").is_none());
    let row = row_of(world, sandbox, &["--size"]);
    assert_eq!(row["limits"], limits);
    assert!(row["size_bytes"].as_u64().unwrap() > 3 << 20, "{row}");
    assert!(
        row["usage"]["memory_bytes"].as_u64().unwrap() > 50 << 20,
        "{row}"
    );
    let table = world.run(["ls", "--size"]).ok();
    let header: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(header[3..6], ["SIZE", "MEMORY", "CPUS"], "{table}");
    let line = table.lines().find(|line| line.starts_with(&sandbox.name));
    let line = line.unwrap();
    // Its size and its memory; that of its limit too, where there is one.
    let memory = limits["memory_bytes"].is_u64();
    let units = line.matches(" MiB ").count() + line.matches(" GiB ").count();
    assert!(units == 2 + usize::from(memory), "{table}");
    assert_eq!(line.contains(" / "), memory, "{table}");
}

fn preferred(world: &'static World) {
    let name = world.name("preferred");
    let workspace = world.workspace();
    let made = world.run([
        "create",
        "--name",
        &name,
        "--memory",
        "1g",
        "--cpus",
        "1",
        "--disk",
        "1g",
        "--prefer-limits",
        "memory,cpus,disk",
        "shell",
        workspace.to_str().unwrap(),
    ]);
    for flag in ["--memory", "--cpus", "--disk"] {
        let warning = format!("warning: cannot enforce `{flag}` here");
        assert_eq!(made.err.matches(&warning).count(), 1, "{}", made.err);
    }
    made.ok();
    assert!(world.inspect(&name)["limits"]["memory_bytes"].is_null());
    world.run(["rm", "--force", &name]).ok();
}

/// A user's daemon in a group that the user was given.
fn delegated(world: &'static World) {
    let top = Path::new("/sys/fs/cgroup/memory");
    if !tester_is_root() || !top.join("tasks").exists() {
        return blocked("root and the memory controller of control groups version 1 are needed");
    }
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own.lines().find_map(|line| line.split_once(":memory:"));
    let parent = top.join(own.unwrap().1.trim_start_matches('/'));
    let group = parent.join(format!("sbx-test-{}", std::process::id()));
    std::fs::create_dir(&group).unwrap();
    {
        let world = World::fresh(world.mode);
        for file in ["", "tasks", "cgroup.procs"] {
            std::os::unix::fs::chown(group.join(file), Some(world.uid), None).unwrap();
        }
        let script = format!("echo 0 > {}/cgroup.procs && exec \"$@\"", group.display());
        let mut start = world.command("/bin/sh");
        start
            .args(["-c", &script, "sh"])
            .arg(programs().join("sbx"));
        // Any command that needs a daemon starts it, in the group that the command is in.
        start.args(["policy", "init", "deny-all"]);
        assert!(start.output().unwrap().status.success());
        let sandbox = world.sandbox_with("delegated", &["--memory", "128m"]);
        let hog = "held = [bytearray(b'x') * (1 << 20) for _ in range(1024)]; print(len(held))";
        let ran = sandbox.exec([PYTHON, "-c", hog]);
        assert_eq!((ran.code, ran.out.as_str()), (137, ""), "{ran:?}");
        assert_eq!(sandbox.exec(["echo", "alive"]).ok(), "alive");
        world.run(["rm", "--force", &sandbox.name]).ok();
        // The kernel lets a group go when the last of its processes is reaped.
        eventually("its group is removed", || {
            let left = std::fs::read_dir(group.join("sbx")).unwrap();
            (!left.flatten().any(|it| it.path().is_dir())).then_some(())
        });
        world.run(["daemon", "stop"]).ok();
        let removed = || std::fs::remove_dir(group.join("sbx")).ok();
        eventually("its groups are empty", removed);
    }
    eventually("the group is empty", || std::fs::remove_dir(&group).ok());
}

fn unenforceable(world: &'static World) {
    let dir = world.workspace();
    let dir = dir.to_str().unwrap();
    for (flag, value) in [("--memory", "1g"), ("--cpus", "1"), ("--disk", "1g")] {
        let name = world.name("unenforceable");
        let ran = world.run(["create", "--name", &name, flag, value, "shell", dir]);
        let ran = ran.refused();
        let expected = format!("error: cannot enforce `{flag}` here");
        assert!(ran.err.contains(&expected), "{}", ran.err);
        assert!(ran.err.contains("hint: run sbx as root"), "{}", ran.err);
        assert!(ran.err.contains(&format!("omit `{flag}`")), "{}", ran.err);
        assert!(!world.names().contains(&name));
    }
}

fn invalid(world: &'static World) {
    let dir = world.workspace();
    let dir = dir.to_str().unwrap();
    for (flag, value) in [
        ("--memory", "lots"),
        ("--cpus", "-1"),
        ("--cpus", "9000"),
        ("--pids", "3"),
        ("--disk", "1k"),
    ] {
        let name = world.name("invalid-limit");
        let value = format!("{flag}={value}");
        let ran = world.run(["create", "--name", &name, &value, "shell", dir]);
        let ran = ran.refused();
        assert!(ran.err.contains("hint: "), "{}", ran.err);
        assert!(!world.names().contains(&name));
    }
}
