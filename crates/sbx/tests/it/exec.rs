//! `sbx exec`: arguments, streams, exit codes, environment, users, signals.

pub mod frames;
pub mod pty;
mod status;
mod streams;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::ModeTest;
use crate::harness::{Mode, Ran, Sandbox, World, blocked, eventually, tester_is_root};

pub const TESTS: &[ModeTest] = &[
    ("exec::arguments_arrive_byte_for_byte", arguments),
    ("exec::exit_codes_are_the_commands_own", exit_codes),
    ("exec::failures_have_dockers_codes", failures),
    ("exec::environment_files_are_raw", env_files),
    (
        "exec::nothing_of_the_callers_environment_leaks",
        no_leaking_env,
    ),
    ("exec::users_and_groups", users),
    ("exec::working_directories", workdirs),
    ("exec::signals_reach_the_command", signals),
    ("exec::a_command_ends_with_its_killed_client", killed_client),
    ("exec::detached_commands_write_to_the_log", detached),
    ("exec::detached_with_a_terminal", detached_terminal),
    ("exec::fifty_at_once", fifty),
    ("exec::starts_a_stopped_sandbox", starts_stopped),
    ("exec::two_hundred_leave_nothing_in_init", two_hundred),
];

pub use pty::TESTS as TERMINALS;
pub use status::TESTS as STATUS;
pub use streams::TESTS as STREAMS;

fn arguments(world: &'static World) {
    let sandbox = world.sandbox("argv");
    let every_byte: Vec<u8> = (1..=255).collect();
    let words: Vec<OsString> = [
        &b""[..],
        b" ",
        b"new\nline",
        b"\n",
        b"--json",
        b"-i",
        b"--",
        b"'\"$(id)`\\",
        b"*",
        b"",
        &every_byte,
    ]
    .map(|word| OsString::from_vec(word.to_vec()))
    .to_vec();
    let output = world
        .sbx([
            "exec",
            &sandbox.name,
            "sh",
            "-c",
            "printf '%s\\0' \"$@\"",
            "name",
        ])
        .args(&words)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let mut expected = Vec::new();
    for word in words {
        expected.extend(word.into_vec());
        expected.push(0);
    }
    assert_eq!(output.stdout, expected);

    // Hyphens after the sandbox are the command's, with or without a `--` of ours.
    assert_eq!(sandbox.exec(["echo", "-u", "x"]).ok(), "-u x");
    assert_eq!(sandbox.exec(["--", "echo", "--", "-t"]).ok(), "-- -t");
    // The largest argument that the kernel takes.
    let long = "x".repeat(128 * 1024 - 1);
    let counted = sandbox.exec(["sh", "-c", "printf %s \"$1\" | wc -c", "sh", &long]);
    assert_eq!(counted.ok(), long.len().to_string());
}

fn exit_codes(world: &'static World) {
    let sandbox = world.sandbox("codes");
    for code in [0, 1, 2, 42, 124, 125, 126, 127, 128, 137, 254, 255] {
        sandbox.sh(&format!("exit {code}")).fails(code);
    }
    for signal in [1, 2, 6, 9, 11, 15, 34, 64] {
        let ran = sandbox.sh(&format!("kill -{signal} $$; sleep 1000"));
        ran.fails(128 + signal);
    }
    // The code is the program's, not that of what it left behind.
    sandbox
        .sh("(exec >/dev/null 2>&1; sleep 1000) & exit 3")
        .fails(3);
}

/// The error, which is the last line of stderr; only hints come before it.
fn last_error(err: &str) -> &str {
    let mut lines = err.lines();
    let error = lines.next_back().unwrap_or_default();
    assert!(error.starts_with("error: "), "{err}");
    assert!(lines.all(|line| line.starts_with("hint: ")), "{err}");
    error
}

