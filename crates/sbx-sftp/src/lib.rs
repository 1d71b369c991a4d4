//! The server side of SFTP version 3 (draft-ietf-secsh-filexfer-02) with the extensions of OpenSSH that its programs use.
//!
//! It runs inside a sandbox as the user that the client asked for, and does there what the kernel allows that user: paths
//! need no other check. [`request`] parses what the client sends, which is hostile all the same, without I/O.

mod attributes;
mod listing;
mod reply;
pub mod request;
mod server;

pub use server::serve;

/// The largest message, as OpenSSH has it.
pub const MAX_MESSAGE: usize = 256 << 10;
/// The most data in one: the rest of a message is less than a kilobyte.
pub const MAX_DATA: u32 = (255 << 10) as u32;
