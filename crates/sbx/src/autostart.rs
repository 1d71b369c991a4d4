//! Starting `sandboxd`: the program beside ours, detached.
//!
//! The daemon's stdout is a pipe to us until it serves: one line `ready` means yes, the end means no.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use sbx_engine::StateDir;
use sbx_engine::state::SOCKET;
use sbx_engine::state::socket::connect_unix;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::failure::{Failure, Kind};

/// The daemon's program, which is installed together with ours.
pub(crate) const DAEMON_NAME: &str = "sandboxd";
/// What the daemon says when it serves.
const READY: &[u8] = b"ready\n";
const PATIENCE: Duration = Duration::from_secs(10);
/// What its program does instead of serving: answers a `CheckRequest` from stdin on stdout.
pub(crate) const CHECK_NETWORK: &str = "--check-network";
/// How much of the log an error shows.
const TAIL: u64 = 2048;

/// Starts the daemon and connects to it. When somebody else starts one at the same time, theirs is used.
pub(crate) fn start(context: &Context, state: &StateDir) -> Result<UnixStream, Failure> {
    // First, because without it nothing is to be made.
    let program = program()?;
    state.claim()?;
    context.ui.progress("Starting sandboxd daemon...");
    let log_end = std::fs::metadata(state.log()).map_or(0, |meta| meta.len());
    let ready = spawn(context, state, program)
        .map_err(|error| Failure::new(Kind::Engine, format!("cannot start sandboxd: {error}")))?;
    let deadline = Instant::now() + PATIENCE;
    let patience = if wait_ready(ready, deadline) {
        PATIENCE
    } else {
        // It gave up; perhaps because another one is about to serve.
        Duration::from_secs(1)
    };
    let deadline = Instant::now() + patience;
    let mut wait = Duration::from_millis(1);
    loop {
        match connect_unix(state.root(), SOCKET) {
            Ok(stream) => {
                context
                    .ui
                    .debug(|| format!("sandboxd serves {}", state.socket().display()));
                return Ok(stream);
            }
            Err(error) if Instant::now() >= deadline => {
                return Err(did_not_start(state, log_end, &error));
            }
            Err(_) => sleep(wait),
        }
        wait = (wait * 2).min(Duration::from_millis(100));
    }
}

/// The daemon in the foreground, in place of this process. Returns only when that fails.
pub(crate) fn become_daemon(context: &Context, state: &StateDir) -> Failure {
    let attempt = || -> Result<io::Error, Failure> {
        let program = program()?;
        state.claim()?;
        let mut command = Command::new(program);
        command
            .arg("--foreground")
            .env_clear()
            .envs(context.env.for_daemon())
            .current_dir("/");
        Ok(command.exec())
    };
    match attempt() {
        Ok(error) => Failure::new(Kind::Engine, format!("cannot start sandboxd: {error}")),
        Err(failure) => failure,
    }
}

/// What the daemon's program says to `question` when it is called with `argument`: it answers and ends, and no daemon
/// is started.
pub(crate) fn ask<Q: Serialize, A: DeserializeOwned>(
    context: &Context,
    argument: &str,
    question: &Q,
) -> Result<A, Failure> {
    let failed =
        |error: &dyn Display| Failure::new(Kind::Engine, format!("cannot ask sandboxd: {error}"));
    let question = serde_json::to_vec(question).map_err(|error| failed(&error))?;
    let mut child = Command::new(program()?)
        .arg(argument)
        .env_clear()
        .envs(context.env.for_daemon())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    if let Some(mut stdin) = child.stdin.take() {
        // It reads before it answers; if it does not, its end says more.
        drop(stdin.write_all(&question));
    }
    let ended = child.wait_with_output().map_err(|error| failed(&error))?;
    if !ended.status.success() {
        return Err(failed(&ended.status));
    }
    serde_json::from_slice(&ended.stdout).map_err(|error| failed(&error))
}

/// A program that is installed with ours. Never looked for elsewhere: it must be of our own version.
pub(crate) fn beside(name: &str) -> PathBuf {
    std::env::current_exe()
        .map(|path| path.with_file_name(name))
        .unwrap_or_default()
}

/// The daemon's program.
pub(crate) fn program() -> Result<PathBuf, Failure> {
    let beside = beside(DAEMON_NAME);
    if beside.is_file() {
        return Ok(beside);
    }
    let message = format!("the daemon's program `{}` is missing", beside.display());
    Err(Failure::new(Kind::Engine, message)
        .hint("install `sbx`, `sandboxd`, `sbx-init` and `sbx-sudo` together"))
}

fn spawn(context: &Context, state: &StateDir, program: PathBuf) -> io::Result<ChildStdout> {
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(state.log())?;
    let mut command = Command::new(program);
    command
        .env_clear()
        .envs(context.env.for_daemon())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::from(log));
    // Whatever else the caller has open stays the caller's.
    sbx_sys::process::close_on_exec_from(3)?;
    let mut child = sbx_sys::process::spawn_detached(&mut command)?;
    context
        .ui
        .debug(|| format!("sandboxd is pid {}", child.id()));
    child
        .stdout
        .take()
        .ok_or_else(|| io::Error::other("no pipe to the daemon"))
}

/// True when the daemon says that it serves.
fn wait_ready(mut pipe: ChildStdout, deadline: Instant) -> bool {
    let mut said = Vec::new();
    let mut chunk = [0_u8; 64];
    while said.len() < READY.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let mut fds = [PollFd::new(&pipe, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return false,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return false,
            Ok(_) => {}
        }
        match pipe.read(&mut chunk) {
            Ok(0) | Err(_) => return false,
            Ok(count) => said.extend_from_slice(chunk.get(..count).unwrap_or_default()),
        }
    }
    said.starts_with(READY)
}

fn did_not_start(state: &StateDir, log_end: u64, error: &io::Error) -> Failure {
    let said = tail(state, log_end).unwrap_or_default();
    let said = said.trim();
    let message = if said.is_empty() {
        format!("sandboxd did not start: {error}")
    } else {
        format!("sandboxd did not start; it said:\n{said}")
    };
    Failure::new(Kind::Engine, message).hint(format!(
        "sbx diagnose; the log is `{}`",
        state.log().display()
    ))
}

/// The end of what was logged after `from`.
fn tail(state: &StateDir, from: u64) -> io::Result<String> {
    let mut file = std::fs::File::open(state.log())?;
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(from.max(end.saturating_sub(TAIL))))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
