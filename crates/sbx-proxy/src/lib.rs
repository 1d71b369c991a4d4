//! The only way out of a sandbox: a proxy, a resolver, and one gate that decides for both.
//!
//! [`Proxy`] serves the listeners of one sandbox. A connection to the proxy's own address is [`forward`] traffic: an
//! HTTP proxy (RFC 9110, RFC 9112) or SOCKS5 (RFC 1928). A connection to any other address is [`transparent`] traffic
//! of a program that knows of no proxy. DNS questions (RFC 1035) go to [`dns`]. All of them ask [`Gate`], which knows
//! the policy and the resolver, and write what they do to the [`audit`] log.
//!
//! [`published`] is the other direction: ports of the host that lead to servers in a sandbox.
//!
//! Dependencies point one way: `proxy` → `forward`, `transparent`, `dns` → `socks`, `http` → `connect`, `exchange` →
//! `tunnel` → `session`, `dial`, `gate` → `relay`, `conn` → `transport`. A [`Transport`] may be TCP, TLS on either side,
//! or any other byte stream, such as one from a virtual machine.

pub mod audit;
pub mod ca;
pub mod limits;
pub mod published;
pub mod wire;
pub mod workers;

mod active;
mod answer;
mod body;
mod conn;
mod connect;
mod denial;
mod dial;
mod dns;
mod entry;
mod exchange;
mod forward;
mod gate;
mod hosts_file;
mod http;
mod opening;
mod proxy;
mod rate;
mod record;
mod relay;
mod resolver;
mod session;
mod socks;
mod transparent;
mod transport;
mod tunnel;

#[cfg(test)]
mod tests;

pub use dial::{Dial, system_dial};
pub use gate::{Checked, Gate, GateDecision, LocalAddressSource, RuleTime};
pub use proxy::{Bypass, Proxy, Settings, Sockets};
pub use resolver::{Lookup, system_lookup};
pub use transport::{AsyncTransport, Transport};
