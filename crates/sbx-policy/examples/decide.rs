//! Prints how many nanoseconds one decision takes with 1,000 rules. Run it with `--release`.

use std::hint::black_box;
use std::time::Instant;

use jiff::Timestamp;
use sbx_policy::{Decision, Host, Origin, Policy, Protocol, Rule, Scope, Target, Traffic};

const RULES: u32 = 1_000;
const ROUNDS: u32 = 200_000;

#[expect(clippy::print_stdout, reason = "a bench prints its result")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy = Policy::compile((0..RULES).map(rule).collect::<Result<Vec<_>, _>>()?);
    let now = Timestamp::UNIX_EPOCH;
    let table = [
        ("exact name", "host-500.example.com:443"),
        ("below, deep", "a.b.c.zone-501.example.org:443"),
        ("one label", "a.zone-502.example.net:443"),
        ("glob", "crl7.zone-503.example.net:443"),
        ("network", "10.1.248.9:443"),
        ("default deny", "www.nowhere.example.com:443"),
        ("unknown name", "a.b.c.d.e.f.example.invalid:443"),
    ];
    for (label, text) in table {
        let target = Target::parse_loose(text)?;
        let start = Instant::now();
        for _ in 0..ROUNDS {
            black_box(policy.decide(black_box(&target), Protocol::Web, now));
        }
        let each = start.elapsed().as_nanos() / u128::from(ROUNDS);
        let verdict = policy.decide(&target, Protocol::Web, now).kind;
        println!("{label:14} {each:5} ns  {verdict}  {target}");
    }
    let start = Instant::now();
    for _ in 0..ROUNDS {
        black_box(Host::parse(black_box("Host-500.Example.com.")).is_ok());
    }
    let each = start.elapsed().as_nanos() / u128::from(ROUNDS);
    println!("{:14} {each:5} ns", "parse a host");
    Ok(())
}

/// Five shapes in turn, one rule in ten denies.
fn rule(n: u32) -> Result<Rule, sbx_policy::PatternError> {
    let resource = match n % 5 {
        0 => format!("host-{n}.example.com:443"),
        1 => format!("**.zone-{n}.example.org:443"),
        2 => format!("*.zone-{n}.example.net"),
        3 => format!("crl*.zone-{n}.example.net:443"),
        _ => format!("10.{}.{}.0/24", n / 256, n % 256),
    };
    Ok(Rule {
        id: format!("00000000-0000-4000-8000-{n:012}"),
        name: format!("rule-{n}"),
        policy: "local-policy".to_owned(),
        scope: Scope::Global,
        decision: if n % 10 == 9 {
            Decision::Deny
        } else {
            Decision::Allow
        },
        resources: vec![resource.parse()?],
        origin: Origin::Local,
        traffic: Traffic::Any,
        expires: None,
        expired: false,
        editable: true,
        allow_private: false,
        created: None,
    })
}
