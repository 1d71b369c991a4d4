//! Choosing, adding, looking, removing, checking.

use serde_json::{Value, json};

use super::world;

pub fn a_preset_is_chosen_once() {
    let world = world();
    let said = world.line("policy init deny-all").ok();
    assert_eq!(said, "Global network policy initialized to \"deny-all\".");
    let again = world.line("policy set-default balanced").fails(1);
    assert_eq!(
        again.err,
        "hint: sbx policy reset\nerror: the global network policy is already initialized to `deny-all`\n"
    );
    assert!(!world.line("policy ls").err.contains("chosen"));
    let unasked = world.line("policy reset").fails(1);
    assert!(
        unasked.err.starts_with("hint: use --force\n"),
        "{}",
        unasked.err
    );
    assert_eq!(world.daemon()["status"], "running");
    world.line("policy reset --force").ok();
    assert_eq!(world.daemon()["status"], "stopped");
    assert!(!world.state().join("policy.json").exists());
    // A rule chooses as well, and says so once.
    let first = world.line("policy allow network a.test");
    assert!(first.err.contains("using \"balanced\""), "{}", first.err);
    assert!(
        first
            .out
            .starts_with("Rule added to policy local-policy (scope: global): ")
    );
    assert!(
        !world
            .line("policy allow network b.test")
            .err
            .contains("balanced")
    );
}

pub fn rules() {
    let world = world();
    world.line("policy init deny-all").ok();
    world.line("policy allow network A.test:443,*.b.test").ok();
    let rules = world.json("policy ls --json");
    let rule = &rules["rules"][0];
    let id = rule["id"].as_str().unwrap();
    let expected = json!({
        "id": id, "name": id, "policy_id": "local-policy", "scope": "global", "applies_to": "all",
        "resource_type": "network", "decision": "allow", "resources": ["a.test:443", "*.b.test"],
        "origin": "local", "layer": "local", "status": "active", "editable": true,
    });
    assert_eq!(*rule, expected);
    let same = world.line("policy allow network a.test:443");
    assert!(same.err.contains(id) && same.out.is_empty(), "{}", same.err);
    let conflict = world.line("policy deny network a.test:443").fails(1);
    let hint = "hint: sbx policy rm network --resource a.test:443\n";
    assert!(conflict.err.starts_with(hint), "{}", conflict.err);
    world.line("policy deny network --for 1h c.test").ok();
    let denied = world.json("policy ls --json --decision deny");
    let denied = denied["rules"].as_array().unwrap();
    assert!(denied.iter().any(|rule| rule.get("expires_at").is_some()));
    assert_eq!(
        world.json("policy ls --json --type filesystem")["rules"],
        json!([])
    );

    let inspected = world.line(&format!("policy inspect {id}")).ok();
    assert!(inspected.contains("a.test:443  allow"), "{inspected}");
    assert!(
        inspected.contains(&format!("sbx policy rm network --id {id}")),
        "{inspected}"
    );
    let wide = world.line("policy ls --wide").ok();
    assert!(wide.contains("a.test:443,*.b.test"), "{wide}");

    let part = world.line("policy rm network --resource a.test:443").ok();
    assert_eq!(
        part,
        format!(
            "Resource a.test:443 removed from rule {id} of policy local-policy (scope: global), \
             which keeps 1: *.b.test"
        )
    );
    let missing = world
        .line("policy rm network --resource a.test:443")
        .fails(1);
    assert!(missing.err.contains("a.test:443"), "{}", missing.err);
    let both = format!("policy rm network --id {id} --resource c.test");
    world.line(&both).fails(1);
    let rest = world.line(&format!("policy rm network --id {id}")).ok();
    assert_eq!(
        rest,
        format!("Rule removed from policy local-policy (scope: global): {id} (*.b.test)")
    );
    let read_only = world
        .line("policy rm network --id default-deny-all")
        .fails(1);
    assert!(read_only.err.contains("read-only"), "{}", read_only.err);
    let unknown = world
        .line("policy allow network --sandbox gone a.test")
        .fails(1);
    assert!(
        unknown.err.ends_with("error: no sandbox named `gone`\n"),
        "{}",
        unknown.err
    );
}

pub fn checks() {
    let world = world();
    // Addresses: no name has to be looked up. First by the files, then by a daemon.
    let alone = world.line("policy check network 192.0.2.1").fails(1);
    assert_eq!(
        alone.out,
        "Denied: 192.0.2.1:443\nGovernance: not managed, local rules decide\nContext: global\n\
         Reason: No matching allow rule (default deny)\n"
    );
    assert_eq!(world.daemon()["status"], "stopped");
    world.line("policy allow network 192.0.2.0/24:443").ok();
    let asked = [
        "policy check network --json https://192.0.2.1/v1",
        "policy check network --json 192.0.2.1",
    ];
    let served: Vec<Value> = asked.map(|line| world.json(line)).to_vec();
    assert_eq!(served[0]["allowed"], true);
    assert_eq!(served[0]["target"], "https://192.0.2.1/v1");
    assert_eq!(served[0]["resource_value"], "192.0.2.1:443");
    assert_eq!(served[0]["addresses"], json!(["192.0.2.1:443"]));
    world.line("daemon stop").ok();
    let read: Vec<Value> = asked.map(|line| world.json(line)).to_vec();
    assert_eq!(served, read);
    assert_eq!(world.daemon()["status"], "stopped");
    let verbose = world
        .line("policy check network --verbose 192.0.2.1:80")
        .fails(1)
        .out;
    assert!(
        verbose.contains("To change it: sbx policy allow network 192.0.2.1:80"),
        "{verbose}"
    );
    let host = world
        .line("policy check network host.docker.internal:80")
        .fails(1)
        .out;
    let first = "Denied: host.docker.internal:80 (localhost:80 in rules)\n";
    assert!(host.starts_with(first), "{host}");
    let unknown = world
        .line("policy check network --sandbox gone a.test")
        .fails(1);
    assert!(unknown.err.contains("`gone`"), "{}", unknown.err);
}

pub fn a_damaged_policy() {
    let world = world();
    world.line("policy init allow-all").ok();
    let path = world.state().join("policy.json");
    world.write(&path, r#"{"version": 1, "presett": "allow-all"}"#);
    for line in [
        "policy ls",
        "policy allow network a.test",
        "policy init balanced",
    ] {
        let ran = world.line(line).fails(1);
        assert!(
            ran.err.contains(path.to_str().unwrap()),
            "{line}: {}",
            ran.err
        );
        assert!(ran.err.contains("sbx policy reset"), "{line}: {}", ran.err);
    }
    let check = || -> Value {
        let ran = world.line("policy check network --json 192.0.2.1").fails(1);
        serde_json::from_str(&ran.out).unwrap()
    };
    let served = check();
    assert_eq!(served["allowed"], false);
    assert_eq!(served["hint"], "sbx policy ls");
    world.line("daemon stop").ok();
    assert_eq!(check(), served);
    assert_eq!(world.daemon()["status"], "stopped");
    world.line("policy reset -f").ok();
    world.line("policy init balanced").ok();
}
