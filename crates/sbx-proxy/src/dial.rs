//! Connections to the world, to addresses that were judged.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(15);

type Dialling = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// Connects to one address.
pub type Dial = Arc<dyn Fn(SocketAddr) -> Dialling + Send + Sync>;

/// By the host's own routes.
pub fn system_dial() -> Dial {
    Arc::new(|address| Box::pin(TcpStream::connect(address)))
}

/// The first address that answers.
pub(crate) async fn dial_any(
    dial: &Dial,
    addresses: &[SocketAddr],
) -> io::Result<(TcpStream, SocketAddr)> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match tokio::time::timeout(PATIENCE, dial(*address)).await {
            Ok(Ok(stream)) => {
                tune(&stream);
                return Ok((stream, *address));
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

/// Small messages go at once, and a peer that is gone without a word is noticed.
pub(crate) fn tune(stream: &TcpStream) {
    let tuned = stream
        .set_nodelay(true)
        .and_then(|()| Ok(sockopt::set_socket_keepalive(stream, true)?))
        .and_then(|()| Ok(sockopt::set_tcp_keepidle(stream, Duration::from_secs(60))?))
        .and_then(|()| Ok(sockopt::set_tcp_keepintvl(stream, Duration::from_secs(15))?));
    if let Err(error) = tuned {
        tracing::debug!(%error, "cannot tune a connection");
    }
}

/// The sandbox is on this machine: no network lies between that could be congested, and the pacing that some
/// methods of the host bring along would only cost time.
pub(crate) fn tune_local(stream: &TcpStream) {
    tune(stream);
    // The one that every kernel has, and everybody may choose.
    if let Err(error) = sockopt::set_tcp_congestion(stream, "reno") {
        tracing::debug!(%error, "cannot tune a connection");
    }
}

/// When it is closed, the other side will see a refusal and not an end.
pub(crate) fn reset(stream: &TcpStream) {
    // Without it the client sees an ordinary end, which is no less closed.
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}
