//! Read-only mounts and what they cover.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::{attack, fingerprint};
use crate::ModeTest;
use crate::harness::{Mode, World};

pub(crate) const TESTS: &[ModeTest] = &[
    ("a_read_only_workspace_stays_read_only", read_only_directory),
    ("a_read_only_file_stays_read_only", read_only_file),
    ("device_nodes_and_the_content_of_dev", devices),
    ("mounts_inside_do_not_reach_the_host", propagation),
    (
        "a_descriptor_as_a_mount_point_allows_no_more_than_a_path",
        descriptors,
    ),
];

fn read_only_directory(world: &'static World) {
    let extra = world.workspace();
    world.write(&extra.join("file"), "untouched\n");
    let option = format!("{}:ro", extra.to_str().unwrap());
    let sandbox = world.sandbox_with("readonly", &[&option]);
    let before = (
        fingerprint(&extra.join("file")),
        fs::metadata(extra.join("file")).unwrap().mtime(),
    );
    for (user, how) in [
        ("root", "here"),
        ("agent", "here"),
        ("root", "nested"),
        ("agent", "nested"),
    ] {
        let settings = [("TARGET", extra.to_str().unwrap()), ("HOW", how)];
        let said = attack(&sandbox, user, include_str!("attack/mounts.py"), &settings);
        let worked: Vec<_> = said
            .results
            .iter()
            .filter(|(name, result)| *result == "ok" && !name.starts_with("control_"))
            .collect();
        assert!(
            worked.is_empty(),
            "as {user}, {how}: {worked:?}\n{}",
            said.all
        );
        // A nested root has no power over files of an id that it does not know: then that is said first.
        said.refused(&[
            ("write", &["EROFS", "EACCES"]),
            ("create", &["EROFS", "EACCES"]),
            ("set_id", &["EROFS", "EPERM"]),
        ]);
        if how == "here" {
            said.refused(&[("write", &["EROFS"]), ("create", &["EROFS"])]);
        }
        if how == "nested" || (user == "root" && world.mode != Mode::Single) {
            for name in ["control_remount", "control_tree", "control_umount"] {
                assert_eq!(said.result(name), "ok", "as {user}, {how}: {}", said.all);
            }
            assert_eq!(said.result("control_readonly"), "EROFS");
            said.refused(&[
                ("bind_remount", &["EPERM"]),
                ("remount", &["EPERM"]),
                ("copy_remount", &["EPERM"]),
                ("umount", &["EINVAL"]),
                ("move", &["EINVAL"]),
                ("setattr", &["EPERM"]),
                ("tree_setattr", &["EPERM"]),
                ("uncover_root", &["EINVAL"]),
            ]);
        }
    }
    let after = (
        fingerprint(&extra.join("file")),
        fs::metadata(extra.join("file")).unwrap().mtime(),
    );
    assert_eq!(before, after);
    assert_eq!(fs::read_dir(&extra).unwrap().count(), 1);
}

fn read_only_file(world: &'static World) {
    let dir = world.workspace();
    let file = dir.join("single");
    world.write(&file, "untouched\n");
    let option = format!("{}:ro", file.to_str().unwrap());
    let sandbox = world.sandbox_with("rofile", &[&option]);
    assert_eq!(
        sandbox.exec(["cat", file.to_str().unwrap()]).ok(),
        "untouched"
    );
    let path = file.to_str().unwrap();
    let tries = format!(
        "echo x >> '{path}' && echo BREACH; rm -f '{path}' && echo BREACH; mv '{path}' /tmp/ && echo BREACH; \
         umount '{path}' && echo BREACH; mount -o remount,bind,rw '{path}' && echo BREACH; ln '{path}' ./l && echo BREACH; \
         unshare -Urm sh -c \"umount '{path}' && echo BREACH; mount -o remount,bind,rw '{path}' && echo BREACH\"; true"
    );
    let before = fingerprint(&file);
    for user in ["root", "agent"] {
        let ran = sandbox.exec_with(&["-u", user], ["sh", "-c", &tries]);
        assert!(!ran.out.contains("BREACH"), "{ran:?}");
        assert!(ran.err.contains("Read-only file system"), "{ran:?}");
    }
    assert_eq!(before, fingerprint(&file));
}

