//! Processes of the host, init, and the helper on its way into a command.

use std::process::Stdio;

use super::{Guarded, attack, finish, on_host, run, sbx, script};
use crate::ModeTest;
use crate::harness::{World, eventually};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "host_processes_can_be_neither_seen_nor_signalled",
        host_processes,
    ),
    ("init_can_be_neither_traced_nor_ended", init),
    ("the_limits_of_init_cannot_be_changed", limits_of_init),
    ("the_exec_helper_cannot_be_traced_before_execve", helper),
    (
        "the_spare_process_gives_nothing_away_and_is_not_needed",
        spare,
    ),
    ("a_fresh_command_has_three_descriptors", descriptors),
    (
        "a_working_directory_of_a_descriptor_leads_nowhere",
        working_directory,
    ),
];

/// Without descriptors init could not even wait, and would take a whole processor for trying.
fn limits_of_init(world: &'static World) {
    let sandbox = world.sandbox("limits");
    let program = "
import resource
for name in ('NOFILE', 'CPU', 'NPROC', 'AS'):
    try:
        resource.prlimit(1, getattr(resource, 'RLIMIT_' + name), (1, 1))
        print(name, 'ok')
    except OSError as error:
        print(name, 'EPERM' if error.errno == 1 else error.errno)
resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))
print('own', 'changed')
";
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, program, &[]);
        for name in ["NOFILE", "CPU", "NPROC", "AS"] {
            assert_eq!(said.result(name), "EPERM", "as {user}: {}", said.all);
        }
        assert_eq!(said.result("own"), "changed", "{}", said.all);
    }
    assert_eq!(sandbox.exec(["echo", "1"]).ok(), "1");
}

fn host_processes(world: &'static World) {
    let sandbox = world.sandbox("procs");
    // Of the same user, so that only the namespaces are between them.
    let mark = world.name("sbx-escape-sleeper");
    let sleeper = Guarded(
        world
            .command("sh")
            .args(["-c", "read forever", &mark])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let pid = sleeper.0.id().to_string();
    let settings = [("PID", pid.as_str()), ("MARK", &*mark)];
    let said = attack(
        &sandbox,
        "root",
        include_str!("attack/processes.py"),
        &settings,
    );
    assert!(
        said.result("processes").parse::<u32>().unwrap() < 20,
        "{}",
        said.all
    );
    assert_eq!(said.result("seen_by_name"), "False");
    if !said.results.contains_key("same_number") {
        let gone: &[&str] = &["ESRCH"];
        said.refused(&[
            ("kill_0", gone),
            ("kill_9", gone),
            ("group", gone),
            ("trace", gone),
            ("readv", gone),
            ("writev", gone),
            ("priority", gone),
            ("affinity", gone),
        ]);
        said.refused(&[("pidfd", &["ESRCH", "EINVAL"]), ("proc", &["ENOENT"])]);
    }
    assert_eq!(sandbox.exec(["echo", "alive"]).ok(), "alive");
    let control = "
pid = int(PID)
attempt('kill', lambda: os.kill(pid, 0))
attempt('pidfd', lambda: call('pidfd_open', pid, 0))
print('seen_by_name', MARK.encode() in read('/proc/%d/cmdline' % pid))
";
    let control = on_host(world, control, &settings);
    assert_eq!(
        (
            control.result("kill"),
            control.result("pidfd"),
            control.result("seen_by_name")
        ),
        ("ok", "ok", "True")
    );
}

fn init(world: &'static World) {
    let sandbox = world.sandbox("init-trace");
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, include_str!("attack/trace_init.py"), &[]);
        for name in ["readv", "writev", "getfd_0", "kcmp", "seize"] {
            assert_eq!(
                said.result(&format!("control_{name}")),
                "ok",
                "{}",
                said.all
            );
            assert_eq!(
                said.result(&format!("init_{name}")),
                "EPERM",
                "as {user}: {}",
                said.all
            );
        }
        assert_eq!(said.result("init_attach"), "EPERM");
        assert_ne!(said.result("init_madvise"), "ok");
        assert_eq!(sandbox.exec(["echo", "alive"]).ok(), "alive");
    }
}

