//! Another user of the same machine.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use super::{LIBRARY, PYTHON, Said, attack, run};
use crate::ModeTest;
use crate::harness::{World, blocked};

pub(crate) const TESTS: &[ModeTest] = &[
    ("another_user_gets_nothing", another_user),
    ("the_daemon_itself_checks_who_calls", open_path),
    ("a_daemon_does_not_serve_the_inside", from_inside),
];

fn another_user(world: &'static World) {
    if !rustix::process::geteuid().is_root() {
        return blocked("only root can become another user");
    }
    let sandbox = world.sandbox("other");
    sandbox.exec_with(&["-d"], ["echo", "private output"]).ok();
    world.write(&sandbox.path("mine"), "mine\n");
    fs::set_permissions(
        sandbox.path("mine"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let state = world.state();
    let meta = fs::metadata(&state).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o700, world.uid));
    assert_eq!(
        fs::metadata(state.join("sandboxd.sock")).unwrap().mode() & 0o777,
        0o600
    );
    let pids = fs::read_to_string(state.join("daemon.json")).unwrap_or_default();
    let program = format!(
        "{LIBRARY}
state, sandbox = {state:?}, {name:?}
def connect(path):
    s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect(path)
attempt('daemon', lambda: connect(state + '/sandboxd.sock'))
attempt('init', lambda: connect(state + '/vm/' + sandbox + '/exec.sock'))
attempt('list', lambda: os.listdir(state))
attempt('record', lambda: open(state + '/vm/' + sandbox + '/sandbox.json').read())
attempt('log', lambda: open(state + '/sandboxd.log').read())
attempt('create', lambda: open(state + '/new', 'w'))
attempt('workspace', lambda: open({workspace:?} + '/mine').read())
attempt('workspace_new', lambda: open({workspace:?} + '/theirs', 'w'))
# Every process that serves this user: what it is and has is closed to others.
for name in os.listdir('/proc'):
    if name.isdigit():
        try:
            command = read('/proc/%s/cmdline' % name)
        except OSError:
            continue
        if b'sbx-init' in command or b'sandboxd' in command or b'daemon' in command and b'sbx' in command:
            for file in ('environ', 'mem', 'maps'):
                attempt('proc_%s' % file, lambda: os.open('/proc/%s/%s' % (name, file), os.O_RDONLY))
            attempt('proc_fd', lambda: os.listdir('/proc/%s/fd' % name))
            attempt('proc_root', lambda: os.listdir('/proc/%s/root' % name))
            attempt('kill', lambda: os.kill(int(name), 0))
            attempt('join', lambda: os.open('/proc/%s/ns/user' % name, os.O_RDONLY))
",
        state = state.to_str().unwrap(),
        name = sandbox.name,
        workspace = sandbox.workspace.to_str().unwrap(),
    );
    // An id without an account.
    let mut other = Command::new("setpriv");
    other
        .args([
            "--reuid",
            "61234",
            "--regid",
            "61234",
            "--clear-groups",
            PYTHON,
            "-",
        ])
        .env_clear()
        .current_dir("/");
    let said = Said::from(run(&mut other, program.as_bytes()));
    said.all_refused(12);
    said.refused(&[
        ("daemon", &["EACCES"]),
        ("init", &["EACCES"]),
        ("list", &["EACCES"]),
        ("record", &["EACCES"]),
    ]);
    assert!(
        said.results.contains_key("proc_fd"),
        "no process of the engine was found ({pids}): {}",
        said.all
    );
    assert_eq!(fs::read_to_string(sandbox.path("mine")).unwrap(), "mine\n");
}

/// The state of another daemon of the same user, made in a workspace later: inside has that user's id.
fn from_inside(shared: &'static World) {
    let other = World::fresh(shared.mode);
    let sandbox = shared.sandbox_with("nosy", &[other.state().parent().unwrap().to_str().unwrap()]);
    let kept = other.sandbox("kept");
    let program = "
import json
def ask(path):
    s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect(path)
    s.sendall(b'GET /v1/sandboxes HTTP/1.1\\r\\nHost: x\\r\\nsbx-version: %s\\r\\nConnection: close\\r\\n\\r\\n' % VERSION.encode())
    answer = s.recv(65536)
    if not answer:
        raise OSError(errno.ECONNRESET, '')
    print('answered', answer)
def greet(path, shown):
    hello = json.dumps({'hello': {'protocol': int(PROTOCOL), 'role': 'client'}}).encode()
    s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect(path)
    socket.send_fds(s, [len(hello).to_bytes(4, 'little') + hello], shown)
    if not s.recv(65536):
        raise OSError(errno.ECONNRESET, '')
attempt('ask', lambda: ask(SOCKET))
attempt('greet', lambda: greet(INIT, []))
attempt('greet_with_own', lambda: greet(INIT, [os.open('/proc/self/ns/pid', os.O_RDONLY)]))
";
    let socket = other.state().join("sandboxd.sock");
    let init = other.state().join("vm").join(&kept.name).join("exec.sock");
    let protocol = sbx_proto::PROTOCOL.to_string();
    let settings = [
        ("INIT", init.to_str().unwrap()),
        ("PROTOCOL", &protocol),
        ("SOCKET", socket.to_str().unwrap()),
        ("VERSION", env!("CARGO_PKG_VERSION")),
    ];
    for user in ["root", "agent"] {
        attack(&sandbox, user, program, &settings).all_refused(3);
    }
    // Outside of sandboxes it serves, from namespaces of the same user too.
    assert_eq!(other.status(&kept.name), "running");
}

fn open_path(shared: &'static World) {
    if !rustix::process::geteuid().is_root() {
        return blocked("only root can become another user");
    }
    // Its state directory is open to others for a moment.
    let world = World::fresh(shared.mode);
    let sandbox = world.sandbox("other-open");
    let state = world.state();
    // With the path open the daemon itself still checks who calls.
    fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let socket = state.join("sandboxd.sock");
    fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let mut other = Command::new("setpriv");
    let ask = format!(
        "import socket\ns = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect({:?})\ntry:\n  s.sendall(b'GET /v1/sandboxes HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\n  print(s.recv(65536))\nexcept OSError as e:\n  print(repr(e))",
        socket.to_str().unwrap()
    );
    other
        .args([
            "--reuid",
            "61234",
            "--regid",
            "61234",
            "--clear-groups",
            PYTHON,
            "-c",
            &ask,
        ])
        .env_clear()
        .current_dir("/");
    let ran = run(&mut other, b"");
    fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    assert!(
        ran.code == 0 && !ran.out.contains(&sandbox.name) && !ran.out.contains("200 OK"),
        "{ran:?}"
    );
}
