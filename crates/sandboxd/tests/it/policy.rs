//! The routes of the network policy.

use sbx_api::ErrorCode;
use serde_json::{Value, json};

use crate::harness::Daemon;

impl Daemon {
    fn json(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.call(method, path, &body.to_string());
        assert!(matches!(status, 200 | 204), "{status} {answer}");
        serde_json::from_str(&answer).unwrap_or_default()
    }

    fn error(&self, path: &str, body: &Value) -> (u16, ErrorCode, String) {
        let (status, error) = self.refused("POST", path, &body.to_string());
        (status, error.code, error.hint.unwrap_or_default())
    }

    fn allowed(&self, target: &str) -> bool {
        let answer = self.json("POST", "/v1/policy/check", &json!({"target": target}));
        answer.get("allowed").and_then(Value::as_bool).unwrap()
    }
}

#[test]
fn a_preset_is_chosen_once_and_reset() {
    let daemon = Daemon::start();
    let init = |preset: &str| json!({"preset": preset});
    let (status, code, _) = daemon.error("/v1/policy/init", &init("open"));
    assert_eq!((status, code), (400, ErrorCode::BadRequest));
    daemon.json("POST", "/v1/policy/init", &init("deny-all"));
    let (status, code, hint) = daemon.error("/v1/policy/init", &init("balanced"));
    assert_eq!((status, code), (409, ErrorCode::Conflict));
    assert_eq!(hint, "sbx policy reset");
    assert!(daemon.root().join("policy.json").exists());
    daemon.json("POST", "/v1/policy/reset", &json!({}));
    assert!(!daemon.root().join("policy.json").exists());
    daemon.json("POST", "/v1/policy/init", &init("balanced"));
}

#[test]
fn rules_are_added_hold_and_are_removed() {
    let daemon = Daemon::start();
    let rules = "/v1/policy/rules";
    let allow = |resource: &str| json!({"decision": "allow", "resources": [resource]});
    // An address: no name is looked up.
    assert!(!daemon.allowed("192.0.2.1"));
    let added = daemon.json("POST", rules, &allow("192.0.2.0/24"));
    assert!(added["notice"].as_str().unwrap().contains("balanced"));
    assert_eq!(added["rules"][0]["scope"], "global");
    assert_eq!(added["rules"][0]["resources"], json!(["192.0.2.0/24"]));
    assert!(daemon.allowed("192.0.2.1"));
    let again = daemon.json("POST", rules, &allow("192.0.2.0/24"));
    assert_eq!(again["rules"], json!([]));
    assert_eq!(again["existing"][0]["rule_id"], added["rules"][0]["id"]);
    assert_eq!(again.get("notice"), None);

    // A shorter time is in vain, and is told how long the longer one is.
    let for_seconds = |seconds: u32| json!({"decision": "allow", "resources": ["a.test"], "for_seconds": seconds});
    let longer = daemon.json("POST", rules, &for_seconds(3600));
    let shorter = daemon.json("POST", rules, &for_seconds(60));
    let ends = &longer["rules"][0]["expires_at"];
    assert!(ends.is_string());
    assert_eq!(&shorter["existing"][0]["expires_at"], ends);

    let deny = json!({"decision": "deny", "resources": ["192.0.2.0/24"]});
    let (status, code, hint) = daemon.error(rules, &deny);
    assert_eq!((status, code), (409, ErrorCode::Conflict));
    assert_eq!(hint, "sbx policy rm network --resource 192.0.2.0/24");
    for bad in [
        allow("*"),
        json!({"decision": "allow", "resources": []}),
        json!({"decision": "maybe", "resources": ["a.test"]}),
        json!({"decision": "allow", "resources": ["a.test"], "for_seconds": 0}),
    ] {
        assert_eq!(daemon.error(rules, &bad).0, 400, "{bad}");
    }
    let unknown = json!({"decision": "allow", "resources": ["a.test"], "sandbox": "gone"});
    assert_eq!(daemon.error(rules, &unknown).0, 404);

    let remove = "/v1/policy/rules/remove";
    let removal = json!({"id": added["rules"][0]["id"]});
    let removed = daemon.json("POST", remove, &removal);
    assert_eq!(removed["rules"][0]["id"], added["rules"][0]["id"]);
    assert!(!daemon.allowed("192.0.2.1"));
    assert_eq!(daemon.error(remove, &removal).0, 404);
    assert_eq!(daemon.error(remove, &json!({})).0, 400);
}

#[test]
fn checks_that_make_no_sense() {
    let daemon = Daemon::start();
    let check = "/v1/policy/check";
    for bad in ["", "ssh://a.test", "a.test:0", "https://u:p@a.test/"] {
        let (status, code, _) = daemon.error(check, &json!({"target": bad}));
        assert_eq!((status, code), (400, ErrorCode::BadRequest), "{bad}");
    }
    let unknown = json!({"target": "a.test", "sandbox": "gone"});
    assert_eq!(daemon.error(check, &unknown).0, 404);
    let path = "/v1/sandboxes/gone/proxy-config";
    assert_eq!(daemon.error(path, &json!({"policy": "deny"})).0, 404);
    assert_eq!(daemon.refused("GET", path, "").0, 404);
}

#[test]
fn a_damaged_policy_denies_and_says_where() {
    use std::io::Write;
    let daemon = Daemon::start();
    let path = daemon.root().join("policy.json");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(b"{\"version\": 1, \"presett\": 0}").unwrap();
    assert!(!daemon.allowed("192.0.2.1") && !daemon.allowed("github.com"));
    // What a sandbox is told as well: nothing about the host.
    let answer = daemon.json("POST", "/v1/policy/check", &json!({"target": "a.test"}));
    assert!(!answer.to_string().contains('/'), "{answer}");
    assert_eq!(answer["hint"], "sbx policy ls");
    let rule = json!({"decision": "allow", "resources": ["a.test"]});
    let (status, error) = daemon.refused("POST", "/v1/policy/rules", &rule.to_string());
    assert_eq!((status, error.code), (500, ErrorCode::Engine));
    assert!(error.message.contains("policy.json"), "{}", error.message);
    assert!(error.hint.unwrap().contains("sbx policy reset"));
    daemon.json("POST", "/v1/policy/reset", &json!({}));
    assert!(!path.exists());
}

#[test]
fn denials_of_a_create_are_checked_first() {
    let daemon = Daemon::start();
    let body = json!({
        "agent": "shell",
        "workspaces": [{"path": daemon.project()}],
        "caller": {"home": "/home/u"},
        "deny_network": ["a.test", "*"],
    });
    let (status, code, _) = daemon.error("/v1/sandboxes", &body);
    assert_eq!((status, code), (400, ErrorCode::BadRequest));
    assert_eq!(daemon.state.names().unwrap(), vec![]);
    assert!(!daemon.root().join("policy.json").exists());
}
