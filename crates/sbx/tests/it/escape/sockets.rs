//! Unix sockets of the host, its loopback, the daemon's and init's own sockets, and the way out.

use std::net::{IpAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

use super::{attack, on_host};
use crate::ModeTest;
use crate::harness::World;

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "sockets_of_the_host_the_daemon_and_init_are_out_of_reach",
        sockets,
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
    assert!(listener.accept().is_err(), "somebody has connected");
}
