//! The addresses of this machine's interfaces.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// All of them, in the network namespace of the caller.
pub fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let mut list = ptr::null_mut();
    // SAFETY: it writes one pointer to where `list` is.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut next = list;
    // SAFETY: each entry is one of the list, or the null that ends it, and the list is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        addresses.extend(address_of(entry.ifa_addr));
        next = entry.ifa_next;
    }
    // SAFETY: it is what getifaddrs gave us, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(addresses)
}

fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: null, or an address that begins with its family.
    let family = unsafe { address.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: of this family it is a `sockaddr_in`.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: of this family it is a `sockaddr_in6`.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_ours_and_others_are_not() {
        let own = own_addresses().unwrap();
        assert!(own.contains(&Ipv4Addr::LOCALHOST.into()), "{own:?}");
        assert!(!own.contains(&IpAddr::from([192, 0, 2, 1])), "{own:?}");
    }
}
