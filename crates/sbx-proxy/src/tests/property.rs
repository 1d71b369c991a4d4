//! For any rules, any resolver and any spelling: the same verdict at every entrance, and nothing is dialled that
//! was not checked.

use std::net::{IpAddr, SocketAddr};

use jiff::Timestamp;
use proptest::prelude::*;
use sbx_policy::{Host, Kind, Protocol, Target, Verdict, is_gateway, is_host_alias, is_localhost};

use super::entrances::{
    Seen, absolute, binary, connect, connect_binary, host_header, socks_ip, socks_name, tls,
};
use super::resolving::lookup;
use super::world::{World, rule};
use crate::GateDecision;

const PATTERNS: &[&str] = &[
    "**",
    "**:80",
    "**:443",
    "**.test",
    "one.test",
    "one.test:443",
    "*.wild.test",
    "**.wild.test",
    "a.wild.test",
    "a.wild.test:80",
    "bücher.test",
    "*.test:22",
    "192.0.2.0/24",
    "192.0.2.1",
    "192.0.2.1:443",
    "10.0.0.0/8",
    "10.1.2.3:80",
    "127.0.0.0/8",
    "2001:db8::/32",
    "[::1]:80",
    "169.254.169.254",
    "localhost:80",
    "localhost:443",
    "host.docker.internal",
];

/// A name and how else it can be written.
const NAMES: &[&[&str]] = &[
    &["one.test", "ONE.test", "one.test.", "One.Test."],
    &["a.wild.test", "A.WILD.TEST", "a.wild.test."],
    &["deep.a.wild.test", "deep.A.wild.test"],
    &[
        "xn--bcher-kva.test",
        "XN--BCHER-KVA.test",
        "xn--bcher-kva.test.",
    ],
    &["other.example", "other.example."],
    &["localhost", "LocalHost."],
    &["x.localhost", "X.localhost"],
    &["host.docker.internal", "HOST.docker.internal."],
    &["gateway.docker.internal", "Gateway.Docker.Internal"],
];

const ADDRESSES: &[&[&str]] = &[
    &[
        "192.0.2.1",
        "0xc0.0.2.1",
        "3221225985",
        "192.0.513",
        "192.0.2.1.",
        "0300.0.2.01",
        "[::ffff:192.0.2.1]",
    ],
    &["198.51.100.7", "0xc6336407"],
    &["10.1.2.3", "10.66051", "0xa.1.2.3", "[::ffff:a01:203]"],
    &[
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.1",
        "[::ffff:127.0.0.1]",
    ],
    &["169.254.169.254", "2852039166"],
    &["[::1]", "[0:0::1]"],
    &["[2001:db8::12]", "[2001:DB8:0::12]"],
    &["10.0.2.3", "0xa000203"],
    &["10.0.2.2", "10.0.514"],
];

const ANSWERS: &[&str] = &[
    "192.0.2.1",
    "192.0.2.11",
    "198.51.100.7",
    "10.1.2.3",
    "127.0.0.1",
    "169.254.169.254",
    "::1",
    "2001:db8::12",
    "::ffff:10.1.2.3",
    "0.0.0.0",
];

const PORTS: &[u16] = &[80, 443, 22];

#[derive(Debug, Clone)]
struct Case {
    rules: Vec<String>,
    answers: Vec<&'static str>,
    port: u16,
    spellings: &'static [&'static str],
    /// Which spelling each entrance uses.
    picks: [usize; 4],
}

fn cases(hosts: &'static [&'static [&'static str]]) -> impl Strategy<Value = Case> {
    let word = prop_oneof![4 => Just("allow"), 1 => Just("allow-web"), 2 => Just("deny")];
    let rule =
        (word, prop::sample::select(PATTERNS)).prop_map(|(word, text)| format!("{word} {text}"));
    (
        prop::collection::vec(rule, 0..6),
        prop::sample::subsequence(ANSWERS, 0..4),
        prop::sample::select(PORTS),
        prop::sample::select(hosts),
        prop::array::uniform4(0..8usize),
    )
        .prop_map(|(rules, answers, port, spellings, picks)| Case {
            rules,
            answers,
            port,
            spellings,
            picks,
        })
}

impl Case {
    fn spelling(&self, n: usize) -> &'static str {
        self.spellings[self.picks[n] % self.spellings.len()]
    }

    fn authority(&self, n: usize) -> String {
        format!("{}:{}", self.spelling(n), self.port)
    }

    fn target(&self) -> Target {
        Target::parse_authority(&self.authority(0), None).unwrap()
    }

    async fn world(&self) -> World {
        let rules = self.rules.iter().enumerate();
        let world = World::with(rules.map(|(n, text)| rule(n, text)).collect(), 64).await;
        if let Host::Name(name) = self.target().host {
            world.resolves(name.as_str(), &[&self.answers]);
        }
        world
    }

    fn answers(&self) -> impl Iterator<Item = SocketAddr> {
        let mut all: Vec<IpAddr> = self.answers.iter().map(|ip| ip.parse().unwrap()).collect();
        all.iter_mut().for_each(|ip| *ip = ip.to_canonical());
        all.dedup();
        let port = self.port;
        all.into_iter().map(move |ip| SocketAddr::new(ip, port))
    }
}

