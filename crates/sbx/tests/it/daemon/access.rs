//! Who may talk to the daemon, and what it makes of nonsense.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::{Ran, World, blocked, programs, tester_is_root};

pub const TESTS: &[ModeTest] = &[
    ("daemon::files_are_private", private),
    ("daemon::another_user_gets_nothing", other_user),
    ("daemon::nonsense_over_the_socket", nonsense),
    ("daemon::many_connections_cost_little", many),
];

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
        return blocked("only root can become another user");
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
        let ran = attempt(args).refused();
        assert_eq!(ran.out, "", "{args:?}");
    }
    assert!(!attempt(&["ls", "--json"]).out.contains(&sandbox.name));
    assert_eq!(world.status(&sandbox.name), "running");
    // A user who may open every file is told nothing all the same. (In root mode that is the daemon's user.)
    if world.uid != 0 {
        let mut stream = UnixStream::connect(world.state().join("sandboxd.sock")).unwrap();
        let _ = stream.write_all(b"GET /v1/version HTTP/1.1\r\nhost: x\r\n\r\n");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert_eq!(answer, "");
        assert_eq!(world.daemon()["status"], "running");
        // And is told by `sbx` whose it is, before anything is asked.
        let told = format!("belongs to user {}, not to user 0\n", world.uid);
        for args in [
            &["ls"][..],
            &["exec", &sandbox.name, "id"],
            &["logs", &sandbox.name],
            &["inspect", &sandbox.name],
            &["stop", &sandbox.name],
            &["daemon", "stop"],
        ] {
            let mut command = std::process::Command::new(programs().join("sbx"));
            command.args(args).env_clear().env("HOME", "/nonexistent");
            command.env("SBX_HOME", world.state()).stdin(Stdio::null());
            let ran = Ran::from(command.output().unwrap()).refused();
            let (_, after) = ran.err.split_once("hint: set SBX_HOME").unwrap_or_default();
            assert!(after.ends_with(&told), "{args:?}: {}", ran.err);
        }
        assert_eq!(world.status(&sandbox.name), "running");
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

/// What is no HTTP. The daemon may hang up before it has read everything.
const GARBAGE: &str = r"
import socket, sys
texts = b'\0\0\0\0', b'GET', b'\x16\x03\x01\x02\x00', b'x' * 100_000
for text in texts:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(sys.argv[1])
        try:
            stream.sendall(text)
            stream.shutdown(socket.SHUT_WR)
            while answer := stream.recv(4096):
                print(answer)
        except (BrokenPipeError, ConnectionResetError):
            pass
print('sent', len(texts))
";

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
    // As the daemon's user: no other is answered.
    let mut send = world.command("/usr/bin/python3");
    send.args(["-c", GARBAGE])
        .arg(world.state().join("sandboxd.sock"));
    let answers = Ran::from(send.output().unwrap()).ok();
    assert!(answers.ends_with("sent 4"), "{answers}");
    assert!(!answers.contains("200 OK"), "{answers}");
    // It is none the worse for it.
    assert!(!world.names().iter().any(|name| name == "nonsense"));
    assert_eq!(sandbox.exec(["echo", "fine"]).ok(), "fine");
}

/// Connections that ask for nothing, and one that does: what the daemon has grown by, in KiB.
const IDLE: &str = r#"
import socket, sys
def memory():
    lines = open(f"/proc/{sys.argv[2]}/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
def connect():
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(sys.argv[1])
    return stream
def ask():
    stream = connect()
    stream.sendall(b"GET /v1/version HTTP/1.1\r\nHost: sbx\r\nConnection: close\r\n\r\n")
    assert stream.makefile("rb").readline().startswith(b"HTTP/1.1 200 ")
ask()
before = memory()
idle = []
for _ in range(10):
    # Each of them says a part of its head.
    for _ in range(100):
        idle.append(connect())
        idle[-1].sendall(b"POST /vm HTTP/1.1\r\n")
    # Answered after all that came before.
    ask()
print(memory() - before)
"#;

fn many(world: &'static World) {
    let world = World::fresh(world.mode);
    world.run(["daemon", "start", "--detach"]).ok();
    let mut script = world.command("/usr/bin/python3");
    script
        .args(["-c", IDLE])
        .arg(world.state().join("sandboxd.sock"))
        .arg(world.daemon_pid().to_string());
    let grown: u64 = Ran::from(script.output().unwrap()).ok().parse().unwrap();
    assert!(grown < 64 << 10, "the daemon has grown by {grown} KiB");
}
