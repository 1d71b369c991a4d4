//! A state directory without room: what was acknowledged is kept, and what is refused says so.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::{Ran, World, eventually, eventually_or, host_has, programs};

/// A file system of the test's own needs root.
pub const ROOT: &[ModeTest] = &[("lifecycle::a_full_disk_loses_nothing", loses_nothing)];

/// What is left on the disk, in KiB: nothing, one small file, a few, a sandbox.
const ROOMS: &[u64] = &[0, 4, 64, ENOUGH];
const ENOUGH: u64 = 32 << 10;
/// For changes of one sandbox: what is left, block by block, to more than all their files need.
const MOST_BLOCKS: u64 = 64;
const BLOCK: usize = 4;
/// What is copied into a sandbox: several times what fits into the smallest rooms.
const COPIED: &str = concat!(include_str!("full_disk.rs"), "copied");
/// More than a template and what sandboxes write here.
const MOUNT: &str =
    "mount -t tmpfs -o size=160m,mode=700 none \"$SBX_HOME\" && echo mounted && read -r _";

/// A small file system in place of the state directory, in a mount namespace that lives as long as this.
struct SmallDisk<'a> {
    world: &'a World,
    keeper: Child,
}

impl<'a> SmallDisk<'a> {
    fn new(world: &'a World) -> Self {
        world.make_dir(&world.state());
        let mut keeper = world
            .command("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", MOUNT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(keeper.stdout.as_mut().unwrap());
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "mounted\n");
        Self { world, keeper }
    }

