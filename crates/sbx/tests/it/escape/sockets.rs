//! Unix sockets of the host, its loopback, the daemon's and init's own sockets, and the way out.

use std::net::{IpAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use super::{attack, on_host};
use crate::ModeTest;
use crate::harness::{SYSTEM_PATH, Sandbox, World};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "sockets_of_the_host_the_daemon_and_init_are_out_of_reach",
        sockets,
    ),
    (
        "sockets_and_use_of_tool_chains_are_out_of_reach",
        in_tool_chains,
    ),
    ("there_is_no_way_out_and_no_other_address_family", network),
];

fn sockets(world: &'static World) {
    let sandbox = world.sandbox("sockets");
    let name = format!(
        "sbx-escape-{}-{}-{}",
        std::process::id(),
        world.mode.name(),
        world.name("abstract")
    );
    let _abstract =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let dir = tempfile::Builder::new()
        .prefix("sbx-escape-")
        .tempdir()
        .unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let bind = |path: PathBuf| {
        let listener = UnixListener::bind(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        (listener, path)
    };
    let (_in_tmp, in_tmp) = bind(dir.path().join("socket"));
    let (_in_home, in_home) = bind(world.home().join(world.name("socket")));
    let daemon = world.state().join("sandboxd.sock");
    let exec = world
        .state()
        .join("vm")
        .join(&sandbox.name)
        .join("exec.sock");
    assert!(exec.exists(), "init's socket has another name");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port().to_string();
    let paths: Vec<_> = [&in_tmp, &in_home, &daemon, &exec]
        .map(|path| path.to_str().unwrap())
        .to_vec();
    let doors = paths.iter().flat_map(|path| {
        ["/proc/1/root", "/proc/1/cwd", "/proc/self/root/../.."].map(|door| format!("{door}{path}"))
    });
    let all = paths
        .iter()
        .map(ToString::to_string)
        .chain(doors)
        .collect::<Vec<_>>()
        .join("\n");
    let settings = [
        ("ABSTRACT", name.as_str()),
        ("PATHS", &all),
        ("PORT", &port),
    ];
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, include_str!("attack/sockets.py"), &settings);
        said.all_refused(6);
        said.refused(&[
            ("abstract", &["ECONNREFUSED"]),
            ("loopback", &["ECONNREFUSED"]),
        ]);
        for number in 0..4 {
            said.refused(&[(&format!("path_{number}"), &["ENOENT"])]);
        }
    }
    let control = on_host(world, include_str!("attack/sockets.py"), &settings);
    for name in [
        "abstract", "path_0", "path_1", "path_2", "path_3", "loopback",
    ] {
        assert_eq!(
            control.result(name),
            "ok",
            "{name} on the host: {}",
            control.all
        );
    }
    std::fs::remove_file(in_home).unwrap();
}

