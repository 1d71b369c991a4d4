//! Bytes both ways between two sockets, unchanged, without memory of its own while nothing moves.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::Shutdown;
use tokio::net::TcpStream;

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
    tokio::try_join!(
        pump(client, upstream, |bytes| counters.add_sent(bytes)),
        pump(upstream, client, |bytes| counters.add_received(bytes)),
    )?;
    Ok(())
}

/// One direction, until its end, which is passed on.
pub(crate) async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    count: impl Fn(usize),
) -> io::Result<()> {
    loop {
        from.readable().await?;
        let rest = match move_once(from, to, &count) {
            Ok(Moved::End) => {
                return Ok(rustix::net::shutdown(to, Shutdown::Write)?);
            }
            Ok(Moved::All) => continue,
            Ok(Moved::Rest(rest)) => rest,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let length = rest.len();
        write_all(to, &rest).await?;
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
    All,
    /// The other side takes no more for now.
    Rest(Vec<u8>),
    End,
}

fn move_once(from: &TcpStream, to: &TcpStream, count: &impl Fn(usize)) -> io::Result<Moved> {
    BUFFER.with_borrow_mut(|buffer| {
        buffer.resize(SCRATCH, 0);
        let length = from.try_read(buffer)?;
        let Some(bytes) = buffer.get(..length).filter(|bytes| !bytes.is_empty()) else {
            return Ok(Moved::End);
        };
        let written = match to.try_write(bytes) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        count(written);
        match bytes.get(written..) {
            None | Some([]) => Ok(Moved::All),
            Some(rest) => Ok(Moved::Rest(rest.to_vec())),
        }
    })
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
            tokio::join!(relay(&client, &upstream, &counters), program, async {
                let got = origin.await;
                got
            });
        relayed.unwrap();
        assert_eq!(
            (got == sent, answer.as_slice()),
            (true, b"answer".as_slice())
        );
        assert_eq!((counters.sent(), counters.received()), (3_000_000, 6));
    }
}
