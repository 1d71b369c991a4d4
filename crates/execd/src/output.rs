//! Reading the output of a command that may leave descendants behind.
//!
//! A descendant that keeps a pipe open must neither delay the command's end nor be killed by SIGPIPE. What the command itself
//! wrote is in the pipe when it exits, and a pipe holds 1 MiB at most. So a reader goes on after the exit until the pipe is
//! at end of file, silent, or has given that much.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{oneshot, watch};

/// How long a pipe that descendants hold open may be silent, once the command has exited.
const IDLE_TIMEOUT: Duration = Duration::from_millis(20);
const MAX_AFTER_EXIT: usize = 1 << 20;
const BUFFER: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct OutputReader<R> {
    stream: R,
    exited: watch::Receiver<bool>,
    left: usize,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin> OutputReader<R> {
    fn new(stream: R, exited: watch::Receiver<bool>) -> Self {
        Self {
            stream,
            exited,
            left: MAX_AFTER_EXIT,
            buffer: vec![0; BUFFER],
        }
    }

    /// The next bytes, or none when all output of the command itself was read.
    pub(crate) async fn next(&mut self) -> Option<&[u8]> {
        loop {
            let has_exited = *self.exited.borrow_and_update();
            let count = tokio::select! {
                biased;
                // EIO of a terminal whose last user is gone, and any other error, is an end of file here.
                count = self.stream.read(&mut self.buffer) => count.unwrap_or(0),
                _ = self.exited.changed(), if !has_exited => continue,
                () = tokio::time::sleep(IDLE_TIMEOUT), if has_exited => 0,
            };
            if has_exited {
                self.left = self.left.saturating_sub(count);
            }
            if count == 0 || self.left == 0 {
                return None;
            }
            return self.buffer.get(..count);
        }
    }

    /// Reads and drops what descendants write later.
    pub(crate) async fn discard(mut self) {
        while let Ok(1..) = self.stream.read(&mut self.buffer).await {}
    }
}

/// The task of a reader, as the code that waits for the command sees it.
#[derive(Debug)]
pub(crate) struct ReaderHandle {
    exited: watch::Sender<bool>,
    done: oneshot::Receiver<()>,
}

/// A reader, the handle to end it, and a token that its task drops when it has passed all output on.
pub(crate) fn reader<R: AsyncRead + Unpin>(
    stream: R,
) -> (OutputReader<R>, ReaderHandle, oneshot::Sender<()>) {
    let (exited, exit_seen) = watch::channel(false);
    let (token, done) = oneshot::channel();
    let reader = OutputReader::new(stream, exit_seen);
    (reader, ReaderHandle { exited, done }, token)
}

impl ReaderHandle {
    /// Waits for the rest of the output of a command that has exited.
    pub(crate) async fn finish(self) {
        // Both fail only when the reader has finished already.
        let _ = self.exited.send(true);
        let _ = self.done.await;
    }
}
