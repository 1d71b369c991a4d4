//! The one decision. Any matching deny wins, then any matching allow, else the answer is no.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use crate::address::{Refused, effective_address, refused_range};
use crate::builtin_names::{
    GATEWAY, HOST_ALIAS, LOCALHOST, is_gateway, is_host_alias, is_localhost,
};
use crate::host::Host;
use crate::index::{Entry, Index};
use crate::local_addresses::LocalAddresses;
use crate::pattern::Pattern;
use crate::rule::{Decision, Rule, Traffic};
use crate::target::Target;
use crate::verdict::{Kind, Verdict};

const DEFAULT_DENY: &str = "No matching allow rule (default deny)";
const PORTS: usize = 65_535;

/// What a connection carries, as far as the entrance can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// HTTP or HTTPS.
    Web,
    Other,
}

/// The rules that concern one sandbox, ready to be asked. Copies share them.
#[derive(Debug, Clone)]
pub struct Policy {
    rules: Arc<[Rule]>,
    index: Arc<Index>,
    own: LocalAddresses,
}

impl Policy {
    /// Takes the rules of every scope that concerns the sandbox, in the order in which ties are to be broken.
    pub fn compile(rules: impl IntoIterator<Item = Rule>) -> Self {
        let rules: Arc<[Rule]> = rules.into_iter().collect();
        Self {
            index: Arc::new(Index::build(&rules)),
            rules,
            own: LocalAddresses::default(),
        }
    }

    /// The same on a machine with these addresses, which no wildcard opens.
    #[must_use]
    pub fn with_local_addresses(&self, own: LocalAddresses) -> Self {
        Self {
            own,
            ..self.clone()
        }
    }

    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// May this target be dialled? For a name, [`Policy::decide_address`] has the last word on where it leads.
    pub fn decide(&self, target: &Target, protocol: Protocol, now: Timestamp) -> Verdict {
        let asked = Asked {
            port: target.port,
            protocol,
            now,
        };
        if is_localhost(&target.host) || is_gateway(&target.host) {
            return loopback(target);
        }
        if is_host_alias(&target.host) {
            return self.decide_host_alias(&asked);
        }
        let mut found = Found::default();
        self.index.visit(&target.host, &mut |entry| {
            if may_open(entry, &target.host) {
                found.see(entry, &asked);
            }
        });
        if let Host::Ip(address) = target.host
            && let Some(why) = self.refused(address)
        {
            return found.for_refused(target, address, why);
        }
        let mut verdict = found.answer();
        if verdict.kind == Kind::Implicit && is_single_label(&target.host) {
            verdict = single_label(&target.host);
        }
        if verdict.kind == Kind::Explicit && found.allow.is_none() {
            verdict.opens = Some(Pattern::exact(target.host.clone(), Some(target.port)));
        }
        verdict
    }

    /// May this name be resolved? Yes if a connection to it could be allowed on some port, since a DNS question is
    /// itself a way out. Names that mean the sandbox or the host always resolve: the resolver answers them itself.
    pub fn resolvable(&self, host: &Host, now: Timestamp) -> Verdict {
        if is_localhost(host) || is_gateway(host) || is_host_alias(host) {
            return built_in_name();
        }
        let mut allows = Vec::new();
        let mut denies = Vec::new();
        self.index.visit(host, &mut |entry| match entry.decision {
            _ if !entry.is_current(now) || !may_open(entry, host) => {}
            Decision::Allow => allows.push(entry),
            Decision::Deny => denies.push(entry),
        });
        let refused = |address| self.refused(address).is_some();
        if host.as_ip().is_some_and(refused) {
            allows.retain(|entry| entry.names_addresses);
        }
        let open: Vec<&Entry> = [Protocol::Web, Protocol::Other]
            .into_iter()
            .flat_map(|protocol| open_on_some_port(&allows, &denies, protocol))
            .collect();
        if let Some(entry) = best(open.iter().copied()) {
            return allowed(entry, open.iter().any(|entry| entry.allows_private));
        }
        denies.retain(|deny| {
            let closes = |allow: &&Entry| allow.port.is_none() || allow.port == deny.port;
            deny.port.is_none() || allows.iter().any(closes)
        });
        match best(denies.into_iter()) {
            Some(entry) => denied_by(entry),
            None if is_single_label(host) => single_label(host),
            None => default_deny(),
        }
    }

