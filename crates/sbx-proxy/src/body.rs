//! The body of an HTTP/1 message, from one transport to another, unchanged.
//!
//! Its bytes are read into the thread's buffer, measured there by a [`BodyTracker`], and written from there. Only what the
//! other side does not take at once is copied, and what follows the body, which is the next message.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use crate::relay::{Moved, write_now};
use crate::transport::{Transport, with_scratch, write_all};
use crate::wire::http1::{BodyError, BodyTracker};

/// Why a body did not pass to its end.
pub(crate) enum BodyFailure {
    /// The connection that it comes from ended, which may be the body's own end: [`BodyTracker::end_of_input`].
    Ended,
    From(io::Error),
    Invalid(BodyError),
    To(io::Error),
}

/// Passes the body on to its end. `buffered` is what was read with the head, and afterwards what was read behind the body.
pub(crate) async fn pass_body(
    from: &dyn Transport,
    buffered: &mut Vec<u8>,
    to: &dyn Transport,
    body: &mut BodyTracker,
    count: impl Fn(usize),
) -> Result<(), BodyFailure> {
    if !body.is_done() && !buffered.is_empty() {
        let length = body.advance(buffered).map_err(BodyFailure::Invalid)?;
        let piece = buffered.get(..length).unwrap_or_default();
        write_all(to, piece).await.map_err(BodyFailure::To)?;
        count(length);
        buffered.drain(..length);
    }
    while !body.is_done() {
        match poll_fn(|cx| poll_piece(cx, from, buffered, to, body, &count)).await? {
            Moved::All => {}
            Moved::Rest(rest) => {
                write_all(to, &rest).await.map_err(BodyFailure::To)?;
                count(rest.len());
            }
            Moved::End => return Err(BodyFailure::Ended),
        }
    }
    Ok(())
}

/// One read, and the write of what belongs to the body.
fn poll_piece(
    cx: &mut Context<'_>,
    from: &dyn Transport,
    buffered: &mut Vec<u8>,
    to: &dyn Transport,
    body: &mut BodyTracker,
    count: &impl Fn(usize),
) -> Poll<Result<Moved, BodyFailure>> {
    with_scratch(|scratch| {
        let length = ready!(from.poll_read(cx, scratch)).map_err(BodyFailure::From)?;
        if length == 0 {
            return Poll::Ready(Ok(Moved::End));
        }
        let bytes = scratch.get(..length).unwrap_or_default();
        let taken = body.advance(bytes).map_err(BodyFailure::Invalid)?;
        let (piece, behind) = bytes.split_at_checked(taken).unwrap_or((bytes, &[]));
        buffered.extend_from_slice(behind);
        Poll::Ready(write_now(cx, to, piece, count).map_err(BodyFailure::To))
    })
}
