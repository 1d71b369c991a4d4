//! Hosts on which another user changes names while the template is made, or has made what cannot be mirrored.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, symlink};

use rustix::fs::{OFlags, RenameFlags, mkdirat, openat, renameat_with};
use sbx_proto::plan::Mode as SandboxMode;
use tempfile::TempDir;

use super::*;
use crate::machine::namespace::template::spec::Spec;
use sbx_proto::inside::AGENT;

const MODES: [SandboxMode; 2] = [SandboxMode::Root, SandboxMode::Subordinate];
/// Neither root nor the user who runs the tests.
const OTHER_USER: u32 = 12_345;

/// A host's `/opt`, and the layer of it.
struct Host {
    dir: TempDir,
}

impl Host {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let host = Self { dir };
        host.make("opt", 0o755);
        host
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn make(&self, path: &str, mode: u32) {
        fs::create_dir_all(self.at(path)).unwrap();
        self.chmod(path, mode);
    }

    fn put(&self, path: &str, mode: u32) {
        let mut file = File::create(self.at(path)).unwrap();
        file.write_all(path.as_bytes()).unwrap();
        self.chmod(path, mode);
    }

    fn chmod(&self, path: &str, mode: u32) {
        fs::set_permissions(self.at(path), Permissions::from_mode(mode)).unwrap();
    }

    fn rules(&self, mode: SandboxMode, left_out: &[&str]) -> AccessRules {
        let left_out: Vec<PathBuf> = left_out.iter().map(|path| self.at(path)).collect();
        AccessRules::new(&Spec::of(self.dir.path(), mode, b"", &left_out))
    }

    fn layer(&self, mode: SandboxMode, left_out: &[&str]) -> Layer {
        let layer = Layer(TempDir::new().unwrap());
        skeleton(&self.at("opt"), layer.0.path(), &self.rules(mode, left_out)).unwrap();
        layer
    }
}

struct Layer(TempDir);

impl Layer {
    fn has(&self, path: &str) -> bool {
        fs::symlink_metadata(self.0.path().join(path)).is_ok()
    }
}

fn level(path: &Path) -> Level {
    let place = HostDir::at(path).unwrap().unwrap();
    Level {
        entries: place.list().unwrap().unwrap(),
        place,
        solid: true,
        made: true,
        floor: 0,
    }
}

/// The copy is of what was listed, or there is none.
#[test]
fn a_directory_that_is_exchanged_while_it_is_walked_redirects_nothing() {
    let host = Host::new();
    host.make("opt/d", 0o755);
    host.make("opt/e", 0o755);
    host.put("opt/d/tool", 0o4755);
    host.put("secret", 0o600);
    symlink("../../secret", host.at("opt/e/tool")).unwrap();
    symlink("../../secret", host.at("opt/e/later")).unwrap();
    for mode in MODES {
        let rules = host.rules(mode, &[]);
        let opened = level(&host.at("opt/d"));
        let exchange = || {
            let (d, e) = (host.at("opt/d"), host.at("opt/e"));
            renameat_with(CWD, d, CWD, e, RenameFlags::EXCHANGE).unwrap();
        };
        exchange();
        let out = TempDir::new().unwrap();
        for name in [c"tool", c"later"] {
            let to = out.path().join(name.to_str().unwrap());
            set_id(&opened, name, &to, &rules, &mut u64::MAX.clone()).unwrap();
        }
        exchange();
        let copied = fs::read_to_string(out.path().join("tool")).unwrap();
        assert_eq!(copied, "opt/d/tool", "{mode:?}");
        assert!(!out.path().join("later").exists());
    }
}

