//! Host files, keys and environment: reading and writing them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{attack, fingerprint, on_host};
use crate::ModeTest;
use crate::harness::{Mode, World, blocked};

pub(crate) const TESTS: &[ModeTest] = &[
    ("host_files_and_keys_cannot_be_read", host_files),
    ("shadow_of_the_host_is_not_the_one_inside", shadow),
    (
        "files_that_only_root_may_read_below_the_template_stay_unread",
        unreadable_system_files,
    ),
    ("the_callers_environment_is_not_inside", environment),
    ("proc_of_init_gives_nothing", proc_of_init),
    ("mountinfo_and_cmdline_hold_no_secret", mountinfo),
    ("writes_outside_the_workspace_stay_inside", writes_outside),
    (
        "hard_links_to_files_outside_the_workspace_are_refused",
        hard_links,
    ),
    ("devices_can_be_used_and_not_changed", devices),
];

const SECRET: &str = "sbx-escape-secret-3f1c";

/// A secret in every place where a user keeps one, readable by its owner at least.
fn plant(world: &World) -> Vec<PathBuf> {
    let mut planted = Vec::new();
    let mut put = |path: PathBuf| {
        let missing: Vec<_> = path
            .ancestors()
            .skip(1)
            .take_while(|dir| !dir.exists())
            .collect();
        for dir in missing.into_iter().rev() {
            world.make_dir(dir);
        }
        world.write(&path, SECRET);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        planted.push(path);
    };
    for name in [
        ".ssh/id_ed25519",
        ".aws/credentials",
        ".netrc",
        ".docker/config.json",
        ".config/gh/hosts.yml",
        "notes",
    ] {
        put(world.home().join(name));
    }
    put(world.home().join(format!("marker-{}", world.name("m"))));
    // Beside the workspaces, in the state directory, among the templates.
    put(world
        .home()
        .parent()
        .unwrap()
        .join("work")
        .join(world.name("beside")));
    put(world.state().join(world.name("state")));
    put(world.state().join("vm").join(world.name("vm")));
    put(world.state().join("templates").join(world.name("template")));
    planted
}

fn host_files(world: &'static World) {
    let sandbox = world.sandbox("files");
    let planted = plant(world);
    let marker = planted[6].file_name().unwrap().to_str().unwrap();
    let mut paths: Vec<_> = planted
        .iter()
        .map(|path| path.to_str().unwrap().to_owned())
        .collect();
    // The same by names that exist on the host only.
    paths.push(
        sandbox
            .world
            .state()
            .join("sandboxd.log")
            .to_str()
            .unwrap()
            .to_owned(),
    );
    let directories = [
        world.home(),
        world.state(),
        PathBuf::from("/root"),
        PathBuf::from("/home"),
    ]
    .map(|path| path.to_str().unwrap().to_owned())
    .join("\n");
    let paths = paths.join("\n");
    let settings = [
        ("PATHS", paths.as_str()),
        ("SECRET", SECRET),
        ("MARKER", marker),
        ("DIRECTORIES", &directories),
    ];
    let program = include_str!("attack/host_files.py");
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, program, &settings);
        assert_eq!(said.result("found"), "0", "as {user}:\n{}", said.all);
    }
    let control = on_host(world, program, &settings);
    assert!(
        control.all.matches("BREACH").count() >= planted.len(),
        "the probe finds nothing on the host:\n{}",
        control.all
    );
    for path in planted {
        fs::remove_file(path).unwrap();
    }
}

fn shadow(world: &'static World) {
    let sandbox = world.sandbox("shadow");
    let inside = sandbox
        .root_sh("cat /etc/shadow /etc/gshadow /etc/shadow- 2>/dev/null; true")
        .ok();
    let Ok(host) = fs::read_to_string("/etc/shadow") else {
        // An ordinary tester cannot read it, and so neither can the sandbox: there must be no hash inside.
        assert!(!inside.contains('$'), "{inside}");
        return blocked("only root knows the host's passwords");
    };
    for line in host.lines() {
        let (user, rest) = line.split_once(':').unwrap();
        let hash = rest.split(':').next().unwrap();
        assert!(
            hash.len() < 8 || !inside.contains(hash),
            "the hash of `{user}` is inside"
        );
    }
    let users: Vec<_> = inside
        .lines()
        .filter_map(|line| line.split(':').next())
        .collect();
    assert!(
        !users.contains(&"sbxsub") && !users.contains(&"sbxone"),
        "{users:?}"
    );
    // The users of the host are not inside either.
    let passwd = sandbox.sh("cat /etc/passwd").ok();
    assert!(
        !passwd.contains("sbxsub") && passwd.contains("agent:x:1000:"),
        "{passwd}"
    );
}

