use super::*;
use crate::Code;

fn listing() -> Listing {
    let mut second = claim("x_2").ready();
    second.slug = Slug::normalize("blue-crab");
    second.keep = true;
    second.labels.insert("pond".to_owned(), "north".to_owned());
    let mut first = claim("x_1");
    first.provider = "odd\x1b[2J".to_owned();
    first.expires_at = None;
    first.idle_timeout_seconds = 0;
    first.ttl_seconds = 0;
    Listing::new(&Scan {
        claims: vec![second, first],
        problems: vec![Problem {
            file: "z.json".to_owned(),
            code: ProblemCode::InvalidJson,
            message: "not valid JSON at line 1 column 1".to_owned(),
        }],
    })
}

#[test]
fn for_programs() {
    insta::assert_snapshot!(serde_json::to_string_pretty(&listing()).unwrap(), @r#"
    {
      "version": 1,
      "source": "local-claims",
      "claims": [
        {
          "leaseId": "x_1",
          "slug": "",
          "provider": "odd\u001b[2J",
          "repoRoot": "/src/app",
          "pond": "",
          "targetOS": "",
          "windowsMode": "",
          "claimedAt": "2026-08-01T12:00:00Z",
          "lastUsedAt": "2026-08-01T12:00:00Z",
          "idleTimeoutSeconds": 0,
          "ttlSeconds": 0,
          "state": "creating",
          "keep": false
        },
        {
          "leaseId": "x_2",
          "slug": "blue-crab",
          "provider": "somewhere",
          "repoRoot": "/src/app",
          "pond": "north",
          "targetOS": "",
          "windowsMode": "",
          "claimedAt": "2026-08-01T12:00:00Z",
          "lastUsedAt": "2026-08-01T12:00:00Z",
          "idleTimeoutSeconds": 1800,
          "ttlSeconds": 5400,
          "expiresAt": "2026-08-01T13:30:00Z",
          "dueAt": "2026-08-01T12:30:00Z",
          "dueReason": "idle",
          "state": "ready",
          "keep": true
        }
      ],
      "problems": [
        {
          "file": "z.json",
          "code": "invalid_json",
          "message": "not valid JSON at line 1 column 1"
        }
      ]
    }
    "#);
}

#[test]
fn for_people() {
    insta::assert_snapshot!(listing().text(), @r#"
    Local claims (unverified local state; provider backends were not queried)

    leaseId="x_1"
    provider="odd\u{1b}[2J"
    repoRoot="/src/app"
    state="creating"
    keep="false"
    claimedAt="2026-08-01T12:00:00Z"
    lastUsedAt="2026-08-01T12:00:00Z"
    idleTimeoutSeconds="0"
    ttlSeconds="0"

    leaseId="x_2"
    slug="blue-crab"
    provider="somewhere"
    repoRoot="/src/app"
    pond="north"
    state="ready"
    keep="true"
    claimedAt="2026-08-01T12:00:00Z"
    lastUsedAt="2026-08-01T12:00:00Z"
    idleTimeoutSeconds="1800"
    ttlSeconds="5400"
    expiresAt="2026-08-01T13:30:00Z"
    dueAt="2026-08-01T12:30:00Z"
    dueReason="idle"

    problem="invalid_json"
    file="z.json"
    message="not valid JSON at line 1 column 1"
    "#);
}

#[test]
fn problems_fail_the_command_after_the_listing() {
    let failure = listing().failure().unwrap();
    assert_eq!(failure.code, Code::State);
    assert_eq!(failure.code.exit_code(), 2);
    assert_eq!(failure.message, "local claims have 1 problem");
}

#[test]
fn nothing_is_a_list_too() {
    let listing = Listing::new(&Scan::default());
    assert_eq!(listing.failure(), None);
    assert_eq!(
        serde_json::to_string(&listing).unwrap(),
        r#"{"version":1,"source":"local-claims","claims":[],"problems":[]}"#
    );
    insta::assert_snapshot!(listing.text(), @r"
    Local claims (unverified local state; provider backends were not queried)

    No claims.
    ");
}
