//! The controlling side of a pseudo-terminal as an asynchronous stream.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, ReadBuf};

#[derive(Debug)]
pub(super) struct TerminalStream(AsyncFd<OwnedFd>);

impl TerminalStream {
    pub(super) fn new(controller: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&controller, true)?;
        Ok(Self(AsyncFd::register(controller)?))
    }

    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut guard = self.0.writable().await?;
            let wrote =
                guard.try_io(|fd| rustix::io::write(fd.get_ref(), bytes).map_err(Into::into));
            // An error of `try_io` itself means that the terminal was not ready after all.
            if let Ok(wrote) = wrote {
                bytes = bytes.get(wrote?..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

impl AsFd for TerminalStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

impl AsyncRead for TerminalStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            let unfilled = buffer.initialize_unfilled();
            let read =
                guard.try_io(|fd| rustix::io::read(fd.get_ref(), unfilled).map_err(Into::into));
            if let Ok(read) = read {
                buffer.advance(read?);
                return Poll::Ready(Ok(()));
            }
        }
    }
}
