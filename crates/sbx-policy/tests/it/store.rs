use jiff::SignedDuration;
use sbx_policy::{
    Decision, Existing, NewRule, Origin, Pattern, PolicyFile, Preset, Removal, Removed, Scope,
    StoreError,
};

use crate::support::{now, pattern};

fn file() -> PolicyFile {
    PolicyFile::init(None, Preset::Balanced, now()).unwrap()
}

fn sandbox() -> Scope {
    Scope::Sandbox("a".to_owned())
}

fn new(id: &str, scope: Scope, decision: Decision, resources: &str) -> NewRule {
    NewRule {
        id: id.to_owned(),
        name: Some(format!("name-{id}")),
        scope,
        decision,
        resources: Pattern::parse_list(resources).unwrap(),
        allow_private: false,
        expires: None,
    }
}

fn allow(id: &str, resources: &str) -> NewRule {
    new(id, Scope::Global, Decision::Allow, resources)
}

fn removal(id: Option<&str>, resources: &[&str]) -> Removal {
    Removal {
        scope: Scope::Global,
        id: id.map(str::to_owned),
        resources: resources.iter().map(|text| pattern(text)).collect(),
    }
}

#[test]
fn a_preset_is_chosen_once() {
    let error = PolicyFile::init(Some(&file()), Preset::AllowAll, now()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the global network policy is already initialized to `balanced`"
    );
}

#[test]
fn the_file_survives_being_written() {
    let mut file = file();
    file.add_rule(allow("1", "*.h.example:443,10.0.0.0/8"), now())
        .unwrap();
    file.add_rule(new("2", sandbox(), Decision::Deny, "x.example"), now())
        .unwrap();
    let json = file.to_json().unwrap();
    assert_eq!(PolicyFile::parse(&json).unwrap(), file);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&value["version"], &value["preset"]),
        (&1.into(), &"balanced".into())
    );
    assert_eq!(value["initialized_at"], "2026-11-05T12:00:00Z");
    assert_eq!(value["rules"][1]["scope"], "sandbox:a");
    assert_eq!(value["rules"][1]["policy"], "local");
}

#[test]
fn damaged_files_are_refused() {
    let mut file = file();
    file.add_rule(allow("1", "h.example"), now()).unwrap();
    file.add_rule(allow("2", "i.example"), now()).unwrap();
    let json = file.to_json().unwrap();
    for (from, to) in [
        ("\"version\": 1", "\"version\": 2"),
        ("\"id\": \"2\"", "\"id\": \"1\""),
        ("\"h.example\"", "\"*\""),
        ("\"h.example\"", ""),
        ("\"decision\": \"allow\"", "\"decision\": \"alow\""),
        ("\"editable\"", "\"editble\""),
        ("\"global\"", "\"globe\""),
        ("balanced", "best"),
        ("}", ""),
    ] {
        assert!(json.contains(from), "{from}");
        let damaged = json.replacen(from, to, 1);
        assert!(PolicyFile::parse(&damaged).is_err(), "{from} -> {to}");
    }
}

/// Values in the order of the fields are no file and no rule.
#[test]
fn only_objects_are_files_and_rules() {
    let head =
        r#"{"version":1,"preset":"balanced","initialized_at":"2026-11-05T12:00:00Z","rules":"#;
    let rule =
        r#"["1","1","local-policy","global","allow",["h.example"],"local","any",null,true,null]"#;
    for json in [
        r#"[1,"allow-all","2026-11-05T12:00:00Z",[]]"#.to_owned(),
        format!("{head}[{rule}]}}"),
        format!("{head}{{}}}}"),
        "[]".to_owned(),
    ] {
        let error = PolicyFile::parse(&json).expect_err(&json);
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(!cause.contains("struct"), "{cause}");
    }
    assert!(PolicyFile::parse(&format!("{head}[]}}")).is_ok());
}

#[test]
fn identical_resources_are_reported_not_repeated() {
    let mut file = file();
    let added = file
        .add_rule(allow("1", "h.example,h.example"), now())
        .unwrap();
    let rule = added.rule.unwrap();
    assert_eq!(
        (rule.resources.len(), rule.origin, rule.editable),
        (1, Origin::Local, true)
    );
    let added = file
        .add_rule(allow("2", "H.example.,i.example"), now())
        .unwrap();
    let known = Existing {
        resource: pattern("h.example"),
        rule_id: "1".to_owned(),
        expires: None,
    };
    assert_eq!(added.existing, [known]);
    assert_eq!(added.rule.unwrap().resources, [pattern("i.example")]);
    let added = file
        .add_rule(allow("3", "h.example,i.example"), now())
        .unwrap();
    assert_eq!((added.rule, added.existing.len()), (None, 2));
    let added = file
        .add_rule(new("4", sandbox(), Decision::Allow, "h.example"), now())
        .unwrap();
    assert_eq!(added.rule.unwrap().origin, Origin::Scoped);
    assert!(matches!(
        file.add_rule(allow("1", "z.example"), now()),
        Err(StoreError::DuplicateId(_))
    ));
}

#[test]
fn opposite_rules_of_one_scope_are_refused() {
    let mut file = file();
    file.add_rule(allow("1", "h.example"), now()).unwrap();
    let before = file.clone();
    let deny = new("2", Scope::Global, Decision::Deny, "x.example,h.example");
    let error = file.add_rule(deny, now()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rule `1` of scope global already says allow for `h.example`"
    );
    assert_eq!(file, before);
    assert!(
        file.add_rule(new("2", sandbox(), Decision::Deny, "h.example"), now())
            .is_ok()
    );
    let back = new("3", sandbox(), Decision::Allow, "h.example");
    assert!(matches!(
        file.add_rule(back, now()),
        Err(StoreError::Conflict { .. })
    ));
}

