//! The daemon: who may talk to it, what survives it, what it leaves alone.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::{Ran, Sandbox, World, eventually, programs, tester_is_root};

pub const TESTS: &[ModeTest] = &[
    ("daemon::killed_and_its_commands_go_on", killed),
    ("daemon::killed_again_and_again", killed_often),
    ("daemon::a_second_one_is_refused", second),
    (
        "daemon::stop_stops_sandboxes_and_restart_does_not",
        stop_and_restart,
    ),
    ("daemon::status_and_log_level", status),
    ("daemon::files_are_private", private),
    ("daemon::another_user_gets_nothing", other_user),
    ("daemon::nonsense_over_the_socket", nonsense),
    ("daemon::a_home_of_two_hundred_characters", long_home),
    ("daemon::another_products_directory", foreign),
    ("daemon::a_slow_create_blocks_nobody", slow_create),
    ("daemon::inherits_nothing", inherits_nothing),
    ("daemon::many_first_commands_start_one", many_first),
];

fn pid(number: i32) -> Pid {
    Pid::from_raw(number).unwrap()
}

/// A process that has ended may still wait to be reaped.
fn alive(number: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// Ends the daemon without any warning.
fn kill_daemon(world: &World) {
    let daemon = world.daemon_pid();
    kill_process(pid(daemon), Signal::KILL).unwrap();
    // Whoever asks at that moment is told the truth too.
    world.run(["ls", "--json"]).ok();
    eventually("the daemon is dead", || {
        (world.daemon()["status"] == "stopped" && !alive(daemon)).then_some(())
    });
}

/// A command that runs until the file `go` exists.
fn open_session(sandbox: &Sandbox<'_>) -> Child {
    let script = "echo ready; while [ ! -e go ]; do sleep 0.05; done; echo end; exit 44";
    let mut client = sandbox
        .world
        .sbx(["exec", &sandbox.name, "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    client
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    assert_eq!(&ready, b"ready\n");
    client
}

fn killed(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("survivor");
    let idle = world.sandbox("idle");
    let client = open_session(&sandbox);
    sandbox.sh("echo kept > /tmp/kept").ok();
    let init = world.init_pid(&sandbox.name);
    kill_daemon(&world);
    // Readers see what runs without a daemon, and start none.
    assert_eq!(world.status(&sandbox.name), "running");
    assert_eq!(world.daemon()["status"], "stopped");
    // The next one takes it up: same init, same processes, same session.
    assert_eq!(sandbox.exec(["cat", "/tmp/kept"]).ok(), "kept");
    assert_eq!(world.init_pid(&sandbox.name), init);
    let shown = world.inspect(&sandbox.name);
    assert_eq!(
        (&shown["status"], &shown["sessions"]),
        (&json!("running"), &json!(1))
    );
    let list = world.run(["ls", "--json"]).ok();
    assert_eq!(list.matches("\"status\": \"running\"").count(), 2, "{list}");
    kill_daemon(&world);
    world.write(&sandbox.path("go"), "");
    let ended = Ran::from(client.wait_with_output().unwrap());
    assert_eq!((ended.code, ended.out.as_str()), (44, "end\n"));
    // Stopping and removing work on what the next daemon has found.
    world.run(["stop", &sandbox.name]).ok();
    assert_eq!(world.status(&sandbox.name), "stopped");
    assert!(!alive(init), "init is still there");
    assert_eq!(idle.exec(["echo", "alive"]).ok(), "alive");
    kill_daemon(&world);
    world.run(["rm", "--force", &idle.name, &sandbox.name]).ok();
    assert!(world.names().is_empty());
    assert_eq!(fs::read_dir(world.state().join("vm")).unwrap().count(), 0);
}

fn killed_often(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("often");
    let init = world.init_pid(&sandbox.name);
    for round in 0..5 {
        kill_daemon(&world);
        assert_eq!(
            sandbox.exec(["echo", &round.to_string()]).ok(),
            round.to_string()
        );
    }
    assert_eq!(world.init_pid(&sandbox.name), init);
    // An init that dies while nobody watches is found dead, and starts again.
    kill_daemon(&world);
    kill_process(pid(init), Signal::KILL).unwrap();
    eventually("init is dead", || (!alive(init)).then_some(()));
    assert_eq!(sandbox.exec(["echo", "again"]).ok(), "again");
    // One that dies while the daemon watches too.
    let init = world.init_pid(&sandbox.name);
    kill_process(pid(init), Signal::KILL).unwrap();
    eventually("the daemon knows", || {
        (world.status(&sandbox.name) == "stopped").then_some(())
    });
    assert_eq!(world.inspect(&sandbox.name)["stop_reason"], "crashed");
    assert_eq!(sandbox.exec(["echo", "and again"]).ok(), "and again");
}

fn second(world: &'static World) {
    let _sandbox = world.sandbox("second");
    let first = world.daemon_pid();
    for args in [&["daemon", "start"][..], &["daemon", "start", "-d"]] {
        assert!(world.run(args).fails(0).err.contains("already running"));
    }
    // Past the polite question: the daemon's own program.
    let ran = Ran::from(world.command(programs().join("sandboxd")).output().unwrap()).refused();
    assert!(ran.err.contains("another daemon"), "{}", ran.err);
    assert_eq!(world.daemon_pid(), first);
    world.run(["ls"]).ok();
}

fn stop_and_restart(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox("box");
    let client = open_session(&sandbox);
    let (init, daemon) = (world.init_pid(&sandbox.name), world.daemon_pid());
    world.run(["daemon", "restart"]).ok();
    assert_ne!(world.daemon_pid(), daemon);
    assert_eq!(world.init_pid(&sandbox.name), init);
    assert_eq!(world.inspect(&sandbox.name)["sessions"], 1);
    world.write(&sandbox.path("go"), "");
    let ended = Ran::from(client.wait_with_output().unwrap());
    assert_eq!((ended.code, ended.out.as_str()), (44, "end\n"));
    let stopped = world.run(["daemon", "stop"]).fails(0);
    assert_eq!(stopped.out, "");
    assert!(!alive(init), "init is still there");
    assert_eq!(world.daemon()["status"], "stopped");
    let shown = world.inspect(&sandbox.name);
    assert_eq!(
        (&shown["status"], &shown["stop_reason"]),
        (&json!("stopped"), &json!("daemon stop"))
    );
    assert!(!world.state().join("sandboxd.sock").exists());
    // Nothing is there to stop, which is fine; a restart starts one.
    world.run(["daemon", "stop"]).ok();
    world.run(["daemon", "restart"]).ok();
    assert_eq!(world.daemon()["status"], "running");
    // A signal is an ordinary end, and leaves the sandboxes too.
    sandbox.exec(["true"]).ok();
    let init = world.init_pid(&sandbox.name);
    kill_process(pid(world.daemon_pid()), Signal::TERM).unwrap();
    eventually("it ends", || {
        (world.daemon()["status"] == "stopped").then_some(())
    });
    assert!(alive(init));
    assert_eq!(sandbox.exec(["echo", "still"]).ok(), "still");
    assert_eq!(world.init_pid(&sandbox.name), init);
}

fn status(world: &'static World) {
    let world = World::fresh(world.mode);
    let state = world.state();
    let paths = json!({"status": "stopped", "socket": state.join("sandboxd.sock"), "logs": state.join("sandboxd.log")});
    assert_eq!(world.daemon(), paths);
    let started = world.run(["daemon", "start", "-d"]).fails(0);
    assert_eq!(started.out, "");
    let running = world.daemon();
    for (key, value) in [
        ("status", json!("running")),
        ("socket", paths["socket"].clone()),
        ("logs", paths["logs"].clone()),
    ] {
        assert_eq!(running[key], value);
    }
    assert!(alive(world.daemon_pid()));
    let text = world.run(["daemon", "status"]).ok();
    assert!(
        text.contains("Status: running") && text.contains("Socket: ") && text.contains("Logs: "),
        "{text}"
    );

    let levels = || world.run(["daemon", "log-level"]).ok();
    assert_eq!(levels(), "general: info\nproxy:   info");
    world
        .run(["daemon", "log-level", "set", "general", "debug"])
        .ok();
    assert_eq!(levels(), "general: debug\nproxy:   info");
    world
        .run(["daemon", "log-level", "set", "all", "warn"])
        .ok();
    assert_eq!(levels(), "general: warn\nproxy:   warn");
    world
        .run(["daemon", "log-level", "set", "general", "loud"])
        .fails(2);
    // Every line of the log is an object with a time, a level and a message.
    let log = fs::read_to_string(state.join("sandboxd.log")).unwrap();
    assert!(!log.is_empty());
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(
            line["time"].is_string() && line["level"].is_string() && line["msg"].is_string(),
            "{line}"
        );
    }
    let version = world.run(["version"]).ok();
    assert!(
        version.contains(&format!("server: v{}", env!("CARGO_PKG_VERSION"))),
        "{version}"
    );
}

fn private(world: &'static World) {
    let sandbox = world.sandbox("private");
    let state = world.state();
    let own = state.join("vm").join(&sandbox.name);
    let mode = |path: PathBuf| {
        let meta =
            fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        meta.permissions().mode() & 0o7777
    };
    for dir in [
        state.clone(),
        state.join("vm"),
        state.join("templates"),
        own.clone(),
    ] {
        assert_eq!(mode(dir.clone()), 0o700, "{}", dir.display());
    }
    for file in [
        state.join("sandboxd.sock"),
        state.join("sandboxd.log"),
        state.join("sandboxd.lock"),
        own.join("exec.sock"),
        own.join("sandbox.json"),
    ] {
        assert_eq!(mode(file.clone()), 0o600, "{}", file.display());
    }
}

fn other_user(world: &'static World) {
    if !tester_is_root() {
        return;
    }
    let sandbox = world.sandbox("secret");
    const OTHER: u32 = 65_534;
    let attempt = |args: &[&str]| {
        let mut command = std::process::Command::new(programs().join("sbx"));
        command
            .args(args)
            .env_clear()
            .env("HOME", "/nonexistent")
            .env("SBX_HOME", world.state())
            .stdin(Stdio::null());
        Ran::from(
            command
                .current_dir("/")
                .uid(OTHER)
                .gid(OTHER)
                .output()
                .unwrap(),
        )
    };
    for args in [
        &["exec", &sandbox.name, "id"][..],
        &["create", "--name", "mine", "shell", "/var"],
        &["stop", &sandbox.name],
        &["rm", "--force", &sandbox.name],
        &["logs", &sandbox.name],
        &["inspect", &sandbox.name],
        &["daemon", "stop"],
        &["daemon", "start", "-d"],
    ] {
        let ran = attempt(args);
        assert!(ran.code != 0 || args[0] == "daemon", "{args:?}: {ran:?}");
        assert_eq!(ran.out, "", "{args:?}");
    }
    assert!(!attempt(&["ls", "--json"]).out.contains(&sandbox.name));
    assert_eq!(world.status(&sandbox.name), "running");
    // Somebody for whom no file is closed is told nothing all the same. (In root mode that is the daemon's user.)
    if world.uid != 0 {
        let mut stream = UnixStream::connect(world.state().join("sandboxd.sock")).unwrap();
        let _ = stream.write_all(b"GET /v1/version HTTP/1.1\r\nhost: x\r\n\r\n");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert_eq!(answer, "");
        assert_eq!(world.daemon()["status"], "running");
    }
}

/// One request of the world's user, and its answer.
fn request(
    world: &World,
    method: &str,
    path: &str,
    version: Option<&str>,
    body: &str,
) -> (u16, Value) {
    let socket = world.state().join("sandboxd.sock");
    let version = version.map_or_else(String::new, |version| format!("sbx-version: {version}\r\n"));
    // The connection stays open for both directions until the answer is there.
    let mut socat = world
        .command("socat")
        .args(["-t", "60", "-"])
        .arg(format!("UNIX-CONNECT:{},shut-none", socket.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n{version}\r\n{body}",
        body.len()
    );
    // An answer may come before all of it is read.
    let _ = socat.stdin.take().unwrap().write_all(request.as_bytes());
    let answer = Ran::from(socat.wait_with_output().unwrap()).out;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.split(' ').nth(1).unwrap_or_default();
    (
        status.parse().unwrap_or(0),
        serde_json::from_str(body).unwrap_or(Value::Null),
    )
}

fn nonsense(world: &'static World) {
    let sandbox = world.sandbox("api");
    let own = Some(env!("CARGO_PKG_VERSION"));
    let (status, list) = request(world, "GET", "/v1/sandboxes", own, "");
    assert_eq!(status, 200);
    assert!(
        list["sandboxes"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["name"] == sandbox.name.as_str()))
    );
    let create = json!({"agent": "shell", "workspaces": [{"path": sandbox.workspace}], "caller": {"home": "/"}, "name": "nonsense"});
    let mut unknown = create.clone();
    unknown["novel"] = json!(1);
    for (method, path, version, body, expected) in [
        ("POST", "/v1/sandboxes", own, "{", 400),
        ("POST", "/v1/sandboxes", own, "[]", 400),
        ("POST", "/v1/sandboxes", own, &unknown.to_string(), 400),
        (
            "POST",
            "/v1/sandboxes",
            own,
            &" ".repeat((1 << 20) + 1),
            413,
        ),
        (
            "POST",
            "/v1/sandboxes",
            Some("0.0.0"),
            &create.to_string(),
            409,
        ),
        ("POST", "/v1/sandboxes", None, &create.to_string(), 400),
        ("GET", "/v1/sandboxes/no-such", own, "", 404),
        ("GET", "/v1/sandboxes/..%2f..", own, "", 404),
        ("GET", "/v1/sandboxes/%00", own, "", 404),
        ("GET", "/nowhere", own, "", 404),
        ("PATCH", "/v1/sandboxes", own, "", 405),
    ] {
        let (status, answer) = request(world, method, path, version, body);
        assert_eq!(status, expected, "{method} {path}: {answer}");
        assert!(
            answer["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty()),
            "{method} {path}: {answer}"
        );
    }
    let (_, answer) = request(world, "GET", "/v1/sandboxes", Some("0.0.0"), "");
    assert_eq!(answer["hint"], "sbx daemon restart");
    if rustix::process::geteuid().as_raw() == world.uid {
        for garbage in [
            &b"\0\0\0\0"[..],
            b"GET",
            b"\x16\x03\x01\x02\x00",
            &[b'x'; 100_000],
        ] {
            let mut stream = UnixStream::connect(world.state().join("sandboxd.sock")).unwrap();
            // It may hang up before it has read everything.
            let _ = stream.write_all(garbage);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
        }
    }
    // It is none the worse for it.
    assert!(!world.names().iter().any(|name| name == "nonsense"));
    assert_eq!(sandbox.exec(["echo", "fine"]).ok(), "fine");
}

/// The same user and sandboxes of its own, in another place.
struct Elsewhere<'a> {
    world: &'a World,
    variable: &'static str,
    state: PathBuf,
}

impl Elsewhere<'_> {
    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.world.sbx(args);
        command
            .env_remove("SBX_HOME")
            .env(self.variable, &self.state);
        Ran::from(command.output().unwrap())
    }
}

