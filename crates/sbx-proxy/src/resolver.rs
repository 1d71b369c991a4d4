//! Names to addresses, with the host's own resolver, and the memory of what a sandbox was told.
//!
//! Names are absolute: what was checked is what is asked for, never a name that the host's search list makes of it.
//!
//! The memory is what lets a connection to a bare address be checked by the name that the program asked for.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sbx_policy::DomainName;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::hosts_file;
use crate::rate::Rate;
use crate::workers::{Size, Workers};

/// Lookups of one sandbox at the same time.
const MAX_LOOKUPS: usize = 4;
/// The host's resolver blocks.
const THREADS: Size = Size {
    kept: 1,
    most: MAX_LOOKUPS,
    stack: 512 << 10,
};
/// Look-ups of one sandbox beyond its memory: each name in one is data that leaves the host, also under a wildcard.
const MAX_BURST: u32 = 100;
const PER_SECOND: u32 = 10;
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer is used again: the host's resolver tells no time to live.
pub(crate) const CACHE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an address stands for a name after the name was last resolved to it. Programs keep addresses far
/// longer than a time to live, and names with many addresses show others every time.
const LINK_TIMEOUT: Duration = Duration::from_secs(3600);
/// Names with an answer, and pairs of name and address, per sandbox.
const MAX_NAMES: usize = 2048;
const MAX_LINKS: usize = 8192;
/// Addresses of one name.
const MAX_ADDRESSES: usize = 32;

type Looking = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Asks for all addresses of a name.
pub type Lookup = Arc<dyn Fn(DomainName) -> Looking + Send + Sync>;

/// What the host itself would connect to, asked for on threads of its own.
pub fn system_lookup() -> io::Result<Lookup> {
    let workers = Arc::new(Workers::start("resolver", THREADS)?);
    Ok(Arc::new(move |name| {
        let workers = Arc::clone(&workers);
        Box::pin(async move {
            let found = workers.run(move || ask_system(&name)).await;
            found.map_err(io::Error::other)?
        })
    }))
}

fn ask_system(name: &DomainName) -> io::Result<Vec<IpAddr>> {
    let mut found = hosts_file::addresses(name);
    if found.is_empty() {
        // With its last dot, which libc does not look for in the hosts file.
        let absolute = format!("{name}.");
        let answer = (absolute.as_str(), 0).to_socket_addrs()?;
        found = answer.map(|address| address.ip()).collect();
    }
    let mut addresses: Vec<IpAddr> = Vec::new();
    for ip in found.into_iter().filter(has_route) {
        if !addresses.contains(&ip) && addresses.len() < MAX_ADDRESSES {
            addresses.push(ip);
        }
    }
    Ok(addresses)
}

/// A program inside cannot see that the host has no IPv6, and its connections to us always succeed.
fn has_route(ip: &IpAddr) -> bool {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket sends nothing: it looks for a route.
    UdpSocket::bind(SocketAddr::new(any, 0))
        .and_then(|socket| socket.connect(SocketAddr::new(*ip, 9)))
        .is_ok()
}

pub(crate) struct Resolver {
    lookup: Lookup,
    at_once: Semaphore,
    rate: Rate,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    answers: BTreeMap<DomainName, Answer>,
    /// Oldest first; what is asked for again keeps its place.
    names: VecDeque<DomainName>,
    by_address: BTreeMap<IpAddr, BTreeMap<DomainName, Instant>>,
    links: VecDeque<(IpAddr, DomainName)>,
}

struct Answer {
    addresses: Vec<IpAddr>,
    at: Instant,
}

impl Resolver {
    pub(crate) fn new(lookup: Lookup) -> Self {
        Self {
            lookup,
            at_once: Semaphore::new(MAX_LOOKUPS),
            rate: Rate::new(MAX_BURST, PER_SECOND),
            memory: Mutex::default(),
        }
    }

    /// All addresses of a name; empty when it has none.
    pub(crate) async fn resolve(&self, name: &DomainName) -> io::Result<Vec<IpAddr>> {
        if let Some(known) = self.fresh(name) {
            return Ok(known);
        }
        let looking = async {
            let _turn = self.at_once.acquire().await;
            // Another connection may have asked while this one waited.
            match self.fresh(name) {
                Some(known) => Ok(known),
                None => {
                    self.rate.wait().await;
                    (self.lookup)(name.clone()).await
                }
            }
        };
        let found = tokio::time::timeout(LOOKUP_TIMEOUT, looking)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        self.memory().remember(name, &found);
        Ok(found)
    }

    /// The names that were resolved to this address.
    pub(crate) fn names(&self, address: IpAddr) -> Vec<DomainName> {
        let memory = self.memory();
        let names = memory.by_address.get(&address).into_iter().flatten();
        names
            .filter(|(_, at)| at.elapsed() < LINK_TIMEOUT)
            .map(|(name, _)| name.clone())
            .collect()
    }

