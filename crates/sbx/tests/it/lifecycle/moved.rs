//! A state directory in another place than it was: a home that was renamed, a disk that is mounted elsewhere.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::ModeTest;
use crate::harness::{Mode, Ran, World, eventually_or};

pub const INDEPENDENT: &[ModeTest] = &[(
    "lifecycle::a_home_that_moved_keeps_its_sandboxes",
    moved_home,
)];

/// A home whose state directory is where it usually is.
struct Home<'a> {
    world: &'a World,
    path: PathBuf,
}

impl Home<'_> {
    fn state(&self) -> PathBuf {
        self.path.join(".docker/sandboxes")
    }

    fn vm(&self) -> PathBuf {
        self.state().join("vm")
    }

    /// With the settings that the mode may need.
    fn furnish(&self) {
        for dir in [&self.path, &self.path.join(".docker"), &self.state()] {
            self.world.make_dir(dir);
        }
        if let Ok(settings) = fs::read(self.world.state().join("settings.json")) {
            let file = self.state().join("settings.json");
            self.world.write(&file, settings);
        }
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.world.sbx(args);
        command.env("HOME", &self.path).env_remove("SBX_HOME");
        Ran::from(command.current_dir("/").output().unwrap())
    }

    /// Everything that `inspect` does not tell: rules and ports.
    fn shown(&self, name: &str) -> [String; 2] {
        let lists: [&[&str]; 2] = [&["policy", "ls", "--wide"], &["ports", name, "--json"]];
        lists.map(|list| self.run(list).ok())
    }

    /// Whose ranges of ids root's sandboxes of this home have claimed.
    fn claims(&self) -> BTreeSet<PathBuf> {
        let places = ["/var/lib/sbx/ids", "/run/sbx/ids"].into_iter();
        let files = places.filter_map(|place| fs::read_dir(place).ok());
        // Other tests release theirs meanwhile.
        let claims = files.flatten().flatten();
        let claims = claims.filter_map(|claim| fs::read(claim.path()).ok());
        let claims = claims.map(|claim| PathBuf::from(OsStr::from_bytes(&claim)));
        claims.filter(|it| it.starts_with(&self.path)).collect()
    }

    /// The control groups of a sandbox, which its directory tells.
    fn groups(&self, name: &str) -> Vec<PathBuf> {
        let list = fs::read_to_string(self.vm().join(name).join("cgroups"));
        let list = list.unwrap_or_default();
        list.lines().map(PathBuf::from).collect()
    }
}

impl Drop for Home<'_> {
    fn drop(&mut self) {
        if self.path.exists() {
            self.run(&["rm", "--all", "--force"]);
            self.run(&["daemon", "stop"]);
        }
    }
}

fn moved_home(world: &'static World) {
    let workspace = world.workspace();
    let [before, after] = ["before", "after"].map(|name| Home {
        world,
        path: world.home().join(world.name(name)),
    });
    before.furnish();
    let workspace = workspace.to_str().unwrap();
    let create = [
        "create", "--name", "moved", "-p", "8000", "shell", workspace,
    ];
    before.run(&create).ok();
    let write = "echo kept >~/file; chmod 640 ~/file";
    before.run(&["exec", "moved", "sh", "-c", write]).ok();
    let rule = [
        "policy",
        "allow",
        "network",
        "--sandbox",
        "moved",
        "h.example.org",
    ];
    before.run(&rule).ok();
    let shown = before.shown("moved");
    let old_groups = before.groups("moved");
    before.run(&["daemon", "stop"]).ok();
    fs::rename(&before.path, &after.path).unwrap();

    assert_eq!(after.run(&["ls", "-q"]).ok(), "moved");
    let read = [
        "exec",
        "moved",
        "sh",
        "-c",
        "cat ~/file; stat -c '%U %a' ~/file",
    ];
    assert_eq!(after.run(&read).ok(), "kept\nagent 640");
    assert_eq!(after.shown("moved"), shown);
    // No other daemon of root may give its ids to another sandbox.
    let claimed = (world.mode == Mode::Root).then(|| after.vm().join("moved"));
    assert_eq!(after.claims(), BTreeSet::from_iter(claimed));
    assert_eq!(before.claims(), BTreeSet::new());
    after.run(&["stop", "moved"]).ok();
    assert_eq!(after.run(&read).ok(), "kept\nagent 640");
    let groups = [old_groups, after.groups("moved")].concat();
    after.run(&["rm", "--force", "moved"]).ok();
    assert_eq!(after.run(&["ls", "-q"]).ok(), "");
    assert_gone(&after, &groups);
    assert!(!before.path.exists(), "something was made in the old place");
}

/// What is deleted in the background goes too.
fn assert_gone(home: &Home<'_>, groups: &[PathBuf]) {
    assert_eq!(fs::read_dir(home.vm()).unwrap().count(), 0);
    let left = || {
        let groups = groups.iter().filter(|group| group.exists()).cloned();
        groups.chain(home.claims()).collect::<Vec<_>>()
    };
    eventually_or(
        || left().is_empty().then_some(()),
        || format!("still there: {:?}", left()),
    );
}
