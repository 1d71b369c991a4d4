//! The one place where it is decided whether something may leave, and where to. Every entrance asks here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use jiff::Timestamp;
use sbx_policy::{
    DomainName, GATEWAY, HOST_ALIAS, Host, Kind, OwnAddresses, Pattern, Policy, Protocol, Target,
    Verdict, is_host_alias,
};
use sbx_proto::net::{GATEWAY_V4, HOST_V4};
use tokio::sync::watch;

use crate::resolver::{Lookup, Resolver};
use crate::underway::UnderWay;

/// What was decided, with everything that is needed to act on it and to decide again.
#[derive(Debug, Clone)]
pub struct Judged {
    /// What was asked for, by its best name.
    pub target: Target,
    pub verdict: Verdict,
    /// Where to dial, in this order. These addresses were judged; no name is looked up again.
    pub addresses: Vec<SocketAddr>,
    protocol: Protocol,
    /// Other traffic than `protocol` may go the same way: it has to stay allowed too.
    anything: bool,
    /// A name that the client claims besides the target: no rule may deny it.
    claimed: Option<Host>,
    /// The client may ask for other names, and nobody reads them: no rule may deny any name on the port.
    unread: bool,
}

const UNREAD: &str =
    "HTTP/2 without TLS: the names that it asks for are not read, and a rule denies hosts by name";

/// The answer to `policy check`.
#[derive(Debug, Clone)]
pub struct Checked {
    /// What was asked about: HTTP and HTTPS, if nothing was said about it.
    pub judged: Judged,
    /// What any other protocol would be told, if nothing was said and it is told otherwise.
    pub other: Option<Judged>,
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

/// Tells the machine's addresses, and which of those that are asked about lead to it. Interfaces and routes come and
/// go, so it is asked for every decision.
pub type Own = Arc<dyn Fn(&[IpAddr]) -> OwnAddresses + Send + Sync>;

pub struct Gate {
    policy: watch::Receiver<Policy>,
    own: Own,
    resolver: Resolver,
    under_way: UnderWay,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

impl Gate {
    pub fn new(policy: watch::Receiver<Policy>, own: Own, lookup: Lookup) -> Self {
        Self {
            policy,
            own,
            resolver: Resolver::new(lookup),
            under_way: UnderWay::default(),
        }
    }

    /// What was let out and goes on; all of it ends when there are no more rules to come.
    pub(crate) fn under_way(&self) -> &UnderWay {
        &self.under_way
    }

    /// For one decision about these addresses: the rules and the machine as they are now.
    pub(crate) fn policy(&self, asked: &[IpAddr]) -> Policy {
        let own = (self.own)(asked);
        self.policy.borrow().on(own)
    }

    /// For whoever has to act when the rules change.
    pub(crate) fn changes(&self) -> watch::Receiver<Policy> {
        self.policy.clone()
    }

    pub(crate) fn next_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        self.policy.borrow().next_expiry(now)
    }

    /// Whether some name or address could be allowed on this port.
    pub(crate) fn opens_port(&self, port: u16) -> bool {
        self.policy.borrow().opens_port(port, Timestamp::now())
    }

    /// What a connection would be told; `protocol` is what it would carry, if that is known.
    pub async fn check(&self, target: &Target, protocol: Option<Protocol>) -> Checked {
        let judged = self.judge(target, protocol.unwrap_or(Protocol::Web)).await;
        let other = match protocol {
            Some(_) => None,
            None => Some(self.judge(target, Protocol::Other).await),
        };
        let other = other.filter(|other| other.allowed() != judged.allowed());
        Checked { judged, other }
    }

    /// A client names what it wants to reach: CONNECT, absolute-form HTTP, SOCKS5, `policy check`.
    pub async fn judge(&self, target: &Target, protocol: Protocol) -> Judged {
        let own = Target {
            host: own_name(&target.host).unwrap_or_else(|| target.host.clone()),
            port: target.port,
        };
        match &own.host {
            Host::Name(name) => self.judge_name(name, &own, protocol).await,
            Host::Ip(ip) => self.judge_literal(*ip, &own, protocol),
        }
    }

