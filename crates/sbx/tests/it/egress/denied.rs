//! What a client sees that may not go where it wants.

use serde_json::{Value, json};

use super::{WAYS, Way, heard_of, sandbox};
use crate::ModeTest;
use crate::harness::{Ran, World};

pub(super) const TESTS: &[ModeTest] = &[
    ("denied::by_default", by_default),
    ("denied::by_a_rule", by_a_rule),
    ("denied::checks_say_what_happens", checks),
];

const REASON: &str = "No matching allow rule (default deny)";

fn by_default(world: &'static World) {
    let sandbox = sandbox(world, "denied");
    let name = &sandbox.name;
    let host = format!("{name}.wild.test");
    let certificate = "grep -c BEGIN /usr/local/share/ca-certificates/proxy-ca.crt";
    assert_eq!(sandbox.by(Way::Forward, certificate).ok(), "1");
    let body = |port: u16| {
        format!(
            "Blocked by network policy: domain {host}:{port}\n  rule: none\n  origin: default\n  detail: {REASON}\n  \
             hint: sbx policy allow network --sandbox {name} {host}:{port}\n"
        )
    };
    for (scheme, port) in [("https", 443), ("http", 80)] {
        let url = format!("{scheme}://{host}/secret");
        let told = sandbox.curl(Way::Forward, &format!("-w '%{{http_code}}' {url}"));
        assert_eq!((told.code, told.out), (0, format!("{}403", body(port))));
        sandbox.curl(Way::Forward, &format!("-f {url}")).fails(22);
        sandbox
            .curl(Way::Forward, &format!("--noproxy '*' {url}"))
            .fails(6);
        sandbox.curl(Way::Transparent, &url).fails(6);
        let json = sandbox
            .curl(
                Way::Forward,
                &format!("-H 'Accept: application/json' {url}"),
            )
            .ok();
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["reason"], REASON);
        assert_eq!(json["target"], format!("{host}:{port}"));
        assert_eq!(json["deny_kind"], "implicit");
    }
    // The name was never asked for outside, nor was anything dialled.
    assert_eq!(heard_of(world, &host), Vec::<Value>::new());
    // An address is there, and a client that dials it is cut off.
    for url in ["https://198.51.100.8/", "http://198.51.100.8/"] {
        let cut = sandbox.curl(Way::Transparent, url);
        assert!(matches!(cut.code, 35 | 52 | 56), "{} {}", cut.code, cut.err);
    }
    let line = sandbox.assert_logged(&host, "forward", "deny");
    assert_eq!(line["reason"], REASON);
    sandbox.assert_logged(&host, "dns", "deny");
    sandbox.assert_logged("198.51.100.8", "transparent", "deny");
    let log = world.run(["policy", "log", name, "--json"]).ok();
    let log: Value = serde_json::from_str(&log).unwrap();
    let rows = log["blocked_hosts"].as_array().unwrap();
    let row = rows.iter().find(|row| row["host"] == format!("{host}:443"));
    let row = row.unwrap_or_else(|| panic!("{log:#}"));
    assert_eq!(
        (&row["proxy_type"], &row["reason"]),
        (&json!("forward"), &json!(REASON))
    );
    assert_eq!(log["allowed_hosts"], json!([]));
    let table = world.run(["policy", "log", name]).ok();
    assert!(
        table.contains("Blocked requests:") && table.contains(REASON),
        "{table}"
    );

    let script = format!("curl -sS -o /dev/null https://{host}/; exit 7");
    let run = world
        .run(["run", "--name", name, "--", "-c", &script])
        .fails(7);
    let line = format!("1 host was denied by the network policy; sbx policy log {name} shows it\n");
    assert!(run.err.ends_with(&line), "{}", run.err);
}

