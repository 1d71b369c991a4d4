//! Software inside: packages are installed and change nothing outside, the caller's tool chains work, what
//! runs in a container elsewhere runs, and nothing of the host shows that is not meant to.

mod caches;
mod containers;
mod host;
mod languages;
mod packages;
mod tools;

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::harness::{Mode, Ran, Sandbox, World, blocked, host_has};
use crate::{ModeTest, REAL_ROOT, SomeModes};

pub(crate) const TESTS: &[&[ModeTest]] = &[
    languages::TESTS,
    tools::TESTS,
    caches::TESTS,
    caches::downloads::TESTS,
    containers::TESTS,
    host::TESTS,
];
pub(crate) const SOME_MODES: &[SomeModes] = &[
    (REAL_ROOT, packages::REAL_ROOT),
    (&[Mode::Single], packages::SINGLE),
    (REAL_ROOT, languages::REAL_ROOT),
    (REAL_ROOT, containers::REAL_ROOT),
    (&[Mode::Root], containers::ROOT),
];

/// The smoke in the modes besides the strongest: where ids and the layer of the sandbox meet.
pub(crate) const IN_ALL_MODES: &[&str] = &[
    "git_commits_with_the_callers_identity",
    "caches_of_the_caller_keep_their_paths",
    "a_build_cache_is_kept_for_the_next_sandbox_of_a_repository",
    "one_sandbox_at_a_time_has_a_build_cache",
    "credentials_beside_tool_chains_stay_outside",
    "sandboxes_inside_the_sandbox",
    "ports_below_1024_and_ping",
    "system_files_look_owned",
    "setuid_programs_of_the_own_layer",
    "file_capabilities_of_the_own_layer",
    "accounts_are_managed_as_ever",
    "nothing_of_the_hosts_private_directories_is_visible",
    "closed_files_of_system_directories_stay_closed",
    "apt_installs_keeps_and_removes_a_new_package",
];

/// Root inside is a user of its own.
fn has_real_root(world: &World) -> bool {
    REAL_ROOT.contains(&world.mode)
}

/// Those who install software: all have to be able to.
fn users(world: &World) -> &'static [&'static str] {
    if has_real_root(world) {
        &["agent", "root"]
    } else {
        &["agent"]
    }
}

/// A script by `bash` as `user`. It stops at the first command that fails.
fn bash(sandbox: &Sandbox<'_>, user: &str, script: &str) -> Ran {
    sandbox.exec_with(&["-u", user], ["bash", "-euc", script])
}

/// The same by a login shell.
fn login(sandbox: &Sandbox<'_>, user: &str, script: &str) -> Ran {
    sandbox.exec_with(&["-u", user], ["bash", "-lec", script])
}

fn python(sandbox: &Sandbox<'_>, user: &str, script: &str) -> Ran {
    sandbox.exec_with(&["-u", user], ["/usr/bin/python3", "-c", script])
}

/// A host command's stdout.
#[track_caller]
fn outside(command: &mut Command) -> String {
    Ran::from(command.output().unwrap()).ok()
}

/// A host shell as the mode's user.
#[track_caller]
fn host_sh(world: &World, dir: &Path, script: &str) -> String {
    outside(world.command("sh").args(["-euc", script]).current_dir(dir))
}

/// What is below a directory: names, kinds, sizes, modes, owners, times.
#[track_caller]
fn listing(dir: &Path) -> String {
    outside(
        Command::new("find")
            .arg(dir)
            .args(["-printf", "%p %y %s %m %U %G %T@\\n"]),
    )
}

/// A home of the mode's user for one test.
fn home(world: &World) -> TempDir {
    let dir = tempfile::Builder::new()
        .prefix("sbx-home-")
        .tempdir()
        .unwrap();
    world.own(dir.path());
    dir
}

/// A sandbox whose caller has this home and PATH.
fn sandbox_of<'a>(world: &'a World, hint: &str, caller: &[(&str, &str)]) -> Sandbox<'a> {
    let (name, workspace) = (world.name(hint), world.workspace());
    let mut create = world.sbx(["create", "--name", &name, "shell"]);
    create.arg(&workspace).envs(caller.iter().copied());
    outside(&mut create);
    Sandbox {
        world,
        name,
        workspace,
    }
}

/// Writes a file below a home, and the directories above it.
fn plant(world: &World, home: &Path, file: &str, text: &str, mode: u32) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let path = home.join(file);
    let mut missing: Vec<_> = path
        .ancestors()
        .skip(1)
        .take_while(|above| !above.exists())
        .collect();
    missing.reverse();
    for dir in missing {
        world.make_dir(dir);
    }
    world.write(&path, text);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}
