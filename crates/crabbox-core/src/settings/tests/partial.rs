//! What stands when something is failures.

use super::*;

#[test]
fn what_is_right_is_taken_as_it_is() {
    let case = Case::default().user("ttl: 1h\n").repository("ttl: 10m\n");
    let salvaged = case.load_partial().unwrap();
    assert_eq!(salvaged.failures, []);
    assert_eq!(shown(&salvaged.settings), shown(&case.settings()));
}

#[test]
fn each_wrong_source_is_told_and_the_others_hold() {
    let salvaged = Case::default()
        .user("bogus: 1\n")
        .repository("madeUp: {cliPath: ./evil}\n")
        .repository("madeUp: {template: t}\n")
        .env("CRABBOX_MADE_UP_CPUS", "many")
        .env("CRABBOX_MADE_UP_CLI", "/bin/mine")
        .env("CRABBOX_TTL", "soon")
        .env("UNRELATED", "x")
        .flag("made-up-mcp", "m")
        .load_partial()
        .unwrap();
    let failures: Vec<_> = salvaged.failures.iter().map(ToString::to_string).collect();
    for (message, part) in failures.iter().zip([
        "unknown key `bogus`",
        "CRABBOX_MADE_UP_CPUS",
        "CRABBOX_TTL",
        "a repository may not set `madeUp.cliPath`",
    ]) {
        assert!(message.contains(part), "{part}: {failures:?}");
    }
    assert_eq!(failures.len(), 4, "{failures:?}");
    let settings = salvaged.settings;
    assert_eq!(settings.text(SECTION, "cliPath"), "/bin/mine");
    assert_eq!(settings.text(SECTION, "template"), "t");
    assert_eq!(settings.count(SECTION, "cpus"), 0);
    assert_eq!(settings.list(SECTION, "mcp"), ["m"]);
}

#[test]
fn what_loads_and_is_of_no_use_is_left_out_as_well() {
    let salvaged = Case::default()
        .user("provider: other\nttl: 1h\n")
        .env("CRABBOX_PROVIDER", "made-up")
        .load_partial()
        .unwrap();
    // The stronger source is right: nothing is failures with what holds.
    assert_eq!(salvaged.failures, []);
    let salvaged = Case::default().user("provider: other\n").load_partial();
    let salvaged = salvaged.unwrap();
    assert_eq!(salvaged.failures, [failure(Code::UnknownProvider, "other")]);
    assert_eq!(salvaged.settings.provider(), "fallback");
}

#[test]
fn the_command_line_is_not_left_out() {
    let failures = Case::default().flag("made-up-cpus", "many");
    assert_eq!(failures.load_partial().unwrap_err().code, Code::Usage);
    let failures = Case::default().flag("provider", "other");
    assert_eq!(
        failures.load_partial().unwrap_err().code,
        Code::UnknownProvider
    );
}
