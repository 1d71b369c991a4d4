//! End-to-end tests of the real binaries. Tests of sandboxes run once per privilege mode; a mode that this
//! machine or user does not have is reported as ignored, with the reason.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    unreachable_pub,
    reason = "tests: one that panics has failed, and its modules are a program of their own"
)]

mod cli;
mod daemon;
mod egress;
mod escape;
mod exec;
mod harness;
mod leaks;
mod lifecycle;
mod network;
mod policy;
mod run;
mod sandbox;
mod software;
mod workspaces;

use std::process::ExitCode;

use harness::{MODES, Mode, World, trial};
use libtest_mimic::{Arguments, Trial};

/// A test that runs in the shared world of each mode.
type ModeTest = (&'static str, fn(&'static World));

/// Tests of something that only these modes have.
type SomeModes = (&'static [Mode], &'static [ModeTest]);

/// Those in which root inside is a user of its own.
const REAL_ROOT: &[Mode] = &[Mode::Root, Mode::Subordinate];

/// The areas, each in a module of its own.
const AREAS: &[&[ModeTest]] = &[
    sandbox::TESTS,
    exec::TESTS,
    exec::STATUS,
    exec::STREAMS,
    exec::TERMINALS,
    run::TESTS,
    lifecycle::reading::TESTS,
    lifecycle::identity::TESTS,
    lifecycle::ending::TESTS,
    lifecycle::auto_stop::TESTS,
    lifecycle::failing::TESTS,
    lifecycle::trouble::TESTS,
    daemon::restarting::TESTS,
    daemon::lost::TESTS,
    daemon::process::TESTS,
    daemon::access::TESTS,
    daemon::places::TESTS,
    workspaces::TESTS,
    leaks::TESTS,
    network::TESTS,
];
const SOME_MODES: &[SomeModes] = &[
    (
        &[Mode::Subordinate, Mode::Single],
        lifecycle::failing::USERS,
    ),
    (&[Mode::Subordinate], workspaces::SUBORDINATE),
    (&[Mode::Root], workspaces::ROOT),
    (REAL_ROOT, network::REAL_ROOT),
    (&[Mode::Root], network::ROOT),
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = cli::trials();
    trials.extend(policy::trials());
    for mode in MODES {
        let blocked = mode.blocked();
        if let Some(reason) = &blocked {
            eprintln!("environment_blocked: {}: {reason}", mode.name());
        }
        for (prefix, tests, some) in [
            ("", AREAS, SOME_MODES),
            ("software::", software::TESTS, software::SOME_MODES),
            ("escape::", escape::TESTS, escape::SOME_MODES),
        ] {
            for (name, test) in of_mode(mode, tests, some) {
                let name = format!("{prefix}{name}");
                trials.push(in_mode(mode, &name, *test).with_ignored_flag(blocked.is_some()));
            }
        }
        trials.extend(egress::trials(mode, blocked.is_some()));
    }
    trials.extend(exec::frames::trials());
    let listing = arguments.list;
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !listing {
        harness::stop_shared();
    }
    conclusion.exit_code()
}

/// What has a meaning in a mode.
fn of_mode(
    mode: Mode,
    tests: &'static [&'static [ModeTest]],
    some: &'static [SomeModes],
) -> impl Iterator<Item = &'static ModeTest> {
    let some = some.iter().filter(move |(modes, _)| modes.contains(&mode));
    let some = some.map(|(_, tests)| *tests);
    tests.iter().copied().chain(some).flatten()
}

fn in_mode(mode: Mode, name: &str, test: fn(&'static World)) -> Trial {
    trial(format!("{}::{name}", mode.name()), move || {
        test(World::shared(mode));
    })
}
