//! The way out of one sandbox: its sockets, served by a thread of its own.
//!
//! A thread per sandbox, each with one event loop: the kernel shares the processor between them, so that
//! whatever one sandbox does, the others get their part.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use sbx_policy::{Host, Policy};
use sbx_proto::net::{GATEWAY_V4, HOST_V4, PROXY_PORT, SANDBOX_V4, SANDBOX_V6};
use sbx_sys::original_dst::original_dst;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::audit::{Audit, Entrance, Via};
use crate::ca::Authority;
use crate::conn::Conn;
use crate::dial::{Dial, Dialer, tune_local};
use crate::gate::{Gate, LocalAddressSource, RuleTime};
use crate::limits::{ConnectionBudget, ConnectionTable, Slot};
use crate::record::record_malformed;
use crate::resolver::Lookup;
use crate::transport::Transport;
use crate::{dns, forward, transparent};

const STACK: usize = 512 << 10;
/// From the connection to the first byte.
pub(crate) const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(30);
/// After a failed accept (no descriptors): what is open has to end first.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Between two lines about it in the daemon's log.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// For open connections to be cut at the end, which takes a moment.
const CUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether the TLS of a host is left alone.
pub type Bypass = Arc<dyn Fn(&Host) -> bool + Send + Sync>;

/// What the thread of a sandbox works with.
pub struct Settings {
    pub sandbox: String,
    /// Where the lines of all sandboxes are.
    pub log_dir: PathBuf,
    pub authority: Authority,
    pub local_addresses: LocalAddressSource,
    pub lookup: Lookup,
    pub rule_time: RuleTime,
    pub dial: Dial,
    pub max_connections: usize,
    /// With those of all other sandboxes.
    pub budget: Arc<ConnectionBudget>,
    /// Hosts whose TLS is never opened, not even to say why they are denied.
    pub bypass: Bypass,
}

/// Listening sockets in the network namespace of the sandbox.
#[derive(Debug, Default)]
pub struct Sockets {
    pub tcp: Vec<OwnedFd>,
    pub dns_udp: Vec<OwnedFd>,
    pub dns_tcp: Vec<OwnedFd>,
}

/// Ends with the sandbox: dropping it closes everything. Who drops the sender of its rules first has open connections
/// broken off, so that no peer takes it for the regular end of a message.
pub struct Proxy {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").finish_non_exhaustive()
    }
}

pub(crate) struct Shared {
    pub(crate) gate: Arc<Gate>,
    pub(crate) audit: Audit,
    pub(crate) authority: Authority,
    pub(crate) dialer: Dialer,
    pub(crate) bypass: Bypass,
    table: Arc<ConnectionTable>,
}

impl Shared {
    pub(crate) fn new(settings: Settings, policy: watch::Receiver<Policy>) -> Self {
        Self {
            gate: Arc::new(Gate::new(
                policy,
                settings.local_addresses,
                settings.lookup,
                settings.rule_time,
            )),
            audit: Audit::new(&settings.log_dir, &settings.sandbox),
            authority: settings.authority,
            dialer: Dialer::new(settings.dial, Arc::clone(&settings.budget)),
            bypass: settings.bypass,
            table: Arc::new(ConnectionTable::new(
                settings.max_connections,
                settings.budget,
            )),
        }
    }
}

impl Proxy {
    pub fn start(
        settings: Settings,
        policy: watch::Receiver<Policy>,
        sockets: Sockets,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(settings, policy));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let sockets = {
            let _entered = runtime.enter();
            Listeners::open(sockets)?
        };
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("egress".into())
            .stack_size(STACK)
            .spawn(move || runtime.block_on(serve(&served, sockets, stopped)))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
            shared,
        })
    }

    /// The same check that connections get.
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.shared.gate)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a sandbox's way out failed");
        }
    }
}

struct Listeners {
    tcp: Vec<TcpListener>,
    dns_tcp: Vec<TcpListener>,
    dns_udp: Vec<UdpSocket>,
}

impl Listeners {
    fn open(sockets: Sockets) -> io::Result<Self> {
        let tcp = |fds: Vec<OwnedFd>| -> io::Result<Vec<TcpListener>> {
            fds.into_iter()
                .map(|fd| TcpListener::from_std(std::net::TcpListener::from(fd)))
                .collect()
        };
        Ok(Self {
            tcp: tcp(sockets.tcp)?,
            dns_tcp: tcp(sockets.dns_tcp)?,
            dns_udp: sockets
                .dns_udp
                .into_iter()
                .map(|fd| UdpSocket::from_std(std::net::UdpSocket::from(fd)))
                .collect::<io::Result<_>>()?,
        })
    }
}

async fn serve(shared: &Arc<Shared>, listeners: Listeners, stopped: oneshot::Receiver<()>) {
    let mut loops = JoinSet::new();
    for listener in listeners.tcp {
        loops.spawn(accept(Arc::clone(shared), listener, Listening::World));
    }
    for listener in listeners.dns_tcp {
        loops.spawn(accept(Arc::clone(shared), listener, Listening::Dns));
    }
    for socket in listeners.dns_udp {
        loops.spawn(dns::serve_udp(Arc::clone(shared), socket));
    }
    // Whichever comes first: the sandbox is gone, or (never, while its sockets work) all loops have ended.
    tokio::select! {
        _ = stopped => {}
        () = async { while loops.join_next().await.is_some() {} } => {}
    }
    drop(loops);
    if (tokio::time::timeout(CUT_TIMEOUT, shared.gate.active_sessions().none()).await).is_err() {
        tracing::warn!(
            sandbox = shared.audit.sandbox(),
            "connections are closed and not cut"
        );
    }
}

