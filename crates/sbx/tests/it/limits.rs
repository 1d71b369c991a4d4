//! Limits of a sandbox: what a hostile or careless program inside cannot take from the host and from other sandboxes.

use std::path::{Path, PathBuf};

use crate::ModeTest;
use crate::harness::{Sandbox, World};

pub const TESTS: &[ModeTest] = &[
    ("limits::processes_are_bounded", processes),
    ("limits::invalid_ones_are_refused", invalid),
];
/// Control groups need root.
pub const ROOT: &[ModeTest] = &[
    ("limits::memory_is_bounded", memory),
    ("limits::cpu_time_is_bounded", cpu),
    ("limits::groups_are_removed", groups),
];
pub const USERS: &[ModeTest] = &[("limits::what_cannot_be_enforced_is_refused", unenforceable)];

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

fn group_dirs(sandbox: &Sandbox<'_>) -> Vec<PathBuf> {
    let path = sandbox.world.state().join("vm").join(&sandbox.name);
    let record = std::fs::read(path.join("sandbox.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let base = record["ids"]["uid"][0]["outside"].as_u64().unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = mounts.lines().filter(|line| line.contains(" - cgroup"));
    points
        .filter_map(|line| line.split(' ').nth(4))
        .map(|root| Path::new(root).join("sbx").join(base.to_string()))
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
    for dir in dirs {
        assert!(!dir.exists(), "{}", dir.display());
    }
}

fn unenforceable(world: &'static World) {
    let dir = world.workspace();
    let dir = dir.to_str().unwrap();
    for (flag, value) in [("--memory", "1g"), ("--cpus", "1")] {
        let name = world.name("unenforceable");
        let ran = world.run(["create", "--name", &name, flag, value, "shell", dir]);
        let ran = ran.refused();
        let expected = format!("error: cannot enforce `{flag}` here");
        assert!(ran.err.contains(&expected), "{}", ran.err);
        assert!(ran.err.contains("hint: run sbx as root"), "{}", ran.err);
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
    ] {
        let name = world.name("invalid-limit");
        let value = format!("{flag}={value}");
        let ran = world.run(["create", "--name", &name, &value, "shell", dir]);
        let ran = ran.refused();
        assert!(ran.err.contains("hint: "), "{}", ran.err);
        assert!(!world.names().contains(&name));
    }
}