    fn fresh(&self, name: &DomainName) -> Option<Vec<IpAddr>> {
        let memory = self.memory();
        let answer = memory.answers.get(name)?;
        (answer.at.elapsed() < CACHE_TIMEOUT).then(|| answer.addresses.clone())
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn remember(&mut self, name: &DomainName, addresses: &[IpAddr]) {
        let at = Instant::now();
        let answer = Answer {
            addresses: addresses.to_vec(),
            at,
        };
        if self.answers.insert(name.clone(), answer).is_none() {
            self.names.push_back(name.clone());
        }
        if self.names.len() > MAX_NAMES
            && let Some(oldest) = self.names.pop_front()
        {
            self.answers.remove(&oldest);
        }
        for address in addresses {
            self.link(address.to_canonical(), name, at);
        }
    }

    fn link(&mut self, address: IpAddr, name: &DomainName, at: Instant) {
        let names = self.by_address.entry(address).or_default();
        if names.insert(name.clone(), at).is_none() {
            self.links.push_back((address, name.clone()));
        }
        if self.links.len() > MAX_LINKS
            && let Some((address, name)) = self.links.pop_front()
            && let Some(names) = self.by_address.get_mut(&address)
        {
            names.remove(&name);
            if names.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;
    use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

    fn name(text: &str) -> DomainName {
        match sbx_policy::Host::parse(text).unwrap() {
            sbx_policy::Host::Name(name) => name,
            other @ sbx_policy::Host::Ip(_) => panic!("{other}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_used_again_for_a_while_and_then_replaced() {
        let count = Arc::new(AtomicU8::new(0));
        let counted = Arc::clone(&count);
        let resolver = Resolver::new(Arc::new(move |_| {
            let n = counted.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move { Ok(vec![IpAddr::from([192, 0, 2, n])]) })
        }));
        let (one, first, second) = (name("one.test"), [192, 0, 2, 0], [192, 0, 2, 1]);
        for _ in 0..3 {
            let found = resolver.resolve(&one).await.unwrap();
            assert_eq!(found, [IpAddr::from(first)]);
        }
        assert_eq!(resolver.names(first.into()), from_ref(&one));
        tokio::time::advance(CACHE_TIMEOUT).await;
        let found = resolver.resolve(&one).await.unwrap();
        assert_eq!(found, [IpAddr::from(second)]);
        // A program may still use the first.
        assert_eq!(resolver.names(first.into()), from_ref(&one));
        assert_eq!(resolver.names(second.into()), from_ref(&one));
        tokio::time::advance(LINK_TIMEOUT).await;
        assert!(resolver.names(first.into()).is_empty());
    }

    /// What does not fit into the time of one look-up fails; what is known costs nothing.
    #[tokio::test(start_paused = true)]
    async fn look_ups_of_a_sandbox_have_a_rate() {
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let resolver = Resolver::new(Arc::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move { Ok(vec![IpAddr::from([192, 0, 2, 1])]) })
        }));
        let began = Instant::now();
        for n in 0..3 * MAX_BURST {
            let data = name(&format!("data{n}.wild.test"));
            resolver.resolve(&data).await.unwrap();
            resolver.resolve(&data).await.unwrap();
        }
        assert_eq!(count.load(Ordering::Relaxed), 3 * MAX_BURST);
        let least = Duration::from_secs(u64::from(2 * MAX_BURST / PER_SECOND - 1));
        assert!(began.elapsed() >= least, "{:?}", began.elapsed());
        // A second burst only after a pause.
        tokio::time::advance(Duration::from_secs(60)).await;
        let again = Instant::now();
        for n in 0..MAX_BURST {
            let more = name(&format!("more{n}.wild.test"));
            resolver.resolve(&more).await.unwrap();
        }
        assert!(again.elapsed() < Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_up_that_waits_too_long_for_its_turn_fails() {
        let resolver = Arc::new(Resolver::new(Arc::new(move |_| {
            Box::pin(async move { Ok(Vec::new()) })
        })));
        let mut asked = Vec::new();
        for n in 0..4 * MAX_BURST {
            let resolver = Arc::clone(&resolver);
            let data = name(&format!("data{n}.wild.test"));
            asked.push(tokio::spawn(async move { resolver.resolve(&data).await }));
        }
        let mut failed = 0;
        for one in asked {
            match one.await.unwrap() {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                    failed += 1;
                }
            }
        }
        let in_time = MAX_BURST + PER_SECOND * 10;
        assert!(
            (4 * MAX_BURST - failed).abs_diff(in_time) <= PER_SECOND,
            "{failed}"
        );
    }

    #[test]
    fn the_memory_has_an_end() {
        let mut memory = Memory::default();
        // Outside a runtime tokio's clock is the system's.
        for n in 0..MAX_LINKS + 10 {
            let ip = IpAddr::from([192, 0, (n >> 8) as u8, n as u8]);
            memory.remember(&name(&format!("h{n}.test")), &[ip]);
        }
        assert_eq!(memory.answers.len(), MAX_NAMES);
        assert_eq!(memory.names.len(), MAX_NAMES);
        assert_eq!(memory.by_address.len(), MAX_LINKS);
        assert_eq!(memory.links.len(), MAX_LINKS);
    }
}
