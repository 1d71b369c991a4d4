use sbx_policy::{Pattern, PatternError};

use crate::support::{host, pattern, target};

#[test]
fn the_apex_matrix() {
    //              resource      apex   one    two    other
    let table = [
        ("h.example", [true, false, false, false]),
        ("*.h.example", [false, true, false, false]),
        ("**.h.example", [false, true, true, false]),
        ("*.*.h.example", [false, false, true, false]),
        ("**.*.h.example", [false, false, true, false]),
        ("?.h.example", [false, true, false, false]),
        ("b.*.h.example", [false, false, true, false]),
        ("**", [true, true, true, true]),
    ];
    let names = ["h.example", "a.h.example", "b.a.h.example", "xh.example"];
    for (resource, expected) in table {
        let got = names.map(|name| pattern(resource).matches(&target(name)));
        assert_eq!(got, expected, "{resource} on {names:?}");
    }
}

#[test]
fn every_form_matches_what_it_says() {
    let table = [
        ("h.example", "h.example:22", true),
        ("h.example:443", "h.example:443", true),
        ("h.example:443", "h.example:80", false),
        ("H.Example.", "h.example:443", true),
        ("bücher.example", "xn--bcher-kva.example:443", true),
        ("*.bücher.example", "a.xn--bcher-kva.example:443", true),
        ("crl*.example.com", "crl3.example.com:80", true),
        ("crl*.example.com", "crl.example.com:80", true),
        ("crl*.example.com", "acrl.example.com:80", false),
        ("crl*.example.com", "crl3.a.example.com:80", false),
        ("crl?.example.com", "crl3.example.com:80", true),
        ("crl?.example.com", "crl.example.com:80", false),
        ("crl?.example.com", "crl33.example.com:80", false),
        ("*-api.example.com:443", "eu-api.example.com:443", true),
        ("a.*.example.com", "a.b.example.com:443", true),
        ("a.*.example.com", "a.b.c.example.com:443", false),
        ("**.crl*.example.com", "x.y.crl3.example.com:80", true),
        ("**.crl*.example.com", "crl3.example.com:80", false),
        ("**:22", "h.example:22", true),
        ("**:22", "h.example:443", false),
        ("**", "192.0.2.1:443", true),
        ("*.2.1", "192.0.2.1:443", false),
        ("192.0.2.1", "192.0.2.1:443", true),
        ("192.0.2.1:22", "192.0.2.1:443", false),
        ("0xc0000201", "192.0.2.1:443", true),
        ("192.0.2.0/24", "192.0.2.77:443", true),
        ("192.0.2.0/24", "192.0.3.1:443", false),
        ("192.0.2.0/24:443", "192.0.2.77:443", true),
        ("192.0.2.0/24:443", "192.0.2.77:80", false),
        ("0.0.0.0/0", "192.0.2.77:80", true),
        ("0.0.0.0/0", "h.example:80", false),
        ("::/0", "[2001:db8::1]:80", true),
        ("2001:db8::1", "[2001:db8::1]:80", true),
        ("[2001:db8::1]", "[2001:db8::1]:80", true),
        ("[2001:db8::1]:443", "[2001:db8::1]:80", false),
        ("2001:db8::/32", "[2001:db8:1::1]:80", true),
        ("[2001:db8::/32]:80", "[2001:db8:1::1]:80", true),
        ("[2001:db8::/32]:81", "[2001:db8:1::1]:80", false),
        ("::ffff:192.0.2.1", "192.0.2.1:443", true),
        ("::ffff:192.0.2.0/120", "192.0.2.9:443", true),
        ("192.0.2.0/24", "[::ffff:192.0.2.9]:443", true),
        ("192.0.2.0/24", "[64:ff9b::192.0.2.9]:443", true),
    ];
    for (resource, wanted, expected) in table {
        match resource.parse::<Pattern>() {
            Ok(pattern) => assert_eq!(
                pattern.matches(&target(wanted)),
                expected,
                "{resource} {wanted}"
            ),
            Err(error) => assert!(!expected, "{resource}: {error}"),
        }
    }
}

