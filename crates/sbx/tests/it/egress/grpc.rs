//! gRPC as its own library speaks it: HTTP/2 with trailers, with and without TLS, in a tunnel that the client asks for
//! and in none.

use serde_json::Value;

use super::{WAYS, Way, sandbox};
use crate::ModeTest;
use crate::harness::{World, python_has};

pub(super) const TESTS: &[ModeTest] = &[("grpc::unary_and_streams", calls)];

const PORTS: [&str; 2] = ["50051", "50052"];

fn calls(world: &'static World) {
    if !python_has("grpc") {
        return;
    }
    let sandbox = sandbox(world, "grpc");
    let script = include_str!("grpc_client.py");
    let client = |way, host: &str| {
        let id = format!("{}-{way:?}", sandbox.name);
        sandbox.python(way, script, &[&id, host, PORTS[0], PORTS[1]])
    };
    // In a tunnel the proxy answers with the reason; else there is no connection.
    let refused = |way| match way {
        Way::Forward => "PERMISSION_DENIED",
        Way::Transparent => "UNAVAILABLE",
    };
    let is_refused = |way, host| {
        let (ran, code) = (client(way, host), refused(way));
        assert_eq!(
            ran.out.trim_end(),
            format!("plain {code}\ntls {code}"),
            "{way:?}"
        );
        assert_eq!(way == Way::Forward, ran.err.contains("403"), "{}", ran.err);
    };
    for way in WAYS {
        is_refused(way, "origin.test");
    }
    sandbox.allow("origin.test:50051,origin.test:50052");
    for way in WAYS {
        let ran = client(way, "origin.test");
        let mut expected = Vec::new();
        for scheme in ["plain", "tls"] {
            expected.push(format!("{scheme} unary True head True"));
            // Each message by itself, and what comes after the last.
            expected.push(format!("{scheme} stream 0 1 2 3 OK"));
            expected.push(format!("{scheme} FAILED_PRECONDITION not today"));
        }
        let said: Vec<&str> = ran.out.lines().collect();
        assert_eq!(said, expected, "{way:?} {}", ran.err);
        is_refused(way, "other.test");
    }
    let mut entrances: Vec<String> = sandbox
        .log()
        .iter()
        .filter(|line| {
            line["host"] == "origin.test"
                && line["verdict"] == "allow"
                && line["port"] != Value::Null
        })
        .map(|line| format!("{} {}", line["proxy"], line["port"]))
        .collect();
    entrances.sort();
    entrances.dedup();
    let expected = ["forward-bypass", "transparent"]
        .into_iter()
        .flat_map(|way| PORTS.map(|port| format!("\"{way}\" {port}")));
    assert_eq!(entrances, expected.collect::<Vec<_>>());
}
