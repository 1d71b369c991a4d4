//! The redirect of a sandbox's network: one batch of nf_tables messages, the same for every sandbox.
//!
//! A default route of type `local` makes every address local ([`crate::route::Change::LocalDefaultRoute`]); these rules
//! redirect what is sent there to the engine's listeners, whatever the port, so that every port stays free for
//! programs inside. In the syntax of `nft`:
//!
//! ```text
//! table inet sbx {
//!   chain output { type nat hook output priority -99
//!     oif != lo return; ip saddr != $v4 return; ip6 saddr != $v6 return         # not egress
//!     ip daddr {$v4, 127.0.0.0/8, 224.0.0.0/3} return; ip6 daddr {$v6, ::1, ff00::/8} return
//!     tcp|udp dport 53 redirect to :$dns; tcp|udp redirect to :$tcp; icmp|icmpv6 drop
//!   }
//!   chain prerouting { type nat hook prerouting priority -99                     # from containers inside
//!     iif lo return; fib daddr . iif type local return; ip: fib daddr type local return; ip6 daddr $v6 return
//!     ip daddr 224.0.0.0/3 return; ip6 daddr ff00::/8 return; fib daddr oif != 0 return
//!     tcp|udp dport 53 redirect to :$dns; tcp|udp redirect to :$tcp; icmp|icmpv6 drop
//!   }
//! }
//! ```
//!
//! The priority is one after `dstnat`: translations of a nested Docker or Kubernetes come first. UDP other than DNS goes
//! to a port without a listener: the sender gets ECONNREFUSED, and the packet does not reach a program inside that
//! happens to use the port. A ping to an outside address is dropped, because the sandbox itself would answer it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use rustix::net::netlink::NETFILTER;

use crate::netlink::{ACK, APPEND, Attributes, Batch, CREATE, exchange};

/// What is redirected, and to which ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirect {
    /// The source addresses of egress.
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
    pub tcp_port: u16,
    pub dns_port: u16,
}

/// Installs the rules in the current network namespace, all or nothing (one nf_tables transaction).
pub fn install(redirect: &Redirect) -> io::Result<()> {
    let (batch, last_rule) = messages(redirect);
    exchange(Some(NETFILTER), &batch, [last_rule])
}

/// Whether an error of [`install`] means that this kernel lacks nf_tables or its redirect.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::ENOENT)
    )
}

const TABLE: &str = "sbx";
const OUTPUT: &str = "output";
const PREROUTING: &str = "prerouting";

const BATCH_BEGIN: u16 = libc::NFNL_MSG_BATCH_BEGIN as u16;
const BATCH_END: u16 = libc::NFNL_MSG_BATCH_END as u16;
const SUBSYSTEM: u16 = libc::NFNL_SUBSYS_NFTABLES as u16;
const NEW_TABLE: u16 = libc::NFT_MSG_NEWTABLE as u16;
const NEW_CHAIN: u16 = libc::NFT_MSG_NEWCHAIN as u16;
const NEW_RULE: u16 = libc::NFT_MSG_NEWRULE as u16;

const V4: u8 = libc::NFPROTO_IPV4 as u8;
const V6: u8 = libc::NFPROTO_IPV6 as u8;
const PROTOCOLS: [u8; 2] = [libc::IPPROTO_TCP as u8, libc::IPPROTO_UDP as u8];
const ICMP: [u8; 2] = [libc::IPPROTO_ICMP as u8, libc::IPPROTO_ICMPV6 as u8];
const DNS: u16 = 53;
const LOOPBACK: u32 = 1;
/// One after `NF_IP_PRI_NAT_DST`, which is -100.
const PRIORITY: i32 = -99;
const RETURN: i32 = libc::NFT_RETURN;
const DROP: i32 = libc::NF_DROP;

