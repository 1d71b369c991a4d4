//! The one place where it is decided whether something may leave, and where to. Every entrance asks here.
//!
//! A decision is made from one state of the rules and one time ([`Rules`]). The policy is asked once about a name and
//! once about each of its addresses, for each protocol in question; it is asked again only when the rules have changed
//! since: while the name was looked up, or while the connection is open ([`Gate::still_allowed`]).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use jiff::Timestamp;
use sbx_policy::{
    DomainName, GATEWAY, HOST_ALIAS, Host, Kind, LocalAddresses, Pattern, Policy, Protocol, Target,
    Verdict, is_host_alias,
};
use sbx_proto::net::{GATEWAY_V4, HOST_V4};
use tokio::sync::watch;

#[cfg(test)]
pub(crate) mod questions;

use crate::active::ActiveSessions;
use crate::resolver::{Lookup, Resolver};

/// What was decided, with everything that is needed to act on it and to decide again.
#[derive(Debug, Clone)]
pub struct GateDecision {
    /// What was asked for, by its best name.
    pub target: Target,
    pub verdict: Verdict,
    /// Where to dial, in this order. These addresses were checked; no name is looked up again.
    pub addresses: Vec<SocketAddr>,
    protocol: Protocol,
    /// Traffic other than `protocol` may go the same way: it has to stay allowed too.
    anything: bool,
    /// A name that the client claims besides the target: no rule may deny it.
    claimed: Option<Host>,
    /// The client may ask for other names that are not read: no rule may deny any name on the port.
    unread: bool,
    /// Has seen the rules that decided, and reports only later ones.
    changes: watch::Receiver<Policy>,
    decided_at: Timestamp,
}

const UNREAD: &str =
    "HTTP/2 without TLS: its host names are not read, and a rule denies hosts by name";

/// The answer to `policy check`.
#[derive(Debug, Clone)]
pub struct Checked {
    /// What was asked about: HTTP and HTTPS, if nothing was said about it.
    pub decision: GateDecision,
    /// What any other protocol would be told, if nothing was said and it is told otherwise.
    pub other: Option<GateDecision>,
}

/// What a tunnel has to turn out to be, besides going where it was allowed to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// HTTP or TLS: the rule speaks of nothing else.
    Web,
}

impl GateDecision {
    pub fn allowed(&self) -> bool {
        self.verdict.allowed
    }

    /// Reports rules that are newer than those that decided.
    pub(crate) fn changes(&self) -> watch::Receiver<Policy> {
        self.changes.clone()
    }

    pub(crate) fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Whether the rules that decided are still in force.
    pub(crate) fn is_current(&self, now: Timestamp) -> bool {
        let expiry = self.changes.borrow().next_expiry(self.decided_at);
        !self.changes.has_changed().unwrap_or(true) && expiry.is_none_or(|at| at > now)
    }
}

/// Tells the addresses of the host, and which of those that are asked about lead to it. Interfaces and routes come and
/// go, so it is asked for every decision about addresses.
pub type LocalAddressSource = Arc<dyn Fn(&[IpAddr]) -> LocalAddresses + Send + Sync>;

/// The time by which rules end. It must never go back, or what has ended would hold again.
pub type RuleTime = Arc<dyn Fn() -> Timestamp + Send + Sync>;

pub struct Gate {
    policy: watch::Receiver<Policy>,
    time: RuleTime,
    local_addresses: LocalAddressSource,
    resolver: Resolver,
    active_sessions: ActiveSessions,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// The rules as they are at one time; all questions of one decision go to the same.
struct Rules {
    policy: Policy,
    now: Timestamp,
    changes: watch::Receiver<Policy>,
}

impl Rules {
    fn decide(&self, target: &Target, protocol: Protocol) -> Verdict {
        #[cfg(test)]
        questions::record(target, None, protocol);
        self.policy.decide(target, protocol, self.now)
    }

    fn decide_address(
        &self,
        named: &Verdict,
        target: &Target,
        address: IpAddr,
        protocol: Protocol,
    ) -> Verdict {
        #[cfg(test)]
        questions::record(target, Some(address), protocol);
        let policy = &self.policy;
        policy.decide_address(named, target, address, protocol, self.now)
    }

    /// By the rules alone: no address yet.
    fn decision(&self, target: &Target, protocol: Protocol, verdict: Verdict) -> GateDecision {
        GateDecision {
            target: target.clone(),
            verdict,
            addresses: Vec::new(),
            protocol,
            anything: false,
            claimed: None,
            unread: false,
            changes: self.changes.clone(),
            decided_at: self.now,
        }
    }

