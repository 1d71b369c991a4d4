//! Connections that were allowed end when they no longer are.

use std::io::Read;

use super::{NO_PROXY, Way, sandbox};
use crate::ModeTest;
use crate::harness::{Ran, World, eventually};

pub(super) const TESTS: &[ModeTest] = &[
    ("cut::by_a_denial", by_a_denial),
    ("cut::by_the_end_of_a_rule", by_expiry),
];

/// Every kind of connection: what the script calls it, and how it gets out.
const KINDS: [(&str, Way); 5] = [
    ("http", Way::Forward),
    ("https", Way::Forward),
    ("http", Way::Transparent),
    ("https", Way::Transparent),
    ("raw", Way::Transparent),
];

fn by_a_denial(world: &'static World) {
    holds(world, "cut", "allow", |name| {
        let deny = [
            "policy",
            "deny",
            "network",
            "--sandbox",
            name,
            "**.wild.test",
        ];
        world.run(deny).ok();
    });
}

fn by_expiry(world: &'static World) {
    // The connections are made within it, and it ends by itself.
    holds(world, "expiry", "allow --for 8s", |_| {});
}

/// Connections of all kinds to a host that is allowed by `rule`, until `end` has ended them.
fn holds(world: &'static World, hint: &str, rule: &str, end: impl Fn(&str)) {
    let sandbox = sandbox(world, hint);
    let name = &sandbox.name;
    let host = format!("{name}.wild.test");
    world.write(&sandbox.path("hold.py"), include_str!("hold.py"));
    let (verb, flags) = rule.split_once(' ').unwrap_or((rule, ""));
    let mut allow = vec!["policy", verb, "network", "--sandbox", name];
    allow.extend(flags.split_whitespace());
    // Another rule that stays: connections by it are none of the others' business.
    sandbox.allow("other.test");
    allow.push(&host);
    world.run(allow).ok();
    let kinds: Vec<String> = KINDS
        .iter()
        .map(|(kind, way)| {
            let direct = if *way == Way::Transparent {
                "direct"
            } else {
                "proxy"
            };
            format!("{kind}:{direct}")
        })
        .collect();
    let script = format!("exec /usr/bin/python3 hold.py {host} {}", kinds.join(" "));
    let mut stays = sandbox.begin(&format!(
        "{NO_PROXY}; exec /usr/bin/python3 hold.py other.test raw:direct"
    ));
    let held = sandbox.begin(&script);
    end(name);
    let said = Ran::from(held.wait_with_output().unwrap()).ok();
    let cut: Vec<String> = kinds.iter().map(|kind| format!("{kind} cut")).collect();
    assert_eq!(said, cut.join("\n"));
    // The other side knows too, and the log says why.
    eventually("the origin has noticed", || {
        let records = world.internet().records();
        let released = records
            .iter()
            .filter(|record| record["kind"] == "released" && record["id"] == *host);
        (released.count() == 4).then_some(())
    });
    let log = sandbox.log();
    let ended = log.iter().filter(|line| {
        line["host"] == host
            && line["error"]
                .as_str()
                .is_some_and(|error| error.starts_with("cut: "))
    });
    assert_eq!(ended.count(), KINDS.len(), "{log:#?}");
    // A new one does not come about, and the one that stays still works.
    let again = sandbox.sh(&format!("/usr/bin/python3 hold.py {host} http:proxy"));
    assert!(
        again.out.contains("403") || again.code != 0,
        "{} {}",
        again.out,
        again.err
    );
    assert!(stays.try_wait().unwrap().is_none());
    world.write(&sandbox.path("go"), "");
    let mut rest = String::new();
    stays
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut rest)
        .unwrap();
    stays.wait().unwrap();
    assert_eq!(rest, "raw:direct alive\n");
}