/// The batch, and the number of its last rule.
fn messages(redirect: &Redirect) -> (Batch, u32) {
    let mut batch = Batch::default();
    // struct nfgenmsg: family, version, and for begin and end of a batch the subsystem.
    let [high, low] = SUBSYSTEM.to_be_bytes();
    batch.push(BATCH_BEGIN, 0, &[0, 0, high, low], |_| {});
    push(&mut batch, NEW_TABLE, CREATE, |list| list.text(1, TABLE));
    chain(&mut batch, OUTPUT, libc::NF_INET_LOCAL_OUT);
    for rule in output(redirect) {
        push_rule(&mut batch, OUTPUT, CREATE | APPEND, &rule);
    }
    chain(&mut batch, PREROUTING, libc::NF_INET_PRE_ROUTING);
    let mut rules = prerouting(redirect);
    let last = rules.pop();
    for rule in rules {
        push_rule(&mut batch, PREROUTING, CREATE | APPEND, &rule);
    }
    // One acknowledgement is enough: it comes after the commit, and an error of any message comes unasked.
    if let Some(rule) = last {
        push_rule(&mut batch, PREROUTING, CREATE | APPEND | ACK, &rule);
    }
    let last_rule = batch.count();
    batch.push(BATCH_END, 0, &[0, 0, high, low], |_| {});
    (batch, last_rule)
}

fn output(redirect: &Redirect) -> Vec<Vec<Expression>> {
    let (v4, v6) = (redirect.v4.octets(), redirect.v6.octets());
    let mut rules = vec![
        skip([meta(libc::NFT_META_OIF), differs(&LOOPBACK.to_ne_bytes())]),
        skip_v4([V4_SOURCE, differs(&v4)]),
        skip_v4([V4_DESTINATION, equals(&v4)]),
        skip_v4([V4_DESTINATION_NET, equals(&[127])]),
        skip_v4([V4_DESTINATION_NET, at_least(224)]),
        skip_v6([V6_SOURCE, differs(&v6)]),
        skip_v6([V6_DESTINATION, equals(&v6)]),
        skip_v6([V6_DESTINATION, equals(&Ipv6Addr::LOCALHOST.octets())]),
        skip_v6([V6_DESTINATION_NET, equals(&[0xff])]),
    ];
    rules.extend(redirects(redirect));
    rules
}

fn prerouting(redirect: &Redirect) -> Vec<Vec<Expression>> {
    let local = u32::from(libc::RTN_LOCAL).to_ne_bytes();
    let mut rules = vec![
        skip([meta(libc::NFT_META_IIF), equals(&LOOPBACK.to_ne_bytes())]),
        // The receiving device's own addresses, for example a bridge's.
        skip([TYPE_AT_DEVICE, equals(&local)]),
        // All addresses of the sandbox. Not for IPv6, where the local default route makes every address `local` here.
        skip_v4([TYPE, equals(&local)]),
        skip_v6([V6_DESTINATION, equals(&redirect.v6.octets())]),
        skip_v4([V4_DESTINATION_NET, at_least(224)]),
        skip_v6([V6_DESTINATION_NET, equals(&[0xff])]),
        // A route to another device: another container.
        skip([ROUTE, differs(&0_u32.to_ne_bytes())]),
    ];
    rules.extend(redirects(redirect));
    rules
}

fn redirects(redirect: &Redirect) -> Vec<Vec<Expression>> {
    let mut rules = Vec::new();
    for protocol in PROTOCOLS {
        let of_protocol = [meta(libc::NFT_META_L4PROTO), equals(&[protocol])];
        let to_dns = [DESTINATION_PORT, equals(&DNS.to_be_bytes())];
        let to = |port| [Expression::Port(port), Expression::Redirect];
        rules.push([&of_protocol[..], &to_dns, &to(redirect.dns_port)].concat());
        rules.push([&of_protocol[..], &to(redirect.tcp_port)].concat());
    }
    for protocol in ICMP {
        let of_protocol = [meta(libc::NFT_META_L4PROTO), equals(&[protocol])];
        rules.push([&of_protocol[..], &[Expression::Verdict(DROP)]].concat());
    }
    rules
}

/// One expression of a rule. Values pass through register 1 (`NFT_REG_1`).
#[derive(Debug, Clone)]
enum Expression {
    Meta { key: i32 },
    Payload { base: i32, offset: u32, length: u32 },
    Fib { result: u32, flags: u32 },
    Compare { how: i32, value: Vec<u8> },
    Verdict(i32),
    Port(u16),
    Redirect,
}

const fn network(offset: u32, length: u32) -> Expression {
    Expression::Payload {
        base: libc::NFT_PAYLOAD_NETWORK_HEADER,
        offset,
        length,
    }
}

