//! No other client: not the sandbox next door, and not another user of the machine.

use std::fs;

use super::{Way, sandbox};
use crate::ModeTest;
use crate::harness::{World, tester_is_root};

pub(super) const TESTS: &[ModeTest] = &[
    ("neighbours::sandboxes_do_not_see_each_other", sandboxes),
    ("neighbours::the_daemon_accepts_no_other_client", listeners),
];

fn sandboxes(world: &'static World) {
    let (one, two) = (sandbox(world, "one"), sandbox(world, "two"));
    // Whatever the rules say: there is nothing to allow.
    for each in [&one, &two] {
        each.allow("**,10.0.0.0/8,fd00::/8,127.0.0.0/8");
    }
    world.write(&two.path("listen.py"), include_str!("listen.py"));
    let listening = two.begin("exec /usr/bin/python3 listen.py");
    let addresses = fs::read_to_string(two.path("addresses")).unwrap();
    let mut targets: Vec<String> = addresses
        .lines()
        .map(|address| format!("[{address}]:9999"))
        .collect();
    assert!(targets.len() >= 2, "{addresses}");
    let known = [
        &two.name,
        "two",
        "host.docker.internal",
        "gateway.docker.internal",
        "localhost",
        "10.0.2.2",
        "10.0.2.3",
    ];
    targets.extend(known.map(|host| format!("{host}:9999")));
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    for way in super::WAYS {
        let script = match way {
            Way::Forward => include_str!("reach.py"),
            Way::Transparent => include_str!("raw.py"),
        };
        let said = one.python(way, script, &targets).ok();
        assert_eq!(said.lines().count(), targets.len(), "{said}");
        for (target, line) in targets.iter().zip(said.lines()) {
            assert!(
                !line.contains("from two") && !line.starts_with("200 "),
                "{way:?} {target}: {line}"
            );
        }
    }
    world.write(&two.path("go"), "");
    let said = crate::harness::Ran::from(listening.wait_with_output().unwrap()).ok();
    assert_eq!(said, "its own connection\nno other client");
}

/// Its way in is a socket file of its user's; its listeners for sandboxes are in theirs.
fn listeners(world: &'static World) {
    assert!(tester_is_root());
    let sandbox = sandbox(world, "listeners");
    sandbox.allow("**");
    assert_eq!(
        sandbox.curl(Way::Forward, "http://origin.test/hello").ok(),
        "hello"
    );
    let daemon = world.daemon_pid();
    let mine: Vec<String> = fs::read_dir(format!("/proc/{daemon}/fd"))
        .unwrap()
        .filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .collect();
    for table in ["tcp", "tcp6", "udp", "udp6", "raw", "raw6", "packet"] {
        let text = fs::read_to_string(format!("/proc/{daemon}/net/{table}")).unwrap();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // Listening, or an unconnected socket, which takes from every sender.
            let open = table != "tcp" && table != "tcp6" || fields[3] == "0A";
            let inode = if table == "packet" {
                fields[8]
            } else {
                fields[9]
            };
            assert!(
                !(open && mine.contains(&format!("socket:[{inode}]"))),
                "{table}: {line}"
            );
        }
    }
    // Another user finds no proxy where sandboxes find it.
    let other = if world.uid == 65534 { 65533 } else { 65534 };
    for target in ["127.0.0.1", "10.0.2.2", "10.0.2.3", "[::1]"] {
        let mut curl = world.internet().command(other, other, "curl".as_ref());
        curl.args(["-sS", "-m", "20", "-x"])
            .arg(format!("http://{target}:3128"));
        let ran = crate::harness::Ran::from(
            curl.arg("http://origin.test/hello")
                .current_dir("/")
                .output()
                .unwrap(),
        );
        assert_eq!(ran.code, 7, "{target}: {} {}", ran.out, ran.err);
    }
}
