//! The contract between the host side (daemon, client) and the inside of a sandbox (setup helper, init).
//!
//! Everything here is plain data and a codec that does no I/O: [`plan`] is what the daemon hands to the
//! setup helper, [`exec`] is what a client and the daemon say to a running init, [`frame`] is how both travel.
//! [`stream`] is how a command's stdin, stdout and stderr travel where descriptors cannot be passed.
//! [`tool`] is what init's own program does inside. [`net`] and [`inside`] are what every sandbox has in common. [`shell`] is for what people and shells read, [`object`] for
//! JSON that other programs write.

pub mod exec;
pub mod frame;
pub mod inside;
pub mod net;
pub mod object;
pub mod osbytes;
pub mod plan;
pub mod shell;
pub mod stream;
pub mod tool;

pub use osbytes::OsBytes;

/// Version of everything in this crate. A sandbox keeps the init it was started with, so a newer
/// client can meet an older init: both sides say their version first and refuse another one.
pub const PROTOCOL: u32 = 7;
