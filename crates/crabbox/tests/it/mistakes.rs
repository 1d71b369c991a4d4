//! What is wrong is said with its place, and the last line of stderr is the cause.

use crate::world::World;

#[test]
fn a_mistake_in_a_file_ends_with_the_cause_after_the_line_it_is_about() {
    let world = World::new();
    world.user_config("ttl: 1h\nbogus: 1\n");
    let ran = world.crabbox(&["list"]).exits(2);
    let file = world.path("config/crabbox/config.yaml");
    assert_eq!(
        ran.err,
        format!(
            "  |\n2 | bogus ...\n  | ^^^^^\nparse config {}: line 2 column 1: unknown key `bogus`\n",
            file.display()
        )
    );
    let told = world.crabbox(&["list", "--json"]).exits(2);
    let told: serde_json::Value = serde_json::from_str(&told.err).unwrap();
    assert_eq!(told["error"]["snippet"], "  |\n2 | bogus ...\n  | ^^^^^");
    assert!(!told["error"]["message"].as_str().unwrap().contains('\n'));
}

#[test]
fn a_wrong_command_line_ends_with_all_of_the_cause() {
    let world = World::new();
    let ran = world.crabbox(&["providers", "describe"]).exits(2);
    assert_eq!(
        ran.last(),
        "the following required arguments were not provided: <PROVIDER>"
    );
    let ran = world.crabbox(&["run", "--keep=perhaps", "--", "true"]);
    let ran = ran.exits(2);
    assert!(
        ran.last().starts_with("invalid value 'perhaps'")
            && ran.last().ends_with("[possible values: true, false]"),
        "{}",
        ran.last()
    );
}

#[test]
fn an_engines_hints_about_its_own_flags_are_left_out() {
    let world = World::new();
    world.behave(
        "fail-before-create",
        "1\n`--template` is not part of this version yet\nhint: leave it out, or use `-t host`",
    );
    let ran = world.crabbox(&["run", "--", "true"]).exits(1);
    assert!(
        ran.last()
            .ends_with("`--template` is not part of this version yet"),
        "{}",
        ran.last()
    );
    ran.never_says("-t host");
}
