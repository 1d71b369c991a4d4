//! Attacks by a hostile root inside. Each is a program in `attack/` that runs in the sandbox's Python and prints one line
//! per attempt, `NAME RESULT`, where the result is the name of an error or `ok`. A test shows that the attempts were real
//! (the same probe finds its target on the host, or the error is that of a refusal), that they failed, and that nothing on
//! the host has changed. `docs/engine/attacks.md` lists them.

mod accounts;
mod binary;
mod caller_pipes;
mod callers_git;
mod credentials;
mod files;
mod frozen;
mod guard;
mod handed_mounts;
pub(crate) mod hostile_copy;
mod hostile_init;
mod kernel;
mod landlock;
mod mount_names;
mod mounts;
mod other_names;
mod own_processes;
mod owners;
mod pins;
mod planted;
mod processes;
mod restart;
mod setid;
mod shared_limits;
mod silent_init;
mod sockets;
mod status_file;
mod streams;
mod system_dirs;
mod targets;
mod xattrs;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::harness::{Mode, Ran, Sandbox, World, programs};
use crate::{ModeTest, REAL_ROOT, SomeModes};

pub(crate) const TESTS: &[&[ModeTest]] = &[
    accounts::TESTS,
    binary::TESTS,
    caller_pipes::TESTS,
    callers_git::TESTS,
    credentials::TESTS,
    files::TESTS,
    frozen::TESTS,
    guard::TESTS,
    handed_mounts::TESTS,
    hostile_copy::TESTS,
    hostile_init::TESTS,
    kernel::TESTS,
    landlock::TESTS,
    mount_names::TESTS,
    mounts::TESTS,
    other_names::TESTS,
    own_processes::TESTS,
    owners::TESTS,
    pins::TESTS,
    planted::TESTS,
    processes::TESTS,
    restart::TESTS,
    setid::TESTS,
    shared_limits::TESTS,
    silent_init::TESTS,
    sockets::TESTS,
    status_file::TESTS,
    streams::TESTS,
    system_dirs::TESTS,
    targets::TESTS,
    xattrs::TESTS,
];
pub(crate) const SOME_MODES: &[SomeModes] = &[
    (&[Mode::Root], owners::ROOT),
    (&[Mode::Subordinate], owners::SUBORDINATE),
    (REAL_ROOT, own_processes::REAL_ROOT),
    (REAL_ROOT, targets::REAL_ROOT),
];

const LIBRARY: &str = include_str!("escape/attack/lib.py");
const PYTHON: &str = "/usr/bin/python3";
/// Far above what any attack needs: reaching it is a hang, which is a failure too.
const ATTACK_TIMEOUT: Duration = Duration::from_secs(120);

/// What an attack said, by the attempt's name.
#[derive(Debug)]
struct Said {
    results: BTreeMap<String, String>,
    all: String,
}

impl Said {
    #[track_caller]
    fn from(ran: Ran) -> Self {
        assert_eq!(
            ran.code, 0,
            "the attack itself broke:\n{}\n{}",
            ran.out, ran.err
        );
        let results = ran
            .out
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(name, result)| (name.to_owned(), result.to_owned()))
            .collect();
        Self {
            results,
            all: ran.out,
        }
    }

    #[track_caller]
    fn result(&self, name: &str) -> &str {
        self.results
            .get(name)
            .unwrap_or_else(|| panic!("nothing was said about `{name}`:\n{}", self.all))
    }

    /// Each attempt was made and ended in one of these errors.
    #[track_caller]
    fn refused(&self, attempts: &[(&str, &[&str])]) {
        for (name, errors) in attempts {
            let result = self.result(name);
            assert!(
                errors.contains(&result),
                "`{name}` was {result}, not one of {errors:?}:\n{}",
                self.all
            );
        }
    }

    /// Nothing of what was tried worked, and that many things were tried.
    #[track_caller]
    fn all_refused(&self, at_least: usize) {
        let worked: Vec<_> = self
            .results
            .iter()
            .filter(|(_, result)| *result == "ok")
            .collect();
        assert!(worked.is_empty(), "worked: {worked:?}\n{}", self.all);
        assert!(
            self.results.len() >= at_least,
            "only {} attempts:\n{}",
            self.results.len(),
            self.all
        );
    }
}

