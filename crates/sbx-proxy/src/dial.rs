//! Connections to origins, at addresses that the gate has checked.
//!
//! A name with several addresses is dialled as RFC 8305 ("Happy Eyeballs Version 2") says: address families take
//! turns, the next attempt starts when the one before it has failed or after 250 ms, and the first connection that is
//! established wins. The other attempts are dropped, which closes their sockets. Attempts beyond the first use
//! descriptors that no connection was counted for, so there is a limit to them: see [`ConnectionBudget::race`].

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use crate::limits::{ConnectionBudget, RacePermit};
use crate::transport::Transport;

/// For one attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// The Connection Attempt Delay that RFC 8305, section 5, recommends.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Attempts of one connection at the same time.
const MAX_ATTEMPTS: usize = 8;

type Dialling = Pin<Box<dyn Future<Output = io::Result<Box<dyn Transport>>> + Send>>;

/// Connects to one address.
pub type Dial = Arc<dyn Fn(SocketAddr) -> Dialling + Send + Sync>;

/// By the host's own routes.
pub fn system_dial() -> Dial {
    Arc::new(|address| Box::pin(dial_tcp(address)))
}

pub(crate) async fn dial_tcp(address: SocketAddr) -> io::Result<Box<dyn Transport>> {
    let stream = TcpStream::connect(address).await?;
    tune(&stream);
    Ok(Box::new(stream))
}

pub(crate) struct Dialer {
    dial: Dial,
    budget: Arc<ConnectionBudget>,
}

/// A connection to an origin, and where it leads.
pub(crate) type Dialled = (Box<dyn Transport>, SocketAddr);

type Attempt = Pin<Box<dyn Future<Output = (SocketAddr, io::Result<Box<dyn Transport>>)> + Send>>;

impl Dialer {
    pub(crate) fn new(dial: Dial, budget: Arc<ConnectionBudget>) -> Self {
        Self { dial, budget }
    }

    /// The first of these addresses that answers.
    pub(crate) async fn connect(&self, addresses: &[SocketAddr]) -> io::Result<Dialled> {
        let mut waiting = interleave(addresses).into_iter().peekable();
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let mut next_at = Instant::now();
        loop {
            let due = attempts.len() < MAX_ATTEMPTS && Instant::now() >= next_at;
            // The first attempt uses the descriptor that was counted with the connection itself.
            let permit = match attempts.is_empty() {
                true => None,
                false if due => self.budget.race(),
                false => None,
            };
            if (attempts.is_empty() || permit.is_some())
                && let Some(address) = waiting.next()
            {
                attempts.push(self.attempt(address, permit));
            }
            // Every address was tried and has failed.
            if attempts.is_empty() {
                return Err(last_error);
            }
            if due {
                // Also without a permit: then it is worth another try later.
                next_at = Instant::now() + ATTEMPT_DELAY;
            }
            let more = waiting.peek().is_some() && attempts.len() < MAX_ATTEMPTS;
            tokio::select! {
                biased;
                (address, ended) = first_to_end(&mut attempts) => match ended {
                    Ok(transport) => return Ok((transport, address)),
                    Err(error) => {
                        // RFC 8305, section 5: a failed attempt starts the next one without the delay.
                        last_error = error;
                        next_at = Instant::now();
                    }
                },
                () = sleep_until(next_at), if more => {}
            }
        }
    }

    fn attempt(&self, address: SocketAddr, permit: Option<RacePermit>) -> Attempt {
        let dialling = (self.dial)(address);
        Box::pin(async move {
            let ended = timeout(CONNECT_TIMEOUT, dialling).await;
            // The attempt has ended: its socket is closed, or counted with the connection.
            drop(permit);
            let timed_out = |_| Err(io::ErrorKind::TimedOut.into());
            (address, ended.unwrap_or_else(timed_out))
        })
    }
}

/// The result of the attempt that ends first, which is removed.
async fn first_to_end(attempts: &mut Vec<Attempt>) -> (SocketAddr, io::Result<Box<dyn Transport>>) {
    poll_fn(|cx| {
        // The loop ends with the first removal, so `swap_remove` skips none. Those not polled then are polled by the next call.
        for at in 0..attempts.len() {
            if let Some(attempt) = attempts.get_mut(at)
                && let Poll::Ready(ended) = attempt.as_mut().poll(cx)
            {
                drop(attempts.swap_remove(at));
                return Poll::Ready(ended);
            }
        }
        Poll::Pending
    })
    .await
}

/// In turns, beginning with the family of the first address (RFC 8305, section 4). Within a family the order of the
/// host's resolver stays, which sorts by RFC 6724.
fn interleave(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let Some(first) = addresses.first() else {
        return Vec::new();
    };
    let (one, other): (Vec<_>, Vec<_>) = addresses
        .iter()
        .copied()
        .partition(|address| address.is_ipv4() == first.is_ipv4());
    let mut order = Vec::with_capacity(addresses.len());
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    loop {
        let turn = [one.next(), other.next()];
        if turn == [None, None] {
            return order;
        }
        order.extend(turn.into_iter().flatten());
    }
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
/// congestion control algorithms of the host bring along would only cost time.
pub(crate) fn tune_local(stream: &TcpStream) {
    tune(stream);
    // Every kernel has this one, and it needs no capability.
    if let Err(error) = sockopt::set_tcp_congestion(stream, "reno") {
        tracing::debug!(%error, "cannot tune a connection");
    }
}

#[cfg(test)]
mod tests;
