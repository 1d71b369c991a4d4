//! What of the host is visible, and what is recorded of it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::{bash, blocked, has_real_root, host_has};
use crate::ModeTest;
use crate::harness::{Sandbox, World, tester_is_root};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "nothing_of_the_hosts_private_directories_is_visible",
        private_directories,
    ),
    (
        "closed_files_of_system_directories_stay_closed",
        closed_files,
    ),
    ("a_changed_host_is_reported_at_start", changed_host),
];

fn private_directories(world: &'static World) {
    let sandbox = world.sandbox("private");
    let root = |script: &str| bash(&sandbox, "root", script).ok();
    assert_eq!(
        root("find /srv /mnt /media /boot /old_root /lost+found -mindepth 1 2>/dev/null || true"),
        ""
    );
    assert_eq!(root("ls /home"), "agent");
    // Only what a new account gets.
    let skeleton = root("ls -A /etc/skel");
    assert_eq!(root("ls -A /root"), skeleton);
    for gone in [
        "/etc/ssh",
        "/etc/sudoers",
        "/etc/ssl/private",
        "/etc/krb5.keytab",
        "/etc/cloud",
        "/etc/apt/auth.conf",
        "/etc/NetworkManager",
        "/etc/docker",
        "/etc/kubernetes",
        "/etc/letsencrypt",
        "/etc/crontab",
        "/var/log/syslog",
        "/var/lib/docker",
        "/var/lib/cloud",
        "/run/docker.sock",
        "/run/systemd",
    ] {
        assert_eq!(
            root(&format!("ls -d {gone} 2>/dev/null || true")),
            "",
            "{gone}"
        );
    }
    // The agent's own rule, where there is a root to become, and no other rule.
    let rules = root("ls -A /etc/sudoers.d 2>/dev/null || true");
    let own = if has_real_root(world) {
        "sbx-agent"
    } else {
        ""
    };
    assert_eq!(rules, own);
    // Accounts without a password, and no human of the host.
    assert_eq!(root("cut -d: -f2 /etc/shadow /etc/gshadow | sort -u"), "*");
    assert_eq!(
        root("awk -F: '$3 >= 1000 && $3 < 65534 { print $1 }' /etc/passwd /etc/group | sort -u"),
        "agent"
    );
    // No socket of the host.
    assert_eq!(root("find / /run /dev /tmp -xdev -type s"), "");
    if tester_is_root() {
        let shadow = fs::read_to_string("/etc/shadow").unwrap_or_default();
        let hashes = shadow
            .lines()
            .filter_map(|line| line.split(':').nth(1))
            .filter(|hash| hash.len() > 12);
        let inside = root("cat /etc/shadow /etc/passwd");
        assert!(hashes.into_iter().all(|hash| !inside.contains(hash)));
    } else {
        blocked("only root knows the host's passwords");
    }
}

/// In a directory whose changes do not make another version of the host: sandboxes of other tests start
/// at the same time.
const SYSTEM_DIR: &str = "/usr/share/doc";

