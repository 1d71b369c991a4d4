use proptest::prelude::*;
use sbx_policy::{Kind, Policy, Protocol, Rule, Suggestion, Target, suggest};

use crate::support::{now, rule, target};

fn suggested(denied: &[&str]) -> Suggestion {
    suggest(denied.iter().map(|text| target(text)))
}

fn resources(denied: &[&str]) -> Vec<String> {
    let rules = suggested(denied).rules;
    rules.iter().map(|rule| rule.resource.to_string()).collect()
}

fn allows(suggestion: &Suggestion) -> Vec<Rule> {
    let rules = suggestion.rules.iter();
    rules
        .map(|suggested| rule(&format!("+{}", suggested.resource)))
        .collect()
}

#[test]
fn two_siblings_are_named_three_are_grouped() {
    assert_eq!(
        resources(&["a.h.example", "b.h.example"]),
        ["a.h.example:443", "b.h.example:443"]
    );
    assert_eq!(
        resources(&["a.h.example", "b.h.example", "c.h.example"]),
        ["*.h.example:443"]
    );
    assert_eq!(
        resources(&["a.h.example", "b.h.example", "c.h.example:80"]),
        ["a.h.example:443", "b.h.example:443", "c.h.example:80"]
    );
}

#[test]
fn two_ports_are_named_three_are_merged() {
    assert_eq!(
        resources(&["h.example:80", "h.example:443"]),
        ["h.example:80", "h.example:443"]
    );
    assert_eq!(
        resources(&["h.example:80", "h.example:443", "h.example:22"]),
        ["h.example"]
    );
}

#[test]
fn strangers_are_never_grouped() {
    for parent in ["com", "co.uk", "github.io", "s3.eu-west-1.amazonaws.com"] {
        let names: Vec<String> = ["a", "b", "c"]
            .map(|label| format!("{label}.{parent}"))
            .into();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(resources(&names).len(), 3, "{parent}");
    }
}

#[test]
fn addresses_and_the_host_are_told_apart() {
    let suggestion = suggested(&[
        "10.0.0.1:5432",
        "192.0.2.1",
        "host.docker.internal:8080",
        "localhost:3000",
        "h.example",
    ]);
    let rules: Vec<_> = suggestion
        .rules
        .iter()
        .map(|rule| rule.resource.to_string())
        .collect();
    assert_eq!(rules, ["h.example:443", "localhost:8080", "192.0.2.1:443"]);
    let unsolved: Vec<_> = suggestion
        .unsolved
        .iter()
        .map(|u| {
            (
                u.target.to_string(),
                u.resource.as_ref().map(ToString::to_string),
            )
        })
        .collect();
    assert_eq!(
        unsolved,
        [
            ("localhost:3000".to_owned(), None),
            ("10.0.0.1:5432".to_owned(), Some("10.0.0.1:5432".to_owned())),
        ]
    );
    assert!(
        suggestion.unsolved[1]
            .reason
            .contains("explicit address rule")
    );
}

#[test]
fn each_rule_says_why() {
    let suggestion = suggested(&["a.h.example", "b.h.example", "c.h.example", "x.example"]);
    let why: Vec<_> = suggestion
        .rules
        .iter()
        .map(|rule| rule.why.as_str())
        .collect();
    assert_eq!(why, ["denied on port 443", "3 siblings denied on port 443"]);
}

fn denied() -> impl Strategy<Value = Vec<Target>> {
    let host = prop_oneof![
        8 => ("[a-e]\\.", prop::sample::select(vec!["h.example", "b.h.example", "com", "co.uk"]))
            .prop_map(|(label, parent)| label + parent),
        1 => Just("h.example".to_owned()),
        1 => Just("host.docker.internal".to_owned()),
        1 => prop::sample::select(vec!["192.0.2.1", "10.0.0.1", "localhost"]).prop_map(str::to_owned),
    ];
    let port = prop::sample::select(vec![22_u16, 80, 443, 8080]);
    let one = (host, port).prop_map(|(host, port)| target(&format!("{host}:{port}")));
    prop::collection::vec(one, 0..24)
}

fn is_allowed(policy: &Policy, target: &Target) -> bool {
    policy.decide(target, Protocol::Other, now()).kind == Kind::Allowed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn suggestions_suffice_and_none_is_superfluous(denied in denied()) {
        let suggestion = suggest(denied.clone());
        let unsolved: Vec<&Target> = suggestion.unsolved.iter().map(|u| &u.target).collect();
        let rules = allows(&suggestion);
        let policy = Policy::compile(rules.clone());
        for target in &denied {
            prop_assert_eq!(is_allowed(&policy, target), !unsolved.contains(&target), "{}", target);
        }
        for left_out in 0..rules.len() {
            let mut fewer = rules.clone();
            fewer.remove(left_out);
            let fewer = Policy::compile(fewer);
            let solved = denied.iter().filter(|target| !unsolved.contains(target));
            prop_assert!(solved.into_iter().any(|target| !is_allowed(&fewer, target)), "{:?}", suggestion.rules[left_out]);
        }
    }

    #[test]
    fn every_target_is_given_to_one_rule_that_matches(denied in denied()) {
        let suggestion = suggest(denied.clone());
        let mut given: Vec<&Target> = suggestion.unsolved.iter().map(|u| &u.target).collect();
        given.extend(suggestion.rules.iter().flat_map(|rule| &rule.covers));
        given.sort();
        let mut expected: Vec<&Target> = denied.iter().collect();
        expected.sort();
        expected.dedup();
        prop_assert_eq!(given, expected);
    }
}
