//! Short spellings for tests.

use jiff::Timestamp;
use sbx_policy::{
    Decision, Host, Origin, Pattern, Policy, Protocol, Rule, Scope, Target, Traffic, Verdict,
};

pub(crate) fn now() -> Timestamp {
    "2026-11-05T12:00:00Z".parse().unwrap()
}

pub(crate) fn pattern(text: &str) -> Pattern {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(crate) fn target(text: &str) -> Target {
    Target::parse_loose(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(crate) fn host(text: &str) -> Host {
    Host::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A rule from `+RESOURCE,...` (allow) or `-RESOURCE,...` (deny).
pub(crate) fn rule(text: &str) -> Rule {
    let (decision, list) = match text.split_at(1) {
        ("+", list) => (Decision::Allow, list),
        ("-", list) => (Decision::Deny, list),
        _ => panic!("{text} begins with neither + nor -"),
    };
    Rule {
        id: format!("id:{text}"),
        name: text.to_owned(),
        policy: "local-policy".to_owned(),
        scope: Scope::Global,
        decision,
        resources: Pattern::parse_list(list).unwrap_or_else(|error| panic!("{text}: {error}")),
        origin: Origin::Local,
        traffic: Traffic::Any,
        expires: None,
        expired: false,
        editable: true,
        allow_private: false,
        created: None,
    }
}

pub(crate) fn policy(rules: &[&str]) -> Policy {
    Policy::compile(rules.iter().map(|text| rule(text)))
}

pub(crate) fn web(policy: &Policy, text: &str) -> Verdict {
    policy.decide(&target(text), Protocol::Web, now())
}

/// The whole way of a connection to a name that resolves to `address`.
pub(crate) fn connect(policy: &Policy, text: &str, address: &str) -> Verdict {
    let target = target(text);
    let named = policy.decide(&target, Protocol::Web, now());
    policy.decide_address(
        &named,
        &target,
        address.parse().unwrap(),
        Protocol::Web,
        now(),
    )
}
