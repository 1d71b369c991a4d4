//! The only way out of a sandbox: a proxy, a resolver, and one gate that decides for both.
//!
//! [`Outlet`] serves the sockets of one sandbox: an HTTP proxy and SOCKS5 for clients that know of it
//! ([`forward`]), a transparent one for those that do not ([`transparent`]), and DNS ([`dns`]). All of them ask
//! [`Gate`], which knows the policy and the resolver, and put what they do on record ([`audit`]).

pub mod audit;
pub mod ca;
pub mod limits;
pub mod wire;
pub mod workers;

mod answer;
mod conn;
mod denial;
mod dial;
mod dns;
mod exchange;
mod forward;
mod gate;
mod http;
mod journey;
mod outlet;
mod resolver;
mod seldom;
mod sniff;
mod socks;
mod transparent;
mod tunnel;
mod underway;

#[cfg(test)]
mod tests;

pub use dial::{Dial, system_dial};
pub use gate::{Checked, Gate, Judged, Own};
pub use outlet::{Bypass, Outlet, Settings, Sockets};
pub use resolver::{Lookup, system_lookup};
