//! The loopback device, addresses, routes and rules of the current network namespace, over rtnetlink.

use std::io;
use std::net::IpAddr;

use rustix::net::Protocol;

use crate::netlink::{ACK, Batch, CREATE, EXCLUSIVE, ask, exchange};

/// Number 0, which is what a socket has when none is given.
const ROUTE: Option<Protocol> = None;
/// `lo` is the first device of every network namespace.
const LOOPBACK: u32 = 1;

const UP: u32 = libc::IFF_UP as u32;
const NO_DETECTION: u8 = libc::IFA_F_NODAD as u8;
const MAIN: u8 = libc::RT_TABLE_MAIN;
const BY_BOOT: u8 = libc::RTPROT_BOOT;
const HOST: u8 = libc::RT_SCOPE_HOST;
const LOCAL: u8 = libc::RTN_LOCAL;
/// Where a `struct rtmsg` has its type.
const KIND_OF_ROUTE: usize = 7;
const FRA_PRIORITY: u16 = 6;
const FR_ACT_TO_TBL: u8 = 1;

/// One change of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    LoopbackUp,
    /// An address of the loopback device, by itself.
    Address(IpAddr),
    /// Every address that no other route knows is local. Packets to it come from `source`.
    ///
    /// In the main table: a route to a bridge, which is there too, is more specific and wins.
    EverythingIsLocal {
        source: IpAddr,
    },
    /// A rule that says once more what the default ones say. With any rule of its own a namespace has separate
    /// local and main tables; without, IPv4 looks into both as one, and then takes every address that
    /// [`Change::EverythingIsLocal`] leads here for its own.
    SeparateTables,
}

/// Applies all of them in order; the first that fails ends it.
pub fn apply(changes: &[Change]) -> io::Result<()> {
    let batch = messages(changes);
    exchange(ROUTE, &batch, 1..=batch.count())
}

/// Whether this machine itself is what answers at the address, as its routes are now, whatever has it or not.
pub fn leads_here(address: IpAddr) -> io::Result<bool> {
    let (family, octets) = parts(address);
    let length = if address.is_ipv4() { 32 } else { 128 };
    let fixed = [family, length, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut batch = Batch::default();
    batch.push(libc::RTM_GETROUTE, 0, &fixed, |list| {
        list.bytes(libc::RTA_DST, &octets);
    });
    let (kind, route) = match ask(ROUTE, &batch) {
        Ok(answer) => answer,
        Err(error) if leads_nowhere(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    match route.get(KIND_OF_ROUTE) {
        Some(found) if kind == libc::RTM_NEWROUTE => {
            Ok([LOCAL, libc::RTN_ANYCAST, libc::RTN_BROADCAST].contains(found))
        }
        Some(_) | None => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn leads_nowhere(error: &io::Error) -> bool {
    let nowhere = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES];
    error
        .raw_os_error()
        .is_some_and(|errno| nowhere.contains(&errno))
}

fn messages(changes: &[Change]) -> Batch {
    let mut batch = Batch::default();
    for change in changes {
        match change {
            Change::LoopbackUp => loopback_up(&mut batch),
            Change::Address(address) => add_address(&mut batch, *address),
            Change::EverythingIsLocal { source } => local_default(&mut batch, *source),
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
    // struct ifaddrmsg: family, prefix length, flags, scope; device. Nobody else can have the address.
    let length = if address.is_ipv4() { 32 } else { 128 };
    let mut fixed = vec![family, length, NO_DETECTION, 0];
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
        // Just before the kernel's own rule for the same table.
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
            Change::EverythingIsLocal { source: v4 },
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
    fn routes_lead_here_or_elsewhere() {
        // All of 127.0.0.0/8 is routed here, and only one address of it is on an interface.
        for here in ["127.0.0.1", "127.77.0.1"] {
            assert!(leads_here(here.parse().unwrap()).unwrap(), "{here}");
        }
        // Whether there is a route to it or none.
        assert!(!leads_here("192.0.2.1".parse().unwrap()).unwrap());
    }

    #[test]
    fn the_twin_has_its_own_family() {
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let batch = messages(&[Change::Address(v6)]);
        assert_eq!(batch.bytes()[16..20], [10, 128, 2, 0]);
    }
}
