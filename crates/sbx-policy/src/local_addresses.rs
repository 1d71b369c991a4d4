//! The addresses of the host, which only the running system knows.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// The machine's own addresses at one moment: what listens there is a service of the host, whatever its range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalAddresses {
    Known(Arc<BTreeSet<IpAddr>>),
    /// It could not be determined, so every address counts as one.
    Unknown,
}

impl LocalAddresses {
    /// With these as well.
    #[must_use]
    pub fn with(self, more: impl IntoIterator<Item = IpAddr>) -> Self {
        match self {
            Self::Known(mut addresses) => {
                let mut more = more.into_iter().peekable();
                if more.peek().is_some() {
                    Arc::make_mut(&mut addresses).extend(more);
                }
                Self::Known(addresses)
            }
            Self::Unknown => Self::Unknown,
        }
    }

    pub(crate) fn contain(&self, address: IpAddr) -> bool {
        match self {
            Self::Known(addresses) => addresses.contains(&address),
            Self::Unknown => true,
        }
    }
}

/// A machine that has no address.
impl Default for LocalAddresses {
    fn default() -> Self {
        Self::Known(Arc::default())
    }
}

impl FromIterator<IpAddr> for LocalAddresses {
    fn from_iter<T: IntoIterator<Item = IpAddr>>(addresses: T) -> Self {
        Self::Known(Arc::new(addresses.into_iter().collect()))
    }
}
