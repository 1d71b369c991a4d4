//! SSH into sandboxes: `ssh NAME.sbx` starts `sbx ssh proxy` (ProxyCommand), which is the SSH server of that one connection, on
//! its stdin and stdout. Commands, files and forwards go to the sandbox's init from there, without the daemon.

mod alias;
pub(crate) mod config;
mod forward;
mod hold;
pub(crate) mod host_key;
mod proxy;
mod session;
mod signals;

pub(crate) use alias::Alias;
pub(crate) use proxy::run as proxy;
