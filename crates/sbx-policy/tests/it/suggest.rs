use proptest::prelude::*;
use sbx_policy::{Denied, Kind, Policy, Protocol, Rule, Scope, Suggestion, Target, suggest};

use crate::support::{now, rule, target};

fn suggested(denied: &[&str]) -> Suggestion {
    given(denied.iter().map(|text| target(text)))
}

/// Where no rule says anything.
fn given(denied: impl IntoIterator<Item = Target>) -> Suggestion {
    let denied = denied.into_iter().map(|target| denial(target, None));
    suggest(
        denied,
        &Policy::compile([]),
        &Scope::Sandbox("dev".to_owned()),
        now(),
    )
}

fn denial(target: Target, address: Option<&str>) -> Denied {
    Denied {
        target,
        protocol: Protocol::Web,
        address: address.map(|address| address.parse().unwrap()),
    }
}

/// Resources, and what is unsolved with the reason and the resource.
fn beside(rules: &[&str], denied: &[(&str, Option<&str>)]) -> (Vec<String>, Vec<String>) {
    let policy = Policy::compile(rules.iter().map(|text| rule(text)));
    let denied = denied
        .iter()
        .map(|(text, address)| denial(target(text), *address));
    let suggestion = suggest(denied, &policy, &Scope::Sandbox("dev".to_owned()), now());
    let rules = suggestion
        .rules
        .iter()
        .map(|rule| rule.resource.to_string());
    let unsolved = suggestion.unsolved.iter().map(|unsolved| {
        let resource = unsolved.resource.as_ref().map(ToString::to_string);
        format!("{} {} {resource:?}", unsolved.target, unsolved.reason)
    });
    (rules.collect(), unsolved.collect())
}

#[test]
fn a_name_that_led_to_a_refused_address_is_never_suggested() {
    let led = ("a.x.test:80", Some("169.254.169.254"));
    let (rules, unsolved) = beside(&["+*.x.test"], &[led, ("a.x.test:80", None)]);
    assert_eq!(rules, [""; 0]);
    assert_eq!(
        unsolved,
        [
            "a.x.test:80 leads to 169.254.169.254, which is a cloud metadata service \
          (AWS, Azure, GCP instance metadata) Some(\"169.254.169.254:80\")"
        ]
    );
    // The same after the rule for the name is gone.
    let (rules, unsolved) = beside(&[], &[led, ("a.x.test:80", None)]);
    assert_eq!(rules, [""; 0]);
    assert!(
        unsolved[0].contains("is allowed by no rule, and leads to"),
        "{unsolved:?}"
    );
    // Somebody has decided since.
    let (rules, unsolved) = beside(&["+*.x.test", "+169.254.169.254:80"], &[led]);
    assert_eq!((rules, unsolved), (vec![], vec![]));
    // A rule for the name alone decides nothing about its addresses.
    let (_, unsolved) = beside(&["+*.x.test", "+a.x.test"], &[led]);
    assert_eq!(unsolved.len(), 1);
}

#[test]
fn an_address_that_is_none_of_the_name_needs_a_rule_of_its_own() {
    let dialled = ("one.test:443", Some("192.0.2.9"));
    let (rules, unsolved) = beside(&["+one.test"], &[dialled]);
    assert_eq!((rules, unsolved), (vec!["192.0.2.9:443".into()], vec![]));
    let (rules, _) = beside(&["+one.test", "+192.0.2.0/24"], &[dialled]);
    assert_eq!(rules, [""; 0]);
}

#[test]
fn what_a_rule_denies_is_told_with_the_way_back() {
    let (rules, unsolved) = beside(&["+**", "-no.test"], &[("no.test:443", None)]);
    assert_eq!(rules, [""; 0]);
    assert!(
        unsolved[0].starts_with("no.test:443 is denied by a rule: ")
            && unsolved[0].contains("sbx policy rm network"),
        "{unsolved:?}"
    );
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
fn hosts_of_different_owners_are_never_grouped() {
    let parents = [
        "com",
        "co.uk",
        "kawasaki.jp",
        "github.io",
        "gitlab.io",
        "s3.eu-west-1.amazonaws.com",
        "s3.dualstack.eu-west-1.amazonaws.com",
        "eu-west-1.compute.amazonaws.com",
        "appspot.com",
        "uc.r.appspot.com",
        "azureedge.net",
        "azurewebsites.net",
        "blob.core.windows.net",
        "blogspot.com",
        "cloudapp.net",
        "cloudfront.net",
        "nyc3.digitaloceanspaces.com",
        "firebaseapp.com",
        "fly.dev",
        "herokuapp.com",
        "hf.space",
        "netlify.app",
        "ngrok.io",
        "pages.dev",
        "r2.dev",
        "readthedocs.io",
        "a.run.app",
        "vercel.app",
        "web.app",
        "workers.dev",
        "storage.googleapis.com",
    ];
    for parent in parents {
        let names: Vec<String> = ["a", "b", "c"]
            .map(|label| format!("{label}.{parent}"))
            .into();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(resources(&names).len(), 3, "{parent}");
    }
    // One owner has all of these.
    for parent in ["example.co.uk", "user.github.io", "api.example.com"] {
        let names = ["a", "b", "c"].map(|label| format!("{label}.{parent}"));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(resources(&names), [format!("*.{parent}:443")]);
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
        let suggestion = given(denied.clone());
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
        let suggestion = given(denied.clone());
        let mut given: Vec<&Target> = suggestion.unsolved.iter().map(|u| &u.target).collect();
        given.extend(suggestion.rules.iter().flat_map(|rule| &rule.covers));
        given.sort();
        let mut expected: Vec<&Target> = denied.iter().collect();
        expected.sort();
        expected.dedup();
        prop_assert_eq!(given, expected);
    }
}