#[test]
fn a_kits_rule_can_be_overruled() {
    let mut file = file();
    file.add_rule(new("kit", sandbox(), Decision::Allow, "h.example"), now())
        .unwrap();
    file.rules[0].editable = false;
    file.rules[0].origin = Origin::Kit;
    assert!(
        file.add_rule(new("2", sandbox(), Decision::Deny, "h.example"), now())
            .is_ok()
    );
}

#[test]
fn rules_that_end_do_not_block_new_ones() {
    let soon = now() + SignedDuration::from_secs(60);
    let mut file = file();
    let mut short = allow("1", "h.example");
    short.expires = Some(soon);
    file.add_rule(short, now()).unwrap();
    assert!(
        file.add_rule(allow("2", "h.example"), now())
            .unwrap()
            .rule
            .is_some()
    );
    let deny = new("3", Scope::Global, Decision::Deny, "h.example");
    assert!(file.add_rule(deny, now()).is_err());
    assert_eq!(file.drop_expired(soon).len(), 1);
    assert_eq!(file.rules.len(), 1);
}

#[test]
fn removal_by_id_by_resource_and_by_both() {
    let mut file = file();
    file.add_rule(allow("1", "h.example,i.example"), now())
        .unwrap();
    file.add_rule(allow("2", "j.example"), now()).unwrap();
    let removed = file.remove(&removal(Some("1"), &["i.example"])).unwrap();
    let expected = Removed {
        rule_id: "1".to_owned(),
        resources: vec![pattern("i.example")],
        entirely: false,
    };
    assert_eq!(removed, [expected]);
    assert!(matches!(
        file.remove(&removal(Some("1"), &["j.example"])),
        Err(StoreError::NoSuchResource { .. })
    ));
    let removed = file
        .remove(&removal(None, &["h.example", "j.example"]))
        .unwrap();
    assert!(removed.len() == 2 && removed.iter().all(|removed| removed.entirely));
    assert!(file.rules.is_empty());
    assert!(matches!(
        file.remove(&removal(None, &[])),
        Err(StoreError::NothingToRemove)
    ));
}

#[test]
fn removal_explains_what_is_wrong() {
    let mut file = file();
    file.add_rule(allow("1", "h.example"), now()).unwrap();
    file.add_rule(new("2", sandbox(), Decision::Allow, "h.example"), now())
        .unwrap();
    let mut message = |id: &str| {
        file.remove(&removal(Some(id), &[]))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        message("name-1"),
        "`name-1` is the name of a rule; its id is `1`"
    );
    assert_eq!(message("2"), "rule `2` belongs to scope sandbox:a");
    assert_eq!(message("9"), "no rule `9`");
    assert!(message("default-ai-services").contains("comes with the preset"));
}

#[test]
fn a_sandbox_takes_its_rules_along_and_a_repository_keeps_its_own() {
    let mut file = file();
    file.add_rule(allow("1", "h.example"), now()).unwrap();
    file.add_rule(new("2", sandbox(), Decision::Allow, "i.example"), now())
        .unwrap();
    let repo = Scope::repo("/srv/repo").unwrap();
    file.add_rule(new("3", repo.clone(), Decision::Allow, "j.example"), now())
        .unwrap();
    let ids = |asked: Scope, repo| -> Vec<String> {
        let rules = file.rules_for(&asked, repo).into_iter();
        rules
            .filter(|rule| rule.origin != Origin::Preset)
            .map(|rule| rule.id)
            .collect()
    };
    let other = || Scope::Sandbox("b".to_owned());
    assert_eq!(ids(Scope::Global, None), ["1"]);
    assert_eq!(ids(sandbox(), None), ["1", "2"]);
    assert_eq!(ids(other(), None), ["1"]);
    assert_eq!(ids(other(), Some("/srv/repo")), ["1", "3"]);
    assert_eq!(ids(other(), Some("/srv/repo/below")), ["1"]);
    assert_eq!(ids(repo, None), ["1", "3"]);
    assert_eq!(file.remove_sandbox("a").len(), 1);
    assert_eq!(file.rules.len(), 2);
    assert_eq!(
        PolicyFile::parse(&file.to_json().unwrap()).unwrap(),
        file,
        "the scope of a repository survives the disk"
    );
}

#[test]
fn private_addresses_are_allowed_for_exact_hosts_only() {
    let private = |id: &str, decision, resources: &str| NewRule {
        allow_private: true,
        ..new(id, Scope::Global, decision, resources)
    };
    let mut file = file();
    for wide in ["*.h.example", "**", "a.example,10.0.0.0/8"] {
        let error = file.add_rule(private("1", Decision::Allow, wide), now());
        assert!(
            matches!(error, Err(StoreError::PrivateWildcard(_))),
            "{wide}: {error:?}"
        );
    }
    let error = file.add_rule(private("1", Decision::Deny, "h.example"), now());
    assert!(matches!(error, Err(StoreError::PrivateDeny)), "{error:?}");
    // A rule without it does not make it superfluous, the other way around it does.
    file.add_rule(allow("1", "h.example"), now()).unwrap();
    let added = file.add_rule(private("2", Decision::Allow, "h.example"), now());
    assert!(added.unwrap().rule.is_some());
    let added = file.add_rule(private("3", Decision::Allow, "h.example"), now());
    assert!(added.unwrap().rule.is_none());
    let json = file.to_json().unwrap();
    assert_eq!(json.matches("\"allow_private\": true").count(), 1, "{json}");
    assert_eq!(PolicyFile::parse(&json).unwrap(), file);
}
