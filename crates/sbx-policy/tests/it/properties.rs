use std::net::IpAddr;

use jiff::SignedDuration;
use proptest::prelude::*;
use sbx_policy::{
    Decision, Host, Kind, OlderPattern, Origin, Pattern, Policy, PolicyFile, Protocol, ProxyConfig,
    Rule, Scope, Target, Traffic,
};

use crate::naive;
use crate::support::{host, now};

const PORTS: [u16; 4] = [22, 80, 443, 8080];

/// Few labels, so that names and patterns meet.
fn name() -> impl Strategy<Value = String> {
    let label = prop::sample::select(vec!["a", "b", "ab", "crl1", "crl22", "_x"]);
    let suffix = prop::sample::select(vec![
        "com",
        "a.com",
        "co.uk",
        "b.a.com",
        "localhost",
        "docker.internal",
    ]);
    let special = prop::sample::select(vec![
        "localhost",
        "host.docker.internal",
        "gateway.docker.internal",
        "a.localhost",
    ]);
    let ordinary = (prop::collection::vec(label, 0..4), suffix).prop_map(|(mut labels, suffix)| {
        labels.push(suffix);
        labels.join(".")
    });
    prop_oneof![9 => ordinary, 1 => special.prop_map(str::to_owned)]
}

fn address() -> impl Strategy<Value = IpAddr> {
    let known = prop::sample::select(vec![
        "10.0.0.1",
        "10.0.1.1",
        "192.0.2.1",
        "192.0.2.129",
        "127.0.0.1",
        "8.8.8.8",
        "169.254.169.254",
        "::1",
        "::",
        "fd00::1",
        "2001:db8::1",
        "2001:db8:1::1",
        "64:ff9b::10.0.0.1",
        "64:ff9b::8.8.8.8",
        "::10.0.0.1",
        "::8.8.8.8",
        "2002:a00:1::1",
        "2002:808:808::1",
        "fec0::1",
        "64:ff9b:1::a00:1",
    ]);
    known.prop_map(|text| text.parse().unwrap())
}

fn any_host() -> impl Strategy<Value = Host> {
    prop_oneof![3 => name().prop_map(|text| host(&text)), 1 => address().prop_map(Host::from)]
}

fn target() -> impl Strategy<Value = Target> {
    (any_host(), prop::sample::select(PORTS.to_vec()))
        .prop_map(|(host, port)| Target { host, port })
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let front = prop::sample::select(vec![
        "", "*.", "**.", "crl*.", "?.", "a*.", "*b.", "a.*.", "**.crl?.", "*.*.", "*.a.",
    ]);
    let named = (front, name()).prop_map(|(front, name)| front.to_owned() + &name);
    let networks = prop::sample::select(vec![
        "10.0.0.0/8",
        "10.0.0.0/24",
        "192.0.2.0/25",
        "0.0.0.0/0",
        "::/0",
        "2001:db8::/32",
        "fd00::/8",
        "64:ff9b::/96",
        "64:ff9b::a00:0/104",
        "::/96",
        "127.0.0.0/8",
        "64::/16",
        "2002::/16",
        "2002:a00::/24",
        "2000::/3",
        "64:ff9b:1::/48",
    ]);
    let hosts = prop_oneof![
        6 => named,
        1 => Just("**".to_owned()),
        1 => address().prop_map(|address| address.to_string()),
        2 => networks.prop_map(str::to_owned),
    ];
    (
        hosts,
        prop::option::of(prop::sample::select(vec![22_u16, 80, 443])),
    )
        .prop_map(|(hosts, port)| {
            let text = match port {
                Some(port) if hosts.contains(':') => format!("[{hosts}]:{port}"),
                Some(port) => format!("{hosts}:{port}"),
                None => hosts,
            };
            text.parse().unwrap()
        })
}

