//! Starts `sandboxd`, the program installed beside ours, as a detached process.
//!
//! Its stdout is a pipe to us until it accepts connections: a line `ready` means success, end of file means failure. When two
//! clients start a daemon at the same time, the lock lets one of them win, and both use that one.

mod scope;

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
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

/// The daemon's program, installed beside ours.
pub(crate) const DAEMON_NAME: &str = "sandboxd";
/// What the daemon prints when it accepts connections.
const READY: &[u8] = b"ready\n";
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// For a daemon that another client has started at the same time.
const OTHER_START_TIMEOUT: Duration = Duration::from_secs(1);
/// Makes `sandboxd` answer one `CheckRequest` from stdin on stdout instead of serving.
pub(crate) const CHECK_NETWORK: &str = "--check-network";
/// How much of the log an error quotes, in bytes.
const LOG_TAIL: u64 = 2048;

/// Starts the daemon and connects to it.
pub(crate) fn start(context: &Context, state: &StateDir) -> Result<UnixStream, Failure> {
    // First: without the program, no state directory should be created.
    let program = program()?;
    state.claim()?;
    context.ui.progress("Starting sandboxd daemon...");
    let log_end = std::fs::metadata(state.log()).map_or(0, |meta| meta.len());
    let start = |command: Command| {
        let ready = spawn(context, state, command).map_err(|error| {
            Failure::new(Kind::Engine, format!("cannot start sandboxd: {error}"))
        })?;
        Ok::<_, Failure>(wait_ready(ready, Instant::now() + START_TIMEOUT))
    };
    let runtime = context.env.get("XDG_RUNTIME_DIR").map(Path::new);
    let user = rustix::process::geteuid().as_raw();
    let scoped = scope::runner(user, runtime, &|path| path.exists());
    let started = match scoped.map(|runner| start(scope::command(&runner, &program))) {
        // The user manager may refuse: then without a group of its own.
        Some(Ok(true)) => true,
        Some(_) | None => start(Command::new(program))?,
    };
    let timeout = if started {
        START_TIMEOUT
    } else {
        // It gave up, perhaps because another client's daemon holds the lock.
        OTHER_START_TIMEOUT
    };
    let deadline = Instant::now() + timeout;
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

/// Replaces this process with a daemon in the foreground. Returns only on failure.
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

/// Runs `sandboxd ARGUMENT` with `question` on stdin and parses its answer; no daemon is started.
pub(crate) fn ask<Q: Serialize, A: DeserializeOwned>(
    context: &Context,
    argument: &str,
    question: &Q,
) -> Result<A, Failure> {
    let failed =
        |error: &dyn Display| Failure::new(Kind::Engine, format!("cannot run sandboxd: {error}"));
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
        // If it exits without reading, its exit status is the better error.
        drop(stdin.write_all(&question));
    }
    let ended = child.wait_with_output().map_err(|error| failed(&error))?;
    if !ended.status.success() {
        return Err(failed(&ended.status));
    }
    serde_json::from_slice(&ended.stdout).map_err(|error| failed(&error))
}

/// A program installed beside ours. PATH is not searched: it must have our version.
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
    let message = format!("program `{}` is missing", beside.display());
    Err(Failure::new(Kind::Engine, message)
        .hint("install `sbx`, `sandboxd`, `sbx-init` and `sbx-sudo` together"))
}

fn spawn(context: &Context, state: &StateDir, mut command: Command) -> io::Result<ChildStdout> {
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(state.log())?;
    command
        .env_clear()
        .envs(context.env.for_daemon())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::from(log));
    // No other descriptor of the caller is inherited.
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

/// True when the daemon reports that it accepts connections.
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
    let logged = tail(state, log_end).unwrap_or_default();
    // Its own hints and error, so that ours stay the last lines.
    let (hints, reasons): (Vec<&str>, Vec<&str>) = logged
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .partition(|line| line.starts_with("hint: "));
    let reasons: Vec<&str> = reasons
        .iter()
        .map(|line| line.strip_prefix("error: ").unwrap_or(line))
        .collect();
    let why = if reasons.is_empty() {
        error.to_string()
    } else {
        reasons.join("; ")
    };
    let failure = Failure::new(Kind::Engine, format!("sandboxd did not start: {why}"));
    match hints.first().and_then(|line| line.strip_prefix("hint: ")) {
        Some(hint) => failure.hint(hint),
        None => failure.hint(format!(
            "run `sbx diagnose`, or see the log `{}`",
            state.log().display()
        )),
    }
}

/// The end of what was logged after offset `from`.
fn tail(state: &StateDir, from: u64) -> io::Result<String> {
    let mut file = std::fs::File::open(state.log())?;
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(from.max(end.saturating_sub(LOG_TAIL))))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