fn failures(world: &'static World) {
    let sandbox = world.sandbox("failures");
    world.write(&sandbox.path("data"), "no program\n");
    let name = sandbox.name.clone();
    // More than a message may have, and more than a socket takes at once.
    let (long, quotes) = ("x".repeat(70_000), "\"".repeat(130_000));
    let cases: &[(&[&str], i32, &str)] = &[
        (&["exec", &name, &long], 126, "File name too long"),
        (&["exec", &name, &quotes], 126, "File name too long"),
        (
            &["exec", "-w", &quotes, &name, "true"],
            125,
            "File name too long",
        ),
        (&["exec", "-u", &quotes, &name, "true"], 125, "\"` "),
        (
            &["exec", "no-such-sandbox", "true"],
            125,
            "no sandbox named `no-such-sandbox`",
        ),
        (&["exec", "../vm", "true"], 125, "no sandbox named"),
        (&["exec", "-w", "/no/such", &name, "true"], 125, "/no/such"),
        (
            &["exec", "-w", "/etc/passwd", &name, "true"],
            125,
            "/etc/passwd",
        ),
        (
            &["exec", "-u", "no-such-user", &name, "true"],
            125,
            "no-such-user",
        ),
        (
            &["exec", "-u", "agent:no-such-user", &name, "true"],
            125,
            "no-such-user",
        ),
        (
            &["exec", "--env-file", "/no/such", &name, "true"],
            125,
            "/no/such",
        ),
        (
            &["exec", "--privileged", &name, "true"],
            125,
            "--privileged",
        ),
        (&["exec", &name, "./data"], 126, "./data"),
        (&["exec", &name, "/etc"], 126, "/etc"),
        (&["exec", &name, "."], 126, "."),
        (&["exec", &name, "no-such-program"], 127, "no-such-program"),
        (
            &["exec", &name, "/no/such/program"],
            127,
            "/no/such/program",
        ),
        (
            &["exec", &name, "data/below-a-file"],
            127,
            "data/below-a-file",
        ),
        (&["exec", &name, ""], 127, "not found"),
        (&["exec", &name], 125, "no COMMAND"),
    ];
    for (args, code, word) in cases {
        let ran = world.run(*args).fails(*code);
        let error = last_error(&ran.err);
        assert!(error.contains(word), "{args:?}: {error}");
        assert_eq!(ran.out, "", "{args:?}");
    }
    // A script without its interpreter is not found, as a shell has it.
    let script = sandbox.path("script");
    world.write(&script, "#!/no/such/interpreter\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let lacking = sandbox.exec(["./script"]).fails(127).err;
    assert!(
        lacking.contains("its interpreter was not found"),
        "{lacking}"
    );
    assert_eq!(world.status(&name), "running");
}

fn env_files(world: &'static World) {
    let sandbox = world.sandbox("env");
    let first = world.home().join(world.name("env"));
    let second = world.home().join(world.name("env"));
    let raw = "# a comment\n\nQUOTED=\"kept\" 'too'\nHASH=a # b\n  INDENTED=x  \nEMPTY=\nEQUALS=a=b=c\nDOLLAR=$HOME\n\
               BACK=a\\nb\nCOPIED\nNOT_SET_ANYWHERE\nBOTH=first\nFLAG=file\nUNICODE=ünï\n";
    world.write(&first, raw);
    world.write(&second, "BOTH=second\n");
    let output = world
        .sbx([
            "exec",
            "--env-file",
            first.to_str().unwrap(),
            "--env-file",
            second.to_str().unwrap(),
        ])
        .args([
            "-e",
            "FLAG=flag",
            "-e",
            "COPIED_TOO",
            "-e",
            "NOT_SET_EITHER",
            "-e",
            "NEW=two\nlines",
            &sandbox.name,
        ])
        .args(["env", "-0"])
        .env("COPIED", "from \"the\" caller")
        .env("COPIED_TOO", "also")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let value = |key: &str| {
        let mut found = text
            .split('\0')
            .filter_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        let value = found.next().map(str::to_owned);
        assert_eq!(found.next(), None, "{key} is there twice");
        value
    };
    for (key, expected) in [
        ("QUOTED", Some("\"kept\" 'too'")),
        ("HASH", Some("a # b")),
        ("INDENTED", Some("x  ")),
        ("EMPTY", Some("")),
        ("EQUALS", Some("a=b=c")),
        ("DOLLAR", Some("$HOME")),
        ("BACK", Some("a\\nb")),
        ("COPIED", Some("from \"the\" caller")),
        ("NOT_SET_ANYWHERE", None),
        ("BOTH", Some("second")),
        ("FLAG", Some("flag")),
        ("UNICODE", Some("ünï")),
        ("COPIED_TOO", Some("also")),
        ("NOT_SET_EITHER", None),
        ("NEW", Some("two\nlines")),
    ] {
        assert_eq!(value(key).as_deref(), expected, "{key}");
    }
    // Only for that command.
    assert_eq!(sandbox.sh("echo \"${FLAG-unset}\"").ok(), "unset");

    world.write(&first, "GOOD=1\n\n=nameless\n");
    let bad = sandbox.exec_with(&["--env-file", first.to_str().unwrap()], ["true"]);
    let place = format!("{}:3:", first.display());
    assert!(bad.fails(125).err.contains(&place));
    std::fs::remove_file(first).unwrap();
    std::fs::remove_file(second).unwrap();
}

fn no_leaking_env(world: &'static World) {
    let name = world.name("canary");
    let workspace = world.workspace();
    let canary = "canary-in-a-coal-mine";
    let with_canary = |args: &[&str]| {
        let output = world
            .sbx(args)
            .env("SECRET_CANARY", canary)
            .env("AWS_SECRET_ACCESS_KEY", canary)
            .env("LD_PRELOAD_CANARY", canary)
            .output()
            .unwrap();
        Ran::from(output).ok()
    };
    with_canary(&[
        "create",
        "--name",
        &name,
        "shell",
        workspace.to_str().unwrap(),
    ]);
    let sandbox = Sandbox {
        world,
        name,
        workspace,
    };
    let everything = "env; for p in /proc/[0-9]*; do tr '\\0' '\\n' <$p/environ; tr '\\0' '\\n' <$p/cmdline; done 2>/dev/null; true";
    for user in ["agent", "root"] {
        let seen = with_canary(&["exec", "-u", user, &sandbox.name, "sh", "-c", everything]);
        assert!(seen.contains("HOME="), "{seen}");
        assert!(!seen.contains(canary), "{user}: {seen}");
        assert!(!seen.contains("SBX_HOME"), "{user}: {seen}");
        assert!(
            !seen.contains(world.state().to_str().unwrap()),
            "{user}: {seen}"
        );
    }
}

fn users(world: &'static World) {
    let sandbox = world.sandbox("accounts");
    let as_user = |user: &str, script: &str| sandbox.exec_with(&["-u", user], ["sh", "-c", script]);
    assert_eq!(
        sandbox.sh("id -un; id -u; echo $HOME $USER").ok(),
        "agent\n1000\n/home/agent agent"
    );
    for user in ["agent", "1000", "agent:agent", "1000:1000"] {
        assert_eq!(
            as_user(user, "id -u; id -g; echo $HOME").ok(),
            "1000\n1000\n/home/agent",
            "{user}"
        );
    }
    for user in ["root", "0", "root:root", "0:0"] {
        assert_eq!(
            as_user(user, "id -un; id -u; id -g; echo $HOME").ok(),
            "root\n0\n0\n/root",
            "{user}"
        );
    }
    as_user("no-such-user", "true").fails(125);
    as_user("", "true").fails(125);
    as_user("99999999", "true").fails(125);
    world
        .run(["exec", "--user=-1", &sandbox.name, "true"])
        .fails(125);
    match world.mode {
        Mode::Root | Mode::Subordinate => {
            assert_eq!(as_user("agent:root", "id -u; id -G").ok(), "1000\n0");
            assert_eq!(as_user("daemon", "id -un").ok(), "daemon");
            assert_eq!(as_user("4321:8765", "id -u; id -g").ok(), "4321\n8765");
        }
        // One id: there is no other user, and the message says so.
        Mode::Single => {
            assert!(as_user("daemon", "true").fails(125).err.contains("one id"));
            assert!(
                as_user("agent:root", "true")
                    .fails(125)
                    .err
                    .contains("one id")
            );
        }
    }
}

fn workdirs(world: &'static World) {
    let sandbox = world.sandbox("workdir");
    let at = |dir: &str, script: &str| sandbox.exec_with(&["-w", dir], ["sh", "-c", script]);
    assert_eq!(at("/usr/bin", "pwd -P").ok(), "/usr/bin");
    assert_eq!(at("/home/agent", "pwd -P").ok(), "/home/agent");
    sandbox.sh("mkdir -p 'a b/ünï'").ok();
    let below = sandbox.path("a b/ünï");
    assert_eq!(
        at(below.to_str().unwrap(), "pwd -P").ok(),
        below.to_str().unwrap()
    );
    // A relative one is meant from the primary workspace.
    assert_eq!(at(".", "pwd -P").ok(), sandbox.workspace.to_str().unwrap());
    assert_eq!(at("a b/ünï", "pwd -P").ok(), below.to_str().unwrap());
    let missing = at("no-such", "true").fails(125);
    assert!(missing.err.contains("no-such"), "{}", missing.err);
    let root = sandbox.exec_with(&["-u", "root", "-w", "/root"], ["pwd"]);
    assert_eq!(root.ok(), "/root");
    // Descriptors of the helper lead nowhere.
    for dir in [
        "/proc/self/fd/3",
        "/proc/self/cwd/../../..",
        "/proc/1/root",
        "/proc/1/cwd",
    ] {
        let ran = at(dir, "pwd -P; ls /");
        assert!(
            ran.code == 125 || (ran.out.starts_with('/') && !ran.out.contains("lost+found")),
            "{dir}: {ran:?}"
        );
    }
}

fn signals(world: &'static World) {
    let sandbox = world.sandbox("signals");
    for (name, signal, code) in [
        ("INT", rustix::process::Signal::INT, 21),
        ("TERM", rustix::process::Signal::TERM, 22),
        ("HUP", rustix::process::Signal::HUP, 23),
        ("USR1", rustix::process::Signal::USR1, 24),
    ] {
        let script = format!(
            "trap 'echo caught {name}; exit {code}' {name}; echo ready; while :; do sleep 0.05; done"
        );
        let mut client = world
            .sbx(["exec", &sandbox.name, "sh", "-c", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        send(&client, signal);
        assert_eq!(lines.next().unwrap().unwrap(), format!("caught {name}"));
        assert_eq!(client.wait().unwrap().code(), Some(code));
    }
    // One that does nothing about it dies of it.
    let mut client = world
        .sbx([
            "exec",
            &sandbox.name,
            "sh",
            "-c",
            "echo ready; exec sleep 1000",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    send(&client, rustix::process::Signal::TERM);
    assert_eq!(client.wait().unwrap().code(), Some(143));
    assert!(lines.next().is_none());
}

fn send(client: &std::process::Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(client);
    rustix::process::kill_process(pid, signal).unwrap();
}

fn killed_client(world: &'static World) {
    let sandbox = world.sandbox("orphan");
    let wait = "while [ ! -e go ]; do sleep 0.05; done; echo x > ended";
    sandbox.exec_with(&["-d"], ["sh", "-c", wait]).ok();
    // One that would end by the first signal, and one with a job in another process group that ignores it.
    let stubborn =
        "trap '' TERM HUP; set -m; sleep 1000 & echo ready; while :; do sleep 0.05; done";
    // A daemon that keeps the caller's pipe goes too; one that does not, stays.
    let daemon = "setsid sh -c 'trap \"\" TERM; echo ready; sleep 1000' & wait";
    let quiet = "setsid -f sh -c 'echo $$ >quiet; exec sleep 1001' >/dev/null 2>&1 </dev/null";
    let quiet = format!("{quiet}; while [ ! -s quiet ]; do :; done; echo ready; sleep 1000");
    for script in [
        "echo ready; sleep 1000; sleep 1000",
        stubborn,
        daemon,
        &quiet,
    ] {
        let mut client = world
            .sbx(["exec", &sandbox.name, "bash", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(client.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        // None of these commands ends by itself before the test does: that they end is init's doing.
        client.kill().unwrap();
        let killed = Instant::now();
        client.wait().unwrap();
        // In root mode the pipe is the command's own: it ends when no process inside has it open.
        output.read_to_string(&mut line).unwrap();
        eventually("the command has ended", || {
            (world.inspect(&sandbox.name)["sessions"] == 1).then_some(())
        });
        // Within a second, and what a busy machine adds.
        let took = killed.elapsed();
        assert!(took < Duration::from_secs(10), "{script}: {took:?}");
    }
    // What ignores the first signal is killed by the second.
    eventually("nothing of them is left", || {
        let left = sandbox.sh("pgrep -cfx 'sleep 1000' || :").ok();
        (left.trim() == "0").then_some(())
    });
    sandbox.sh("kill -0 $(cat quiet) && kill $(cat quiet)").ok();
    // What was started with -d goes on.
    world.write(&sandbox.path("go"), "");
    eventually("the detached command goes on to its end", || {
        sandbox.path("ended").exists().then_some(())
    });
    eventually("its session ends", || {
        (world.inspect(&sandbox.name)["sessions"] == 0).then_some(())
    });
}

fn detached(world: &'static World) {
    let sandbox = world.sandbox("detached");
    let script = "echo to-stdout; echo to-stderr >&2; while [ ! -e go ]; do sleep 0.05; done; echo later; exit 5";
    let ran = sandbox.exec_with(&["-d"], ["sh", "-c", script]);
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    // It returned although the command cannot have ended.
    let logs = || world.run(["logs", &sandbox.name]);
    eventually("both streams are in the log", || {
        let logs = logs();
        (logs.out == "to-stdout\n" && logs.err == "to-stderr\n").then_some(())
    });
    eventually("the daemon counts it", || {
        (world.inspect(&sandbox.name)["sessions"] == 1).then_some(())
    });
    world.write(&sandbox.path("go"), "");
    eventually("what came later is there", || {
        (logs().out == "to-stdout\nlater\n").then_some(())
    });
    let exit = eventually("the exit is logged", || {
        let json = world.run(["logs", "--json", &sandbox.name]).ok();
        let records = json
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        records.into_iter().find(|record| record["s"] == "exit")
    });
    assert_eq!(exit["d"], "5", "{exit}");
    // A command that cannot start is no success in the background either.
    sandbox.exec_with(&["-d"], ["no-such-program"]).fails(127);
    sandbox
        .exec_with(&["-d", "-w", "/no/such"], ["true"])
        .fails(125);
    // The log has a line for each, and says how each ended.
    let json = world.run(["logs", "--json", &sandbox.name]).ok();
    let records = json
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let exits: Vec<_> = records
        .filter(|record| record["s"] == "exit")
        .map(|record| record["d"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(exits, ["5", "127", "125"]);
    let said = logs().err;
    let said: Vec<_> = said.lines().collect();
    assert!(
        matches!(said.as_slice(), ["to-stderr", one, other]
            if one.contains("no-such-program") && other.contains("/no/such")),
        "{said:?}"
    );
    // Survives a stop.
    world.run(["stop", &sandbox.name]).ok();
    assert_eq!(logs().out, "to-stdout\nlater\n");
    sandbox
        .exec_with(&["-d"], ["echo", "after the restart"])
        .ok();
    eventually("both starts are in the log", || {
        (logs().out == "to-stdout\nlater\nafter the restart\n").then_some(())
    });
}

fn detached_terminal(world: &'static World) {
    let sandbox = world.sandbox("detached-tty");
    let script = "test -t 0 && test -t 1 && test -t 2 && echo \"terminal $TERM\"";
    let ran = sandbox.exec_with(&["-d", "-t"], ["sh", "-c", script]);
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    let logs = || world.run(["logs", &sandbox.name]).out;
    let shown = eventually("what it shows is in the log", || {
        Some(logs()).filter(|shown| shown.ends_with('\n'))
    });
    assert!(
        shown.starts_with("terminal ") && shown.ends_with("\r\n"),
        "{shown:?}"
    );
    eventually("the session ends", || {
        (world.inspect(&sandbox.name)["sessions"] == 0).then_some(())
    });
    sandbox
        .exec_with(&["-d", "-t"], ["no-such-program"])
        .fails(127);
}

fn fifty(world: &'static World) {
    let sandbox = world.sandbox("fifty");
    let clients: Vec<_> = (0..50)
        .map(|n| {
            let script = format!("echo out {n}; echo err {n} >&2; exit {n}");
            world
                .sbx(["exec", &sandbox.name, "sh", "-c", &script])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for (n, client) in clients.into_iter().enumerate() {
        let ran = Ran::from(client.wait_with_output().unwrap());
        assert_eq!(
            (ran.code, ran.out, ran.err),
            (
                i32::try_from(n).unwrap(),
                format!("out {n}\n"),
                format!("err {n}\n")
            )
        );
    }
}

fn starts_stopped(world: &'static World) {
    let sandbox = world.sandbox("stopped");
    world.run(["stop", &sandbox.name]).ok();
    assert_eq!(world.status(&sandbox.name), "stopped");
    // Several at once start it once.
    let clients: Vec<_> = (0..5)
        .map(|_| {
            world
                .sbx([
                    "exec",
                    &sandbox.name,
                    "cat",
                    "/proc/sys/kernel/random/boot_id",
                    "/proc/1/stat",
                ])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut seen: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let said = Ran::from(client.wait_with_output().unwrap()).ok();
            // The start time of pid 1.
            said.split(' ').nth(21).unwrap().to_owned()
        })
        .collect();
    seen.dedup();
    assert_eq!(seen.len(), 1, "one init for all: {seen:?}");
    assert_eq!(world.status(&sandbox.name), "running");
}

fn two_hundred(world: &'static World) {
    if !tester_is_root() {
        return blocked("only root sees what an init has open");
    }
    let sandbox = world.sandbox("many");
    sandbox.exec(["true"]).ok();
    let init = world.init_pid(&sandbox.name);
    let open = || {
        std::fs::read_dir(format!("/proc/{init}/fd"))
            .unwrap()
            .count()
    };
    let children = || {
        let listed = std::fs::read_to_string(format!("/proc/{init}/task/{init}/children"));
        listed.unwrap().split_whitespace().count()
    };
    // Nothing but the process that waits to become the next command.
    let settled = || {
        eventually("the last command is forgotten", || {
            (world.inspect(&sandbox.name)["sessions"] == 0 && children() == 1).then(open)
        })
    };
    let before = settled();
    for round in 0..200 {
        match round % 4 {
            0 => sandbox.exec(["true"]).fails(0),
            1 => sandbox.exec(["no-such-program"]).fails(127),
            2 => sandbox.root_sh("exit 9").fails(9),
            _ => sandbox.exec_with(&["-d"], ["echo", "x"]).fails(0),
        };
    }
    let after = eventually("descriptors are closed", || {
        Some(settled()).filter(|after| *after <= before)
    });
    assert_eq!(after, before);
    assert_eq!(world.init_pid(&sandbox.name), init, "it is the same init");
}