    /// A bare address, by a rule for addresses.
    fn decide_literal(&self, ip: IpAddr, target: &Target, protocol: Protocol) -> GateDecision {
        let verdict = self.decide(target, protocol);
        let mut decision = self.decision(target, protocol, verdict);
        if decision.allowed() {
            decision.addresses = vec![SocketAddr::new(ip.to_canonical(), target.port)];
        }
        decision
    }

    /// Whether the same questions would get the same answers from `later`. (The policy is closed when its sandbox
    /// stops; then only asking again tells.)
    fn same_as(&self, later: &Self) -> bool {
        let changed = self.changes.has_changed().unwrap_or(true);
        let expiry = self.policy.next_expiry(self.now);
        !changed && expiry.is_none_or(|at| at > later.now)
    }

    /// Decides again about something that was decided before.
    fn decide_again(
        &self,
        decision: &GateDecision,
        address: SocketAddr,
        protocol: Protocol,
    ) -> Verdict {
        if decision.unread && self.policy.denies_names_on(address.port(), self.now) {
            return Verdict::malformed(&UNREAD);
        }
        if let Some(claimed) = &decision.claimed {
            let claimed = Target {
                host: claimed.clone(),
                port: address.port(),
            };
            let verdict = self.decide(&claimed, protocol);
            if verdict.kind == Kind::Explicit {
                return verdict;
            }
        }
        let target = &decision.target;
        let verdict = self.decide(target, protocol);
        match &target.host {
            Host::Name(_) if verdict.allowed && !is_host_alias(&target.host) => {
                self.decide_address(&verdict, target, address.ip(), protocol)
            }
            Host::Name(_) | Host::Ip(_) => verdict,
        }
    }
}

/// A decision about a name, and what it says about one address that a client dialled by itself.
struct NameDecision {
    decision: GateDecision,
    /// None when the address is not one of the name's.
    dialled: Option<Verdict>,
    rules: Rules,
}

impl Gate {
    pub fn new(
        policy: watch::Receiver<Policy>,
        local_addresses: LocalAddressSource,
        lookup: Lookup,
        time: RuleTime,
    ) -> Self {
        Self {
            policy,
            time,
            local_addresses,
            resolver: Resolver::new(lookup),
            active_sessions: ActiveSessions::default(),
        }
    }

    /// What was let out and goes on; all of it ends when there are no more rules to come.
    pub(crate) fn active_sessions(&self) -> &ActiveSessions {
        &self.active_sessions
    }

    /// For a decision about these addresses: the rules and the host as they are now.
    fn rules(&self, addresses: &[IpAddr]) -> Rules {
        let mut changes = self.policy.clone();
        let mut policy = changes.borrow_and_update().clone();
        // Names are decided without them, and finding them costs a system call.
        if !addresses.is_empty() {
            policy = policy.with_local_addresses((self.local_addresses)(addresses));
        }
        Rules {
            policy,
            now: self.now(),
            changes,
        }
    }

    /// The time by which its rules end.
    pub(crate) fn now(&self) -> Timestamp {
        (self.time)()
    }

    /// The first time after `since` at which a rule ends by itself.
    pub(crate) fn next_expiry(&self, since: Timestamp) -> Option<Timestamp> {
        self.policy.borrow().next_expiry(since)
    }

    /// Whether some name or address could be allowed on this port.
    pub(crate) fn opens_port(&self, port: u16) -> bool {
        self.policy.borrow().opens_port(port, self.now())
    }

    /// What a connection would be told; `protocol` is what it would carry, if that is known.
    pub async fn check(&self, target: &Target, protocol: Option<Protocol>) -> Checked {
        let web = protocol.unwrap_or(Protocol::Web);
        let decision = self.decide_target(target, web).await;
        let other = match protocol {
            Some(_) => None,
            None => Some(self.decide_target(target, Protocol::Other).await),
        };
        let other = other.filter(|other| other.allowed() != decision.allowed());
        Checked { decision, other }
    }

    /// A client names what it wants to reach: CONNECT, absolute-form HTTP, SOCKS5, `policy check`.
    pub async fn decide_target(&self, target: &Target, protocol: Protocol) -> GateDecision {
        self.decide_with_rules(target, protocol).await.0
    }

    async fn decide_with_rules(
        &self,
        target: &Target,
        protocol: Protocol,
    ) -> (GateDecision, Rules) {
        let own = Target {
            host: own_name(&target.host).unwrap_or_else(|| target.host.clone()),
            port: target.port,
        };
        match &own.host {
            Host::Name(name) => {
                let named = self.decide_name(name, &own, protocol, None).await;
                (named.decision, named.rules)
            }
            Host::Ip(ip) => {
                let rules = self.rules(&[*ip]);
                let decision = self.decide_address(&rules, *ip, &own, protocol);
                (decision, rules)
            }
        }
    }

