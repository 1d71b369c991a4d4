//! DNS messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sbx_proxy::wire::dns::{
    DnsError, Query, answer_addresses, answer_ptr, empty, error_reply, framed, nxdomain,
    parse_query, refused, reverse_name, servfail, take_framed,
};

/// A query is read the same way again when it is written anew, and every answer fits, repeats the question and is
/// not itself taken for a query.
pub fn fuzz_dns_message(data: &[u8]) {
    if let Some((message, used)) = take_framed(data) {
        assert_eq!(framed(message), data.get(..used).unwrap_or_default());
    }
    match parse_query(data) {
        Ok(query) => {
            check_name(&query.name);
            let mut plain = query.clone();
            plain.edns_size = None;
            assert_eq!(parse_query(&write(&query)), Ok(plain));
            check_answers(&query);
            check_answers(&query.over_tcp());
        }
        Err(error) => {
            if let Some(reply) = error_reply(data, error) {
                assert_eq!(parse_query(&reply), Err(DnsError::NotAQuery));
                assert_eq!(reply.first_chunk::<2>(), data.first_chunk::<2>());
            }
        }
    }
}

fn check_name(name: &str) {
    assert!(name == "." || name.len() <= 253);
    assert!(
        name.bytes().all(|byte| byte.is_ascii_lowercase()
            || byte.is_ascii_digit()
            || b"-_.".contains(&byte))
    );
    if let Some(address) = reverse_name(name) {
        assert_eq!(reverse_name(&pointer(address)), Some(address));
        assert_eq!(pointer(address), name);
    }
}

/// The name under which an address is looked up.
fn pointer(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            let nibbles: String = (0..32)
                .map(|place| format!("{:x}.", (bits >> (4 * place)) & 15))
                .collect();
            nibbles + "ip6.arpa"
        }
    }
}

/// The question alone, in a message of its own.
fn write(query: &Query) -> Vec<u8> {
    let mut out = query.id.to_be_bytes().to_vec();
    out.extend_from_slice(&[u8::from(query.rd), 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&query.question);
    out
}

fn check_answers(query: &Query) {
    let addresses: Vec<IpAddr> = (0..100_u8)
        .flat_map(|n| {
            [
                IpAddr::from(Ipv4Addr::new(10, 0, 0, n)),
                IpAddr::from(Ipv6Addr::from([n; 16])),
            ]
        })
        .collect();
    let answers = [
        answer_addresses(query, &addresses, 60),
        answer_ptr(query, "host.example", 60),
        empty(query),
        refused(query),
        servfail(query),
        nxdomain(query),
    ];
    for answer in answers {
        assert!(answer.len() <= query.limit());
        assert_eq!(
            answer.get(12..12 + query.question.len()),
            Some(query.question.as_slice())
        );
        assert_eq!(parse_query(&answer), Err(DnsError::NotAQuery));
    }
}
