//! Addresses that a name must not lead to by accident. The owner of a name's DNS zone controls its addresses, so a
//! wildcard that allows the name must not open the host, its local network or a cloud's credential service.
//!
//! The list is closed on purpose: documentation networks (192.0.2.0/24 and the like) and reserved ones (240.0.0.0/4)
//! are ordinary addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::builtin_names::HOST_ALIAS;

/// A range that is reached only when a rule names the address, or a rule for exactly one host allows private addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedRange {
    network: IpAddr,
    prefix: u8,
    /// What the range is, as the end of "ADDRESS is ...".
    pub reason: &'static str,
    /// Who says so.
    pub citation: &'static str,
}

/// Single metadata services stand before the ranges that contain them, so that the reason is the telling one.
const REFUSED: [RefusedRange; 20] = [
    v4(
        [169, 254, 169, 254],
        32,
        "a cloud metadata service",
        "AWS, Azure, GCP instance metadata",
    ),
    v4(
        [168, 63, 129, 16],
        32,
        "a cloud metadata service",
        "Azure WireServer",
    ),
    v4(
        [192, 0, 0, 192],
        32,
        "a cloud metadata service",
        "Oracle Cloud classic metadata",
    ),
    v4(
        [100, 100, 100, 200],
        32,
        "a cloud metadata service",
        "Alibaba Cloud metadata",
    ),
    v6(
        [0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254],
        128,
        "a cloud metadata service",
        "AWS IMDS over IPv6",
    ),
    v4([10, 0, 0, 0], 8, "a private address", "RFC 1918"),
    v4([172, 16, 0, 0], 12, "a private address", "RFC 1918"),
    v4([192, 168, 0, 0], 16, "a private address", "RFC 1918"),
    v4(
        [127, 0, 0, 0],
        8,
        "a loopback address of the host",
        "RFC 1122, 3.2.1.3",
    ),
    v4([169, 254, 0, 0], 16, "a link-local address", "RFC 3927"),
    v4(
        [0, 0, 0, 0],
        8,
        "an address of this host",
        "RFC 1122, 3.2.1.3",
    ),
    v4(
        [100, 64, 0, 0],
        10,
        "a shared address of a carrier or overlay network",
        "RFC 6598",
    ),
    v4([224, 0, 0, 0], 4, "a multicast address", "RFC 5771"),
    v6(
        [0, 0, 0, 0, 0, 0, 0, 1],
        128,
        "the loopback address of the host",
        "RFC 4291, 2.5.3",
    ),
    v6(
        [0, 0, 0, 0, 0, 0, 0, 0],
        128,
        "the unspecified address",
        "RFC 4291, 2.5.2",
    ),
    v6(
        [0xfc00, 0, 0, 0, 0, 0, 0, 0],
        7,
        "a unique local address",
        "RFC 4193",
    ),
    v6(
        [0xfe80, 0, 0, 0, 0, 0, 0, 0],
        10,
        "a link-local address",
        "RFC 4291, 2.5.6",
    ),
    v6(
        [0xfec0, 0, 0, 0, 0, 0, 0, 0],
        10,
        "a site-local address",
        "RFC 3879",
    ),
    // Which IPv4 address one of these carries depends on the length of the network's own prefix (RFC 6052, 2.2), which
    // only its operator knows: it may be any of the above.
    v6(
        [0x64, 0xff9b, 1, 0, 0, 0, 0, 0],
        48,
        "a translated address of a local network",
        "RFC 8215",
    ),
    v6(
        [0xff00, 0, 0, 0, 0, 0, 0, 0],
        8,
        "a multicast address",
        "RFC 4291, 2.7",
    ),
];

/// Why an address needs a rule that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Range(&'static RefusedRange),
    /// The machine that sandboxes run on has it: what listens there is a service of the host.
    Local,
}

/// As the end of "ADDRESS is ...".
impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(range) => write!(f, "{} ({})", range.reason, range.citation),
            Self::Local => write!(
                f,
                "an address of this machine (its services are {HOST_ALIAS})"
            ),
        }
    }
}

/// The range that forbids `address`, checked by the IPv4 address inside if it carries one.
pub fn refused_range(address: IpAddr) -> Option<&'static RefusedRange> {
    let address = effective_address(address);
    REFUSED.iter().find(|range| range.contains(address))
}

