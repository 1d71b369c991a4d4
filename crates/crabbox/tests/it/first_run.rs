//! The first run of a user who has nothing of ours yet, on our own engine.

use crate::bundled_engine::Own;
use crate::world::{blocked, write};

/// What the first command of the README runs.
fn readme_command() -> String {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let command = readme.split("/crabbox run -- '").nth(1);
    let command = command.and_then(|rest| rest.split('\'').next()).unwrap();
    assert!(command.contains("id"), "{command}");
    command.to_owned()
}

/// A user may be forbidden what a sandbox needs: then the engine's own checks say so. Any other failure is one of ours.
fn is_blocked(own: &Own, code: i32, said: &str) -> bool {
    let is_blocked = code != 0 && !own.can_work();
    if is_blocked {
        blocked(said.trim());
    }
    is_blocked
}

/// A command of this user shows at once that it works and what it prepares, and prepares nothing the second time. How
/// long that takes is measured by `scripts/bench-crabbox`.
fn shows_what_it_prepares(own: &Own) {
    let command = ["run", "--", &readme_command()];
    let mut run = own.start_on_terminal(&command);
    // It comes from a timer, whatever the engine does meanwhile.
    run.expect("Creating a sandbox (bundled engine)...");
    assert!(!run.shown.contains("uid="), "{}", run.shown);
    let (code, shown) = run.end();
    if is_blocked(own, code, &shown) {
        return;
    }
    assert_eq!(code, 0, "{shown}");
    let at = |text: &str| {
        shown
            .find(text)
            .unwrap_or_else(|| panic!("{text}: {shown}"))
    };
    let prepares = at("Preparing the template from this machine's system");
    assert!(prepares < at("uid="), "{shown}");
    let (code, shown) = own.on_terminal(&command);
    assert_eq!(code, 0, "{shown}");
    assert!(!shown.contains("Preparing"), "{shown}");
    own.is_clean();
}

#[test]
fn the_first_run_shows_at_once_that_it_works_and_what_it_prepares() {
    if let Some(own) = Own::unused(false) {
        shows_what_it_prepares(&own);
    }
}

#[test]
fn the_first_run_of_a_user_with_subordinate_ids_is_as_that_of_root() {
    if let Some(own) = Own::of_user("sbxsub") {
        shows_what_it_prepares(&own);
    }
}

#[test]
fn the_first_run_of_a_user_with_one_id_is_as_that_of_root() {
    if let Some(own) = Own::of_user("sbxone") {
        shows_what_it_prepares(&own);
    }
}

/// As a user has it who once used another product of this kind.
#[test]
fn a_state_directory_of_another_product_does_not_break_the_first_run() {
    let Some(own) = Own::unused(true) else { return };
    let foreign = own.world.path("home/.docker/sandboxes/of-another-product");
    write(&foreign, "x");
    // What doctor says is the truth about the next run.
    let doctor = own.crabbox(&["doctor"]);
    let ran = own.crabbox(&["run", "--keep", "--slug", "k", "--", "cat", "README"]);
    if is_blocked(&own, ran.code, &ran.err) {
        assert_ne!(doctor.code, 0, "{}", doctor.out);
        return;
    }
    doctor.exits(0);
    assert_eq!(ran.ok(), "hello\n");
    let taken = own.world.path("state/sbx");
    assert!(taken.join(".sbx-owner").exists());
    let left = std::fs::read_dir(foreign.parent().unwrap()).unwrap();
    assert_eq!(left.count(), 1);
    let doctor = own.crabbox(&["doctor"]).exits(0);
    assert!(doctor.out.contains("found=bundled"), "{}", doctor.out);
    let diagnosed = own.sbx(&["diagnose", "--output", "json"]);
    assert!(
        diagnosed.out.contains(taken.to_str().unwrap()),
        "{}",
        diagnosed.out
    );
    // Another directory would be another engine.
    let claim = own.world.claim(&own.world.claim_names().remove(0));
    let scope = format!("XDG_STATE_HOME={}", own.world.path("state").display());
    assert_eq!(claim["providerScope"], scope.as_str());
    own.crabbox(&["stop", "k"]).exits(0);
    own.is_clean();
}
