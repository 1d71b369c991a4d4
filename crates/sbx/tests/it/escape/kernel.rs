//! The machine below the sandbox: modules, kernel settings, control groups, keys, handles and the like.

use std::fs;

use super::attack;
use crate::ModeTest;
use crate::harness::{Mode, World, blocked};

pub(crate) const TESTS: &[ModeTest] = &[
    ("calls_about_the_machine_are_refused", calls),
    ("kernel_settings_of_the_host_cannot_be_changed", proc_sys),
    ("control_groups_cannot_be_reached", cgroups),
    (
        "a_nested_user_namespace_gains_nothing_over_the_sandbox",
        nested,
    ),
    ("host_directories_cannot_be_watched", watching),
    ("devices_cannot_be_watched", devices),
    ("the_priority_of_init_stays", priority),
    ("keys_of_the_caller_cannot_be_listed", keys),
];

fn calls(world: &'static World) {
    let sandbox = world.sandbox("kernel");
    let name = fs::read_link("/proc/self/ns/mnt").unwrap();
    let number: String = name
        .to_str()
        .unwrap()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    for user in ["root", "agent"] {
        let said = attack(
            &sandbox,
            user,
            include_str!("attack/kernel.py"),
            &[("MNT_NS", &number)],
        );
        said.all_refused(150);
        for prefix in ["", "nested_"] {
            for name in [
                "init_module",
                "finit_module",
                "kexec_load",
                "reboot",
                "syslog",
                "bpf",
                "perf",
                "userfaultfd",
                "handle_1_2_",
                "handle_real",
                "clock_settime",
            ] {
                said.refused(&[(&format!("{prefix}{name}"), &["EPERM"])]);
            }
            // As if the kernel had none of them.
            for name in [
                "add_key",
                "request_key",
                "keyctl_0",
                "keyctl_11",
                "unknown_470",
                "unknown_512",
            ] {
                said.refused(&[(&format!("{prefix}{name}"), &["ENOSYS"])]);
            }
        }
    }
}

fn proc_sys(world: &'static World) {
    let watched = ["core_pattern", "modprobe", "sysrq", "hostname", "pid_max"]
        .map(|name| format!("/proc/sys/kernel/{name}"));
    let read = || {
        watched
            .iter()
            .map(|path| fs::read_to_string(path).unwrap_or_default())
            .collect::<Vec<_>>()
    };
    let before = read();
    let sandbox = world.sandbox("procsys");
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, include_str!("attack/proc_sys.py"), &[]);
        let tried: usize = said.result("tried").parse().unwrap();
        assert!(tried > 300, "only {tried} files were tried");
        // What belongs to a namespace of the sandbox's own may be changed there.
        let own = [
            "net/",
            "fs/mqueue/",
            "user/max_",
            "kernel/msg",
            "kernel/shm",
            "kernel/sem",
            "kernel/auto_msgmni",
            "kernel/hostname",
            "kernel/domainname",
            "kernel/pid_max",
            "kernel/ns_last_pid",
        ];
        let opened: Vec<_> = said
            .all
            .lines()
            .filter_map(|line| line.strip_prefix("opened "))
            .collect();
        let others: Vec<_> = opened
            .iter()
            .filter(|name| !own.iter().any(|known| name.starts_with(known)))
            .collect();
        assert!(
            others.is_empty(),
            "as {user} these can be opened for writing: {others:?}"
        );
        let worked: Vec<_> = said
            .results
            .iter()
            .filter(|(name, result)| *result == "ok" && *name != "opened")
            .collect();
        assert!(worked.is_empty(), "as {user}: {worked:?}");
        said.refused(&[("write_sys_kernel_core_pattern", &["EACCES", "EPERM"])]);
        // A kernel without modules has no such file.
        said.refused(&[("write_sys_kernel_modprobe", &["EACCES", "EPERM", "ENOENT"])]);
        if user == "root" && world.mode != Mode::Single {
            assert!(
                opened.iter().any(|name| name.starts_with("net/")),
                "the probe opens nothing at all: {}",
                said.all
            );
            said.refused(&[("hidden_write_sysrq-trigger", &["EACCES", "EPERM", "ENOENT"])]);
        }
    }
    assert_eq!(before, read());
}

fn cgroups(world: &'static World) {
    let sandbox = world.sandbox("cgroup");
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, include_str!("attack/cgroups.py"), &[]);
        said.all_refused(100);
        said.refused(&[
            ("mount_cgroup2__0", &["EPERM"]),
            ("nested_mount_cgroup__0", &["EPERM"]),
            ("nested_fsopen_cgroup2", &["EPERM"]),
        ]);
    }
}

