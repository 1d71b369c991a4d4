//! SOCKS greetings and requests.

use sbx_proxy::wire::socks5::{Address, Greeting, Request, parse_greeting, parse_request};

use crate::prefixes::settles;

/// The answer does not depend on how the bytes arrive, takes no more than there are, and can be written again.
pub fn fuzz_socks(data: &[u8]) {
    if let Ok(Some((greeting, used))) = settles(data, &Ok(None), parse_greeting) {
        assert!(used <= data.len());
        assert_eq!(greeting == Greeting::Socks4, used == 0);
    }
    if let Ok(Some((request, used))) = settles(data, &Ok(None), parse_request) {
        assert!(used <= data.len());
        assert_ne!(request.port, 0);
        let bytes = write(&request);
        assert_eq!(parse_request(&bytes), Ok(Some((request, bytes.len()))));
    }
}

fn write(request: &Request) -> Vec<u8> {
    let text = match &request.address {
        Address::Ip(ip) => ip.to_string(),
        Address::Name(name) => {
            assert!(
                !name
                    .bytes()
                    .any(|byte| byte.is_ascii_uppercase() || byte <= b' ')
            );
            name.clone()
        }
    };
    let mut out = vec![5, 1, 0, 3, u8::try_from(text.len()).unwrap_or_default()];
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(&request.port.to_be_bytes());
    out
}