    /// May the `address` that an allowed name led to be dialled?
    ///
    /// Denies of addresses hold. A refused range needs an allow that names the address, or a `named` verdict by a rule
    /// for exactly this host that allows private addresses. A rule for the name does not suffice, or the owner of the
    /// name could lead into the host.
    pub fn decide_address(
        &self,
        named: &Verdict,
        target: &Target,
        address: IpAddr,
        protocol: Protocol,
        now: Timestamp,
    ) -> Verdict {
        if !named.allowed {
            return named.clone();
        }
        if is_host_alias(&target.host) {
            return decide_alias_address(named, address);
        }
        let asked = Asked {
            port: target.port,
            protocol,
            now,
        };
        let mut found = Found::default();
        self.index
            .visit_address(address, &mut |entry| found.see(entry, &asked));
        if let Some(entry) = found.deny {
            return denied_by(entry);
        }
        let Some(why) = self.refused(address) else {
            return named.clone();
        };
        match found.names_addresses {
            Some(entry) => allowed(entry, named.allows_private),
            None if named.allows_private => named.clone(),
            None => refused(target, address, why),
        }
    }

    /// Why an address needs a rule that names it, if it does.
    pub(crate) fn refused(&self, address: IpAddr) -> Option<Refused> {
        refused_range(address).map(Refused::Range).or_else(|| {
            let own = [address, effective_address(address)];
            let local = own.into_iter().any(|address| self.own.contain(address));
            local.then_some(Refused::Local)
        })
    }

    /// May a program learn that a name leads to this address? Yes if it could be dialled by that name on some port:
    /// who is told an address and may not dial it takes the name for broken, although another address would do.
    pub fn may_disclose(&self, host: &Host, address: IpAddr, now: Timestamp) -> Verdict {
        let mut ports = BTreeSet::new();
        self.index
            .visit(host, &mut |entry| ports.extend(entry.port));
        self.index
            .visit_address(address, &mut |entry| ports.extend(entry.port));
        // One that no rule speaks of stands for all of those.
        ports.extend((1..=u16::MAX).find(|port| !ports.contains(port)));
        let mut last = default_deny();
        for port in ports {
            let host = host.clone();
            let target = Target { host, port };
            for protocol in [Protocol::Web, Protocol::Other] {
                let named = self.decide(&target, protocol, now);
                let verdict = self.decide_address(&named, &target, address, protocol, now);
                if verdict.allowed {
                    return verdict;
                }
                // The name alone is checked elsewhere.
                if named.allowed {
                    last = verdict;
                }
            }
        }
        last
    }

    /// Could anything at all be dialled on this port? Who only knows an address, and is told no, need not wait for the
    /// name that would change it.
    pub fn opens_port(&self, port: u16, now: Timestamp) -> bool {
        self.rules.iter().any(|rule| {
            let concerned = |resource: &Pattern| resource.port().is_none_or(|own| own == port);
            rule.decision == Decision::Allow
                && !rule.is_expired(now)
                && rule.resources.iter().any(concerned)
        })
    }

    /// Is any name at all denied on this port? Then no client may ask there for names that cannot be read.
    pub fn denies_names_on(&self, port: u16, now: Timestamp) -> bool {
        self.rules.iter().any(|rule| {
            let concerned = |resource: &Pattern| {
                !resource.is_address() && resource.port().is_none_or(|own| own == port)
            };
            rule.decision == Decision::Deny
                && !rule.is_expired(now)
                && rule.resources.iter().any(concerned)
        })
    }

    /// The first moment after `now` at which an answer may change by itself.
    pub fn next_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let current = self.rules.iter().filter(|rule| !rule.is_expired(now));
        let expiries = current.filter_map(|rule| rule.expires);
        expiries.min()
    }

    /// Only `localhost:P` opens a service of the host: no wildcard, and no rule without a port. A deny holds under
    /// either spelling.
    fn decide_host_alias(&self, asked: &Asked) -> Verdict {
        let mut found = Found::default();
        self.index.visit_name(HOST_ALIAS, &mut |entry| {
            if entry.decision == Decision::Deny {
                found.see(entry, asked);
            }
        });
        self.index.visit_name(LOCALHOST, &mut |entry| {
            if entry.decision == Decision::Deny || (entry.exact && entry.port.is_some()) {
                found.see(entry, asked);
            }
        });
        let mut verdict = found.answer();
        if verdict.kind == Kind::Implicit {
            let port = asked.port;
            verdict.reason = format!(
                "{DEFAULT_DENY}; a service of the host needs a rule for `{LOCALHOST}:{port}`"
            );
        }
        verdict
    }
}

/// Everything about a question but the host.
struct Asked {
    port: u16,
    protocol: Protocol,
    now: Timestamp,
}

/// The best of what matches, gathered in one walk.
#[derive(Default)]
struct Found<'a> {
    deny: Option<&'a Entry>,
    allow: Option<&'a Entry>,
    /// The best allow that also opens refused addresses.
    names_addresses: Option<&'a Entry>,
    allows_private: bool,
}

impl<'a> Found<'a> {
    fn see(&mut self, entry: &'a Entry, asked: &Asked) {
        let concerned = entry.port.is_none_or(|port| port == asked.port)
            && speaks_about(entry, asked.protocol)
            && entry.is_current(asked.now);
        if !concerned {
            return;
        }
        match entry.decision {
            Decision::Deny => keep_best(&mut self.deny, entry),
            Decision::Allow => {
                keep_best(&mut self.allow, entry);
                self.allows_private |= entry.allows_private;
                if entry.names_addresses {
                    keep_best(&mut self.names_addresses, entry);
                }
            }
        }
    }

