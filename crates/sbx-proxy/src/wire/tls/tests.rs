//! Hellos of a real client, and hellos that no client sends.

use std::sync::Arc;

use proptest::prelude::*;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::{ClientHello, MAX_SNIFFED, Sniff, sniff};

/// The first flight of rustls, in records with at most this payload.
fn rustls_hello(name: &str, alpn: &[&[u8]], fragment: Option<usize>) -> Vec<u8> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.max_fragment_size = fragment;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut out = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut out).unwrap();
    }
    out
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes(), &length16(data)[..]].concat()
}

fn length16(data: &[u8]) -> Vec<u8> {
    [&u16::try_from(data.len()).unwrap().to_be_bytes(), data].concat()
}

fn sni(name: &[u8]) -> Vec<u8> {
    extension(0, &length16(&[&[0], &length16(name)[..]].concat()))
}

/// A hello message with these extensions.
fn message(extensions: &[u8]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    body.extend(length16(extensions));
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1], &length[1..], &body].concat()
}

fn records(message: &[u8], size: usize) -> Vec<u8> {
    message
        .chunks(size)
        .flat_map(|part| [&[22, 3, 1], &length16(part)[..]].concat())
        .collect()
}

fn hello(extensions: &[u8]) -> Sniff {
    sniff(&records(&message(extensions), 16_000))
}

fn named(name: &str) -> Sniff {
    Sniff::Hello(ClientHello {
        server_name: Some(name.to_owned()),
        ..ClientHello::default()
    })
}

/// Asserts that every prefix needs more until the answer is known, and that the answer then stays.
fn settles(bytes: &[u8]) -> Sniff {
    let whole = sniff(bytes);
    for end in 0..bytes.len() {
        let answer = sniff(&bytes[..end]);
        assert!(
            answer == Sniff::NeedMore || answer == whole,
            "{answer:?} at {end}, then {whole:?}"
        );
    }
    whole
}

#[test]
fn a_real_client_is_recognised_in_any_split() {
    for fragment in [None, Some(64), Some(100)] {
        let bytes = rustls_hello("Api.Example.com", &[b"h2", b"http/1.1"], fragment);
        assert_eq!(
            fragment.is_some(),
            bytes.len() > 5 + usize::from(u16::from_be_bytes([bytes[3], bytes[4]]))
        );
        let expected = ClientHello {
            server_name: Some("api.example.com".to_owned()),
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            ech: false,
        };
        assert_eq!(settles(&bytes), Sniff::Hello(expected));
        for end in 0..bytes.len() {
            assert_eq!(sniff(&bytes[..end]), Sniff::NeedMore);
        }
        let more = [&bytes[..], b"\x14\x03\x03\0\x01\x01 early data"].concat();
        assert!(matches!(sniff(&more), Sniff::Hello(_)));
    }
    assert_eq!(
        sniff(&rustls_hello("10.0.0.1", &[], None)),
        Sniff::Hello(ClientHello::default())
    );
}

#[test]
fn tiny_records() {
    assert_eq!(
        settles(&records(&message(&sni(b"a.example")), 1)),
        named("a.example")
    );
}

#[test]
fn names() {
    for name in [
        "a",
        "a.b-c.d_e",
        "xn--bcher-kva.example",
        "1a.2b",
        "1.2.3.4.example",
    ] {
        assert_eq!(hello(&sni(name.as_bytes())), named(name));
    }
    assert_eq!(hello(&sni(b"WWW.Example.COM")), named("www.example.com"));
    let long = format!(
        "{}.{}.{}.{}",
        "a".repeat(63),
        "b".repeat(63),
        "c".repeat(63),
        "d".repeat(62)
    );
    for name in [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a b",
        "a\0.b",
        "a/b",
        "a:443",
        "*.a",
        "b\u{fc}cher.de",
        "1.2.3.4",
        "127.1",
        "0x7f.0x1",
        "2130706433",
        "::1",
        "[::1]",
        "fe80::1%eth0",
        "a@b",
        &"a".repeat(64),
        &long,
    ] {
        assert_eq!(hello(&sni(name.as_bytes())), Sniff::Malformed, "{name:?}");
    }
    assert_eq!(hello(&sni(b"a\xff")), Sniff::Malformed);
}

#[test]
fn extensions_that_disagree() {
    let two_names = length16(&[&[0], &length16(b"a")[..], &[0], &length16(b"b")].concat());
    let other_type = length16(&[&[1], &length16(b"a")[..]].concat());
    let trailing = [length16(&[&[0], &length16(b"a")[..]].concat()), vec![0]].concat();
    let empty_list = length16(&[]);
    for data in [&two_names, &other_type, &trailing, &empty_list, &vec![]] {
        assert_eq!(hello(&extension(0, data)), Sniff::Malformed, "{data:?}");
    }
    assert_eq!(hello(&[sni(b"a"), sni(b"a")].concat()), Sniff::Malformed);
    assert_eq!(
        hello(&[extension(99, b""), extension(99, b"")].concat()),
        Sniff::Malformed
    );
    assert_eq!(hello(&extension(16, &length16(&[0]))), Sniff::Malformed);
    assert_eq!(
        hello(&extension(16, &length16(&[2, b'h']))),
        Sniff::Malformed
    );
    assert_eq!(hello(&[0, 0, 0]), Sniff::Malformed);
    assert_eq!(hello(&[0, 99, 0, 5, 1]), Sniff::Malformed);
}

