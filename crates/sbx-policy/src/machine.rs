//! What only the machine can tell about an address.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Says whether an address is the machine's own: what listens there is a service of the host, whatever its range.
#[derive(Clone)]
pub struct Machine(Arc<dyn Fn(IpAddr) -> bool + Send + Sync>);

impl Machine {
    pub fn new(is_own: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_own))
    }

    pub(crate) fn owns(&self, address: IpAddr) -> bool {
        (self.0)(address)
    }
}

/// One that has no address.
impl Default for Machine {
    fn default() -> Self {
        Self::new(|_| false)
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Machine")
    }
}