    fn answer(&self) -> Verdict {
        match (self.deny, self.allow) {
            (Some(entry), _) => denied_by(entry),
            (None, Some(entry)) => allowed(entry, self.allows_private),
            (None, None) => default_deny(),
        }
    }

    /// The answer for a literal address that is refused.
    fn for_refused(&self, target: &Target, address: IpAddr, why: Refused) -> Verdict {
        match (self.deny, self.names_addresses) {
            (Some(entry), _) => denied_by(entry),
            (None, Some(entry)) => allowed(entry, self.allows_private),
            (None, None) if self.allow.is_some() => refused(target, address, why),
            (None, None) => default_deny(),
        }
    }
}

fn allowed(entry: &Entry, allows_private: bool) -> Verdict {
    Verdict {
        allowed: true,
        kind: Kind::Allowed,
        rule: Some(entry.rule.clone()),
        reason: entry.reason.clone(),
        allows_private,
        opens: None,
    }
}

fn denied_by(entry: &Entry) -> Verdict {
    Verdict {
        rule: Some(entry.rule.clone()),
        ..Verdict::denied(Kind::Explicit, entry.reason.clone())
    }
}

fn keep_best<'a>(best: &mut Option<&'a Entry>, entry: &'a Entry) {
    if best.is_none_or(|known| entry.is_better_than(known)) {
        *best = Some(entry);
    }
}

fn best<'a>(entries: impl Iterator<Item = &'a Entry>) -> Option<&'a Entry> {
    let mut kept = None;
    entries.for_each(|entry| keep_best(&mut kept, entry));
    kept
}

fn speaks_about(entry: &Entry, protocol: Protocol) -> bool {
    match entry.traffic {
        Traffic::Any => true,
        Traffic::Web => protocol == Protocol::Web,
    }
}

/// The allows that leave at least one port open after all denies, for one protocol.
fn open_on_some_port<'a>(
    allows: &[&'a Entry],
    denies: &[&'a Entry],
    protocol: Protocol,
) -> Vec<&'a Entry> {
    let denies = denies.iter().filter(|entry| speaks_about(entry, protocol));
    let Some(denied) = denies
        .map(|entry| entry.port)
        .collect::<Option<BTreeSet<u16>>>()
    else {
        return Vec::new();
    };
    let is_open = |entry: &&&Entry| match entry.port {
        Some(port) => !denied.contains(&port),
        None => denied.len() < PORTS,
    };
    let allows = allows.iter().filter(|entry| speaks_about(entry, protocol));
    allows.filter(is_open).copied().collect()
}

fn decide_alias_address(named: &Verdict, address: IpAddr) -> Verdict {
    if address.to_canonical().is_loopback() {
        return named.clone();
    }
    Verdict::denied(
        Kind::Address,
        format!("{HOST_ALIAS} is the host's loopback and never {address}"),
    )
}

fn loopback(target: &Target) -> Verdict {
    let port = target.port;
    let host = &target.host;
    let reason = if is_gateway(host) {
        format!("{GATEWAY} is the sandbox's own proxy and cannot be a target")
    } else {
        format!(
            "`{host}` is the sandbox itself; a service of the host is `{HOST_ALIAS}:{port}`, \
             opened by a rule for `{LOCALHOST}:{port}`"
        )
    };
    Verdict::denied(Kind::Loopback, reason)
}

fn refused(target: &Target, address: IpAddr, why: Refused) -> Verdict {
    let reason = format!("{address} is {why}, and no rule names it");
    Verdict {
        opens: Some(Pattern::exact(address.into(), Some(target.port))),
        ..Verdict::denied(Kind::Address, reason)
    }
}

/// Which host a name without a dot means depends on the network that the machine is in: the operator of that network, or
/// the root zone, would choose. So only a rule for exactly this name opens it.
fn is_single_label(host: &Host) -> bool {
    host.as_name()
        .is_some_and(|name| !name.as_str().contains('.'))
}

fn may_open(entry: &Entry, host: &Host) -> bool {
    entry.decision == Decision::Deny || entry.exact || !is_single_label(host)
}

fn single_label(host: &Host) -> Verdict {
    let reason = format!("{DEFAULT_DENY}; a name without a dot needs a rule for exactly `{host}`");
    Verdict::denied(Kind::Implicit, reason)
}

fn built_in_name() -> Verdict {
    Verdict {
        allowed: true,
        kind: Kind::Allowed,
        rule: None,
        reason: "Built-in name".to_owned(),
        allows_private: false,
        opens: None,
    }
}

fn default_deny() -> Verdict {
    Verdict::denied(Kind::Implicit, DEFAULT_DENY.to_owned())
}
