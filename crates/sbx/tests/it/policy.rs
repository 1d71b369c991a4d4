//! `sbx policy` and `sbx network`: every command, what it says, and what it leaves alone. What the rules do to
//! traffic is tested elsewhere; here the log is written by hand.

mod log;
mod rules;
mod sandboxes;

use std::fs;
use std::io::Write;
use std::path::Path;

use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::harness::{MODES, Ran, World};

pub fn trials() -> Vec<Trial> {
    let tests: [(&str, fn()); 14] = [
        ("reading_creates_nothing", reading_creates_nothing),
        ("wrong_input_creates_nothing", wrong_input_creates_nothing),
        ("a_preset_is_chosen_once", rules::a_preset_is_chosen_once),
        ("rules_are_added_listed_and_removed", rules::rules),
        ("checks_without_and_with_a_daemon", rules::checks),
        ("denials_of_a_create", sandboxes::denials_of_a_create),
        ("the_log", log::the_log),
        ("following_the_log", log::following_the_log),
        (
            "a_reset_is_followed_by_a_choice",
            sandboxes::a_reset_is_followed_by_a_choice,
        ),
        ("older_settings", sandboxes::older_settings),
        ("rules_of_a_repository", sandboxes::rules_of_a_repository),
        (
            "rules_of_a_lost_repository",
            sandboxes::rules_of_a_lost_repository,
        ),
        ("a_damaged_policy", rules::a_damaged_policy),
        (
            "a_run_says_what_was_denied",
            sandboxes::a_run_says_what_was_denied,
        ),
    ];
    let blocked = MODES.iter().all(|mode| mode.blocked().is_some());
    tests
        .into_iter()
        .map(|(name, test)| {
            let trial = Trial::test(format!("policy::{name}"), move || {
                test();
                Ok(())
            });
            trial.with_ignored_flag(blocked)
        })
        .collect()
}

/// One world is enough: the rules are the same in every mode.
fn world() -> World {
    let mode = MODES.into_iter().find(|mode| mode.blocked().is_none());
    World::fresh(mode.unwrap())
}

impl World {
    /// A line of words without spaces in them.
    fn line(&self, line: &str) -> Ran {
        self.run(line.split(' '))
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.line(line).ok()).unwrap()
    }

    /// Appends to the network log of a sandbox.
    fn logged(&self, sandbox: &str, text: &str) {
        let dir = self.state().join("log/network");
        for dir in [self.state(), self.state().join("log"), dir.clone()] {
            if !dir.exists() {
                self.make_dir(&dir);
            }
        }
        let path = dir.join(format!("{sandbox}.jsonl"));
        let mut file = fs::File::options()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
        self.own(&path);
    }
}