fn by_a_rule(world: &'static World) {
    let sandbox = sandbox(world, "ruled");
    let name = &sandbox.name;
    sandbox.allow("**");
    sandbox.rule("deny", "*.wild.test");
    let host = format!("{name}.wild.test");
    for (scheme, port) in [("https", 443), ("http", 80)] {
        let told = sandbox.curl(Way::Forward, &format!("{scheme}://{host}/"));
        let body = told.ok();
        let begin = format!("Blocked by local rule for {host}:{port}\n  rule: ");
        assert!(body.starts_with(&begin), "{body}");
        assert!(
            body.contains(&format!(
                "\n  hint: sbx policy rm network --sandbox {name} --resource '*.wild.test'"
            )),
            "{body}"
        );
        sandbox
            .curl(Way::Transparent, &format!("{scheme}://{host}/"))
            .fails(6);
        let said = sandbox.check(&format!("{host}:{port}"));
        assert_eq!(
            (&said["allowed"], &said["deny_kind"]),
            (&json!(false), &json!("explicit"))
        );
    }
    assert_eq!(heard_of(world, &host), Vec::<Value>::new());
    // The command of the hint is one that works.
    let body = sandbox.curl(Way::Forward, &format!("http://{host}/")).ok();
    let hint = body.split("hint: sbx ").nth(1).unwrap();
    let words = hint.split_whitespace();
    world.run(words.map(|word| word.trim_matches('\''))).ok();
    for way in WAYS {
        assert_eq!(
            sandbox.curl(way, &format!("http://{host}/hello")).ok(),
            "hello"
        );
    }
}

/// Every target is tried both ways; what `policy check` says is what happens.
fn checks(world: &'static World) {
    let sandbox = sandbox(world, "checks");
    for resource in [
        "origin.test:80",
        "*.origin.test",
        "198.51.100.0/25",
        "2001:db8::/64",
        "private.test",
        "**.wild.test:8000",
        "localhost:8001",
    ] {
        sandbox.allow(resource);
    }
    sandbox.rule("deny", "no.wild.test,198.51.100.64/26,six.origin.test:8000");
    let table = [
        ("origin.test:80", true),
        ("origin.test:8000", false),
        ("ORIGIN.test.:80", true),
        ("www.origin.test:80", true),
        ("www.origin.test:8080", true),
        ("deep.www.origin.test:80", false),
        ("six.origin.test:80", true),
        ("six.origin.test:8000", false),
        ("other.test:80", false),
        ("private.test:80", false),
        ("10.9.9.9:80", false),
        ("metadata.test:80", false),
        ("169.254.169.254:80", false),
        ("198.51.100.7:80", true),
        ("198.51.100.70:80", false),
        ("198.51.100.200:80", false),
        ("[2001:db8::2]:80", true),
        ("[2001:db8:1::2]:80", false),
        ("[::ffff:198.51.100.7]:80", true),
        ("yes.wild.test:8000", true),
        ("yes.wild.test:80", false),
        ("no.wild.test:8000", false),
        ("host.docker.internal:8001", true),
        ("host.docker.internal:8000", false),
    ];
    let targets: Vec<&str> = table.iter().map(|(target, _)| *target).collect();
    let script = include_str!("reach.py");
    let tried = |way: Way| -> Vec<String> {
        let Ran { out, err, .. } = sandbox.python(way, script, &targets);
        let lines: Vec<String> = out.lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), table.len(), "{out}{err}");
        lines
    };
    let (forward, transparent) = (tried(Way::Forward), tried(Way::Transparent));
    let mut wrong = Vec::new();
    for (n, (target, allowed)) in table.into_iter().enumerate() {
        let said = sandbox.check(target);
        let reached = |line: &str| line.starts_with("200 ");
        let seen = (
            reached(&forward[n]),
            reached(&transparent[n]),
            said["allowed"] == true,
        );
        if seen != (allowed, allowed, allowed) {
            wrong.push(format!(
                "{target}: {} / {} / {said}",
                forward[n], transparent[n]
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
