//! The compiled form of rules: finds every resource that matches a host without looking at the others.
//!
//! Names walk a tree of labels from the right; what hangs at a node on the way are the wildcards with that suffix.
//! Addresses are looked up once per prefix length that occurs. The order in which matches are reported has no
//! meaning; callers choose by [`Entry::rank`] and [`Entry::order`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;

use crate::address::{carrier_length, effective_address};
use crate::host::Host;
use crate::pattern::{HostPattern, Pattern};
use crate::rule::{Decision, Rule, Traffic};
use crate::verdict::RuleRef;
use crate::wildcard::{Shape, Wildcard};

/// One resource of one rule.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Position of the rule and, within it, of the resource.
    pub(crate) order: (usize, usize),
    pub(crate) decision: Decision,
    pub(crate) port: Option<u16>,
    pub(crate) traffic: Traffic,
    pub(crate) expires: Option<Timestamp>,
    pub(crate) rank: (u8, usize, bool, bool),
    /// The resource names refused addresses on purpose, see [`names_addresses`].
    pub(crate) names_addresses: bool,
    /// One host and no other.
    pub(crate) exact: bool,
    /// An exact host whose addresses may be refused ones: the user said so.
    pub(crate) allows_private: bool,
    /// What a verdict says about this entry. Prepared here, because a decision is made far more often than a rule.
    pub(crate) rule: RuleRef,
    pub(crate) reason: String,
    /// The network itself consists of IPv6 addresses that carry IPv4.
    carries_ipv4: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    everything: Vec<Entry>,
    names: Node,
    networks: BTreeMap<Prefix, BTreeMap<u128, Vec<Entry>>>,
}

#[derive(Debug, Default)]
struct Node {
    children: BTreeMap<Box<str>, Self>,
    exact: Vec<Entry>,
    child: Vec<Entry>,
    below: Vec<Entry>,
    globs: Vec<(Wildcard, Entry)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Prefix {
    is_ipv6: bool,
    length: u8,
}

impl Entry {
    fn new(rule: &Rule, pattern: &Pattern, order: (usize, usize)) -> Self {
        Self {
            order,
            decision: rule.decision,
            port: pattern.port(),
            traffic: rule.traffic,
            expires: rule.expires,
            rank: pattern.specificity(),
            names_addresses: names_addresses(pattern),
            exact: pattern.is_exact_host(),
            allows_private: pattern.is_exact_host() && rule.allow_private,
            rule: RuleRef {
                id: rule.id.clone(),
                name: rule.name.clone(),
                policy: rule.policy.clone(),
                scope: rule.scope.clone(),
                origin: rule.origin,
                resource: pattern.clone(),
            },
            reason: match rule.decision {
                Decision::Allow => format!("Allowed by rule `{}` ({pattern})", rule.name),
                Decision::Deny => format!("Denied by rule `{}` ({pattern})", rule.name),
            },
            carries_ipv4: carries_ipv4(pattern),
        }
    }

    pub(crate) fn is_current(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| expires > now)
    }

    /// More specific first, then the earlier one.
    pub(crate) fn is_better_than(&self, other: &Self) -> bool {
        self.rank > other.rank || (self.rank == other.rank && self.order < other.order)
    }
}

impl Index {
    pub(crate) fn build(rules: &[Rule]) -> Self {
        let mut index = Self::default();
        for (rule_position, rule) in rules.iter().enumerate() {
            if rule.expired {
                continue;
            }
            for (position, pattern) in rule.resources.iter().enumerate() {
                index.insert(
                    pattern,
                    Entry::new(rule, pattern, (rule_position, position)),
                );
            }
        }
        index
    }

    fn insert(&mut self, pattern: &Pattern, entry: Entry) {
        match pattern.hosts() {
            HostPattern::Any => self.everything.push(entry),
            HostPattern::Name(name) => self.names.descend(name.as_str()).exact.push(entry),
            HostPattern::Wildcard(wild) => {
                let node = self.names.descend(wild.suffix().as_str());
                match wild.shape() {
                    Shape::Below => node.below.push(entry),
                    Shape::Child => node.child.push(entry),
                    Shape::Globs => node.globs.push((wild.clone(), entry)),
                }
            }
            HostPattern::Net(net) => {
                let prefix = Prefix {
                    is_ipv6: net.addr().is_ipv6(),
                    length: net.prefix_len(),
                };
                let networks = self.networks.entry(prefix).or_default();
                let key = bits(net.addr(), prefix.length);
                networks.entry(key).or_default().push(entry);
            }
        }
    }