fn helper(world: &'static World) {
    let sandbox = world.sandbox("helper");
    let mut child = world
        .sbx([
            "exec",
            "-i",
            "-u",
            "root",
            &sandbox.name,
            super::PYTHON,
            "-",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text = script(include_str!("attack/trace_helper.py"), &[]);
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &text).unwrap();
    for round in 0..120 {
        let user = if round % 2 == 0 { "root" } else { "agent" };
        // A tracer that kills what it has caught makes a command fail; it must have been executed before.
        sandbox.exec_with(&["-u", user], ["true"]);
    }
    world.write(&sandbox.path("stop"), "");
    let said = super::Said::from(finish(child, b""));
    let seen: u32 = said.result("seen").parse().unwrap();
    assert!(seen > 20, "too few helpers were seen: {}", said.all);
    assert_eq!(said.result("taken"), "0", "of {seen}: {}", said.all);
}

/// The process that waits to become the next command. Unlike a command on its way, it can be attacked at leisure.
fn spare(world: &'static World) {
    let sandbox = world.sandbox("spare");
    // A command takes the spare process there is, and one that ends has the next one made.
    let beside_a_spare = |user: &str, program: &[&str]| {
        let mut command = world.sbx(["exec", "-i", "-u", user, &sandbox.name]);
        let child = command
            .args(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        eventually("the attacker", || {
            std::fs::remove_file(sandbox.path("ready")).ok()
        });
        sandbox.exec(["true"]).ok();
        finish(child, b"go\n")
    };
    let text = script(include_str!("attack/spare.py"), &[]);
    world.write(&sandbox.path("attack.py"), text);
    for user in ["root", "agent"] {
        let said = super::Said::from(beside_a_spare(user, &[super::PYTHON, "attack.py"]));
        assert_ne!(said.result("pid"), "None", "as {user}: {}", said.all);
        for way in [
            "seize", "fd", "environ", "mem", "maps", "root", "cwd", "exe", "ns", "getfd", "readv",
        ] {
            let own = said.result(&format!("own_{way}"));
            assert_eq!(own, "ok", "{way} as {user}: {}", said.all);
            assert_ne!(said.result(way), "ok", "{way} as {user}: {}", said.all);
        }
    }
    // Stopped with everything else, or ended: the next command runs all the same.
    for signal in ["STOP", "KILL"] {
        let script = format!(
            "touch ready; read go; until pkill -{signal} -x sbx-spare; do :; done; echo hit"
        );
        let hit = beside_a_spare("root", &["sh", "-c", &script]).ok();
        assert_eq!(hit, "hit", "{signal}");
        assert_eq!(sandbox.exec(["echo", signal]).ok(), signal);
        assert_eq!(sandbox.exec(["echo", signal]).ok(), signal);
    }
    sbx(world, &["stop", &sandbox.name]).ok();
}

fn descriptors(world: &'static World) {
    let sandbox = world.sandbox("fds");
    // The fourth is the directory that is being listed.
    let look = "import os; print(' '.join(sorted(os.listdir('/proc/self/fd'))))";
    let python = [super::PYTHON, "-c", look];
    for flags in [&["-u", "root"][..], &[], &["-i"], &["-t"]] {
        let seen = sandbox.exec_with(flags, python).ok();
        assert_eq!(seen.trim(), "0 1 2 3", "{flags:?}");
    }
    // A caller with descriptors of its own does not pass them on.
    let shell = format!(
        "exec 7</etc/passwd 8>/dev/null 9<{0}; exec \"$0\" \"$@\"",
        world.home().display()
    );
    let sbx = crate::harness::programs().join("sbx");
    let mut command = world.command("sh");
    command
        .arg("-c")
        .arg(shell)
        .arg(sbx)
        .args(["exec", &sandbox.name])
        .args(python);
    assert_eq!(run(&mut command, b"").ok(), "0 1 2 3");
    // A detached one and its log.
    sandbox
        .exec_with(
            &["-d"],
            [
                "sh",
                "-c",
                &format!(
                    "{} -c \"{look}\" > fds.tmp && mv fds.tmp fds",
                    super::PYTHON
                ),
            ],
        )
        .ok();
    let wait = sandbox.sh("while [ ! -e fds ]; do :; done; cat fds");
    assert_eq!(wait.ok(), "0 1 2 3");
}

fn working_directory(world: &'static World) {
    let sandbox = world.sandbox("cwd");
    let mut paths: Vec<String> = (0..48).map(|n| format!("/proc/self/fd/{n}")).collect();
    paths.extend(
        (3..48)
            .step_by(3)
            .map(|n| format!("/proc/self/fd/{n}/../../..")),
    );
    paths.extend(
        [
            "/proc/1/cwd",
            "/proc/1/root",
            "/proc/self/cwd",
            "/proc/self/root",
            "/proc/thread-self/fd/5",
        ]
        .map(String::from),
    );
    // A link to one is no way either.
    sandbox
        .sh("ln -s /proc/self/fd/8 eight; ln -s /proc/self/fd/11/../.. eleven")
        .ok();
    paths.extend(["eight", "eleven"].map(|name| sandbox.path(name).to_str().unwrap().to_owned()));
    // Where it does lead, the place must be the one that its own name leads to from the root.
    let look = "here=$(stat -c %d:%i .) && cd / && there=$(stat -c %d:%i \"$PWD_SEEN\") && [ \"$here\" = \"$there\" ] && echo below-root";
    let script = format!(
        "PWD_SEEN=$(/bin/pwd -P); case $PWD_SEEN in /*) ;; *) echo BREACH; exit 0;; esac; {look}"
    );
    let mut refused = 0;
    for path in &paths {
        for user in ["root", "agent"] {
            let ran = sandbox.exec_with(&["-u", user, "-w", path], ["sh", "-c", &script]);
            match ran.code {
                125 => refused += 1,
                0 => assert_eq!(
                    ran.out.trim(),
                    "below-root",
                    "{path} as {user}: {} {}",
                    ran.out,
                    ran.err
                ),
                _ => panic!("{path} as {user}: {ran:?}"),
            }
        }
    }
    assert!(refused > paths.len(), "only {refused} refused");
    // Control: a directory that is one.
    assert_eq!(
        sandbox
            .exec_with(&["-w", "/usr/bin"], ["sh", "-c", &script])
            .ok(),
        "below-root"
    );
}