fn script(attack: &str, settings: &[(&str, &str)]) -> Vec<u8> {
    let mut text = String::from(LIBRARY);
    for (name, value) in settings {
        text.push_str(&format!(
            "\n{name} = {}",
            serde_json::to_string(value).unwrap()
        ));
    }
    text.push('\n');
    text.push_str(attack);
    text.into_bytes()
}

/// Runs an attack inside as `user`; `settings` are variables of the program.
#[track_caller]
fn attack(sandbox: &Sandbox<'_>, user: &str, attack: &str, settings: &[(&str, &str)]) -> Said {
    let mut command = sandbox
        .world
        .sbx(["exec", "-i", "-u", user, &sandbox.name, PYTHON, "-"]);
    Said::from(run(&mut command, &script(attack, settings)))
}

/// The same program on the host, as the mode's user: the control that the probe is real.
#[track_caller]
fn on_host(world: &World, attack: &str, settings: &[(&str, &str)]) -> Said {
    Said::from(run(
        world.command(PYTHON).arg("-"),
        &script(attack, settings),
    ))
}

/// Runs `sbx` to the end.
#[track_caller]
fn sbx(world: &World, args: &[&str]) -> Ran {
    run(&mut world.sbx(args), b"")
}

/// A sandbox with these workspaces, which the test removes; its name.
#[track_caller]
fn create(world: &World, hint: &str, workspaces: &[&str]) -> String {
    let name = world.name(hint);
    let args = [&["create", "--name", &name, "shell"], workspaces].concat();
    world.run(args).ok();
    name
}

/// Steps of a shell as root, with mounts of their own: they end with their namespace, and that with the daemon. The
/// steps are given `sbx`, the mode's user and group, to become them when everything is mounted, and `args`.
#[track_caller]
fn mounting(world: &World, steps: &str, args: &[&Path]) -> Said {
    let mut command = world.command("unshare");
    command
        .uid(0)
        .gid(0)
        .args(["--mount", "sh", "-c", steps, "sh"])
        .arg(programs().join("sbx"))
        .args([world.uid.to_string(), world.gid.to_string()])
        .args(args);
    Said::from(run(&mut command, b""))
}

/// Runs to the end with something on stdin. A command that does not end in time is ended, and a failure.
#[track_caller]
fn run(command: &mut Command, input: &[u8]) -> Ran {
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    finish(child, input)
}

#[track_caller]
fn finish(mut child: Child, input: &[u8]) -> Ran {
    if let Some(mut stdin) = child.stdin.take() {
        let input = input.to_vec();
        // A command that does not read everything is no error here.
        thread::spawn(move || drop(stdin.write_all(&input)));
    }
    let pid = rustix::process::Pid::from_child(&child);
    let (done, ended) = mpsc::channel();
    thread::spawn(move || drop(done.send(child.wait_with_output().unwrap())));
    match ended.recv_timeout(ATTACK_TIMEOUT) {
        Ok(output) => ran(&output),
        Err(_) => {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            panic!("the command hangs");
        }
    }
}

fn ran(output: &Output) -> Ran {
    let status = output.status;
    Ran {
        code: status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Everything about a file that an attack could change.
#[derive(Debug, PartialEq, Eq)]
struct Fingerprint {
    bytes: Option<Vec<u8>>,
    mode: u32,
    owner: (u32, u32),
    links: u64,
}

fn fingerprint(path: &Path) -> Fingerprint {
    let meta = fs::symlink_metadata(path).unwrap();
    Fingerprint {
        bytes: meta.is_file().then(|| fs::read(path).unwrap()),
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        links: if meta.is_file() { meta.nlink() } else { 0 },
    }
}

/// No regular file or directory below `dir` is setuid, setgid or has file capabilities.
#[track_caller]
fn assert_no_set_id(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_symlink() {
            continue;
        }
        // Setgid on a directory gives no power.
        let bits = if meta.is_dir() { 0o4000 } else { 0o6000 };
        assert_eq!(
            meta.mode() & bits,
            0,
            "`{}` has mode {:o}",
            path.display(),
            meta.mode()
        );
        let mut value = [0_u8; 256];
        let capability = rustix::fs::lgetxattr(&path, "security.capability", &mut value[..]);
        assert!(
            capability.is_err(),
            "`{}` has file capabilities",
            path.display()
        );
        if meta.is_dir() {
            assert_no_set_id(&path);
        }
    }
}

/// Ends a process of the test, whatever happens to the test.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
