//! What `crabbox run` passes on, keeps, writes and says.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::world::{World, write};

/// Only one that nothing is wanted of afterwards, and only on our own engine.
#[test]
fn a_sandbox_that_goes_with_its_run_is_temporary() {
    let is_temporary = |world: &World, flags: &[&str]| {
        world.forget_calls();
        world
            .crabbox(&[&["run"], flags, &["--", "true"]].concat())
            .exits(0);
        world.call("create").argv.contains(&"--rm".to_owned())
    };
    let own = World::of_our_engine();
    assert!(is_temporary(&own, &[]));
    for kept in ["--keep", "--keep-on-failure", "-d"] {
        assert!(!is_temporary(&own, &[kept]), "{kept}");
    }
    assert!(!is_temporary(&World::new(), &[]));
}

#[test]
fn a_directory_cannot_add_lines_by_its_name() {
    let world = World::new();
    let dir = world.path("app\nprovider=forged");
    fs::create_dir(&dir).unwrap();
    let ran = world.within(&dir, &["run", "--", "true"]).exits(0);
    assert!(!ran.err.contains("\nprovider=forged"), "{}", ran.err);
    ran.says("app\\nprovider=forged");
}

#[test]
fn stdin_is_passed_on_byte_by_byte() {
    let world = World::of_our_engine();
    let input: Vec<u8> = (0..300_000_u32)
        .map(|n| u8::try_from(n % 256).unwrap())
        .collect();
    let ran = world.with_stdin(&input, &["run", "--", "cat"]).exits(0);
    assert!(
        ran.bytes == input,
        "{} of {} bytes",
        ran.bytes.len(),
        input.len()
    );
    // Who does not read it is no failure.
    world.with_stdin(&input, &["run", "--", "true"]).exits(0);
    let exec: Vec<_> = world
        .calls()
        .into_iter()
        .filter(|call| call.verb() == "exec")
        .collect();
    assert_eq!(exec[0].argv[1], "-i");
}

