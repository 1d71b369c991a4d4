//! Greetings and requests, good and bad.

use proptest::prelude::*;

use super::*;

fn connect(kind: u8, rest: &[u8]) -> Vec<u8> {
    [&[5, 1, 0, kind], rest].concat()
}

fn named(name: &[u8]) -> Vec<u8> {
    connect(
        3,
        &[&[u8::try_from(name.len()).unwrap()], name, &[1, 187]].concat(),
    )
}

#[test]
fn greetings() {
    type Answer = Result<Option<(Greeting, usize)>, SocksError>;
    let cases: &[(&[u8], Answer)] = &[
        (b"", Ok(None)),
        (&[5], Ok(None)),
        (&[5, 2, 2], Ok(None)),
        (
            &[5, 1, 0],
            Ok(Some((Greeting::Socks5 { no_auth: true }, 3))),
        ),
        (
            &[5, 2, 2, 0, 9],
            Ok(Some((Greeting::Socks5 { no_auth: true }, 4))),
        ),
        (
            &[5, 1, 2, 0],
            Ok(Some((Greeting::Socks5 { no_auth: false }, 3))),
        ),
        (&[5, 0], Err(SocksError::NoMethods)),
        (&[4, 1, 0, 80], Ok(Some((Greeting::Socks4, 0)))),
        (b"GET", Err(SocksError::BadVersion)),
    ];
    for (bytes, expected) in cases {
        assert_eq!(parse_greeting(bytes), *expected, "{bytes:?}");
    }
}

#[test]
fn requests() {
    let cases: &[(Vec<u8>, Address)] = &[
        (
            connect(1, &[10, 0, 0, 1, 1, 187]),
            Address::Ip([10, 0, 0, 1].into()),
        ),
        (
            connect(4, &[&[0; 15][..], &[1, 1, 187]].concat()),
            Address::Ip(Ipv6Addr::LOCALHOST.into()),
        ),
        (
            named(b"Example.com"),
            Address::Name("example.com".to_owned()),
        ),
        (named(b"10.0.0.1"), Address::Ip([10, 0, 0, 1].into())),
        (named(b"::1"), Address::Ip(Ipv6Addr::LOCALHOST.into())),
        (named(b"a.b."), Address::Name("a.b.".to_owned())),
    ];
    for (bytes, address) in cases {
        let expected = Request {
            address: address.clone(),
            port: 443,
        };
        assert_eq!(
            parse_request(bytes),
            Ok(Some((expected, bytes.len()))),
            "{bytes:?}"
        );
        for end in 0..bytes.len() {
            assert_eq!(
                parse_request(&bytes[..end]),
                Ok(None),
                "{bytes:?} until {end}"
            );
        }
    }
}

#[test]
fn refusals() {
    let cases: &[(Vec<u8>, SocksError, Reply)] = &[
        (vec![4], SocksError::BadVersion, Reply::Failure),
        (
            vec![5, 2],
            SocksError::UnsupportedCommand,
            Reply::UnsupportedCommand,
        ),
        (
            vec![5, 3, 0, 1],
            SocksError::UnsupportedCommand,
            Reply::UnsupportedCommand,
        ),
        (vec![5, 1, 1], SocksError::BadReserved, Reply::Failure),
        (
            vec![5, 1, 0, 2],
            SocksError::UnsupportedAddress,
            Reply::UnsupportedAddress,
        ),
        (vec![5, 1, 0, 3, 0], SocksError::BadName, Reply::Failure),
        (
            connect(1, &[1, 2, 3, 4, 0, 0]),
            SocksError::BadPort,
            Reply::Failure,
        ),
        (named(b"a\0.b"), SocksError::BadName, Reply::Failure),
        (named(b"a b"), SocksError::BadName, Reply::Failure),
        (named(b"a@b"), SocksError::BadName, Reply::Failure),
        (named(b"\xff"), SocksError::BadName, Reply::Failure),
        (
            named("b\u{fc}cher.de".as_bytes()),
            SocksError::BadName,
            Reply::Failure,
        ),
        (named(b"[::1]"), SocksError::BadName, Reply::Failure),
        (named(b"fe80::1%lo"), SocksError::BadName, Reply::Failure),
    ];
    for (bytes, error, reply) in cases {
        assert_eq!(parse_request(bytes), Err(*error), "{bytes:?}");
        assert_eq!(error.reply(), *reply);
    }
}

#[test]
fn replies() {
    assert_eq!(Reply::NotAllowed.bytes(), [5, 2, 0, 1, 0, 0, 0, 0, 0, 0]);
    let bound = Reply::Succeeded.with_bound("[::1]:258".parse().unwrap());
    assert_eq!(bound, [&[5, 0, 0, 4][..], &[0; 15], &[1, 1, 2]].concat());
}

proptest! {
    #[test]
    fn any_bytes_settle(mut bytes in prop::collection::vec(any::<u8>(), 0..40), start in any::<bool>(), kind in 0..6_u8) {
        if start {
            bytes.splice(0..0, [5, 1, 0, kind]);
        }
        let (greeting, request) = (parse_greeting(&bytes), parse_request(&bytes));
        for end in 0..bytes.len() {
            let answer = parse_greeting(&bytes[..end]);
            prop_assert!(answer == Ok(None) || answer == greeting);
            let answer = parse_request(&bytes[..end]);
            prop_assert!(answer == Ok(None) || answer == request);
        }
    }
}
