//! What a connection is carried over: a byte stream that one part of a task reads while another writes.
//!
//! The methods take `&self`, unlike those of `AsyncRead` and `AsyncWrite`, so that both directions of a connection can
//! run side by side in one task without splitting it. [`TcpStream`] has such methods itself and needs no lock. Every
//! other stream (TLS, a Unix socket, a stream from a virtual machine) goes into an [`AsyncTransport`], which locks for
//! the time of one poll.
//!
//! All polls of one transport must come from one task: each direction remembers the last waker only.

use std::cell::RefCell;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// Read and written at once.
const SCRATCH: usize = 128 << 10;

/// A byte stream between the proxy and a client or an origin.
pub trait Transport: Send + Sync {
    /// The number of bytes read; 0 at the end.
    fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Sends what the transport itself holds back, as TLS may.
    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ends the direction that is written; the other one goes on.
    fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Whether there is nothing to read, not even the end.
    fn is_idle(&self) -> bool;

    /// Resolves when the peer has broken the connection off. A transport that cannot tell never resolves: then the next
    /// write fails.
    fn broken(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(pending())
    }

    /// Makes the close that follows an abortive one (a TCP RST), so that the peer does not take it for the end of a
    /// message. A transport without such a thing is just closed; TLS peers notice the missing `close_notify` alert.
    fn reset(&self) {}
}

impl Transport for TcpStream {
    fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            // Being ready uses up the task's budget: a peer that always has more to say does not keep the others from
            // speaking, nor a change of the rules from being noticed.
            ready!(self.poll_read_ready(cx))?;
            match self.try_read(buffer) {
                Ok(length) => {
                    if length > 0 && length < buffer.len() {
                        clear_readiness(self);
                    }
                    return Poll::Ready(Ok(length));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            // Tried first: it costs no budget, and so the bytes of a read are not copied just because that read used
            // the last of it.
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
            ready!(self.poll_write_ready(cx))?;
        }
    }

    fn poll_flush(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match rustix::net::shutdown(self, Shutdown::Write) {
            // The peer has left already, as one that closes an HTTP/2 connection in both directions does. If it had
            // not taken everything before that, the other direction would have failed.
            Err(Errno::NOTCONN) => Ok(()),
            ended => ended.map_err(io::Error::from),
        })
    }

    fn is_idle(&self) -> bool {
        let mut byte = [0];
        self.try_read(&mut byte)
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    fn broken(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            // Whether EPOLLERR arrives or the wait itself fails, it is over.
            let _ = self.ready(Interest::ERROR).await;
        })
    }

    fn reset(&self) {
        // Without SO_LINGER the peer sees an ordinary end, which is no less closed.
        let _ = sockopt::set_socket_linger(self, Some(Duration::ZERO));
    }
}

/// A read that did not fill the buffer took everything: the next one is worth a try when epoll reports more. (That the
/// peer has closed is not forgotten.) Without this every message costs a second read that finds nothing.
fn clear_readiness(stream: &TcpStream) {
    let nothing: io::Result<()> =
        stream.try_io(Interest::READABLE, || Err(io::ErrorKind::WouldBlock.into()));
    // This error is the one made above.
    drop(nothing);
}

/// Any `AsyncRead` + `AsyncWrite` as a [`Transport`].
#[derive(Debug)]
pub struct AsyncTransport<T>(Mutex<T>);

impl<T> AsyncTransport<T> {
    pub fn new(stream: T) -> Self {
        Self(Mutex::new(stream))
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for AsyncTransport<T> {
    fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(&mut *self.lock()).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.lock()).poll_write(cx, bytes)
    }

    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_flush(cx)
    }

    fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_shutdown(cx)
    }

    fn is_idle(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.poll_read(&mut cx, &mut [0]).is_pending()
    }
}

thread_local! {
    /// One for all connections of a thread: between a read and the use of the same bytes nothing else runs.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Lends the thread's buffer for one poll, so that a connection on which nothing moves costs no memory.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.is_empty() {
            // The kernel zeroes these pages where they are used, and only there.
            *buffer = vec![0; SCRATCH];
        }
        work(buffer)
    })
}

pub(crate) async fn write_all(to: &dyn Transport, mut bytes: &[u8]) -> io::Result<()> {
    poll_fn(|cx| {
        while !bytes.is_empty() {
            match ready!(to.poll_write(cx, bytes))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => bytes = bytes.get(written..).unwrap_or_default(),
            }
        }
        to.poll_flush(cx)
    })
    .await
}

pub(crate) async fn shutdown(transport: &dyn Transport) -> io::Result<()> {
    poll_fn(|cx| transport.poll_shutdown(cx)).await
}
