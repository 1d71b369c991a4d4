//! The loopback device, addresses, routes and rules of the current network namespace, over rtnetlink.
//!
//! A sandbox has no device but `lo`. A default route of type `local` through it makes the kernel accept packets to every
//! address as its own, so that a listener inside can answer for any destination ([`crate::nft`] chooses which).

use std::io;
use std::net::IpAddr;

use rustix::net::Protocol;

use crate::netlink::{ACK, Batch, CREATE, EXCLUSIVE, exchange, query};

/// `NETLINK_ROUTE` is protocol 0, the default of a socket.
const ROUTE: Option<Protocol> = None;
/// The index of `lo`: it is the first device of every network namespace.
const LOOPBACK: u32 = 1;

const UP: u32 = libc::IFF_UP as u32;
const NO_DAD: u8 = libc::IFA_F_NODAD as u8;
const MAIN: u8 = libc::RT_TABLE_MAIN;
const BY_BOOT: u8 = libc::RTPROT_BOOT;
const HOST: u8 = libc::RT_SCOPE_HOST;
const LOCAL: u8 = libc::RTN_LOCAL;
/// The offset of `rtm_type` in `struct rtmsg`.
const RTM_TYPE: usize = 7;
const FRA_PRIORITY: u16 = 6;
const FR_ACT_TO_TBL: u8 = 1;

/// One change of the network configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    LoopbackUp,
    /// An address of the loopback device, as /32 or /128.
    Address(IpAddr),
    /// A default route of type `local`: every address without a more specific route is local. Packets to it have the
    /// source address `source`.
    ///
    /// It is in the main table, where the route of a bridge inside is more specific and wins.
    LocalDefaultRoute {
        source: IpAddr,
    },
    /// A copy of the default rule for the main table. As long as a namespace has only the default rules, IPv4 keeps the
    /// local and the main table as one (`fib_unmerge`), and then counts every address that
    /// [`Change::LocalDefaultRoute`] covers as the sandbox's own.
    SeparateTables,
}

/// Applies the changes in order, up to the first that fails.
pub fn apply(changes: &[Change]) -> io::Result<()> {
    let batch = messages(changes);
    exchange(ROUTE, &batch, 1..=batch.count())
}

