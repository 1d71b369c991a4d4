//! The one place where it is decided whether something may leave, and where to. Every entrance asks here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use jiff::Timestamp;
use sbx_policy::{
    DomainName, HOST_ALIAS, Host, Kind, Policy, Protocol, Target, Verdict, is_host_alias,
};
use sbx_proto::net::HOST_V4;
use tokio::sync::watch;

use crate::resolver::{Lookup, Resolver};

/// What was decided, with everything that is needed to act on it and to decide again.
#[derive(Debug, Clone)]
pub struct Judged {
    /// What was asked for, by its best name.
    pub target: Target,
    pub verdict: Verdict,
    /// Where to dial, in this order. These addresses were judged; no name is looked up again.
    pub addresses: Vec<SocketAddr>,
    protocol: Protocol,
    /// A name that the client claims besides the target: no rule may deny it.
    claimed: Option<Host>,
}

/// What a tunnel has to turn out to be, besides going where it was allowed to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// HTTP or TLS: the rule speaks of nothing else.
    Web,
}

impl Judged {
    pub fn allowed(&self) -> bool {
        self.verdict.allowed
    }
}

pub struct Gate {
    policy: watch::Receiver<Arc<Policy>>,
    resolver: Resolver,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

impl Gate {
    pub fn new(policy: watch::Receiver<Arc<Policy>>, lookup: Lookup) -> Self {
        Self {
            policy,
            resolver: Resolver::new(lookup),
        }
    }

    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.borrow())
    }

    /// For whoever has to act when the rules change.
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Policy>> {
        self.policy.clone()
    }

    /// A client names what it wants to reach: CONNECT, absolute-form HTTP, SOCKS5, `policy check`.
    pub async fn judge(&self, target: &Target, protocol: Protocol) -> Judged {
        match &target.host {
            Host::Name(name) => self.judge_name(name, target, protocol).await,
            Host::Ip(ip) => self.judge_literal(*ip, target, protocol),
        }
    }

    /// A client asks for a tunnel: what it will carry is not known yet.
    pub(crate) async fn judge_tunnel(&self, target: &Target) -> (Judged, Needs) {
        let judged = self.judge(target, Protocol::Other).await;
        if judged.allowed() {
            return (judged, Needs::Nothing);
        }
        (self.judge(target, Protocol::Web).await, Needs::Web)
    }

    /// A client dialled an address as if there were no proxy, and perhaps said a name (SNI, Host).
    pub async fn judge_dialled(
        &self,
        dialled: SocketAddr,
        claimed: Option<&Host>,
        protocol: Protocol,
    ) -> Judged {
        let literal = Target {
            host: Host::Ip(dialled.ip().to_canonical()),
            port: dialled.port(),
        };
        if dialled.ip() == IpAddr::V4(HOST_V4) {
            let target = Target {
                host: host_alias(),
                port: dialled.port(),
            };
            return self.judge(&target, protocol).await;
        }
        let Some(host @ Host::Name(name)) = claimed else {
            return self.judge(&literal, protocol).await;
        };
        let named = Target {
            host: host.clone(),
            port: dialled.port(),
        };
        let mut judged = self.judge_name(name, &named, protocol).await;
        let dialled = SocketAddr::new(dialled.ip().to_canonical(), dialled.port());
        if judged.allowed() && self.belongs(&judged, name, dialled) {
            // The connection goes where it was dialled to, whatever other addresses the name has.
            judged.addresses = vec![dialled];
            return judged;
        }
        if judged.verdict.kind == Kind::Explicit {
            return judged;
        }
        // The name alone opens nothing: its owner need not own the address.
        let mut by_address = self.judge_unnamed(dialled.ip(), &literal, protocol);
        by_address.claimed = Some(host.clone());
        if !by_address.allowed() && !judged.allowed() {
            return judged;
        }
        if !by_address.allowed() {
            by_address.target = named;
            by_address.verdict.reason = format!(
                "{} is not an address of {name}: {}",
                dialled.ip(),
                by_address.verdict.reason
            );
        }
        by_address
    }

    /// Whether a program may learn the addresses of a name, and if so, which they are.
    pub async fn judge_lookup(&self, host: &Host) -> (Verdict, std::io::Result<Vec<IpAddr>>) {
        let verdict = self.policy().resolvable(host, Timestamp::now());
        let addresses = match host {
            Host::Name(name) if verdict.allowed => self.resolver.resolve(name).await,
            Host::Name(_) | Host::Ip(_) => Ok(Vec::new()),
        };
        (verdict, addresses)
    }

    /// The name that an address was resolved from, if a program here may know it.
    pub(crate) fn name_of(&self, address: IpAddr) -> Option<DomainName> {
        self.resolver.names(address).into_iter().next()
    }

    /// Decides again about something that is going on, after the rules changed.
    pub(crate) fn still_allowed(&self, judged: &Judged, address: SocketAddr) -> Verdict {
        let (policy, now) = (self.policy(), Timestamp::now());
        if let Some(claimed) = &judged.claimed {
            let claimed = Target {
                host: claimed.clone(),
                port: address.port(),
            };
            let verdict = policy.decide(&claimed, judged.protocol, now);
            if verdict.kind == Kind::Explicit {
                return verdict;
            }
        }
        let verdict = policy.decide(&judged.target, judged.protocol, now);
        match &judged.target.host {
            Host::Name(_) if verdict.allowed && !is_host_alias(&judged.target.host) => {
                policy.judge_address(&verdict, &judged.target, address.ip(), judged.protocol, now)
            }
            Host::Name(_) | Host::Ip(_) => verdict,
        }
    }

    /// Whether the address is one of an allowed name's, now or as the program was told before.
    fn belongs(&self, judged: &Judged, name: &DomainName, dialled: SocketAddr) -> bool {
        judged.addresses.contains(&dialled)
            || (self.resolver.names(dialled.ip()).contains(name)
                && self.still_allowed(judged, dialled).allowed)
    }

    async fn judge_name(&self, name: &DomainName, target: &Target, protocol: Protocol) -> Judged {
        let (policy, now) = (self.policy(), Timestamp::now());
        let verdict = policy.decide(target, protocol, now);
        let mut judged = Judged {
            target: target.clone(),
            verdict,
            addresses: Vec::new(),
            protocol,
            claimed: None,
        };
        if !judged.allowed() {
            return judged;
        }
        if is_host_alias(&target.host) {
            let own = [
                IpAddr::from(Ipv4Addr::LOCALHOST),
                Ipv6Addr::LOCALHOST.into(),
            ];
            judged.addresses = own.map(|ip| SocketAddr::new(ip, target.port)).to_vec();
            return judged;
        }
        // A name that has no address is allowed and leads nowhere; the client is told which of the two.
        let found = self.resolver.resolve(name).await.unwrap_or_default();
        let mut refused = None;
        for ip in found {
            let ip = ip.to_canonical();
            let verdict = policy.judge_address(&judged.verdict, target, ip, protocol, now);
            if verdict.allowed {
                judged.addresses.push(SocketAddr::new(ip, target.port));
            } else {
                refused = Some(verdict);
            }
        }
        if let (true, Some(refused)) = (judged.addresses.is_empty(), refused) {
            judged.verdict = refused;
        }
        judged
    }

    /// A bare address: by a rule for addresses, or by a name that it was resolved from.
    fn judge_literal(&self, ip: IpAddr, target: &Target, protocol: Protocol) -> Judged {
        let judged = self.judge_unnamed(ip, target, protocol);
        if judged.allowed() || judged.verdict.kind == Kind::Explicit {
            return judged;
        }
        let (policy, now) = (self.policy(), Timestamp::now());
        for name in self.resolver.names(ip) {
            let named = Target {
                host: Host::Name(name),
                port: target.port,
            };
            let verdict = policy.decide(&named, protocol, now);
            if verdict.allowed
                && policy
                    .judge_address(&verdict, &named, ip, protocol, now)
                    .allowed
            {
                return Judged {
                    target: named,
                    verdict,
                    ..judged_at(ip, target.port, judged)
                };
            }
        }
        judged
    }

    fn judge_unnamed(&self, ip: IpAddr, target: &Target, protocol: Protocol) -> Judged {
        let verdict = self.policy().decide(target, protocol, Timestamp::now());
        let judged = Judged {
            target: target.clone(),
            verdict,
            addresses: Vec::new(),
            protocol,
            claimed: None,
        };
        if judged.allowed() {
            judged_at(ip, target.port, judged)
        } else {
            judged
        }
    }
}

fn judged_at(ip: IpAddr, port: u16, judged: Judged) -> Judged {
    Judged {
        addresses: vec![SocketAddr::new(ip.to_canonical(), port)],
        ..judged
    }
}

fn host_alias() -> Host {
    // A constant that is a name.
    Host::parse(HOST_ALIAS).unwrap_or(Host::Ip(IpAddr::V4(HOST_V4)))
}
