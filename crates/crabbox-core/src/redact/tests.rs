use std::io::Write;

use proptest::prelude::*;

use super::*;

fn clean(text: &str) -> String {
    Redactor::default().clean(text).into_owned()
}

#[test]
fn every_shape_is_hidden() {
    for (text, expected) in [
        (
            "Authorization: Basic dXNlcg== x",
            "Authorization: [redacted]",
        ),
        (
            "GET /\nproxy-authorization: Digest a=\"b\"\nHost: h",
            "GET /\nproxy-authorization: [redacted]\nHost: h",
        ),
        (
            r#"{"Authorization": "Bearer abc", "n": 1}"#,
            r#"{"Authorization": "[redacted]", "n": 1}"#,
        ),
        ("api_key=abc next", "api_key=[redacted] next"),
        ("API key: abc next", "API key: [redacted] next"),
        ("OPENAI_API_KEY='a b' c", "OPENAI_API_KEY='[redacted]' c"),
        ("access-token = abc", "access-token = [redacted]"),
        (
            "refreshToken=abc id_token=def",
            "refreshToken=[redacted] id_token=[redacted]",
        ),
        ("client_secret=abc", "client_secret=[redacted]"),
        (
            "aws_secret_access_key=abc/d+e",
            "aws_secret_access_key=[redacted]",
        ),
        ("session token: abc", "session token: [redacted]"),
        ("DB_PASSWORD=é€ x", "DB_PASSWORD=[redacted] x"),
        (
            "login --token abc --json",
            "login --token [redacted] --json",
        ),
        (
            r#"{"apiKey":"a\"b","n":1}"#,
            r#"{"apiKey":"[redacted]","n":1}"#,
        ),
        (
            r#"{"password": "unterminated..."#,
            r#"{"password": "[redacted]"#,
        ),
        (
            r#"msg="{\"token\":\"abc\",\"n\":1}""#,
            r#"msg="{\"token\":\"[redacted]\",\"n\":1}""#,
        ),
        (
            "https://h/p?a=1&sig=abc&X-Amz-Signature=def&x-goog-credential=g#f",
            "https://h/p?a=1&sig=[redacted]&X-Amz-Signature=[redacted]&x-goog-credential=[redacted]",
        ),
        ("https://user:pass@host/p", "https://[redacted]@host/p"),
        ("got bearer abc.def-1~2 back", "got bearer [redacted] back"),
        (
            "a -----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY----- b",
            "a [redacted] b",
        ),
        ("-----BEGIN PRIVATE KEY-----\nabc", "[redacted]"),
    ] {
        assert_eq!(clean(text), expected);
    }
}

/// What other programs let through.
#[test]
fn folded_headers_named_bearers_and_tails_are_hidden() {
    for (text, expected) in [
        (
            "Authorization: Bearer\r\n abc\r\n\tdef\r\nHost: h",
            "Authorization: [redacted]\r\nHost: h",
        ),
        (
            "authorization:\n Bearer abc\n\nx",
            "authorization:[redacted]\n\nx",
        ),
        ("Bearer: abc", "Bearer: [redacted]"),
        ("bearer=abc x", "bearer=[redacted] x"),
        ("Bearer abc,def;g}h'i&j#k l", "Bearer [redacted] l"),
        ("token=abc,def;g}h'i&j#k l", "token=[redacted] l"),
        ("password: a'b&c=d x", "password: [redacted] x"),
        ("--token a&b#c'd e", "--token [redacted] e"),
        ("'token=abc' x", "'token=[redacted]' x"),
        (r#"msg="Bearer abc" x"#, r#"msg="Bearer [redacted]" x"#),
        (
            r#"{\"h\":\"Bearer abc\"}"#,
            r#"{\"h\":\"Bearer [redacted]\"}"#,
        ),
        (
            "https://h/?token=a&b#c'd,e;f&n=1",
            "https://h/?token=[redacted]&n=1",
        ),
        ("https://u:a#b'c@host/p", "https://[redacted]@host/p"),
        (
            "grant=x&client_secret=abc&scope=y",
            "grant=x&client_secret=[redacted]&scope=y",
        ),
    ] {
        assert_eq!(clean(text), expected, "{text}");
    }
}

#[test]
fn ordinary_text_stays() {
    for text in [
        "",
        "sandbox `x` was not found: exit 1",
        "tokens=5",
        "https://host:8080/path?a=1&b=2",
        "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
        "vars=A=set,TOKEN_X=set len=18 secret=true",
        "invalid bearer token",
        "passwords are not accepted",
    ] {
        assert!(matches!(Redactor::default().clean(text), Cow::Borrowed(clean) if clean == text));
    }
}

#[test]
fn known_secrets_are_hidden_longest_first_and_where_they_overlap() {
    let redactor = Redactor::new(["abcd", "abcdef", "defg", "xyz"]);
    assert_eq!(
        redactor.clean("1 abcdef 2 abcd 3 xyz"),
        "1 [redacted] 2 [redacted] 3 xyz"
    );
    assert_eq!(redactor.clean("-abcdefg-"), "-[redacted]-");
    assert_eq!(
        format!("{redactor:?}"),
        "Redactor { known: KnownSecrets(3 secrets) }"
    );
}

#[test]
fn what_hiding_brings_out_is_hidden_too() {
    // Hiding the second makes the first appear.
    let redactor = Redactor::new(["ab[r", "SECRET"]);
    assert!(!redactor.clean("abSECRET").contains("ab[r"));
    // What does not come to rest is hidden as a whole.
    let redactor = Redactor::new(["x[redacted]"]);
    let text = format!("a {}[redacted] b", "x".repeat(10));
    assert_eq!(redactor.clean(&text), "a [redacted] b");
    let text = format!("a {}[redacted] b", "x".repeat(MAX_PASSES));
    assert_eq!(redactor.clean(&text), MARK);
}

#[test]
fn an_excerpt_never_ends_in_half_a_secret() {
    let redactor = Redactor::new(["0123456789"]);
    let text = format!("{}0123456789 tail", "a".repeat(11));
    assert_eq!(redactor.excerpt(text.as_bytes(), 15), "aaaaaaaaaaa[red");
    // The window of four times as much ends within the secret, and hiding brings that end into view.
    let text = format!("0123456789{}0123456789", "0123456789".repeat(5));
    let shown = redactor.excerpt(text.as_bytes().get(..58).unwrap(), 14);
    assert!(!shown.contains('0'), "{shown}");
    assert_eq!(
        redactor.excerpt(b" \x1b[1mred\xff\r\n", 100),
        "\u{fffd}[1mred\u{fffd}"
    );
}

#[test]
fn the_end_of_a_stream_begins_with_no_half_of_a_secret() {
    let redactor = Redactor::new(["SECRET", "CRETIN"]);
    let tail = |skip| {
        let text = b"xSECRETINy";
        String::from_utf8(redactor.clean_tail(text, skip)).unwrap()
    };
    assert_eq!(tail(0), "x[redacted]y");
    for skip in 1..9 {
        assert_eq!(tail(skip), "[redacted]y", "{skip}");
    }
    assert_eq!(tail(9), "y");
    assert_eq!(tail(10), "");
}

fn streamed(redactor: &Redactor, bytes: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut writer = RedactingWriter::new(Vec::new(), redactor);
    let mut rest = bytes;
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let (now, later) = rest.split_at((*sizes.next().unwrap()).clamp(1, rest.len()));
        writer.write_all(now).unwrap();
        writer.flush().unwrap();
        rest = later;
    }
    writer.finish().unwrap()
}