/// Whether packets to the address would be delivered to this machine, as its routes are now, even if no interface has the
/// address.
pub fn is_routed_locally(address: IpAddr) -> io::Result<bool> {
    let (family, octets) = parts(address);
    let length = if address.is_ipv4() { 32 } else { 128 };
    let fixed = [family, length, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut batch = Batch::default();
    batch.push(libc::RTM_GETROUTE, 0, &fixed, |list| {
        list.bytes(libc::RTA_DST, &octets);
    });
    let (kind, route) = match query(ROUTE, &batch) {
        Ok(answer) => answer,
        Err(error) if is_unreachable(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    match route.get(RTM_TYPE) {
        Some(found) if kind == libc::RTM_NEWROUTE => {
            Ok([LOCAL, libc::RTN_ANYCAST, libc::RTN_BROADCAST].contains(found))
        }
        Some(_) | None => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn is_unreachable(error: &io::Error) -> bool {
    let unreachable = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES];
    error
        .raw_os_error()
        .is_some_and(|errno| unreachable.contains(&errno))
}

fn messages(changes: &[Change]) -> Batch {
    let mut batch = Batch::default();
    for change in changes {
        match change {
            Change::LoopbackUp => loopback_up(&mut batch),
            Change::Address(address) => add_address(&mut batch, *address),
            Change::LocalDefaultRoute { source } => local_default(&mut batch, *source),
            Change::SeparateTables => main_rule(&mut batch),
        }
    }
    batch
}

fn loopback_up(batch: &mut Batch) {
    // struct ifinfomsg: family, padding, type; index, flags, which flags.
    let mut fixed = vec![0; 4];
    fixed.extend(LOOPBACK.to_ne_bytes());
    fixed.extend(UP.to_ne_bytes());
    fixed.extend(UP.to_ne_bytes());
    batch.push(libc::RTM_NEWLINK, ACK, &fixed, |_| {});
}

fn add_address(batch: &mut Batch, address: IpAddr) {
    let (family, octets) = parts(address);
    // struct ifaddrmsg: family, prefix length, flags, scope; device. No duplicate address detection (DAD): the address
    // cannot be in use elsewhere.
    let length = if address.is_ipv4() { 32 } else { 128 };
    let mut fixed = vec![family, length, NO_DAD, 0];
    fixed.extend(LOOPBACK.to_ne_bytes());
    let flags = ACK | CREATE | EXCLUSIVE;
    batch.push(libc::RTM_NEWADDR, flags, &fixed, |list| {
        list.bytes(libc::IFA_LOCAL, &octets);
        list.bytes(libc::IFA_ADDRESS, &octets);
    });
}

fn local_default(batch: &mut Batch, source: IpAddr) {
    let (family, octets) = parts(source);
    // struct rtmsg: family, lengths of destination and source, tos, table, protocol, scope, type; flags.
    let fixed = [family, 0, 0, 0, MAIN, BY_BOOT, HOST, LOCAL, 0, 0, 0, 0];
    let flags = ACK | CREATE | EXCLUSIVE;
    batch.push(libc::RTM_NEWROUTE, flags, &fixed, |list| {
        list.bytes(libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
        list.bytes(libc::RTA_PREFSRC, &octets);
    });
}

fn main_rule(batch: &mut Batch) {
    // struct fib_rule_hdr: family, lengths of destination and source, tos, table, reserved, action; flags.
    let family = family(libc::AF_INET);
    let fixed = [family, 0, 0, 0, MAIN, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
    let flags = ACK | CREATE | EXCLUSIVE;
    batch.push(libc::RTM_NEWRULE, flags, &fixed, |list| {
        // Just before the default rule for the main table, which has priority 32766.
        list.bytes(FRA_PRIORITY, &32_765_u32.to_ne_bytes());
    });
}

fn parts(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (family(libc::AF_INET), v4.octets().to_vec()),
        IpAddr::V6(v6) => (family(libc::AF_INET6), v6.octets().to_vec()),
    }
}

fn family(family: libc::c_int) -> u8 {
    u8::try_from(family).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn messages_are_what_iproute_sends() {
        let v4 = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 15));
        let batch = messages(&[
            Change::LoopbackUp,
            Change::Address(v4),
            Change::LocalDefaultRoute { source: v4 },
            Change::SeparateTables,
        ]);
        // As `strace ip link set lo up`, `ip addr add 10.0.2.15/32 dev lo`, `ip route add local default dev lo
        // src 10.0.2.15 table main` and `ip rule add lookup main pref 32765` show it, but for sequence numbers.
        #[rustfmt::skip]
        let expected: &[u8] = &[
            32, 0, 0, 0, 16, 0, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0,
            40, 0, 0, 0, 20, 0, 5, 6, 2, 0, 0, 0, 0, 0, 0, 0,
            2, 32, 2, 0, 1, 0, 0, 0, 8, 0, 2, 0, 10, 0, 2, 15, 8, 0, 1, 0, 10, 0, 2, 15,
            44, 0, 0, 0, 24, 0, 5, 6, 3, 0, 0, 0, 0, 0, 0, 0,
            2, 0, 0, 0, 254, 3, 254, 2, 0, 0, 0, 0, 8, 0, 4, 0, 1, 0, 0, 0, 8, 0, 7, 0, 10, 0, 2, 15,
            36, 0, 0, 0, 32, 0, 5, 6, 4, 0, 0, 0, 0, 0, 0, 0,
            2, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0, 8, 0, 6, 0, 253, 127, 0, 0,
        ];
        assert_eq!(batch.bytes(), expected);
        assert_eq!(batch.count(), 4);
    }

    #[test]
    fn loopback_addresses_are_routed_locally_and_others_are_not() {
        // All of 127.0.0.0/8 is routed locally, and only one address of it is on an interface.
        for local in ["127.0.0.1", "127.77.0.1"] {
            assert!(
                is_routed_locally(local.parse().unwrap()).unwrap(),
                "{local}"
            );
        }
        // With or without a route to it.
        assert!(!is_routed_locally("192.0.2.1".parse().unwrap()).unwrap());
    }

    #[test]
    fn an_ipv6_address_has_its_own_family() {
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let batch = messages(&[Change::Address(v6)]);
        assert_eq!(batch.bytes()[16..20], [10, 128, 2, 0]);
    }
}