/// The address that packets will really reach: an IPv4 address that is mapped (RFC 4291), compatible (RFC 4291,
/// deprecated), translated by NAT64's well-known prefix (RFC 6052) or the end of a 6to4 tunnel (RFC 3056) stands for
/// itself.
pub fn effective_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => embedded_ipv4(v6).map_or(address, |(v4, _)| IpAddr::V4(v4)),
    }
}

/// The length of the prefix in front of the IPv4 address that an IPv6 address carries, if it carries one.
pub(crate) fn carrier_length(address: IpAddr) -> Option<u8> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) => embedded_ipv4(v6).map(|(_, prefix)| prefix),
    }
}

fn embedded_ipv4(address: Ipv6Addr) -> Option<(Ipv4Addr, u8)> {
    let [a, b, c, d, e, f, high, low] = address.segments();
    let joined = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => Some((joined(high, low), 96)),
        // `::` and `::1` have meanings of their own.
        [0, 0, 0, 0, 0, 0] if high != 0 || low > 1 => Some((joined(high, low), 96)),
        [0x2002, ..] => Some((joined(b, c), 16)),
        _ => None,
    }
}

impl RefusedRange {
    fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.prefix))
                    .unwrap_or(0);
                u32::from(address) & mask == u32::from(network)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix))
                    .unwrap_or(0);
                u128::from(address) & mask == u128::from(network)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

const fn v4(
    octets: [u8; 4],
    prefix: u8,
    reason: &'static str,
    citation: &'static str,
) -> RefusedRange {
    let [a, b, c, d] = octets;
    RefusedRange {
        network: IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        prefix,
        reason,
        citation,
    }
}

const fn v6(
    segments: [u16; 8],
    prefix: u8,
    reason: &'static str,
    citation: &'static str,
) -> RefusedRange {
    let [a, b, c, d, e, f, g, h] = segments;
    RefusedRange {
        network: IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)),
        prefix,
        reason,
        citation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_every_range() {
        let refused = [
            "10.0.0.0",
            "10.255.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.168.0.0",
            "192.168.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.0.0",
            "169.254.169.254",
            "169.254.255.255",
            "0.0.0.0",
            "0.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "224.0.0.0",
            "239.255.255.255",
            "168.63.129.16",
            "192.0.0.192",
            "100.100.100.200",
            "::",
            "::1",
            "fc00::",
            "fdff::1",
            "fd00:ec2::254",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "::10.0.0.1",
            "::7f00:1",
            "::2",
        ];
        for text in refused {
            assert!(refused_range(text.parse().unwrap()).is_some(), "{text}");
        }
        let ordinary = [
            "9.255.255.255",
            "11.0.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "1.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "223.255.255.255",
            "240.0.0.0",
            "255.255.255.255",
            "192.0.2.1",
            "198.51.100.1",
            "203.0.113.1",
            "192.0.0.191",
            "168.63.129.17",
            "198.18.0.1",
            "2001:db8::1",
            "fbff::1",
            "2606:4700::1111",
            "64:ff9b::8.8.8.8",
            "::ffff:8.8.8.8",
        ];
        for text in ordinary {
            assert!(refused_range(text.parse().unwrap()).is_none(), "{text}");
        }
    }

    #[test]
    fn ipv6_forms_of_refused_ranges_are_refused() {
        let refused = [
            "fec0::1",
            "feff::1",
            "64:ff9b:1::a00:1",
            "64:ff9b:1:a00:0:100::",
            "2002:a00:1::",
            "2002:7f00:1::1",
            "2002:a9fe:a9fe:1::1",
            "2002:c0a8:101::",
        ];
        for text in refused {
            assert!(refused_range(text.parse().unwrap()).is_some(), "{text}");
        }
        let ordinary = ["64:ff9b:2::a00:1", "2002:808:808::1", "2003:a00:1::"];
        for text in ordinary {
            assert!(refused_range(text.parse().unwrap()).is_none(), "{text}");
        }
    }

    #[test]
    fn metadata_is_called_by_its_name() {
        let range = refused_range("fd00:ec2::254".parse().unwrap()).unwrap();
        assert_eq!(range.reason, "a cloud metadata service");
    }
}