impl Drop for Elsewhere<'_> {
    fn drop(&mut self) {
        self.run(&["rm", "--all", "--force"]);
        self.run(&["daemon", "stop"]);
    }
}

fn long_home(world: &'static World) {
    let mut home = world.workspace();
    while home.as_os_str().len() < 220 {
        home = home.join("long-directory-name-of-a-home");
        world.make_dir(&home);
    }
    let dir = world.workspace();
    let settings = world.state().join("settings.json");
    for variable in ["HOME", "SBX_HOME"] {
        let elsewhere = Elsewhere {
            world,
            variable,
            state: home.clone(),
        };
        if variable == "SBX_HOME" {
            fs::remove_dir_all(home.join(".docker")).unwrap();
        }
        if let Ok(settings) = fs::read(&settings) {
            let state = if variable == "HOME" {
                home.join(".docker/sandboxes")
            } else {
                home.clone()
            };
            if variable == "HOME" {
                world.make_dir(&home.join(".docker"));
                world.make_dir(&state);
            }
            world.write(&state.join(".sbx-owner"), "sbx\n");
            world.write(&state.join("settings.json"), settings);
        }
        elsewhere
            .run(&["create", "--name", "far", "shell", dir.to_str().unwrap()])
            .ok();
        assert_eq!(
            elsewhere.run(&["exec", "far", "echo", variable]).ok(),
            variable
        );
        elsewhere.run(&["daemon", "restart"]).ok();
        assert_eq!(
            elsewhere.run(&["exec", "far", "echo", "again"]).ok(),
            "again"
        );
        elsewhere.run(&["stop", "far"]).ok();
        assert_eq!(elsewhere.run(&["ls", "-q"]).ok(), "far");
        elsewhere.run(&["rm", "--force", "far"]).ok();
        elsewhere.run(&["daemon", "stop"]).ok();
    }
}