/// What was seen is what was checked.
fn agrees(seen: &Seen, decision: &GateDecision, what: &str) {
    same(seen, &decision.verdict, &decision.target, what);
    if decision.allowed() {
        let all = |at: &SocketAddr| decision.addresses.contains(at);
        assert!(
            seen.dialled.iter().all(all),
            "{what}: {seen:?} {decision:?}"
        );
        assert_eq!(
            seen.dialled.is_empty(),
            decision.addresses.is_empty(),
            "{what}"
        );
    }
}

fn same(seen: &Seen, verdict: &Verdict, target: &Target, what: &str) {
    let rule = verdict.rule.as_ref().map(|rule| rule.id.as_str());
    assert_eq!(
        seen.allowed(),
        verdict.allowed,
        "{what}: {seen:?} {verdict:?}"
    );
    assert_eq!(
        seen.line.rule.as_deref(),
        rule,
        "{what}: {seen:?} {verdict:?}"
    );
    assert_eq!(seen.line.reason, verdict.reason, "{what}");
    assert_eq!(seen.line.host, target.host.to_string(), "{what}");
    assert_eq!(seen.line.port, Some(target.port), "{what}");
    if !verdict.allowed {
        assert_eq!(seen.dialled, [], "{what}");
    }
}

/// The three entrances at which a client names its target.
async fn named_entrances(case: &Case, world: &World, decision: &GateDecision) {
    agrees(
        &connect(world, &case.authority(1)).await,
        decision,
        "CONNECT",
    );
    agrees(&absolute(world, &case.authority(2)).await, decision, "HTTP");
    let spelling = case.spelling(3);
    if !spelling.starts_with('[') {
        agrees(
            &socks_name(world, spelling, case.port).await,
            decision,
            "SOCKS, name",
        );
    }
}

/// What `policy check` says about the target, which is what every entrance does with it.
async fn checked(case: &Case, world: &World) -> GateDecision {
    let (gate, target) = (&world.shared.gate, case.target());
    let checked = gate.check(&target, None).await;
    named_entrances(case, world, &checked.decision).await;
    let other = checked.other.as_ref().unwrap_or(&checked.decision);
    let (seen, carried) = connect_binary(world, &case.authority(1)).await;
    // To nowhere nothing is carried, and nothing has to be cut.
    let nowhere = checked.decision.allowed() && checked.decision.addresses.is_empty();
    if !nowhere {
        assert_eq!(carried, other.allowed(), "{seen:?} {other:?}");
    }
    for (protocol, expected) in [(Protocol::Web, &checked.decision), (Protocol::Other, other)] {
        let alone = gate.check(&target, Some(protocol)).await;
        assert_eq!(alone.decision.allowed(), expected.allowed(), "{protocol:?}");
        assert!(alone.other.is_none());
    }
    checked.decision
}

async fn check_name(case: Case) {
    let (world, target) = (case.world().await, case.target());
    let decision = checked(&case, &world).await;
    let (policy, now) = (world.policy(), Timestamp::now());
    for at in &decision.addresses {
        let verdict = policy.decide(&target, Protocol::Web, now);
        let at = policy.decide_address(&verdict, &target, at.ip(), Protocol::Web, now);
        assert!(at.allowed, "{decision:?}");
    }
    let known = lookup(&world, target.host.to_string().as_str()).await;
    if decision.allowed() {
        let known = known.as_ref().expect("it may be dialled and not be known");
        let all = |at: &SocketAddr| known.iter().any(|ip| ip.to_canonical() == at.ip());
        let own = is_host_alias(&target.host);
        assert!(
            own || decision.addresses.iter().all(all),
            "{known:?} {decision:?}"
        );
    }
    if is_localhost(&target.host) || is_host_alias(&target.host) || is_gateway(&target.host) {
        assert!(known.is_some() && world.asked().is_empty());
        return;
    }
    match &known {
        // An address that cannot be dialled by this name on any port is not handed out.
        Some(known) => {
            let told = |ip: &IpAddr| reachable(&world, &target.host, ip.to_canonical());
            assert!(known.iter().all(told), "{known:?}");
        }
        None => assert!(!decision.allowed()),
    }
    for dialled in case.answers() {
        let literal = Target {
            host: dialled.ip().into(),
            port: dialled.port(),
        };
        let (verdict, told) = by_name(&world, &decision, dialled, &literal);
        let name = case.spelling(1).trim_end_matches('.');
        for seen in [
            tls(&world, dialled, Some(name)).await,
            host_header(&world, dialled, case.spelling(2)).await,
        ] {
            same(&seen, &verdict, told, "transparent, by name");
            assert!(seen.dialled.iter().all(|at| *at == dialled), "{seen:?}");
        }
        let known = known.is_some().then_some(&target);
        by_memory(&world, dialled, &literal, known).await;
    }
}

