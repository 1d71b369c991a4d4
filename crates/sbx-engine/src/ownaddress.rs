//! Whether an address is this machine's own, asked for every connection and known for a moment.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sbx_policy::Machine;
use sbx_sys::interfaces::own_addresses;

/// Interfaces come and go seldom; to ask for them takes about as long as to decide.
const FRESH: Duration = Duration::from_secs(1);

type Known = Option<(Instant, HashSet<IpAddr>)>;

/// This machine, as policies see it.
pub(crate) fn this_machine() -> Machine {
    static KNOWN: Mutex<Known> = Mutex::new(None);
    Machine::new(|address| {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|(at, _)| at.elapsed() > FRESH) {
            match own_addresses() {
                Ok(addresses) => *known = Some((Instant::now(), addresses.into_iter().collect())),
                // Whoever does not know which services are the host's must take all of them for such.
                Err(_) => return true,
            }
        }
        known
            .as_ref()
            .is_some_and(|(_, own)| own.contains(&address))
    })
}