#[test]
fn encrypted_hellos_are_noticed() {
    let both = [sni(b"relay.example"), extension(0xfe0d, &[0; 10])].concat();
    let Sniff::Hello(hello) = hello(&both) else {
        panic!("a hello")
    };
    assert_eq!(
        (hello.server_name.as_deref(), hello.ech),
        (Some("relay.example"), true)
    );
}

#[test]
fn without_extensions() {
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0, 47, 1, 0]].concat();
    let whole = [&[1, 0, 0, u8::try_from(body.len()).unwrap()][..], &body].concat();
    assert_eq!(
        sniff(&records(&whole, 1000)),
        Sniff::Hello(ClientHello::default())
    );
    let odd_suites = [&[1, 0, 0, 40, 3, 3][..], &[7; 32], &[0, 0, 1, 0, 1, 0]].concat();
    assert_eq!(sniff(&records(&odd_suites, 1000)), Sniff::Malformed);
}

#[test]
fn not_tls() {
    for bytes in [
        &b"GET / HTTP/1.1"[..],
        b"SSH-2.0-x",
        b"\0",
        b"\x80\x2e\x01\x03\x01",
        b"\x16\x02\x01\0\x05\x02",
        b"\x16\0\0\0\0\0",
        b"\x15\x02\x03",
        b"\x19\x03\x03",
        b"\x13\x03\x03",
    ] {
        assert_eq!(settles(bytes), Sniff::NotTls, "{}", bytes.escape_ascii());
    }
}

/// Some server reads each of these.
#[test]
fn a_hello_in_a_record_of_another_version() {
    let mut bytes = records(&message(&sni(b"a.example")), 16_000);
    for version in [[3, 5], [3, 255], [2, 1], [9, 9], [0, 0]] {
        bytes[1..3].copy_from_slice(&version);
        assert_eq!(settles(&bytes), Sniff::Malformed, "{version:?}");
    }
}

/// Some servers skip what comes first, and read the hello behind it.
#[test]
fn a_hello_behind_a_record_of_another_type() {
    let hello = records(&message(&sni(b"a.example")), 16_000);
    for kind in [20, 21, 23, 24] {
        for version in [[3, 0], [3, 1], [3, 3], [3, 9]] {
            let before = [&[kind][..], &version, &[0, 2, 1, 0]].concat();
            let both = [before.clone(), hello.clone()].concat();
            for bytes in [&before, &both] {
                let shown = bytes.escape_ascii();
                assert_eq!(settles(bytes), Sniff::Malformed, "{shown}");
                assert!(!super::may_be_another_protocol(bytes), "{shown}");
            }
        }
    }
}

#[test]
fn records_that_do_not_hold_a_hello() {
    let good = message(&sni(b"a"));
    let mut longer = [&good[..], b"x"].concat();
    longer[3] += 1;
    let cases: &[Vec<u8>] = &[
        vec![22, 3, 1, 0, 0],
        vec![22, 3, 1, 0x40, 1],
        records(&[2, 0, 0, 0], 10),
        records(&[1, 0xff, 0xff, 0xff], 10),
        records(&[&good[..], b"x"].concat(), 1000),
        records(&longer, 1000),
        [records(&good[..9], 100), vec![21, 3, 1, 0, 2, 1, 0]].concat(),
        [records(&good[..9], 100), vec![22, 4, 1, 0, 2, 1, 0]].concat(),
    ];
    for bytes in cases {
        assert_eq!(settles(bytes), Sniff::Malformed, "{}", bytes.escape_ascii());
    }
}

#[test]
fn what_never_ends_is_refused() {
    let endless = records(&[&[1, 0, 0x3f, 0xff][..], &[0; 0x3fff]].concat(), 1);
    assert_eq!(sniff(&endless[..MAX_SNIFFED - 1]), Sniff::NeedMore);
    assert_eq!(sniff(&endless[..MAX_SNIFFED]), Sniff::Malformed);
    assert_eq!(sniff(&endless), Sniff::Malformed);
}

proptest! {
    #[test]
    fn any_bytes_settle(mut bytes in prop::collection::vec(any::<u8>(), 0..200), tls in any::<bool>()) {
        if tls {
            bytes.splice(0..0, [22, 3, 1, 0, 80, 1, 0, 0, 76]);
        }
        settles(&bytes);
    }

    #[test]
    fn a_changed_byte_does_no_harm(at in 0..120_usize, byte in any::<u8>(), size in 1..80_usize) {
        let mut bytes = records(&message(&[sni(b"www.example"), extension(16, &length16(b"\x02h2"))].concat()), size);
        if let Some(slot) = bytes.get_mut(at) {
            *slot = byte;
        }
        settles(&bytes);
    }
}
