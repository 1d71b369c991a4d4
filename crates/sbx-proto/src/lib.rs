//! The contract between the host side (daemon, client) and the inside of a sandbox (setup helper, init).
//!
//! Everything here is plain data and a codec that does no I/O: [`plan`] is what the daemon hands to the
//! setup helper, [`exec`] is what a client and the daemon say to a running init, [`frame`] is how both travel.
//! [`stream`] is how a command's stdin, stdout and stderr travel where descriptors cannot be passed.
//! [`tool`] is what init's own program does inside. [`net`] and [`inside`] are what every sandbox has in common. [`shell`] is for what people and shells read, [`object`] for
//! JSON that other programs write, [`rfc4251`] for the data types of SSH and SFTP.

pub mod exec;
pub mod frame;
pub mod inside;
pub mod net;
pub mod object;
pub mod osbytes;
pub mod plan;
pub mod rfc4251;
pub mod shell;
pub mod stream;
pub mod tool;

pub use osbytes::OsBytes;

/// Version of everything in this crate. A sandbox keeps the init it was started with, so a newer
/// client can meet an older init: both sides say their version first and refuse one that is not in [`SPOKEN`].
pub const PROTOCOL: u32 = 8;
/// The oldest version whose inits are still understood. Raise it only when a message of before changes its meaning: an
/// upgrade then ends the sandboxes that run.
pub const MIN_PROTOCOL: u32 = 7;
/// A conversation is in the version that the first message names and the answer repeats; a request that is newer than that is
/// not made. Version 8: an init answers in an older version that it is greeted in.
pub const SPOKEN: std::ops::RangeInclusive<u32> = MIN_PROTOCOL..=PROTOCOL;
/// The first version in which an init hands out its namespaces, so that a workspace can be mounted while it runs.
pub const MOUNTS_SINCE: u32 = 8;
/// The first version in which the program of an init has the tools of SSH connections.
pub const SSH_SINCE: u32 = 8;
