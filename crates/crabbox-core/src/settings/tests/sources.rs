//! Whose word counts.

use std::time::Duration;

use serde_json::json;

use super::*;

#[test]
fn defaults() {
    let settings = Case::default().settings();
    let shown = shown(&settings);
    assert_eq!(
        shown["sync"],
        json!({
            "exclude": built_in(), "include": [], "delete": true, "checksum": false, "gitSeed": true, "fingerprint": true,
            "baseRef": "", "timeout": "15m0s", "warnFiles": 50_000, "warnBytes": 5_368_709_120_u64,
            "failFiles": 150_000, "failBytes": 21_474_836_480_u64, "allowLarge": false,
        })
    );
    assert_eq!(shown["env"], json!({"allow": ["CI", "NODE_OPTIONS"]}));
    assert_eq!(settings.provider(), "fallback");
    assert_eq!(settings.text(None, "profile"), "default");
    assert_eq!(settings.text(None, "target"), "linux");
    assert_eq!(settings.duration(None, "ttl"), Duration::from_secs(5400));
    assert_eq!(
        settings.duration(None, "idleTimeout"),
        Duration::from_secs(1800)
    );
    assert_eq!(settings.origin("sync", "delete"), Some(&Origin::Default));
    assert_eq!(settings.origin("sync", "nothing"), None);
    assert_eq!(settings.profile_env("default"), None);
    assert!(settings.ignored.is_empty());
}

#[test]
fn the_stronger_source_wins_and_is_named() {
    let case = Case::default().user("madeUp:\n  cpus: 1\n");
    let check = |case: &Case, cpus: u64, origin: Origin| {
        let settings = case.settings();
        assert_eq!(settings.count("madeUp", "cpus"), cpus);
        assert_eq!(settings.origin("madeUp", "cpus"), Some(&origin));
    };
    let user = "/home/u/.config/crabbox/config.yaml".into();
    check(
        &case,
        1,
        Origin::User {
            path: user,
            line: 2,
        },
    );
    let case = case.repository("madeUp: {cpus: 2}\n");
    let path = "/r/crabbox.yaml".into();
    check(&case, 2, Origin::Repository { path, line: 1 });
    let case = case.repository("ttl: 5m\nmadeUp:\n\n  cpus: 3\n");
    let path = "/r/.crabbox.yaml".into();
    check(&case, 3, Origin::Repository { path, line: 4 });
    let case = case.env("CRABBOX_MADE_UP_CPUS", "4");
    let name = "CRABBOX_MADE_UP_CPUS";
    check(&case, 4, Origin::Environment { name });
    let case = case.flag("--made-up-cpus", "9").flag("made-up-cpus", "5");
    let name = "made-up-cpus";
    check(&case, 5, Origin::Flag { name });
}

#[test]
fn a_second_repository_file_wins_field_by_field() {
    let settings = Case::default()
        .repository("madeUp: {cpus: 2, template: a}\n")
        .repository("madeUp: {template: b}\n")
        .settings();
    assert_eq!(settings.count("madeUp", "cpus"), 2);
    assert_eq!(settings.text("madeUp", "template"), "b");
}

#[test]
fn an_empty_text_clears_only_where_empty_is_a_value() {
    let user = "provider: made-up\nmadeUp: {cliPath: /opt/made, template: a, mcp: [x]}\n";
    let cleared = "provider: ''\nttl: ''\nmadeUp: {template: '', mcp: []}\n";
    let settings = Case::default().user(user).repository(cleared).settings();
    assert_eq!(settings.provider(), "made-up");
    assert_eq!(settings.text("madeUp", "template"), "");
    assert_eq!(settings.list("madeUp", "mcp"), [""; 0]);
    // Nothing behind the colon says nothing.
    let nothing = "provider:\nmadeUp:\n  template:\n  mcp:\nsync:\n";
    let settings = Case::default().user(user).repository(nothing).settings();
    assert_eq!(settings.text("madeUp", "template"), "a");
    assert_eq!(settings.list("madeUp", "mcp"), ["x"]);
    // An empty variable is not set, but an empty flag is given.
    let case = Case::default()
        .user(user)
        .env("CRABBOX_MADE_UP_TEMPLATE", "");
    assert_eq!(case.settings().text("madeUp", "template"), "a");
    let case = case.flag("made-up-template", "");
    assert_eq!(case.settings().text("madeUp", "template"), "");
    assert_eq!(
        case.flag("provider", "").failure(),
        failure(Code::Usage, "--provider must not be empty")
    );
}