/// Whether a name may be dialled at this address, on whichever port and with whichever protocol.
fn reachable(world: &World, host: &Host, ip: IpAddr) -> bool {
    let (policy, now) = (world.policy(), Timestamp::now());
    // One that no pattern speaks of stands for all of those.
    let ports = PORTS.iter().chain(&[7]);
    ports
        .flat_map(|port| [(port, Protocol::Web), (port, Protocol::Other)])
        .any(|(port, protocol)| {
            let target = Target {
                host: host.clone(),
                port: *port,
            };
            let named = policy.decide(&target, protocol, now);
            let at = policy.decide_address(&named, &target, ip, protocol, now);
            at.allowed
        })
}

/// Dialled to an address of the name that it claims: the name decides, unless it is unknown and the address is not.
fn by_name<'a>(
    world: &World,
    decision: &'a GateDecision,
    dialled: SocketAddr,
    literal: &'a Target,
) -> (Verdict, &'a Target) {
    let (policy, now) = (world.policy(), Timestamp::now());
    let named = policy.decide(&decision.target, Protocol::Web, now);
    if decision.allowed() {
        let at = policy.decide_address(&named, &decision.target, dialled.ip(), Protocol::Web, now);
        return (if at.allowed { named } else { at }, &decision.target);
    }
    let by_address = policy.decide(literal, Protocol::Web, now);
    let decided = by_address.allowed || by_address.kind == Kind::Explicit;
    if decided && decision.verdict.kind != Kind::Explicit {
        (by_address, literal)
    } else {
        (decision.verdict.clone(), &decision.target)
    }
}

/// A bare address, after its name was asked for.
async fn by_memory(world: &World, dialled: SocketAddr, literal: &Target, name: Option<&Target>) {
    let (policy, now) = (world.policy(), Timestamp::now());
    let by_address = policy.decide(literal, Protocol::Other, now);
    let named = name.map(|name| {
        let verdict = policy.decide(name, Protocol::Other, now);
        let at = policy.decide_address(&verdict, name, dialled.ip(), Protocol::Other, now);
        (verdict, at.allowed)
    });
    let seen = binary(world, dialled).await;
    match (named, name) {
        (Some((verdict, true)), Some(name))
            if !by_address.allowed && by_address.kind != Kind::Explicit =>
        {
            same(&seen, &verdict, name, "by memory");
        }
        _ => same(&seen, &by_address, literal, "by address"),
    }
    assert!(seen.dialled.iter().all(|at| *at == dialled), "{seen:?}");
}

async fn check_address(case: Case) {
    let (world, target) = (case.world().await, case.target());
    let decision = checked(&case, &world).await;
    let Host::Ip(ip) = target.host else {
        panic!("{target}")
    };
    agrees(
        &socks_ip(&world, ip, case.port).await,
        &decision,
        "SOCKS, address",
    );
    let dialled = SocketAddr::new(ip, case.port);
    agrees(
        &tls(&world, dialled, None).await,
        &decision,
        "TLS without a name",
    );
    agrees(
        &host_header(&world, dialled, case.spelling(3)).await,
        &decision,
        "HTTP to an address",
    );
    let other = world
        .shared
        .gate
        .decide_target(&target, Protocol::Other)
        .await;
    agrees(&binary(&world, dialled).await, &other, "another protocol");
}

fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(work);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn names_get_one_verdict(case in cases(NAMES)) {
        run(check_name(case));
    }

    #[test]
    fn addresses_get_one_verdict(case in cases(ADDRESSES)) {
        run(check_address(case));
    }
}