fn rule() -> impl Strategy<Value = Rule> {
    let decision = prop_oneof![3 => Just(Decision::Allow), 1 => Just(Decision::Deny)];
    let traffic = prop_oneof![4 => Just(Traffic::Any), 1 => Just(Traffic::Web)];
    let origin = prop_oneof![3 => Just(Origin::Local), 1 => Just(Origin::Preset)];
    let expires = prop_oneof![6 => Just(None), 1 => Just(Some(0)), 1 => Just(Some(1))];
    let resources = prop::collection::vec(pattern(), 0..4);
    (decision, traffic, origin, expires, resources, any::<bool>()).prop_map(
        |(decision, traffic, origin, expires, resources, allow_private)| Rule {
            id: String::new(),
            name: String::new(),
            policy: "local-policy".to_owned(),
            scope: Scope::Global,
            decision,
            resources,
            origin,
            traffic,
            expires: expires.map(|seconds| now() + SignedDuration::from_secs(seconds)),
            expired: false,
            editable: true,
            allow_private,
            created: None,
        },
    )
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    prop::collection::vec(rule(), 0..12).prop_map(|mut rules| {
        for (position, rule) in rules.iter_mut().enumerate() {
            rule.id = position.to_string();
        }
        rules
    })
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop::sample::select(vec![Protocol::Web, Protocol::Other])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_index_decides_as_the_naive_way(rules in rules(), target in target(), protocol in protocol()) {
        let verdict = Policy::compile(rules.clone()).decide(&target, protocol, now());
        let told = verdict.rule.map(|rule| (rule.id, rule.resource.to_string()));
        prop_assert_eq!((verdict.kind, told), naive::decide(&rules, &target, protocol));
        prop_assert_eq!(verdict.allowed, verdict.kind == Kind::Allowed);
    }

    #[test]
    fn resolvable_means_allowed_on_some_port(rules in rules(), host in any_host()) {
        let verdict = Policy::compile(rules.clone()).resolvable(&host, now());
        prop_assert_eq!(verdict.allowed, naive::resolvable(&rules, &host, &PORTS));
    }

    #[test]
    fn address_verdicts_equal_the_naive_ones(
        rules in rules(), name in name(), port in prop::sample::select(PORTS.to_vec()),
        address in address(), protocol in protocol(),
    ) {
        let policy = Policy::compile(rules.clone());
        let target = Target { host: host(&name), port };
        let named = policy.decide(&target, protocol, now());
        let verdict = policy.decide_address(&named, &target, address, protocol, now());
        if !named.allowed {
            prop_assert_eq!(verdict, named);
        } else if !name.ends_with("docker.internal") {
            prop_assert_eq!(verdict.kind, naive::verdict(&rules, &target, address, protocol));
        }
    }

    #[test]
    fn an_address_is_told_that_could_be_dialled(rules in rules(), name in name(), address in address()) {
        let policy = Policy::compile(rules);
        let host = host(&name);
        let dialled = |port, protocol| {
            let target = Target { host: host.clone(), port };
            let named = policy.decide(&target, protocol, now());
            policy.decide_address(&named, &target, address, protocol, now()).allowed
        };
        let expected = PORTS.iter().any(|port| {
            dialled(*port, Protocol::Web) || dialled(*port, Protocol::Other)
        });
        let verdict = policy.may_disclose(&host, address, now());
        prop_assert_eq!(verdict.allowed, expected, "{:?}", verdict);
    }

    #[test]
    fn a_deny_always_wins(rules in rules(), target in target(), protocol in protocol(), at in any::<prop::sample::Index>()) {
        let mut rules = rules;
        let deny = Rule {
            id: "deny".to_owned(),
            name: "deny".to_owned(),
            policy: "local".to_owned(),
            scope: Scope::Sandbox("a".to_owned()),
            decision: Decision::Deny,
            resources: vec![Pattern::exact(target.host.clone(), Some(target.port))],
            origin: Origin::Scoped,
            traffic: Traffic::Any,
            expires: None,
            expired: false,
            editable: true,
            allow_private: false,
            created: None,
        };
        rules.insert(at.index(rules.len() + 1), deny);
        prop_assert!(!Policy::compile(rules).decide(&target, protocol, now()).allowed);
    }

    #[test]
    fn spellings_get_the_same_verdict(rules in rules(), name in name(), dots in any::<bool>(), upper in any::<u64>()) {
        let policy = Policy::compile(rules);
        let mixed: String = name.chars().enumerate()
            .map(|(i, c)| if upper >> (i % 64) & 1 == 1 { c.to_ascii_uppercase() } else { c })
            .collect();
        let spelt = if dots { mixed.replace('.', "\u{3002}") + "." } else { mixed };
        let decide = |text: &str| {
            let target = Target { host: host(text), port: 443 };
            policy.decide(&target, Protocol::Web, now())
        };
        prop_assert_eq!(decide(&spelt), decide(&name));
    }

    #[test]
    fn spellings_of_addresses_are_one_host(bits in any::<u32>()) {
        let [a, b, c, d] = bits.to_be_bytes();
        let expected = Host::Ip(IpAddr::from([a, b, c, d]));
        let low = u32::from(c) << 8 | u32::from(d);
        for text in [
            format!("{a}.{b}.{c}.{d}"), format!("{bits}"), format!("0x{bits:X}"), format!("0{bits:o}"),
            format!("{a:#x}.{b:#x}.{low}"), format!("{a}.{b}.{c}.{d}."), format!("[::ffff:{a}.{b}.{c}.{d}]"),
        ] {
            prop_assert_eq!(Host::parse(&text), Ok(expected.clone()), "{}", text);
        }
    }

    #[test]
    fn canonical_hosts_stay(text in prop_oneof![any::<String>(), "[a-zA-Z0-9ü\u{3002}._-]{0,40}", "\\PC{0,12}\\.com"]) {
        if let Ok(host) = Host::parse(&text) {
            prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
        }
    }

    #[test]
    fn patterns_survive_being_written(pattern in pattern()) {
        prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
    }

    #[test]
    fn any_text_that_is_a_pattern_survives_being_written(text in prop_oneof![
        any::<String>(), "[a-c*?.:\\[\\]/0-9xü-]{0,20}", "[0-9a-f:]{2,20}(/[0-9]{1,3})?",
    ]) {
        if let Ok(pattern) = text.parse::<Pattern>() {
            prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
        if let Ok(pattern) = text.parse::<OlderPattern>() {
            prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
    }

    #[test]
    fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..80), port in any::<Option<u16>>()) {
        let text = String::from_utf8_lossy(&bytes);
        let _ = Target::parse_authority(&text, port).map(|target| target.to_string());
        let _ = Target::parse_loose(&text);
        let _ = Pattern::parse_list(&text);
        let _ = ProxyConfig::parse(&text).is_ok();
        let _ = PolicyFile::parse(&text).is_ok();
    }

    #[test]
    fn what_is_allowed_goes_to_a_port_that_is_open(rules in rules(), target in target(), protocol in protocol()) {
        let policy = Policy::compile(rules);
        if policy.decide(&target, protocol, now()).allowed {
            prop_assert!(policy.opens_port(target.port, now()), "{}", target);
        }
    }

    #[test]
    fn where_a_name_is_denied_names_are_denied(rules in rules(), target in target(), protocol in protocol()) {
        let policy = Policy::compile(rules);
        let denied = policy.decide(&target, protocol, now()).kind == Kind::Explicit;
        if denied && target.host.as_ip().is_none() {
            prop_assert!(policy.denies_names_on(target.port, now()), "{}", target);
        }
    }

    #[test]
    fn targets_survive_being_written(target in target()) {
        prop_assert_eq!(Target::parse_authority(&target.to_string(), None), Ok(target));
    }
}
