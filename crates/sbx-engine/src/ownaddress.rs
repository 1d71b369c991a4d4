//! The addresses of this machine, asked for with every decision and known for a moment.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sbx_policy::OwnAddresses;
use sbx_sys::interfaces;

/// Interfaces come and go seldom; to ask for them takes about as long as to decide.
const FRESH: Duration = Duration::from_secs(1);

/// As they are now, or were a moment ago.
pub fn own_addresses() -> OwnAddresses {
    static KNOWN: Mutex<Option<(Instant, OwnAddresses)>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, own)) = known.as_ref()
        && at.elapsed() <= FRESH
    {
        return own.clone();
    }
    let Ok(addresses) = interfaces::own_addresses() else {
        return OwnAddresses::Unknown;
    };
    let own: OwnAddresses = addresses.into_iter().collect();
    *known = Some((Instant::now(), own.clone()));
    own
}