/// Of an allow-listed tree only what the caller (root: what everybody) may read. Also what is added while the
/// sandbox runs: its lowest layer is the live host.
fn unreadable_system_files(world: &'static World) {
    if !rustix::process::geteuid().is_root() {
        return blocked("only root can put a file into a system directory");
    }
    let dir = tempfile::Builder::new()
        .prefix("sbx-escape-")
        .tempdir_in("/usr/local/share")
        .unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let put = |name: &str, mode: u32| {
        let path = dir.path().join(name);
        let mut file = fs::File::create(&path).unwrap();
        std::io::Write::write_all(&mut file, SECRET.as_bytes()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let before = [
        put("open", 0o644),
        put("private", 0o600),
        put("group", 0o640),
    ];
    let sandbox = world.sandbox("usr");
    let after = [put("late-private", 0o600), put("late-group", 0o640)];
    fs::create_dir(dir.path().join("closed")).unwrap();
    let closed = put("closed/file", 0o644);
    fs::set_permissions(dir.path().join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    let read = |path: &Path| {
        let shown = path.to_str().unwrap();
        let tries = format!(
            "cat '{shown}'; cp '{shown}' /tmp/c && cat /tmp/c; chmod 777 '{shown}' && cat '{shown}'; chown root '{shown}' && cat '{shown}'; mv '{shown}' /tmp/m && cat /tmp/m; true"
        );
        sandbox.root_sh(&tries)
    };
    for path in before[1..].iter().chain(&after).chain([&closed]) {
        let seen = read(path);
        assert!(
            !seen.out.contains(SECRET),
            "root inside reads `{}`",
            path.display()
        );
        assert_eq!(
            fs::read_to_string(path).unwrap(),
            SECRET,
            "the host's file has changed"
        );
    }
    // The probe itself works.
    assert!(read(&before[0]).out.contains(SECRET));
    assert_eq!(fs::metadata(&before[0]).unwrap().mode() & 0o7777, 0o644);
}

fn environment(world: &'static World) {
    let name = world.name("env");
    let workspace = world.workspace();
    let mut create = world.sbx([
        "create",
        "--name",
        &name,
        "shell",
        workspace.to_str().unwrap(),
    ]);
    create
        .env("SBX_ESCAPE_TOKEN", SECRET)
        .env("AWS_SECRET_ACCESS_KEY", SECRET);
    assert!(create.output().unwrap().status.success());
    let look = "cat /proc/*/environ /proc/*/task/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; env; true";
    for user in ["root", "agent"] {
        let mut exec = world.sbx(["exec", "-u", user, &name, "sh", "-c", look]);
        exec.env("SBX_ESCAPE_TOKEN", SECRET)
            .env("AWS_SECRET_ACCESS_KEY", SECRET);
        let seen = super::ran(&exec.output().unwrap()).ok();
        assert!(seen.contains("PATH="), "nothing was seen: {seen}");
        assert!(!seen.contains(SECRET), "{seen}");
    }
    world.run(["rm", "--force", &name]).ok();
}

fn proc_of_init(world: &'static World) {
    let sandbox = world.sandbox("init-proc");
    let errors: &[&str] = &["EACCES", "EPERM"];
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, include_str!("attack/init_proc.py"), &[]);
        said.all_refused(25);
        for name in [
            "root",
            "cwd",
            "exe",
            "enter_root",
            "enter_cwd",
            "list_fd",
            "write_mem",
            "ns_user",
            "ns_mnt",
            "ns_pid",
        ] {
            said.refused(&[(name, errors)]);
        }
        // The file may be opened by some kernels' rules; then it is empty.
        said.refused(&[("read_environ", &["EACCES", "EPERM", "ENODATA"])]);
    }
}

fn mountinfo(world: &'static World) {
    let sandbox = world.sandbox("mountinfo");
    let seen = sandbox.root_sh("cat /proc/*/mountinfo /proc/*/mounts /proc/*/cmdline /proc/mounts /proc/*/cgroup; true").ok();
    assert!(
        seen.contains("overlay") && seen.contains("sbx-init"),
        "{seen}"
    );
    // A mount's source may be named, which is a path; what lies beside it may not.
    let beside = world.sandbox("mountinfo-other");
    assert!(
        !seen.contains(beside.name.as_str()) && !seen.contains("sandboxd.sock"),
        "{seen}"
    );
}

fn writes_outside(world: &'static World) {
    let sandbox = world.sandbox("write");
    let paths = [
        "/etc/hostname",
        "/etc/hosts",
        "/etc/passwd",
        "/usr/bin/env",
        "/usr/lib/os-release",
        "/bin/sh",
    ];
    let before: Vec<_> = paths
        .iter()
        .map(|path| fingerprint(&fs::canonicalize(path).unwrap()))
        .collect();
    let mark = format!("sbx-escape-{}-{}", std::process::id(), world.name("w"));
    let home = world.home();
    let beside = sandbox.workspace.parent().unwrap();
    let directories = [
        "/etc",
        "/usr/bin",
        "/usr/local/bin",
        "/opt",
        "/root",
        "/home",
        "/var/tmp",
        "/tmp",
        "/run",
        "/srv",
        "/mnt",
        "/boot",
        "/",
    ]
    .map(PathBuf::from)
    .into_iter()
    .chain([home.clone(), beside.to_path_buf(), world.state()])
    .collect::<Vec<_>>();
    let listed: Vec<_> = directories
        .iter()
        .map(|dir| dir.to_str().unwrap())
        .collect();
    let settings = [
        ("PATHS", &*paths.join("\n")),
        ("DIRECTORIES", &*listed.join("\n")),
        ("MARK", &*mark),
    ];
    let said = attack(
        &sandbox,
        "root",
        include_str!("attack/write_outside.py"),
        &settings,
    );
    assert!(
        said.all.contains("made /tmp"),
        "nothing can be written at all:\n{}",
        said.all
    );
    if world.mode != Mode::Single {
        assert!(
            said.all.contains("made /usr/bin\n") && said.all.contains("made /etc\n"),
            "{}",
            said.all
        );
    }
    let after: Vec<_> = paths
        .iter()
        .map(|path| fingerprint(&fs::canonicalize(path).unwrap()))
        .collect();
    assert_eq!(before, after);
    for dir in directories {
        assert!(
            fs::symlink_metadata(dir.join(&mark)).is_err(),
            "`{}` has the mark",
            dir.display()
        );
    }
}

fn hard_links(world: &'static World) {
    let extra = world.workspace();
    world.write(&extra.join("file"), "read only\n");
    let other = format!("{}:ro", extra.to_str().unwrap());
    let sandbox = world.sandbox_with("links", &[&other]);
    let source = extra.join("file");
    let program = "
import itertools
source, target = SOURCE, 'linked'
attempt('link', lambda: os.link(source, target))
fd = os.open(source, os.O_RDONLY)
attempt('proc', lambda: call('linkat', AT_FDCWD, '/proc/self/fd/%d' % fd, AT_FDCWD, target, 0x400))
attempt('empty', lambda: call('linkat', fd, b'', AT_FDCWD, target, 0x1000))
attempt('rename', lambda: os.rename(source, target))
attempt('system', lambda: os.link('/usr/bin/env', target))
";
    let said = attack(
        &sandbox,
        "root",
        program,
        &[("SOURCE", source.to_str().unwrap())],
    );
    said.all_refused(5);
    said.refused(&[
        ("link", &["EXDEV"]),
        ("rename", &["EXDEV", "EROFS"]),
        ("system", &["EXDEV"]),
    ]);
    assert_eq!(fs::metadata(&source).unwrap().nlink(), 1);
}

fn devices(world: &'static World) {
    let sandbox = world.sandbox("devices");
    let names = ["full", "null", "random", "tty", "urandom", "zero"];
    let times = || {
        names.map(|name| {
            let meta = fs::metadata(Path::new("/dev").join(name)).unwrap();
            (meta.mode(), meta.uid(), meta.ctime(), meta.ctime_nsec())
        })
    };
    for user in ["agent", "root"] {
        let sh = |script: &str| sandbox.exec_with(&["-u", user], ["sh", "-c", script]);
        let before = times();
        for name in names {
            for change in ["touch -c", "touch -a", "touch -d @1", "chmod 600"] {
                sh(&format!("{change} /dev/{name}")).refused();
            }
        }
        // What must not be read in proc is covered by one of them.
        for masked in ["interrupts", "keys", "timer_list"] {
            for change in ["touch", "chmod 600"] {
                sh(&format!("{change} /proc/{masked}")).refused();
            }
        }
        // Other programs that use them change their atime, not their mtime or ctime.
        assert_eq!(times(), before, "{user}");
        sh("echo x > /dev/null; echo x >> /dev/zero; echo x > /dev/urandom; head -c 9 /dev/zero | wc -c; head -c 9 /dev/urandom | wc -c").ok();
        let full = sh("cat /etc/hostname > /dev/full").refused();
        assert!(full.err.contains("No space left"), "{full:?}");
    }
    let tty = ["-u", "agent"];
    let script = "import os, pty; pid, fd = pty.fork()\nif pid == 0: open('/dev/tty', 'w').write('on the terminal'); os._exit(0)\nprint(os.read(fd, 99).decode())";
    let said = sandbox.exec_with(&tty, ["python3", "-c", script]).ok();
    assert_eq!(said, "on the terminal");
}