#[test]
fn streams_stay_apart_and_whole() {
    let world = World::new();
    let script = "printf 'no newline'; printf '\\377\\0end' >&2";
    let output = world.command(&["run", "--shell", script]).output().unwrap();
    assert_eq!(output.stdout, b"no newline");
    let err = output
        .stderr
        .windows(5)
        .any(|window| window == b"\xff\0end");
    assert!(err, "{:?}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_command_runs_in_the_repository_or_where_it_is_told() {
    let world = World::new();
    let below = world.repo().join("below");
    fs::create_dir(&below).unwrap();
    assert_eq!(
        world.crabbox(&["run", "--", "pwd"]).ok(),
        format!("{}\n", world.repo().display())
    );
    assert_eq!(
        world.within(&below, &["run", "--", "pwd"]).ok(),
        format!("{}\n", world.repo().display())
    );
    world
        .crabbox(&["run", "--workdir", ".", "--", "pwd"])
        .exits(0)
        .says(&format!(
            "workdir={} sync_delegated",
            world.repo().display()
        ));
    let ran = world
        .crabbox(&["run", "--workdir", below.to_str().unwrap(), "--", "pwd"])
        .exits(0);
    assert_eq!(ran.out, format!("{}\n", below.display()));
    ran.says(&format!("workdir={} sync_delegated=true", below.display()));
    // The setting, which the user alone may make.
    let ran = world.crabbox(&[
        "run",
        "--docker-sandbox-workdir",
        below.to_str().unwrap(),
        "--",
        "pwd",
    ]);
    assert_eq!(ran.ok(), format!("{}\n", below.display()));
    let execs = world
        .calls()
        .into_iter()
        .filter(|call| call.verb() == "exec");
    for call in execs {
        assert!(
            call.argv[1..3].contains(&"--workdir".to_owned()),
            "{}",
            call.line()
        );
    }
}

#[test]
fn words_reach_the_command_as_they_are() {
    let world = World::new();
    let ran = world.crabbox(&[
        "run", "--", "printf", "%s\\n", "a b", "", "$HOME", "it's", "--json",
    ]);
    assert_eq!(ran.ok(), "a b\n\n$HOME\nit's\n--json\n");
    // Without the hyphens, from the first word on.
    assert_eq!(
        world.crabbox(&["run", "echo", "--keep", "-x"]).ok(),
        "--keep -x\n"
    );
    assert_eq!(world.claim_names(), [""; 0]);
}

#[test]
fn a_shell_is_used_where_the_words_ask_for_one() {
    let world = World::new();
    for (args, out) in [
        (&["run", "--shell", "--", "echo", "$((1+1))"][..], "2\n"),
        (&["run", "--", "echo a && echo b"], "a\nb\n"),
        (&["run", "--", "echo", "a b", "&&", "echo", "c"], "a b\nc\n"),
        (&["run", "--", "X=1", "sh", "-c", "echo $X"], "1\n"),
        (&["run", "--", "echo", "a|b"], "a|b\n"),
    ] {
        assert_eq!(world.crabbox(args).ok(), out, "{args:?}");
    }
    let execs: Vec<_> = world
        .calls()
        .into_iter()
        .filter(|call| call.verb() == "exec")
        .collect();
    assert!(
        execs[0].line().contains(" sh -lc echo $((1+1))"),
        "{}",
        execs[0].line()
    );
    assert!(
        execs[4].line().ends_with(" echo a|b"),
        "{}",
        execs[4].line()
    );
}

/// `crabbox run -- grep '>' notes.txt` emptied `notes.txt`.
#[test]
fn words_are_words_and_only_an_operator_between_them_makes_a_script() {
    let world = World::new();
    let notes = world.repo().join("notes.txt");
    write(&notes, "a > b\n");
    for word in [">", ">>", "2>", "2>>"] {
        let ran = world.crabbox(&["run", "--", "grep", "-e", word, "notes.txt"]);
        assert!(
            ran.err.contains("run exited") || ran.code == 0,
            "{}",
            ran.err
        );
        ran.never_says("--no-shell");
        assert_eq!(fs::read_to_string(&notes).unwrap(), "a > b\n", "{word}");
    }
    let assigned = ["run", "--", "LC_ALL=C", "grep", "-c", ">", "notes.txt"];
    assert_eq!(world.crabbox(&assigned).ok(), "1\n");
    let found = ["run", "--", "find", "notes.txt", "-exec", "echo", "{}", ";"];
    let found = world.crabbox(&found).exits(0).never_says("--no-shell");
    assert_eq!(found.out, "notes.txt\n");

    let script = world
        .crabbox(&["run", "--", "echo", "a", "|", "cat"])
        .exits(0);
    assert_eq!(script.out, "a\n");
    let notice =
        "note: `|` makes the command a script for `sh -lc`; --no-shell passes it as an argument\n";
    assert_eq!(script.err.matches(notice).count(), 1, "{}", script.err);
    let plain = ["run", "--no-shell", "--", "echo", "a", "|", "cat"];
    let plain = world.crabbox(&plain).exits(0).never_says("note:");
    assert_eq!(plain.out, "a | cat\n");
    let last = [
        "run",
        "--no-shell",
        "--shell",
        "--",
        "echo",
        "a",
        "|",
        "cat",
    ];
    assert_eq!(world.crabbox(&last).ok(), "a\n");
}

/// The cause is the last line, and in the JSON of the failure.
#[test]
fn a_command_that_is_not_found_inside_is_told_as_the_cause() {
    let world = World::of_our_engine();
    let message = "`nope`: not found in PATH";
    world.behave(
        "status",
        &format!(r#"{{"by":"engine","code":127,"message":"{message}"}}"#),
    );
    let script = "exit 127"; // in the place of the engine, which would say so
    let args = ["run", "--timing-json", "--", "sh", "-c", script];
    let ran = world.crabbox(&args).exits(127);
    assert_eq!(
        ran.cause(),
        format!("docker-sandbox run exited 127: {message}")
    );
    assert!(
        ran.err
            .contains(r#""exitCode":127,"runStatus":"failed","errorKind":"command-exit""#),
        "{}",
        ran.err
    );
    let json = world
        .crabbox(&["run", "--json", "--", "sh", "-c", script])
        .exits(127);
    let told: serde_json::Value = serde_json::from_str(json.last()).unwrap();
    assert_eq!(told["error"]["code"], "command_exit");
    assert_eq!(told["error"]["exitCode"], 127);
    assert_eq!(told["error"]["causes"], serde_json::json!([message]));
    world.is_clean();
}

/// A sandbox that was made is used, also where its engine does not say which version it is.
#[test]
fn an_engine_that_does_not_tell_its_version_runs_the_command() {
    let world = World::new();
    world.behave("fail-before-version", "1\nboom");
    let env = [("TOKEN", "t0ken")];
    let args = ["run", "--allow-env", "TOKEN", "--", "printenv", "TOKEN"];
    assert_eq!(world.with_env(&env, &args).ok(), "t0ken\n");
    world.is_clean();
    // One that ignores variables is found out as before.
    world.behave("ignore-env-file", "yes");
    world.with_env(&env, &args).exits(1);
}

/// Also in the directory that the command runs in.
#[test]
fn a_single_word_that_is_a_program_is_not_a_script() {
    let world = World::new();
    let tool = world.repo().join("tools/my tool");
    write(&tool, "#!/bin/sh\necho here\n");
    for args in [
        &["run", "--", "tools/my tool"][..],
        &["run", "--workdir", "tools", "--", "./my tool"],
    ] {
        fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(world.crabbox(args).ok(), "here\n", "{args:?}");
        fs::set_permissions(&tool, PermissionsExt::from_mode(0o644)).unwrap();
        world.crabbox(args).exits(127);
    }
}

#[test]
fn codes_are_mirrored() {
    let world = World::new();
    world.warm("a");
    for code in [0, 1, 2, 3, 42, 124, 125, 126, 127, 130, 137, 255] {
        let script = format!("exit {code}");
        let ran = world
            .crabbox(&["run", "--id", "a", "--", "sh", "-c", &script])
            .exits(code);
        if code != 0 {
            assert_eq!(ran.cause(), format!("docker-sandbox run exited {code}"));
        }
    }
    world
        .crabbox(&["run", "--id", "a", "--", "no-such-program"])
        .exits(127);
}

#[test]
fn our_engine_reports_what_ended_the_command() {
    let world = World::of_our_engine();
    world.warm("a");
    world
        .crabbox(&["run", "--id", "a", "--", "sh", "-c", "exit 125"])
        .exits(125);
    // The cause comes last, where the engine says one.
    let failed = "docker-sandbox run failed: `sbx exec` exited 125";
    for (status, last) in [
        (r#"{"by":"engine","code":125}"#, failed.to_owned()),
        (
            r#"{"by":"engine","code":125,"message":"no such directory"}"#,
            format!("{failed}: no such directory"),
        ),
    ] {
        world.behave("status", status);
        let ran = world
            .crabbox(&["run", "--id", "a", "--", "sh", "-c", "exit 125"])
            .exits(1);
        assert_eq!(ran.cause(), last);
    }
}

/// An engine that does not know the flag is never given it.
#[test]
fn a_foreign_engine_is_not_asked_what_ended_the_command() {
    let world = World::new();
    world.behave(
        "version",
        "Client Version: v0.40.0\nServer Version: v0.40.0",
    );
    world.crabbox(&["run", "--", "sh", "-c", "exit 5"]).exits(5);
    assert!(!world.call("exec").line().contains("--status-file"));
}

#[test]
fn keep_keeps_and_says_nothing_of_a_failure() {
    let world = World::new();
    world
        .crabbox(&["run", "--keep", "--slug", "a", "--", "false"])
        .exits(1);
    assert_eq!(world.sandboxes().len(), 1);
    assert_eq!(
        world.crabbox(&["run", "--id", "a", "--", "echo", "x"]).ok(),
        "x\n"
    );
    assert_eq!(
        world.sandboxes().len(),
        1,
        "a reused lease is never removed by a run"
    );
    world
        .crabbox(&["run", "--keep=false", "--", "true"])
        .exits(0);
    assert_eq!(world.sandboxes().len(), 1);
}

#[test]
fn outside_a_repository_the_directory_itself_is_the_workspace() {
    let world = World::new();
    let dir = world.path("plain");
    fs::create_dir(&dir).unwrap();
    assert_eq!(
        world.within(&dir, &["run", "--", "pwd"]).ok(),
        format!("{}\n", dir.display())
    );
    let create = world.call("create").line();
    assert!(create.contains("--name crabbox-plain-"), "{create}");
}

#[test]
fn a_reader_that_goes_away_does_not_hang_the_run() {
    let world = World::new();
    let mut child = world.spawn(&["run", "--", "sh", "-c", "yes | head -c 10000000"]);
    drop(child.stdout.take());
    child.wait_with_output().unwrap();
    world.is_clean();
}

/// A daemon that the engine starts must not keep the pipe open that our caller reads from.
#[test]
fn children_inherit_no_output_of_ours() {
    let world = World::new();
    let program = world.path("bin/sbx");
    let original = fs::read_to_string(&program).unwrap();
    let leak = "import os, sys\nfds = [fd for fd in os.listdir('/proc/self/fd') if int(fd) > 2]\nkept = [os.readlink('/proc/self/fd/' + fd) for fd in fds if os.path.exists('/proc/self/fd/' + fd)]\nopen(os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), 'engine', 'fds'), 'a').write('\\n'.join(kept) + '\\n')\n";
    let (shebang, rest) = original.split_once('\n').unwrap();
    let fresh = world.path("bin/other");
    write(&fresh, format!("{shebang}\n{leak}{rest}"));
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).unwrap();
    let copied = std::process::Command::new("cp")
        .args([&fresh, &program])
        .status()
        .unwrap();
    assert!(copied.success());
    let mut command = world.command(&["run", "--", "true"]);
    let file = fs::File::create(world.path("stdout")).unwrap();
    assert!(command.stdout(file).status().unwrap().success());
    let kept = fs::read_to_string(world.path("engine/fds")).unwrap();
    assert!(
        !kept.contains(world.path("stdout").to_str().unwrap()),
        "{kept}"
    );
}

/// The words that the engine is given after the sandbox's name.
fn given(world: &World, args: &[&str]) -> Vec<String> {
    world.forget_calls();
    world.crabbox(&[&["run"], args].concat()).exits(0);
    let mut argv = world.call("exec").argv;
    let name = argv
        .iter()
        .position(|word| word.starts_with("crabbox-my-app-"));
    argv.split_off(name.unwrap() + 1)
}

#[test]
fn what_needs_a_shell_gets_a_login_shell_and_the_rest_gets_none() {
    let world = World::new();
    for (args, expected) in [
        (&["--", "echo", "a b"][..], &["echo", "a b"][..]),
        (
            &["--", "echo a && echo b"],
            &["sh", "-lc", "echo a && echo b"],
        ),
        (
            &["--", "echo", "a b", "&&", "true"],
            &["sh", "-lc", "'echo' 'a b' && 'true'"],
        ),
        (
            &["--", "A=1 2", "printenv", "A"],
            &["sh", "-lc", "A='1 2' 'printenv' 'A'"],
        ),
        (
            &["--shell", "--", "echo", "a", "b"],
            &["sh", "-lc", "echo a b"],
        ),
    ] {
        assert_eq!(given(&world, args), expected, "{args:?}");
    }
}
