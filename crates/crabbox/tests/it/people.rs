//! What a person at a terminal sees, and what programs still get.

use crate::world::{World, on_terminal, write};

/// The command on a terminal: its exit code and what it shows.
fn seen(world: &World, args: &[&str]) -> (i32, String) {
    on_terminal(world.command(args)).end()
}

#[test]
fn a_run_on_a_terminal_ends_with_one_line() {
    let world = World::new();
    let (code, shown) = seen(&world, &["run", "--", "echo", "hi"]);
    assert_eq!(code, 0, "{shown}");
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "hi", "{shown}");
    assert!(lines.last().unwrap().starts_with("✓ "), "{shown}");
    assert!(lines.last().unwrap().ends_with("s  exit 0"), "{shown}");
    for parsed in ["leased ", "provider=", "run summary"] {
        assert!(!shown.contains(parsed), "{shown}");
    }
    let (code, shown) = seen(&world, &["run", "--", "sh", "-c", "exit 7"]);
    assert_eq!(code, 7);
    let last = shown.lines().last().unwrap();
    assert!(
        last.starts_with("✗ ") && last.ends_with("s  exit 7"),
        "{shown}"
    );
    world.is_clean();
}

#[test]
fn verbose_and_programs_keep_the_lines_that_they_parse() {
    let world = World::new();
    let (_, shown) = seen(&world, &["run", "--verbose", "--", "true"]);
    for parsed in [
        "leased dsbx_",
        "provider=docker-sandbox lease=",
        "run summary",
    ] {
        assert!(shown.contains(parsed), "{shown}");
    }
    assert!(!shown.contains('✓'), "{shown}");
    world
        .crabbox(&["run", "--", "true"])
        .exits(0)
        .says("leased dsbx_")
        .says("run summary")
        .never_says("✓");
}

#[test]
fn quiet_says_nothing_but_failures_of_ours() {
    let world = World::new();
    for code in [0, 7] {
        let script = format!("exit {code}");
        let ran = world
            .crabbox(&["run", "-q", "--", "sh", "-c", &script])
            .exits(code);
        assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));
    }
    let ran = world
        .crabbox(&["run", "-q", "--id", "none", "--", "true"])
        .exits(4);
    assert!(ran.cause().contains("not claimed"), "{}", ran.err);
}

#[test]
fn what_takes_long_is_told_of_once() {
    let world = World::of_our_engine();
    let mut gate = world.gate("create", "before");
    let mut ran = on_terminal(world.command(&["run", "--", "true"]));
    gate.wait();
    ran.expect("Creating a sandbox (sbx at ");
    gate.open();
    let (code, shown) = ran.end();
    assert_eq!(code, 0, "{shown}");
    assert_eq!(shown.matches("Creating a sandbox").count(), 1, "{shown}");
    assert!(world.call("create").line().contains(" --progress "));
}

#[test]
fn a_kept_lease_is_named_at_the_end() {
    let world = World::new();
    let (_, shown) = seen(&world, &["run", "--keep", "--slug", "fix", "--", "true"]);
    assert!(
        shown.contains(
            "kept fix\r\n  run in it: crabbox run --id fix -- COMMAND\r\n  remove it: crabbox stop fix\r\n"
        ),
        "{shown}"
    );
    let (_, shown) = seen(&world, &["stop", "fix"]);
    assert_eq!(shown, "✓ removed fix\r\n");
    let (_, shown) = seen(&world, &["warmup", "--slug", "two"]);
    assert!(shown.contains("two is ready"), "{shown}");
}

#[test]
fn a_line_that_the_command_did_not_end_is_ended_before_ours() {
    for world in [World::new(), World::of_our_engine()] {
        for verbose in [&[][..], &["--verbose"]] {
            let run = [&["run"][..], verbose, &["--", "printf", "part"]].concat();
            let (_, shown) = seen(&world, &run);
            assert!(shown.contains("part\r\n"), "{shown}");
            let run = [&["run"][..], verbose, &["--", "echo", "whole"]].concat();
            let (_, shown) = seen(&world, &run);
            assert!(!shown.contains("whole\r\n\r\n"), "{shown}");
        }
    }
}

