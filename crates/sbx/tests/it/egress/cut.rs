//! Connections that were allowed end when they no longer are.

use std::io::Read;

use rustix::process::Signal;
use serde_json::Value;

use super::{NO_PROXY, Way, sandbox};
use crate::ModeTest;
use crate::harness::{Mode, Ran, Sandbox, World, eventually, kill};

pub(super) const TESTS: &[ModeTest] = &[
    ("cut::by_a_denial", by_a_denial),
    (
        "cut::by_a_denial_for_its_repository",
        by_a_denial_for_its_repository,
    ),
    ("cut::by_the_end_of_a_rule", by_expiry),
];

/// In a world of its own.
pub(super) const FRESH: (&str, fn(Mode)) =
    ("cut::by_the_end_of_the_daemon", by_the_end_of_the_daemon);

/// Every kind of connection: what the script calls it, and how it gets out.
const KINDS: [(&str, Way); 5] = [
    ("http", Way::Forward),
    ("https", Way::Forward),
    ("http", Way::Transparent),
    ("https", Way::Transparent),
    ("raw", Way::Transparent),
];

fn by_a_denial(world: &'static World) {
    holds(world, "cut", "allow", |sandbox| {
        let deny = [
            "policy",
            "deny",
            "network",
            "--sandbox",
            &sandbox.name,
            "**.wild.test",
        ];
        world.run(deny).ok();
    });
}

fn by_a_denial_for_its_repository(world: &'static World) {
    holds(world, "repo", "allow", |sandbox| {
        let path = sandbox.path("");
        let path = path.to_str().unwrap();
        world
            .run(["policy", "deny", "network", "--repo", path, "**.wild.test"])
            .ok();
    });
}

fn by_expiry(world: &'static World) {
    // The connections are made within it, and it ends by itself.
    holds(world, "expiry", "allow --for 8s", |_| {});
}

fn kinds() -> Vec<String> {
    let called = |(kind, way): &(&str, Way)| match way {
        Way::Transparent => format!("{kind}:direct"),
        Way::Forward => format!("{kind}:proxy"),
    };
    KINDS.iter().map(called).collect()
}

/// What was allowed is on record whatever becomes of the daemon, and who is in the middle of an answer when it ends
/// does not take that for the end of the answer.
fn by_the_end_of_the_daemon(mode: Mode) {
    let world = World::fresh_online(mode, false);
    let sandbox = sandbox(&world, "daemon");
    let host = format!("{}.wild.test", sandbox.name);
    sandbox.allow(&host);
    world.write(&sandbox.path("hold.py"), include_str!("hold.py"));
    let kinds = kinds();
    let script = format!("exec /usr/bin/python3 hold.py {host} {}", kinds.join(" "));
    let held = sandbox.begin(&script);
    world.run(["daemon", "restart"]).ok();
    let said = Ran::from(held.wait_with_output().unwrap()).ok();
    let cut: Vec<String> = kinds.iter().map(|kind| format!("{kind} cut")).collect();
    assert_eq!(said, cut.join("\n"));
    let log = sandbox.log();
    let ended =
        (log.iter()).filter(|line| line["error"] == "cut: the sandbox or the daemon stopped");
    assert_eq!(ended.count(), KINDS.len(), "{log:#?}");
    // Nothing is written after this end.
    let held = sandbox.begin(&script);
    let daemon = world.daemon_pid();
    assert!(kill(daemon, Signal::KILL));
    held.wait_with_output().unwrap();
    let shown = world.run(["network", "log", "--json", &sandbox.name]).ok();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let allowed = |entry: &&Value| {
        let url = entry["url"].as_str().unwrap();
        entry["action"] == "allow" && url.contains(&host)
    };
    let count = shown["entries"].as_array().unwrap().iter().filter(allowed);
    assert_eq!(count.count(), 2 * KINDS.len(), "{shown:#}");
}

/// Connections of all kinds to a host that is allowed by `rule`, until `end` has ended them.
fn holds(world: &'static World, hint: &str, rule: &str, end: impl Fn(&Sandbox<'_>)) {
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
    let kinds = kinds();
    let script = format!("exec /usr/bin/python3 hold.py {host} {}", kinds.join(" "));
    let mut stays = sandbox.begin(&format!(
        "{NO_PROXY}; exec /usr/bin/python3 hold.py other.test raw:direct"
    ));
    let held = sandbox.begin(&script);
    end(&sandbox);
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
