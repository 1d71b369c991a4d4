//! Nothing is left behind: everything that a sandbox is made of is counted before and after, in a world of its own.
//!
//! Other tests make sandboxes at the same time, so what is counted is told apart by the world's own directory,
//! which is in the mount table of every process of its sandboxes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::process::Signal;

use crate::ModeTest;
use crate::exec::pty::Session;
use crate::harness::{
    Mode, Sandbox, World, alive, blocked, children, eventually, eventually_or, kill,
    tester_is_root, waiting_helper,
};

pub const TESTS: &[ModeTest] = &[
    ("leaks::create_exec_stop_rm", whole_life),
    ("leaks::rm_all_force_while_everything_runs", rm_all),
    ("leaks::creates_that_fail", failed_creates),
    ("leaks::creates_that_fail_late", failed_late),
    ("leaks::creates_without_descriptors", without_descriptors),
    ("leaks::an_init_that_dies", dead_init),
    ("leaks::after_the_daemon_nothing_runs", after_the_daemon),
];
/// Only root's sandboxes have control groups, ranges of ids and disks.
pub const ROOT: &[ModeTest] = &[
    ("leaks::damaged_records_and_reset", damaged_and_reset),
    ("leaks::disks", disks),
];

/// Everything of a world that can be left behind.
#[derive(Debug, PartialEq, Eq)]
struct Count {
    names: Vec<String>,
    /// Below the state directory, without the templates: they stay on purpose.
    files: BTreeSet<PathBuf>,
    /// Lines of the host's own mount table.
    mounts: Vec<String>,
    /// Processes in a mount namespace of this world's sandboxes.
    processes: BTreeSet<i32>,
    /// The namespaces that they are in.
    namespaces: BTreeSet<String>,
    /// What the daemon has open, by kind: numbers in it differ from time to time.
    descriptors: Vec<String>,
    /// Of the daemon, without the one that waits for the next sandbox.
    children: Vec<i32>,
    waiting: bool,
    /// Threads of the daemon that follow a sandbox; those that serve requests come and go.
    watchers: usize,
    cgroups: BTreeSet<PathBuf>,
}

impl Count {
    fn of(world: &World) -> Self {
        let root = world.state().parent().unwrap().to_path_buf();
        let root = root.to_str().unwrap();
        let daemon = world.daemon_pid();
        let processes = processes(root);
        let waiting = waiting_helper(daemon);
        let mut children = children(daemon);
        children.retain(|child| Some(*child) != waiting);
        Self {
            names: world.names(),
            files: files(&world.state()),
            mounts: lines_with(Path::new("/proc/self/mountinfo"), root),
            namespaces: processes
                .iter()
                .flat_map(|pid| namespaces(*pid))
                .filter(|ns| !namespaces_of_ours().contains(ns))
                .collect(),
            processes,
            descriptors: descriptors(daemon),
            children,
            waiting: waiting.is_some(),
            watchers: watchers(daemon),
            cgroups: cgroups(world, root),
        }
    }
}

fn lines_with(file: &Path, word: &str) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter(|line| line.contains(word))
        .map(str::to_owned)
        .collect()
}

fn all_pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn processes(root: &str) -> BTreeSet<i32> {
    all_pids()
        .filter(|pid| !lines_with(Path::new(&format!("/proc/{pid}/mountinfo")), root).is_empty())
        .collect()
}

fn namespaces(pid: i32) -> Vec<String> {
    let links = fs::read_dir(format!("/proc/{pid}/ns"))
        .into_iter()
        .flatten()
        .flatten();
    links
        .filter_map(|link| Some(fs::read_link(link.path()).ok()?.to_str()?.to_owned()))
        .collect()
}

fn namespaces_of_ours() -> Vec<String> {
    namespaces(i32::try_from(std::process::id()).unwrap())
}

fn files(state: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![state.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path != state.join("templates") {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    open.push(path.clone());
                }
                found.insert(path);
            }
        }
    }
    found
}

