use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::fs::Mode;

use super::error::FREE_SPACE;
use super::ownership::{MARKER, MARKER_TEXT};
use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn state(path: &Path) -> StateDir {
    StateDir::locate(Path::new("/nowhere"), Some(path)).unwrap()
}

#[test]
fn another_products_directory_is_left_to_it() {
    let temp = tempfile::tempdir().unwrap();
    let home = temp.path();
    let usual = home.join(".docker/sandboxes");
    let root = |xdg: Option<&str>| {
        let xdg = xdg.map(|name| home.join(name));
        let found = StateDir::find(home, None, xdg.as_deref()).unwrap();
        found.root().strip_prefix(home).unwrap().to_owned()
    };
    assert_eq!(root(None), Path::new(".docker/sandboxes"));
    fs::create_dir_all(&usual).unwrap();
    assert_eq!(root(None), Path::new(".docker/sandboxes"), "empty");
    File::create(usual.join("theirs")).unwrap();
    assert_eq!(root(None), Path::new(".local/state/sbx"));
    assert_eq!(root(Some("x")), Path::new("x/sbx"));
    let relative = StateDir::find(home, None, Some(Path::new("relative"))).unwrap();
    assert_eq!(relative.root(), home.join(".local/state/sbx"));
    let given = home.join("given");
    let given = StateDir::find(home, Some(&given), None).unwrap();
    assert_eq!(given.root(), home.join("given"));
    // It stays the one in use when the other product is gone.
    StateDir::find(home, None, None).unwrap().claim().unwrap();
    fs::remove_file(usual.join("theirs")).unwrap();
    assert_eq!(root(None), Path::new(".local/state/sbx"));
    // One that was ours all along stays ours.
    StateDir::locate(home, None).unwrap().claim().unwrap();
    assert_eq!(root(None), Path::new(".docker/sandboxes"));
}

#[test]
fn sbx_home_is_stronger_than_home() {
    let home = Path::new("/home/u");
    let plain = StateDir::locate(home, None).unwrap();
    assert_eq!(plain.root(), Path::new("/home/u/.docker/sandboxes"));
    assert_eq!(
        plain.sandbox(&SandboxName::parse("ab").unwrap()).record(),
        Path::new("/home/u/.docker/sandboxes/vm/ab/sandbox.json")
    );
    assert_eq!(
        state(Path::new("/s")).socket(),
        Path::new("/s/sandboxd.sock")
    );
    assert!(matches!(
        StateDir::locate(home, Some(Path::new("relative"))),
        Err(StateError::Relative { .. })
    ));
}

#[test]
fn claiming_makes_private_directories() {
    let temp = tempfile::tempdir().unwrap();
    let state = state(&temp.path().join("a/b"));
    assert!(!state.is_claimed());
    assert_eq!(state.names().unwrap(), vec![]);
    assert!(!temp.path().join("a").exists(), "reading created something");
    state.claim().unwrap();
    state.claim().unwrap();
    assert!(state.is_claimed());
    assert_eq!(mode(state.root()), 0o700);
    assert_eq!(mode(&state.sandboxes()), 0o700);
    assert_eq!(mode(&state.root().join(MARKER)), 0o600);
}

#[test]
fn a_place_that_another_user_can_rename_is_refused_and_left_as_it_is() {
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let state = state(&temp.path().join("a/b"));
    for refused in [state.claim(), state.check_own()] {
        let error = refused.unwrap_err();
        assert!(matches!(&error, StateError::Renamable { above, .. } if above == temp.path()));
        assert!(error.hint().unwrap().contains("SBX_HOME"));
    }
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
}

#[test]
fn the_group_of_a_directory_above_is_not_taken_over() {
    if !rustix::process::geteuid().is_root() {
        return; // an ordinary user may be in one group only
    }
    let temp = tempfile::tempdir().unwrap();
    let own = rustix::process::getegid().as_raw();
    std::os::unix::fs::chown(temp.path(), None, Some(own + 1)).unwrap();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o3775)).unwrap();
    let state = state(&temp.path().join("state"));
    state.claim().unwrap();
    for dir in [
        state.root().to_owned(),
        state.sandboxes(),
        state.templates(),
    ] {
        let gid = fs::metadata(&dir).unwrap().gid();
        assert_eq!((gid, mode(&dir)), (own, 0o700), "{}", dir.display());
    }
}

