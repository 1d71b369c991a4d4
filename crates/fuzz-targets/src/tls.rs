//! TLS client hellos.

use sbx_policy::Host;
use sbx_proxy::wire::sniff::{Traffic, classify};
use sbx_proxy::wire::tls::{ClientHello, MAX_SNIFFED, Sniff, sniff};

use crate::prefixes::settles;

/// The answer does not depend on how the hello is cut into segments or records, and its name is one that policy
/// takes for a name.
pub fn fuzz_client_hello(data: &[u8]) {
    match settles(data, &Sniff::NeedMore, sniff) {
        Sniff::NeedMore => assert!(data.len() < MAX_SNIFFED),
        Sniff::Hello(hello) => {
            check(&hello);
            refragment(data, &hello);
            assert_eq!(classify(data), Traffic::Tls(hello));
        }
        Sniff::Malformed => assert_eq!(classify(data), Traffic::BadTls),
        Sniff::NotTls => assert!(!matches!(classify(data), Traffic::Tls(_) | Traffic::BadTls)),
    }
}

fn check(hello: &ClientHello) {
    assert!(hello.alpn.iter().all(|protocol| !protocol.is_empty()));
    let Some(name) = &hello.server_name else {
        return;
    };
    if let Ok(host) = Host::parse(name) {
        assert_eq!(
            host.as_name().map(|name| name.as_str()),
            Some(name.as_str())
        );
    }
}

/// The same handshake message in other records is the same hello.
fn refragment(data: &[u8], hello: &ClientHello) {
    let Some(message) = message(data) else {
        return;
    };
    for size in [7, 16_384] {
        let mut records = Vec::new();
        for part in message.chunks(size) {
            records.extend_from_slice(&[22, 3, 3]);
            records.extend_from_slice(&u16::try_from(part.len()).unwrap_or_default().to_be_bytes());
            records.extend_from_slice(part);
        }
        if records.len() < MAX_SNIFFED {
            assert_eq!(sniff(&records), Sniff::Hello(hello.clone()));
        }
    }
}

/// The handshake message out of the records of a hello that was accepted.
fn message(mut data: &[u8]) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    loop {
        let ([_, _, _, high, low], rest) = data.split_first_chunk::<5>()?;
        let (payload, rest) =
            rest.split_at_checked(usize::from(u16::from_be_bytes([*high, *low])))?;
        message.extend_from_slice(payload);
        if let [_, a, b, c, body @ ..] = message.as_slice() {
            let length = usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).ok()?;
            if body.len() >= length {
                return Some(message);
            }
        }
        data = rest;
    }
}