    /// Reports every entry whose hosts include `host`, whatever its port, traffic and expiry.
    pub(crate) fn visit<'a>(&'a self, host: &Host, see: &mut impl FnMut(&'a Entry)) {
        match host {
            Host::Name(name) => self.visit_name(name.as_str(), see),
            Host::Ip(address) => {
                self.everything.iter().for_each(&mut *see);
                self.visit_address(*address, see);
            }
        }
    }

    pub(crate) fn visit_name<'a>(&'a self, name: &str, see: &mut impl FnMut(&'a Entry)) {
        self.everything.iter().for_each(&mut *see);
        self.names.visit(name, see);
    }

    /// Like [`Index::visit`] for an address, without the entries that match everything.
    ///
    /// An address is checked by the IPv4 address that it carries. What is written about the outer address counts
    /// too if it denies, or if it can only mean such addresses.
    pub(crate) fn visit_address<'a>(&'a self, address: IpAddr, see: &mut impl FnMut(&'a Entry)) {
        let effective = effective_address(address);
        self.visit_networks(effective, see);
        if effective != address {
            self.visit_networks(address, &mut |entry| {
                if entry.decision == Decision::Deny || entry.carries_ipv4 {
                    see(entry);
                }
            });
        }
    }

    fn visit_networks<'a>(&'a self, address: IpAddr, see: &mut impl FnMut(&'a Entry)) {
        for (prefix, networks) in &self.networks {
            if prefix.is_ipv6 == address.is_ipv6()
                && let Some(entries) = networks.get(&bits(address, prefix.length))
            {
                entries.iter().for_each(&mut *see);
            }
        }
    }
}

impl Node {
    fn descend(&mut self, suffix: &str) -> &mut Self {
        suffix.rsplit('.').fold(self, |node, label| {
            node.children.entry(Box::from(label)).or_default()
        })
    }

    fn visit<'a>(&'a self, name: &str, see: &mut impl FnMut(&'a Entry)) {
        let mut node = self;
        let mut rest = name;
        loop {
            let (head, label) = match rest.rsplit_once('.') {
                Some((head, label)) => (Some(head), label),
                None => (None, rest),
            };
            let Some(next) = node.children.get(label) else {
                return;
            };
            let Some(head) = head else {
                next.exact.iter().for_each(&mut *see);
                return;
            };
            next.visit_wildcards(head, see);
            node = next;
            rest = head;
        }
    }

    fn visit_wildcards<'a>(&'a self, head: &str, see: &mut impl FnMut(&'a Entry)) {
        self.below.iter().for_each(&mut *see);
        if !self.child.is_empty() && !head.contains('.') {
            self.child.iter().for_each(&mut *see);
        }
        for (wild, entry) in &self.globs {
            if wild.matches_head(head) {
                see(entry);
            }
        }
    }
}

/// Whether an allow of this pattern opens refused addresses. A network of length zero is just another spelling of
/// `**` and names nothing.
fn names_addresses(pattern: &Pattern) -> bool {
    match pattern.hosts() {
        HostPattern::Net(net) => net.prefix_len() > carrier(net).unwrap_or(0),
        HostPattern::Any | HostPattern::Name(_) | HostPattern::Wildcard(_) => false,
    }
}

fn carries_ipv4(pattern: &Pattern) -> bool {
    match pattern.hosts() {
        HostPattern::Net(net) => carrier(net).is_some(),
        HostPattern::Any | HostPattern::Name(_) | HostPattern::Wildcard(_) => false,
    }
}

/// The length of the prefix that all addresses of the network have in front of an IPv4 address.
fn carrier(net: &IpNet) -> Option<u8> {
    let prefix = carrier_length(net.addr())?;
    let whole = net.prefix_len() >= prefix && carrier_length(net.broadcast()) == Some(prefix);
    whole.then_some(prefix)
}

fn bits(address: IpAddr, prefix: u8) -> u128 {
    let (bits, width) = match address {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    };
    bits.checked_shr(width - u32::from(prefix)).unwrap_or(0)
}
