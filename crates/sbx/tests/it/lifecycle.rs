//! From `create` or `run` to `rm`: identity, what is shown, what persists, what stops by itself.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::ModeTest;
use crate::exec::pty::Session;
use crate::harness::{Mode, Ran, Sandbox, World, eventually};

pub const TESTS: &[ModeTest] = &[
    ("run::in_a_directory_and_again", run_again),
    ("run::by_name_from_anywhere", run_by_name),
    ("run::stdin_and_exit_code", run_streams),
    ("run::rm_leaves_nothing", run_rm),
    ("run::detached_stays_up", run_detached),
    ("run::environment_of_a_session_and_of_a_sandbox", run_env),
    (
        "lifecycle::the_very_first_command_is_quiet_on_stdout",
        first_command,
    ),
    ("lifecycle::ls_as_json", json_shapes),
    ("lifecycle::inspect_as_json", inspect_json),
    ("lifecycle::reading_without_a_daemon", reading_stopped),
    ("lifecycle::what_survives_a_stop", survives_stop),
    ("lifecycle::hostname_is_the_name", hostname),
    ("lifecycle::a_name_is_taken_once", name_taken),
    ("lifecycle::rm_respects_open_sessions", rm_busy),
    ("lifecycle::rm_of_many", rm_many),
    ("lifecycle::stop_ends_what_runs", stop_ends),
    ("lifecycle::idle_sandboxes_stop", auto_stop),
    ("lifecycle::auto_stop_can_be_switched_off", auto_stop_off),
    ("lifecycle::deadlines_survive_the_daemon", deadline_survives),
    (
        "lifecycle::a_create_that_fails_leaves_nothing",
        failed_create,
    ),
    ("lifecycle::a_full_disk_leaves_nothing", full_disk),
];

fn at(world: &World, dir: &Path, args: &[&str]) -> Ran {
    Ran::from(world.sbx(args).current_dir(dir).output().unwrap())
}

fn id(world: &World, name: &str) -> String {
    world.inspect(name)["id"].as_str().unwrap().to_owned()
}

