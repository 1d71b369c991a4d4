//! A client's connection and what was read from it ahead of its use.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, timeout_at};

/// Read at once.
const PIECE: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Conn {
    /// Shared with whoever writes to it while another reads.
    pub(crate) stream: Arc<TcpStream>,
    /// Read and not used yet.
    pub(crate) ahead: Vec<u8>,
}

impl Conn {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream: Arc::new(stream),
            ahead: Vec::new(),
        }
    }

    /// Reads more; false at the end.
    pub(crate) async fn fill(&mut self) -> io::Result<bool> {
        fill(&self.stream, &mut self.ahead).await
    }

    pub(crate) async fn fill_until(&mut self, deadline: Instant) -> io::Result<bool> {
        timeout_at(deadline, self.fill())
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Something to read within that time: false at the end of the connection, an error when there is nothing.
    pub(crate) async fn first_bytes(&mut self, patience: Duration) -> io::Result<bool> {
        if self.ahead.is_empty() {
            return self.fill_until(Instant::now() + patience).await;
        }
        Ok(true)
    }

    pub(crate) fn used(&mut self, bytes: usize) {
        self.ahead.drain(..bytes.min(self.ahead.len()));
        // An idle connection costs no memory.
        if self.ahead.is_empty() {
            self.ahead = Vec::new();
        }
    }
}

/// Appends what can be read; false at the end. Who waits holds no more memory than what was read.
pub(crate) async fn fill(stream: &TcpStream, buffer: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        // A peer that always has more to say must not keep the others from speaking.
        consume_budget().await;
        buffer.reserve(PIECE);
        match stream.try_read_buf(buffer) {
            Ok(read) => return Ok(read > 0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => buffer.shrink_to_fit(),
            Err(error) => return Err(error),
        }
        stream.readable().await?;
    }
}
