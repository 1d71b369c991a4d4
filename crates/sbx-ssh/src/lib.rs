//! The server side of SSH (RFC 4251 to 4254) without I/O: bytes of a client go in, [`Event`]s and bytes for it come out.
//!
//! It serves one client over a pipe that only that client can write to, so that authentication is `none`. What it offers is
//! what OpenSSH prefers and no more: curve25519 and its hybrid with ML-KEM for the keys, Ed25519 for the host, AES-GCM for
//! everything else. A connection has the channels `session` (shell, exec, the subsystem `sftp`) and `direct-tcpip`; every
//! other request is refused as the RFCs say. All cryptography is that of `aws-lc-rs`.

mod cipher;
mod connection;
mod error;
mod host_key;
mod kex;
mod message;
mod packet;
mod requests;
mod server;
mod transport;

pub use connection::{ChannelId, Connection, Event, Output, Refusal, Start, Terminal};
pub use error::Error;
pub use host_key::HostKey;
pub use server::Server;
