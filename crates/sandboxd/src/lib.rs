//! `sandboxd`: the engine behind an HTTP API on a Unix socket, for one user.
//!
//! Only sockets and signals are asynchronous; every call into the engine runs on a thread of its own.
//! [`serve`] is the whole daemon, [`router`] the API without a socket, [`openapi`] its description; [`check_offline`]
//! answers where no daemon runs.

mod check;
mod docker_socket;
mod egress;
mod extract;
mod handlers;
mod ingress;
mod logfile;
mod logging;
mod peer;
mod policy_handlers;
mod reload;
mod reply;
mod routes;
mod rule_files;
mod serve;
mod settings;
mod vm_handlers;

pub use check::check_offline;
pub use egress::EgressProxies;
pub use logging::Levels;
pub use reload::PolicyReload;
pub use routes::{App, openapi, router};
pub use serve::{ServeConfig, ServeError, check_log_level, serve};
pub use settings::LiveSettings;
pub use vm_handlers::VmHost;
