//! A client's connection and what was read from it ahead of its use.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout_at};

use crate::transport::{Transport, with_scratch};

/// Read at once.
const PIECE: usize = 16 << 10;

pub(crate) struct Conn {
    /// Shared by the two directions of a connection.
    pub(crate) transport: Arc<dyn Transport>,
    /// Read and not used yet.
    pub(crate) buffered: Vec<u8>,
}

impl Conn {
    pub(crate) fn new(transport: impl Transport + 'static) -> Self {
        Self {
            transport: Arc::new(transport),
            buffered: Vec::new(),
        }
    }

    /// Reads more; false at the end.
    pub(crate) async fn fill(&mut self) -> io::Result<bool> {
        fill(&*self.transport, &mut self.buffered).await
    }

    pub(crate) async fn fill_until(&mut self, deadline: Instant) -> io::Result<bool> {
        timeout_at(deadline, self.fill())
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Something to read within that time: false at the end of the connection, an error when there is nothing.
    pub(crate) async fn first_bytes(&mut self, timeout: Duration) -> io::Result<bool> {
        if self.buffered.is_empty() {
            return self.fill_until(Instant::now() + timeout).await;
        }
        Ok(true)
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.buffered.drain(..bytes.min(self.buffered.len()));
        // An idle connection costs no memory.
        if self.buffered.is_empty() {
            self.buffered = Vec::new();
        }
    }
}

/// Appends what can be read; false at the end. A connection that waits holds no more memory than what was read.
pub(crate) async fn fill(from: &dyn Transport, buffer: &mut Vec<u8>) -> io::Result<bool> {
    poll_fn(|cx| {
        with_scratch(|scratch| {
            let piece = scratch.get_mut(..PIECE).unwrap_or_default();
            from.poll_read(cx, piece).map_ok(|length| {
                buffer.extend_from_slice(piece.get(..length).unwrap_or_default());
                length > 0
            })
        })
    })
    .await
}

/// For what is layered on top of a connection, as TLS is. What was read ahead comes first.
impl AsyncRead for Conn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.buffered.is_empty() {
            let read = self.transport.poll_read(cx, buf.initialize_unfilled());
            return read.map_ok(|length| buf.advance(length));
        }
        let count = buf.remaining().min(self.buffered.len());
        buf.put_slice(self.buffered.get(..count).unwrap_or_default());
        self.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Conn {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.transport.poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.transport.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.transport.poll_shutdown(cx)
    }
}
