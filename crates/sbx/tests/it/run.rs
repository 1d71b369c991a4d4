//! `sbx run`: which sandbox it means, its streams, what it leaves behind.

use std::fs;
use std::io::Read;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::{Ran, World, eventually, kill, programs};

pub const TESTS: &[ModeTest] = &[
    ("run::in_a_directory_and_again", run_again),
    ("run::several_at_once_share_one_sandbox", run_at_once),
    ("run::by_name_from_anywhere", run_by_name),
    ("run::stdin_and_exit_code", run_streams),
    ("run::rm_leaves_nothing", run_rm),
    (
        "run::rm_is_the_daemons_work_when_the_client_is_killed",
        killed_rm,
    ),
    ("run::rm_does_not_end_another_command", shared_rm),
    ("run::rm_spares_a_sandbox_that_is_kept", kept_rm),
    (
        "run::one_that_is_removed_is_made_anew",
        run_while_it_is_removed,
    ),
    ("run::rm_spares_another_of_the_same_name", rm_of_a_name),
    ("run::detached_stays_up", run_detached),
    ("run::environment_of_a_session_and_of_a_sandbox", run_env),
    ("run::an_environment_file_may_be_a_pipe", run_env_pipe),
];

fn run_again(world: &'static World) {
    let dir = world.workspace();
    let name = format!("shell-{}", dir.file_name().unwrap().to_str().unwrap());
    let ran = world
        .run_in(
            &dir,
            &[
                "run",
                "shell",
                "--",
                "-c",
                "echo hi; pwd; echo kept > /home/agent/kept",
            ],
        )
        .fails(0);
    assert_eq!(ran.out, format!("hi\n{}\n", dir.display()), "{}", ran.err);
    assert!(world.names().contains(&name));
    let first = world.id(&name);
    // The same place again is the same sandbox, given by path too.
    assert_eq!(
        world
            .run_in(&dir, &["run", "shell", "--", "-c", "cat /home/agent/kept"])
            .ok(),
        "kept"
    );
    let by_path = world.run([
        "run",
        "shell",
        dir.to_str().unwrap(),
        "--",
        "-c",
        "cat /home/agent/kept",
    ]);
    assert_eq!(by_path.ok(), "kept");
    world.run(["stop", &name]).ok();
    assert_eq!(
        world
            .run_in(&dir, &["run", "shell", "--", "-c", "cat /home/agent/kept"])
            .ok(),
        "kept"
    );
    assert_eq!(world.id(&name), first);
    // A first word that is no flag stands in place of the default flags.
    world.write(&dir.join("script"), "echo \"script $1\"\n");
    assert_eq!(
        world
            .run_in(&dir, &["run", "shell", "--", "script", "arg"])
            .ok(),
        "script arg"
    );
    world.run(["rm", "--force", &name]).ok();
}

