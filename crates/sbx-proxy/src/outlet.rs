//! The way out of one sandbox: its sockets, served by a thread of its own.
//!
//! A thread per sandbox, each with one event loop: the kernel shares the processor between them, so that
//! whatever one sandbox does, the others get their part.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use sbx_policy::Policy;
use sbx_proto::net::{GATEWAY_V4, HOST_V4, PROXY_PORT};
use sbx_sys::redirected::original_dst;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::audit::{Audit, Entrance, Via};
use crate::ca::Authority;
use crate::conn::Conn;
use crate::dial::{Dial, reset, tune};
use crate::gate::Gate;
use crate::limits::{Crowd, Place};
use crate::resolver::Lookup;
use crate::{dns, forward, journey, transparent};

/// The host's resolver may block; so many at once are enough.
const RESOLVER_THREADS: usize = 4;
const STACK: usize = 512 << 10;
/// After a failed accept (no descriptors): what is open has to end first.
const BREATH: Duration = Duration::from_millis(50);

/// What the thread of a sandbox works with.
pub struct Settings {
    pub sandbox: String,
    /// Where the lines of all sandboxes are.
    pub log_dir: PathBuf,
    pub authority: Authority,
    pub lookup: Lookup,
    pub dial: Dial,
    pub max_connections: usize,
}

/// Listening sockets in the network namespace of the sandbox.
#[derive(Debug, Default)]
pub struct Sockets {
    pub tcp: Vec<OwnedFd>,
    pub dns_udp: Vec<OwnedFd>,
    pub dns_tcp: Vec<OwnedFd>,
}

/// Ends with the sandbox: dropping it closes everything.
pub struct Outlet {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Outlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").finish_non_exhaustive()
    }
}

pub(crate) struct Shared {
    pub(crate) gate: Arc<Gate>,
    pub(crate) audit: Audit,
    pub(crate) authority: Authority,
    pub(crate) dial: Dial,
    crowd: Arc<Crowd>,
}

impl Outlet {
    pub fn start(
        settings: Settings,
        policy: watch::Receiver<Arc<Policy>>,
        sockets: Sockets,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            gate: Arc::new(Gate::new(policy, settings.lookup)),
            audit: Audit::new(&settings.log_dir, &settings.sandbox),
            authority: settings.authority,
            dial: settings.dial,
            crowd: Arc::new(Crowd::new(settings.max_connections)),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(RESOLVER_THREADS)
            .thread_keep_alive(Duration::from_secs(2))
            .thread_stack_size(STACK)
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
            .spawn(move || {
                runtime.block_on(serve(&served, sockets, stopped));
                // A look-up that hangs is not waited for.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
            shared,
        })
    }

    /// The same judgement that connections get.
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.shared.gate)
    }
}

impl Drop for Outlet {
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
        loops.spawn(accept(Arc::clone(shared), listener, Kind::World));
    }
    for listener in listeners.dns_tcp {
        loops.spawn(accept(Arc::clone(shared), listener, Kind::Dns));
    }
    for socket in listeners.dns_udp {
        loops.spawn(dns::serve_udp(Arc::clone(shared), socket));
    }
    // Whichever comes first: the sandbox is gone, or (never, while its sockets work) all loops have ended.
    tokio::select! {
        _ = stopped => {}
        () = async { while loops.join_next().await.is_some() {} } => {}
    }
}

#[derive(Clone, Copy)]
enum Kind {
    World,
    Dns,
}

async fn accept(shared: Arc<Shared>, listener: TcpListener, kind: Kind) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => admit(&shared, stream, kind),
            Err(error) => {
                tracing::warn!(sandbox = shared.audit.sandbox(), %error, "cannot accept a connection");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

fn admit(shared: &Arc<Shared>, stream: TcpStream, kind: Kind) {
    let Some(place) = shared.crowd.admit() else {
        let reason = "too many connections";
        journey::record_nonsense(
            &shared.audit,
            Entrance::Transparent,
            Via::Network,
            "",
            None,
            reason,
        );
        reset(&stream);
        return;
    };
    let id = place.id();
    let task = match kind {
        Kind::World => tokio::spawn(connection(Arc::clone(shared), stream, place)).abort_handle(),
        Kind::Dns => tokio::spawn(dns::serve_tcp(Arc::clone(shared), stream, place)).abort_handle(),
    };
    shared.crowd.served_by(id, task);
}

/// By the address that the program dialled: the proxy itself, or the world.
async fn connection(shared: Arc<Shared>, stream: TcpStream, place: Place) {
    tune(&stream);
    let dialled = match original_dst(&stream) {
        Ok(dialled) => SocketAddr::new(dialled.ip().to_canonical(), dialled.port()),
        Err(error) => {
            tracing::warn!(sandbox = shared.audit.sandbox(), %error, "a connection to nowhere");
            return;
        }
    };
    let conn = Conn::new(stream);
    if is_proxy(dialled) {
        forward::serve(&shared, conn, place).await;
    } else {
        transparent::serve(&shared, conn, dialled, place).await;
    }
}

fn is_proxy(dialled: SocketAddr) -> bool {
    let own = [IpAddr::V4(GATEWAY_V4), IpAddr::V4(HOST_V4)];
    dialled.port() == PROXY_PORT && own.contains(&dialled.ip())
}
