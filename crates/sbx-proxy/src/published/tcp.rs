//! A published TCP port.
//!
//! A connection is accepted only when the sandbox may have one more: until then it waits in the kernel's backlog. The
//! server is then dialled at each address where it may listen. If none takes the connection, the client is reset (RST),
//! as it would be by a closed port; an orderly end (FIN) would look like an empty answer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sbx_proto::exec::SocketKind;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::{RETRY_DELAY, Shared, Target};
use crate::dial::tune_local;
use crate::limits::Slot;
use crate::relay::{Counters, relay};
use crate::transport::Transport;

/// For a server whose backlog is full; one that is not there answers at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Accepts for ever. Its connections end with it.
pub(super) async fn serve(shared: Arc<Shared>, listener: TcpListener, target: Target) {
    let mut connections = JoinSet::new();
    loop {
        // First the slot: connections that cannot be served yet wait in the backlog.
        let slot = slot(&shared).await;
        let accepted = loop {
            tokio::select! {
                accepted = listener.accept() => break accepted,
                Some(_) = connections.join_next() => {}
            }
        };
        match accepted {
            Ok((client, _)) => {
                connections.spawn(connection(Arc::clone(&shared), client, target, slot));
            }
            Err(error) => {
                tracing::debug!(sandbox = shared.sandbox, %error, "cannot accept a connection");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

async fn slot(shared: &Shared) -> Slot {
    loop {
        if let Some(mut slot) = shared.table.admit() {
            slot.set_busy();
            return slot;
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn connection(shared: Arc<Shared>, client: TcpStream, target: Target, _slot: Slot) {
    let dialled = tokio::select! {
        dialled = dial(&shared, target) => dialled,
        // A client that has gone does not keep its slot for as long as a server takes to answer.
        () = client.broken() => return,
    };
    let server = match dialled {
        Ok(server) => server,
        Err(error) => {
            tracing::debug!(sandbox = shared.sandbox, port = target.port, %error, "no server");
            return client.reset();
        }
    };
    for stream in [&client, &server] {
        tune_local(stream);
    }
    if relay(&client, &server, &Counters::default()).await.is_err() {
        // What was cut short must not look like a regular end.
        client.reset();
        server.reset();
    }
}

/// The server, on the first address that it listens on.
async fn dial(shared: &Shared, target: Target) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::ConnectionRefused);
    for address in target.addresses() {
        match connect(shared, address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn connect(shared: &Shared, address: SocketAddr) -> io::Result<TcpStream> {
    let kind = match address {
        SocketAddr::V4(_) => SocketKind::Tcp4,
        SocketAddr::V6(_) => SocketKind::Tcp6,
    };
    let socket = shared.pool.socket(kind).await?;
    let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
    tokio::time::timeout(CONNECT_TIMEOUT, socket.connect(address))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}