#[test]
fn what_takes_the_place_of_a_setuid_program_is_checked_itself() {
    let host = Host::new();
    host.put("secret", 0o4755);
    host.put("opt/unreadable", 0o4750);
    host.put("opt/plain", 0o644);
    host.put("opt/writable", 0o4777);
    symlink("../secret", host.at("opt/link")).unwrap();
    let pipe = host.at("opt/pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    let rules = host.rules(SandboxMode::Root, &[]);
    let opened = level(&host.at("opt"));
    let out = TempDir::new().unwrap();
    let to = out.path().join("copy");
    let copy = |opened: &Level, name: &CStr, left: u64| {
        set_id(opened, name, &to, &rules, &mut left.clone()).unwrap();
        let made = fs::metadata(&to).ok();
        drop(fs::remove_file(&to));
        made.map(|meta| meta.mode() & 0o7777)
    };
    for name in [c"unreadable", c"plain", c"link", c"pipe", c"missing"] {
        assert_eq!(copy(&opened, name, u64::MAX), None, "{name:?}");
    }
    assert_eq!(copy(&opened, c"writable", u64::MAX), Some(0o4755));
    // Not more than there is room for, nor where others than root put files.
    assert_eq!(copy(&opened, c"writable", 3), None);
    let loose = Level {
        solid: false,
        ..opened
    };
    assert_eq!(copy(&loose, c"writable", u64::MAX), None);
}

/// A directory that replaced another one is checked by its own mode.
#[test]
fn no_name_of_a_closed_directory_is_mirrored() {
    let host = Host::new();
    host.make("opt/open", 0o755);
    host.make("closed/name", 0o755);
    host.chmod("closed", 0o700);
    let opt = HostDir::at(&host.at("opt")).unwrap().unwrap();
    fs::rename(host.at("opt/open"), host.at("opt/moved")).unwrap();
    symlink("../closed", host.at("opt/open")).unwrap();
    assert!(opt.dir(c"open", Mounts::Stay).unwrap().is_none());
    assert!(opt.dir(c"open", Mounts::Cross).unwrap().is_none());
    fs::remove_file(host.at("opt/open")).unwrap();
    fs::rename(host.at("closed"), host.at("opt/open")).unwrap();
    let layer = host.layer(SandboxMode::Root, &[]);
    assert!(layer.has("moved") && !layer.has("open/name"));
}

#[test]
fn set_id_is_only_taken_from_root() {
    let host = Host::new();
    for (dir, mode) in [("solid", 0o755), ("group", 0o775), ("group/below", 0o755)] {
        host.make(&format!("opt/{dir}"), mode);
        host.put(&format!("opt/{dir}/tool"), 0o4755);
    }
    for mode in MODES {
        let layer = host.layer(mode, &[]);
        assert!(layer.has("solid/tool"), "{mode:?}");
        assert!(layer.has("group/below") && !layer.has("group/tool"));
        assert!(!layer.has("group/below/tool"));
    }
    if !geteuid().is_root() {
        return;
    }
    chown(host.at("opt/solid/tool"), Some(OTHER_USER), None).unwrap();
    host.chmod("opt/solid/tool", 0o4755);
    for mode in MODES {
        assert!(!host.layer(mode, &[]).has("solid/tool"), "{mode:?}");
    }
    host.make("opt/foreign/below", 0o755);
    chown(host.at("opt/foreign"), Some(OTHER_USER), None).unwrap();
    let layer = host.layer(SandboxMode::Root, &[]);
    assert!(layer.has("solid") && !layer.has("foreign"));
}

/// As many levels as the kernel makes by descriptors, and no path leads to.
fn deep(top: &Path) {
    let name = "d".repeat(200);
    let mut dir = rustix::fs::open(top, OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..100 {
        mkdirat(&dir, name.as_str(), Mode::from_raw_mode(0o755)).unwrap();
        dir = openat(&dir, name.as_str(), OFlags::PATH, Mode::empty()).unwrap();
    }
}

#[test]
fn what_is_too_deep_is_left_out() {
    let host = Host::new();
    let modules = "usr/lib/node_modules";
    for dir in ["opt/deep", "opt/plain", "usr", "usr/lib", modules] {
        host.make(dir, 0o755);
    }
    host.put("usr/lib/node_modules/file", 0o644);
    deep(&host.at("opt/deep"));
    deep(&host.at(modules));
    for mode in MODES {
        let layer = host.layer(mode, &[]);
        assert!(layer.has("deep") && layer.has("plain"));
        let layer = TempDir::new().unwrap();
        let rules = host.rules(mode, &[]);
        skeleton(&host.at("usr"), layer.path(), &rules).unwrap();
        owned(&host.at("usr"), layer.path(), &BTreeSet::new(), &rules).unwrap();
        assert!(layer.path().join("lib/node_modules/file").is_file());
        crate::state::remove_tree::remove_tree(layer.path()).unwrap();
    }
    crate::state::remove_tree::remove_tree(host.dir.path()).unwrap();
}

/// A template that is made below `/opt` would otherwise have itself in it.
#[test]
fn our_own_state_and_workspaces_are_left_out() {
    let host = Host::new();
    for dir in ["opt/state/templates/new", "opt/ws/below", "opt/tool"] {
        host.make(dir, 0o755);
    }
    for mode in MODES {
        let layer = host.at("opt/state/templates/new");
        let rules = host.rules(mode, &["opt/state", "opt/ws"]);
        skeleton(&host.at("opt"), &layer, &rules).unwrap();
        assert!(layer.join("tool").is_dir());
        assert!(!layer.join("state").exists() && !layer.join("ws").exists());
        // A workspace can be all of it.
        assert!(!host.layer(mode, &["opt"]).has("tool"));
    }
}

/// A directory that is listed twice was renamed meanwhile, and may have been closed before.
#[test]
fn a_name_that_changes_its_kind_is_left_out() {
    let host = Host::new();
    host.make("opt/dir/below", 0o755);
    let layer = TempDir::new().unwrap();
    let rules = host.rules(SandboxMode::Root, &[]);
    hide(&layer.path().join("dir")).unwrap();
    skeleton(&host.at("opt"), layer.path(), &rules).unwrap();
    let kind = fs::symlink_metadata(layer.path().join("dir")).unwrap();
    assert!(!kind.is_dir());
    host.chmod("opt/dir", 0o700);
    skeleton(&host.at("opt"), layer.path(), &rules).unwrap();
}

#[test]
fn the_number_of_directories_has_a_bound() {
    let host = Host::new();
    for dir in ["opt/a", "opt/b", "opt/c"] {
        host.make(dir, 0o755);
    }
    let layer = TempDir::new().unwrap();
    let rules = host.rules(SandboxMode::Root, &[]);
    let opt = host.at("opt");
    let mut mirror = Mirror::new(&opt, layer.path(), &rules);
    mirror.left.dirs = 2;
    mirror
        .enter(HostDir::at(&opt).unwrap().unwrap(), true)
        .unwrap();
    mirror.run().unwrap();
    assert_eq!(fs::read_dir(layer.path()).unwrap().count(), 2);
}

#[test]
fn what_the_caller_keeps_from_others_is_told() {
    let host = Host::new();
    for (dir, mode) in [("home", 0o700), ("home/below", 0o755), ("tool", 0o755)] {
        host.make(&format!("opt/{dir}"), mode);
    }
    host.put("opt/tool/key", 0o600);
    host.put("opt/tool/run", 0o755);
    if geteuid().is_root() {
        for path in ["opt/home", "opt/tool", "opt/tool/key", "opt/tool/run"] {
            chown(host.at(path), Some(AGENT), None).unwrap();
        }
    }
    let private = |mode| {
        let layer = TempDir::new().unwrap();
        let rules = host.rules(mode, &[]);
        skeleton(&host.at("opt"), layer.path(), &rules).unwrap()
    };
    let expected = BTreeSet::from([host.at("opt/home"), host.at("opt/tool/key")]);
    assert_eq!(private(SandboxMode::Subordinate), expected);
    assert_eq!(private(SandboxMode::Root), BTreeSet::new());
    if geteuid().is_root() {
        for path in ["opt/home", "opt/tool/key"] {
            chown(host.at(path), Some(0), None).unwrap();
        }
        chown(host.at("opt/tool"), Some(0), None).unwrap();
    }
    assert_eq!(private(SandboxMode::Single), expected);
}

/// What is not mirrored any more is looked through for that.
#[test]
fn bounds_do_not_show_what_is_private() {
    let host = Host::new();
    host.make("opt/a/b/closed", 0o700);
    for dir in ["opt/a", "opt/a/b"] {
        host.chmod(dir, 0o755);
    }
    if geteuid().is_root() {
        chown(host.at("opt/a/b/closed"), Some(AGENT), None).unwrap();
    }
    let (layer, opt) = (TempDir::new().unwrap(), host.at("opt"));
    let rules = host.rules(SandboxMode::Subordinate, &[]);
    let mut mirror = Mirror::new(&opt, layer.path(), &rules);
    mirror.left.dirs = 1;
    let top = HostDir::at(&opt).unwrap().unwrap();
    mirror.enter(top, true).unwrap();
    let expected = BTreeSet::from([host.at("opt/a/b/closed")]);
    assert_eq!(mirror.run().unwrap(), expected);
    assert!(layer.path().join("a").is_dir() && !layer.path().join("a/b").exists());
}

/// What is private to the caller, as a template of this mode has it.
fn private(host: &Host, mode: SandboxMode) -> BTreeSet<PathBuf> {
    let layer = TempDir::new().unwrap();
    let found = skeleton(&host.at("opt"), layer.path(), &host.rules(mode, &[])).unwrap();
    crate::state::remove_tree::remove_tree(layer.path()).unwrap();
    found
}

#[test]
fn what_is_too_deep_is_not_shown_to_ids_of_the_callers() {
    let host = Host::new();
    host.make("opt/deep", 0o755);
    host.make("opt/plain", 0o755);
    let mut dir = rustix::fs::open(host.at("opt/deep"), OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..MOST_DEPTH {
        mkdirat(&dir, "d", Mode::from_raw_mode(0o755)).unwrap();
        dir = openat(&dir, "d", OFlags::PATH, Mode::empty()).unwrap();
    }
    if geteuid().is_root() {
        let all = (0..=MOST_DEPTH).map(|depth| format!("opt/deep{}", "/d".repeat(depth)));
        for path in all {
            chown(host.at(&path), Some(OVERFLOW_ID), None).unwrap();
        }
    }
    let cut = host.at(&format!("opt/deep{}", "/d".repeat(MOST_DEPTH - 1)));
    for mode in [SandboxMode::Subordinate, SandboxMode::Single] {
        assert_eq!(
            private(&host, mode),
            BTreeSet::from([cut.clone()]),
            "{mode:?}"
        );
    }
    assert_eq!(private(&host, SandboxMode::Root), BTreeSet::new());
}

/// A path that no call takes could not be hidden.
#[test]
fn of_what_is_too_deep_for_a_path_something_above_is_not_shown() {
    let host = Host::new();
    host.make("opt/deep", 0o755);
    deep(&host.at("opt/deep"));
    for mode in [SandboxMode::Subordinate, SandboxMode::Single] {
        let found = private(&host, mode);
        let [path] = Vec::from_iter(&found)[..] else {
            panic!("one path expected: {found:?}");
        };
        assert!(path.starts_with(host.at("opt/deep")) && path.is_dir());
    }
    crate::state::remove_tree::remove_tree(host.dir.path()).unwrap();
}

/// A rootless container's volume: every id but the one that stands for all others is the caller's.
#[test]
fn files_of_subordinate_ids_are_private() {
    if !geteuid().is_root() {
        return;
    }
    let host = Host::new();
    host.make("opt/volume", 0o700);
    host.make("opt/foreign", 0o700);
    host.put("opt/key", 0o600);
    for (path, id) in [
        ("opt/volume", 69),
        ("opt/key", OTHER_USER),
        ("opt/foreign", OVERFLOW_ID),
    ] {
        chown(host.at(path), Some(id), None).unwrap();
    }
    let found = private(&host, SandboxMode::Subordinate);
    assert!(found.contains(&host.at("opt/volume")) && found.contains(&host.at("opt/key")));
    assert!(!private(&host, SandboxMode::Single).contains(&host.at("opt/key")));
}

#[test]
fn what_can_be_entered_and_not_listed_may_hold_anything() {
    let host = Host::new();
    let layer = TempDir::new().unwrap();
    for (mode, reach, opens) in [
        (SandboxMode::Root, Reach::Entered, false),
        (SandboxMode::Subordinate, Reach::Entered, true),
        (SandboxMode::Subordinate, Reach::Closed, true),
        (SandboxMode::Subordinate, Reach::Listed, false),
        (SandboxMode::Single, Reach::Entered, true),
        (SandboxMode::Single, Reach::Closed, false),
    ] {
        let rules = host.rules(mode, &[]);
        assert_eq!(rules.opens_inside(reach), opens, "{mode:?} {reach:?}");
        let opt = host.at("opt");
        let mut mirror = Mirror::new(&opt, layer.path(), &rules);
        mirror.keep_unseen("unseen".into());
        assert_eq!(mirror.private.is_empty(), mode == SandboxMode::Root);
    }
}

/// A user who makes more names than are looked at hides their own, and what is beside it is looked through.
#[test]
fn what_was_not_looked_through_is_not_shown() {
    let host = Host::new();
    for dir in ["opt/flood", "opt/tool/bin"] {
        host.make(dir, 0o755);
    }
    for number in 0..100 {
        host.put(&format!("opt/flood/{number}"), 0o644);
    }
    host.put("opt/tool/bin/key", 0o600);
    let run = |mode, names| {
        let (layer, opt) = (TempDir::new().unwrap(), host.at("opt"));
        let rules = host.rules(mode, &[]);
        let mut mirror = Mirror::new(&opt, layer.path(), &rules);
        mirror.left.names = names;
        let top = HostDir::at(&opt).unwrap().unwrap();
        mirror.enter(top, true).unwrap();
        mirror.run().unwrap()
    };
    let (flood, key) = (host.at("opt/flood"), host.at("opt/tool/bin/key"));
    for mode in [SandboxMode::Subordinate, SandboxMode::Single] {
        assert_eq!(
            run(mode, 100),
            BTreeSet::from([flood.clone(), key.clone()]),
            "{mode:?}"
        );
        let tops = BTreeSet::from([flood.clone(), host.at("opt/tool")]);
        assert_eq!(run(mode, 0), tops);
    }
    assert_eq!(run(SandboxMode::Root, 0), BTreeSet::new());
}

#[test]
fn packages_are_copied_without_what_others_may_change_or_not_read() {
    let host = Host::new();
    let modules = "usr/lib/node_modules";
    for (dir, mode) in [("npm", 0o755), ("npm/closed", 0o700), ("ws", 0o755)] {
        host.make(&format!("{modules}/{dir}"), mode);
        host.put(&format!("{modules}/{dir}/file"), 0o644);
    }
    for dir in ["usr", "usr/lib", modules] {
        host.chmod(dir, 0o755);
    }
    host.put("secret", 0o644);
    symlink(host.at("secret"), host.at(modules).join("npm/link")).unwrap();
    let layer = TempDir::new().unwrap();
    let rules = host.rules(SandboxMode::Root, &["usr/lib/node_modules/ws"]);
    skeleton(&host.at("usr"), layer.path(), &rules).unwrap();
    owned(&host.at("usr"), layer.path(), &BTreeSet::new(), &rules).unwrap();
    let made = layer.path().join("lib/node_modules");
    assert!(made.join("npm/file").is_file() && made.join("npm/link").is_symlink());
    assert!(!made.join("npm/closed/file").exists() && !made.join("ws").exists());
}