const V4_SOURCE: Expression = network(12, 4);
const V4_DESTINATION: Expression = network(16, 4);
const V4_DESTINATION_NET: Expression = network(16, 1);
const V6_SOURCE: Expression = network(8, 16);
const V6_DESTINATION: Expression = network(24, 16);
const V6_DESTINATION_NET: Expression = network(24, 1);
const DESTINATION_PORT: Expression = Expression::Payload {
    base: libc::NFT_PAYLOAD_TRANSPORT_HEADER,
    offset: 2,
    length: 2,
};

const FIB_OIF: u32 = 1;
const FIB_TYPE: u32 = 3;
const FIB_DESTINATION: u32 = 1 << 1;
const FIB_AT_DEVICE: u32 = 1 << 3;
/// The output device of the route to the destination; 0 for a local one.
const ROUTE: Expression = Expression::Fib {
    result: FIB_OIF,
    flags: FIB_DESTINATION,
};
const TYPE: Expression = Expression::Fib {
    result: FIB_TYPE,
    flags: FIB_DESTINATION,
};
const TYPE_AT_DEVICE: Expression = Expression::Fib {
    result: FIB_TYPE,
    flags: FIB_DESTINATION | FIB_AT_DEVICE,
};

fn meta(key: i32) -> Expression {
    Expression::Meta { key }
}

fn compare(how: i32, value: &[u8]) -> Expression {
    let value = value.to_vec();
    Expression::Compare { how, value }
}

fn equals(value: &[u8]) -> Expression {
    compare(libc::NFT_CMP_EQ, value)
}

fn differs(value: &[u8]) -> Expression {
    compare(libc::NFT_CMP_NEQ, value)
}

fn at_least(value: u8) -> Expression {
    compare(libc::NFT_CMP_GTE, &[value])
}

/// A rule that ends the chain, without a redirect, if the test holds.
fn skip(test: [Expression; 2]) -> Vec<Expression> {
    let [load, compare] = test;
    vec![load, compare, Expression::Verdict(RETURN)]
}

fn skip_v4(test: [Expression; 2]) -> Vec<Expression> {
    skip_family(V4, test)
}

fn skip_v6(test: [Expression; 2]) -> Vec<Expression> {
    skip_family(V6, test)
}

fn skip_family(family: u8, test: [Expression; 2]) -> Vec<Expression> {
    let mut rule = vec![meta(libc::NFT_META_NFPROTO), equals(&[family])];
    rule.extend(skip(test));
    rule
}

