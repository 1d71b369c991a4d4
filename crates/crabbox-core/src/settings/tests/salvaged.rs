//! What stands when something is wrong.

use super::*;

#[test]
fn what_is_right_is_taken_as_it_is() {
    let case = Case::default().user("ttl: 1h\n").repository("ttl: 10m\n");
    let salvaged = case.salvage().unwrap();
    assert_eq!(salvaged.wrong, []);
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
        .salvage()
        .unwrap();
    let wrong: Vec<_> = salvaged.wrong.iter().map(ToString::to_string).collect();
    for (message, part) in wrong.iter().zip([
        "unknown key `bogus`",
        "CRABBOX_MADE_UP_CPUS",
        "CRABBOX_TTL",
        "a repository may not set `madeUp.cliPath`",
    ]) {
        assert!(message.contains(part), "{part}: {wrong:?}");
    }
    assert_eq!(wrong.len(), 4, "{wrong:?}");
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
        .salvage()
        .unwrap();
    // The stronger source is right: nothing is wrong with what holds.
    assert_eq!(salvaged.wrong, []);
    let salvaged = Case::default().user("provider: other\n").salvage();
    let salvaged = salvaged.unwrap();
    assert_eq!(salvaged.wrong, [failure(Code::UnknownProvider, "other")]);
    assert_eq!(salvaged.settings.provider(), "fallback");
}

#[test]
fn the_command_line_is_not_left_out() {
    let wrong = Case::default().flag("made-up-cpus", "many");
    assert_eq!(wrong.salvage().unwrap_err().code, Code::Usage);
    let wrong = Case::default().flag("provider", "other");
    assert_eq!(wrong.salvage().unwrap_err().code, Code::UnknownProvider);
}
