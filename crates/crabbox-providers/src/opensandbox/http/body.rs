//! Bodies of requests: bytes and files, one after the other, with a known length.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

const CHUNK: usize = 256 << 10;

#[derive(Debug)]
pub(in crate::opensandbox) enum Part {
    Bytes(Bytes),
    /// The file from where it is read next, how much of it, and where is counted what was read.
    File(File, u64, Arc<AtomicU64>),
}

#[derive(Debug)]
pub(in crate::opensandbox) struct Body {
    parts: VecDeque<Part>,
}

impl Body {
    pub(in crate::opensandbox) fn empty() -> Self {
        Self {
            parts: VecDeque::new(),
        }
    }

    pub(in crate::opensandbox) fn bytes(bytes: Vec<u8>) -> Self {
        Self::parts([Part::Bytes(bytes.into())])
    }

    pub(in crate::opensandbox) fn parts(parts: impl IntoIterator<Item = Part>) -> Self {
        let mut parts: VecDeque<_> = parts.into_iter().collect();
        parts.retain(|part| part.len() > 0);
        Self { parts }
    }

    /// The same body for the same request to another path. A file is read only once.
    pub(super) fn again(&self) -> Option<Self> {
        let copy = |part: &Part| match part {
            Part::Bytes(bytes) => Some(Part::Bytes(bytes.clone())),
            Part::File(..) => None,
        };
        let parts: Option<VecDeque<_>> = self.parts.iter().map(copy).collect();
        parts.map(|parts| Self { parts })
    }
}

impl Part {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, left, _) => *left,
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let next = match self.parts.pop_front() {
            None => return Poll::Ready(None),
            Some(Part::Bytes(bytes)) => Ok(bytes),
            Some(Part::File(mut file, left, sent)) => match read(&mut file, left) {
                Ok(bytes) => {
                    let count = bytes.len() as u64;
                    sent.fetch_add(count, Ordering::Relaxed);
                    let left = left - count;
                    if left > 0 {
                        self.parts.push_front(Part::File(file, left, sent));
                    }
                    Ok(bytes)
                }
                Err(error) => Err(error),
            },
        };
        Poll::Ready(Some(next.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.parts.iter().map(Part::len).sum())
    }
}

/// Reads of a local file do not wait for anything.
fn read(file: &mut File, left: u64) -> io::Result<Bytes> {
    let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
    let mut chunk = vec![0; most];
    let count = file.read(&mut chunk)?;
    if count == 0 {
        return Err(io::Error::other(
            "the file became shorter while it was sent",
        ));
    }
    chunk.truncate(count);
    Ok(chunk.into())
}
