//! Names: who may know their addresses, and what an address without a name opens.

use super::{Way, heard_of, host_has, sandbox};
use crate::ModeTest;
use crate::harness::World;

pub(super) const TESTS: &[ModeTest] = &[
    ("names::raw_tcp_by_name_and_by_address", raw_tcp),
    ("names::ssh_by_name", ssh),
    ("names::questions_are_answered_or_refused", questions),
];

const BANNER: &str = "220 origin ready";

fn raw_tcp(world: &'static World) {
    let sandbox = sandbox(world, "raw");
    let said = |target: &str| {
        sandbox
            .python(Way::Transparent, include_str!("raw.py"), &[target])
            .ok()
    };
    let cut = |target: &str| {
        let said = said(target);
        assert!(
            said.starts_with("ConnectionResetError") || said == "ended",
            "{target}: {said}"
        );
    };
    sandbox.allow("raw.test:2525,raw.test:7000");
    // An address is no name while nobody has asked for one; who waits for the other side to speak waits a while.
    cut("203.0.113.3:7000");
    cut("203.0.113.3:2525");
    assert_eq!(said("raw.test:2525"), BANNER);
    assert_eq!(said("203.0.113.3:2525"), BANNER);
    assert_eq!(said("203.0.113.3:7000"), "ping");
    assert_eq!(said("raw.test:7000"), "ping");
    sandbox.assert_logged("raw.test", "network", "allow");
    sandbox.unrule("raw.test:2525,raw.test:7000");
    sandbox.allow("raw.test:2525");
    cut("raw.test:7000");
    cut("203.0.113.3:7000");
    // One that no name leads to needs a rule of its own.
    cut("198.51.100.9:7000");
    for rule in ["198.51.100.9", "198.51.100.0/24", "198.51.100.9:7000"] {
        sandbox.allow(rule);
        assert_eq!(said("198.51.100.9:7000"), "ping", "{rule}");
        sandbox.unrule(rule);
        cut("198.51.100.9:7000");
    }
    sandbox.allow("2001:db8:9::/48");
    assert_eq!(said("[2001:db8:9::9]:2525"), BANNER);
    cut("[2001:db8:8::9]:7000");
    // A tunnel that a client asks for carries it too.
    if host_has("nc") {
        let nc = |target: &str| {
            sandbox.sh(&format!(
                "timeout 20 nc -X connect -x gateway.docker.internal:3128 {target} </dev/null | head -1"
            ))
        };
        assert_eq!(nc("raw.test 2525").ok().trim(), BANNER);
        assert_eq!(nc("198.51.100.9 2525").out, "");
        let socks = sandbox.sh(
            "timeout 20 nc -X 5 -x gateway.docker.internal:3128 raw.test 2525 </dev/null | head -1",
        );
        assert_eq!(socks.ok().trim(), BANNER);
        let direct = sandbox.by(
            Way::Transparent,
            "timeout 20 nc raw.test 2525 </dev/null | head -1",
        );
        assert_eq!(direct.ok().trim(), BANNER);
    }
}

fn ssh(world: &'static World) {
    if !(host_has("dropbear") && host_has("ssh")) {
        return;
    }
    let sandbox = sandbox(world, "ssh");
    let key = std::fs::read(world.internet().file("ssh_key")).unwrap();
    world.write(&sandbox.path("key"), key);
    sandbox.sh("chmod 600 key").ok();
    let ssh = |target: &str| {
        sandbox.sh(&format!(
            "timeout 30 ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
             -o LogLevel=ERROR -i key root@{target} 'cat; echo done' </etc/hostname"
        ))
    };
    ssh("raw.test").refused();
    ssh("203.0.113.3").refused();
    sandbox.allow("raw.test:22");
    let hostname = sandbox.sh("cat /etc/hostname").ok();
    assert_eq!(ssh("raw.test").ok(), format!("{hostname}\ndone"));
    ssh("198.51.100.9").refused();
    sandbox.allow("198.51.100.0/24");
    assert_eq!(ssh("198.51.100.9").ok(), format!("{hostname}\ndone"));
    sandbox.assert_logged("raw.test", "network", "allow");
    sandbox.assert_logged("203.0.113.3", "network", "deny");
}

fn questions(world: &'static World) {
    let sandbox = sandbox(world, "dns");
    let name = &sandbox.name;
    let denied = format!("{name}-denied.wild.test");
    let allowed = format!("{name}.wild.test");
    sandbox.allow(&format!("{allowed}:4711,nowhere.test,six.origin.test"));
    let script = include_str!("dns.py");
    let said = sandbox
        .python(Way::Transparent, script, &[&denied, &allowed])
        .ok();
    let expected = [
        "getaddrinfo denied gaierror",
        "getaddrinfo allowed 203.0.113.9",
        "A denied REFUSED",
        "AAAA denied REFUSED",
        "A allowed 203.0.113.9",
        "AAAA allowed NOERROR",
        "HTTPS allowed NOERROR",
        "A case 203.0.113.9",
        "A below REFUSED",
        "A nowhere.test NXDOMAIN",
        "AAAA six.origin.test 2001:db8::1",
        "TXT allowed REFUSED",
        "NULL allowed REFUSED",
        "MX allowed REFUSED",
        "CNAME allowed REFUSED",
        "SRV allowed REFUSED",
        "ANY allowed REFUSED",
        "AXFR allowed REFUSED",
        "chaos allowed REFUSED",
        "PTR told known",
        "PTR six.origin.test",
        "PTR untold NXDOMAIN",
        "PTR private NXDOMAIN",
        "tcp A allowed 203.0.113.9",
        "tcp TXT allowed REFUSED",
        "elsewhere A allowed 203.0.113.9",
        "elsewhere A denied REFUSED",
        "elsewhere6 A denied REFUSED",
        "localhost 127.0.0.1",
        "host.docker.internal 10.0.2.3",
        "gateway.docker.internal 10.0.2.2",
    ];
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines, expected);
    // Only what may be known was asked, and only for addresses.
    assert!(heard_of(world, &denied).is_empty());
    assert!(heard_of(world, &format!("below.{allowed}")).is_empty());
    let asked = heard_of(world, &allowed);
    assert!(!asked.is_empty());
    for question in asked {
        assert!(
            question["type"] == 1 || question["type"] == 28,
            "{question}"
        );
    }
    // An address that was told opens no other port.
    let dialled = sandbox
        .python(
            Way::Transparent,
            include_str!("raw.py"),
            &[&format!("{allowed}:7000")],
        )
        .ok();
    assert!(
        dialled.starts_with("ConnectionResetError") || dialled == "ended",
        "{dialled}"
    );
    sandbox.assert_logged(&denied, "dns", "deny");
}
