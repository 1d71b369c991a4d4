//! A published UDP port: each client of it gets a socket inside, and answers go back to that client.

use std::collections::BTreeMap;
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
    let server = connect(shared, target).await?;
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let next = async {
            tokio::select! {
                datagram = queued.recv() => Next::ToServer(datagram),
                received = server.recv(&mut buffer) => Next::ToClient(received),
            }
        };
        match tokio::time::timeout(IDLE_TIMEOUT, next).await {
            Err(_) | Ok(Next::ToServer(None)) => return Ok(()),
            Ok(Next::ToServer(Some(datagram))) => {
                // ECONNREFUSED is about an earlier datagram: the server may come yet.
                let _ = server.send(&datagram).await;
            }
            Ok(Next::ToClient(Ok(length))) => {
                let datagram = buffer.get(..length).unwrap_or_default();
                // The client may be gone.
                let _ = host.send_to(datagram, client).await;
            }
            Ok(Next::ToClient(Err(error))) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Ok(Next::ToClient(Err(error))) => return Err(error),
        }
    }
}

enum Next {
    ToServer(Option<Vec<u8>>),
    ToClient(io::Result<usize>),
}

async fn connect(shared: &Shared, target: Target) -> io::Result<UdpSocket> {
    let [first, ..] = target.addresses();
    let kind = match first {
        SocketAddr::V4(_) => SocketKind::Udp4,
        SocketAddr::V6(_) => SocketKind::Udp6,
    };
    let socket = shared.pool.socket(kind).await?;
    let socket = UdpSocket::from_std(std::net::UdpSocket::from(socket))?;
    socket.connect(first).await?;
    Ok(socket)
}