#[test]
fn a_lease_that_stays_after_a_failure_is_named_once() {
    let world = World::of_our_engine();
    let run = ["run", "--keep-on-failure", "--slug", "one", "--", "false"];
    let (_, shown) = seen(&world, &run);
    assert_eq!(shown.matches("one").count(), 3, "{shown}");
    assert!(shown.contains("kept one\r\n  run in it: "), "{shown}");
    world.behave("status", r#"{"by":"engine","code":125}"#);
    for keep in ["--keep", "--keep-on-failure"] {
        let run = ["run", keep, "--slug", "two", "--", "sh", "-c", "exit 125"];
        let (code, shown) = seen(&world, &run);
        assert_eq!(code, 1, "{shown}");
        let (before, after) = shown.split_once("kept two\r\n").unwrap();
        assert!(!before.contains("error: "), "{shown}");
        assert!(after.contains("error: "), "{shown}");
        world.crabbox(&["stop", "two"]).exits(0);
    }
}

#[test]
fn cleanup_names_leases_by_their_slugs() {
    let world = World::new();
    let idle = world.warm("idle");
    world.warm("young");
    world.age(&idle);
    let (_, shown) = seen(&world, &["cleanup", "--dry-run"]);
    assert!(shown.contains("would remove idle: "), "{shown}");
    let (_, shown) = seen(&world, &["cleanup"]);
    assert!(shown.contains("✓ removed idle: "), "{shown}");
    assert!(
        shown.contains("kept young: idle timeout not reached"),
        "{shown}"
    );
    assert!(!shown.contains("lease="), "{shown}");
}

#[test]
fn lists_have_headers_and_a_sentence_when_empty() {
    let world = World::new();
    let (_, shown) = seen(&world, &["list"]);
    assert!(shown.starts_with("No leases. "), "{shown}");
    let (_, shown) = seen(&world, &["history"]);
    assert!(shown.starts_with("No runs recorded. "), "{shown}");
    let (_, shown) = seen(&world, &["job", "list"]);
    assert!(shown.starts_with("No jobs. "), "{shown}");
    let (_, shown) = seen(&world, &["claims", "list"]);
    assert!(shown.starts_with("No claims: "), "{shown}");
    let (_, shown) = seen(&world, &["trust", "--list"]);
    assert!(shown.starts_with("No trusted files."), "{shown}");
    for command in [
        &["list"][..],
        &["history"],
        &["job", "list"],
        &["trust", "--list"],
    ] {
        assert_eq!(world.crabbox(command).exits(0).out, "");
    }
    world.warm("fix");
    world
        .crabbox(&["run", "--id", "fix", "--", "true"])
        .exits(0);
    for (args, header, cell) in [
        (&["list"][..], "SLUG  STATE", "fix   running"),
        (
            &["status", "fix"],
            "SLUG  STATE    READY",
            "fix   running  yes",
        ),
        (&["history"], "RUN ", "succeeded  0 "),
    ] {
        let (code, shown) = seen(&world, args);
        assert_eq!(code, 0);
        assert!(shown.starts_with(header), "{args:?}: {shown}");
        assert!(shown.contains(cell), "{args:?}: {shown}");
        let verbose = [args, &["--verbose"]].concat();
        let (_, verbose) = seen(&world, &verbose);
        let piped = world.crabbox(args).exits(0).out;
        let first = |text: &str| text.split_whitespace().next().map(str::to_owned);
        assert_eq!(first(&verbose), first(&piped), "{args:?}");
        assert!(!piped.contains(header), "{args:?}: {piped}");
    }
}

#[test]
fn providers_are_a_table() {
    let (_, shown) = seen(&World::new(), &["providers"]);
    assert!(shown.starts_with("PROVIDER "), "{shown}");
    let columns = shown.lines().map(|line| line.find("linux"));
    let places: Vec<_> = columns.skip(1).collect();
    assert!(places.iter().all(|place| *place == places[0]), "{shown}");
}

#[test]
fn leases_that_are_not_listed_are_counted_on_a_terminal() {
    let world = World::new();
    let note = "note: 1 lease of provider=elsewhere: crabbox list --provider elsewhere\r\n";
    let lease = world.warm("theirs");
    world.edit_claim(&lease, |claim| claim["provider"] = "elsewhere".into());
    assert_eq!(seen(&world, &["list"]), (0, note.to_owned()));
    world.warm("ours");
    let (_, shown) = seen(&world, &["list"]);
    assert!(shown.starts_with("SLUG"), "{shown}");
    assert!(shown.ends_with(note), "{shown}");
}

#[test]
fn warnings_of_the_engine_are_passed_on() {
    let world = World::of_our_engine();
    let notice = "No network policy was chosen: balanced is used";
    let says = format!("{notice}\nwarning: the workspace contains a socket\n");
    world.behave("create-says", &says);
    world
        .crabbox(&["run", "--", "true"])
        .exits(0)
        .says(notice)
        .says("warning: the workspace contains a socket");
    world
        .crabbox(&["run", "-q", "--", "true"])
        .exits(0)
        .never_says("socket");
    // Another engine may say anything; its warnings count.
    let foreign = World::new();
    foreign.behave("create-says", &says);
    foreign
        .crabbox(&["run", "--", "true"])
        .exits(0)
        .says("warning: the workspace contains a socket")
        .never_says(notice);
}

#[test]
fn what_was_denied_is_told_at_the_end_with_a_command_that_helps() {
    let world = World::of_our_engine();
    world.behave(
        "suggest",
        r#"{"rules":[{"resource":"*.x.test:443","covers":["a.x.test:443","b.x.test:443"]}],
            "unsolved":[{"target":"10.0.0.1:22"}]}"#,
    );
    let ran = world.crabbox(&["run", "--", "sh", "-c", "exit 3"]).exits(3);
    let repo = world.repo();
    let warning = "warning: the network policy denied 10.0.0.1:22, a.x.test:443, b.x.test:443";
    let hint = format!(
        "hint: sbx policy allow network --repo {} '*.x.test:443'",
        repo.display()
    );
    let ran = ran.says(warning).says(&hint);
    assert_eq!(ran.cause(), "docker-sandbox run exited 3");
    // Only what this run was denied, and before its sandbox is gone.
    let call = world
        .calls()
        .into_iter()
        .find(|call| call.verb() == "policy");
    let line = call.unwrap().line();
    assert!(line.starts_with("policy suggest crabbox-my-app-"), "{line}");
    assert!(line.contains(" --since 20"), "{line}");
    // Another engine has no such command.
    let foreign = World::new();
    foreign.crabbox(&["run", "--", "true"]).exits(0);
    assert_eq!(foreign.count("policy"), 0);
}

