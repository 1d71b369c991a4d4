//! Names: who may know their addresses, and what an address without a name opens.

use std::collections::BTreeSet;

use super::{Way, heard_of, host_has, sandbox};
use crate::ModeTest;
use crate::harness::{Ran, Sandbox, World, eventually};

pub(super) const TESTS: &[ModeTest] = &[
    ("names::raw_tcp_by_name_and_by_address", raw_tcp),
    ("names::first_bytes_that_are_not_a_line", first_words),
    ("names::ssh_by_name", ssh),
    ("names::ssh_through_the_proxy", ssh_through_the_proxy),
    ("names::questions_are_answered_or_refused", questions),
    ("names::names_are_absolute", absolute),
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
    // An address is no name while no client has asked for one; who waits for the other side to speak waits a while.
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

/// A client that waits for an answer to what it has said, whatever that began to look like: a debugger's greeting, the
/// first letters of a method. (What begins as TLS is not called something else.)
const WORDS: [&[u8]; 4] = [b"JDWP-Handshake", b"P", b"GET", b"AUTH "];

fn first_words(world: &'static World) {
    let sandbox = sandbox(world, "words");
    sandbox.allow("raw.test:7000,198.51.100.0/24");
    let words: Vec<String> = WORDS
        .iter()
        .map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    let mut wrong = Vec::new();
    for way in ["direct", "connect", "socks"] {
        for host in ["raw.test", "198.51.100.9"] {
            let mut args = vec![way, host, "7000"];
            args.extend(words.iter().map(String::as_str));
            let said = sandbox
                .python(Way::Transparent, include_str!("words.py"), &args)
                .ok();
            let heard: Vec<&str> = said.lines().collect();
            assert_eq!(heard.len(), words.len(), "{said}");
            for (n, word) in WORDS.iter().enumerate() {
                if heard[n] != words[n] {
                    let word = word.escape_ascii();
                    wrong.push(format!("{way} {host} \"{word}\": {}", heard[n]));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A sandbox with a key for the world outside; none where the host has no `ssh` to try.
fn with_ssh(world: &'static World) -> Option<Sandbox<'static>> {
    // Both are looked for: each that is missing is a reason.
    let found = ["dropbear", "ssh"].map(host_has);
    if found.contains(&false) {
        return None;
    }
    let sandbox = sandbox(world, "ssh");
    let key = std::fs::read(world.internet().file("ssh_key")).unwrap();
    world.write(&sandbox.path("key"), key);
    sandbox.sh("chmod 600 key").ok();
    Some(sandbox)
}

/// Options and a host. It says what it was given, and that it has ended.
fn run_ssh(sandbox: &Sandbox<'_>, target: &str) -> Ran {
    sandbox.sh(&format!(
        "timeout 30 ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
         -o LogLevel=ERROR -i key {target} 'cat; echo done' </etc/hostname"
    ))
}

/// Programs that others are told to reach a host through.
const THROUGH: [(&str, &str); 5] = [
    (
        "nc",
        "nc -w 5 -X connect -x gateway.docker.internal:3128 %h %p",
    ),
    ("nc", "nc -X 5 -x gateway.docker.internal:3128 %h %p"),
    (
        "socat",
        "socat - PROXY:gateway.docker.internal:%h:%p,proxyport=3128",
    ),
    ("corkscrew", "corkscrew gateway.docker.internal 3128 %h %p"),
    (
        "proxytunnel",
        "proxytunnel -q -p gateway.docker.internal:3128 -d %h:%p",
    ),
];

fn ssh_through_the_proxy(world: &'static World) {
    let Some(sandbox) = with_ssh(world) else {
        return;
    };
    let hostname = sandbox.sh("cat /etc/hostname").ok();
    let programs: Vec<&str> = THROUGH
        .into_iter()
        .filter(|(program, _)| host_has(program))
        .map(|(_, command)| command)
        .collect();
    let by = |command: &str, host: &str| {
        run_ssh(
            &sandbox,
            &format!("-o ProxyCommand='{command}' root@{host}"),
        )
    };
    // Everybody at once: one of them does not hear that its connection has ended, and waits.
    let at_once =
        |programs: &[&'static str], hosts: &[&str], check: &(dyn Fn(&str, &str) + Sync)| {
            std::thread::scope(|scope| {
                for command in programs {
                    for host in hosts {
                        scope.spawn(move || check(command, host));
                    }
                }
            });
        };
    let refused = |command: &str, host: &str| {
        by(command, host).refused();
    };
    let works = |command: &str, host: &str| {
        let Ran { code, out, err } = by(command, host);
        assert_eq!(
            (code, out),
            (0, format!("{hostname}\ndone\n")),
            "{command} {host}: {err}"
        );
    };
    // It loses what comes together with the answer to its CONNECT, and this server speaks first.
    let sound: Vec<&str> = programs
        .iter()
        .copied()
        .filter(|command| !command.starts_with("corkscrew"))
        .collect();
    at_once(&programs, &["raw.test", "203.0.113.3"], &refused);
    sandbox.assert_logged("raw.test", "forward", "deny");
    sandbox.allow("raw.test:22");
    at_once(&sound, &["raw.test"], &works);
    // The name is what is allowed.
    at_once(&programs, &["198.51.100.9", "other.test"], &refused);
    sandbox.allow("198.51.100.9:22");
    at_once(&sound, &["198.51.100.9"], &works);
    // Each is on record once it has ended, which may be a moment after its client.
    eventually("every connection is on record", || {
        let log = sandbox.log();
        let allowed = log
            .iter()
            .filter(|line| line["verdict"] == "allow" && line["port"] == 22);
        let connections: BTreeSet<u64> = allowed.filter_map(|line| line["id"].as_u64()).collect();
        (connections.len() == 2 * sound.len()).then_some(())
    });
}

fn ssh(world: &'static World) {
    let Some(sandbox) = with_ssh(world) else {
        return;
    };
    let ssh = |host: &str| run_ssh(&sandbox, &format!("root@{host}"));
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

/// The host's search list (`corp.test origin.test`) makes no other name of what was asked for.
fn absolute(world: &'static World) {
    let sandbox = sandbox(world, "absolute");
    sandbox.allow("**");
    let missing = format!("{}.nowhere.test", sandbox.name);
    let script = "import socket, sys\n\
        for name in sys.argv[1:]:\n\
        \x20   try: print(name, socket.getaddrinfo(name, 80)[0][4][0])\n\
        \x20   except socket.gaierror: print(name, 'none')";
    // `www` would be `www.origin.test` by the search list.
    let dotted = format!("{missing}.");
    let names = ["www", "www.", &missing, &dotted, "www.origin.test."];
    let said = sandbox.python(Way::Transparent, script, &names).ok();
    let expected =
        format!("www none\nwww. none\n{missing} none\n{dotted} none\nwww.origin.test. 203.0.113.1");
    assert_eq!(said, expected);
    for way in [Way::Forward, Way::Transparent] {
        for name in ["www", &missing] {
            let ran = sandbox.curl(way, &format!("http://{name}/echo"));
            assert!(!ran.out.contains("203.0.113"), "{way:?} {}", ran.out);
        }
    }
    assert_eq!(sandbox.check("www:80")["deny_kind"], "implicit");
    let asked: BTreeSet<String> = world
        .internet()
        .records()
        .iter()
        .filter_map(|record| record["name"].as_str().map(str::to_owned))
        .collect();
    assert!(asked.contains(&missing), "{asked:?}");
    let made =
        |name: &&String| name.contains("corp.test") || name.starts_with(&format!("{missing}."));
    assert_eq!(asked.iter().find(made), None);
    assert!(!asked.contains("www"), "{asked:?}");
    sandbox.assert_logged("www", "dns", "deny");
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
        "PTR untold REFUSED",
        "PTR private REFUSED",
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
