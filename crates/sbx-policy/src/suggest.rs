//! From what was denied to the fewest rules that would have allowed it, each with the reason for its shape.
//!
//! A wildcard is offered only for three siblings or more, on the port that they share, and never where the siblings
//! may have other owners (public suffixes, page and object hosting: [`parent_of_one_owner`]). A rule without a port is offered for three ports or
//! more. Whatever needs more than a rule for a name is told apart instead of being papered over.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::Timestamp;

use crate::builtin_names::{LOCALHOST, is_gateway, is_host_alias, is_localhost};
use crate::host::{DomainName, Host};
use crate::pattern::Pattern;
use crate::policy::{Policy, Protocol};
use crate::public_suffix::parent_of_one_owner;
use crate::remedy::remedy;
use crate::rule::Scope;
use crate::target::Target;
use crate::verdict::{Kind, Verdict};

/// From this many siblings or ports on, one rule reads better than a list.
const MANY: usize = 3;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suggestion {
    /// Resources for allow rules. Together they allow every denied target that is not in `unsolved`.
    pub rules: Vec<Suggested>,
    pub unsolved: Vec<Unsolved>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suggested {
    pub resource: Pattern,
    /// The denied targets that this resource is for.
    pub covers: Vec<Target>,
    pub why: String,
}

/// A target that should not be opened in passing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsolved {
    pub target: Target,
    /// The resource that would open it, if there is one.
    pub resource: Option<Pattern>,
    pub reason: String,
}

/// Something that was denied before, by whatever rules held then.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Denied {
    pub target: Target,
    pub protocol: Protocol,
    /// The address that it was denied for, if that was the matter and not its name.
    pub address: Option<IpAddr>,
}

/// What would allow `denied` beside the rules of now. What those allow is left out; what a rule denies, or leads
/// where nothing should go in passing, is told apart, with what would undo it in `scope`.
pub fn suggest(
    denied: impl IntoIterator<Item = Denied>,
    policy: &Policy,
    scope: &Scope,
    now: Timestamp,
) -> Suggestion {
    let mut suggestion = Suggestion::default();
    let mut wishes = BTreeSet::new();
    let (by_address, by_name): (BTreeSet<_>, BTreeSet<_>) = denied
        .into_iter()
        .partition(|denied| denied.address.is_some());
    for one in by_address {
        match still_refused(&one, policy, scope, now) {
            Some(Need::Rule(rule)) => suggestion.rules.push(rule),
            Some(Need::Decision(unsolved)) => suggestion.unsolved.push(unsolved),
            None => {}
        }
    }
    for Denied {
        target, protocol, ..
    } in by_name
    {
        let verdict = policy.decide(&target, protocol, now);
        // A rule for a name also opens the addresses that it leads to.
        let known = |unsolved: &Unsolved| unsolved.target == target;
        match verdict.kind {
            Kind::Allowed => {}
            _ if suggestion.unsolved.iter().any(known) => {}
            Kind::Explicit => {
                let unsolved = on_purpose(&target, &verdict, scope);
                suggestion.unsolved.push(unsolved);
            }
            Kind::Implicit
            | Kind::Address
            | Kind::Loopback
            | Kind::Malformed
            | Kind::RecordType => {
                wishes.insert(target);
            }
        }
    }
    add_wishes(&mut suggestion, wishes, policy);
    suggestion.rules.sort_by(|a, b| a.resource.cmp(&b.resource));
    suggestion.rules.dedup_by(|a, b| a.resource == b.resource);
    suggestion
}

enum Need {
    Rule(Suggested),
    Decision(Unsolved),
}

/// What was denied for its address; none if it is allowed by now.
fn still_refused(one: &Denied, policy: &Policy, scope: &Scope, now: Timestamp) -> Option<Need> {
    let (target, address) = (&one.target, one.address?);
    let literal = Target {
        host: address.into(),
        port: target.port,
    };
    let by_name = policy.decide(target, one.protocol, now);
    let by_address = policy.decide(&literal, one.protocol, now);
    for verdict in [&by_name, &by_address] {
        if verdict.kind == Kind::Explicit {
            return Some(Need::Decision(on_purpose(target, verdict, scope)));
        }
    }
    let resource = Pattern::exact(address.into(), Some(target.port));
    let Some(why) = policy.refused(address) else {
        // No resolver confirmed it as an address of that name, so it needs a rule of its own.
        return (!by_address.allowed).then(|| {
            Need::Rule(Suggested {
                resource,
                covers: vec![target.clone()],
                why: format!("an address that does not belong to {}", target.host),
            })
        });
    };
    let decision = policy.decide_address(&by_name, target, address, one.protocol, now);
    let reason = match (decision.allowed, by_name.allowed) {
        (true, _) => return None,
        (false, true) => format!("leads to {address}, which is {why}"),
        (false, false) => {
            format!("is allowed by no rule, and leads to {address}, which is {why}")
        }
    };
    Some(Need::Decision(Unsolved {
        target: target.clone(),
        resource: Some(resource),
        reason,
    }))
}

/// No allow beats a deny rule.
fn on_purpose(target: &Target, verdict: &Verdict, scope: &Scope) -> Unsolved {
    let undo = remedy(scope, target, verdict);
    let undo = undo.map_or(String::new(), |undo| {
        format!("; if it is not meant: {undo}")
    });
    Unsolved {
        target: target.clone(),
        resource: None,
        reason: format!("is denied by a rule: {}{undo}", verdict.reason),
    }
}

