//! `sandboxd`: the engine behind an HTTP API on a Unix socket, for one user.
//!
//! Only sockets and signals are asynchronous; every call into the engine runs on a thread of its own.
//! [`serve`] is the whole daemon, [`router`] the API without a socket, [`openapi`] its description.

mod extract;
mod handlers;
mod logging;
mod reply;
mod routes;
mod serve;

pub use logging::Levels;
pub use routes::{App, openapi, router};
pub use serve::{ServeConfig, ServeError, serve};
