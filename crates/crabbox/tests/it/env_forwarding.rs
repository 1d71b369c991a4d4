//! Variables: which ones go with a command, how, and what is never seen of them.

use std::io::Read;
use std::process::Stdio;

use rustix::process::Signal;

use crate::world::{Ran, World, end, signal, write};

const SECRET: &str = "s3cr3t-hunter2-value";

/// Nothing of the value anywhere: no command line, no output, no file of ours.
#[track_caller]
fn unseen(world: &World, ran: &Ran) {
    assert!(!ran.err.contains(SECRET), "{}", ran.err);
    for call in world.calls() {
        assert!(!call.line().contains(SECRET), "{}", call.line());
    }
    let found = std::process::Command::new("grep")
        .args(["-rl", SECRET])
        .arg(world.state())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[test]
fn only_what_is_allowed_is_forwarded() {
    let world = World::new();
    let env = [
        ("CI", "1"),
        ("NODE_OPTIONS", "--x"),
        ("OTHER", "no"),
        ("WANTED", "a b = c # d"),
        ("PRE_A", "1"),
        ("PRE_B", ""),
    ];
    let ran = world.with_env(&env, &["run", "--", "env"]).exits(0);
    assert!(
        ran.out.contains("CI=1\n") && ran.out.contains("NODE_OPTIONS=--x\n"),
        "{}",
        ran.out
    );
    assert!(
        !ran.out.contains("OTHER") && !ran.out.contains("WANTED"),
        "{}",
        ran.out
    );
    assert!(
        !ran.err.contains("env forwarding"),
        "only where it was asked for"
    );
    let args = [
        "run",
        "--allow-env",
        "WANTED,PRE_*",
        "--allow-env",
        "NOT_SET",
        "--",
        "env",
    ];
    let ran = world.with_env(&env, &args).exits(0);
    assert!(
        ran.out.contains("WANTED=a b = c # d\n") && ran.out.contains("PRE_A=1\nPRE_B=\n"),
        "{}",
        ran.out
    );
    assert!(
        !ran.out.contains("OTHER") && !ran.out.contains("NOT_SET"),
        "{}",
        ran.out
    );
    ran.says("env forwarding provider=docker-sandbox behavior=forwarded vars=CI=set,NODE_OPTIONS=set,PRE_A=set,PRE_B=empty,WANTED=set");
    // The variable replaces the list of the files.
    let env = [
        ("CI", "1"),
        ("OTHER", "yes"),
        ("CRABBOX_ENV_ALLOW", "OTHER"),
    ];
    let ran = world.with_env(&env, &["run", "--", "env"]).exits(0);
    assert!(
        ran.out.contains("OTHER=yes\n") && !ran.out.contains("CI="),
        "{}",
        ran.out
    );
    ran.says("env forwarding provider=docker-sandbox");
}

#[test]
fn a_secret_goes_through_a_private_file_that_is_gone_afterwards() {
    let world = World::new();
    let env = [("API_TOKEN", SECRET)];
    let args = [
        "run",
        "--allow-env",
        "API_TOKEN",
        "--label",
        "l",
        "--timing-json",
        "--",
        "sh",
        "-c",
        "printf %s $API_TOKEN | wc -c",
    ];
    let ran = world.with_env(&env, &args).exits(0);
    assert_eq!(ran.out.trim(), SECRET.len().to_string());
    let ran = ran.says(&format!("API_TOKEN=set len={} secret=true", SECRET.len()));
    unseen(&world, &ran);
    let file = world.env_files().remove(0);
    assert_eq!(file["mode"], "0o600");
    assert!(
        file["content"]
            .as_str()
            .unwrap()
            .contains(&format!("API_TOKEN={SECRET}\n"))
    );
    assert!(
        file["file"]
            .as_str()
            .unwrap()
            .starts_with(world.state().to_str().unwrap())
    );
    assert_eq!(world.env_dir(), [""; 0]);
    // Sorted, one per line, with the names of the run.
    let content = file["content"].as_str().unwrap().to_owned();
    let names: Vec<_> = content
        .lines()
        .map(|line| line.split('=').next().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "API_TOKEN",
            "CRABBOX_LEASE_ID",
            "CRABBOX_RUN_ID",
            "CRABBOX_SLUG"
        ]
    );
}

/// What the command itself prints goes to the user as it is, and to the log without the secret.
#[test]
fn logs_and_history_are_redacted() {
    let world = World::new();
    let env = [("API_TOKEN", SECRET)];
    let shown = format!("echo {SECRET}; echo {SECRET} >&2");
    let args = [
        "run",
        "--allow-env",
        "API_TOKEN",
        "--label",
        SECRET,
        "--shell",
        &shown,
    ];
    let ran = world.with_env(&env, &args).exits(0);
    assert_eq!(ran.out, format!("{SECRET}\n"));
    let history = world.crabbox(&["history", "--json"]).ok();
    assert!(!history.contains(SECRET), "{history}");
    for args in [&["logs"][..], &["logs", "--stderr"]] {
        assert_eq!(world.crabbox(args).ok(), "[redacted]\n");
    }
}