#[test]
fn a_stream_holds_back_less_than_the_longest_secret() {
    let redactor = Redactor::new(["aaaaaaab", "aaaa"]);
    let mut scan = StreamRedactor::new(&redactor);
    for _ in 0..1000 {
        scan.push(b"aaa");
        assert!(scan.held() < 8);
    }
    // What cannot become a secret is not held back at all.
    let mut writer = RedactingWriter::new(Vec::new(), &Redactor::new(["SECRET"]));
    writer.write_all(b"prompt> ").unwrap();
    assert_eq!(writer.finish().unwrap(), b"prompt> ");
}

proptest! {
    #[test]
    fn cleaning_never_fails_and_is_done_after_once(
        text in "(?s)([ -~]|token|password|Bearer |://|\"|\\\\|=|:|@|\\?|&|-----BEGIN |PRIVATE KEY|\\PC|\n){0,40}",
        secrets in proptest::collection::vec("[ab\\[\\]redct]{1,8}", 0..4),
    ) {
        let redactor = Redactor::new(secrets);
        let once = redactor.clean(&text).into_owned();
        prop_assert_eq!(redactor.clean(&once).into_owned(), once.clone());
        redactor.excerpt(text.as_bytes(), 20);
    }

    #[test]
    fn known_secrets_never_survive(
        parts in proptest::collection::vec("[abc]{1,5}", 0..20),
        secrets in proptest::collection::vec("[abc]{4,8}", 1..4),
    ) {
        let text = parts.concat();
        let redactor = Redactor::new(secrets.clone());
        let clean = redactor.clean(&text);
        for secret in &secrets {
            prop_assert!(!clean.contains(secret.as_str()), "{} in {}", secret, clean);
        }
    }

    #[test]
    fn a_stream_says_the_same_however_it_is_split(
        text in "[abcd]{0,60}",
        secrets in proptest::collection::vec("[abcd]{4,8}", 0..4),
        sizes in proptest::collection::vec(1_usize..10, 1..6),
    ) {
        let redactor = Redactor::new(secrets.clone());
        let whole = hide(&text, redactor.known().find(text.as_bytes()));
        let split = String::from_utf8(streamed(&redactor, text.as_bytes(), &sizes)).unwrap();
        prop_assert_eq!(&split, &whole);
        for secret in &secrets {
            prop_assert!(!split.replace(MARK, "|").contains(secret.as_str()));
        }
    }

    #[test]
    fn every_tail_is_free_of_secrets(
        text in "[abcd]{0,60}",
        secrets in proptest::collection::vec("[abcd]{4,8}", 1..4),
        skip in 0_usize..20,
    ) {
        let redactor = Redactor::new(secrets.clone());
        let skip = skip.min(text.len());
        let tail = String::from_utf8(redactor.clean_tail(text.as_bytes(), skip)).unwrap();
        for secret in &secrets {
            prop_assert!(!tail.replace(MARK, "|").contains(secret.as_str()));
        }
    }
}

#[test]
fn reports_about_several_secrets_stay_readable() {
    let redactor = Redactor::default();
    let report = "vars=A_AUTH=set len=3 secret=true,B_TOKEN=empty len=0 secret=true,C=set";
    assert_eq!(redactor.clean(report), report);
    assert_eq!(
        redactor.clean("token=true,hunter2 secret=hunter2,A=set secret=true,PASSWORD=hunter2"),
        "token=[redacted] secret=[redacted] secret=true,PASSWORD=[redacted]"
    );
}
