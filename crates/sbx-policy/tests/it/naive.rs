//! The policy once more, as slowly and plainly as possible: from the texts of rules, without an index. Written from
//! the specification, not from the code.

use std::net::IpAddr;

use sbx_policy::{Decision, Host, Kind, Protocol, Rule, Target, Traffic, refused_range};

use crate::support::now;

/// Outcome of a question: the kind, and the rule and resource that decided.
pub(crate) type Outcome = (Kind, Option<(String, String)>);

pub(crate) fn decide(rules: &[Rule], target: &Target, protocol: Protocol) -> Outcome {
    let name = target.host.to_string();
    if name == "gateway.docker.internal" || name == "localhost" || name.ends_with(".localhost") {
        return (Kind::Loopback, None);
    }
    let single_label = target.host.as_ip().is_none() && !name.contains('.');
    let mut all = resources(rules, protocol);
    // A name without a dot is opened by nothing but itself.
    all.retain(|resource| resource.denies() || !single_label || resource.host == name);
    let port_fits = |resource: &Resource| resource.port.is_none_or(|port| port == target.port);
    if name == "host.docker.internal" {
        let localhost = Host::parse("localhost").unwrap();
        let deny = pick(all.iter().filter(|r| {
            r.denies() && port_fits(r) && (r.covers(&target.host) || r.covers(&localhost))
        }));
        let exact = format!("localhost:{}", target.port);
        let allow = pick(all.iter().filter(|r| !r.denies() && r.text == exact));
        return outcome(deny, allow);
    }
    let matching: Vec<&Resource> = all
        .iter()
        .filter(|r| port_fits(r) && r.covers(&target.host))
        .collect();
    let deny = pick(matching.iter().copied().filter(|r| r.denies()));
    let allow = pick(matching.iter().copied().filter(|r| !r.denies()));
    let Host::Ip(address) = target.host else {
        return outcome(deny, allow);
    };
    if refused_range(address).is_none() || deny.is_some() || allow.is_none() {
        return outcome(deny, allow);
    }
    let naming = pick(
        matching
            .into_iter()
            .filter(|r| !r.denies() && r.names_addresses()),
    );
    match naming {
        Some(_) => outcome(None, naming),
        None => (Kind::Address, None),
    }
}

pub(crate) fn resolvable(rules: &[Rule], host: &Host, ports: &[u16]) -> bool {
    let name = host.to_string();
    let built_in = name == "localhost" || name.ends_with(".localhost");
    if built_in || name == "gateway.docker.internal" || name == "host.docker.internal" {
        return true;
    }
    ports.iter().any(|port| {
        let target = Target {
            host: host.clone(),
            port: *port,
        };
        [Protocol::Web, Protocol::Other]
            .into_iter()
            .any(|protocol| decide(rules, &target, protocol).0 == Kind::Allowed)
    })
}

/// The kind for an allowed name (not a special one) that resolved to `address`.
pub(crate) fn verdict(
    rules: &[Rule],
    target: &Target,
    address: IpAddr,
    protocol: Protocol,
) -> Kind {
    let all = resources(rules, protocol);
    let fits = |r: &&Resource| r.port.is_none_or(|port| port == target.port);
    let at_address = |r: &&Resource| r.network.is_some() && r.covers(&Host::Ip(address));
    let at_name = |r: &&Resource| r.allow_private && r.host == target.host.to_string();
    if all
        .iter()
        .filter(fits)
        .filter(at_address)
        .any(|r| r.denies())
    {
        return Kind::Explicit;
    }
    let mut allows = all.iter().filter(fits).filter(|r| !r.denies());
    let opened = refused_range(address).is_none()
        || allows.any(|r| at_name(&r) || (at_address(&r) && r.names_addresses()));
    if opened { Kind::Allowed } else { Kind::Address }
}

struct Resource {
    rule: String,
    decision: Decision,
    allow_private: bool,
    text: String,
    host: String,
    port: Option<u16>,
    /// Address bits, length, and whether it is IPv6.
    network: Option<(u128, u32, bool)>,
}

fn resources(rules: &[Rule], protocol: Protocol) -> Vec<Resource> {
    let current = rules.iter().filter(|rule| {
        rule.expires.is_none_or(|end| now() < end)
            && (rule.traffic == Traffic::Any || protocol == Protocol::Web)
    });
    current
        .flat_map(|rule| {
            rule.resources
                .iter()
                .map(|pattern| Resource::new(rule, &pattern.to_string()))
        })
        .collect()
}

impl Resource {
    fn new(rule: &Rule, text: &str) -> Self {
        let (host, port) =
            if let Some((inner, port)) = text.strip_prefix('[').and_then(|t| t.split_once("]:")) {
                (inner, port.parse().ok())
            } else if text.matches(':').count() == 1 {
                let (host, port) = text.split_once(':').unwrap();
                (host, Some(port.parse().unwrap()))
            } else {
                (text, None)
            };
        let (address, length) = host.split_once('/').unwrap_or((host, "full"));
        let network = address.parse::<IpAddr>().ok().map(|address| {
            let (bits, width) = number(address);
            (bits, length.parse().unwrap_or(width), address.is_ipv6())
        });
        Self {
            rule: rule.id.clone(),
            decision: rule.decision,
            allow_private: rule.allow_private,
            text: text.to_owned(),
            host: host.to_owned(),
            port,
            network,
        }
    }

