//! Whatever a repository's file is, it gains nothing.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn line() -> impl Strategy<Value = String> {
    let key = prop_oneof![
        Just("madeUp"),
        Just("madeUp.cliPath"),
        Just("  cliPath"),
        Just("  apiURL"),
        Just("  cpus"),
        Just("profile"),
        Just("provider"),
        Just("env"),
        Just("  allow"),
        Just("ttl"),
        Just("lease"),
        Just("  ttl"),
        Just("profiles"),
        Just("  p"),
        Just("    envAllow"),
        Just("    env"),
        Just("<<"),
        Just("x"),
        Just("? madeUp"),
        Just("'madeUp'"),
    ];
    let value = prop_oneof![
        Just(""),
        Just("evil"),
        Just("{cliPath: evil}"),
        Just("{allow: [TOKEN]}"),
        Just("[TOKEN]"),
        Just("99h"),
        Just("&a {cliPath: evil}"),
        Just("*a"),
        Just("{<<: *a}"),
        Just("made-up"),
        Just("mine"),
        Just("\"\\x65vil\""),
        Just("|"),
        Just("!!str evil"),
        Just("[CI]"),
        Just("{p: {envAllow: [TOKEN]}}"),
    ];
    (key, value).prop_map(|(key, value)| format!("{key}: {value}\n"))
}

/// What holds of a repository's file however it is written: it is refused, or nothing of it needed trust.
fn nothing_untrusted(bytes: Vec<u8>) {
    let mut case = Case::default()
        .user("profiles: {mine: {envAllow: [MINE]}}")
        .repository("");
    case.repository[0].bytes = bytes;
    let Ok(settings) = case.load() else { return };
    assert_eq!(settings.text("madeUp", "cliPath"), "made");
    assert_eq!(settings.text("madeUp", "apiURL"), "");
    assert_eq!(settings.provider(), "fallback");
    assert_ne!(settings.text(None, "profile"), "mine");
    assert!(settings.duration(None, "ttl") <= Duration::from_secs(5400));
    assert!(
        settings
            .list("env", "allow")
            .iter()
            .all(|name| ["CI", "NODE_OPTIONS"].contains(&name.as_str()))
    );
    for profile in settings.profiles.values() {
        assert!(
            profile
                .allow
                .iter()
                .all(|name| ["CI", "NODE_OPTIONS", "MINE"].contains(&name.as_str()))
        );
    }
    let _ = (
        show_json(&settings),
        show_text(&settings, Some("/c".as_ref())),
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_never_gain_trust(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        nothing_untrusted(bytes);
    }

    #[test]
    fn no_spelling_of_a_file_gains_trust(lines in proptest::collection::vec(line(), 1..8)) {
        nothing_untrusted(lines.concat().into_bytes());
    }
}