fn descriptors(daemon: i32) -> Vec<String> {
    let fds = fs::read_dir(format!("/proc/{daemon}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let mut kinds: Vec<String> = fds
        .filter_map(|fd| {
            let target = fs::read_link(fd.path()).ok()?;
            // `socket:[123]`, `pipe:[123]`, `net:[123]`; a path as it is.
            Some(target.to_str()?.split('[').next()?.to_owned())
        })
        .collect();
    kinds.sort();
    kinds
}

fn watchers(daemon: i32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{daemon}/task"));
    let names = tasks.into_iter().flatten().flatten();
    names
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .filter(|name| name.trim() == "watch")
        .count()
}

/// Control groups that hold a process of this world and not the tester, which inherited no group of a sandbox, or have the
/// id of a sandbox in their name which is, or was when this was last asked, in it.
fn cgroups(world: &World, root: &str) -> BTreeSet<PathBuf> {
    static IDS: Mutex<BTreeMap<PathBuf, BTreeSet<String>>> = Mutex::new(BTreeMap::new());
    let mut ids = IDS.lock().unwrap();
    let ids = ids.entry(world.state()).or_default();
    let listed: serde_json::Value =
        serde_json::from_str(&world.run(["ls", "--json"]).ok()).unwrap();
    let listed = listed["sandboxes"].as_array().unwrap().iter();
    // A damaged one has none.
    let listed = listed.filter_map(|sandbox| sandbox["id"].as_str());
    ids.extend(listed.filter(|id| !id.is_empty()).map(str::to_owned));
    let ours = processes(root);
    let mut found = BTreeSet::new();
    let mut open = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = open.pop() {
        let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        let pids: Vec<i32> = procs.lines().filter_map(|pid| pid.parse().ok()).collect();
        let inherited = pids.contains(&std::process::id().cast_signed());
        let holds = !inherited && pids.iter().any(|pid| ours.contains(pid));
        let name = dir.file_name().unwrap().to_str().unwrap();
        if holds || ids.contains(name) {
            found.insert(dir.clone());
        }
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
        }
    }
    found
}

/// A world whose daemon has made and removed a sandbox before: what it makes once is made.
fn settled(world: &World) -> World {
    if !tester_is_root() {
        blocked("only root sees the namespaces of an init, and what it has open");
    }
    let world = World::fresh(world.mode);
    drop(world.sandbox("warm-up"));
    world
}

/// What is counted comes back to what it was.
#[track_caller]
fn same_again(world: &World, before: &Count) {
    let same = || (Count::of(world) == *before).then_some(());
    eventually_or(same, || {
        format!(
            "everything is gone: {:#?} is not {before:#?}",
            Count::of(world)
        )
    });
}

/// What there is when nothing happens any more.
fn rest(world: &World) -> Count {
    eventually("the daemon is at rest", || {
        let now = Count::of(world);
        let quiet = now.processes.is_empty() && now.children.is_empty() && now.watchers == 0;
        let quiet = quiet && now.waiting;
        (quiet && now == Count::of(world)).then_some(now)
    })
}

/// Uses a sandbox in every way that opens something.
fn use_it(sandbox: &Sandbox<'_>) {
    sandbox
        .sh("echo x > file; mkdir -p ~/a/b; echo y > ~/a/b/c")
        .ok();
    sandbox
        .root_sh("mkdir -p made/by; echo root > made/by/root; mkdir -m 000 ~/closed")
        .ok();
    sandbox.exec(["no-such-program"]).fails(127);
    sandbox
        .exec_with(&["-d"], ["sh", "-c", "echo logged; sleep 1000"])
        .ok();
    sandbox.sh("sleep 1000 >/dev/null 2>&1 & setsid sleep 1000 >/dev/null 2>&1 & unshare -rmpf sleep 1000 >/dev/null 2>&1 & true").ok();
    let session = Session::start(
        sandbox.world,
        &["exec", "-it", &sandbox.name, "sh", "-c", "tty; exit 3"],
    );
    assert_eq!(session.end().0, Some(3));
}

fn whole_life(world: &'static World) {
    let world = settled(world);
    let before = rest(&world);
    for _ in 0..3 {
        let sandbox = world.sandbox("life");
        use_it(&sandbox);
        let during = Count::of(&world);
        if tester_is_root() {
            // The count sees what there is.
            assert!(during.processes.len() > 3, "{during:?}");
            assert!(during.namespaces.len() >= 7, "{during:?}");
            assert_eq!(
                during.cgroups.is_empty(),
                world.mode != Mode::Root,
                "{during:?}"
            );
            assert!(
                during.children.len() == 1 && during.descriptors.len() > before.descriptors.len(),
                "{during:?}"
            );
        }
        assert!(during.files.len() > before.files.len() && during.watchers == 1);
        assert_eq!(during.mounts, before.mounts, "the host's mount table");
        world.run(["stop", &sandbox.name]).ok();
        let stopped = Count::of(&world);
        assert!(
            stopped.processes.is_empty() && stopped.namespaces.is_empty(),
            "{stopped:?}"
        );
        assert!(
            !world
                .state()
                .join("vm")
                .join(&sandbox.name)
                .join("exec.sock")
                .exists()
        );
        sandbox.exec(["true"]).ok();
        world.run(["rm", "--force", &sandbox.name]).ok();
        world.assert_no_sandboxes();
    }
    same_again(&world, &before);
}

fn rm_all(world: &'static World) {
    let world = settled(world);
    let before = rest(&world);
    let sandboxes: Vec<_> = (0..4).map(|_| world.sandbox("all")).collect();
    for sandbox in &sandboxes {
        use_it(sandbox);
    }
    let clients: Vec<_> = sandboxes
        .iter()
        .map(|sandbox| {
            world
                .sbx(["exec", &sandbox.name, "sleep", "1000"])
                .spawn()
                .unwrap()
        })
        .collect();
    for sandbox in &sandboxes {
        eventually("the command runs", || {
            (world.inspect(&sandbox.name)["sessions"].as_u64()? >= 2).then_some(())
        });
    }
    // One of them is stopped.
    world.run(["stop", &sandboxes[0].name]).ok();
    world.run(["rm", "--all", "--force"]).ok();
    world.assert_no_sandboxes();
    for mut client in clients {
        assert_ne!(client.wait().unwrap().code(), Some(0));
    }
    same_again(&world, &before);
}

fn failed_creates(world: &'static World) {
    let world = settled(world);
    let before = rest(&world);
    let dir = world.workspace();
    let path = dir.to_str().unwrap();
    let create = |more: &[&str]| world.run(["create", "--name", "broken"].iter().chain(more));
    for more in [
        &["shell", "/no/such"][..],
        &["shell", "/"],
        &["shell", path, "/proc:ro"],
        &["claude", path],
        &["--platform", "plan9/mips", "shell", path],
        &["-e", "=x", "shell", path],
    ] {
        create(more).refused();
    }
    // The boot itself fails: no place for its layers.
    let blocker = world.state().join("templates");
    let aside = world.state().join("templates-aside");
    fs::rename(&blocker, &aside).unwrap();
    world.write(&blocker, "");
    for _ in 0..3 {
        create(&["shell", path]).refused();
    }
    fs::remove_file(&blocker).unwrap();
    fs::rename(&aside, &blocker).unwrap();
    same_again(&world, &before);
    // And a success after that is as clean.
    create(&["shell", path]).ok();
    world.run(["rm", "--force", "broken"]).ok();
    same_again(&world, &before);
}

/// Also what could not be removed at once.
fn without_descriptors(world: &'static World) {
    let world = settled(world);
    let before = rest(&world);
    let workspace = world.workspace();
    let workspace = workspace.to_str().unwrap();
    let daemon = world.daemon_pid();
    // As the daemon's own user, who may do that without any power.
    let limit = |soft: u64| {
        let mut command = world.command("prlimit");
        command
            .args(["--pid", &daemon.to_string()])
            .arg(format!("--nofile={soft}:"));
        assert!(command.status().unwrap().success());
    };
    let usual = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let usual = usual.current.unwrap_or(1024);
    let mut starved = 0;
    // With none at all it could not even be asked.
    for more in 1..8 {
        let open = fs::read_dir(format!("/proc/{daemon}/fd"));
        let few = u64::try_from(open.unwrap().count()).unwrap() + more;
        limit(few);
        let made = world.run(["create", "--name", "starved", "shell", workspace]);
        limit(usual);
        // Some of those that were counted may be closed by now, and then there may be enough.
        match made.code {
            0 => drop(world.run(["rm", "--force", "starved"]).ok()),
            _ => starved += 1,
        }
    }
    assert!(starved > 0);
    eventually("nothing is left", || {
        let names = world.names();
        (!names.contains(&"starved".to_owned())).then_some(())
    });
    // The last helper that was to wait for the next sandbox may have starved too.
    drop(world.sandbox("fed"));
    same_again(&world, &before);
}

/// The namespaces are there, and so are the overlays: then a directory is in the way of `/etc/hostname`.
fn failed_late(world: &'static World) {
    if world.mode == Mode::Subordinate && !tester_is_root() {
        return blocked("only root can spoil a template of subordinate ids");
    }
    let world = settled(world);
    let before = rest(&world);
    let dir = world.workspace();
    let template = fs::read_dir(world.state().join("templates"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.join("root/etc/hostname").is_file())
        .unwrap();
    let (place, aside) = (template.join("root/etc/hostname"), template.join("aside"));
    fs::rename(&place, &aside).unwrap();
    fs::create_dir_all(place.join("full")).unwrap();
    for _ in 0..3 {
        let error = world.create("late", &dir).refused().err;
        assert!(error.contains("make the file `/etc/hostname`"), "{error}");
        world.assert_no_sandboxes();
    }
    fs::remove_dir_all(&place).unwrap();
    fs::rename(&aside, &place).unwrap();
    same_again(&world, &before);
    world.create("late", &dir).ok();
    world.run(["rm", "--force", "late"]).ok();
    same_again(&world, &before);
}

fn dead_init(world: &'static World) {
    let world = settled(world);
    let before = rest(&world);
    let sandbox = world.sandbox("dead");
    use_it(&sandbox);
    sandbox.kill_init();
    let stopped = Count::of(&world);
    assert!(stopped.processes.is_empty(), "{stopped:?}");
    world.run(["rm", "--force", &sandbox.name]).ok();
    same_again(&world, &before);
}

fn after_the_daemon(world: &'static World) {
    let world = settled(world);
    let root = world.state().parent().unwrap().to_str().unwrap().to_owned();
    let sandbox = world.sandbox("last");
    use_it(&sandbox);
    let daemon = world.daemon_pid();
    world.run(["daemon", "stop"]).ok();
    assert!(processes(&root).is_empty());
    eventually("the daemon's process ends", || {
        descriptors(daemon).is_empty().then_some(())
    });
    let sockets: Vec<_> = files(&world.state())
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "sock"))
        // The link `docker.sock` of a sandbox stays, and leads nowhere.
        .filter(|path| path.exists())
        .collect();
    assert_eq!(sockets, Vec::<PathBuf>::new());
    // A removal without a daemon starts one, and cleans up all the same.
    world.run(["rm", "--force", &sandbox.name]).ok();
    world.assert_no_sandboxes();
}

