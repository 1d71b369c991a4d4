//! A name that an attacker controls must not lead to private addresses.

use super::{WAYS, Way, sandbox};
use crate::ModeTest;
use crate::harness::{Sandbox, World};

pub(super) const TESTS: &[ModeTest] = &[("rebinding::names_lead_to_no_private_address", names)];

const INWARD: [&str; 5] = [
    "private.test",
    "metadata.test",
    "loopback.test",
    "mapped.test",
    // Its name is harmless and its address is not.
    "10.9.9.9",
];

fn names(world: &'static World) {
    let sandbox = sandbox(world, "rebind");
    let script = include_str!("reach.py");
    let reached = |way: Way, hosts: &[&str]| -> Vec<String> {
        let targets: Vec<String> = hosts.iter().map(|host| format!("{host}:80")).collect();
        let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
        let said = sandbox.python(way, script, &targets).ok();
        said.lines().map(str::to_owned).collect()
    };
    for rule in ["*.test", "**"] {
        sandbox.allow(rule);
        for way in WAYS {
            for line in reached(way, &INWARD) {
                assert!(!line.starts_with("200 "), "{way:?} {rule}: {line}");
            }
            // Of two addresses the public one.
            let line = reached(way, &["rebind.test"]).remove(0);
            assert_eq!(line, "200 203.0.113.1:80", "{way:?} {rule}");
        }
        assert_eq!(sandbox.check("rebind.test:80")["allowed"], true);
        // A client that dials the other by itself is stopped.
        let other = sandbox.curl(
            Way::Transparent,
            "--resolve rebind.test:80:10.9.9.9 http://rebind.test/echo",
        );
        assert!(
            matches!(other.code, 52 | 56),
            "{} {}",
            other.code,
            other.out
        );
        // The name of another is no way in.
        let claimed = sandbox.curl(
            Way::Transparent,
            "--resolve origin.test:80:10.9.9.9 http://origin.test/echo",
        );
        assert!(
            matches!(claimed.code, 52 | 56),
            "{} {}",
            claimed.code,
            claimed.out
        );
        let claimed = sandbox.curl(
            Way::Transparent,
            "--resolve origin.test:443:10.9.9.9 https://origin.test/echo",
        );
        assert!(
            matches!(claimed.code, 35 | 56),
            "{} {}",
            claimed.code,
            claimed.out
        );
        sandbox.unrule(rule);
    }
    exact_hosts(&sandbox, &reached);
}

fn exact_hosts(sandbox: &Sandbox<'_>, reached: &dyn Fn(Way, &[&str]) -> Vec<String>) {
    let world = sandbox.world;
    // Nor does a rule for exactly the host, unless it allows private addresses.
    sandbox.allow("*.test");
    for (host, address) in [
        ("private.test", "10.9.9.9"),
        ("metadata.test", "169.254.169.254"),
    ] {
        sandbox.allow(host);
        for way in WAYS {
            for line in reached(way, &[host]) {
                assert!(!line.starts_with("200 "), "{way:?} {host}: {line}");
            }
        }
        let hint = &sandbox.check(&format!("{host}:80"))["hint"];
        assert!(hint.as_str().unwrap().ends_with(&format!("{address}:80")));
        sandbox.unrule(host);
        let scope = ["policy", "allow", "network", "--sandbox", &sandbox.name];
        world
            .run(scope.into_iter().chain(["--allow-private", host]))
            .ok();
        for way in WAYS {
            assert_eq!(
                reached(way, &[host]),
                [format!("200 {address}:80")],
                "{way:?}"
            );
        }
        let shown = world.run(["policy", "ls", "--wide", &sandbox.name]).ok();
        let expected = format!("{host} (private addresses allowed)");
        assert!(shown.contains(&expected), "{shown}");
        sandbox.unrule(host);
    }
    // The table of what was denied has the address.
    let log = world.run(["policy", "log", &sandbox.name]).ok();
    let line = log.lines().find(|line| line.contains("private.test:80"));
    assert!(line.is_some_and(|line| line.contains("10.9.9.9")), "{log}");
    sandbox.allow("10.9.9.0/24");
    assert_eq!(
        reached(Way::Forward, &["private.test", "10.9.9.9"]),
        ["200 10.9.9.9:80"; 2]
    );
    let records = world.internet().records();
    let to_loopback = records.iter().any(|record| {
        record["host"]
            .as_str()
            .is_some_and(|host| host.starts_with("loopback.test"))
    });
    assert!(!to_loopback);
}
