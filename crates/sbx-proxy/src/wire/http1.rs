//! HTTP/1 heads and bodies, strict enough that the next parser cannot read them differently.
//!
//! A request comes from the sandbox and is refused when two implementations could disagree on where it ends or whom
//! it is for (request smuggling). A response comes from an origin that policy allowed: sloppy ones are tolerated as
//! long as the end of the body is certain. Bodies are followed, not decoded: the bytes pass through untouched.

mod body;
mod chunked;
mod connection;
mod error;
mod framing;
mod headers;
mod lines;
mod request;
mod response;
mod rewrite;
mod target;

#[cfg(test)]
mod tests;

pub use body::{BodyKind, BodyTracker};
pub use chunked::{BodyError, MAX_EXTENSION, MAX_TRAILERS};
pub use error::HeadError;
pub use headers::{Header, Headers, MAX_HEADERS};
pub use lines::MAX_HEAD;
pub(super) use lines::is_token;
pub use request::{RequestHead, Version, parse_request};
pub use response::{ResponseHead, parse_response};
pub use rewrite::Rewrite;
pub use target::{Authority, Target};
