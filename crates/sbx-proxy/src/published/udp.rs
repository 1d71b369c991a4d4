//! A published UDP port: each client of it gets a socket inside, and answers go back to that client.
//!
//! UDP has no connections, so a client is its address and port, and lasts until [`IDLE_TIMEOUT`] has passed without a
//! datagram. The sockets inside are connected ones: the kernel then reports an ICMP port unreachable of the server as
//! ECONNREFUSED, which is how the next address is found to be the right one.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sbx_proto::exec::SocketKind;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Shared, Target};

/// Without a datagram either way for that long, a client is forgotten.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Datagrams that wait for one server; more are lost, as anywhere with UDP.
const QUEUE: usize = 128;
/// No datagram is larger.
const MAX_DATAGRAM: usize = 64 << 10;

/// Receives for ever. Its clients are forgotten with it.
pub(super) async fn serve(shared: Arc<Shared>, socket: UdpSocket, target: Target) {
    let socket = Arc::new(socket);
    let mut clients: BTreeMap<SocketAddr, mpsc::Sender<Vec<u8>>> = BTreeMap::new();
    let mut sessions = JoinSet::new();
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let (length, client) = tokio::select! {
            received = socket.recv_from(&mut buffer) => match received {
                Ok(received) => received,
                // That an earlier answer could not be delivered.
                Err(_) => continue,
            },
            Some(ended) = sessions.join_next() => {
                if let Ok(client) = ended {
                    clients.remove(&client);
                }
                continue;
            }
        };
        let datagram = buffer.get(..length).unwrap_or_default().to_vec();
        let datagram = match clients.get(&client).map(|queue| queue.try_send(datagram)) {
            Some(Ok(()) | Err(mpsc::error::TrySendError::Full(_))) => continue,
            Some(Err(mpsc::error::TrySendError::Closed(datagram))) => datagram,
            None => buffer.get(..length).unwrap_or_default().to_vec(),
        };
        let Some(mut slot) = shared.table.admit() else {
            continue;
        };
        slot.set_busy();
        let (queue, queued) = mpsc::channel(QUEUE);
        // The channel is new and has room.
        let _ = queue.try_send(datagram);
        clients.insert(client, queue);
        let (shared, socket) = (Arc::clone(&shared), Arc::clone(&socket));
        sessions.spawn(async move {
            if let Err(error) = session(&shared, &socket, client, target, queued).await {
                tracing::debug!(sandbox = shared.sandbox, port = target.port, %error, "no server");
            }
            drop(slot);
            client
        });
    }
}

/// One client, until it is silent for long enough.
async fn session(
    shared: &Shared,
    host: &UdpSocket,
    client: SocketAddr,
    target: Target,
    mut queued: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    let mut server = Server::new(shared, target).await?;
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let next = async {
            tokio::select! {
                datagram = queued.recv() => Next::ToServer(datagram),
                received = server.socket.recv(&mut buffer) => Next::ToClient(received),
            }
        };
        match tokio::time::timeout(IDLE_TIMEOUT, next).await {
            Err(_) | Ok(Next::ToServer(None)) => return Ok(()),
            Ok(Next::ToServer(Some(datagram))) => server.send(datagram).await?,
            Ok(Next::ToClient(Ok(length))) => {
                server.answered();
                let datagram = buffer.get(..length).unwrap_or_default();
                // The client may be gone.
                let _ = host.send_to(datagram, client).await;
            }
            Ok(Next::ToClient(Err(error))) if is_refusal(&error) => server.refused().await?,
            Ok(Next::ToClient(Err(error))) => return Err(error),
        }
    }
}

enum Next {
    ToServer(Option<Vec<u8>>),
    ToClient(io::Result<usize>),
}

/// The server behind a port, at the first address that does not refuse.
///
/// A datagram to an address without a server is answered by ICMP (port unreachable), which the kernel reports as
/// ECONNREFUSED at the next call. On a loopback that is at once: what was sent before without such an error has arrived.
struct Server<'a> {
    shared: &'a Shared,
    addresses: [SocketAddr; 4],
    at: usize,
    /// Addresses in a row that refused.
    refusals: usize,
    socket: UdpSocket,
    /// Sent last, or to be sent: it may have to go to the next address.
    unsettled: VecDeque<Vec<u8>>,
}

impl<'a> Server<'a> {
    async fn new(shared: &'a Shared, target: Target) -> io::Result<Self> {
        let addresses = target.addresses();
        let [first, ..] = addresses;
        Ok(Self {
            shared,
            addresses,
            at: 0,
            refusals: 0,
            socket: connect(shared, first).await?,
            unsettled: VecDeque::new(),
        })
    }

    async fn send(&mut self, datagram: Vec<u8>) -> io::Result<()> {
        let sent = self.socket.send(&datagram).await;
        match sent {
            Err(error) if is_refusal(&error) => {
                // About the one before; this one was not sent.
                self.unsettled.push_back(datagram);
                self.refused().await
            }
            // A datagram that cannot be sent is lost, as anywhere with UDP.
            Ok(_) | Err(_) => {
                self.unsettled.clear();
                self.unsettled.push_back(datagram);
                Ok(())
            }
        }
    }

    fn answered(&mut self) {
        self.unsettled.clear();
        self.refusals = 0;
    }

    /// Takes what is unsettled to the next address. Where all of them refuse it is lost, and the next datagram begins with the
    /// first one: the server may come yet.
    async fn refused(&mut self) -> io::Result<()> {
        loop {
            self.refusals += 1;
            let all = self.refusals >= self.addresses.len();
            self.at = if all { 0 } else { self.at + 1 } % self.addresses.len();
            if let Some(address) = self.addresses.get(self.at) {
                match connect(self.shared, *address).await {
                    Ok(socket) => self.socket = socket,
                    // A family that the sandbox does not have.
                    Err(_) if !all => continue,
                    Err(error) => return Err(error),
                }
            }
            if all {
                self.answered();
                return Ok(());
            }
            if self.resend().await {
                return Ok(());
            }
        }
    }

    /// False when the address refuses before everything is sent.
    async fn resend(&self) -> bool {
        for datagram in &self.unsettled {
            if let Err(error) = self.socket.send(datagram).await
                && is_refusal(&error)
            {
                return false;
            }
        }
        true
    }
}

fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

async fn connect(shared: &Shared, address: SocketAddr) -> io::Result<UdpSocket> {
    let kind = match address {
        SocketAddr::V4(_) => SocketKind::Udp4,
        SocketAddr::V6(_) => SocketKind::Udp6,
    };
    let socket = shared.pool.socket(kind).await?;
    let socket = UdpSocket::from_std(std::net::UdpSocket::from(socket))?;
    socket.connect(address).await?;
    Ok(socket)
}