fn devices(world: &'static World) {
    let sandbox = world.sandbox("devices");
    let seen = sandbox.root_sh("ls -A /dev").ok();
    let expected = [
        "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin",
        "stdout", "tty", "urandom", "zero",
    ];
    assert_eq!(seen.lines().collect::<Vec<_>>(), expected);
    let host = fs::metadata("/dev/null").unwrap();
    let program = "
makedev = os.makedev
places = [os.getcwd(), '/tmp', '/dev', '/dev/shm', '/root', '/var/tmp']
nodes = dict(mem=(stat.S_IFCHR, 1, 1), kmsg=(stat.S_IFCHR, 1, 11), null=(stat.S_IFCHR, 1, 3), console=(stat.S_IFCHR, 5, 1),
             disk=(stat.S_IFBLK, int(MAJOR), int(MINOR)), loop=(stat.S_IFBLK, 7, 0), fuse=(stat.S_IFCHR, 10, 229), kvm=(stat.S_IFCHR, 10, 232))
def tries(prefix):
    for place in places:
        for name, (kind, major, minor) in nodes.items():
            path = os.path.join(place, 'escape-' + prefix + name)
            def make():
                os.mknod(path, kind | 0o666, makedev(major, minor))
            def use():
                make()
                os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
            attempt(prefix + name + place.replace('/', '_'), use)
            attempt(prefix + 'setid_' + name + place.replace('/', '_'), lambda: os.mknod(path + 's', kind | 0o6666, makedev(major, minor)))
tries('plain_')
def inner():
    nested()
    os.makedirs('/tmp/escape-dev', exist_ok=True)
    mount('tmpfs', '/tmp/escape-dev', 'tmpfs', 0)
    places[:] = ['/tmp/escape-dev']
    tries('nested_')
    attempt('devtmpfs', lambda: mount('devtmpfs', '/tmp/escape-dev', 'devtmpfs', 0))
    attempt('ext4', lambda: mount('/dev/vda', '/tmp/escape-dev', 'ext4', 0))
in_child(inner)
for path in ('/dev/null', '/dev/zero', '/dev/tty', '/dev/random'):
    attempt('chmod' + path.replace('/', '_'), lambda: os.chmod(path, 0o600))
    attempt('chown' + path.replace('/', '_'), lambda: os.chown(path, 1000, 1000))
    attempt('unlink' + path.replace('/', '_'), lambda: os.unlink(path))
";
    // The disk that the host's root is on.
    let device = fs::metadata("/").unwrap().dev();
    let (major, minor) = (
        rustix::fs::major(device).to_string(),
        rustix::fs::minor(device).to_string(),
    );
    for user in ["root", "agent"] {
        let said = attack(
            &sandbox,
            user,
            program,
            &[("MAJOR", &major), ("MINOR", &minor)],
        );
        said.all_refused(50);
        assert_eq!(said.result("plain_mem_tmp"), "EPERM");
        assert_eq!(said.result("nested_mem_tmp_escape-dev"), "EPERM");
    }
    assert_eq!(fingerprint("/dev/null".as_ref()).mode, host.mode());
    assert_eq!(fs::read_dir(&sandbox.workspace).unwrap().count(), 0);
}

fn propagation(world: &'static World) {
    let sandbox = world.sandbox("propagate");
    let before = fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .lines()
        .count();
    let program = "
unshare(0) if real_root() else nested()
attempt('shared', lambda: mount(None, '/', None, MS_REC | (1 << 20)))
os.makedirs('on', exist_ok=True)
attempt('mounted', lambda: mount('tmpfs', 'on', 'tmpfs', 0))
attempt('file', lambda: open('on/inside', 'w').close())
";
    let said = attack(&sandbox, "root", program, &[]);
    assert_eq!(
        (said.result("mounted"), said.result("file")),
        ("ok", "ok"),
        "{}",
        said.all
    );
    assert_eq!(
        fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .lines()
            .count(),
        before
    );
    assert_eq!(
        fs::read_dir(sandbox.path("on")).unwrap().count(),
        0,
        "the mount is on the host"
    );
}

fn descriptors(world: &'static World) {
    let extra = world.workspace();
    let option = format!("{}:ro", extra.to_str().unwrap());
    let sandbox = world.sandbox_with("mountfd", &[&option]);
    for user in ["root", "agent"] {
        let settings = [("READONLY", extra.to_str().unwrap()), ("WHO", user)];
        let said = attack(
            &sandbox,
            user,
            include_str!("attack/mount_descriptors.py"),
            &settings,
        );
        let worked: Vec<_> = said
            .results
            .iter()
            .filter(|(name, result)| *result == "ok" && !name.starts_with("control_"))
            .collect();
        assert!(worked.is_empty(), "as {user}: {worked:?}\n{}", said.all);
        for name in [
            "self", "thread", "dev", "bind", "private", "masked", "devpts", "cover", "covered",
        ] {
            let control = said.result(&format!("control_{name}"));
            assert_eq!(control, "ok", "{name} as {user}: {}", said.all);
        }
        for name in ["self", "thread", "dev"] {
            assert_eq!(said.result(&format!("types_{name}")), "tmpfs");
        }
        assert_eq!(said.result("same_terminals"), "True", "{}", said.all);
        for name in ["workspace", "readonly", "pts", "proc"] {
            for kind in ["overlay", "cgroup2", "ext4"] {
                said.refused(&[
                    (&format!("{name}_{kind}_path"), &["EPERM"]),
                    (&format!("{name}_{kind}_fd"), &["EPERM"]),
                ]);
            }
        }
        said.refused(&[
            ("file_path", &["ENOTDIR"]),
            ("file_fd", &["ENOTDIR"]),
            ("elsewhere", &["EINVAL"]),
        ]);
        for number in 40..60 {
            said.refused(&[(&format!("missing_{number}"), &["EBADF"])]);
        }
    }
    for place in [&extra, &sandbox.workspace] {
        let left: Vec<_> = fs::read_dir(place).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
