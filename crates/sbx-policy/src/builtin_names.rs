//! The built-in names that mean something inside a sandbox only. They are checked before any pattern, so that no wildcard
//! opens the host by accident.

use crate::host::Host;

/// The name under which a sandbox reaches services of the host. `HOST_ALIAS:P` is checked as `localhost:P`.
pub const HOST_ALIAS: &str = "host.docker.internal";
/// The name of the proxy itself. It resolves, but is never a target.
pub const GATEWAY: &str = "gateway.docker.internal";
pub(crate) const LOCALHOST: &str = "localhost";

pub fn is_host_alias(host: &Host) -> bool {
    is_named(host, HOST_ALIAS)
}

pub fn is_gateway(host: &Host) -> bool {
    is_named(host, GATEWAY)
}

/// `localhost` and everything below it (RFC 6761, 6.3).
pub fn is_localhost(host: &Host) -> bool {
    host.as_name().is_some_and(|name| {
        name.as_str()
            .strip_suffix(LOCALHOST)
            .is_some_and(|head| head.is_empty() || head.ends_with('.'))
    })
}

fn is_named(host: &Host, expected: &str) -> bool {
    host.as_name().is_some_and(|name| name.as_str() == expected)
}