fn closed_files(world: &'static World) {
    if !tester_is_root() || !Path::new(SYSTEM_DIR).is_dir() {
        return blocked("a file in a system directory needs root");
    }
    let dir = tempfile::Builder::new()
        .prefix("sbx-test-")
        .tempdir_in(SYSTEM_DIR)
        .unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let put = |name: &str, mode: u32| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy("/etc/hostname", &path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    };
    let close = |name: &str| {
        fs::set_permissions(dir.path().join(name), Permissions::from_mode(0o700)).unwrap()
    };
    put("open", 0o644);
    put("closed-before", 0o600);
    put("group-before", 0o640);
    put("set-id-before", 0o4750);
    put("dir-before/file", 0o644);
    close("dir-before");
    put("closed-later", 0o644);
    put("dir-later/file", 0o644);
    // A world of its own: its template is made now.
    let fresh = World::with_own_template(world.mode);
    let sandbox = fresh.sandbox("closed");
    let read = |user: &str, name: &str| {
        sandbox.exec_with(&["-u", user], [Path::new("cat"), &dir.path().join(name)])
    };
    read("root", "open").ok();
    read("root", "closed-later").ok();
    read("root", "dir-later/file").ok();
    put("closed-after", 0o600);
    put("dir-after/file", 0o644);
    close("dir-after");
    close("closed-later");
    // What was read before may be remembered until the next start; what is new must not be found.
    put("dir-later/new", 0o644);
    close("dir-later");
    for round in 0..2 {
        for user in ["agent", "root"] {
            read(user, "open").ok();
            let remembered = ["dir-later/new", "dir-later/file"][round];
            for name in [
                "closed-before",
                "group-before",
                "set-id-before",
                "dir-before/file",
                "closed-later",
                "dir-later/new",
                remembered,
                "closed-after",
                "dir-after/file",
            ] {
                let ran = read(user, name).refused();
                assert_eq!(ran.out, "", "{user} {name}");
            }
        }
        stays_closed(&sandbox, dir.path());
        fresh.run(["stop", &sandbox.name]).ok();
    }
    if has_real_root(world) && host_has("dpkg-deb") {
        is_replaced(&sandbox, dir.path());
    }
}

/// Nor is it read by changing it first.
fn stays_closed(sandbox: &Sandbox<'_>, dir: &Path) {
    for change in [
        "chmod 644",
        "chown root",
        "cp -f --remove-destination -t /tmp",
        "mv -t /tmp",
        "ln -t /tmp",
    ] {
        let script = format!(
            "{change} {}/closed-before || true; cat {0}/closed-before /tmp/closed-before",
            dir.display()
        );
        let ran = bash(sandbox, "root", &script).refused();
        assert_eq!(ran.out, "", "{change}");
    }
}

/// None of it is in the way of a package that brings its own.
fn is_replaced(sandbox: &Sandbox<'_>, dir: &Path) {
    let build = "mkdir -p p/DEBIAN p$DIR/dir-before; for f in $FILES; do echo own >p$DIR/$f; done; \
        printf 'Package: sbx-own\\nVersion: 1\\nArchitecture: all\\nMaintainer: t <t@x>\\nDescription: t\\n' >p/DEBIAN/control; \
        chmod -R go=rX p; dpkg-deb --root-owner-group -b p p.deb; dpkg -i p.deb; cd $DIR; cat $FILES; dpkg -V sbx-own";
    let files = "closed-before set-id-before dir-before/file";
    let script = format!("cd /tmp; DIR={}; FILES='{files}'; {build}", dir.display());
    let shown = bash(sandbox, "root", &script).ok();
    assert!(shown.ends_with("own\nown\nown"), "{shown}");
    for file in files.split(' ') {
        let text = fs::read_to_string(dir.join(file)).unwrap();
        assert_ne!(text, "own\n");
    }
}

fn changed_host(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("changed");
    let warning = "the host's files changed since this sandbox was created";
    assert!(!sandbox.exec(["true"]).err.contains(warning));
    world.run(["daemon", "stop"]).ok();
    let path = world
        .state()
        .join("vm")
        .join(&sandbox.name)
        .join("sandbox.json");
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(
        record["template"]["fingerprint"].as_str().unwrap().len(),
        16
    );
    record["template"]["fingerprint"] = "0123456789abcdef".into();
    world.write(&path, record.to_string());
    let ran = sandbox.exec(["echo", "works"]);
    assert!(
        ran.err.contains(warning) && ran.err.contains("hint: `sbx rm` it and create it again"),
        "{}",
        ran.err
    );
    assert_eq!(ran.ok(), "works");
    let shown = world.inspect(&sandbox.name);
    assert!(shown.to_string().contains(warning), "{shown}");
    // A second start says it again, and does not list it twice.
    world.run(["stop", &sandbox.name]).ok();
    assert!(sandbox.exec(["true"]).err.contains(warning));
    assert_eq!(
        world
            .inspect(&sandbox.name)
            .to_string()
            .matches(warning)
            .count(),
        1
    );
}
