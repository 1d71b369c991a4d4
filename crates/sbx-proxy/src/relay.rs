//! Bytes both ways between two transports, unchanged, without memory of its own while nothing moves.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use crate::transport::{Transport, shutdown, with_scratch, write_all};

/// Bytes so far, as seen from the sandbox.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Counters {
    pub(crate) fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// Until both sides have said everything, or one of them breaks.
pub(crate) async fn relay(
    client: &dyn Transport,
    upstream: &dyn Transport,
    counters: &Counters,
) -> io::Result<()> {
    both(
        pump(client, upstream, |bytes| counters.add_sent(bytes)),
        pump(upstream, client, |bytes| counters.add_received(bytes)),
    )
    .await
}

/// Which end of a direction gave up.
#[derive(Debug)]
pub(crate) enum Broken {
    From(io::Error),
    To(io::Error),
}

/// Both directions. A side that takes no more may still have said something: the other direction goes on until it
/// ends by itself. A side that breaks while it speaks ends everything.
pub(crate) async fn both(
    one: impl Future<Output = Result<(), Broken>>,
    other: impl Future<Output = Result<(), Broken>>,
) -> io::Result<()> {
    let (one, other) =
        tokio::try_join!(async { settle(one.await) }, async { settle(other.await) })?;
    one.and(other)
}

fn settle(ended: Result<(), Broken>) -> io::Result<io::Result<()>> {
    match ended {
        Ok(()) => Ok(Ok(())),
        Err(Broken::To(error)) => Ok(Err(error)),
        Err(Broken::From(error)) => Err(error),
    }
}

/// One direction, until its end, which is passed on.
pub(crate) async fn pump(
    from: &dyn Transport,
    to: &dyn Transport,
    count: impl Fn(usize),
) -> Result<(), Broken> {
    // While `from` is silent, only an error of the other side shows that it is gone.
    let mut broken = to.broken();
    loop {
        let moved = poll_fn(|cx| {
            if let Poll::Ready(moved) = poll_move(cx, from, to, &count) {
                return Poll::Ready(moved);
            }
            let broken = Pin::new(&mut broken).poll(cx);
            broken.map(|()| Err(Broken::To(io::ErrorKind::ConnectionReset.into())))
        })
        .await?;
        match moved {
            Moved::All => {}
            Moved::Rest(rest) => {
                write_all(to, &rest).await.map_err(Broken::To)?;
                count(rest.len());
            }
            Moved::End => return shutdown(to).await.map_err(Broken::To),
        }
    }
}

pub(crate) enum Moved {
    All,
    /// The other side takes no more for now: these bytes are left, or (none) it has yet to send what it took.
    Rest(Vec<u8>),
    End,
}

/// One read and the write of what it brought.
fn poll_move(
    cx: &mut Context<'_>,
    from: &dyn Transport,
    to: &dyn Transport,
    count: &impl Fn(usize),
) -> Poll<Result<Moved, Broken>> {
    with_scratch(|scratch| {
        let length = match from.poll_read(cx, scratch) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Ok(Moved::End)),
            Poll::Ready(Ok(length)) => length,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(Broken::From(error))),
            Poll::Pending => return Poll::Pending,
        };
        let bytes = scratch.get(..length).unwrap_or_default();
        Poll::Ready(write_now(cx, to, bytes, count).map_err(Broken::To))
    })
}

/// Writes as much as the other side takes at once. Only what is left is copied, so that bytes which pass through the
/// thread's buffer need no memory of their connection's.
pub(crate) fn write_now(
    cx: &mut Context<'_>,
    to: &dyn Transport,
    bytes: &[u8],
    count: &impl Fn(usize),
) -> io::Result<Moved> {
    let written = match to.poll_write(cx, bytes) {
        Poll::Ready(written) => written?,
        Poll::Pending => 0,
    };
    count(written);
    let rest = bytes.get(written..).unwrap_or_default();
    if !rest.is_empty() {
        return Ok(Moved::Rest(rest.to_vec()));
    }
    match to.poll_flush(cx) {
        Poll::Ready(flushed) => flushed.map(|()| Moved::All),
        Poll::Pending => Ok(Moved::Rest(Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use rustix::net::Shutdown;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::net::TcpStream;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
        (ours.unwrap(), theirs.unwrap().0)
    }

    #[tokio::test]
    async fn bytes_and_ends_arrive_in_both_directions() {
        let (mut program, client) = pair().await;
        let (upstream, mut origin) = pair().await;
        let counters = Counters::default();
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| n as u8).collect();
        let told = sent.clone();
        let program = async move {
            program.write_all(&told).await.unwrap();
            program.shutdown().await.unwrap();
            let mut answer = Vec::new();
            program.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let origin = async move {
            let mut got = Vec::new();
            // Answers only after the other side has said everything: a half-closed connection.
            origin.read_to_end(&mut got).await.unwrap();
            origin.write_all(b"answer").await.unwrap();
            got
        };
        let (relayed, answer, got) =
            tokio::join!(relay(&client, &upstream, &counters), program, origin);
        relayed.unwrap();
        assert_eq!(
            (got == sent, answer.as_slice()),
            (true, b"answer".as_slice())
        );
        assert_eq!((counters.sent(), counters.received()), (3_000_000, 6));
    }

    /// Either side may be the first to be gone; an exchange that both had finished did not fail.
    #[tokio::test]
    async fn a_closed_peer_needs_no_shutdown() {
        let (program, client) = pair().await;
        let (upstream, origin) = pair().await;
        let counters = Counters::default();
        // The origin closes, which the program answers by closing: by the time its end is passed on, no peer is
        // there to take it.
        drop((origin, program));
        for stream in [&upstream, &client] {
            stream.readable().await.unwrap();
        }
        rustix::net::shutdown(&upstream, Shutdown::Write).unwrap();
        rustix::net::shutdown(&client, Shutdown::Write).unwrap();
        while rustix::net::shutdown(&upstream, Shutdown::Write) != Err(Errno::NOTCONN) {
            tokio::task::yield_now().await;
        }
        relay(&client, &upstream, &counters).await.unwrap();
    }
}