fn foreign(world: &'static World) {
    let state = world.workspace();
    let dir = world.workspace();
    world.write(&state.join("their.db"), "theirs\n");
    world.make_dir(&state.join("vm"));
    let theirs = Elsewhere {
        world,
        variable: "SBX_HOME",
        state: state.clone(),
    };
    for args in [
        &["create", "--name", "box", "shell", dir.to_str().unwrap()][..],
        &["run", "--name", "box", "shell", dir.to_str().unwrap()],
        &["daemon", "start", "-d"],
        &["daemon", "restart"],
    ] {
        let ran = theirs.run(args).refused();
        assert!(
            ran.err.contains("did not make") && ran.err.contains("SBX_HOME"),
            "{args:?}: {}",
            ran.err
        );
    }
    assert_eq!(
        theirs.run(&["ls", "--json"]).ok(),
        "{\n  \"sandboxes\": []\n}"
    );
    let mut left: Vec<_> = fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["their.db", "vm"]);
    assert_eq!(
        fs::read_to_string(state.join("their.db")).unwrap(),
        "theirs\n"
    );
    assert_eq!(
        fs::metadata(&state).unwrap().permissions().mode() & 0o777,
        0o755
    );
    assert_eq!(fs::read_dir(state.join("vm")).unwrap().count(), 0);
}

