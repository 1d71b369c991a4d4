//! The command that a denial comes with: it works, and opens no more than what was asked for.

use sbx_policy::{Origin, Pattern, Policy, Protocol, Rule, Scope, remedy, unreadable};

use crate::support::{connect, now, policy, rule, target, web};

fn hint(policy: &Policy, text: &str) -> Option<String> {
    remedy(
        &Scope::Sandbox("dev".into()),
        &target(text),
        &web(policy, text),
    )
}

#[test]
fn what_no_rule_allows() {
    let open = policy(&["+**"]);
    let closed = policy(&[]);
    for (policy, text, expected) in [
        (&closed, "a.test", Some("a.test:443")),
        (&closed, "[2001:db8::7]:80", Some("'[2001:db8::7]:80'")),
        (&open, "10.0.0.1:80", Some("10.0.0.1:80")),
        (&open, "[fd00::1]:80", Some("'[fd00::1]:80'")),
        (&open, "host.docker.internal:80", Some("localhost:80")),
        (&open, "a.test", None),
    ] {
        let expected =
            expected.map(|what| format!("sbx policy allow network --sandbox dev {what}"));
        assert_eq!(hint(policy, text), expected, "{text}");
    }
}

#[test]
fn a_repository_has_commands_of_its_own() {
    let repo = Scope::repo("/srv/a repo").unwrap();
    let said = |rules: &[&str]| {
        let policy = policy(rules);
        remedy(&repo, &target("a.test"), &web(&policy, "a.test"))
    };
    assert_eq!(
        said(&[]).as_deref(),
        Some("sbx policy allow network --repo '/srv/a repo' a.test:443")
    );
    let mut denied = rule("-a.test");
    denied.scope = repo.clone();
    let policy = Policy::compile([denied]);
    let undo = remedy(&Scope::Global, &target("a.test"), &web(&policy, "a.test")).unwrap();
    assert!(
        undo.starts_with("sbx policy rm network --repo '/srv/a repo' --resource a.test"),
        "{undo}"
    );
}

#[test]
fn a_name_that_leads_inward_is_not_to_be_opened_by_its_name() {
    for (address, wanted) in [
        ("127.0.0.1", "127.0.0.1:8000"),
        ("169.254.169.254", "169.254.169.254:8000"),
        ("fd00::1", "'[fd00::1]:8000'"),
        ("64:ff9b::10.0.0.1", "'[64:ff9b::a00:1]:8000'"),
    ] {
        let rules = ["+**"];
        let verdict = connect(&policy(&rules), "led.test:8000", address);
        let said = remedy(&Scope::Global, &target("led.test:8000"), &verdict).unwrap();
        assert_eq!(said, format!("sbx policy allow network {wanted}"));
        assert!(verdict.reason.starts_with(&format!("{address} is a")) || address.contains(':'));
        assert!(!verdict.reason.contains("led.test"), "{}", verdict.reason);
        // And it works.
        let added = format!("+{}", wanted.replace('\'', ""));
        let opened = policy(&[rules[0], &added]);
        assert!(connect(&opened, "led.test:8000", address).allowed);
    }
}

#[test]
fn only_the_resource_that_denies_is_taken_back() {
    let global = policy(&["+**", "-m1.test,*.m2.test:80,[2001:db8::1]:443"]);
    for (text, resource) in [
        ("m1.test:22", "m1.test"),
        ("x.m2.test:80", "'*.m2.test:80'"),
        ("2001:db8::1", "'[2001:db8::1]:443'"),
    ] {
        let expected = format!("sbx policy rm network --resource {resource}");
        assert_eq!(hint(&global, text), Some(expected));
    }
    let scoped = Rule {
        scope: Scope::Sandbox("dev".into()),
        origin: Origin::Scoped,
        ..rule("-m1.test,m2.test")
    };
    let expected = "sbx policy rm network --sandbox dev --resource m2.test";
    let scoped = Policy::compile([scoped, rule("+**")]);
    assert_eq!(hint(&scoped, "m2.test").as_deref(), Some(expected));
    let older = Rule {
        id: "proxy-config:dev:block-cidr".into(),
        origin: Origin::ProxyConfig,
        ..rule("-192.0.2.0/24")
    };
    let older = Rule {
        scope: Scope::Sandbox("dev".into()),
        ..older
    };
    let expected = "sbx network proxy dev --allow-cidr 192.0.2.0/24";
    let older = Policy::compile([older]);
    assert_eq!(hint(&older, "192.0.2.1").as_deref(), Some(expected));
}

#[test]
fn rules_that_cannot_be_read() {
    let rule = unreadable();
    assert_eq!(rule.resources, [Pattern::everything()]);
    let closed = Policy::compile([rule]);
    for text in ["a.test", "192.0.2.1", "host.docker.internal:80"] {
        for protocol in [Protocol::Web, Protocol::Other] {
            assert!(!closed.decide(&target(text), protocol, now()).allowed);
        }
        assert_eq!(hint(&closed, text).as_deref(), Some("sbx policy ls dev"));
    }
    let verdict = web(&closed, "a.test");
    let everywhere = remedy(&Scope::Global, &target("a.test"), &verdict);
    assert_eq!(everywhere.as_deref(), Some("sbx policy ls"));
    assert!(!verdict.reason.contains('/'), "{}", verdict.reason);
}

#[test]
fn a_host_without_any_allow_rule_needs_both_steps() {
    let expected = "sbx policy rm network --resource m1.test && \
                    sbx policy allow network --sandbox dev m1.test:22";
    assert_eq!(
        hint(&policy(&["-m1.test"]), "m1.test:22").as_deref(),
        Some(expected)
    );
    // The older settings allow what they no longer block.
    let config = r#"{"network": {"blockedDomains": ["*.m1.test:443"]}}"#;
    let config = sbx_policy::ProxyConfig::parse(config).unwrap();
    let older = Policy::compile(config.rules("dev"));
    let expected = "sbx network proxy dev --allow-host '*.m1.test:443'";
    assert_eq!(hint(&older, "a.m1.test").as_deref(), Some(expected));
}
