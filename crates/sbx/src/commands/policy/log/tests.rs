use super::*;
use crate::netlog::tests::line;

fn some() -> Vec<Row> {
    let mut denied = line("dev", "blocked.test", Outcome::Deny);
    denied.time = "2026-01-29T10:15:26Z".parse().unwrap();
    let mut allowed = line("dev", "ok.test", Outcome::Allow);
    allowed.proxy = sbx_proxy::audit::Via::ForwardBypass;
    allowed.rule_name = Some("default-ai-services".into());
    allowed.reason = "Allowed\nby a rule".into();
    allowed.address = "192.0.2.1:443".parse().ok();
    rows(&[denied.clone(), denied, allowed])
}

#[test]
fn two_tables() {
    let text = to_text(&some(), false, &TimeZone::UTC);
    let expected = "\
Blocked requests:
SANDBOX  TYPE     HOST              ADDRESS  PROXY    RULE  REASON                                 LAST SEEN        COUNT
dev      network  blocked.test:443  -        forward        No matching allow rule (default deny)  10:15:26 29-Jan  2

Allowed requests:
SANDBOX  TYPE     HOST         ADDRESS    PROXY           RULE                 REASON              LAST SEEN        COUNT
dev      network  ok.test:443  192.0.2.1  forward-bypass  default-ai-services  Allowed\\nby a rule  10:15:25 29-Jan  1
";
    assert_eq!(text, expected);
    assert_eq!(to_text(&[], false, &TimeZone::UTC), "No requests found.\n");
}

#[test]
fn quiet_is_entries_only() {
    let text = to_text(&some(), true, &TimeZone::UTC);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(
        !text.contains("SANDBOX") && !text.contains("requests"),
        "{text}"
    );
    assert_eq!(to_text(&[], true, &TimeZone::UTC), "");
}

#[test]
fn the_shape_of_the_json() {
    let expected = json!({
        "blocked_hosts": [{
            "host": "blocked.test:443",
            "address": null,
            "vm_name": "dev",
            "proxy_type": "forward",
            "rule": "",
            "last_seen": "2026-01-29T10:15:26.000000000Z",
            "since": "2026-01-29T10:15:26.000000000Z",
            "count_since": 2,
            "reason": "No matching allow rule (default deny)",
        }],
        "allowed_hosts": [{
            "host": "ok.test:443",
            "address": "192.0.2.1",
            "vm_name": "dev",
            "proxy_type": "forward-bypass",
            "rule": "default-ai-services",
            "last_seen": "2026-01-29T10:15:25.000000000Z",
            "since": "2026-01-29T10:15:25.000000000Z",
            "count_since": 1,
            "reason": "Allowed\nby a rule",
        }],
    });
    assert_eq!(to_json(&some()), expected);
    assert_eq!(
        to_json(&[]),
        json!({"blocked_hosts": [], "allowed_hosts": []})
    );
}

#[test]
fn the_end_of_a_shown_connection_is_not_shown_again() {
    let mut tail = Tail::default();
    let mut open = line("dev", "a.test", Outcome::Allow);
    open.phase = Phase::Open;
    let mut closed = open.clone();
    closed.phase = Phase::Closed;
    let mut show = |line: &Line, json| tail.shown(line, json, &TimeZone::UTC).unwrap();
    assert_eq!(
        show(&open, false).unwrap(),
        "10:15:25 29-Jan  allow  dev  a.test:443  forward  No matching allow rule (default deny)\n"
    );
    assert_eq!(show(&open, false), None);
    assert_eq!(show(&closed, false), None);
    assert!(show(&closed, false).is_some(), "a short one has one line");
    assert!(show(&closed, true).unwrap().starts_with("{\"time\":"));
    // That it was broken off is.
    show(&open, false);
    closed.error = Some("cut: denied by rule no-a".into());
    assert_eq!(
        show(&closed, false).unwrap(),
        "10:15:25 29-Jan  cut    dev  a.test:443  forward  denied by rule no-a\n"
    );
}