#[test]
fn our_engine_gives_a_terminal_by_itself() {
    let world = World::of_our_engine();
    let script = "test -t 0 && test -t 1 && echo both";
    let run = ["run", "--", "sh", "-c", script];
    let exec = |world: &World| world.call("exec").line();
    // The stand-in hands its own stdin over, and has only that.
    let (_, shown) = seen(&world, &["run", "--", "sh", "-c", "test -t 0 && echo in"]);
    assert!(shown.contains("in\r\n"), "{shown}");
    assert!(
        exec(&world).starts_with("exec -i -t --detach-keys none "),
        "{}",
        exec(&world)
    );
    let log = world.crabbox(&["logs"]).exits(0);
    assert_eq!(log.out, "in\n");
    log.says("had a terminal: stdout and stderr are one stream");
    for flags in [&["--no-tty"][..], &["-q"], &["--json"], &["--timing-json"]] {
        world.forget_calls();
        let args = [&["run"], flags, &run[1..]].concat();
        seen(&world, &args);
        assert!(exec(&world).starts_with("exec --workdir "), "{flags:?}");
    }
    world.forget_calls();
    let mut command = world.command(&run);
    command.env("CI", "true");
    on_terminal(command).end();
    assert!(exec(&world).starts_with("exec --workdir "));
    // Not all three are terminals.
    world.forget_calls();
    world.crabbox(&run).exits(1);
    assert!(!exec(&world).starts_with("exec -i -t "));
    let foreign = World::new();
    seen(&foreign, &run);
    assert!(exec(&foreign).starts_with("exec --workdir "));
}

