//! What must not be held back, cut short or mixed up on the way.

use std::collections::BTreeMap;

use super::{WAYS, Way, sandbox};
use crate::ModeTest;
use crate::harness::World;

pub(super) const TESTS: &[ModeTest] = &[
    ("streams::events_sockets_and_pipelines", streams),
    ("streams::a_hundred_megabytes", bodies),
];

fn streams(world: &'static World) {
    let sandbox = sandbox(world, "streams");
    sandbox.allow("origin.test,www.origin.test");
    for way in WAYS {
        let said = sandbox
            .python(
                way,
                include_str!("streams.py"),
                &[&format!("{}-{way:?}", sandbox.name)],
            )
            .ok();
        let said: BTreeMap<&str, &str> = said
            .lines()
            .filter_map(|line| line.split_once(' '))
            .collect();
        let mixed = match way {
            // Each request by itself.
            Way::Forward => "hello hello 403",
            // The connection is one to an address that the other name does not have.
            Way::Transparent => "hello hello cut",
        };
        let expected = [
            ("sse_http", "0 1 2"),
            ("sse_https", "0 1 2"),
            ("websocket_http", "one two close"),
            ("websocket_https", "one two close"),
            ("pipelined", "hello hello world until"),
            ("mixed", mixed),
            ("half_closed", "ping end"),
        ];
        assert_eq!(said, expected.into(), "{way:?}");
    }
}

fn bodies(world: &'static World) {
    let sandbox = sandbox(world, "bodies");
    sandbox.allow("origin.test");
    for way in WAYS {
        for scheme in ["http", "https"] {
            // TLS of the test's own server is what takes the time there.
            let size = if scheme == "http" {
                100_000_000
            } else {
                10_000_000
            };
            let script = format!(
                "curl -sS -m 120 --cacert all.pem '{scheme}://origin.test/big?n={size}' -o big\n\
                 stat -c %s big\nsha256sum <big | cut -d' ' -f1\n\
                 curl -sS -m 120 --cacert all.pem -T big {scheme}://origin.test/big; rm big"
            );
            let said = sandbox.by(way, &script).ok();
            let lines: Vec<&str> = said.lines().collect();
            assert_eq!(lines[0], size.to_string(), "{way:?} {scheme}: {said}");
            assert_eq!(
                lines[2],
                format!("{} {}", lines[0], lines[1]),
                "{way:?} {scheme}"
            );
            if scheme == "http" {
                assert_eq!(
                    lines[1],
                    "2535eb81a037d76014241c94539b015c0490c72a33025b9e1d2911db25c4d10a"
                );
            }
        }
    }
}