fn children(daemon: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{daemon}/task"))
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| {
            text.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

fn slow_create(world: &'static World) {
    let world = World::fresh(world.mode);
    let other = world.sandbox("other");
    let daemon = world.daemon_pid();
    let dir = world.workspace();
    let known = children(daemon);
    // The helper that builds it is held: then nothing about that create can be fast.
    for attempt in 0..50 {
        let name = format!("slow-{attempt}");
        let create = world
            .sbx([
                "create",
                "-q",
                "--name",
                &name,
                "shell",
                dir.to_str().unwrap(),
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let helper = loop {
            let new = children(daemon)
                .into_iter()
                .find(|child| !known.contains(child));
            if let Some(helper) = new
                && kill_process(pid(helper), Signal::STOP).is_ok()
            {
                break helper;
            }
            if world.names().contains(&name) && world.status(&name) == "running" {
                break 0;
            }
        };
        let held =
            helper != 0 && world.names().contains(&name) && world.status(&name) == "creating";
        if held {
            assert_eq!(other.exec(["echo", "meanwhile"]).ok(), "meanwhile");
            let list: Value = serde_json::from_str(&world.run(["ls", "--json"]).ok()).unwrap();
            let status: Vec<_> = list["sandboxes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["status"].as_str().unwrap())
                .collect();
            assert_eq!(status, ["running", "creating"]);
            world.run(["stop", &other.name]).ok();
            world.run(["inspect", &name]).ok();
        }
        if helper != 0 {
            let _ = kill_process(pid(helper), Signal::CONT);
        }
        assert_eq!(Ran::from(create.wait_with_output().unwrap()).ok(), name);
        if held {
            assert_eq!(world.run(["exec", &name, "echo", "done"]).ok(), "done");
            return;
        }
        world.run(["rm", "--force", &name]).ok();
        eventually("its init is gone", || {
            (children(daemon).len() <= known.len()).then_some(())
        });
    }
    panic!("no create could be held");
}

fn inherits_nothing(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    let secret = world.home().join("open-in-the-caller");
    world.write(&secret, "secret\n");
    let script = "exec 7<open-in-the-caller 8>&1 9<.; exec \"$@\"";
    let create = world
        .command("sh")
        .args(["-c", script, "sh"])
        .arg(programs().join("sbx"))
        .args(["create", "--name", "box", "shell", dir.to_str().unwrap()])
        .env("CANARY", "canary")
        .output()
        .unwrap();
    Ran::from(create).ok();
    // The daemon has a session of its own, no terminal, no directory of the caller's, no descriptor.
    let daemon = world.daemon_pid();
    let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    assert_eq!(
        (fields[3], fields[4]),
        (daemon.to_string().as_str(), "0"),
        "session and terminal: {stat}"
    );
    if !tester_is_root() {
        return;
    }
    assert_eq!(
        fs::read_link(format!("/proc/{daemon}/cwd")).unwrap(),
        Path::new("/")
    );
    let environ = fs::read(format!("/proc/{daemon}/environ")).unwrap();
    assert!(!String::from_utf8_lossy(&environ).contains("canary"));
    for process in [daemon, world.init_pid("box")] {
        for fd in fs::read_dir(format!("/proc/{process}/fd"))
            .unwrap()
            .flatten()
        {
            let target = fs::read_link(fd.path()).unwrap_or_default();
            assert!(
                target != secret && target != world.home(),
                "{process}: {}",
                target.display()
            );
        }
    }
    // Neither is anything of it open in a command.
    let inside = Ran::from(
        world
            .command("sh")
            .args(["-c", script, "sh"])
            .arg(programs().join("sbx"))
            .args(["exec", "box", "ls", "/proc/self/fd"])
            .output()
            .unwrap(),
    );
    assert_eq!(inside.ok(), "0\n1\n2\n3");
}

fn many_first(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    let clients: Vec<_> = (0..8)
        .map(|n| {
            let name = format!("first-{n}");
            world
                .sbx([
                    "create",
                    "-q",
                    "--name",
                    &name,
                    "shell",
                    dir.to_str().unwrap(),
                ])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for (n, client) in clients.into_iter().enumerate() {
        assert_eq!(
            Ran::from(client.wait_with_output().unwrap()).ok(),
            format!("first-{n}")
        );
    }
    assert_eq!(world.names().len(), 8);
    let log = BufReader::new(fs::File::open(world.state().join("sandboxd.log")).unwrap()).lines();
    assert_eq!(
        log.map_while(Result::ok)
            .filter(|line| line.contains("\"serving\""))
            .count(),
        1
    );
}