#[test]
fn other_spellings() {
    let text = "targetOS: Linux\nlease: {ttl: 1h, idleTimeout: 5m}\nsync: {excludes: [a], includes: [b]}\n";
    let settings = Case::default().user(text).settings();
    assert_eq!(settings.text(None, "target"), "linux");
    assert_eq!(settings.duration(None, "ttl"), Duration::from_secs(3600));
    assert_eq!(
        settings.duration(None, "idleTimeout"),
        Duration::from_secs(300)
    );
    assert_eq!(settings.list("sync", "exclude"), ["a"]);
    assert_eq!(settings.list("sync", "include"), ["b"]);
    assert_eq!(
        Case::default()
            .user("ttl: 1h\nlease:\n  ttl: 2h\n")
            .failure(),
        failure(
            Code::Config,
            "parse config /home/u/.config/crabbox/config.yaml: line 3 column 3: `lease.ttl` is already set on line 1\n  |\n3 |   ttl: 2h\n  |   ^^^"
        )
    );
}

#[test]
fn lists_replace_except_what_is_sent() {
    let settings = Case::default()
        .user("sync: {exclude: [a, b], include: [p, q]}\nmadeUp: {mcp: [x]}\n")
        .repository("sync: {exclude: [b, c], include: [q, r]}\nmadeUp: {mcp: [y, none]}\n")
        .settings();
    assert_eq!(settings.list("sync", "exclude"), ["a", "b", "b", "c"]);
    assert_eq!(settings.list("sync", "include"), ["p", "q", "r"]);
    assert_eq!(settings.list("madeUp", "mcp"), ["y", "none"]);
}

#[test]
fn lists_in_variables_and_flags() {
    let mcp = |text: &str| {
        let case = Case::default().user("madeUp: {mcp: [x]}");
        case.env("CRABBOX_MADE_UP_MCP", text)
            .settings()
            .list("madeUp", "mcp")
            .to_vec()
    };
    assert_eq!(mcp("a, ,b,"), ["a", "b"]);
    assert_eq!(mcp("none"), [""; 0]);
    assert_eq!(mcp(""), [""; 0]);
    let case = Case::default().env("CRABBOX_MADE_UP_MCP", "z");
    let case = case.flag("made-up-mcp", "none").flag("made-up-mcp", "a,b");
    assert_eq!(case.settings().list("madeUp", "mcp"), ["none", "a,b"]);
    assert_eq!(
        case.flag("made-up-mcp", "").failure(),
        failure(Code::Usage, "--made-up-mcp must not have an empty entry")
    );
}

#[test]
fn the_first_variable_that_is_set_counts() {
    let url = |case: Case| case.settings().text("madeUp", "apiURL").to_owned();
    let fallback = || Case::default().env("MADE_UP_API_URL", "https://b");
    assert_eq!(url(fallback()), "https://b");
    assert_eq!(
        url(fallback().env("CRABBOX_MADE_UP_API_URL", "https://a")),
        "https://a"
    );
    assert_eq!(
        url(fallback().env("CRABBOX_MADE_UP_API_URL", "")),
        "https://b"
    );
}

#[test]
fn booleans_may_be_words() {
    let on = |text: &str| {
        Case::default()
            .user(text)
            .settings()
            .flag("madeUp", "clone")
    };
    assert!(on("madeUp: {clone: on}") && on("madeUp: {clone: Yes}") && on("madeUp: {clone: true}"));
    assert!(!on("madeUp: {clone: off}") && !on("madeUp: {clone: no}"));
    let case = Case::default().user("madeUp: {template: on}");
    assert_eq!(case.settings().text("madeUp", "template"), "on");
}