#[test]
fn the_env_file_is_gone_however_a_run_ends() {
    let world = World::new();
    world.crabbox(&["run", "--", "false"]).exits(1);
    world.behave("fail-before-exec", "126\nno exec");
    world.crabbox(&["run", "--", "true"]);
    world.behave_well("fail-before-exec");
    let mut run = world.spawn(&["run", "--", "sh", "-c", "echo; exec sleep 1000"]);
    run.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    assert_eq!(world.env_dir().len(), 1);
    signal(&run, Signal::INT);
    end(run).exits(130);
    world.is_clean();
}

#[test]
fn the_env_file_of_a_killed_run_is_swept_by_whatever_comes_next() {
    let world = World::new();
    world.warm("a");
    let env = [("API_TOKEN", SECRET)];
    let start = |args: &[&str]| {
        let mut command = world.command(args);
        command
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let args = [
        "run",
        "-i",
        "--id",
        "a",
        "--allow-env",
        "API_TOKEN",
        "--",
        "sh",
        "-c",
        "echo; read line",
    ];
    let (mut dead, mut alive) = (start(&args), start(&args));
    for child in [&mut dead, &mut alive] {
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }
    signal(&dead, Signal::KILL);
    dead.wait().unwrap();
    assert_eq!(world.env_dir().len(), 2);
    let left = world
        .env_dir()
        .into_iter()
        .find(|name| name.starts_with(&format!("{}-", dead.id())));
    let left = world.state().join("env").join(left.unwrap());
    for args in [
        &["run", "--id", "a", "--", "true"][..],
        &["warmup", "--slug", "b"],
        &["stop", "b"],
        &["cleanup"],
    ] {
        write(&left, "API_TOKEN=x\n");
        world.crabbox(args).exits(0);
        // The living keep theirs.
        assert_eq!(world.env_dir().len(), 1, "{args:?}");
    }
    drop(alive.stdin.take());
    alive.wait().unwrap();
    assert_eq!(world.env_dir(), [""; 0]);
}

#[test]
fn values_that_a_line_cannot_hold_are_refused_by_name() {
    let world = World::new();
    for value in ["a\nb", "a\rb"] {
        let ran = world
            .with_env(
                &[("BAD", value)],
                &["run", "--allow-env", "BAD", "--", "true"],
            )
            .exits(2);
        assert_eq!(
            ran.cause(),
            "cannot forward variable `BAD`: value contains a line break or a NUL character"
        );
    }
    // Who does not ask for it is not bothered.
    world
        .with_env(&[("BAD", "a\nb")], &["run", "--", "true"])
        .exits(0);
    assert_eq!(world.count("create"), 1);
}

#[test]
fn reserved_variables_cannot_be_overridden() {
    let world = World::new();
    let env = [
        ("CRABBOX_SLUG", "mine"),
        ("CRABBOX_LEASE_ID", "mine"),
        ("CRABBOX_RUN_ID", "mine"),
    ];
    let ran = world
        .with_env(
            &env,
            &[
                "run",
                "--slug",
                "real",
                "--allow-env",
                "CRABBOX_*",
                "--",
                "env",
            ],
        )
        .exits(0);
    assert!(ran.out.contains("CRABBOX_SLUG=real\n"), "{}", ran.out);
    assert!(!ran.out.contains("mine"), "{}", ran.out);
}

#[test]
fn a_profile_file_gives_what_is_allowed() {
    let world = World::new();
    write(
        &world.repo().join("p.env"),
        "# comment\nexport A='one two'\nB=\"q\\\"q\"\nC=plain # why\nNOT_ALLOWED=x\nD=$(rm -rf /)\nE=`id`\n",
    );
    write(&world.repo().join("q.env"), "A=later\n");
    let args = [
        "run",
        "--allow-env",
        "A,B,C,D,E",
        "--env-from-profile",
        "p.env",
        "--",
        "env",
    ];
    let ran = world.with_env(&[("C", "local")], &args).exits(0);
    assert!(
        ran.out.contains("A=one two\nB=q\"q\nC=plain\n"),
        "{}",
        ran.out
    );
    assert!(
        !ran.out.contains("NOT_ALLOWED") && !ran.out.contains("\nD=") && !ran.out.contains("\nE="),
        "{}",
        ran.out
    );
    ran.says("p.env:6: skipped `D`")
        .says("p.env:7: skipped `E`");
    let args = [
        "run",
        "--allow-env",
        "A",
        "--env-from-profile",
        "p.env",
        "--env-from-profile",
        "q.env",
        "--",
        "printenv",
        "A",
    ];
    assert_eq!(world.crabbox(&args).ok(), "later\n");
    let ran = world
        .crabbox(&["run", "--env-from-profile", "missing.env", "--", "true"])
        .exits(2);
    assert!(ran.cause().contains("missing.env"), "{}", ran.cause());
}

#[test]
fn a_configured_profile_has_literals_and_names() {
    let world = World::new();
    world.user_config(
        "profile: ci\nprofiles:\n  ci:\n    env:\n      FIXED: literal\n    envAllow: [EXTRA]\n",
    );
    let ran = world
        .with_env(&[("EXTRA", "e"), ("FIXED", "mine")], &["run", "--", "env"])
        .exits(0);
    assert!(
        ran.out.contains("FIXED=literal\n") && ran.out.contains("EXTRA=e\n"),
        "{}",
        ran.out
    );
    let ran = world
        .with_env(
            &[("EXTRA", "e")],
            &["run", "--profile", "none", "--", "env"],
        )
        .exits(0);
    assert!(
        !ran.out.contains("EXTRA") && !ran.out.contains("FIXED"),
        "{}",
        ran.out
    );
}

/// The variable is the whole list: what a profile would add does not go with it.
#[test]
fn the_variable_blocks_the_names_of_a_profile() {
    let world = World::new();
    world.user_config("profile: ci\nprofiles:\n  ci:\n    envAllow: [EXTRA]\n");
    let env = [("EXTRA", "e"), ("OTHER", "o"), ("ADDED", "a")];
    let run = ["run", "--allow-env", "ADDED", "--", "env"];
    let said = |allow: &[(&str, &str)]| {
        let ran = world.with_env(&[&env[..], allow].concat(), &run).exits(0);
        let has = |name: &str| ran.out.contains(&format!("{name}="));
        ["EXTRA", "OTHER", "ADDED"].map(has)
    };
    assert_eq!(said(&[]), [true, false, true]);
    let allow = ("CRABBOX_ENV_ALLOW", "OTHER");
    assert_eq!(said(&[allow]), [false, true, true]);
    let nothing = ("CRABBOX_ENV_ALLOW", "none");
    assert_eq!(said(&[nothing]), [false, false, true]);
}

/// A user who names a file wants to know which of its variables were used.
#[test]
fn a_profile_file_alone_is_reason_enough_to_say_what_is_forwarded() {
    let world = World::new();
    write(&world.repo().join("p.env"), "CI=1\nNOT_ALLOWED=x\n");
    let args = ["run", "--env-from-profile", "p.env", "--", "true"];
    let ran = world.crabbox(&args).exits(0);
    ran.says("env forwarding provider=docker-sandbox behavior=forwarded vars=CI=set\n");
}

/// Our own engine says who ended the command, in memory of ours: nothing can be left of it.
#[test]
fn the_status_has_no_file() {
    let world = World::of_our_engine();
    world.crabbox(&["run", "--", "sh", "-c", "exit 3"]).exits(3);
    let argv = world.call("exec").argv;
    let at = argv
        .iter()
        .position(|word| word == "--status-file")
        .unwrap();
    assert!(argv[at + 1].starts_with("/proc/"), "{argv:?}");
    world.is_clean();
    assert_eq!(world.env_dir(), [""; 0]);
}

#[test]
fn every_secret_shape_is_marked_and_no_value_is_shown() {
    let world = World::new();
    let shapes = [
        "KEY",
        "TOKEN",
        "SECRET",
        "PASSWORD",
        "PASS",
        "CREDENTIAL",
        "AUTH",
    ];
    let names: Vec<String> = shapes.iter().map(|shape| format!("T_{shape}_X")).collect();
    let mut env: Vec<(&str, &str)> = names
        .iter()
        .map(|name| (name.as_str(), "v4lue-of-it"))
        .collect();
    env.push(("T_PLAIN", "v4lue-of-it"));
    let ran = world.with_env(&env, &["run", "--allow-env", "T_*", "--", "true"]);
    let mut ran = ran.exits(0).never_says("v4lue-of-it").says("T_PLAIN=set");
    for name in &names {
        ran = ran.says(&format!("{name}=set len=11 secret=true"));
    }
    ran.never_says("T_PLAIN=set len");
}

/// Of the seed: Docker's own credentials included.
#[test]
fn no_credential_is_ever_an_argument() {
    let world = World::new();
    let secret = "hunter2-of-docker";
    let env = [
        ("DOCKER_PASSWORD", secret),
        ("DOCKER_TOKEN", secret),
        ("DOCKER_AUTH_CONFIG", secret),
        ("CRABBOX_DOCKER_SANDBOX_TEMPLATE", "t"),
    ];
    let run = |args: &[&str]| world.with_env(&env, args).exits(0).never_says(secret);
    run(&["warmup", "--slug", "a"]);
    run(&["run", "--id", "a", "--allow-env", "DOCKER_*", "--", "true"]);
    run(&["run", "--", "true"]);
    run(&["list"]);
    run(&["doctor"]);
    run(&["ports", "--id", "a"]);
    run(&["cp", "--id", "a", "README", "SANDBOX:/tmp/x"]);
    run(&["stop", "a"]);
    let given = world.env_files();
    assert!(given.iter().any(|file| file.to_string().contains(secret)));
    let calls = world.calls();
    assert!(calls.len() > 8, "{calls:?}");
    for call in calls {
        assert!(!call.line().contains(secret), "{call:?}");
    }
}
