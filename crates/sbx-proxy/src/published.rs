//! The way in: ports of the host that lead to servers in one sandbox.
//!
//! A thread per sandbox, as for the way out. A connection is accepted on the host and relayed to a socket of the sandbox's
//! own network ([`Inside`]), so that a server is reached that listens on the sandbox's loopback alone. A server that is not
//! there at the moment costs its client a reset, as a closed port would; the next connection finds it when it is back.

mod pool;
mod tcp;
mod udp;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use sbx_proto::exec::SocketKind;
use sbx_proto::net::{SANDBOX_V4, SANDBOX_V6};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::limits::{ConnectionBudget, ConnectionTable};
use pool::Pool;

const STACK: usize = 512 << 10;
/// After a failed accept, or when the sandbox has all connections that it may have: what is open has to end first.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Gives sockets of a sandbox's network.
pub trait Inside: Send + Sync {
    fn sockets(&self, kind: SocketKind, count: u8) -> io::Result<Vec<OwnedFd>>;
}

/// A bound socket on the host, non-blocking.
#[derive(Debug)]
pub enum HostSocket {
    Tcp(std::net::TcpListener),
    Udp(std::net::UdpSocket),
}

/// The server that a port leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    pub port: u16,
    /// Which family is tried first.
    pub prefer_v6: bool,
}

impl Target {
    /// Where a server may listen: on the loopback, on the sandbox's own address, or on all of them.
    fn addresses(self) -> [SocketAddr; 4] {
        let mut addresses = [
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
            IpAddr::V4(SANDBOX_V4),
            IpAddr::V6(SANDBOX_V6),
        ];
        if self.prefer_v6 {
            addresses.sort_by_key(IpAddr::is_ipv4);
        }
        addresses.map(|ip| SocketAddr::new(ip, self.port))
    }
}

/// The published ports of one sandbox. Dropping it closes them and cuts their connections.
pub struct Published<K> {
    orders: Option<mpsc::UnboundedSender<Order<K>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

enum Order<K> {
    Open(K, HostSocket, Target),
    /// Answered when they are closed.
    Close(Vec<K>, oneshot::Sender<()>),
}

impl<K> fmt::Debug for Published<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").finish_non_exhaustive()
    }
}

/// What every port of a sandbox works with.
struct Shared {
    sandbox: String,
    table: Arc<ConnectionTable>,
    pool: Pool,
}

impl<K: Ord + Send + 'static> Published<K> {
    pub fn start(
        sandbox: &str,
        inside: Arc<dyn Inside>,
        max_connections: usize,
        budget: Arc<ConnectionBudget>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            sandbox: sandbox.to_owned(),
            table: Arc::new(ConnectionTable::new(max_connections, budget)),
            pool: Pool::new(inside),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (orders, received) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new()
            .name("ingress".into())
            .stack_size(STACK)
            .spawn(move || {
                runtime.block_on(serve(&shared, received));
                // A question to init that hangs is not waited for.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    pub fn open(&self, key: K, socket: HostSocket, target: Target) {
        self.order(Order::Open(key, socket, target));
    }

    /// Closed when this returns, their connections included.
    pub fn close(&self, keys: Vec<K>) {
        let (done, closed) = oneshot::channel();
        self.order(Order::Close(keys, done));
        // An error: the thread is gone, and everything is closed.
        let _ = closed.blocking_recv();
    }

    fn order(&self, order: Order<K>) {
        // An error: the thread is gone, and everything is closed.
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }
}

impl<K> Drop for Published<K> {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a sandbox's published ports failed");
        }
    }
}

/// Until no more orders can come.
async fn serve<K: Ord>(shared: &Arc<Shared>, mut orders: mpsc::UnboundedReceiver<Order<K>>) {
    // A set each: to drop one cuts its connections.
    let mut ports: BTreeMap<K, JoinSet<()>> = BTreeMap::new();
    while let Some(order) = orders.recv().await {
        match order {
            Order::Open(key, socket, target) => {
                let mut tasks = JoinSet::new();
                match listen(shared, socket, target) {
                    Ok(serving) => {
                        tasks.spawn(serving);
                        ports.insert(key, tasks);
                    }
                    Err(error) => {
                        tracing::error!(sandbox = shared.sandbox, %error, "cannot serve a port");
                    }
                }
            }
            Order::Close(keys, done) => {
                for key in keys {
                    if let Some(mut tasks) = ports.remove(&key) {
                        tasks.shutdown().await;
                    }
                }
                let _ = done.send(());
            }
        }
    }
}

fn listen(
    shared: &Arc<Shared>,
    socket: HostSocket,
    target: Target,
) -> io::Result<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> {
    let shared = Arc::clone(shared);
    Ok(match socket {
        HostSocket::Tcp(socket) => {
            let listener = tokio::net::TcpListener::from_std(socket)?;
            Box::pin(tcp::serve(shared, listener, target))
        }
        HostSocket::Udp(socket) => {
            let socket = tokio::net::UdpSocket::from_std(socket)?;
            Box::pin(udp::serve(shared, socket, target))
        }
    })
}

#[cfg(test)]
mod tests;