/// What the kernel and other programs keep of one sandbox, outside of its directory.
fn belongings(id: &str, dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(group) = open.pop() {
        for entry in fs::read_dir(&group).into_iter().flatten().flatten() {
            if entry.file_name() == id {
                found.push(entry.path());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
        }
    }
    for place in ["/var/lib/sbx/ids", "/run/sbx/ids"] {
        for claim in fs::read_dir(place).into_iter().flatten().flatten() {
            if fs::read_to_string(claim.path()).is_ok_and(|holder| Path::new(&holder) == dir) {
                found.push(claim.path());
            }
        }
    }
    found.extend(loop_devices(dir));
    found
}

/// Those with a file of that directory.
fn loop_devices(dir: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let attached = devices.filter(|device| {
        let file = fs::read_to_string(device.path().join("loop/backing_file"));
        file.is_ok_and(|file| file.contains(dir.to_str().unwrap()))
    });
    attached.map(|device| device.path()).collect()
}

fn place_of(sandbox: &Sandbox<'_>) -> (String, PathBuf) {
    let id = sandbox.world.inspect(&sandbox.name)["id"]
        .as_str()
        .unwrap()
        .to_owned();
    (id, sandbox.world.state().join("vm").join(&sandbox.name))
}

fn damaged_and_reset(world: &'static World) {
    let world = settled(world);
    let sandboxes: Vec<_> = ["damaged", "damaged-at-reset", "running", "stopped"]
        .map(|name| world.sandbox(name))
        .into_iter()
        .collect();
    let places: Vec<_> = sandboxes.iter().map(place_of).collect();
    for (sandbox, (id, dir)) in sandboxes.iter().zip(&places) {
        sandbox.exec(["true"]).ok();
        assert!(belongings(id, dir).len() >= 2, "{:?}", belongings(id, dir));
    }
    let running = world.init_pid(&sandboxes[2].name);
    world.run(["daemon", "restart"]).ok();
    world.run(["stop", &sandboxes[3].name]).ok();
    // Without a daemon, which would write the record again.
    assert!(kill(world.daemon_pid(), Signal::KILL));
    for (_, dir) in &places[..2] {
        world.write(&dir.join("sandbox.json"), "{");
    }
    world.run(["rm", "--force", &sandboxes[0].name]).ok();
    let (id, dir) = &places[0];
    assert_eq!(belongings(id, dir), Vec::<PathBuf>::new());
    world.run(["reset", "--force"]).ok();
    for (id, dir) in &places {
        assert_eq!(belongings(id, dir), Vec::<PathBuf>::new());
    }
    assert!(!alive(running));
}

fn disks(world: &'static World) {
    if let Some(reason) = crate::limits::no_disks() {
        return blocked(reason);
    }
    let world = settled(world);
    let before = rest(&world);
    let sandbox = world.sandbox_with("disk", &["--disk", "64m"]);
    let (_, dir) = place_of(&sandbox);
    sandbox.root_sh("echo kept > /kept").ok();
    let during = Count::of(&world);
    assert_eq!(during.mounts, before.mounts, "the host's mount table");
    assert_eq!(loop_devices(&dir).len(), 1);
    // All at once, as at a power cut: the next start waits until the kernel is done with the image.
    let init = world.init_pid(&sandbox.name);
    assert!(kill(world.daemon_pid(), Signal::KILL) && kill(init, Signal::KILL));
    assert_eq!(sandbox.exec(["cat", "/kept"]).ok(), "kept");
    world.run(["stop", &sandbox.name]).ok();
    let detached = || loop_devices(&dir).is_empty().then_some(());
    eventually("the device is free", detached);
    assert_eq!(sandbox.exec(["cat", "/kept"]).ok(), "kept");
    world.run(["rm", "--force", &sandbox.name]).ok();
    eventually("the device is free", detached);
    same_again(&world, &before);
}
