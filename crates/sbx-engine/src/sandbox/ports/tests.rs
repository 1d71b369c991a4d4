use proptest::prelude::*;

use super::*;

fn published(text: &str) -> Vec<String> {
    let spec = PublishSpec::parse(text).unwrap();
    let records = spec.records();
    records
        .iter()
        .map(|port| port.mapping().to_string())
        .collect()
}

#[test]
fn what_a_specification_publishes() {
    for (text, expected) in [
        ("80", &["127.0.0.1:0->80/tcp4"][..]),
        ("8080:80", &["127.0.0.1:8080->80/tcp4"]),
        ("0:80", &["127.0.0.1:0->80/tcp4"]),
        (
            "8080:80/tcp",
            &["127.0.0.1:8080->80/tcp", "[::1]:8080->80/tcp"],
        ),
        ("8080:80/tcp6", &["[::1]:8080->80/tcp6"]),
        ("53/udp", &["127.0.0.1:0->53/udp", "[::1]:0->53/udp"]),
        ("53:53/udp4", &["127.0.0.1:53->53/udp4"]),
        ("53/udp6", &["[::1]:0->53/udp6"]),
        ("0.0.0.0:8080:80", &["0.0.0.0:8080->80/tcp4"]),
        ("192.0.2.1::80/tcp", &["192.0.2.1:0->80/tcp"]),
        ("[::1]:8080:80/tcp6", &["[::1]:8080->80/tcp6"]),
        ("[::1]:8080:80", &["[::1]:8080->80/tcp6"]),
        ("[::]:8080:80/tcp", &["[::]:8080->80/tcp"]),
    ] {
        assert_eq!(published(text), expected, "{text}");
    }
}

#[test]
fn invalid_specifications_are_refused() {
    for text in [
        "",
        " ",
        "0",
        "80 ",
        "+80",
        "-1",
        "65536",
        "a",
        "80/",
        "80/sctp",
        "80/TCP",
        "80/tcp/udp",
        ":80",
        "::80",
        "8080:",
        "8080:0",
        "x:80",
        "1:2:3",
        "1:2:3:4",
        "::1:8080:80",
        "[127.0.0.1]:1:2/tcp4",
        "[::1]:8080:80/tcp4",
        "127.0.0.1:8080:80/tcp6",
        "localhost:1:2",
        "999.0.0.1:1:2",
        "1.2.3:1:2",
        "8080:80/tcp4 ",
        "８０",
    ] {
        let parsed = PublishSpec::parse(text);
        assert!(parsed.is_err(), "{text}: {parsed:?}");
    }
}

#[test]
fn either_end_names_a_mapping() {
    let of = |texts: &[&str]| -> Vec<PortRecord> {
        let specs = texts.iter().map(|text| PublishSpec::parse(text).unwrap());
        specs.flat_map(|spec| spec.records()).collect()
    };
    let ports = of(&["8080:80", "8081:80/tcp", "9000:8080", "53:53/udp4"]);
    let chosen = |text: &str| -> Vec<String> {
        let chosen = UnpublishSpec::parse(text).unwrap().select(&ports);
        chosen
            .iter()
            .map(|port| port.mapping().to_string())
            .collect()
    };
    let (first, second) = ("127.0.0.1:8080->80/tcp4", "127.0.0.1:8081->80/tcp");
    assert_eq!(chosen("80"), [first, second, "[::1]:8081->80/tcp"]);
    assert_eq!(chosen("80/tcp4"), [first]);
    assert_eq!(chosen("80/udp"), [""; 0]);
    assert_eq!(chosen("8080:80"), [first]);
    assert_eq!(chosen("127.0.0.1:8081:80"), [second]);
    // A sandbox's port where there is one, else the host's.
    assert_eq!(chosen("8080"), ["127.0.0.1:9000->8080/tcp4"]);
    assert_eq!(chosen("9000"), ["127.0.0.1:9000->8080/tcp4"]);
    assert_eq!(chosen("53/udp"), ["127.0.0.1:53->53/udp4"]);
    assert_eq!(chosen("7"), [""; 0]);
}

proptest! {
    #[test]
    fn any_text_parses_or_is_refused(text in "\\PC{0,40}|[0-9:./\\[\\]a-fx]{0,30}") {
        // What is accepted can be bound: its parts are in range.
        if let Ok(spec) = PublishSpec::parse(&text) {
            let records = spec.records();
            prop_assert!(!records.is_empty() && records.iter().all(|port| port.sandbox_port > 0));
            prop_assert!(records.iter().all(|port| port.protocol.has_family(port.host_ip)));
            prop_assert!(UnpublishSpec::parse(&text).is_ok());
        }
    }

    #[test]
    fn what_is_shown_names_the_mapping(host in 1..=u16::MAX, inside in 1..=u16::MAX, six: bool) {
        let text = match six {
            true => format!("[::1]:{host}:{inside}/tcp6"),
            false => format!("127.0.0.1:{host}:{inside}/udp4"),
        };
        let ports = PublishSpec::parse(&text).unwrap().records();
        prop_assert_eq!(UnpublishSpec::parse(&text).unwrap().select(&ports), ports.clone());
        prop_assert_eq!(ports[0].host_port, host);
    }

    /// As it is written back for another start.
    #[test]
    fn what_was_published_together_can_be_written_again(host in 1..=u16::MAX, protocol in 0..Protocol::ALL.len(), any: bool) {
        let protocol = Protocol::ALL[protocol];
        let ip = match (any, protocol) {
            (false, _) => "",
            (true, Protocol::Tcp6 | Protocol::Udp6) => "[::]:",
            (true, _) => "0.0.0.0:",
        };
        let text = format!("{ip}{host}:80/{protocol}");
        let records = PublishSpec::parse(&text).unwrap().records();
        let ports: Vec<_> = records.iter().map(PortRecord::mapping).collect();
        prop_assert_eq!(together(&ports).collect::<Vec<_>>(), [ports.as_slice()]);
        prop_assert_eq!(publish_text(&ports, Some(host)), text);
        let free = PublishSpec::parse(&publish_text(&ports, None)).unwrap().records();
        let places: Vec<_> = free.iter().map(|port| port.host_ip).collect();
        prop_assert_eq!(places, ports.iter().map(|port| port.host_ip).collect::<Vec<_>>());
        prop_assert!(free.iter().all(|port| port.ephemeral));
    }
}
