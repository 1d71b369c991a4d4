//! Queries in, answers out, and back through a decoder of their own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

const HEADER: usize = 12;

/// A query as `dig` writes it.
fn query(name: &str, qtype: u16, edns: Option<u16>) -> Vec<u8> {
    let mut out = vec![
        0x12,
        0x34,
        1,
        0x20,
        0,
        1,
        0,
        0,
        0,
        0,
        0,
        u8::from(edns.is_some()),
    ];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        out.push(u8::try_from(label.len()).unwrap());
        out.extend(label.bytes());
    }
    out.push(0);
    out.extend(qtype.to_be_bytes());
    out.extend([0, 1]);
    if let Some(size) = edns {
        let cookie = [0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
        out.extend([0, 0, 41]);
        out.extend(size.to_be_bytes());
        out.extend([0, 0, 0x80, 0, 0, 12]);
        out.extend(cookie);
    }
    out
}

fn parsed(name: &str, qtype: u16) -> Query {
    parse_query(&query(name, qtype, None)).unwrap()
}

/// What a client reads from an answer.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    id: u16,
    code: u8,
    truncated: bool,
    question: Vec<u8>,
    /// Type, time to live and data of each record.
    records: Vec<(u16, u32, Vec<u8>)>,
    edns: bool,
}

fn decode(bytes: &[u8]) -> Answer {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    assert_eq!(bytes[2] & 0xf8, 0x80, "an answer to a lookup");
    let mut at = HEADER;
    if word(4) == 1 {
        while bytes[at] != 0 {
            at += usize::from(bytes[at]) + 1;
        }
        at += 5;
    }
    let question = bytes[HEADER..at].to_vec();
    let mut records = Vec::new();
    for _ in 0..word(6) {
        assert_eq!(word(at), 0xc00c);
        assert_eq!(word(at + 4), 1);
        let ttl = (u32::from(word(at + 6)) << 16) | u32::from(word(at + 8));
        let end = at + 12 + usize::from(word(at + 10));
        records.push((word(at + 2), ttl, bytes[at + 12..end].to_vec()));
        at = end;
    }
    let edns = word(10) == 1;
    if edns {
        assert_eq!(bytes[at..], [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        at += 11;
    }
    assert_eq!((word(8), at), (0, bytes.len()));
    Answer {
        id: word(0),
        code: bytes[3] & 15,
        truncated: bytes[2] & 2 != 0,
        question,
        records,
        edns,
    }
}

#[test]
fn a_query_is_read() {
    let bytes = query("wWw.Example.COM", rtype::AAAA, Some(4096));
    let small = query("a", rtype::A, Some(1));
    let query = parse_query(&bytes).unwrap();
    assert_eq!(
        (query.id, query.name.as_str(), query.qtype, query.qclass),
        (0x1234, "www.example.com", 28, class::IN)
    );
    assert_eq!(
        (query.rd, query.edns_size, query.limit()),
        (true, Some(4096), 1232)
    );
    assert_eq!(query.question, bytes[HEADER..HEADER + 21]);
    assert_eq!(parsed("a", rtype::A).limit(), 512);
    assert_eq!(parsed("a", rtype::A).over_tcp().limit(), 65535);
    assert_eq!(parse_query(&small).unwrap().limit(), 512);
    assert_eq!(parsed("", rtype::A).name, ".");
    assert_eq!(parsed("_dmarc.a-b", 16).name, "_dmarc.a-b");
}

#[test]
fn messages_that_are_not_queries_are_refused() {
    let good = query("a.b", 1, None);
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let longest = format!("{}.{}", vec!["a".repeat(63); 3].join("."), "b".repeat(61));
    assert_eq!(parsed(&longest, 1).name, longest);
    let long = format!("{longest}b");
    let mut label64 = query("a.b", 1, None);
    label64.splice(12..14, std::iter::once(64).chain([b'a'; 64]));
    let cases: Vec<(Vec<u8>, DnsError)> = vec![
        (vec![], DnsError::TooShort),
        (good[..11].to_vec(), DnsError::TooShort),
        (vec![0; MAX_QUERY + 1], DnsError::TooLong),
        (changed(2, 0x81), DnsError::NotAQuery),
        (changed(2, 0x29), DnsError::BadOpcode),
        (changed(2, 0x03), DnsError::BadCounts),
        (changed(5, 0), DnsError::BadCounts),
        (changed(5, 2), DnsError::BadCounts),
        (changed(4, 1), DnsError::BadCounts),
        (changed(7, 1), DnsError::BadCounts),
        (changed(9, 1), DnsError::BadCounts),
        (changed(11, 2), DnsError::BadCounts),
        (changed(12, 0xc0), DnsError::BadName),
        (label64, DnsError::BadName),
        (query(&long, 1, None), DnsError::BadName),
        (changed(13, 0), DnsError::UnsupportedName),
        (changed(13, b'.'), DnsError::UnsupportedName),
        (changed(13, b' '), DnsError::UnsupportedName),
        (changed(13, 0xfc), DnsError::UnsupportedName),
        (changed(13, b'*'), DnsError::UnsupportedName),
        (good[..13].to_vec(), DnsError::Truncated),
        (good[..good.len() - 1].to_vec(), DnsError::Truncated),
        (changed(11, 1), DnsError::Truncated),
        ([&good[..], b"x"].concat(), DnsError::TrailingBytes),
    ];
    for (bytes, error) in cases {
        assert_eq!(parse_query(&bytes), Err(error), "{}", bytes.escape_ascii());
    }
    let edns = query("a", 1, Some(1232));
    for (at, byte) in [(19, 1), (21, 6), (25, 1)] {
        let mut bytes = edns.clone();
        bytes[at] = byte;
        assert_eq!(parse_query(&bytes), Err(DnsError::BadAdditional), "{at}");
    }
    assert_eq!(
        parse_query(&edns[..edns.len() - 1]),
        Err(DnsError::Truncated)
    );
}

#[test]
fn addresses_of_the_kind_asked_for() {
    let addresses: [IpAddr; 3] = [
        Ipv4Addr::LOCALHOST.into(),
        Ipv6Addr::LOCALHOST.into(),
        [1, 2, 3, 4].into(),
    ];
    let v4 = decode(&answer_addresses(&parsed("a", rtype::A), &addresses, 60));
    assert_eq!(
        v4.records,
        [(1, 60, vec![127, 0, 0, 1]), (1, 60, vec![1, 2, 3, 4])]
    );
    let v6 = decode(&answer_addresses(
        &parsed("a", rtype::AAAA),
        &addresses,
        u32::MAX,
    ));
    assert_eq!(
        v6.records,
        [(28, u32::MAX, Ipv6Addr::LOCALHOST.octets().to_vec())]
    );
    let other = decode(&answer_addresses(
        &parsed("a", rtype::HTTPS),
        &addresses,
        60,
    ));
    assert_eq!((other.code, other.records), (0, vec![]));
}

#[test]
fn what_does_not_fit_is_cut() {
    let addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST); 200];
    let plain = parsed("example.com", rtype::A);
    let edns = parse_query(&query("example.com", rtype::A, Some(65535))).unwrap();
    for query in [plain.clone(), edns] {
        let bytes = answer_addresses(&query, &addresses, 60);
        let answer = decode(&bytes);
        assert!(
            answer.truncated && bytes.len() <= query.limit() && bytes.len() + 16 > query.limit()
        );
        assert_eq!(answer.edns, query.edns_size.is_some());
    }
    let whole = decode(&answer_addresses(&plain.over_tcp(), &addresses, 60));
    assert_eq!((whole.truncated, whole.records.len()), (false, 200));
}

