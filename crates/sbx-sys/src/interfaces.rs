//! The addresses of the network interfaces.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// Every address of every interface in the calling thread's network namespace.
pub fn interface_addresses() -> io::Result<Vec<IpAddr>> {
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
    // SAFETY: the list is from getifaddrs, and nothing refers to it any more.
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
    fn loopback_is_listed_and_a_documentation_address_is_not() {
        let addresses = interface_addresses().unwrap();
        assert!(
            addresses.contains(&Ipv4Addr::LOCALHOST.into()),
            "{addresses:?}"
        );
        assert!(
            !addresses.contains(&IpAddr::from([192, 0, 2, 1])),
            "{addresses:?}"
        );
    }
}