fn run_at_once(world: &'static World) {
    let dir = world.workspace();
    let start = |number: u32| -> Child {
        let script = format!("hostname; echo {number}");
        let mut command = world.sbx(["run", "shell", "--", "-c", &script]);
        command.current_dir(&dir).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let name = format!("shell-{}", dir.file_name().unwrap().to_str().unwrap());
    let children: Vec<_> = (0..6).map(start).collect();
    let _cleanup = world.adopt(&name, &dir);
    for (number, child) in children.into_iter().enumerate() {
        let ran = Ran::from(child.wait_with_output().unwrap()).fails(0);
        assert_eq!(ran.out, format!("{name}\n{number}\n"), "{}", ran.err);
    }
    let stored = world.inspect(&name);
    assert_eq!(stored["workspaces"][0]["path"], dir.to_str().unwrap());
}

fn run_by_name(world: &'static World) {
    let (dir, other) = (world.workspace(), world.workspace());
    let name = world.name("named");
    let missing = world
        .run_in(&dir, &["run", "--name", &name, "--", "-c", "true"])
        .fails(125);
    assert!(missing.err.contains("no sandbox named"), "{}", missing.err);
    world
        .run_in(&dir, &["run", "--name", &name, "shell", "--", "-c", "true"])
        .ok();
    let _cleanup = world.adopt(&name, &dir);
    let first = world.id(&name);
    // From anywhere, with and without the agent; the directory is the sandbox's.
    for args in [
        &["run", "--name", &name, "--", "-c", "pwd"][..],
        &["run", "--name", &name, "shell", "--", "-c", "pwd"],
    ] {
        assert_eq!(world.run_in(&other, args).ok(), dir.to_str().unwrap());
    }
    let deprecated = world
        .run_in(&other, &["run", &name, "--", "-c", "pwd"])
        .fails(0);
    assert_eq!(deprecated.out, format!("{}\n", dir.display()));
    assert!(deprecated.err.contains("--name"), "{}", deprecated.err);
    let elsewhere = world
        .run_in(
            &dir,
            &["run", "--name", &name, "shell", other.to_str().unwrap()],
        )
        .fails(125);
    assert!(
        elsewhere.err.contains(dir.to_str().unwrap())
            && elsewhere.err.contains(other.to_str().unwrap()),
        "{}",
        elsewhere.err
    );
    let more = world
        .run_in(
            &dir,
            &[
                "run",
                "--name",
                &name,
                "shell",
                ".",
                other.to_str().unwrap(),
            ],
        )
        .fails(125);
    assert!(
        more.err.contains("fixed when it is created"),
        "{}",
        more.err
    );
    for agent in ["claude", "no-such-agent"] {
        let wrong = world
            .run_in(&dir, &["run", "--name", &name, agent])
            .fails(125);
        assert!(wrong.err.contains(agent), "{}", wrong.err);
    }
    assert_eq!(world.id(&name), first);
    // Another name on the same directory is another sandbox.
    let second = world.name("named");
    world
        .run_in(
            &dir,
            &["run", "--name", &second, "shell", "--", "-c", "true"],
        )
        .ok();
    let _cleanup_too = world.adopt(&second, &dir);
    assert_ne!(world.id(&second), first);
}

fn run_streams(world: &'static World) {
    let dir = world.workspace();
    let name = world.name("streams");
    let args = [
        "run",
        "--name",
        &name,
        "shell",
        dir.to_str().unwrap(),
        "--",
        "-c",
    ];
    let ran = world.run_with_stdin(args.iter().chain(&["cat; echo err >&2; exit 33"]), b"in\n");
    assert_eq!((ran.code, ran.out.as_str()), (33, "in\n"), "{}", ran.err);
    assert!(ran.err.ends_with("err\n"), "{}", ran.err);
    // A script on stdin is what a shell without a terminal runs.
    let script = world.run_with_stdin(["run", "--name", &name], b"echo from stdin\nexit 34\n");
    assert_eq!(
        (script.code, script.out.as_str()),
        (34, "from stdin\n"),
        "{}",
        script.err
    );
    world
        .run(["run", "--name", &name, "--", "-c", "kill -9 $$"])
        .fails(137);
    world.run(["rm", "--force", &name]).ok();
}

fn run_rm(world: &'static World) {
    let dir = world.workspace();
    let name = world.name("once");
    let run = [
        "run",
        "--rm",
        "--name",
        &name,
        "shell",
        dir.to_str().unwrap(),
        "--",
        "-c",
    ];
    world
        .run(run.iter().chain(&["echo x > made; exit 35"]))
        .fails(35);
    assert!(!world.names().contains(&name));
    assert!(!world.state().join("vm").join(&name).exists());
    assert_eq!(fs::read_to_string(dir.join("made")).unwrap(), "x\n");
    world
        .run([
            "run",
            "--rm",
            "-d",
            "--name",
            &name,
            "shell",
            dir.to_str().unwrap(),
        ])
        .refused();
    assert!(!world.names().contains(&name));
}

fn killed_rm(world: &'static World) {
    let world = World::fresh(world.mode);
    world.settings(json!({"auto_stop_seconds": 1}));
    let dir = world.workspace();
    let begin = |name: &str| {
        let path = dir.to_str().unwrap();
        let script = "echo ready; while [ ! -e go ]; do sleep 0.05; done";
        let mut client = world
            .sbx(["run", "--rm", "--name", name, "shell", path])
            .args(["--", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        let stdout = client.stdout.as_mut().unwrap();
        stdout.read_exact(&mut ready).unwrap();
        client
    };
    let killed = |mut client: Child| {
        client.kill().unwrap();
        client.wait().unwrap();
    };
    let go = dir.join("go");
    let gone = |why: &str| {
        eventually(why, || world.names().is_empty().then_some(()));
        world.assert_no_sandboxes();
        let _ = fs::remove_file(&go);
    };

    // The command ends with its client; the sandbox is idle after that.
    let client = begin("idle");
    assert_eq!(world.inspect("idle")["temporary"], true);
    killed(client);
    world.write(&go, "");
    gone("an idle one is removed");
    // The daemon is killed as well: the next one finds it.
    let client = begin("orphan");
    assert!(kill(world.daemon_pid(), Signal::KILL));
    killed(client);
    world.run(["daemon", "start", "-d"]).ok();
    world.write(&go, "");
    gone("the next daemon removes it");
    // Its init is killed besides: nothing of it runs when the next daemon comes.
    let client = begin("dead");
    let init = world.init_pid("dead");
    assert!(kill(world.daemon_pid(), Signal::KILL));
    assert!(kill(init, Signal::KILL));
    killed(client);
    world.run(["daemon", "start", "-d"]).ok();
    gone("one that crashed is removed");
    // Stopped by another client.
    let mut client = begin("stopped");
    let ran = world.run(["stop", "stopped"]);
    assert!(ran.err.contains("stopped and removed"), "{}", ran.err);
    ran.ok();
    world.assert_no_sandboxes();
    assert_eq!(client.wait().unwrap().code(), Some(143));
    // One that was there before is not given up for a client that was killed, nor for a mistake.
    world.create("before", &dir).ok();
    killed(begin("before"));
    world.run(["stop", "before"]).ok();
    let mistaken = ["run", "--rm", "--name", "before", "--env-file", "/missing"];
    world.run(mistaken).refused();
    assert_eq!(world.inspect("before")["temporary"], false);
}

fn kept_rm(world: &'static World) {
    let dir = world.workspace();
    let name = world.name("kept");
    let path = dir.to_str().unwrap();
    let script = "echo ready; while [ ! -e go ]; do sleep 0.05; done; exit 38";
    let mut client = world
        .sbx(["run", "--rm", "--name", &name, "shell", path])
        .args(["--", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = client.stdout.as_mut().unwrap();
    stdout.read_exact(&mut [0; 6]).unwrap();
    let is_volatile = || {
        let exec = ["exec", &name, "grep", " / / ", "/proc/self/mountinfo"];
        world.run(exec).ok().contains("volatile")
    };
    assert!(is_volatile());
    // Another client decides that it stays.
    world.run(["run", "-d", "--name", &name]).ok();
    world.write(&dir.join("go"), "");
    let told = Ran::from(client.wait_with_output().unwrap()).fails(38);
    assert!(told.err.contains("is kept"), "{}", told.err);
    let shown = world.inspect(&name);
    assert_eq!(
        (&shown["status"], &shown["keep_alive"], &shown["temporary"]),
        (&json!("running"), &json!(true), &json!(false))
    );
    // The kernel mounts volatile layers again only without their mark.
    let written = ["exec", &name, "sh", "-c", "echo x > /var/tmp/written"];
    world.run(written).ok();
    world.run(["stop", &name]).ok();
    assert!(!is_volatile());
    let read = world.run(["exec", &name, "cat", "/var/tmp/written"]).ok();
    assert_eq!(read, "x");
    world.run(["rm", "--force", &name]).ok();
}

fn rm_of_a_name(world: &'static World) {
    let dir = world.workspace();
    let name = world.name("same");
    world.create(&name, &dir).ok();
    let first = world.id(&name);
    // It is in no hurry: the output of its command, more than a pipe takes, is not read.
    let mut client = world
        .sbx([
            "run",
            "--rm",
            "--name",
            &name,
            "--",
            "-c",
            "head -c 3000000 /dev/zero",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = client.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    world.run(["rm", "--force", &name]).ok();
    world.create(&name, &dir).ok();
    let second = world.id(&name);
    assert_ne!(first, second);
    stdout.read_to_end(&mut Vec::new()).unwrap();
    client.wait().unwrap();
    assert_eq!(world.id(&name), second);
    assert_eq!(world.inspect(&name)["temporary"], false);
    world.run(["rm", "--force", &name]).ok();
}

fn run_while_it_is_removed(world: &'static World) {
    let dir = world.workspace();
    let name = world.name("going");
    let path = dir.to_str().unwrap();
    // What does not end at once: the client that removes it waits for the grace.
    let stubborn = "trap '' TERM; (while :; do sleep 0.1; done) >/dev/null 2>&1 &";
    let run = ["run", "--rm", "--name", &name, "shell", path, "--", "-c"];
    let mut first = world.sbx(run.iter().chain(&[stubborn])).spawn().unwrap();
    while first.try_wait().unwrap().is_none() {
        world.run(run.iter().chain(&["exit 39"])).fails(39);
    }
    assert_eq!(first.wait().unwrap().code(), Some(0));
    eventually("the last one has removed it", || {
        (!world.names().contains(&name)).then_some(())
    });
}

fn shared_rm(world: &'static World) {
    let dir = world.workspace();
    let name = world.name("shared");
    world.create(&name, &dir).ok();
    let sandbox = world.adopt(&name, &dir);
    let mut session = sandbox.open_session();
    // Another client's command is no reason to end this one, nor the other way round.
    let ran = world
        .run(["run", "--rm", "--name", &name, "--", "-c", "exit 36"])
        .fails(36);
    assert!(ran.err.contains("is removed when it stops"), "{}", ran.err);
    assert_eq!(world.status(&name), "running");
    world.write(&sandbox.path("go"), "");
    assert_eq!(session.wait().unwrap().code(), Some(44));
    // The last one removes it.
    world
        .run(["run", "--rm", "--name", &name, "--", "-c", "exit 37"])
        .fails(37);
    assert!(!world.names().contains(&name));
}

fn run_detached(world: &'static World) {
    let dir = world.workspace();
    let name = world.name("up");
    let ran = world
        .run([
            "run",
            "-d",
            "--name",
            &name,
            "shell",
            dir.to_str().unwrap(),
            "--",
            "-c",
            "echo logged",
        ])
        .fails(0);
    let _cleanup = world.adopt(&name, &dir);
    let shown = world.inspect(&name);
    assert_eq!(
        ran.out,
        format!("{}\n", shown["id"].as_str().unwrap()),
        "{}",
        ran.err
    );
    assert_eq!(
        (&shown["status"], &shown["keep_alive"], &shown["stop_at"]),
        (&json!("running"), &json!(true), &Value::Null)
    );
    eventually("its output is in the log", || {
        (world.run(["logs", &name]).out == "logged\n").then_some(())
    });
    // Again on the one that exists, without a command.
    let again = world.run(["run", "-d", "--name", &name]).ok();
    assert_eq!(again, shown["id"].as_str().unwrap());
    // A stop ends that: the next start is an ordinary one.
    world.run(["stop", &name]).ok();
    world.run(["exec", &name, "true"]).ok();
    eventually("a deadline", || {
        world.inspect(&name)["stop_at"].is_string().then_some(())
    });
    assert_eq!(world.inspect(&name)["keep_alive"], false);
}

fn run_env(world: &'static World) {
    let dir = world.workspace();
    let name = world.name("env");
    let file = world.home().join(world.name("env"));
    world.write(&file, "FILE=from file\nBOTH=file\n");
    let create = [
        "create",
        "--name",
        &name,
        "-e",
        "STORED=kept",
        "-e",
        "BOTH=flag",
        "--env-file",
        file.to_str().unwrap(),
    ];
    world
        .run(create.iter().chain(&["shell", dir.to_str().unwrap()]))
        .ok();
    let _cleanup = world.adopt(&name, &dir);
    fs::remove_file(file).unwrap();
    let show = "echo \"$STORED|$FILE|$BOTH|${SESSION-unset}\"";
    let stored = || world.run(["exec", &name, "sh", "-c", show]).ok();
    assert_eq!(stored(), "kept|from file|flag|unset");
    let session = world.run([
        "run",
        "-e",
        "SESSION=now",
        "-e",
        "STORED=other",
        "--name",
        &name,
        "--",
        "-c",
        show,
    ]);
    assert_eq!(session.ok(), "other|from file|flag|now");
    assert_eq!(stored(), "kept|from file|flag|unset");
    assert_eq!(
        world.run(["run", "--name", &name, "--", "-c", show]).ok(),
        "kept|from file|flag|unset"
    );
    world.run(["stop", &name]).ok();
    assert_eq!(stored(), "kept|from file|flag|unset");
    // Names are shown, values are not.
    assert_eq!(
        world.inspect(&name)["env"],
        json!(["BOTH", "FILE", "STORED"])
    );
    assert!(
        !world
            .run(["inspect", "--json", &name])
            .ok()
            .contains("from file")
    );
}

/// What is read from a pipe is gone then: the sandbox and its session have to share one reading.
fn run_env_pipe(world: &'static World) {
    let dir = world.workspace();
    let name = world.name("env-pipe");
    let piped = |value: &str, path: &[&str]| {
        // The caller's own pipe: no other user's can be opened by name.
        let script = "printf 'PIPED=%s\\n' \"$0\" | \"$@\"";
        let mut shell = world.command("sh");
        shell
            .args(["-c", script, value])
            .arg(programs().join("sbx"));
        shell.args(["run", "--name", &name, "--env-file", "/dev/stdin", "shell"]);
        shell.args(path).args(["--", "-c", "echo $PIPED"]);
        Ran::from(shell.output().unwrap())
    };
    let fresh = piped("first", &[dir.to_str().unwrap()]);
    let _cleanup = world.adopt(&name, &dir);
    assert_eq!(fresh.ok(), "first");
    assert_eq!(piped("second", &[]).ok(), "second");
    let stored = world.run(["exec", &name, "sh", "-c", "echo $PIPED"]);
    assert_eq!(stored.ok(), "first");
}
