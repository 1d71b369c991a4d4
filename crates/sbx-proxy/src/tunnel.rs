//! Bytes both ways between two sockets, unchanged, without memory of its own while nothing moves.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use rustix::io::Errno;
use rustix::net::Shutdown;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::seldom::Seldom;

/// Read and written at once.
const SCRATCH: usize = 128 << 10;

thread_local! {
    /// One for all tunnels of a thread: between a read and the write of the same bytes nothing else runs.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

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
    client: &TcpStream,
    upstream: &TcpStream,
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
    from: &TcpStream,
    to: &TcpStream,
    count: impl Fn(usize),
) -> Result<(), Broken> {
    // Whoever has said everything is only heard of again when it breaks.
    let gone = to.ready(Interest::ERROR);
    tokio::pin!(gone);
    let mut gone = Seldom::new(gone);
    loop {
        // Being ready uses up the turn: a peer that always has more to say does not keep the others from speaking,
        // nor a change of the rules from being heard.
        poll_fn(|cx| {
            if let Poll::Ready(ready) = from.poll_read_ready(cx) {
                return Poll::Ready(ready.map_err(Broken::From));
            }
            let gone = Pin::new(&mut gone).poll(cx);
            gone.map(|_| Err(Broken::To(io::ErrorKind::ConnectionReset.into())))
        })
        .await?;
        let rest = match move_once(from, to, &count)? {
            Moved::End => {
                return match rustix::net::shutdown(to, Shutdown::Write) {
                    // It has left already, as whoever closes an HTTP/2 connection in both directions does.
                    // What it did not take before that, the other direction would have heard of.
                    Err(Errno::NOTCONN) => Ok(()),
                    passed_on => passed_on.map_err(|error| Broken::To(error.into())),
                };
            }
            Moved::All | Moved::Nothing => continue,
            Moved::Rest(rest) => rest,
        };
        let length = rest.len();
        write_all(to, &rest).await.map_err(Broken::To)?;
        count(length);
    }
}

pub(crate) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

enum Moved {
    Nothing,
    All,
    /// The other side takes no more for now.
    Rest(Vec<u8>),
    End,
}

fn move_once(from: &TcpStream, to: &TcpStream, count: &impl Fn(usize)) -> Result<Moved, Broken> {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.is_empty() {
            // Memory that the kernel zeroes where it is used, and only there.
            *buffer = vec![0; SCRATCH];
        }
        let length = match from.try_read(buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Moved::Nothing),
            Err(error) => return Err(Broken::From(error)),
        };
        if length > 0 && length < SCRATCH {
            say_drained(from);
        }
        let Some(bytes) = buffer.get(..length).filter(|bytes| !bytes.is_empty()) else {
            return Ok(Moved::End);
        };
        let written = match to.try_write(bytes) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(Broken::To(error)),
        };
        count(written);
        match bytes.get(written..) {
            None | Some([]) => Ok(Moved::All),
            Some(rest) => Ok(Moved::Rest(rest.to_vec())),
        }
    })
}

/// A read that did not fill the buffer took everything: the next one is worth a try when there is news. (That the
/// peer has closed is not forgotten.) Without this every message costs a second read that finds nothing.
fn say_drained(stream: &TcpStream) {
    let nothing: io::Result<()> =
        stream.try_io(Interest::READABLE, || Err(io::ErrorKind::WouldBlock.into()));
    // It is what it was told to be.
    drop(nothing);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

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
    async fn who_has_left_needs_no_end() {
        let (program, client) = pair().await;
        let (upstream, origin) = pair().await;
        let counters = Counters::default();
        // The origin closes, which the program answers by closing: by the time its end is passed on, nobody is
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
