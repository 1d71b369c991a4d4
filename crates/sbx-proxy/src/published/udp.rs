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

use rustix::net::{RecvFlags, recv};
use sbx_proto::exec::SocketKind;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Shared, Target};
use crate::limits::Slot;
use crate::transport::with_scratch;

/// Without a datagram either way for that long, a client is forgotten.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// A server that is not there refuses at once. A datagram that it did not refuse for that long has arrived.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Datagrams that wait for one server; more are lost, as anywhere with UDP.
const QUEUE: usize = 128;
/// Bytes that a port keeps of all its clients: who floods it decides how many those are.
const MAX_KEPT: usize = 16 << 20;
/// No datagram is larger.
const MAX_DATAGRAM: usize = 64 << 10;

/// A datagram, or that the address refuses.
const ANSWER: Interest = Interest::READABLE.add(Interest::ERROR);

/// Of a client, on its way.
struct Datagram {
    bytes: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

impl Datagram {
    /// None where too much is kept already.
    fn new(bytes: &[u8], room: &Arc<Semaphore>) -> Option<Self> {
        let size = u32::try_from(bytes.len().max(1)).ok()?;
        let room = Arc::clone(room).try_acquire_many_owned(size).ok()?;
        Some(Self {
            bytes: bytes.to_vec(),
            _room: room,
        })
    }
}

/// Receives for ever. Its clients are forgotten with it.
pub(super) async fn serve(shared: Arc<Shared>, socket: UdpSocket, target: Target) {
    let socket = Arc::new(socket);
    let room = Arc::new(Semaphore::new(MAX_KEPT));
    let mut clients: BTreeMap<SocketAddr, mpsc::Sender<Datagram>> = BTreeMap::new();
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
                forget(&mut clients, ended.ok(), sessions.len());
                continue;
            }
        };
        let bytes = buffer.get(..length).unwrap_or_default();
        let Some(datagram) = Datagram::new(bytes, &room) else {
            continue;
        };
        if let Some(queue) = clients.get(&client).filter(|queue| !queue.is_closed()) {
            // Full: it is lost.
            let _ = queue.try_send(datagram);
            continue;
        }
        // A new client takes the place of the one that was silent for longest: a flood of made-up ones keeps no real one out.
        let Some(slot) = shared.table.admit() else {
            continue;
        };
        let (queue, queued) = mpsc::channel(QUEUE);
        // The channel is new and has room.
        let _ = queue.try_send(datagram);
        clients.insert(client, queue);
        let id = slot.id();
        let (serving, socket) = (Arc::clone(&shared), Arc::clone(&socket));
        let task = sessions.spawn(async move {
            if let Err(error) = session(&serving, &socket, client, target, queued, slot).await {
                tracing::debug!(sandbox = serving.sandbox, port = target.port, %error, "no server");
            }
            client
        });
        shared.table.set_task(id, task);
    }
}

/// Takes out a client whose session has ended, if it has no other by now. Of one that had to make room nothing is known:
/// when there are many of these, all are looked for.
fn forget(
    clients: &mut BTreeMap<SocketAddr, mpsc::Sender<Datagram>>,
    ended: Option<SocketAddr>,
    sessions: usize,
) {
    if let Some(client) = ended
        && clients.get(&client).is_some_and(mpsc::Sender::is_closed)
    {
        clients.remove(&client);
    }
    if clients.len() > 2 * sessions + QUEUE {
        clients.retain(|_, queue| !queue.is_closed());
    }
}

/// One client, until it is silent for long enough.
async fn session(
    shared: &Shared,
    host: &UdpSocket,
    client: SocketAddr,
    target: Target,
    mut queued: mpsc::Receiver<Datagram>,
    mut slot: Slot,
) -> io::Result<()> {
    let mut server = Server::new(shared, target).await?;
    let mut active = Instant::now();
    loop {
        let next = async {
            tokio::select! {
                datagram = queued.recv() => Next::ToServer(datagram),
                passed = server.pass_on(host, client) => Next::ToClient(passed),
            }
        };
        let timeout = match server.unsettled.is_empty() {
            true => IDLE_TIMEOUT.saturating_sub(active.elapsed()),
            false => SETTLE_TIMEOUT,
        };
        match tokio::time::timeout(timeout, next).await {
            Err(_) if !server.unsettled.is_empty() => {
                server.unsettled.clear();
                continue;
            }
            Err(_) | Ok(Next::ToServer(None)) => return Ok(()),
            Ok(Next::ToServer(Some(datagram))) => {
                // Behind all others that could make room.
                slot.set_busy();
                slot.set_waiting();
                server.send(datagram).await?;
            }
            Ok(Next::ToClient(Ok(left))) => {
                server.answered();
                if let Some(answer) = left {
                    // The client may be gone.
                    let _ = host.send_to(&answer, client).await;
                }
            }
            Ok(Next::ToClient(Err(error))) if is_refusal(&error) => server.refused().await?,
            Ok(Next::ToClient(Err(error))) => return Err(error),
        }
        active = Instant::now();
    }
}

enum Next {
    ToServer(Option<Datagram>),
    /// What could not be sent at once.
    ToClient(io::Result<Option<Vec<u8>>>),
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
    unsettled: VecDeque<Datagram>,
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

    /// An answer to the client, which is returned where it cannot be sent at once. No session has memory for an answer that has
    /// not come.
    async fn pass_on(&self, host: &UdpSocket, client: SocketAddr) -> io::Result<Option<Vec<u8>>> {
        let once = || {
            with_scratch(|scratch| {
                let (length, _) = recv(&self.socket, &mut *scratch, RecvFlags::empty())?;
                let answer = scratch.get(..length).unwrap_or_default();
                let sent = host.try_send_to(answer, client);
                let waits = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
                // Any other error: the client may be gone.
                Ok(sent
                    .is_err_and(|error| waits(&error))
                    .then(|| answer.to_vec()))
            })
        };
        self.socket.async_io(ANSWER, once).await
    }

    async fn send(&mut self, datagram: Datagram) -> io::Result<()> {
        let sent = self.socket.send(&datagram.bytes).await;
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
            if let Err(error) = self.socket.send(&datagram.bytes).await
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