    fn denies(&self) -> bool {
        self.decision == Decision::Deny
    }

    fn covers(&self, host: &Host) -> bool {
        match host {
            _ if self.host == "**" => true,
            Host::Name(_) if self.network.is_some() => false,
            Host::Name(name) => {
                let pattern: Vec<&str> = self.host.split('.').collect();
                let labels: Vec<&str> = name.as_str().split('.').collect();
                labels_match(&pattern, &labels)
            }
            Host::Ip(address) => {
                let inner = carried(*address);
                let outer_counts = self.denies() || inner == *address || self.carries();
                self.contains(inner) || (outer_counts && self.contains(*address))
            }
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let (bits, width) = number(address);
        self.network.is_some_and(|(network, length, is_ipv6)| {
            is_ipv6 == address.is_ipv6()
                && (0..length).all(|i| (bits ^ network) >> (width - 1 - i) & 1 == 0)
        })
    }

    /// The whole network lies in a range of IPv6 addresses that carry IPv4.
    fn carries(&self) -> bool {
        self.carrier().is_some()
    }

    /// How many bits are in front of the IPv4 address.
    fn carrier(&self) -> Option<u32> {
        let (bits, length, is_ipv6) = self.network?;
        let prefix = bits >> 32;
        let translated = prefix == 0x0064_ff9b_u128 << 64;
        let compatible = prefix == 0 && bits > 1;
        if is_ipv6 && length >= 96 && (translated || compatible) {
            Some(96)
        } else if is_ipv6 && length >= 16 && bits >> 112 == 0x2002 {
            Some(16)
        } else {
            None
        }
    }

    fn names_addresses(&self) -> bool {
        self.network
            .is_some_and(|(_, length, _)| length > self.carrier().unwrap_or(0))
    }

    fn specificity(&self) -> (u8, usize, bool, bool) {
        let plain = !self.host.contains(['*', '?', '/']);
        let has_port = self.port.is_some();
        if plain {
            return (2, 0, true, has_port);
        }
        if let Some((_, length, _)) = self.network {
            return (1, usize::try_from(length).unwrap(), true, has_port);
        }
        if self.host == "**" {
            return (0, 0, false, has_port);
        }
        let (deep, rest) = match self.host.strip_prefix("**.") {
            Some(rest) => (true, rest),
            None => (false, self.host.as_str()),
        };
        (1, fixed(rest), !deep, has_port)
    }
}

/// Literal characters, with the dots of the fixed suffix only.
fn fixed(pattern: &str) -> usize {
    let labels: Vec<&str> = pattern.split('.').collect();
    let wild = |label: &&str| label.contains(['*', '?']);
    let suffix_labels = labels.iter().rev().take_while(|label| !wild(label)).count();
    let literals: usize = labels
        .iter()
        .map(|label| label.chars().filter(|c| !"*?".contains(*c)).count())
        .sum();
    literals + suffix_labels - 1
}

fn pick<'a>(resources: impl Iterator<Item = &'a Resource>) -> Option<&'a Resource> {
    let mut sorted: Vec<&Resource> = resources.collect();
    // Stable: the first of equals stays first.
    sorted.sort_by_key(|resource| std::cmp::Reverse(resource.specificity()));
    sorted.first().copied()
}

fn outcome(deny: Option<&Resource>, allow: Option<&Resource>) -> Outcome {
    let told = |resource: &Resource| Some((resource.rule.clone(), resource.text.clone()));
    match (deny, allow) {
        (Some(deny), _) => (Kind::Explicit, told(deny)),
        (None, Some(allow)) => (Kind::Allowed, told(allow)),
        (None, None) => (Kind::Implicit, None),
    }
}

fn labels_match(pattern: &[&str], labels: &[&str]) -> bool {
    match (pattern.split_first(), labels.split_first()) {
        (None, None) => true,
        (Some((&"**", rest)), Some((_, fewer))) => {
            labels_match(rest, fewer) || labels_match(pattern, fewer)
        }
        (Some((glob, rest)), Some((label, fewer))) => {
            characters_match(glob.as_bytes(), label.as_bytes()) && labels_match(rest, fewer)
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

fn characters_match(glob: &[u8], label: &[u8]) -> bool {
    match (glob.split_first(), label.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), None) => characters_match(rest, label),
        (Some((b'*', rest)), Some((_, fewer))) => {
            characters_match(rest, label) || characters_match(glob, fewer)
        }
        (Some((g, rest)), Some((c, fewer))) => {
            (*g == b'?' || g == c) && characters_match(rest, fewer)
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

fn carried(address: IpAddr) -> IpAddr {
    let text = address.to_string();
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let octets = v6.octets();
    let inner = IpAddr::from([octets[12], octets[13], octets[14], octets[15]]);
    let translated = octets[..12] == [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];
    let compatible = octets[..12] == [0; 12] && text != "::" && text != "::1";
    let mapped = text.starts_with("::ffff:") && octets[..10] == [0; 10];
    if octets[..2] == [0x20, 0x02] {
        IpAddr::from([octets[2], octets[3], octets[4], octets[5]])
    } else if translated || compatible || mapped {
        inner
    } else {
        address
    }
}

fn number(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    }
}