#[test]
fn the_canonical_form() {
    let table = [
        ("H.Example.:443", "h.example:443"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("*.H.Example", "*.h.example"),
        ("127.1", "127.0.0.1"),
        ("192.0.2.1/32", "192.0.2.1"),
        ("192.0.2.0/24:443", "192.0.2.0/24:443"),
        ("[2001:DB8::1]", "2001:db8::1"),
        ("[2001:DB8::1]:443", "[2001:db8::1]:443"),
        ("[2001:DB8::/32]:443", "[2001:db8::/32]:443"),
        ("2001:db8::1/128", "2001:db8::1"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("**:443", "**:443"),
        ("h.example:00443", "h.example:443"),
    ];
    for (text, expected) in table {
        assert_eq!(pattern(text).to_string(), expected, "{text}");
    }
}

#[test]
fn what_the_grammar_refuses() {
    let table = [
        "",
        " ",
        "*",
        "*:443",
        "*.",
        "***",
        "a.**",
        "a.**.b",
        "a**.b.com",
        "**b.com",
        "*.*",
        "**.*",
        "a.*",
        "com*",
        "*com",
        "?",
        "a?",
        "*.1",
        "**.0x1",
        "*..com",
        "*.a..com",
        "**.",
        "**.:443",
        "h.example:",
        "h.example:0",
        "h.example:65536",
        "h.example:x",
        "h.example:*",
        "h:1:2",
        "https://h.example",
        "h.example/",
        "h.example/path",
        "10.0.0.0/33",
        "10.0.0.1/8",
        "10.0.0/8",
        "a/8",
        "/8",
        "*/8",
        "[::1",
        "[10.0.0.1]",
        "[h.example]:443",
        "[::1]/64",
        "[::1]443",
        "fe80::1%eth0",
        "u@h.example",
        "h example",
        "h\n.example",
        "*.exa mple.com",
        "*.a@b.com",
        "xn--*.example",
        "bü*.example",
        "*.%41.com",
        "[ab].example.com",
        "a,b",
    ];
    for text in table {
        assert!(text.parse::<Pattern>().is_err(), "{text:?} was accepted");
    }
}

#[test]
fn refusals_say_what_to_write_instead() {
    let message = |text: &str| text.parse::<Pattern>().unwrap_err().to_string();
    assert!(message("*").contains("use `**`"));
    assert!(message("10.0.0.1/8").contains("`10.0.0.0/8`"));
    assert!(message("https://h.example/x").contains("is a URL"));
}

#[test]
fn lists_have_commas() {
    let list = Pattern::parse_list("a.example, *.b.example:443,,10.0.0.0/8,").unwrap();
    let expected = ["a.example", "*.b.example:443", "10.0.0.0/8"].map(pattern);
    assert_eq!(list, expected);
    assert_eq!(Pattern::parse_list(" , "), Err(PatternError::Empty));
    assert!(Pattern::parse_list("a.example,*").is_err());
}

#[test]
fn kinds_of_patterns() {
    //          text            exact  address
    let table = [
        ("h.example", true, false),
        ("h.example:443", true, false),
        ("*.h.example", false, false),
        ("**", false, false),
        ("192.0.2.1", true, true),
        ("192.0.2.0/24", false, true),
    ];
    for (text, exact, address) in table {
        let pattern = pattern(text);
        assert_eq!(
            (pattern.is_exact_host(), pattern.is_address()),
            (exact, address),
            "{text}"
        );
    }
    assert!(pattern("h.example:443").matches_host(&host("h.example")));
}

#[test]
fn patterns_are_strings_in_json() {
    let json = serde_json::to_string(&pattern("*.H.example:443")).unwrap();
    assert_eq!(json, r#""*.h.example:443""#);
    assert_eq!(
        serde_json::from_str::<Pattern>(&json).unwrap(),
        pattern("*.h.example:443")
    );
    assert!(serde_json::from_str::<Pattern>(r#""*""#).is_err());
}

#[test]
fn an_address_that_may_end_in_a_port_is_not_typed() {
    for text in ["::1:443", "a.test, 2001:db8::1:22", "fe80::8080"] {
        let parsed = Pattern::parse_typed_list(text);
        let ambiguous = matches!(parsed, Err(PatternError::Unbracketed(_)));
        assert_eq!(ambiguous, text != "fe80::8080", "{text}: {parsed:?}");
        // A file that has it is read.
        assert!(Pattern::parse_list(text).is_ok());
    }
    for text in [
        "[::1]:443",
        "[::1:443]",
        "2001:db8::1",
        "1:2:3:4:5:6:7:8",
        "::ffff:1.2.3.4",
        "::1:beef",
        "::/0",
    ] {
        assert!(Pattern::parse_typed_list(text).is_ok(), "{text}");
    }
}
