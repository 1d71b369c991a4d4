//! End-to-end tests of the real binaries. Tests of sandboxes run once per privilege mode; a mode that this
//! machine or user does not have is reported as ignored, with the reason.
//!
//! Where the privilege mode makes no difference, or little, tests run in the strongest mode that there is, and a few of
//! them in the others. Everything runs in all modes with `SBX_TEST_ALL_MODES` in the environment (`scripts/test
//! --disk`), and so does what is chosen by name.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    unreachable_pub,
    reason = "tests: one that panics has failed, and its modules are a program of their own"
)]

mod cli;
mod contract;
mod copying;
mod daemon;
mod docker;
mod documents;
mod egress;
mod escape;
mod exec;
mod harness;
mod leaks;
mod lifecycle;
mod limits;
mod network;
mod policy;
mod ports;
mod run;
mod sandbox;
mod saved;
mod software;
mod ssh;
mod vm;
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

/// What the client does with streams, terminals and signals, and how a daemon is found, replaced and configured, which
/// the privilege mode has no part in. [`IN_ALL_MODES`] are the exceptions.
const INDEPENDENT: &[&[ModeTest]] = &[
    exec::STATUS,
    exec::STREAMS,
    exec::TERMINALS,
    run::TESTS,
    lifecycle::auto_stop::TESTS,
    daemon::restarting::TESTS,
    daemon::settings::TESTS,
    daemon::lost::TESTS,
    daemon::process::TESTS,
    daemon::access::TESTS,
    daemon::places::TESTS,
    lifecycle::after::INDEPENDENT,
    lifecycle::moved::INDEPENDENT,
    ports::INDEPENDENT,
    copying::INDEPENDENT,
    vm::INDEPENDENT,
    docker::INDEPENDENT,
    ssh::INDEPENDENT,
];

/// Of [`INDEPENDENT`], what has to do with ids, owners or processes of other users after all, and a smoke of the rest.
const IN_ALL_MODES: &[&str] = &[
    "exec::standard_streams_can_be_opened_again",
    "exec::control_c_interrupts_the_command",
    "run::in_a_directory_and_again",
    "run::an_environment_file_may_be_a_pipe",
    "lifecycle::idle_sandboxes_stop",
    "ports::every_protocol_comes_back",
    "daemon::killed_and_its_commands_go_on",
    "daemon::killed_again_and_again",
    "daemon::killed_during_creates",
    "daemon::stop_stops_sandboxes_and_restart_does_not",
    "daemon::stop_stops_sandboxes_without_a_daemon",
    "daemon::one_without_a_socket_is_reset",
    "daemon::inherits_nothing",
    "daemon::works_without_companions",
    "daemon::files_are_private",
    "daemon::another_user_gets_nothing",
    "daemon::another_products_directory",
    "daemon::needs_no_home_besides_its_own_directory",
];

/// The areas, each in a module of its own.
const AREAS: &[&[ModeTest]] = &[
    sandbox::TESTS,
    saved::TESTS,
    exec::TESTS,
    lifecycle::reading::TESTS,
    lifecycle::identity::TESTS,
    lifecycle::ending::TESTS,
    lifecycle::failing::TESTS,
    lifecycle::after::TESTS,
    lifecycle::trash::TESTS,
    lifecycle::prune::TESTS,
    lifecycle::trouble::TESTS,
    workspaces::TESTS,
    leaks::TESTS,
    limits::TESTS,
    network::TESTS,
    ports::TESTS,
    copying::TESTS,
    vm::TESTS,
    contract::TESTS,
    ssh::TESTS,
];
const SOME_MODES: &[SomeModes] = &[
    (
        &[Mode::Subordinate, Mode::Single],
        lifecycle::failing::USERS,
    ),
    (&[Mode::Subordinate], workspaces::SUBORDINATE),
    (&[Mode::Root], lifecycle::full_disk::ROOT),
    (&[Mode::Root], workspaces::ROOT),
    (REAL_ROOT, network::REAL_ROOT),
    (REAL_ROOT, saved::REAL_ROOT),
    (&[Mode::Root], saved::ROOT),
    (&[Mode::Root], network::ROOT),
    (&[Mode::Root], leaks::ROOT),
    (&[Mode::Root], limits::ROOT),
    (&[Mode::Subordinate, Mode::Single], limits::USERS),
    (&[Mode::Single], limits::DELEGATED),
];