fn nested(world: &'static World) {
    let sandbox = world.sandbox("nested");
    sandbox.root_sh("touch /root/private; chmod 600 /root/private; ip link add x type dummy 2>/dev/null; true").ok();
    let program = "
before = {name: os.readlink('/proc/self/ns/' + name) for name in ('net', 'uts', 'ipc', 'pid')}
def inner():
    nested()
    print('capabilities', [line.split()[1] for line in open('/proc/self/status') if line.startswith('CapEff')][0])
    attempt('hostname', lambda: socket.sethostname('breach'))
    attempt('setns_net', lambda: call('setns', os.open('/proc/self/ns/net', os.O_RDONLY), 0))
    attempt('raw', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    attempt('chown', lambda: os.chown('/usr/bin/env', 0, 0))
    attempt('private', lambda: open('/root/private').read())
    attempt('low_port', lambda: socket.socket().bind(('127.0.0.1', 80)) if int(open('/proc/sys/net/ipv4/ip_unprivileged_port_start').read()) > 80 else (_ for _ in ()).throw(OSError(errno.EACCES, 'open to all')))
    attempt('umount_proc', lambda: call('umount2', '/proc', MNT_DETACH))
    attempt('trace_init', lambda: call('ptrace', 0x4206, 1, 0, 0))
    attempt('kill_init', lambda: os.kill(1, 0) if ROOT == 'other' else (_ for _ in ()).throw(OSError(errno.EPERM, 'same user')))
    os.makedirs('/tmp/escape-np', exist_ok=True)
in_child(inner)
";
    // With one id init has the same user; then a signal is allowed, and nothing happens.
    let other = if world.mode == Mode::Single {
        "same"
    } else {
        "other"
    };
    for (user, root) in [("agent", other), ("root", "same")] {
        // Root's own files are root's in a nested namespace too.
        let text: String = program
            .lines()
            .filter(|line| {
                user == "agent" && world.mode != Mode::Single || !line.contains("private")
            })
            .map(|line| format!("{line}\n"))
            .collect();
        let said = attack(&sandbox, user, &text, &[("ROOT", root)]);
        said.all_refused(7);
        assert!(
            said.result("capabilities").contains("ff"),
            "the nested root has no capabilities: {}",
            said.all
        );
        if user == "agent" {
            said.refused(&[("hostname", &["EPERM"]), ("raw", &["EPERM"])]);
        }
    }
    assert_eq!(sandbox.exec(["hostname"]).ok(), sandbox.name);
}

/// Marks can be put only on what can be seen; a new file beside the workspace is no event inside.
fn watching(world: &'static World) {
    let sandbox = world.sandbox("watch");
    let beside = sandbox
        .workspace
        .parent()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let home = world.home().to_str().unwrap().to_owned();
    let program = "
import select
ready = os.path.join(os.getcwd(), 'ready')
inotify = libc.inotify_init1(os.O_NONBLOCK)
watched = 0
for path in PATHS.split('\\n'):
    if libc.inotify_add_watch(inotify, path.encode(), 0xfff) >= 0:
        watched += 1
print('watched', watched)
open(ready, 'w').close()
poll = select.poll()
poll.register(inotify, select.POLLIN)
names = b''
deadline = time.monotonic() + 30
while not os.path.exists('go') and time.monotonic() < deadline:
    pass
while poll.poll(0):
    names += os.read(inotify, 65536)
print('seen', b'beside-' in names or b'athome-' in names)
";
    let paths = [beside.as_str(), &home, "/root", "/home", "/"].join("\n");
    let child = world
        .sbx([
            "exec",
            "-i",
            "-u",
            "root",
            &sandbox.name,
            super::PYTHON,
            "-",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let text = super::script(program, &[("PATHS", &paths)]);
    let waiting = std::thread::spawn(move || super::Said::from(super::finish(child, &text)));
    while !sandbox.path("ready").exists() {
        assert!(
            !waiting.is_finished(),
            "it ended early: {:?}",
            waiting.join()
        );
        std::thread::yield_now();
    }
    let files = [
        world.home().join(world.name("athome")),
        sandbox
            .workspace
            .parent()
            .unwrap()
            .join(world.name("beside")),
    ];
    for file in &files {
        world.write(file, "");
    }
    world.write(&sandbox.path("go"), "");
    let said = waiting.join().unwrap();
    assert_eq!(said.result("seen"), "False", "{}", said.all);
    for file in files {
        fs::remove_file(file).unwrap();
    }
}

/// The nodes are the host's: a watch would tell of every use of them, on the host too.
fn devices(world: &'static World) {
    let sandbox = world.sandbox("watched");
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, include_str!("attack/watch.py"), &[]);
        let worked: Vec<_> = said
            .results
            .iter()
            .filter(|(name, result)| *result == "ok" && !name.starts_with("control_"))
            .collect();
        assert!(worked.is_empty(), "as {user}: {worked:?}");
        for name in [
            "null",
            "tty",
            "access",
            "by_descriptor",
            "by_place",
            "by_link",
        ] {
            said.refused(&[(name, &["EPERM"])]);
        }
        said.refused(&[
            ("bound", &["EPERM"]),
            ("relative", &["EPERM"]),
            ("fanotify", &["EPERM"]),
            ("missing", &["ENOENT"]),
            ("bad_descriptor", &["EBADF"]),
            ("no_inotify", &["EINVAL"]),
        ]);
        for name in ["directory", "only", "file", "link", "dev"] {
            assert_eq!(
                said.result(&format!("control_{name}")),
                "ok",
                "{}",
                said.all
            );
        }
        assert_eq!(said.result("event"), "True", "as {user}: {}", said.all);
    }
}

/// Root inside has init's uid, which is all that the kernel asks for.
fn priority(world: &'static World) {
    let sandbox = world.sandbox("priority");
    // The caller's own: the tests may run with another than the usual one.
    let before = scheduling(world.init_pid(&sandbox.name));
    let program = "
SCHED_IDLE, IDLE_CLASS = 5, 3 << 13
attributes = struct.pack('IIQiIQQQ', 48, SCHED_IDLE, 0, 0, 0, 0, 0, 0)
for name, pid in (('init_', 1), ('control_', os.getpid())):
    attempt(name + 'affinity', lambda: os.sched_setaffinity(pid, os.sched_getaffinity(0)))
    attempt(name + 'nice', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    attempt(name + 'io', lambda: call(251, 1, pid, IDLE_CLASS))
    attempt(name + 'attributes', lambda: call(314, pid, attributes, 0))
    attempt(name + 'scheduler', lambda: os.sched_setscheduler(pid, SCHED_IDLE, os.sched_param(0)))
    attempt(name + 'parameters', lambda: os.sched_setparam(pid, os.sched_param(0)))
for who in (0, 1000):
    attempt('user_nice_%d' % who, lambda: os.setpriority(os.PRIO_USER, who, 19))
    attempt('user_io_%d' % who, lambda: call(251, 3, who, IDLE_CLASS))
";
    let ways = [
        "affinity",
        "nice",
        "io",
        "attributes",
        "scheduler",
        "parameters",
    ];
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, program, &[]);
        for way in ways {
            said.refused(&[(&format!("init_{way}"), &["EPERM"])]);
            let control = said.result(&format!("control_{way}"));
            assert_eq!(control, "ok", "{way} as {user}: {}", said.all);
        }
        for name in ["user_nice_0", "user_io_0", "user_nice_1000", "user_io_1000"] {
            said.refused(&[(name, &["EPERM"])]);
        }
    }
    assert_eq!(scheduling(world.init_pid(&sandbox.name)), before);
}