fn add_wishes(suggestion: &mut Suggestion, wishes: BTreeSet<Target>, policy: &Policy) {
    let mut names: BTreeMap<DomainName, BTreeSet<u16>> = BTreeMap::new();
    for target in wishes {
        match (unsolvable(&target, policy), &target.host) {
            (Some(unsolved), _) => suggestion.unsolved.push(unsolved),
            (None, Host::Name(name)) if !is_host_alias(&target.host) => {
                names.entry(name.clone()).or_default().insert(target.port);
            }
            (None, Host::Name(_) | Host::Ip(_)) => suggestion.rules.extend(single(target)),
        }
    }
    suggestion.rules.extend(cover(&names));
}

fn unsolvable(target: &Target, policy: &Policy) -> Option<Unsolved> {
    let unsolved = |resource, reason| {
        Some(Unsolved {
            target: target.clone(),
            resource,
            reason,
        })
    };
    if is_localhost(&target.host) || is_gateway(&target.host) {
        let reason = "means the sandbox itself; no rule opens it".to_owned();
        return unsolved(None, reason);
    }
    let address = target.host.as_ip()?;
    let why = policy.refused(address)?;
    let reason = format!("needs an explicit address rule: it is {why}");
    unsolved(
        Some(Pattern::exact(address.into(), Some(target.port))),
        reason,
    )
}

/// An ordinary address, or a service of the host.
fn single(target: Target) -> Option<Suggested> {
    let (host, why) = if is_host_alias(&target.host) {
        let why = format!("a service of the host on port {}", target.port);
        (Host::parse(LOCALHOST).ok()?, why)
    } else {
        let why = format!("an address, denied on port {}", target.port);
        (target.host.clone(), why)
    };
    Some(Suggested {
        resource: Pattern::exact(host, Some(target.port)),
        covers: vec![target],
        why,
    })
}

/// Gives each target to the broadest candidate that matches it, and drops candidates that get none.
fn cover(names: &BTreeMap<DomainName, BTreeSet<u16>>) -> Vec<Suggested> {
    let mut rules: Vec<Suggested> = candidates(names)
        .into_iter()
        .map(|resource| Suggested {
            resource,
            covers: Vec::new(),
            why: String::new(),
        })
        .collect();
    for (name, ports) in names {
        for port in ports {
            let target = Target {
                host: Host::Name(name.clone()),
                port: *port,
            };
            let rule = rules.iter_mut().find(|rule| rule.resource.matches(&target));
            if let Some(rule) = rule {
                rule.covers.push(target);
            }
        }
    }
    rules.retain(|rule| !rule.covers.is_empty());
    for rule in &mut rules {
        rule.why = explain(&rule.resource, &rule.covers);
    }
    rules
}

/// Broadest first: wildcards before names, every port before one port.
fn candidates(names: &BTreeMap<DomainName, BTreeSet<u16>>) -> Vec<Pattern> {
    let wishes = names
        .iter()
        .flat_map(|(name, ports)| merge_ports(ports).into_iter().map(move |port| (name, port)));
    let wishes: BTreeSet<(&DomainName, Option<u16>)> = wishes.collect();
    let exact = wishes
        .iter()
        .map(|(name, port)| Pattern::exact(Host::Name((*name).clone()), *port));
    let mut patterns = wildcards(&wishes);
    patterns.extend(exact);
    patterns.sort_by_key(|pattern| (pattern.is_exact_host(), pattern.port().is_some()));
    patterns
}

fn wildcards(wishes: &BTreeSet<(&DomainName, Option<u16>)>) -> Vec<Pattern> {
    let mut siblings: BTreeMap<(&str, Option<u16>), usize> = BTreeMap::new();
    for (name, port) in wishes {
        if let Some(parent) = parent_of_one_owner(name.as_str()) {
            *siblings.entry((parent, *port)).or_default() += 1;
        }
    }
    siblings.retain(|_, count| *count >= MANY);
    let mut ports: BTreeMap<&str, BTreeSet<Option<u16>>> = BTreeMap::new();
    for (parent, port) in siblings.into_keys() {
        ports.entry(parent).or_default().insert(port);
    }
    let texts = ports.into_iter().flat_map(|(parent, ports)| {
        let every = ports.len() >= MANY || ports.contains(&None);
        let ports = if every { BTreeSet::from([None]) } else { ports };
        ports.into_iter().map(move |port| match port {
            Some(port) => format!("*.{parent}:{port}"),
            None => format!("*.{parent}"),
        })
    });
    texts.filter_map(|text| text.parse().ok()).collect()
}

fn merge_ports(ports: &BTreeSet<u16>) -> Vec<Option<u16>> {
    if ports.len() >= MANY {
        return vec![None];
    }
    ports.iter().copied().map(Some).collect()
}

fn explain(resource: &Pattern, covers: &[Target]) -> String {
    let names: BTreeSet<&Host> = covers.iter().map(|target| &target.host).collect();
    let ports: BTreeSet<u16> = covers.iter().map(|target| target.port).collect();
    let on = match resource.port() {
        Some(port) => format!("on port {port}"),
        None => format!("on {} ports", ports.len()),
    };
    if resource.is_exact_host() {
        return format!("denied {on}");
    }
    format!("{} siblings denied {on}", names.len())
}