#[test]
fn a_subdirectory_runs_in_the_root_unless_asked_otherwise() {
    let world = World::new();
    let (root, sub) = (world.repo(), world.repo().join("crates/one"));
    write(&sub.join("x"), "");
    let note = format!(
        "note: running in the repository root, {}; --here runs in the current directory",
        root.display()
    );
    let ran = world
        .within(&sub, &["run", "--", "pwd"])
        .exits(0)
        .says(&note);
    assert_eq!(ran.out, format!("{}\n", root.display()));
    assert_eq!(
        ran.err.matches("note: running in").count(),
        1,
        "{}",
        ran.err
    );
    let here = world.within(&sub, &["run", "--here", "--", "pwd"]).exits(0);
    assert_eq!(here.out, format!("{}\n", sub.display()));
    here.never_says("note: running in");
    world
        .within(&sub, &["run", "--workdir", "crates", "--", "pwd"])
        .exits(0)
        .never_says("note: running in");
    world
        .crabbox(&["run", "--here", "--", "pwd"])
        .exits(0)
        .never_says("note:");
    world
        .within(&sub, &["run", "--here", "--workdir", "x", "--", "pwd"])
        .exits(2);
    // The same in a lease that exists.
    world.warm("fix");
    let again = ["run", "--id", "fix", "--", "pwd"];
    let ran = world.within(&sub, &again).exits(0).says(&note);
    assert_eq!(ran.out, format!("{}\n", root.display()));
    assert_eq!(ran.err.matches("note:").count(), 1, "{}", ran.err);
    world
        .within(&sub, &["run", "--id", "fix", "--here", "--", "pwd"])
        .exits(0)
        .never_says("note:");
}

#[test]
fn a_program_in_the_current_directory_is_not_run_as_a_script() {
    let world = World::new();
    let sub = world.repo().join("crates/one");
    let tool = sub.join("my tool");
    write(&tool, "#!/bin/sh\necho tool\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&tool, mode).unwrap();
    let ran = world
        .within(&sub, &["run", "--here", "--", "./my tool"])
        .exits(0);
    assert_eq!(ran.out, "tool\n");
    // In the root there is none: there it is a script.
    world.within(&sub, &["run", "--", "./my tool"]).exits(127);
}

#[test]
fn variables_of_the_command_line_travel_in_the_env_file_alone() {
    let world = World::new();
    write(
        &world.path("vars"),
        "A=two words\nDB_PASSWORD=hunter2\nFROM_HERE\n",
    );
    let file = world.path("vars").display().to_string();
    let script = "echo $A,$DB_PASSWORD,$FROM_HERE,$B,$API_TOKEN";
    let args = [
        "run",
        "--env-file",
        &file,
        "-e",
        "B=b",
        "-e",
        "API_TOKEN",
        "--",
        "sh",
        "-c",
        script,
    ];
    let ran = world
        .with_env(&[("FROM_HERE", "here"), ("API_TOKEN", "tok-4711")], &args)
        .exits(0);
    assert_eq!(ran.out, "two words,hunter2,here,b,tok-4711\n");
    for call in world.calls() {
        for value in ["two words", "hunter2", "tok-4711", "B=b"] {
            let line = call.line();
            assert!(call.verb() == "exec" || !line.contains(value), "{line}");
            let own = line.split(" sh -c ").next().unwrap();
            assert!(!own.contains(value), "{line}");
        }
    }
    // The log knows which of them are secret.
    let log = world.crabbox(&["logs"]).exits(0).out;
    assert!(
        !log.contains("hunter2") && !log.contains("tok-4711"),
        "{log}"
    );
    assert_eq!(world.env_dir(), [""; 0]);
}

#[test]
fn a_secret_on_the_command_line_is_refused() {
    let world = World::new();
    let ran = world
        .crabbox(&["run", "-e", "API_TOKEN=hunter2", "--", "true"])
        .exits(2)
        .says("use `-e API_TOKEN`")
        .never_says("hunter2");
    assert_eq!(
        ran.cause(),
        "-e: the value of API_TOKEN would be on the command line, where other users see it"
    );
    world
        .crabbox(&["run", "-e", "NOT_SET", "--", "true"])
        .exits(0)
        .says("warning: -e NOT_SET: not set here, not passed on");
    write(&world.path("bad"), "A B=x-secret\n");
    let bad = world.path("bad").display().to_string();
    world
        .crabbox(&["run", "--env-file", &bad, "--", "true"])
        .exits(2)
        .never_says("x-secret");
    world.is_clean();
}
