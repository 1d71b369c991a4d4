//! `crabbox run -d`: the run goes on in a process of its own, the supervisor, which no terminal can end.
//!
//! The supervisor is this program again, with the same arguments. Until the command is about to start it says what it has
//! to say on our stderr, and its end is ours; a cancellation is passed on to it and waited for. Then it tells which run and which lease, on its stdout, and we are done. From
//! then on its words are in the run's log.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crabbox_core::claims::{Claim, ProviderFilter};
use crabbox_core::history::ActiveRun;
use crabbox_core::lifecycle::Report as _;
use crabbox_core::process::{Cancel, Stream};
use crabbox_core::settings::Settings;
use crabbox_core::{Code, Failure};
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::app::App;

/// What the supervisor says of itself when the command is about to start.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    run_id: String,
    lease_id: String,
    slug: String,
}

/// Of waiting for a cancellation at a time.
const WAIT_INTERVAL: Duration = Duration::from_secs(3600);

fn failed(error: &std::io::Error) -> Failure {
    Failure::new(Code::Local, "cannot run in the background").because(error)
}

/// Starts the supervisor and waits until the command is about to start.
pub(super) fn start(app: &App<'_>, json: bool) -> Result<u8, Failure> {
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut args = std::env::args_os().skip(1);
    let verb = args.next().filter(|verb| verb == "run");
    let Some(verb) = verb else {
        return Err(Failure::usage("-d is only for `crabbox run` itself"));
    };
    let mut child = Command::new(program)
        .arg(verb)
        .arg("--supervise")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    let running = Running::watch(&child, &app.cancel)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut line)
            .map_err(|error| failed(&error))?;
    }
    if let Some(reason) = app.cancel.reason() {
        running.terminate();
        child.wait().map_err(|error| failed(&error))?;
        return Err(reason.canceled(format!("canceled: {reason}")));
    }
    running.forget_child();
    if let Ok(started) = serde_json::from_str::<Started>(&line) {
        tell(app, &started, json)?;
        return Ok(0);
    }
    // It ended before the command could start, and has said why.
    let status = child.wait().map_err(|error| failed(&error))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.filter(|code| *code != 0).unwrap_or(1))
}

/// A supervisor that was not waited for yet, so that its number is its own. It is in no terminal's session: what a
/// user who cancels sends reaches us alone.
#[derive(Debug, Clone)]
struct Running(Arc<Mutex<Option<Pid>>>);

impl Running {
    fn watch(child: &Child, cancel: &Cancel) -> Result<Self, Failure> {
        let running = Self(Arc::new(Mutex::new(Some(Pid::from_child(child)))));
        let (watched, cancel) = (running.clone(), cancel.clone());
        thread::Builder::new()
            .name("supervisor".to_owned())
            .spawn(move || {
                while cancel.sleep_until(Instant::now() + WAIT_INTERVAL).is_none() {}
                watched.terminate();
            })
            .map_err(|error| failed(&error))?;
        Ok(running)
    }

    /// Once: a second signal would make it hurry.
    fn terminate(&self) {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pid) = running.take() {
            // It fails only for one that has ended.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// What cancels us is no longer meant for it.
    fn forget_child(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn tell(app: &App<'_>, started: &Started, json: bool) -> Result<(), Failure> {
    if json {
        return app.ui.json(started);
    }
    let Started {
        run_id,
        lease_id,
        slug,
    } = started;
    app.ui.fact(&format!(
        "detached run={run_id} lease={lease_id} slug={slug}"
    ));
    app.ui.brief(&format!(
        "✓ started in the background\n  output: crabbox logs -f {slug}\n  end it: crabbox stop --force {slug}"
    ));
    app.ui.data(&format!("{slug}\n"))
}

/// The supervisor is in no terminal's session from the beginning: a terminal that closes ends nothing of it.
pub(super) fn leave_terminal() -> Result<(), Failure> {
    rustix::process::setsid()
        .map(drop)
        .map_err(|error| failed(&error.into()))
}

/// In the supervisor, when the command is about to start.
pub(super) fn announce(app: &App<'_>, run: &ActiveRun, claim: &Claim) -> Result<(), Failure> {
    let slug = claim.slug_str().unwrap_or(claim.lease_id.as_str());
    let started = Started {
        run_id: run.run_id().to_owned(),
        lease_id: claim.lease_id.as_str().to_owned(),
        slug: slug.to_owned(),
    };
    let line = serde_json::to_string(&started)
        .map_err(|error| Failure::new(Code::Local, "cannot write JSON").because(&error))?;
    // A caller that has gone away does not hinder the run.
    drop(writeln!(std::io::stdout(), "{line}"));
    app.ui.continue_in(run.log(Stream::Stderr));
    let nowhere = OpenOptions::new().read(true).write(true).open("/dev/null");
    let nowhere = nowhere.map_err(|error| failed(&error))?;
    rustix::stdio::dup2_stdout(&nowhere)
        .and_then(|()| rustix::stdio::dup2_stderr(&nowhere))
        .map_err(|error| failed(&error.into()))
}

/// Until when the command may run: the end of its lease.
pub(super) fn until_ttl(
    app: &App<'_>,
    settings: &Settings,
    id: Option<&str>,
) -> Result<Cancel, Failure> {
    let left = match id {
        None => Some(settings.duration(None, "ttl")),
        Some(id) => {
            let claim = app.store()?.find(id, ProviderFilter::All)?;
            claim.and_then(|claim| claim.expires_at).map(|end| {
                let left = end.duration_since(Timestamp::now());
                Duration::try_from(left).unwrap_or(Duration::ZERO)
            })
        }
    };
    let left = left.filter(|left| !left.is_zero());
    Ok(
        match left.and_then(|left| Instant::now().checked_add(left)) {
            Some(end) => app.cancel.until(end),
            None => app.cancel.clone(),
        },
    )
}
