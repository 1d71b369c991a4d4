//! The wire protocol of OpenSandbox's `execd`, the daemon that runs commands inside a sandbox.
//!
//! Both ends use this crate: our `execd` encodes what the client in `crabbox` decodes. It does no I/O and reads no
//! clock: bytes and times come in as arguments.
//!
//! - [`event`]: the events of a command stream and how they are written.
//! - [`decode`]: an incremental decoder that accepts execd's bare JSON frames and server-sent events.
//! - [`lines`]: how output becomes events: line by line, and lossy, as the official daemon does it.
//! - [`command`]: the request that starts a command.
//! - [`pty`]: the frames of the terminal WebSocket.
//! - [`files`]: file metadata, permissions and upload metadata.
//! - [`envfile`]: variables that clients persist for later commands.
//! - [`error`]: error codes with their HTTP status.

pub mod command;
pub mod decode;
pub mod envfile;
pub mod error;
pub mod event;
pub mod files;
pub mod lines;
pub mod pty;