    /// A client asks for a tunnel: what it will carry is not known yet, and most tunnels carry HTTPS.
    pub(crate) async fn decide_tunnel(&self, target: &Target) -> (GateDecision, Needs) {
        let (mut decision, rules) = self.decide_with_rules(target, Protocol::Web).await;
        if !decision.allowed() {
            return (decision, Needs::Web);
        }
        let other = rules.decide(&decision.target, Protocol::Other);
        let alias = is_host_alias(&decision.target.host);
        let open = |at: &&SocketAddr| match &decision.target.host {
            Host::Name(_) if other.allowed && !alias => {
                let target = &decision.target;
                let verdict = rules.decide_address(&other, target, at.ip(), Protocol::Other);
                verdict.allowed
            }
            Host::Name(_) | Host::Ip(_) => other.allowed,
        };
        let for_anything: Vec<_> = decision.addresses.iter().filter(open).copied().collect();
        decision.anything = decision.addresses.is_empty() || !for_anything.is_empty();
        if !decision.anything {
            return (decision, Needs::Web);
        }
        // Any address of a name will do, so those are taken that leave it open what is said there.
        decision.addresses = for_anything;
        (decision, Needs::Nothing)
    }

    /// A client dialled an address as if there were no proxy, and perhaps said a name (SNI, Host).
    pub async fn decide_dialled(
        &self,
        dialled: SocketAddr,
        claimed: Option<&Host>,
        protocol: Protocol,
    ) -> GateDecision {
        let dialled = SocketAddr::new(dialled.ip().to_canonical(), dialled.port());
        let literal = Target {
            host: Host::Ip(dialled.ip()),
            port: dialled.port(),
        };
        // Inside, these addresses mean the host and the proxy, whatever a client says besides.
        let claimed = claimed.filter(|_| own_name(&literal.host).is_none());
        let Some(host @ Host::Name(name)) = claimed else {
            return self.decide_target(&literal, protocol).await;
        };
        let named = Target {
            host: host.clone(),
            port: dialled.port(),
        };
        let by_name = self
            .decide_name(name, &named, protocol, Some(dialled.ip()))
            .await;
        let mut decision = by_name.decision;
        if decision.allowed()
            && let Some(verdict) = by_name.dialled
        {
            // The connection goes where it was dialled to, whatever other addresses the name has.
            decision.addresses = vec![dialled];
            if !verdict.allowed {
                decision.addresses.clear();
                decision.verdict = verdict;
            }
            return decision;
        }
        if decision.verdict.kind == Kind::Explicit {
            return decision;
        }
        // The name alone opens nothing: its owner need not own the address.
        let rules = self.rules(&[dialled.ip()]);
        let mut by_address = rules.decide_literal(dialled.ip(), &literal, protocol);
        by_address.claimed = Some(host.clone());
        if by_address.allowed() {
            return by_address;
        }
        if !decision.allowed() && by_address.verdict.kind != Kind::Explicit {
            return decision;
        }
        if decision.allowed() {
            by_address.target = named;
            let opens = Pattern::exact(literal.host, Some(literal.port));
            by_address.verdict.opens.get_or_insert(opens);
            by_address.verdict.reason = format!(
                "{} is not an address of {name}: {}",
                dialled.ip(),
                by_address.verdict.reason
            );
        }
        by_address
    }

    /// A client dialled an address, and says the names that it asks for in a way that is not read.
    pub(crate) async fn decide_unread(&self, dialled: SocketAddr) -> GateDecision {
        let mut decision = self.decide_dialled(dialled, None, Protocol::Web).await;
        decision.unread = true;
        let (policy, now) = (self.policy.borrow(), self.now());
        if decision.allowed() && policy.denies_names_on(dialled.port(), now) {
            decision.verdict = Verdict::malformed(&UNREAD);
            decision.addresses.clear();
        }
        decision
    }

    /// Whether a program may learn the addresses of a name, and if so, which of them: those that it could dial.
    pub async fn decide_lookup(&self, host: &Host) -> (Verdict, io::Result<Vec<IpAddr>>) {
        let asked = self.rules(host.as_ip().as_slice());
        let verdict = asked.policy.resolvable(host, asked.now);
        let found = match host {
            Host::Name(name) if verdict.allowed => self.resolver.resolve(name).await,
            Host::Name(_) | Host::Ip(_) => Ok(Vec::new()),
        };
        let Ok(mut addresses) = found else {
            return (verdict, found);
        };
        let rules = self.rules(&addresses);
        let mut refused = None;
        addresses.retain(|ip| {
            let policy = &rules.policy;
            let verdict = policy.may_disclose(host, ip.to_canonical(), rules.now);
            let allowed = verdict.allowed;
            refused = refused.take().or((!allowed).then_some(verdict));
            allowed
        });
        match refused {
            Some(refused) if addresses.is_empty() => (refused, Ok(addresses)),
            Some(_) | None => (verdict, Ok(addresses)),
        }
    }

