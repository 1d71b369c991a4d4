//! What clients and origins send, taken apart without I/O.
//!
//! Everything here reads hostile bytes. The parsers are given the bytes read so far and answer with a value and the
//! number of bytes it took, with "need more", or with the reason why no further byte can make it valid. An answer
//! other than "need more" never changes when more bytes arrive, every buffer is bounded, and nothing panics.
//! Deciding what is allowed, timeouts and the sockets themselves are left to the callers.

pub mod dns;
pub mod h2;
pub mod http1;
pub mod sniff;
pub mod socks5;
pub mod tls;
