//! Processes and pipes of init's own that root inside can reach: it ends the former and empties the latter, and
//! neither may keep init from its work, or let what did not happen look as if it had.

use std::fs;

use super::{PYTHON, sbx, script};
use crate::ModeTest;
use crate::harness::{Sandbox, World, eventually};

pub(crate) const TESTS: &[ModeTest] = &[(
    "an_init_does_not_wait_for_output_that_was_taken_back",
    taken_back,
)];

/// An attack that runs on by itself as root; begun when the file `said` is there.
fn begin(sandbox: &Sandbox<'_>, attack: &str, settings: &[(&str, &str)]) {
    let program = sandbox.path("attack.py");
    let said = sandbox.path("said");
    let _ = fs::remove_file(&said);
    let settings = [settings, &[("SAID", said.to_str().unwrap())]].concat();
    sandbox.world.write(&program, script(attack, &settings));
    let program = program.to_str().unwrap();
    let args = ["exec", "-d", "-u", "root", &sandbox.name, PYTHON, program];
    sbx(sandbox.world, &args).ok();
    eventually("the attack says something", || said.exists().then_some(()));
}

fn taken_back(shared: &'static World) {
    // An init that stands still is not to be in the way of other tests.
    let world = World::fresh(shared.mode);
    let sandbox = world.sandbox("taken-back");
    let attack = include_str!("attack/taken_back.py");
    begin(&sandbox, attack, &[("TURNS", "20000")]);
    assert_eq!(
        sbx(&world, &["exec", &sandbox.name, "echo", "awake"]).ok(),
        "awake"
    );
}