/// Nice value and policy, the 19th and 41st field.
fn scheduling(pid: i32) -> (String, String) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let fields: Vec<_> = after_name.split_whitespace().collect();
    (fields[16].to_owned(), fields[38].to_owned())
}

/// No call about keys works inside; a proc file lists them too, also one that was mounted inside.
fn keys(world: &'static World) {
    let sandbox = world.sandbox("keys");
    let name = world.name("sbx-escape-key");
    let hold = "
call('add_key', b'user', NAME.encode(), b'payload', 7, -4)
print('listed', NAME in open('/proc/keys').read())
";
    let control = super::on_host(world, hold, &[("NAME", &name)]);
    if control.result("listed") != "True" {
        return blocked("the kernel has no keys");
    }
    let program = "
seen = ''
for path in ('/proc/keys', '/run/.visible/proc/keys'):
    try:
        os.chmod('/run/.visible', 0o755)
    except OSError:
        pass
    try:
        seen += open(path).read()
    except OSError:
        pass
def inner():
    # A proc of one's own work has no masks.
    nested()
    unshare(CLONE_NEWPID)
    def below():
        os.makedirs('/tmp/escape-keys', exist_ok=True)
        mount('proc', '/tmp/escape-keys', 'proc', 0)
        print('nested_seen', NAME in open('/tmp/escape-keys/keys').read())
    in_child(below)
in_child(inner)
print('seen', NAME in seen)
";
    let mut leaks = Vec::new();
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, program, &[("NAME", &name)]);
        leaks.extend(
            said.results
                .iter()
                .filter(|(_, result)| *result == "True")
                .map(|(name, _)| format!("{user} {name}")),
        );
    }
    let forget = "
for line in open('/proc/keys'):
    if NAME in line:
        call('keyctl', 9, int(line.split()[0], 16), -4)
";
    super::on_host(world, forget, &[("NAME", &name)]);
    // The kernel shows the names of a user's keys to everything that runs as that user, and in the other two
    // modes the agent does (docs/engine/security.md). What is in them cannot be read: every key call is refused.
    if world.mode == Mode::Root {
        assert!(leaks.is_empty(), "{leaks:?}");
    }
    let refused = "
for name, args in (('add_key', (b'user', b'x', b'y', 1, -4)), ('request_key', (b'user', NAME.encode(), 0, -4)), ('keyctl', (11, -4, 0, 0))):
    try:
        call(name, *args)
        print(name, 'ok')
    except OSError as error:
        print(name, name_of(error))
";
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, refused, &[("NAME", &name)]);
        for call in ["add_key", "request_key", "keyctl"] {
            assert_eq!(
                said.result(call),
                "ENOSYS",
                "{call} as {user}: {}",
                said.all
            );
        }
    }
}
