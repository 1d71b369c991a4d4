//! What was allowed and denied, as it is shown.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use super::{entry, world};

pub fn the_log() {
    let world = world();
    world.logged("one", &entry("one", 1, "a.test", 443, "deny"));
    world.logged("one", &entry("one", 2, "a.test", 443, "deny"));
    world.logged("one", "not a line\n");
    world.logged("two", &entry("two", 3, "b.test", 80, "allow"));
    world.logged("two", "{\"time\":");
    let all = world.line("policy log");
    assert_eq!(all.code, 0);
    assert_eq!(
        all.err,
        "warning: skipped 2 damaged line(s) of the network log\n"
    );
    let lines: Vec<&str> = all.out.lines().collect();
    assert_eq!(lines[0], "Blocked requests:");
    assert!(lines[1].starts_with(
        "SANDBOX  TYPE     HOST        ADDRESS  PROXY    RULE       REASON   LAST SEEN"
    ));
    assert!(
        lines[2]
            .starts_with("one      network  a.test:443  -        forward  some-rule  because  ")
    );
    assert!(lines[2].ends_with("29-Jan  2"), "{}", lines[2]);
    assert_eq!(lines[4], "Allowed requests:");
    let json = world.json("policy log one --json");
    assert_eq!(json["blocked_hosts"][0]["count_since"], 2);
    assert_eq!(json["allowed_hosts"], json!([]));
    for (line, rows) in [
        ("policy log -q", 2),
        ("policy log -q --limit 1", 1),
        ("policy log -q --verdict allow", 1),
        ("policy log -q --host **.test:22", 0),
        ("policy log -q --host a.test:443", 1),
        ("policy log -q --since 2026-01-29T10:15:03Z", 1),
        ("policy log -q --until 2026-01-29T10:15:01Z", 0),
        ("policy log -q --since 1s", 0),
        ("policy log -q --type filesystem", 0),
        ("network log -q", 3),
        ("network log -q --limit 2", 2),
        ("network log -q two", 1),
    ] {
        assert_eq!(world.line(line).out.lines().count(), rows, "{line}");
    }
    let entries = world.json("network log --json two");
    let expected = json!({
        "timestamp": "2026-01-29T10:15:03.000000000Z", "sandbox": "two", "type": "https",
        "method": "CONNECT", "url": "https://b.test:80/", "action": "allow",
    });
    assert_eq!(entries, json!({"entries": [expected]}));
    assert_eq!(world.daemon()["status"], "stopped");
}

pub fn following_the_log() {
    let world = world();
    world.logged("one", &entry("one", 1, "old.test", 443, "deny"));
    // Nothing that is wanted can come any more.
    let until = "policy log one -f --since 2026-01-29T00:00:00Z --until 1s";
    assert!(world.line(until).ok().contains("old.test"));
    for (flags, first) in [
        (&["-f"][..], "new.test"),
        (
            &["-f", "--since", "2026-01-29T10:15:01Z", "--json"],
            "old.test",
        ),
    ] {
        let mut child = world
            .sbx(["policy", "log", "one"])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Written again and again: it does not tell when it begins to follow.
        let heard = AtomicBool::new(false);
        let said = std::thread::scope(|scope| {
            scope.spawn(|| {
                for id in 2..1200 {
                    world.logged("one", &entry("one", id, "new.test", 443, "deny"));
                    std::thread::sleep(Duration::from_millis(50));
                    if heard.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let said = lines.next();
            heard.store(true, Ordering::Relaxed);
            said.unwrap().unwrap()
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(said.contains(first), "{said}");
        fs::remove_file(world.state().join("log/network/one.jsonl")).unwrap();
        world.logged("one", &entry("one", 1, "old.test", 443, "deny"));
    }
}
