//! What a rule opens: at once, that and no more, and without a hand in it.

use std::fs;

use super::{WAYS, Way, sandbox};
use crate::ModeTest;
use crate::harness::World;

pub(super) const TESTS: &[ModeTest] = &[
    ("allowed::apex_one_label_any_depth", patterns),
    ("allowed::certificates_are_the_origins", certificates),
];

const HOSTS: [&str; 3] = ["origin.test", "www.origin.test", "deep.www.origin.test"];

/// Rules come and go; the sandbox and its daemon do not.
fn patterns(world: &'static World) {
    let sandbox = sandbox(world, "patterns");
    let init = world.init_pid(&sandbox.name);
    let none = [false; 3];
    for (resource, expected) in [
        ("origin.test", [true, false, false]),
        ("*.origin.test", [false, true, false]),
        ("**.origin.test", [false, true, true]),
        ("*.origin.test:8080", none),
        ("**", [true; 3]),
    ] {
        let script = include_str!("matrix.sh");
        let reached = |way: Way| -> Vec<bool> {
            let said = sandbox
                .by(way, &format!("set -- {}\n{script}", HOSTS.join(" ")))
                .ok();
            let lines: Vec<&str> = said.lines().collect();
            assert_eq!(lines.len(), 6, "{said}");
            // HTTP and HTTPS are treated alike.
            let pairs = lines.chunks(2);
            pairs
                .map(|pair| {
                    assert_eq!(pair[0], pair[1], "{resource}: {said}");
                    pair[0] == "hello"
                })
                .collect()
        };
        for way in WAYS {
            assert_eq!(reached(way), none, "{way:?} before {resource}");
        }
        sandbox.allow(resource);
        for way in WAYS {
            assert_eq!(reached(way), expected, "{way:?} {resource}");
        }
        sandbox.unrule(resource);
    }
    assert_eq!(world.init_pid(&sandbox.name), init);
    sandbox.assert_logged("origin.test", "forward-bypass", "allow");
    sandbox.assert_logged("origin.test", "forward", "allow");
    sandbox.assert_logged("origin.test", "transparent", "allow");
    sandbox.assert_logged("deep.www.origin.test", "forward", "deny");
}

fn certificates(world: &'static World) {
    let sandbox = sandbox(world, "chain");
    sandbox.allow("origin.test:443");
    let own = fs::read_to_string(world.internet().file("origin.crt")).unwrap();
    for way in WAYS {
        let proxy = match way {
            Way::Forward => "-proxy gateway.docker.internal:3128",
            Way::Transparent => "",
        };
        let connect = |host: &str| {
            sandbox.by(
                way,
                &format!(
                    "timeout 20 openssl s_client {proxy} -connect {host}:443 -servername {host} -showcerts \
                     -CAfile all.pem -verify_return_error </dev/null"
                ),
            )
        };
        let shown = connect("origin.test").ok();
        assert!(shown.contains(own.trim()), "{shown}");
        assert!(shown.contains("issuer=CN = Origin Test CA"), "{shown}");
        assert_eq!(shown.matches("BEGIN CERTIFICATE").count(), 1, "{shown}");
        let denied = connect("other.test");
        match way {
            // Its client is told why, by the proxy under its own name.
            Way::Forward => {
                assert!(denied.out.contains("Proxy CA"), "{}", denied.out);
                assert!(!denied.out.contains("Origin Test CA"), "{}", denied.out);
            }
            Way::Transparent => assert_ne!(denied.code, 0),
        }
    }
    let line = sandbox.assert_logged("origin.test", "forward-bypass", "allow");
    assert_eq!(line["address"], "203.0.113.1:443");
    assert!(line["sent"].as_u64().unwrap() > 100 && line["received"].as_u64().unwrap() > 500);
    sandbox.assert_logged("origin.test", "transparent", "allow");
}