/// A line of the network log.
fn entry(sandbox: &str, id: u32, host: &str, port: u16, verdict: &str) -> String {
    let time = format!("2026-01-29T10:15:{:02}Z", id % 60);
    let line = json!({
        "time": time, "sandbox": sandbox, "id": id, "entrance": "connect", "proxy": "forward",
        "host": host, "port": port, "verdict": verdict, "rule_name": "some-rule",
        "reason": "because", "sent": 1, "received": 2, "duration_ms": 3, "phase": "closed",
    });
    format!("{line}\n")
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

fn reading_creates_nothing() {
    let world = world();
    let home = world.home();
    let untouched = |line: &str| {
        let mut command = world.sbx(line.split(' '));
        let ran = Ran::from(command.env_remove("SBX_HOME").output().unwrap());
        assert!(is_empty(&home), "{line}");
        ran
    };
    for line in [
        "policy ls",
        "policy ls --wide --include-inactive",
        "policy inspect default-ai-services",
        "policy check network 192.0.2.1",
        "policy log",
        "policy profile ls",
        "network log",
        "policy reset --force",
    ] {
        let ran = untouched(line);
        assert!(matches!(ran.code, 0 | 1), "{line}: {}", ran.err);
        assert!(!ran.err.contains("error:"), "{line}: {}", ran.err);
    }
    let ls = untouched("policy ls");
    assert!(
        ls.out
            .starts_with("POLICY        SOURCE  APPLIES TO  SUMMARY\n"),
        "{}",
        ls.out
    );
    assert!(ls.err.contains("the default is \"balanced\""), "{}", ls.err);
    let rules: Value = serde_json::from_str(&untouched("policy ls --json").ok()).unwrap();
    assert_eq!(rules["rules"].as_array().unwrap().len(), 6);
    assert_eq!(rules["rules"][0]["origin"], "preset");
    assert_eq!(untouched("policy ls --source org").ok(), "No rules found.");
    let profiles: Value =
        serde_json::from_str(&untouched("policy profile ls --json").ok()).unwrap();
    assert_eq!(profiles, json!({"profiles": []}));
    for line in [
        "policy log gone",
        "policy ls gone",
        "policy suggest gone",
        "network proxy gone",
    ] {
        let ran = untouched(line).fails(1);
        assert_eq!(
            ran.err, "hint: sbx ls\nerror: no sandbox named `gone`\n",
            "{line}"
        );
    }
}

fn wrong_input_creates_nothing() {
    let world = world();
    let home = world.home();
    for (line, code, said) in [
        ("policy", 2, "Usage: sbx policy"),
        ("policy init open", 2, "allow-all, balanced, deny-all"),
        ("policy set-default", 2, "PRESET"),
        ("policy allow network", 2, "RESOURCES"),
        ("policy allow filesystem x", 2, "filesystem"),
        ("policy allow network -g a.test", 2, "-g"),
        (
            "policy allow network dev a.test",
            2,
            "hint: sbx policy allow network --sandbox dev a.test\n",
        ),
        (
            "policy deny network dev **",
            2,
            "hint: sbx policy deny network --sandbox dev '**'\n",
        ),
        (
            "policy allow network a.test b.test",
            2,
            "hint: sbx policy allow network a.test,b.test\n",
        ),
        ("policy allow network *", 1, "use `**` for everything"),
        ("policy allow network https://a.test/x", 1, "is a URL"),
        ("policy allow network a.test:99999", 1, "invalid port"),
        ("policy allow network 10.0.0.1/8", 1, "10.0.0.0/8"),
        (
            "policy allow network --for soon a.test",
            1,
            "hint: use a duration such as 90s",
        ),
        ("policy allow network --sandbox a_b a.test", 1, "a_b"),
        ("policy rm network", 2, "--resource"),
        ("policy rm network --resource *", 1, "`**`"),
        ("policy check network", 2, "TARGET"),
        ("policy check network ssh://a.test", 1, "has no known port"),
        ("policy check network a.test:0", 1, "invalid port"),
        ("policy ls --decision maybe", 2, "allow, deny"),
        ("policy ls --type disk", 2, "all, network, filesystem"),
        ("policy log --limit many", 2, "many"),
        (
            "policy log --since yesterday",
            1,
            "invalid time `yesterday`",
        ),
        ("policy log --host *", 1, "--host"),
        ("policy inspect nothing", 1, "hint: sbx policy ls --wide"),
        (
            "policy inspect default-ai-service",
            1,
            "did you mean `default-ai-services`",
        ),
        ("network proxy dev --policy maybe", 2, "allow, deny"),
        ("network frob", 2, "frob"),
    ] {
        let mut command = world.sbx(line.split(' '));
        let ran = Ran::from(command.env_remove("SBX_HOME").output().unwrap());
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (code, ""),
            "{line}: {}",
            ran.err
        );
        assert!(ran.err.contains(said), "{line}: {}", ran.err);
        assert!(is_empty(&home), "{line}");
    }
    let failure = world.line("policy inspect --json nothing").fails(1);
    let failure: Value = serde_json::from_str(&failure.err).unwrap();
    assert_eq!(failure["error"]["code"], "not_found");
}
