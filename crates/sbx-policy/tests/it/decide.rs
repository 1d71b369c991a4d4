use jiff::{SignedDuration, Timestamp};
use sbx_policy::{
    Decision, HOST_ALIAS, Kind, LocalAddresses, Policy, Preset, Protocol, Rule, Scope, Target,
    Traffic, Verdict, is_gateway, is_host_alias, preset,
};

use crate::support::{connect, host, now, policy, rule, target, web};

fn later(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

fn deciding_rule(verdict: &Verdict) -> &str {
    verdict.rule.as_ref().map_or("none", |rule| &rule.name)
}

#[test]
fn deny_wins_then_allow_then_default_deny() {
    let policy = policy(&[
        "+**.example.com",
        "-bad.example.com",
        "+bad.example.com:443",
    ]);
    let denied = web(&policy, "bad.example.com");
    assert_eq!((denied.allowed, denied.kind), (false, Kind::Explicit));
    assert_eq!(deciding_rule(&denied), "-bad.example.com");
    let allowed = web(&policy, "good.example.com");
    assert_eq!(
        (allowed.allowed, allowed.kind, allowed.allows_private),
        (true, Kind::Allowed, false)
    );
    let other = web(&policy, "example.com");
    assert_eq!(other.kind, Kind::Implicit);
    assert_eq!(other.reason, "No matching allow rule (default deny)");
    assert_eq!(other.rule, None);
}

#[test]
fn the_most_specific_rule_is_reported_then_the_first() {
    let policy = policy(&[
        "+**",
        "+**.example.com",
        "+**.a.example.com",
        "+*.a.example.com",
        "+x*.a.example.com",
        "+x.a.example.com",
        "+x.a.example.com:443",
        "+x.a.example.com:443,y.example",
    ]);
    let table = [
        ("x.a.example.com:443", "+x.a.example.com:443"),
        ("x.a.example.com:80", "+x.a.example.com"),
        ("xy.a.example.com:443", "+x*.a.example.com"),
        ("z.a.example.com:443", "+*.a.example.com"),
        ("z.z.a.example.com:443", "+**.a.example.com"),
        ("b.example.com:443", "+**.example.com"),
        ("example.com:443", "+**"),
    ];
    for (wanted, expected) in table {
        assert_eq!(deciding_rule(&web(&policy, wanted)), expected, "{wanted}");
    }
    let verdict = web(&policy, "y.example");
    assert_eq!(verdict.rule.unwrap().resource.to_string(), "y.example");
}

#[test]
fn literal_addresses_need_a_rule_for_addresses() {
    let named = policy(&["+**.example.com", "+192.0.2.0/24:443"]);
    assert!(web(&named, "192.0.2.7").allowed);
    assert_eq!(web(&named, "192.0.2.7:80").kind, Kind::Implicit);
    assert_eq!(web(&named, "198.51.100.1").kind, Kind::Implicit);
    let open = policy(&["+**"]);
    assert!(web(&open, "198.51.100.1").allowed);
    assert!(web(&open, "[2001:db8::1]:443").allowed);
}

/// What listens on the machine's own addresses is a service of the host, in whatever range they are.
#[test]
fn addresses_of_the_machine_need_their_own_rule() {
    let own = ["198.51.100.7", "2001:db8::7"].map(|text| text.parse().unwrap());
    let here = |rules: &[&str]| policy(rules).with_local_addresses(own.into_iter().collect());
    let open = here(&["+**", "+*.test", "+0.0.0.0/0"]);
    for wanted in [
        "198.51.100.7",
        "[2001:db8::7]:443",
        "[::ffff:198.51.100.7]:443",
    ] {
        let verdict = web(&open, wanted);
        assert_eq!(verdict.kind, Kind::Address, "{wanted}");
        assert!(verdict.reason.contains("an address of this machine"));
        assert!(!open.resolvable(&target(wanted).host, now()).allowed);
    }
    assert!(web(&open, "198.51.100.8").allowed);
    let led = connect(&open, "a.test", "198.51.100.7");
    assert_eq!(led.kind, Kind::Address);
    assert!(connect(&open, "a.test", "198.51.100.8").allowed);
    // As with every refused address, a rule that names it opens it.
    assert!(web(&here(&["+198.51.100.7:443"]), "198.51.100.7").allowed);
    let named = connect(&here(&["+a.test"]), "a.test", "198.51.100.7");
    assert_eq!(named.kind, Kind::Address);
    let mut private = rule("+a.test");
    private.allow_private = true;
    let private = Policy::compile([private])
        .with_local_addresses(["198.51.100.7".parse().unwrap()].into_iter().collect());
    assert!(connect(&private, "a.test", "198.51.100.7").allowed);
    // Where they are not known, any address may be one.
    let unsure = open.with_local_addresses(LocalAddresses::Unknown);
    assert_eq!(web(&unsure, "198.51.100.8").kind, Kind::Address);
}

#[test]
fn refused_ranges_need_their_own_rule() {
    let refused = [
        "10.0.0.1",
        "127.0.0.1",
        "0.0.0.0",
        "169.254.169.254",
        "100.64.1.1",
        "224.0.0.1",
        "[::1]:443",
        "[fd00::1]:443",
        "[fe80::1]:443",
        "[::ffff:10.0.0.1]:443",
        "[64:ff9b::10.0.0.1]:443",
        "[::10.0.0.1]:443",
        "2130706433",
        "0x7f.1",
        "168.63.129.16",
    ];
    for open in [
        policy(&["+**"]),
        policy(&["+**", "+0.0.0.0/0", "+::/0"]),
        policy(&["+64:ff9b::/96", "+**"]),
    ] {
        for wanted in refused {
            assert_eq!(web(&open, wanted).kind, Kind::Address, "{wanted}");
        }
    }
    assert!(web(&policy(&["+**"]), "64:ff9b::8.8.8.8").allowed);
    assert!(web(&policy(&["+10.0.0.1"]), "10.0.0.1").allowed);
    assert!(web(&policy(&["+10.0.0.0/8"]), "[64:ff9b::10.0.0.1]:443").allowed);
    assert!(web(&policy(&["+64:ff9b::10.0.0.1"]), "[64:ff9b::10.0.0.1]:443").allowed);
    assert_eq!(
        web(&policy(&["+10.0.0.1:80", "+**"]), "10.0.0.1:443").kind,
        Kind::Address
    );
    let reason = web(&policy(&["+**"]), "10.0.0.1").reason;
    assert_eq!(
        reason,
        "10.0.0.1 is a private address (RFC 1918), and no rule names it"
    );
}

#[test]
fn denies_of_addresses_see_through_translation() {
    for deny in ["-192.0.2.0/24", "-64:ff9b::/96", "-::/0"] {
        let policy = policy(&["+**", deny]);
        assert_eq!(
            web(&policy, "[64:ff9b::192.0.2.1]:443").kind,
            Kind::Explicit,
            "{deny}"
        );
    }
    assert!(web(&policy(&["+**", "-64:ff9b::/96"]), "192.0.2.1").allowed);
}

#[test]
fn names_must_not_lead_into_refused_ranges() {
    let policy = policy(&[
        "+**.example.com",
        "+exact.example.com:443",
        "+192.168.7.0/24:443",
        "-198.51.100.0/24",
    ]);
    let table = [
        ("a.example.com", "203.0.113.1", Kind::Allowed),
        ("a.example.com", "10.0.0.1", Kind::Address),
        ("a.example.com", "127.0.0.1", Kind::Address),
        ("a.example.com", "::ffff:127.0.0.1", Kind::Address),
        ("a.example.com", "64:ff9b::7f00:1", Kind::Address),
        ("a.example.com", "fd00:ec2::254", Kind::Address),
        ("a.example.com", "192.168.7.9", Kind::Allowed),
        ("a.example.com:80", "192.168.7.9", Kind::Address),
        ("a.example.com", "198.51.100.7", Kind::Explicit),
        ("a.example.com", "::ffff:198.51.100.7", Kind::Explicit),
        ("exact.example.com", "203.0.113.1", Kind::Allowed),
        ("exact.example.com", "192.168.7.9", Kind::Allowed),
        ("exact.example.com", "192.168.8.9", Kind::Address),
        ("exact.example.com", "10.0.0.1", Kind::Address),
        ("exact.example.com", "127.0.0.1", Kind::Address),
        ("exact.example.com", "169.254.1.1", Kind::Address),
        ("exact.example.com", "169.254.169.254", Kind::Address),
        ("exact.example.com", "2002:a00:1::1", Kind::Address),
        ("exact.example.com", "fec0::1", Kind::Address),
        ("exact.example.com", "198.51.100.7", Kind::Explicit),
        ("other.org", "203.0.113.1", Kind::Implicit),
    ];
    for (wanted, address, expected) in table {
        assert_eq!(
            connect(&policy, wanted, address).kind,
            expected,
            "{wanted} at {address}"
        );
    }
}

#[test]
fn an_exact_host_leads_to_private_addresses_where_its_rule_allows_them() {
    let plain = rule("+exact.example.com");
    let mut private = rule("+exact.example.com:443,**.example.com");
    private.allow_private = true;
    let policy = Policy::compile([plain.clone(), private, rule("-10.9.0.0/16")]);
    let table = [
        ("exact.example.com", "10.0.0.1", Kind::Allowed),
        ("exact.example.com", "169.254.169.254", Kind::Allowed),
        ("exact.example.com", "64:ff9b::7f00:1", Kind::Allowed),
        ("exact.example.com:80", "10.0.0.1", Kind::Address),
        ("exact.example.com", "10.9.0.1", Kind::Explicit),
        // A wildcard in such a rule, of a file that was edited by hand, opens nothing.
        ("a.example.com", "10.0.0.1", Kind::Address),
    ];
    for (wanted, address, expected) in table {
        let verdict = connect(&policy, wanted, address);
        assert_eq!(verdict.kind, expected, "{wanted} at {address}");
    }
    let refused = connect(&Policy::compile([plain]), "exact.example.com", "10.0.0.1");
    assert_eq!(refused.kind, Kind::Address);
    assert_eq!(refused.opens.unwrap().to_string(), "10.0.0.1:443");
}

#[test]
fn a_name_without_a_dot_needs_a_rule_for_exactly_it() {
    let wide = policy(&["+**", "+**:443"]);
    for name in ["secret", "SECRET.", "com"] {
        let verdict = web(&wide, name);
        assert_eq!(verdict.kind, Kind::Implicit, "{name}");
        assert!(
            verdict.reason.contains("a name without a dot"),
            "{}",
            verdict.reason
        );
        let verdict = wide.resolvable(&host(name), now());
        assert_eq!(verdict.kind, Kind::Implicit, "{name}");
    }
    let named = policy(&["+secret:443"]);
    assert!(web(&named, "secret.").allowed);
    assert!(named.resolvable(&host("secret"), now()).allowed);
    assert!(!web(&named, "secret:80").allowed);
    assert!(!web(&named, "secret.test").allowed);
    // Denies of everything hold for it too.
    assert_eq!(
        web(&policy(&["+secret", "-**"]), "secret").kind,
        Kind::Explicit
    );
}

#[test]
fn services_of_the_host_need_a_rule_for_localhost_and_the_port() {
    assert!(is_host_alias(&host("Host.Docker.Internal.")));
    let service = "host.docker.internal:8080";
    let closed: [&[&str]; 9] = [
        &[],
        &["+**"],
        &["+**:8080"],
        &["+localhost"],
        &["+localhost:80"],
        &["+host.docker.internal:8080", "+**.docker.internal"],
        &["+127.0.0.1:8080", "+127.0.0.0/8"],
        &["+*.localhost:8080"],
        &["+local*.com", "+host.docker.internal"],
    ];
    for rules in closed {
        let verdict = web(&policy(rules), service);
        assert_eq!(verdict.kind, Kind::Implicit, "{rules:?}");
        assert!(
            verdict.reason.contains("`localhost:8080`"),
            "{}",
            verdict.reason
        );
    }
    let open = policy(&["+localhost:8080"]);
    assert!(web(&open, service).allowed);
    assert!(!web(&open, "host.docker.internal:8081").allowed);
    assert!(connect(&open, service, "127.0.0.1").allowed);
    assert!(connect(&open, service, "::1").allowed);
    assert_eq!(connect(&open, service, "192.0.2.1").kind, Kind::Address);
    for deny in [
        "-localhost",
        "-localhost:8080",
        "-host.docker.internal",
        "-*.docker.internal:8080",
        "-**",
    ] {
        let verdict = web(&policy(&["+localhost:8080", deny]), service);
        assert_eq!(verdict.kind, Kind::Explicit, "{deny}");
    }
}

#[test]
fn the_sandbox_itself_and_the_proxy_are_no_targets() {
    let policy = policy(&[
        "+**",
        "+localhost:443",
        "+gateway.docker.internal",
        "+*.localhost",
    ]);
    for wanted in [
        "localhost",
        "LOCALHOST.",
        "a.localhost",
        "gateway.docker.internal:3128",
    ] {
        let verdict = web(&policy, wanted);
        assert_eq!(
            (verdict.allowed, verdict.kind),
            (false, Kind::Loopback),
            "{wanted}"
        );
    }
    let reason = web(&policy, "localhost:8080").reason;
    assert!(reason.contains("host.docker.internal:8080") && reason.contains("`localhost:8080`"));
    assert!(is_gateway(&host("gateway.docker.internal")));
    assert!(web(&policy, "not.alocalhost").allowed);
}

#[test]
fn names_resolve_if_some_port_is_open() {
    let table: [(&[&str], &str, Kind); 16] = [
        (&["+h.example:22"], "h.example", Kind::Allowed),
        (&["+**.h.example:22"], "h.example", Kind::Implicit),
        (&["+**.h.example:22"], "a.h.example", Kind::Allowed),
        (&[], "h.example", Kind::Implicit),
        (
            &["+h.example", "-h.example:443"],
            "h.example",
            Kind::Allowed,
        ),
        (
            &["+h.example:443", "-h.example:443"],
            "h.example",
            Kind::Explicit,
        ),
        (&["+h.example:443", "-**:443"], "h.example", Kind::Explicit),
        (
            &["+h.example:443", "+h.example:80", "-**:443"],
            "h.example",
            Kind::Allowed,
        ),
        (
            &["+h.example:443", "-h.example"],
            "h.example",
            Kind::Explicit,
        ),
        (&["-h.example"], "h.example", Kind::Explicit),
        (&["-h.example:22"], "h.example", Kind::Implicit),
        (&["+**"], "h.example", Kind::Allowed),
        (&["-**"], "host.docker.internal", Kind::Allowed),
        (&["-**"], "gateway.docker.internal", Kind::Allowed),
        (&["-**"], "localhost", Kind::Allowed),
        (&["+**"], "10.0.0.1", Kind::Implicit),
    ];
    for (rules, name, expected) in table {
        let verdict = policy(rules).resolvable(&host(name), now());
        assert_eq!(verdict.kind, expected, "{rules:?} {name}");
    }
}

#[test]
fn a_deny_of_web_leaves_other_traffic_resolvable() {
    let mut deny = rule("-h.example");
    deny.traffic = Traffic::Web;
    let policy = Policy::compile([rule("+h.example:22"), deny]);
    assert!(policy.resolvable(&host("h.example"), now()).allowed);
    assert!(
        !policy
            .decide(&target("h.example:22"), Protocol::Web, now())
            .allowed
    );
    assert!(
        policy
            .decide(&target("h.example:22"), Protocol::Other, now())
            .allowed
    );
}

#[test]
fn web_rules_never_open_other_traffic() {
    let mut open = rule("+**");
    open.traffic = Traffic::Web;
    let policy = Policy::compile([open]);
    let wanted = target("h.example:22");
    assert!(policy.decide(&wanted, Protocol::Web, now()).allowed);
    assert_eq!(
        policy.decide(&wanted, Protocol::Other, now()).kind,
        Kind::Implicit
    );
}

#[test]
fn rules_end() {
    let mut allow = rule("+h.example");
    allow.expires = Some(later(60));
    let mut deny = rule("-h.example");
    deny.expires = Some(later(30));
    let policy = Policy::compile([allow, deny]);
    let kind_at = |moment| {
        policy
            .decide(&target("h.example"), Protocol::Web, moment)
            .kind
    };
    assert_eq!(kind_at(now()), Kind::Explicit);
    assert_eq!(kind_at(later(30)), Kind::Allowed);
    assert_eq!(kind_at(later(60)), Kind::Implicit);
    assert_eq!(policy.next_expiry(now()), Some(later(30)));
    assert_eq!(policy.next_expiry(later(30)), Some(later(60)));
    assert_eq!(policy.next_expiry(later(60)), None);
}

#[test]
fn presets_mean_what_they_are_called() {
    let decide = |chosen, text: &str| web(&Policy::compile(preset(chosen)), text);
    assert!(decide(Preset::AllowAll, "anything.example:22").allowed);
    assert!(!decide(Preset::AllowAll, &format!("{HOST_ALIAS}:8080")).allowed);
    assert_eq!(decide(Preset::DenyAll, "github.com").kind, Kind::Implicit);
    assert!(decide(Preset::Balanced, "github.com").allowed);
    assert!(decide(Preset::Balanced, "api.github.com").allowed);
    assert!(decide(Preset::Balanced, "crl3.digicert.com:80").allowed);
    assert_eq!(
        decide(Preset::Balanced, "github.com:22").kind,
        Kind::Implicit
    );
    assert_eq!(decide(Preset::Balanced, "example.org").kind, Kind::Implicit);
    for chosen in Preset::ALL {
        assert_eq!(chosen.to_string().parse(), Ok(chosen));
    }
    assert!("open".parse::<Preset>().is_err());
}

#[test]
fn a_deny_all_is_visible_and_does_not_beat_the_users_allows() {
    let rules = preset(Preset::DenyAll);
    assert_eq!(
        (rules[0].name.as_str(), rules[0].decision),
        ("default-deny-all", Decision::Deny)
    );
    let policy = Policy::compile(rules.into_iter().chain([rule("+h.example")]));
    assert!(web(&policy, "h.example").allowed);
}

#[test]
fn rules_travel_as_json_and_strictly() {
    let mut original = rule("+*.h.example:443,10.0.0.0/8");
    original.scope = Scope::Sandbox("a".to_owned());
    original.expires = Some(now());
    let json = serde_json::to_value(&original).unwrap();
    assert_eq!(json["scope"], "sandbox:a");
    assert_eq!(json["expires"], "2026-11-05T12:00:00Z");
    assert_eq!(
        serde_json::from_value::<Rule>(json.clone()).unwrap(),
        original
    );
    let mut unknown = json;
    unknown["expire"] = "never".into();
    assert!(
        serde_json::from_value::<Rule>(unknown)
            .unwrap_err()
            .to_string()
            .contains("`expire`")
    );
}

#[test]
fn what_cannot_be_read_is_denied() {
    let error = Target::parse_authority("a b:443", None).unwrap_err();
    let verdict = Verdict::malformed(&error);
    assert_eq!((verdict.allowed, verdict.kind), (false, Kind::Malformed));
}
