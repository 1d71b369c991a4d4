//! Services of the host itself: `host.docker.internal:PORT` inside, `localhost:PORT` in a rule.

use serde_json::Value;

use super::{WAYS, Way, sandbox};
use crate::ModeTest;
use crate::harness::World;

pub(super) const TESTS: &[ModeTest] = &[
    ("host::services_by_port", services),
    ("host::own_addresses", own_addresses),
];

fn services(world: &'static World) {
    let sandbox = sandbox(world, "host");
    // Everything else is allowed, and this is not.
    sandbox.allow("**");
    let url = |port: u16| format!("-w ' %{{http_code}}' http://host.docker.internal:{port}/echo");
    let denied = |way: Way, port: u16| {
        let ran = sandbox.curl(way, &url(port));
        match way {
            Way::Forward => {
                let hint = format!(
                    "hint: sbx policy allow network --sandbox {} localhost:{port}",
                    sandbox.name
                );
                assert!(
                    ran.out.ends_with(" 403") && ran.out.contains(&hint),
                    "{}",
                    ran.out
                );
            }
            Way::Transparent => assert!(matches!(ran.code, 52 | 56), "{} {}", ran.code, ran.err),
        }
    };
    for way in WAYS {
        denied(way, 8000);
    }
    sandbox.allow("localhost:8000,localhost:7000");
    for way in WAYS {
        let said = sandbox.curl(way, &url(8000)).ok();
        let body: Value = serde_json::from_str(said.strip_suffix(" 200").unwrap()).unwrap();
        assert_eq!(body["at"], "127.0.0.1:8000");
        let headers = body["headers"].to_string();
        assert!(
            headers.contains(r#"["Host","localhost:8000"]"#),
            "{headers}"
        );
        denied(way, 8001);
    }
    let raw = include_str!("raw.py");
    let said = |target: &str| sandbox.python(Way::Transparent, raw, &[target]).ok();
    assert_eq!(said("host.docker.internal:7000"), "ping");
    let cut = said("host.docker.internal:8001");
    assert!(
        cut.starts_with("ConnectionResetError") || cut == "ended",
        "{cut}"
    );
    // Loopback inside is the sandbox's own, by whichever name.
    for target in [
        "127.0.0.1:8000",
        "localhost:8000",
        "[::1]:8000",
        "127.0.0.1:7000",
    ] {
        let refused = said(target);
        assert!(
            refused.starts_with("ConnectionRefusedError"),
            "{target}: {refused}"
        );
    }
    for target in [
        "127.0.0.1:8000",
        "localhost:8000",
        "[::1]:8000",
        "0.0.0.0:8000",
    ] {
        let told = sandbox.curl(
            Way::Forward,
            &format!("--noproxy '' -w ' %{{http_code}}' http://{target}/echo"),
        );
        assert!(
            told.out.ends_with(" 403"),
            "{target}: {} {}",
            told.out,
            told.err
        );
    }
}

/// A service of the host is one on all of its addresses.
fn own_addresses(world: &'static World) {
    let sandbox = sandbox(world, "own");
    sandbox.allow("**");
    let told = |way: Way, address: &str| {
        let url = format!("-w ' %{{http_code}}' http://{address}:8000/echo");
        sandbox.curl(way, &url)
    };
    let ways = WAYS.into_iter();
    // One that an interface has, and one that the routes alone lead here.
    let both = ways.flat_map(|way| [(way, "203.0.113.99"), (way, "203.0.113.97")]);
    for (way, address) in both {
        let refused = told(way, address);
        match way {
            Way::Forward => assert!(
                refused.out.ends_with(" 403") && refused.out.contains("an address of this machine"),
                "{}",
                refused.out
            ),
            Way::Transparent => assert!(
                matches!(refused.code, 52 | 56),
                "{} {}",
                refused.code,
                refused.err
            ),
        }
        assert!(told(way, "203.0.113.98").ok().ends_with(" 200"));
    }
    let name = sandbox.name.as_str();
    let check = [
        "policy",
        "check",
        "network",
        "--sandbox",
        name,
        "203.0.113.99:8000",
    ];
    assert!(world.run(check).fails(1).out.contains("Denied"));
    sandbox.allow("203.0.113.99:8000");
    for way in WAYS {
        assert!(told(way, "203.0.113.99").ok().ends_with(" 200"));
    }
}