#[derive(Clone, Copy)]
enum Listening {
    World,
    Dns,
}

/// A warning that could repeat without end and is logged once per [`WARNING_INTERVAL`].
#[derive(Default)]
struct RepeatedWarning {
    logged: Option<Instant>,
    times: u64,
}

impl RepeatedWarning {
    /// How often it has happened since it was logged last, when it is time to log it again.
    fn again(&mut self, now: Instant) -> Option<u64> {
        self.times += 1;
        let due = (self.logged).is_none_or(|logged| now.duration_since(logged) >= WARNING_INTERVAL);
        due.then(|| {
            self.logged = Some(now);
            std::mem::take(&mut self.times)
        })
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener, kind: Listening) {
    let mut warning = RepeatedWarning::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match kind {
                Listening::World => drop(admit(&shared, stream, connection)),
                Listening::Dns => drop(admit(&shared, stream, dns::serve_tcp)),
            },
            Err(error) if is_passing(&error) => {
                if let Some(times) = warning.again(Instant::now()) {
                    tracing::warn!(sandbox = shared.audit.sandbox(), %error, times, "cannot accept a connection");
                }
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
            Err(error) => {
                // Root inside can destroy the sockets of its own network; nothing gets out by that.
                tracing::error!(sandbox = shared.audit.sandbox(), %error, "a listener is gone until the next start");
                return;
            }
        }
    }
}

/// Whether it may work again later.
fn is_passing(error: &io::Error) -> bool {
    let passing = [
        Errno::CONNABORTED,
        Errno::INTR,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        // Of the watches for events that a user may have, which a sandbox of the same user can use up.
        Errno::NOSPC,
        Errno::PERM,
        Errno::PROTO,
    ];
    Errno::from_io_error(error).is_some_and(|errno| passing.contains(&errno))
}

/// Serves it as soon as there is a place for it.
pub(crate) fn admit<T, F>(
    shared: &Arc<Shared>,
    stream: T,
    serve: impl FnOnce(Arc<Shared>, T, Slot) -> F,
) -> Option<JoinHandle<()>>
where
    T: Transport,
    F: Future<Output = ()> + Send + 'static,
{
    let Some(slot) = shared.table.admit() else {
        let reason = "too many connections";
        record_malformed(
            &shared.audit,
            Entrance::Transparent,
            Via::Network,
            "",
            None,
            reason,
        );
        stream.reset();
        return None;
    };
    let id = slot.id();
    let task = tokio::spawn(serve(Arc::clone(shared), stream, slot));
    shared.table.set_task(id, task.abort_handle());
    Some(task)
}

async fn connection(shared: Arc<Shared>, stream: TcpStream, slot: Slot) {
    match original_dst(&stream) {
        // Root inside dialled the listener itself: whatever its own address means outside is not what it meant.
        Ok(dialled) if is_own(dialled.ip()) => {
            let (host, port) = (dialled.ip().to_string(), Some(dialled.port()));
            let (entrance, via) = (Entrance::Transparent, Via::Network);
            let reason = "an address of the sandbox itself";
            record_malformed(&shared.audit, entrance, via, &host, port, reason);
            stream.reset();
        }
        Ok(dialled) => {
            tune_local(&stream);
            route(shared, Conn::new(stream), dialled, slot).await;
        }
        Err(error) => {
            tracing::warn!(sandbox = shared.audit.sandbox(), %error, "a connection to nowhere");
        }
    }
}

/// By the address that the program dialled: the proxy itself, or the world.
pub(crate) async fn route(shared: Arc<Shared>, conn: Conn, dialled: SocketAddr, slot: Slot) {
    let dialled = SocketAddr::new(dialled.ip().to_canonical(), dialled.port());
    if is_proxy(dialled) {
        forward::serve(&shared, conn, slot).await;
    } else {
        transparent::serve(&shared, conn, dialled, slot).await;
    }
}

fn is_own(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || ip == IpAddr::V4(SANDBOX_V4) || ip == IpAddr::V6(SANDBOX_V6)
}

fn is_proxy(dialled: SocketAddr) -> bool {
    let own = [IpAddr::V4(GATEWAY_V4), IpAddr::V4(HOST_V4)];
    dialled.port() == PROXY_PORT && own.contains(&dialled.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_warning_is_logged_once_per_interval() {
        let mut warning = RepeatedWarning::default();
        let start = Instant::now();
        assert_eq!(warning.again(start), Some(1));
        for n in 1..60 {
            assert_eq!(warning.again(start + Duration::from_secs(n)), None);
        }
        assert_eq!(warning.again(start + WARNING_INTERVAL), Some(60));
        assert_eq!(warning.again(start + WARNING_INTERVAL), None);
    }
}
