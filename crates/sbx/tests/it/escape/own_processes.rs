//! Processes and pipes of init's own that root inside can reach: it ends the former and empties the latter, and
//! neither may keep init from its work, or let what did not happen look as if it had.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::{PYTHON, sbx, script};
use crate::ModeTest;
use crate::harness::{Sandbox, World, blocked, eventually, tester_is_root};

pub(crate) const TESTS: &[ModeTest] = &[
    ("an_init_keeps_no_socket_of_its_helpers", kept_sockets),
    (
        "an_init_does_not_wait_for_output_that_was_taken_back",
        taken_back,
    ),
    (
        "a_command_that_was_ended_before_it_ran_has_no_exit_code",
        ended_early,
    ),
];
/// With one id there is nothing to hand over.
pub(crate) const REAL_ROOT: &[ModeTest] =
    &[("a_hand_over_that_was_ended_is_done_again", hand_over)];

/// Of the host's network namespace it has the one that commands come by, and connections to that.
fn kept_sockets(world: &'static World) {
    if !tester_is_root() {
        return blocked("only root sees what an init has open");
    }
    let sandbox = world.sandbox("kept");
    sandbox.exec(["true"]).ok();
    let init = world.init_pid(&sandbox.name);
    let listed = fs::read_to_string("/proc/net/unix").unwrap();
    // Number, and path if there is one.
    let of_the_host: BTreeMap<&str, Option<&str>> = listed
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(6);
            Some((words.next()?, words.next()))
        })
        .collect();
    let mut known = 0;
    for entry in fs::read_dir(format!("/proc/{init}/fd")).unwrap() {
        let Ok(to) = fs::read_link(entry.unwrap().path()) else {
            continue; // a connection that ended
        };
        let to = to.to_str().unwrap().to_owned();
        let number = to
            .strip_prefix("socket:[")
            .and_then(|to| to.strip_suffix(']'));
        if let Some(path) = number.and_then(|number| of_the_host.get(number)) {
            assert!(path.is_some_and(|path| path.contains("exec.sock")), "{to}");
            known += 1;
        }
    }
    assert!(known > 0, "the socket that commands come by is not there");
}

/// How often a process is looked for that is there for a moment.
const TRIES: u32 = 20;

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

fn ended_early(world: &'static World) {
    let sandbox = world.sandbox("ended-early");
    let status = world.home().join(world.name("status-file"));
    // Many directories to look for the program in are time to end the process in.
    let path = format!("PATH={}/usr/bin", "/n:".repeat(30_000));
    let file = status.to_str().unwrap();
    for options in [&["--status-file", file][..], &["-d"]] {
        let ended = (0..TRIES).any(|_| {
            // Of its own: a detached command of an earlier try may still be running.
            let mark = world.name("ran");
            let command = [sandbox.name.as_str(), "touch", &mark];
            begin(&sandbox, include_str!("attack/end_spare.py"), &[]);
            let ran = sbx(world, &[&["exec", "-e", &path], options, &command].concat());
            if [0, 128 + 9].contains(&ran.code) {
                return false; // too late: it was executed
            }
            let ran = ran.fails(125);
            assert!(!sandbox.path(&mark).exists());
            // No client waits for a detached command: its start reports it.
            if options != ["-d"] {
                assert!(ran.err.contains("before it was executed"), "{}", ran.err);
                let said = fs::read_to_string(&status).unwrap();
                assert!(said.contains(r#""by":"engine""#), "{said}");
            }
            true
        });
        assert!(ended, "the attack was always too late");
    }
}

fn hand_over(world: &'static World) {
    let sandbox = world.sandbox("hand-over");
    let others = || {
        let files = fs::read_dir(sandbox.path("tree")).unwrap();
        let owners = files.map(|file| file.unwrap().metadata().unwrap().uid());
        owners.filter(|owner| *owner != world.uid).count()
    };
    let go = sandbox.path("go");
    // Enough files for the walk to be observable.
    let make = format!(
        "import os; os.makedirs('tree', exist_ok=True); [open('tree/%d' % n, 'w').close() for n in range(20000)]; \
         [os.chown('tree/%d' % n, 0, 0) for n in range(20000)]; open('{}', 'w').close()",
        go.display()
    );
    for (kills, left) in [("1", false), ("1000000", true)] {
        let settings = [("KILLS", kills), ("GO", go.to_str().unwrap())];
        let killed = (0..TRIES).any(|_| {
            begin(&sandbox, include_str!("attack/end_hand_over.py"), &settings);
            let args = ["exec", "-u", "root", &sandbox.name, PYTHON, "-c", &make];
            sbx(world, &args).ok();
            fs::remove_file(&go).unwrap();
            let said = fs::read_to_string(sandbox.path("said")).unwrap();
            said.contains("killed")
        });
        assert!(killed, "the attack was always too late");
        assert_eq!(others() > 0, left, "after {kills}");
    }
    // What could not be done is done at the stop, when no program is left inside.
    sbx(world, &["stop", &sandbox.name]).ok();
    assert_eq!(others(), 0);
}