#[test]
fn names_of_addresses() {
    let query = parsed("1.0.0.10.in-addr.arpa", rtype::PTR);
    let answer = decode(&answer_ptr(&query, "host.example.", 5));
    assert_eq!(answer.records, [(12, 5, b"\x04host\x07example\0".to_vec())]);
    assert_eq!(
        decode(&answer_ptr(&parsed("a", rtype::A), "b", 5)).records,
        []
    );
    for bad in [
        "",
        ".",
        "a..b",
        &"a".repeat(64),
        &vec!["a".repeat(60); 5].join("."),
    ] {
        assert_eq!(decode(&answer_ptr(&query, bad, 5)).code, 2, "{bad:?}");
    }
}

#[test]
fn codes() {
    let query = parsed("Example.com", rtype::A);
    for (bytes, code) in [
        (empty(&query), 0),
        (servfail(&query), 2),
        (nxdomain(&query), 3),
        (refused(&query), 5),
    ] {
        let question = query.question.clone();
        let expected = Answer {
            id: 0x1234,
            code,
            truncated: false,
            question,
            records: vec![],
            edns: false,
        };
        assert_eq!(decode(&bytes), expected);
        assert_eq!(bytes[2] & 1, 1, "recursion was desired");
    }
    assert_eq!(
        formerr(0x1234),
        [0x12, 0x34, 0x80, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn answers_to_what_is_refused() {
    let reply = |bytes: &[u8]| error_reply(bytes, parse_query(bytes).unwrap_err());
    assert_eq!(reply(&[1]), None);
    assert_eq!(
        reply(&answer_addresses(&parsed("a", 1), &[], 1)),
        None,
        "an answer has no answer"
    );
    let mut notify = query("a", 6, None);
    notify[2] = 0x21;
    assert_eq!(reply(&notify).unwrap()[..4], [0x12, 0x34, 0xa1, 0x84]);
    assert_eq!(
        reply(&query("a b", 1, None)).unwrap()[..4],
        [0x12, 0x34, 0x81, 0x85]
    );
    assert_eq!(
        reply(&query("a", 1, None)[..15]).unwrap()[..4],
        [0x12, 0x34, 0x81, 0x81]
    );
}

#[test]
fn reverse_names() {
    let nibbles = "1.".to_owned() + &"0.".repeat(23) + "8.b.d.0.1.0.0.2.ip6.arpa";
    for (name, address) in [
        ("4.3.2.1.in-addr.arpa", "1.2.3.4"),
        ("4.3.2.1.IN-ADDR.arpa.", "1.2.3.4"),
        (nibbles.as_str(), "2001:db8::1"),
    ] {
        assert_eq!(reverse_name(name), Some(address.parse().unwrap()), "{name}");
    }
    for name in [
        "",
        "in-addr.arpa",
        ".in-addr.arpa",
        "3.2.1.in-addr.arpa",
        "5.4.3.2.1.in-addr.arpa",
        "256.3.2.1.in-addr.arpa",
        "04.3.2.1.in-addr.arpa",
        "+4.3.2.1.in-addr.arpa",
        ".3.2.1.in-addr.arpa",
        "4.3.2.1.in-addr.arpa.example",
        &nibbles[2..],
        &format!("0.{nibbles}"),
        &nibbles.replacen('1', "g", 1),
        &nibbles.replacen('1', "10", 1),
    ] {
        assert_eq!(reverse_name(name), None, "{name}");
    }
}

#[test]
fn framing_over_tcp() {
    assert_eq!(take_framed(&[0]), None);
    assert_eq!(take_framed(&[0, 2, 1]), None);
    assert_eq!(take_framed(&[0, 2, 1, 2, 3]), Some((&[1, 2][..], 4)));
    assert_eq!(framed(&[1, 2]), [0, 2, 1, 2]);
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..100), start in any::<bool>()) {
        let mut bytes = bytes;
        if start {
            bytes.splice(0..0, [0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
        }
        if let Err(error) = parse_query(&bytes) {
            error_reply(&bytes, error);
        }
    }

    #[test]
    fn built_queries_are_read_back(
        name in "[a-zA-Z0-9_-]{1,20}(\\.[a-zA-Z0-9_-]{1,20}){0,5}",
        qtype in any::<u16>(),
        edns in any::<Option<u16>>(),
    ) {
        let bytes = query(&name, qtype, edns);
        let parsed = parse_query(&bytes).unwrap();
        prop_assert_eq!((&parsed.name, parsed.qtype, parsed.edns_size), (&name.to_ascii_lowercase(), qtype, edns));
        for end in 0..bytes.len() {
            prop_assert!(parse_query(&bytes[..end]).is_err());
        }
        let answer = decode(&refused(&parsed));
        prop_assert_eq!(answer.question, parsed.question);
    }

    #[test]
    fn addresses_are_read_back(
        v4 in prop::collection::vec(any::<[u8; 4]>(), 0..40),
        v6 in prop::collection::vec(any::<[u8; 16]>(), 0..40),
        ttl in any::<u32>(),
    ) {
        let addresses: Vec<IpAddr> = v6.iter().copied().map(IpAddr::from).chain(v4.iter().copied().map(IpAddr::from)).collect();
        let a = decode(&answer_addresses(&parsed("a", rtype::A).over_tcp(), &addresses, ttl));
        prop_assert!(a.records.iter().map(|(_, _, data)| data.as_slice()).eq(v4.iter().map(|data| &data[..])));
        let aaaa = decode(&answer_addresses(&parsed("a", rtype::AAAA).over_tcp(), &addresses, ttl));
        prop_assert!(aaaa.records.iter().map(|(_, _, data)| data.as_slice()).eq(v6.iter().map(|data| &data[..])));
    }

    #[test]
    fn addresses_and_their_names(bits in any::<u128>()) {
        let v6 = Ipv6Addr::from_bits(bits);
        let nibbles: String = (0..32).map(|n| format!("{:x}.", (bits >> (4 * n)) & 15)).collect();
        prop_assert_eq!(reverse_name(&(nibbles + "ip6.arpa")), Some(v6.into()));
        let [a, b, c, d, ..] = v6.octets();
        prop_assert_eq!(reverse_name(&format!("{d}.{c}.{b}.{a}.in-addr.arpa")), Some([a, b, c, d].into()));
    }
}