#[test]
fn the_directory_of_another_product_is_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let theirs = temp.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    File::create(theirs.join("state.db")).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o755)).unwrap();
    let error = state(&theirs).claim().unwrap_err();
    assert!(matches!(error, StateError::Foreign { .. }));
    assert!(error.hint().unwrap().contains("SBX_HOME"));
    assert_eq!(mode(&theirs), 0o755);
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 1);
}

#[test]
fn settings_may_be_there_first() {
    let temp = tempfile::tempdir().unwrap();
    let settings = |dir: &str| temp.path().join(dir).join(SETTINGS);
    let place = |dir: &str| {
        fs::create_dir(temp.path().join(dir)).unwrap();
        state(&temp.path().join(dir))
    };
    let ours = place("ours");
    let write = |path: PathBuf, text: &[u8]| File::create(path).unwrap().write_all(text).unwrap();
    write(settings("ours"), b"{\"auto_stop_seconds\": 5}");
    assert!(ours.is_unused().unwrap());
    ours.claim().unwrap();
    assert!(ours.settings().unwrap().auto_stop.is_some());
    assert!(!ours.is_unused().unwrap());
    for text in ["[]", "[5]", ""] {
        write(settings("ours"), text.as_bytes());
        let refused = ours.settings().unwrap_err();
        assert!(matches!(refused, StateError::Settings { .. }), "{text}");
    }

    let linked = place("linked");
    std::os::unix::fs::symlink(settings("ours"), settings("linked")).unwrap();
    let directory = place("directory");
    fs::create_dir(settings("directory")).unwrap();
    let more = place("more");
    write(settings("more"), b"{}");
    write(temp.path().join("more/theirs"), b"");
    for theirs in [linked, directory, more] {
        let error = theirs.claim().unwrap_err();
        assert!(matches!(error, StateError::Foreign { .. }), "{error:?}");
    }
}

#[test]
fn what_a_removal_may_leave_is_used_again() {
    let temp = tempfile::tempdir().unwrap();
    let left = state(temp.path());
    for dir in [SANDBOXES, TEMPLATES] {
        fs::create_dir(temp.path().join(dir)).unwrap();
    }
    for file in [LOCK, LOG] {
        File::create(temp.path().join(file)).unwrap();
    }
    left.claim().unwrap();
    fs::remove_file(temp.path().join(MARKER)).unwrap();
    fs::create_dir(left.sandboxes().join("theirs")).unwrap();
    let error = left.claim().unwrap_err();
    assert!(matches!(error, StateError::Foreign { .. }), "{error:?}");
}

#[test]
fn a_state_directory_is_more_than_a_name() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    fs::create_dir(at(SANDBOXES)).unwrap();
    assert!(!is_state(temp.path()));
    File::create(at(MARKER)).unwrap();
    assert!(!is_state(temp.path()), "without the text");
    assert!(state(temp.path()).is_claimed(), "one claims it just now");
    fs::remove_file(at(MARKER)).unwrap();
    File::create(at("text"))
        .unwrap()
        .write_all(MARKER_TEXT)
        .unwrap();
    std::os::unix::fs::symlink("text", at(MARKER)).unwrap();
    assert!(!is_state(temp.path()), "a link");
    fs::remove_file(at(MARKER)).unwrap();
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, at(MARKER), mode).unwrap();
    assert!(!is_state(temp.path()), "a pipe without a writer");
    fs::remove_file(at(MARKER)).unwrap();
    fs::rename(at("text"), at(MARKER)).unwrap();
    assert!(is_state(temp.path()));
    fs::remove_dir(at(SANDBOXES)).unwrap();
    assert!(!is_state(temp.path()), "without sandboxes");
}

#[test]
fn a_full_disk_is_the_cause_however_deep() {
    let io = || io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
    let deep = io_error(Path::new("/state/file"), io());
    let unrelated = io_error(Path::new("/state/file"), io::ErrorKind::NotFound.into());
    assert_eq!(full_disk_hint(&io()), Some(FREE_SPACE));
    assert_eq!(full_disk_hint(&deep), Some(FREE_SPACE));
    assert_eq!(deep.hint(), Some(FREE_SPACE));
    assert_eq!(full_disk_hint(&unrelated), None);
}

#[test]
fn atomic_writes_replace_and_leave_nothing_behind() {
    let temp = tempfile::tempdir().unwrap();
    write_atomic(temp.path(), "f", b"one", Durability::Now).unwrap();
    write_atomic(temp.path(), "f", b"two", Durability::Soon).unwrap();
    assert_eq!(fs::read(temp.path().join("f")).unwrap(), b"two");
    assert_eq!(mode(&temp.path().join("f")), 0o600);
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
}