    /// A client asks for a tunnel: what it will carry is not known yet, and most tunnels carry HTTPS.
    pub(crate) async fn judge_tunnel(&self, target: &Target) -> (Judged, Needs) {
        let mut judged = self.judge(target, Protocol::Web).await;
        let open = |at: &&SocketAddr| self.allowed_now(&judged, **at, Protocol::Other).allowed;
        let for_anything: Vec<_> = judged.addresses.iter().filter(open).copied().collect();
        let nowhere = judged.addresses.is_empty();
        judged.anything = judged.allowed() && (nowhere || !for_anything.is_empty());
        // Any address of a name will do, so one is taken that leaves it open what is said there.
        if judged.anything {
            judged.addresses = for_anything;
        }
        let needs = if judged.anything {
            Needs::Nothing
        } else {
            Needs::Web
        };
        (judged, needs)
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
        // Inside, these addresses mean the host and the proxy, whatever a client says besides.
        let claimed = claimed.filter(|_| own_name(&literal.host).is_none());
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
            let verdict = self.still_allowed(&judged, dialled);
            // The connection goes where it was dialled to, whatever other addresses the name has.
            judged.addresses = vec![dialled];
            if !verdict.allowed {
                judged.addresses.clear();
                judged.verdict = verdict;
            }
            return judged;
        }
        if judged.verdict.kind == Kind::Explicit {
            return judged;
        }
        // The name alone opens nothing: its owner need not own the address.
        let mut by_address = self.judge_unnamed(dialled.ip(), &literal, protocol);
        by_address.claimed = Some(host.clone());
        if by_address.allowed() {
            return by_address;
        }
        if !judged.allowed() && by_address.verdict.kind != Kind::Explicit {
            return judged;
        }
        if judged.allowed() {
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
    pub(crate) async fn judge_unread(&self, dialled: SocketAddr) -> Judged {
        let mut judged = self.judge_dialled(dialled, None, Protocol::Web).await;
        judged.unread = true;
        if judged.allowed() {
            judged.verdict = self.still_allowed(&judged, dialled);
        }
        if !judged.allowed() {
            judged.addresses.clear();
        }
        judged
    }

    /// Whether a program may learn the addresses of a name, and if so, which of them: those that it could dial.
    pub async fn judge_lookup(&self, host: &Host) -> (Verdict, std::io::Result<Vec<IpAddr>>) {
        let verdict = self
            .policy(host.as_ip().as_slice())
            .resolvable(host, Timestamp::now());
        let found = match host {
            Host::Name(name) if verdict.allowed => self.resolver.resolve(name).await,
            Host::Name(_) | Host::Ip(_) => Ok(Vec::new()),
        };
        let Ok(mut addresses) = found else {
            return (verdict, found);
        };
        let (policy, now) = (self.policy(&addresses), Timestamp::now());
        let mut refused = None;
        addresses.retain(|ip| {
            let told = policy.tellable(host, ip.to_canonical(), now);
            let allowed = told.allowed;
            refused = refused.take().or((!allowed).then_some(told));
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
    pub(crate) fn still_allowed(&self, judged: &Judged, address: SocketAddr) -> Verdict {
        let verdict = self.allowed_now(judged, address, judged.protocol);
        if verdict.allowed && judged.anything {
            return self.allowed_now(judged, address, Protocol::Other);
        }
        verdict
    }

    fn allowed_now(&self, judged: &Judged, address: SocketAddr, protocol: Protocol) -> Verdict {
        let (policy, now) = (self.policy(&[address.ip()]), Timestamp::now());
        if judged.unread && policy.denies_names_on(address.port(), now) {
            return Verdict::malformed(&UNREAD);
        }
        if let Some(claimed) = &judged.claimed {
            let claimed = Target {
                host: claimed.clone(),
                port: address.port(),
            };
            let verdict = policy.decide(&claimed, protocol, now);
            if verdict.kind == Kind::Explicit {
                return verdict;
            }
        }
        let verdict = policy.decide(&judged.target, protocol, now);
        match &judged.target.host {
            Host::Name(_) if verdict.allowed && !is_host_alias(&judged.target.host) => {
                policy.judge_address(&verdict, &judged.target, address.ip(), protocol, now)
            }
            Host::Name(_) | Host::Ip(_) => verdict,
        }
    }

    /// Whether the address is one of an allowed name's, now or as the program was told before.
    fn belongs(&self, judged: &Judged, name: &DomainName, dialled: SocketAddr) -> bool {
        judged.addresses.contains(&dialled) || self.resolver.names(dialled.ip()).contains(name)
    }

    async fn judge_name(&self, name: &DomainName, target: &Target, protocol: Protocol) -> Judged {
        let mut judged = self.decide(target, protocol);
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
        // That may have taken a while, and the rules may be others now.
        judged = self.decide(target, protocol);
        let (policy, now) = (self.policy(&found), Timestamp::now());
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
        let (policy, now) = (self.policy(&[ip]), Timestamp::now());
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
        let judged = self.decide(target, protocol);
        if judged.allowed() {
            judged_at(ip, target.port, judged)
        } else {
            judged
        }
    }

    /// By the rules alone: no address yet.
    fn decide(&self, target: &Target, protocol: Protocol) -> Judged {
        Judged {
            target: target.clone(),
            verdict: self.policy(target.host.as_ip().as_slice()).decide(
                target,
                protocol,
                Timestamp::now(),
            ),
            addresses: Vec::new(),
            protocol,
            anything: false,
            claimed: None,
            unread: false,
        }
    }
}

fn judged_at(ip: IpAddr, port: u16, judged: Judged) -> Judged {
    Judged {
        addresses: vec![SocketAddr::new(ip.to_canonical(), port)],
        ..judged
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