/// Connects to what it finds, and watches what the host does there.
const TOOL_CHAINS: &str = "
inotify = libc.inotify_init1(os.O_NONBLOCK)
for number, path in enumerate(PATHS.split('\\n')):
    if not os.path.exists(path + '/tool'):
        print('missing', path)
    attempt('connect_%d' % number, lambda: socket.socket(socket.AF_UNIX).connect(path + '/socket'))
    attempt('send_%d' % number, lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', path + '/socket'))
    print('watch_%d' % number, libc.inotify_add_watch(inotify, path.encode(), 0xfff) >= 0)
# What it did itself.
try:
    os.read(inotify, 65536)
except BlockingIOError:
    pass
open('ready', 'w').close()
deadline = time.monotonic() + 60
while not os.path.exists('go') and time.monotonic() < deadline:
    os.sched_yield()
try:
    print('seen', os.read(inotify, 65536))
except BlockingIOError:
    print('seen', 'nothing')
";

/// A read-only mount alone hinders neither connections nor watches.
fn in_tool_chains(world: &'static World) {
    let home = tempfile::Builder::new()
        .prefix("sbx-escape-")
        .tempdir()
        .unwrap();
    world.own(home.path());
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(home.path(), 0o755);
    // A version manager's programs, its versions, and any other directory of programs.
    let places = [".cargo/bin", ".rustup/toolchains", ".pyenv/bin", "programs"];
    let mut listeners = Vec::new();
    let mut dirs = Vec::new();
    for place in places {
        let dir = home.path().join(place);
        let missing: Vec<_> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
        for dir in missing.into_iter().rev() {
            world.make_dir(dir);
        }
        world.write(&dir.join("tool"), "#!/bin/sh\n");
        listeners.push(UnixListener::bind(dir.join("socket")).unwrap());
        open(&dir.join("socket"), 0o777);
        dirs.push(dir.to_str().unwrap().to_owned());
    }
    let (name, workspace) = (world.name("tool-sockets"), world.workspace());
    let path = format!("{}:{SYSTEM_PATH}", dirs.join(":"));
    let mut create = world.sbx(["create", "--name", &name, "shell"]);
    create.arg(&workspace).env("HOME", home.path());
    let created = create.env("PATH", path).output().unwrap();
    assert!(created.status.success(), "{created:?}");
    let sandbox = Sandbox {
        world,
        name,
        workspace,
    };
    let paths = dirs.join("\n");
    for user in ["root", "agent"] {
        let watched = std::thread::scope(|scope| {
            let inside = scope.spawn(|| attack(&sandbox, user, TOOL_CHAINS, &[("PATHS", &paths)]));
            while !sandbox.path("ready").exists() && !inside.is_finished() {
                std::thread::yield_now();
            }
            for dir in &dirs {
                std::fs::read_dir(dir).unwrap().for_each(drop);
                std::fs::read(Path::new(dir).join("tool")).unwrap();
            }
            world.write(&sandbox.path("go"), "");
            inside.join().unwrap()
        });
        for (number, place) in places.iter().enumerate() {
            assert_eq!(
                watched.result(&format!("watch_{number}")),
                "True",
                "{place}"
            );
            watched.refused(&[
                (&format!("connect_{number}"), &["ECONNREFUSED"]),
                (&format!("send_{number}"), &["ECONNREFUSED"]),
            ]);
        }
        assert_eq!(watched.result("seen"), "nothing", "{user}: {}", watched.all);
        for name in ["ready", "go"] {
            std::fs::remove_file(sandbox.path(name)).unwrap();
        }
    }
}

fn network(world: &'static World) {
    let sandbox = world.sandbox("network");
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    // The host's own address, where it has one: no packet is sent by this.
    let mut addresses = vec!["127.0.0.1".to_owned()];
    let probe = UdpSocket::bind("0.0.0.0:0").unwrap();
    if probe.connect("192.0.2.1:9").is_ok()
        && let Ok(address) = probe.local_addr()
        && let IpAddr::V4(address) = address.ip()
    {
        addresses.push(address.to_string());
    }
    let settings = [("ADDRESSES", &*addresses.join("\n")), ("PORT", &*port)];
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, include_str!("attack/network.py"), &settings);
        said.all_refused(100);
        assert_eq!(said.result("links"), "lo");
        let unheard: &[&str] = &["TimeoutError", "ECONNRESET"];
        said.refused(&[
            ("tcp4", unheard),
            ("tcp6", unheard),
            ("udp4", &["ECONNREFUSED"]),
            ("udp6", &["ECONNREFUSED"]),
            ("host_127.0.0.1", &["ECONNREFUSED"]),
        ]);
        for family in ["vsock", "alg", "bluetooth", "xdp", "tipc", "key"] {
            for kind in ["family_{}_1", "family_{}_5", "wide_{}", "pair_{}"] {
                said.refused(&[(&kind.replace("{}", family), &["EAFNOSUPPORT"])]);
            }
        }
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "unexpected connection");
}