/// Tests whose names begin with the prefix, and those of them that run in every mode they have a meaning in.
struct Group {
    prefix: &'static str,
    tests: &'static [&'static [ModeTest]],
    some_modes: &'static [SomeModes],
    in_all_modes: InAllModes,
}

/// Which tests of a group run in every mode.
#[derive(Debug, Clone, Copy)]
enum InAllModes {
    All,
    Only(&'static [&'static str]),
}

const GROUPS: &[Group] = &[
    Group {
        prefix: "",
        tests: AREAS,
        some_modes: SOME_MODES,
        in_all_modes: InAllModes::All,
    },
    Group {
        prefix: "",
        tests: INDEPENDENT,
        some_modes: &[],
        in_all_modes: InAllModes::Only(IN_ALL_MODES),
    },
    Group {
        prefix: "software::",
        tests: software::TESTS,
        some_modes: software::SOME_MODES,
        in_all_modes: InAllModes::Only(software::IN_ALL_MODES),
    },
    Group {
        prefix: "escape::",
        tests: escape::TESTS,
        some_modes: escape::SOME_MODES,
        in_all_modes: InAllModes::All,
    },
];

impl InAllModes {
    fn contains(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(&name),
        }
    }
}

/// A test that was renamed would else silently not run in all modes any more.
fn check_names() {
    for group in GROUPS {
        let InAllModes::Only(names) = group.in_all_modes else {
            continue;
        };
        for name in names {
            let mut tests = MODES.into_iter().flat_map(|mode| of_mode(mode, group));
            assert!(tests.any(|(test, _)| test == name), "no test `{name}`");
        }
    }
    let tests = egress::trials(Mode::Root, true);
    let smoke = tests
        .iter()
        .filter(|test| egress::in_all_modes(test.name()));
    assert_eq!(smoke.count(), egress::IN_ALL_MODES.len());
}

#[expect(clippy::disallowed_methods, reason = "main reads the environment")]
fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    check_names();
    let all = arguments.filter.is_some() || std::env::var_os("SBX_TEST_ALL_MODES").is_some();
    let strongest = MODES.into_iter().find(|mode| mode.blocked().is_none());
    let mut trials = cli::trials();
    trials.extend(documents::trials());
    trials.extend(policy::trials());
    for mode in MODES {
        let blocked = mode.blocked();
        if let Some(reason) = &blocked {
            eprintln!("environment_blocked: {}: {reason}", mode.name());
        }
        let whole = all || strongest == Some(mode);
        for group in GROUPS {
            for (name, test) in of_mode(mode, group) {
                let elsewhere =
                    strongest.is_some_and(|it| of_mode(it, group).any(|(other, _)| other == name));
                if whole || !elsewhere || group.in_all_modes.contains(name) {
                    let name = format!("{}{name}", group.prefix);
                    trials.push(in_mode(mode, &name, *test).with_ignored_flag(blocked.is_some()));
                }
            }
        }
        let egress = egress::trials(mode, blocked.is_some());
        let chosen = |trial: &Trial| whole || egress::in_all_modes(trial.name());
        trials.extend(egress.into_iter().filter(chosen));
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
fn of_mode(mode: Mode, group: &'static Group) -> impl Iterator<Item = &'static ModeTest> {
    let some = group.some_modes.iter();
    let some = some.filter(move |(modes, _)| modes.contains(&mode));
    let some = some.map(|(_, tests)| *tests);
    group.tests.iter().copied().chain(some).flatten()
}

fn in_mode(mode: Mode, name: &str, test: fn(&'static World)) -> Trial {
    trial(format!("{}::{name}", mode.name()), move || {
        test(World::shared(mode));
    })
}