fn push(batch: &mut Batch, kind: u16, flags: u16, attributes: impl FnOnce(&mut Attributes<'_>)) {
    let family = libc::NFPROTO_INET as u8;
    batch.push(SUBSYSTEM << 8 | kind, flags, &[family, 0, 0, 0], attributes);
}

fn chain(batch: &mut Batch, name: &str, hook: i32) {
    push(batch, NEW_CHAIN, CREATE, |list| {
        list.text(1, TABLE);
        list.text(3, name);
        list.nested(4, |list| {
            list.be32(1, hook.cast_unsigned());
            list.be32(2, PRIORITY.cast_unsigned());
        });
        list.text(7, "nat");
    });
}

fn push_rule(batch: &mut Batch, chain: &str, flags: u16, rule: &[Expression]) {
    push(batch, NEW_RULE, flags, |list| {
        list.text(1, TABLE);
        list.text(2, chain);
        list.nested(4, |list| {
            for expression in rule {
                list.nested(1, |list| expression.write(list));
            }
        });
    });
}

impl Expression {
    fn write(&self, list: &mut Attributes<'_>) {
        const REGISTER: u32 = libc::NFT_REG_1 as u32;
        const VERDICT: u32 = libc::NFT_REG_VERDICT as u32;
        const PORT_GIVEN: u32 = 1 << 1;
        match self {
            Self::Meta { key } => named(list, "meta", |list| {
                list.be32(1, REGISTER);
                list.be32(2, key.cast_unsigned());
            }),
            Self::Payload {
                base,
                offset,
                length,
            } => named(list, "payload", |list| {
                list.be32(1, REGISTER);
                list.be32(2, base.cast_unsigned());
                list.be32(3, *offset);
                list.be32(4, *length);
            }),
            Self::Fib { result, flags } => named(list, "fib", |list| {
                list.be32(1, REGISTER);
                list.be32(2, *result);
                list.be32(3, *flags);
            }),
            Self::Compare { how, value } => named(list, "cmp", |list| {
                list.be32(1, REGISTER);
                list.be32(2, how.cast_unsigned());
                list.nested(3, |list| list.bytes(1, value));
            }),
            Self::Verdict(verdict) => named(list, "immediate", |list| {
                list.be32(1, VERDICT);
                list.nested(2, |list| {
                    list.nested(2, |list| list.be32(1, verdict.cast_unsigned()));
                });
            }),
            Self::Port(port) => named(list, "immediate", |list| {
                list.be32(1, REGISTER);
                list.nested(2, |list| list.bytes(1, &port.to_be_bytes()));
            }),
            Self::Redirect => named(list, "redir", |list| {
                list.be32(1, REGISTER);
                list.be32(3, PORT_GIVEN);
            }),
        }
    }
}

fn named(list: &mut Attributes<'_>, name: &str, data: impl FnOnce(&mut Attributes<'_>)) {
    list.text(1, name);
    list.nested(2, data);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect() -> Redirect {
        Redirect {
            v4: Ipv4Addr::new(10, 0, 2, 15),
            v6: Ipv6Addr::LOCALHOST,
            tcp_port: 61951,
            dns_port: 61953,
        }
    }

    #[test]
    fn the_batch_begins_ends_and_is_acknowledged_once() {
        let (batch, last_rule) = messages(&redirect());
        let mut kinds = Vec::new();
        let mut rest = batch.bytes();
        while !rest.is_empty() {
            let size = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            assert_eq!(size % 4, 0);
            kinds.push(u16::from_ne_bytes(rest[4..6].try_into().unwrap()));
            let acknowledged = u16::from_ne_bytes(rest[6..8].try_into().unwrap()) & ACK != 0;
            let number = u32::from_ne_bytes(rest[8..12].try_into().unwrap());
            assert_eq!(acknowledged, number == last_rule);
            rest = &rest[size..];
        }
        let rules = |count| vec![0xa06_u16; count];
        let expected = [
            &[0x10, 0xa00, 0xa03][..],
            &rules(15),
            &[0xa03],
            &rules(13),
            &[0x11],
        ];
        assert_eq!(kinds, expected.concat());
    }

    #[test]
    fn a_rule_is_what_nft_sends() {
        let mut batch = Batch::default();
        let rule = skip([meta(libc::NFT_META_OIF), differs(&LOOPBACK.to_ne_bytes())]);
        push_rule(&mut batch, OUTPUT, CREATE | APPEND, &rule);
        let mut expected = vec![
            172, 0, 0, 0, 6, 10, 1, 12, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
        ];
        expected.extend(b"\x08\0\x01\0sbx\0\x0b\0\x02\0output\0\0\x84\0\x04\x80");
        expected.extend(b"\x24\0\x01\x80\x09\0\x01\0meta\0\0\0\0\x14\0\x02\x80");
        expected.extend(b"\x08\0\x01\0\0\0\0\x01\x08\0\x02\0\0\0\0\x05");
        expected.extend(b"\x2c\0\x01\x80\x08\0\x01\0cmp\0\x20\0\x02\x80");
        expected.extend(b"\x08\0\x01\0\0\0\0\x01\x08\0\x02\0\0\0\0\x01\x0c\0\x03\x80");
        expected.extend(b"\x08\0\x01\0\x01\0\0\0");
        expected.extend(b"\x30\0\x01\x80\x0e\0\x01\0immediate\0\0\0\x1c\0\x02\x80");
        expected.extend(b"\x08\0\x01\0\0\0\0\0\x10\0\x02\x80\x0c\0\x02\x80");
        expected.extend(b"\x08\0\x01\0\xff\xff\xff\xfb");
        assert_eq!(batch.bytes(), expected);
    }

    #[test]
    fn ports_are_in_network_order() {
        let (batch, _) = messages(&redirect());
        let has = |port: u16| {
            let port = port.to_be_bytes();
            batch.bytes().windows(2).any(|two| two == port)
        };
        assert!(has(61951) && has(61953));
    }
}