    /// The name that an address was resolved from, if a program here may know it.
    pub(crate) fn name_of(&self, address: IpAddr) -> Option<DomainName> {
        self.resolver.names(address).into_iter().next()
    }

    /// Decides again about something that is going on, after the rules changed.
    pub(crate) fn still_allowed(&self, decision: &GateDecision, address: SocketAddr) -> Verdict {
        let rules = self.rules(&[address.ip()]);
        let verdict = rules.decide_again(decision, address, decision.protocol);
        if verdict.allowed && decision.anything {
            return rules.decide_again(decision, address, Protocol::Other);
        }
        verdict
    }

    async fn decide_name(
        &self,
        name: &DomainName,
        target: &Target,
        protocol: Protocol,
        dialled: Option<IpAddr>,
    ) -> NameDecision {
        let asked = self.rules(&[]);
        let verdict = asked.decide(target, protocol);
        // A name that is denied is not looked up: the question alone would leave the host.
        if !verdict.allowed || is_host_alias(&target.host) {
            let mut decision = asked.decision(target, protocol, verdict);
            if decision.allowed() {
                let host = [
                    IpAddr::from(Ipv4Addr::LOCALHOST),
                    Ipv6Addr::LOCALHOST.into(),
                ];
                decision.addresses = host.map(|ip| SocketAddr::new(ip, target.port)).to_vec();
            }
            return NameDecision {
                decision,
                dialled: None,
                rules: asked,
            };
        }
        // A name that has no address is allowed and leads nowhere; the client is told which of the two.
        let found = self.resolver.resolve(name).await.unwrap_or_default();
        let mut found: Vec<IpAddr> = found.iter().map(IpAddr::to_canonical).collect();
        let resolved = found.len();
        // An address that the program was told earlier is one of the name's as well.
        if let Some(dialled) = dialled
            && !found.contains(&dialled)
            && self.resolver.names(dialled).contains(name)
        {
            found.push(dialled);
        }
        let rules = self.rules(&found);
        let verdict = if asked.same_as(&rules) {
            verdict
        } else {
            rules.decide(target, protocol)
        };
        let mut decision = rules.decision(target, protocol, verdict.clone());
        let (mut refused, mut of_dialled) = (None, None);
        for (n, ip) in found.into_iter().enumerate() {
            let at = rules.decide_address(&verdict, target, ip, protocol);
            if n < resolved && at.allowed {
                decision.addresses.push(SocketAddr::new(ip, target.port));
            } else if n < resolved {
                refused = Some(at.clone());
            }
            if Some(ip) == dialled {
                of_dialled = Some(at);
            }
        }
        if let (true, Some(refused)) = (decision.addresses.is_empty(), refused) {
            decision.verdict = refused;
        }
        NameDecision {
            decision,
            dialled: of_dialled,
            rules,
        }
    }

    /// A bare address: by a rule for addresses, or by a name that it was resolved from.
    fn decide_address(
        &self,
        rules: &Rules,
        ip: IpAddr,
        target: &Target,
        protocol: Protocol,
    ) -> GateDecision {
        let by_address = rules.decide_literal(ip, target, protocol);
        if by_address.allowed() || by_address.verdict.kind == Kind::Explicit {
            return by_address;
        }
        for name in self.resolver.names(ip) {
            let named = Target {
                host: Host::Name(name),
                port: target.port,
            };
            let verdict = rules.decide(&named, protocol);
            if verdict.allowed && rules.decide_address(&verdict, &named, ip, protocol).allowed {
                let mut decision = rules.decision(&named, protocol, verdict);
                decision.addresses = vec![SocketAddr::new(ip.to_canonical(), target.port)];
                return decision;
            }
        }
        by_address
    }
}

/// The name of an address that means something else inside than outside.
fn own_name(host: &Host) -> Option<Host> {
    let name = match host.as_ip()? {
        IpAddr::V4(HOST_V4) => HOST_ALIAS,
        IpAddr::V4(GATEWAY_V4) => GATEWAY,
        IpAddr::V4(_) | IpAddr::V6(_) => return None,
    };
    Host::parse(name).ok()
}