    /// The state directory as its processes see it.
    fn state(&self) -> PathBuf {
        let state = self.world.state();
        let below = state.strip_prefix("/").unwrap();
        Path::new(&format!("/proc/{}/root", self.keeper.id())).join(below)
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.world.command("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.id()))
            .arg(programs().join("sbx"))
            .args(args);
        Ran::from(command.output().unwrap())
    }

    /// Whether it succeeded; if not, it says why.
    #[track_caller]
    fn tries(&self, room: u64, args: &[&str]) -> bool {
        let ran = self.run(args);
        let said = format!("{room} KiB, {args:?}: {ran:?}");
        assert!(!ran.err.contains("panicked"), "{said}");
        if ran.code != 0 {
            let last = ran.err.lines().last().unwrap_or_default();
            assert!(last.starts_with("error: "), "{said}");
            assert!(last.contains("No space left on device"), "{said}");
            let hint = ran.err.lines().find(|line| line.starts_with("hint: "));
            let helps =
                |hint: &str| hint.contains("free some disk space") || hint == "hint: sbx diagnose";
            assert!(hint.is_none_or(helps), "{said}");
        }
        ran.code == 0
    }

    /// Leaves so much room.
    fn fill(&self, room: u64) -> PathBuf {
        let path = self.state().join("filler");
        let mut file = File::create(&path).unwrap();
        let chunk = vec![b'x'; 64 << 10];
        let full = loop {
            if let Err(error) = file.write_all(&chunk) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        let length = file.metadata().unwrap().len();
        file.set_len(length - (room << 10)).unwrap();
        path
    }

    fn names(&self) -> BTreeSet<String> {
        let names = self.run(&["ls", "-q"]).ok();
        names.lines().map(str::to_owned).collect()
    }

    fn host_ports(&self) -> BTreeSet<u64> {
        let ports = self.run(&["ports", "kept", "--json"]).ok();
        let ports: Value = serde_json::from_str(&ports).unwrap();
        let ports = ports.as_array().unwrap().iter();
        ports.map(|it| it["host_port"].as_u64().unwrap()).collect()
    }

    /// That of `kept`; nothing, if there is none.
    fn proxy_config(&self) -> String {
        let file = self.state().join("vm/kept/proxy-config.json");
        fs::read_to_string(file).unwrap_or_default()
    }

    /// Makes a sandbox as programs of another engine do. Its name, or none where it says why not.
    #[track_caller]
    fn posts_vm(&self, room: u64, workspace: &str) -> Option<String> {
        let body = json!({"agent_name": format!("posted{room}"), "workspace_dir": workspace});
        let mut command = self.world.command("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.id()))
            .args(["curl", "-s", "-X", "POST", "--unix-socket"])
            .arg(self.world.state().join("sandboxd.sock"))
            .args([
                "http://localhost/vm",
                "-H",
                "Content-Type: application/json",
            ])
            .args(["-d", &body.to_string()]);
        let said = Ran::from(command.output().unwrap());
        let answer: Value = serde_json::from_str(&said.out).unwrap();
        let name = answer["vm_name"].as_str().map(str::to_owned);
        let why = "No space left on device";
        assert!(
            name.is_some() || said.out.contains(why),
            "{room} KiB: {said:?}"
        );
        name
    }

    fn workspaces(&self) -> usize {
        let all = self.run(&["inspect", "kept", "--json"]).ok();
        let all: Value = serde_json::from_str(&all).unwrap();
        all[0]["workspaces"].as_array().unwrap().len()
    }

    /// What people see of it.
    fn shown(&self) -> Shown {
        Shown {
            names: self.names(),
            host_ports: self.host_ports(),
            workspaces: self.workspaces(),
            rules: self.run(&["policy", "ls", "--wide"]).ok(),
            auto_stop: self.run(&["settings", "get", "auto_stop_seconds"]).ok(),
            proxy_config: self.proxy_config(),
        }
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        self.run(&["rm", "--all", "--force"]);
        self.run(&["daemon", "stop"]);
        drop(self.keeper.stdin.take());
        drop(self.keeper.wait());
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Shown {
    names: BTreeSet<String>,
    host_ports: BTreeSet<u64>,
    workspaces: usize,
    rules: String,
    auto_stop: String,
    proxy_config: String,
}

fn temporaries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let left = names.filter(|name| name.starts_with('.') && name.ends_with(".tmp"));
    left.map(|name| dir.join(name)).collect()
}

/// No file of a write that failed, and no directory of a sandbox that is not listed.
fn assert_nothing_left(disk: &SmallDisk<'_>, room: u64, names: &BTreeSet<String>) {
    let vm = disk.state().join("vm");
    let directories = || -> BTreeSet<String> {
        let entries = fs::read_dir(&vm).unwrap().map(|entry| entry.unwrap());
        entries
            .map(|it| it.file_name().into_string().unwrap())
            .collect()
    };
    eventually_or(
        || (directories() == *names).then_some(()),
        || format!("{room} KiB: {:?} is {names:?}", directories()),
    );
    let mut left = temporaries(&disk.state());
    let saved = disk.state().join("templates/saved");
    if saved.exists() {
        left.extend(temporaries(&saved));
    }
    for name in names {
        left.extend(temporaries(&vm.join(name)));
    }
    assert_eq!(left, Vec::<PathBuf>::new(), "{room} KiB");
}

fn round(disk: &SmallDisk<'_>, room: u64, workspace: &str) {
    let [made, removed] = ["made", "removed"].map(|what| format!("{what}-{room}"));
    let (host, time) = (format!("h{room}.example.org"), (7000 + room).to_string());
    disk.run(&["create", "--name", &removed, "shell", workspace])
        .ok();
    let pruned = format!("pruned-{room}");
    disk.run(&["create", "--name", &pruned, "shell", workspace])
        .ok();
    disk.run(&["stop", &pruned]).ok();
    drop(fs::remove_file(disk.state().join("ssh-host-key")));
    let old = format!("old{room}.example.org");
    disk.run(&["policy", "allow", "network", &old]).ok();
    let (ports, before) = (disk.host_ports(), disk.shown());

    let filler = disk.fill(room);
    let tries = |args: &[&str]| disk.tries(room, args);
    // With a build cache, which is another directory to be made.
    let repo = disk.world.workspace();
    let repo = repo.to_str().unwrap();
    let created = tries(&["create", "--cache", "--name", &made, "shell", repo]);
    assert!(created || room < ENOUGH);
    let posted = disk.posts_vm(room, workspace);
    assert_ne!(posted.is_none(), room >= ENOUGH);
    tries(&["exec", "kept", "true"]);
    let source = disk.world.home().join("source");
    disk.world.write(&source, COPIED);
    let target = format!("kept:/home/agent/copied-{room}");
    let copied = tries(&["cp", source.to_str().unwrap(), &target]);
    tries(&["ssh", "known-hosts", "kept.sbx"]);
    let blocked = format!("blocked{room}.example.org");
    let narrowed = tries(&["network", "proxy", "kept", "--block-host", &blocked]);
    // A full disk does not keep what fills it.
    assert!(tries(&["prune", "--force"]), "{room} KiB");
    let published = tries(&["ports", "kept", "--publish", "8000"]);
    let more = disk.world.workspace();
    let mounted = tries(&["mount", "kept", more.to_str().unwrap()]);
    let allowed = tries(&["policy", "allow", "network", "--sandbox", "kept", &host]);
    let forgotten = tries(&["policy", "rm", "network", "--resource", &old]);
    let set = tries(&["settings", "set", "auto_stop_seconds", &time]);
    tries(&["stop", "kept"]);
    tries(&["daemon", "restart"]);
    tries(&["exec", "kept", "cat", "/home/agent/file"]);
    assert!(tries(&["rm", "--force", &removed]), "{room} KiB");
    fs::remove_file(filler).unwrap();

    assert_eq!(
        disk.run(&["exec", "kept", "cat", "/home/agent/file"]).ok(),
        "kept"
    );
    let after = disk.shown();
    let mut names = before.names.clone();
    names.remove(&removed);
    names.remove(&pruned);
    names.extend(created.then(|| made.clone()));
    names.extend(posted);
    assert_eq!(after.names, names, "{room} KiB");
    assert!(after.host_ports.is_superset(&ports), "{room} KiB");
    let more = after.host_ports.len() - ports.len();
    assert_eq!(more, usize::from(published), "{room} KiB");
    let workspaces = before.workspaces + usize::from(mounted);
    assert_eq!(after.workspaces, workspaces, "{room} KiB");
    assert!(after.rules.contains("first.example.org"), "{}", after.rules);
    assert_eq!(after.rules.contains(&host), allowed, "{}", after.rules);
    assert_eq!(after.rules.contains(&old), !forgotten, "{}", after.rules);
    let expected = if set { time } else { before.auto_stop };
    assert_eq!(after.auto_stop, expected, "{room} KiB");
    assert_eq!(
        after.proxy_config.contains(&blocked),
        narrowed,
        "{room} KiB"
    );
    if copied {
        let read = disk.run(&["cp", &target, "-"]).ok();
        assert!(read.contains(COPIED), "{room} KiB");
    }
    disk.run(&["ssh", "known-hosts", "kept.sbx"]).ok();
    assert_nothing_left(disk, room, &names);

    // On the disk is what the daemon said.
    disk.run(&["daemon", "restart"]).ok();
    assert_eq!(disk.shown(), after, "{room} KiB");
    if created {
        assert_eq!(disk.run(&["exec", &made, "echo", "runs"]).ok(), "runs");
    }
}

/// Each change of what is kept is made and stays, or is refused and nothing of it is there.
fn change(disk: &SmallDisk<'_>, room: u64) {
    let more = disk.world.workspace();
    let more = more.to_str().unwrap();
    let (inside, tag) = ((9000 + room).to_string(), format!("saved:{room}"));
    disk.run(&["mount", "kept", more]).ok();
    disk.run(&["ports", "kept", "--publish", &inside]).ok();
    disk.run(&["policy", "reset", "--force"]).ok();
    disk.run(&["stop", "kept"]).ok();
    let before = disk.shown();

    let filler = disk.fill(room);
    let tries = |args: &[&str]| disk.tries(room, args);
    let saved = tries(&["template", "save", "kept", &tag]);
    let chosen = tries(&["policy", "init", "deny-all"]);
    let unmounted = tries(&["umount", "kept", more]);
    let unpublished = tries(&["ports", "kept", "--unpublish", &inside]);
    fs::remove_file(filler).unwrap();

    let after = disk.shown();
    let workspaces = after.workspaces + usize::from(unmounted);
    assert_eq!(workspaces, before.workspaces, "{room} KiB");
    let ports = after.host_ports.len() + usize::from(unpublished);
    assert_eq!(ports, before.host_ports.len(), "{room} KiB");
    let policy = disk.state().join("policy.json");
    assert_eq!(policy.exists(), chosen, "{room} KiB");
    let templates = disk.run(&["template", "ls", "--json"]).ok();
    let row = format!("\"tag\": \"{room}\"");
    assert_eq!(templates.contains(&row), saved, "{templates}");
    let store = disk.state().join("templates/saved");
    let expected = usize::from(saved);
    let directories = || {
        let entries = fs::read_dir(&store).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().is_dir()).count()
    };
    eventually_or(
        || (directories() == expected).then_some(()),
        || format!("{room} KiB: {} templates, not {expected}", directories()),
    );
    assert_nothing_left(disk, room, &after.names);
    disk.run(&["daemon", "restart"]).ok();
    assert_eq!(disk.shown(), after, "{room} KiB");
    if saved {
        disk.run(&["template", "rm", &tag]).ok();
    }
}

fn loses_nothing(world: &'static World) {
    if !host_has("curl") {
        return;
    }
    let world = World::fresh(world.mode);
    let workspace = world.workspace();
    let workspace = workspace.to_str().unwrap();
    let disk = SmallDisk::new(&world);
    disk.run(&["create", "--name", "kept", "shell", workspace])
        .ok();
    disk.run(&["exec", "kept", "sh", "-c", "echo kept >~/file"])
        .ok();
    disk.run(&["policy", "allow", "network", "first.example.org"])
        .ok();
    for room in ROOMS {
        round(&disk, *room, workspace);
    }
    for room in (0..=MOST_BLOCKS).step_by(BLOCK) {
        change(&disk, room);
    }
    assert_eq!(
        disk.run(&["exec", "kept", "cat", "/home/agent/file"]).ok(),
        "kept"
    );
    disk.run(&["rm", "--all", "--force"]).ok();
    assert_nothing_left(&disk, 0, &BTreeSet::new());
    let trash = disk.state().join("trash");
    eventually("the trash is empty", || {
        fs::read_dir(&trash).unwrap().next().is_none().then_some(())
    });
    disk.run(&["create", "--name", "last", "shell", workspace])
        .ok();
    let filler = disk.fill(0);
    assert!(disk.tries(0, &["reset", "--force"]), "reset");
    assert!(!disk.state().join("vm").exists(), "reset");
    drop(fs::remove_file(filler));
}