fn run_again(world: &'static World) {
    let dir = world.workspace();
    let name = format!("shell-{}", dir.file_name().unwrap().to_str().unwrap());
    let ran = at(
        world,
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
    let first = id(world, &name);
    // The same place again is the same sandbox, given by path too.
    assert_eq!(
        at(
            world,
            &dir,
            &["run", "shell", "--", "-c", "cat /home/agent/kept"]
        )
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
        at(
            world,
            &dir,
            &["run", "shell", "--", "-c", "cat /home/agent/kept"]
        )
        .ok(),
        "kept"
    );
    assert_eq!(id(world, &name), first);
    // A first word that is no flag stands in place of the default flags.
    world.write(&dir.join("script"), "echo \"script $1\"\n");
    assert_eq!(
        at(world, &dir, &["run", "shell", "--", "script", "arg"]).ok(),
        "script arg"
    );
    world.run(["rm", "--force", &name]).ok();
}

fn run_by_name(world: &'static World) {
    let (dir, other) = (world.workspace(), world.workspace());
    let name = world.name("named");
    let missing = at(world, &dir, &["run", "--name", &name, "--", "-c", "true"]).fails(125);
    assert!(
        missing.err.contains("no sandbox is called"),
        "{}",
        missing.err
    );
    at(
        world,
        &dir,
        &["run", "--name", &name, "shell", "--", "-c", "true"],
    )
    .ok();
    let _cleanup = Sandbox {
        world,
        name: name.clone(),
        workspace: dir.clone(),
    };
    let first = id(world, &name);
    // From anywhere, with and without the agent; the directory is the sandbox's.
    for args in [
        &["run", "--name", &name, "--", "-c", "pwd"][..],
        &["run", "--name", &name, "shell", "--", "-c", "pwd"],
    ] {
        assert_eq!(at(world, &other, args).ok(), dir.to_str().unwrap());
    }
    let deprecated = at(world, &other, &["run", &name, "--", "-c", "pwd"]).fails(0);
    assert_eq!(deprecated.out, format!("{}\n", dir.display()));
    assert!(deprecated.err.contains("--name"), "{}", deprecated.err);
    let elsewhere = at(
        world,
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
    let more = at(
        world,
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
        let wrong = at(world, &dir, &["run", "--name", &name, agent]).fails(125);
        assert!(wrong.err.contains(agent), "{}", wrong.err);
    }
    assert_eq!(id(world, &name), first);
    // Another name on the same directory is another sandbox.
    let second = world.name("named");
    at(
        world,
        &dir,
        &["run", "--name", &second, "shell", "--", "-c", "true"],
    )
    .ok();
    let _cleanup_too = Sandbox {
        world,
        name: second.clone(),
        workspace: dir,
    };
    assert_ne!(id(world, &second), first);
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
    let _cleanup = Sandbox {
        world,
        name: name.clone(),
        workspace: dir,
    };
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
    let _cleanup = Sandbox {
        world,
        name: name.clone(),
        workspace: dir,
    };
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

fn first_command(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    // Starts the daemon and builds the template, and says nothing of it on stdout.
    let ran = at(
        &world,
        &dir,
        &["run", "shell", "--", "-c", "echo only this"],
    )
    .fails(0);
    assert_eq!(ran.out, "only this\n", "{}", ran.err);
    assert_eq!(world.daemon()["status"], "running");

    let world = World::fresh(world.mode);
    let dir = world.workspace();
    let ran = world
        .run(["create", "--name", "made", "shell", dir.to_str().unwrap()])
        .fails(0);
    assert_eq!(ran.out, "made\n", "{}", ran.err);
}

fn json_shapes(world: &'static World) {
    let extra = world.workspace();
    let read_only = format!("{}:ro", extra.display());
    let sandbox = world.sandbox_with("shape", &[&read_only]);
    let list: Value = serde_json::from_str(&world.run(["ls", "--json"]).ok()).unwrap();
    assert_eq!(
        list.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["sandboxes"]
    );
    let listed = list["sandboxes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == sandbox.name.as_str())
        .unwrap();
    let keys: Vec<&str> = listed
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    for key in [
        "name",
        "id",
        "agent",
        "status",
        "workspaces",
        "workspace",
        "ports",
        "created_at",
        "backend",
    ] {
        assert!(keys.contains(&key), "{key}: {keys:?}");
    }
    let primary = sandbox.workspace.to_str().unwrap();
    assert_eq!(listed["workspaces"], json!([primary, extra]));
    assert_eq!(listed["workspace"], primary);
    assert_eq!(
        (&listed["agent"], &listed["status"], &listed["backend"]),
        (&json!("shell"), &json!("running"), &json!("namespace"))
    );
    assert_eq!(listed["ports"], json!([]));
    assert!(!keys.contains(&"workspace_missing"));
    let shown = world.inspect(&sandbox.name);
    assert_eq!(
        (&shown["id"], &shown["created_at"]),
        (&listed["id"], &listed["created_at"])
    );
    let table = world.run(["ls"]).ok();
    assert!(
        table.lines().next().unwrap().starts_with("SANDBOX"),
        "{table}"
    );
}

fn inspect_json(world: &'static World) {
    let extra = world.workspace();
    let read_only = format!("{}:ro", extra.display());
    let sandbox = world.sandbox_with("inspect", &[&read_only]);
    let primary = sandbox.workspace.to_str().unwrap();
    let shown = world.inspect(&sandbox.name);
    let id = shown["id"].as_str().unwrap();
    assert!(
        id.len() == 36 && id.split('-').map(str::len).eq([8, 4, 4, 4, 12]),
        "{id}"
    );
    assert_eq!(
        shown["labels"],
        json!({
            "com.docker.sandbox.agent": "shell",
            "com.docker.sandbox.workingDirectory": primary,
            "com.docker.sandboxes.flavor": "namespace",
        })
    );
    assert_eq!(
        (&shown["status"], &shown["state"], &shown["template"]),
        (&json!("running"), &json!("running"), &json!("host"))
    );
    assert_eq!(shown["mode"], world.mode.name());
    shown["created_at"]
        .as_str()
        .unwrap()
        .parse::<jiff::Timestamp>()
        .unwrap();
    assert_eq!(
        shown["workspaces"],
        json!([
            {"path": primary, "readonly": false, "missing": false},
            {"path": extra, "readonly": true, "missing": false},
        ])
    );
    assert!(
        shown["isolation"].as_array().unwrap().len() > 2
            && shown["mounts"].as_array().unwrap().len() > 2
    );
    // For people it is not JSON, and has one line per label.
    let text = world.run(["inspect", &sandbox.name]).ok();
    assert!(
        text.contains("State:       running") && text.contains(primary),
        "{text}"
    );
    assert!(serde_json::from_str::<Value>(&text).is_err());
    world.run(["inspect", "--json", "no-such-sandbox"]).fails(1);
}

fn reading_stopped(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("asleep");
    world.run(["daemon", "stop"]).ok();
    for args in [&["ls", "--json"][..], &["inspect", "--json", &sandbox.name]] {
        let ran = world.run(args).fails(0);
        let value: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(ran.err, "");
        let one = value.get("sandboxes").unwrap_or(&value)[0].clone();
        assert_eq!(
            (&one["name"], &one["status"]),
            (&json!(sandbox.name), &json!("stopped"))
        );
    }
    assert_eq!(world.names(), [sandbox.name.as_str()]);
    assert_eq!(world.inspect(&sandbox.name)["stop_reason"], "daemon stop");
    let version = world.run(["version"]).ok();
    assert!(version.contains("server: unavailable"), "{version}");
    world.run(["diagnose"]);
    assert_eq!(
        world.daemon()["status"],
        "stopped",
        "reading started a daemon"
    );
    // What changes something starts it.
    assert_eq!(sandbox.exec(["echo", "awake"]).ok(), "awake");
    assert_eq!(world.daemon()["status"], "running");
}

fn survives_stop(world: &'static World) {
    let sandbox = world.sandbox_with("persist", &["-e", "STORED=kept"]);
    sandbox
        .sh("mkdir -p ~/.config/app && echo mine > ~/.config/app/rc && chmod 640 ~/.config/app/rc && touch -d @1111111111 ~/.config/app/rc")
        .ok();
    let can_install = world.mode != Mode::Single;
    if can_install {
        sandbox
            .root_sh(
                "echo etc > /etc/made; echo changed >> /etc/profile; printf '#!/bin/sh\\necho tool\\n' > /usr/local/bin/tool; \
                 chmod 755 /usr/local/bin/tool; mkdir -p /opt/app /var/lib/app; echo opt > /opt/app/f; echo var > /var/lib/app/f; \
                 rm -f /usr/bin/yes; touch -d @1222222222 /etc/made; chown daemon /opt/app/f",
            )
            .ok();
    }
    for round in ["stop", "daemon restart and stop"] {
        if round != "stop" {
            world.run(["exec", &sandbox.name, "true"]).ok();
        }
        world.run(["stop", &sandbox.name]).ok();
        let shown = world.inspect(&sandbox.name);
        assert_eq!(
            (&shown["status"], &shown["stop_reason"]),
            (&json!("stopped"), &json!("user")),
            "{round}"
        );
        assert_eq!(
            sandbox
                .sh("cat ~/.config/app/rc; stat -c '%a %Y %U' ~/.config/app/rc; echo $STORED")
                .ok(),
            "mine\n640 1111111111 agent\nkept"
        );
        if can_install {
            assert_eq!(sandbox.sh("cat /etc/made; tool; cat /opt/app/f /var/lib/app/f; stat -c '%Y %U' /etc/made; stat -c %U /opt/app/f").ok(), "etc\ntool\nopt\nvar\n1222222222 root\ndaemon");
            assert_eq!(
                sandbox
                    .sh("tail -n1 /etc/profile; test -e /usr/bin/yes || echo no yes")
                    .ok(),
                "changed\nno yes"
            );
        }
    }
    assert!(
        Path::new("/usr/bin/yes").exists()
            && !Path::new("/etc/made").exists()
            && !Path::new("/usr/local/bin/tool").exists()
    );
    // Gone with the sandbox.
    world.run(["rm", "--force", &sandbox.name]).ok();
    world
        .run([
            "create",
            "--name",
            &sandbox.name,
            "shell",
            sandbox.workspace.to_str().unwrap(),
        ])
        .ok();
    assert_eq!(
        sandbox
            .sh("test -e ~/.config/app || test -e /etc/made || echo new; echo \"$STORED\"")
            .ok(),
        "new"
    );
}

fn hostname(world: &'static World) {
    let sandbox = world.sandbox("Host.name");
    assert_eq!(
        sandbox
            .sh("hostname 2>/dev/null || cat /proc/sys/kernel/hostname; cat /etc/hostname")
            .ok(),
        format!("{0}\n{0}", sandbox.name)
    );
    // It resolves, and changing it concerns nobody else.
    sandbox
        .sh("grep -qw \"$(cat /etc/hostname)\" /etc/hosts")
        .ok();
    let before = rustix::system::uname().nodename().to_owned();
    let changed = sandbox.root_sh(
        "echo changed > /proc/sys/kernel/hostname; hostname changed; cat /proc/sys/kernel/hostname",
    );
    if world.mode != Mode::Single {
        assert!(changed.out.ends_with("changed\n"), "{changed:?}");
    }
    assert_eq!(rustix::system::uname().nodename(), before.as_c_str());
}

fn name_taken(world: &'static World) {
    let sandbox = world.sandbox("taken");
    let other = world.workspace();
    let again = world
        .run([
            "create",
            "--name",
            &sandbox.name,
            "shell",
            other.to_str().unwrap(),
        ])
        .fails(1);
    assert!(again.err.contains("exists already"), "{}", again.err);
    assert_eq!(
        sandbox.exec(["pwd"]).ok(),
        sandbox.workspace.to_str().unwrap()
    );
    // Many at once: one is made.
    let name = world.name("race");
    let clients: Vec<_> = (0..6)
        .map(|_| {
            world
                .sbx([
                    "create",
                    "-q",
                    "--name",
                    &name,
                    "shell",
                    other.to_str().unwrap(),
                ])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let ended: Vec<Ran> = clients
        .into_iter()
        .map(|client| Ran::from(client.wait_with_output().unwrap()))
        .collect();
    assert_eq!(
        ended.iter().filter(|ran| ran.code == 0).count(),
        1,
        "{ended:?}"
    );
    assert!(
        ended
            .iter()
            .all(|ran| ran.code == 0 || ran.err.contains("exists already")),
        "{ended:?}"
    );
    world.run(["exec", &name, "true"]).ok();
    world.run(["rm", "--force", &name]).ok();
    for bad in [
        "a",
        "default",
        "a_b",
        "-a",
        ".a",
        "a/b",
        "..",
        "",
        "a b",
        "ü",
        &"x".repeat(64),
        "end-",
        "end.",
    ] {
        world
            .run([
                "create",
                &format!("--name={bad}"),
                "shell",
                other.to_str().unwrap(),
            ])
            .fails(1);
    }
}

/// A command that runs until the file `go` exists.
fn open_session(sandbox: &Sandbox<'_>) -> std::process::Child {
    let script = "echo ready; while [ ! -e go ]; do sleep 0.05; done; exit 44";
    let mut client = sandbox
        .world
        .sbx(["exec", &sandbox.name, "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(client.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    client
}

fn rm_busy(world: &'static World) {
    let sandbox = world.sandbox("busy");
    let client = open_session(&sandbox);
    // Without a terminal it cannot ask.
    assert!(
        world
            .run(["rm", &sandbox.name])
            .fails(1)
            .err
            .contains("--force")
    );
    eventually("the session is counted", || {
        (world.inspect(&sandbox.name)["sessions"] == 1).then_some(())
    });
    for (answer, word) in [("n\r", "nothing was removed"), ("y\r", "1 running command")] {
        let session = Session::start(world, &["rm", &sandbox.name]);
        session.type_in(answer);
        let (code, shown) = session.end();
        assert_eq!(code, Some(1), "{shown}");
        assert!(shown.contains(word), "{shown}");
        assert_eq!(world.status(&sandbox.name), "running");
    }
    world.run(["rm", "--force", &sandbox.name]).ok();
    let ended = Ran::from(client.wait_with_output().unwrap());
    assert_ne!(ended.code, 0, "{ended:?}");
    assert!(!world.names().contains(&sandbox.name));
    world.run(["rm", "--force", &sandbox.name]).fails(1);
}

fn rm_many(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    for name in ["one", "two", "three"] {
        world
            .run([
                "create",
                "-q",
                "--name",
                name,
                "shell",
                dir.to_str().unwrap(),
            ])
            .ok();
    }
    // One that is missing does not save the others.
    let ran = world
        .run(["rm", "--force", "one", "missing", "two"])
        .fails(1);
    assert!(ran.err.contains("`missing`"), "{}", ran.err);
    let names = world.names();
    assert!(
        names == ["three"] || names == ["one", "three", "two"],
        "{names:?}"
    );
    world.run(["rm", "--all", "--force"]).ok();
    assert!(world.names().is_empty());
    assert_eq!(fs::read_dir(world.state().join("vm")).unwrap().count(), 0);
    assert!(dir.exists());
    assert_eq!(
        world.run(["ls", "--json"]).ok(),
        "{\n  \"sandboxes\": []\n}"
    );
}

fn stop_ends(world: &'static World) {
    let sandbox = world.sandbox("ends");
    // One that goes when asked, one that does not listen.
    let polite = "trap 'echo bye > said; exit' TERM; echo ready; while :; do sleep 0.05; done";
    let rude = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let clients: Vec<_> = [polite, rude]
        .iter()
        .map(|script| {
            let mut client = world
                .sbx(["exec", &sandbox.name, "sh", "-c", script])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(client.stdout.as_mut().unwrap())
                .read_line(&mut line)
                .unwrap();
            client
        })
        .collect();
    world.run(["stop", &sandbox.name]).ok();
    assert_eq!(world.status(&sandbox.name), "stopped");
    assert_eq!(fs::read_to_string(sandbox.path("said")).unwrap(), "bye\n");
    for client in clients {
        let ended = Ran::from(client.wait_with_output().unwrap());
        assert!([0, 125, 137, 143].contains(&ended.code), "{ended:?}");
    }
    // Stopping what is stopped is no error; what does not exist is.
    world.run(["stop", &sandbox.name]).ok();
    world.run(["stop", "no-such-sandbox"]).fails(1);
}

fn auto_stop(world: &'static World) {
    let world = World::fresh(world.mode);
    world.settings(json!({"auto_stop_seconds": 1}));
    let (busy, kept, idle) = (
        world.sandbox("busy"),
        world.sandbox("kept"),
        world.sandbox("idle"),
    );
    let mut client = open_session(&busy);
    busy.exec(["true"]).ok();
    world.run(["run", "-d", "--name", &kept.name]).ok();
    idle.exec(["true"]).ok();
    // It was used last: when it has stopped, the others would have too.
    let stopped = || world.inspect(&idle.name);
    eventually("an idle sandbox stops", || {
        (stopped()["status"] == "stopped").then_some(())
    });
    assert_eq!(stopped()["stop_reason"], "idle");
    let text = world.run(["inspect", &idle.name]).ok();
    assert!(text.contains("stopped (idle)"), "{text}");
    let shown = world.inspect(&busy.name);
    assert_eq!(
        (&shown["status"], &shown["sessions"]),
        (&json!("running"), &json!(1))
    );
    assert_eq!(world.status(&kept.name), "running");
    // It comes back when it is used.
    assert_eq!(idle.exec(["echo", "back"]).ok(), "back");
    // The end of the command is the beginning of the grace period.
    world.write(&busy.path("go"), "");
    assert_eq!(client.wait().unwrap().code(), Some(44));
    eventually("it stops when its command has ended", || {
        (world.status(&busy.name) == "stopped").then_some(())
    });
    assert_eq!(world.inspect(&busy.name)["stop_reason"], "idle");
    assert_eq!(world.status(&kept.name), "running");
    // One that is created and never used stops too.
    let unused = world.sandbox("unused");
    eventually("it stops without a command", || {
        (world.status(&unused.name) == "stopped").then_some(())
    });
}

fn auto_stop_off(world: &'static World) {
    for off in [json!("off"), json!(0)] {
        let world = World::fresh(world.mode);
        world.settings(json!({"auto_stop_seconds": off}));
        let sandbox = world.sandbox("forever");
        sandbox.exec(["true"]).ok();
        eventually("the command is counted out", || {
            (world.inspect(&sandbox.name)["sessions"] == 0).then_some(())
        });
        assert_eq!(world.inspect(&sandbox.name)["stop_at"], Value::Null);
    }
    // By default it is thirty seconds after the last use.
    let sandbox = world.sandbox("default");
    let shown = world.inspect(&sandbox.name);
    let time = |key: &str| {
        shown[key]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
    };
    assert_eq!(
        time("stop_at").duration_since(time("last_used_at")),
        jiff::SignedDuration::from_secs(30)
    );
    let bad = World::fresh(world.mode);
    bad.settings(json!({"auto_stop_seconds": "soon"}));
    let workspace = bad.workspace();
    let refused = bad
        .run([
            "create",
            "--name",
            "box",
            "shell",
            workspace.to_str().unwrap(),
        ])
        .refused();
    assert!(refused.err.contains("settings.json"), "{}", refused.err);
}

fn deadline_survives(world: &'static World) {
    let world = World::fresh(world.mode);
    world.settings(json!({"auto_stop_seconds": 2}));
    let (idle, kept) = (world.sandbox("idle"), world.sandbox("kept"));
    world.run(["run", "-d", "--name", &kept.name]).ok();
    idle.exec(["true"]).ok();
    // The daemon is away, and the next one knows what is due.
    world.run(["daemon", "restart"]).ok();
    eventually("it stops under the next daemon", || {
        (world.status(&idle.name) == "stopped").then_some(())
    });
    assert_eq!(world.inspect(&idle.name)["stop_reason"], "idle");
    let shown = world.inspect(&kept.name);
    assert_eq!(
        (&shown["status"], &shown["keep_alive"]),
        (&json!("running"), &json!(true))
    );
}

fn failed_create(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    let create = || world.run(["create", "--name", "half", "shell", dir.to_str().unwrap()]);
    let nothing_left = || {
        assert!(world.names().is_empty());
        assert_eq!(fs::read_dir(world.state().join("vm")).unwrap().count(), 0);
    };
    world.run(["daemon", "start", "-d"]).ok();
    // The template cannot be built.
    let templates = world.state().join("templates");
    fs::remove_dir(&templates).unwrap();
    world.write(&templates, "not a directory\n");
    assert!(create().fails(1).err.contains("templates"));
    nothing_left();
    fs::remove_file(&templates).unwrap();
    world.make_dir(&templates);
    fs::set_permissions(&templates, fs::Permissions::from_mode(0o700)).unwrap();
    // The name is free, and now it works.
    create().ok();
    assert_eq!(world.run(["exec", "half", "echo", "whole"]).ok(), "whole");
    world.run(["rm", "--force", "half"]).ok();
    nothing_left();
    if world.mode != Mode::Root {
        // There is no place for it.
        let vm = world.state().join("vm");
        fs::set_permissions(&vm, fs::Permissions::from_mode(0o500)).unwrap();
        assert!(create().fails(1).err.contains("Permission denied"));
        fs::set_permissions(&vm, fs::Permissions::from_mode(0o700)).unwrap();
        nothing_left();
    }
    create().ok();
}

fn full_disk(world: &'static World) {
    // A file system of our own, which ends with the mount namespace, needs root.
    if world.mode != Mode::Root {
        return;
    }
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    world.make_dir(&world.state());
    let script = "set -e; mount --make-rprivate /; mount -t tmpfs -o size=256k,mode=700 none \"$SBX_HOME\"; \"$1\" daemon start -d; \
                  for try in 1 2; do if \"$1\" create --name full shell \"$2\"; then exit 50; fi; done; \
                  \"$1\" ls -q; ls -A \"$SBX_HOME/vm\" \"$SBX_HOME/templates\"; \"$1\" daemon stop";
    let output = world
        .command("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(crate::harness::programs().join("sbx"))
        .arg(&dir)
        .output()
        .unwrap();
    let ran = Ran::from(output).fails(0);
    let state = world.state();
    assert_eq!(
        ran.out,
        format!("{0}/templates:\n.lock\n\n{0}/vm:\n", state.display()),
        "{}",
        ran.err
    );
    assert_eq!(
        ran.err.matches("No space left on device").count(),
        2,
        "{}",
        ran.err
    );
}
