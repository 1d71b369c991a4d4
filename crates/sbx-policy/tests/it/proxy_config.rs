use sbx_policy::{
    Decision, Edit, Kind, OlderPattern, Policy, Preset, Protocol, ProxyConfig, ProxyMode, preset,
};

use crate::support::{host, now, rule, target, web};

fn config(json: &str) -> ProxyConfig {
    ProxyConfig::parse(json).unwrap()
}

fn older(text: &str) -> OlderPattern {
    text.parse().unwrap()
}

#[test]
fn older_patterns_mean_what_they_meant() {
    let table = [
        ("*", "**", "*"),
        ("*:443", "**:443", "*:443"),
        ("*.Example.com", "**.example.com", "*.example.com"),
        (
            "*.example.com:443",
            "**.example.com:443",
            "*.example.com:443",
        ),
        ("example.com", "example.com", "example.com"),
        ("example.com:80", "example.com:80", "example.com:80"),
        ("10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/8"),
        ("::1/128", "::1", "::1"),
    ];
    for (text, newer, shown) in table {
        let pattern = older(text);
        assert_eq!(
            (
                pattern.pattern().to_string().as_str(),
                pattern.to_string().as_str()
            ),
            (newer, shown)
        );
    }
}

#[test]
fn the_seeds_example_is_read() {
    let config = config(
        r#"{"policy":"allow","network":{"allowedDomains":["api.example.com"],
            "blockedDomains":["blocked.com"],"blockCIDR":["10.0.0.0/8"]}}"#,
    );
    let policy = Policy::compile(config.rules("a"));
    assert!(web(&policy, "anything.example").allowed);
    assert!(web(&policy, "api.example.com").allowed);
    assert_eq!(web(&policy, "blocked.com").kind, Kind::Explicit);
    assert!(web(&policy, "sub.blocked.com").allowed);
    assert_eq!(web(&policy, "10.1.2.3").kind, Kind::Explicit);
    let other = |text| policy.decide(&target(text), Protocol::Other, now());
    assert_eq!(other("anything.example:22").kind, Kind::Implicit);
    assert!(other("api.example.com:22").allowed);
    let rules = config.rules("a");
    assert!(
        rules
            .iter()
            .all(|rule| rule.policy == "proxy-config:a" && !rule.resources.is_empty())
    );
}

#[test]
fn a_star_among_the_hosts_opens_the_web_only() {
    let policy = Policy::compile(
        config(r#"{"network":{"allowedDomains":["*:443","x.example"]}}"#).rules("a"),
    );
    assert!(web(&policy, "h.example").allowed);
    assert!(
        !policy
            .decide(&target("h.example"), Protocol::Other, now())
            .allowed
    );
    assert!(
        policy
            .decide(&target("x.example"), Protocol::Other, now())
            .allowed
    );
}

#[test]
fn a_policy_of_deny_takes_the_catch_all_away() {
    let deny = config(r#"{"policy":"deny","network":{"allowedDomains":["h.example"]}}"#);
    let global = preset(Preset::AllowAll)
        .into_iter()
        .chain([rule("+*.corp.example,**:22"), rule("-x.example")]);
    let policy = Policy::compile(
        deny.narrow(global.clone().collect())
            .into_iter()
            .chain(deny.rules("a")),
    );
    assert!(web(&policy, "h.example").allowed);
    assert!(web(&policy, "a.corp.example").allowed);
    assert_eq!(web(&policy, "other.example").kind, Kind::Implicit);
    assert_eq!(web(&policy, "other.example:22").kind, Kind::Implicit);
    assert_eq!(web(&policy, "x.example").kind, Kind::Explicit);
    // And it can be seen.
    let all: Vec<_> = global.clone().collect();
    let names: Vec<&str> = deny
        .narrowed(&all, now())
        .iter()
        .map(|r| r.name.as_str())
        .collect();
    assert_eq!(names, ["default-allow-all", "+*.corp.example,**:22"]);
    let listed = deny.rules("a").pop().unwrap();
    assert_eq!(
        (listed.id.as_str(), listed.decision, listed.resources.len()),
        ("proxy-config:a:policy-deny", Decision::Deny, 0)
    );
    let unset = config("{}");
    assert!(unset.narrowed(&all, now()).is_empty());
    assert_eq!(
        unset.narrow(global.clone().collect()),
        global.collect::<Vec<_>>()
    );
    assert!(unset.rules("a").is_empty());
}

#[test]
fn unknown_fields_are_refused_by_name() {
    for (json, field) in [
        (r#"{"polcy":"deny"}"#, "polcy"),
        (r#"{"network":{"blockedDomain":[]}}"#, "blockedDomain"),
        (r#"{"policy":"maybe"}"#, "maybe"),
    ] {
        let error = ProxyConfig::parse(json).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains(field), "{cause}");
    }
    assert!(ProxyConfig::parse(r#"{"network":{"blockCIDR":["h.example"]}}"#).is_err());
    assert!(ProxyConfig::parse(r#"{"network":{"allowedDomains":["a b"]}}"#).is_err());
}

/// An array is no file without settings.
#[test]
fn only_objects_are_settings() {
    for json in [
        "[]",
        r#"["deny"]"#,
        r#"[null, {}]"#,
        r#"{"network":[]}"#,
        r#"{"network":[["h.example"]]}"#,
        r#"{"network":null}"#,
        r#"{"network":"deny"}"#,
        "null",
        "\"deny\"",
        "1",
        "true",
        "",
    ] {
        let error = ProxyConfig::parse(json).expect_err(json);
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(
            !cause.contains("struct") && !cause.contains("Proxy"),
            "{cause}"
        );
    }
    let error = ProxyConfig::parse(r#"{"network":[]}"#).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(
        cause,
        "invalid type: sequence, expected an object at line 1 column 11"
    );
    // Nor is anything else let through.
    assert!(ProxyConfig::parse(r#"{"policy":"deny","policy":"allow"}"#).is_err());
    assert_eq!(config("{}"), ProxyConfig::default());
}

#[test]
fn flags_edit_the_file() {
    let mut config = config("{}");
    for edit in [
        Edit::Policy(ProxyMode::Deny),
        Edit::AllowHost(older("h.example")),
        Edit::AllowHost(older("H.EXAMPLE.")),
        Edit::BlockHost(older("*.b.example")),
        Edit::BypassHost(older("*.pinned.example")),
        Edit::AllowCidr(older("10.0.0.0/8")),
        Edit::BlockCidr(older("10.0.0.0/8")),
        Edit::BypassCidr(older("192.0.2.0/24")),
    ] {
        config.edit(edit).unwrap();
    }
    let expected = r#"{
  "policy": "deny",
  "network": {
    "allowedDomains": [
      "h.example"
    ],
    "blockedDomains": [
      "*.b.example"
    ],
    "allowCIDR": [],
    "blockCIDR": [
      "10.0.0.0/8"
    ],
    "bypassDomains": [
      "*.pinned.example"
    ],
    "bypassCIDR": [
      "192.0.2.0/24"
    ]
  }
}
"#;
    assert_eq!(config.to_json().unwrap(), expected);
    assert_eq!(ProxyConfig::parse(expected).unwrap(), config);
    config.edit(Edit::BlockHost(older("h.example"))).unwrap();
    assert!(config.network.allowed_domains.is_empty());
    assert!(config.edit(Edit::AllowCidr(older("h.example"))).is_err());
    assert!(config.bypasses(&host("a.b.pinned.example")));
    assert!(config.bypasses(&host("192.0.2.9")));
    assert!(!config.bypasses(&host("pinned.example")));
}
