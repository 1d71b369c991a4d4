//! The addresses of this machine, asked for with every decision and known for a moment.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sbx_policy::{OwnAddresses, effective_address};
use sbx_sys::{interfaces, route};

/// Interfaces come and go seldom; to ask for them takes about as long as to decide.
const FRESH: Duration = Duration::from_secs(1);

/// More than that are not remembered.
const MANY: usize = 1024;

/// As they are now, or were a moment ago. Of `asked`, also those that no interface has and that the routes lead here
/// (`ip route add local`); where the kernel does not say, it is taken for so.
pub fn own_addresses(asked: &[IpAddr]) -> OwnAddresses {
    let own = of_interfaces();
    let here = asked.iter().map(|address| effective_address(*address));
    own.with(here.filter(|address| is_routed_locally(*address)))
}

fn is_routed_locally(address: IpAddr) -> bool {
    static KNOWN: Mutex<BTreeMap<IpAddr, (Instant, bool)>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, here)) = known.get(&address)
        && at.elapsed() <= FRESH
    {
        return *here;
    }
    let here = route::is_routed_locally(address).unwrap_or(true);
    if known.len() >= MANY {
        known.clear();
    }
    known.insert(address, (Instant::now(), here));
    here
}

fn of_interfaces() -> OwnAddresses {
    static KNOWN: Mutex<Option<(Instant, OwnAddresses)>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, own)) = known.as_ref()
        && at.elapsed() <= FRESH
    {
        return own.clone();
    }
    let Ok(addresses) = interfaces::interface_addresses() else {
        return OwnAddresses::Unknown;
    };
    let own: OwnAddresses = addresses.into_iter().collect();
    *known = Some((Instant::now(), own.clone()));
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_routes_lead_here_is_ours_whatever_the_interfaces_have() {
        let here: IpAddr = [127, 77, 0, 1].into();
        let elsewhere: IpAddr = [192, 0, 2, 1].into();
        let OwnAddresses::Known(own) = own_addresses(&[here, elsewhere]) else {
            panic!("the interfaces are not known");
        };
        assert!(own.contains(&here) && !own.contains(&elsewhere), "{own:?}");
        let OwnAddresses::Known(own) = own_addresses(&[]) else {
            panic!("the interfaces are not known");
        };
        assert!(!own.contains(&here), "{own:?}");
    }
}
