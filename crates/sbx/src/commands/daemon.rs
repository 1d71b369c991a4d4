//! `sbx daemon`

use std::ffi::OsStr;

use sbx_api::{LogLevels, Sandbox, Status};
use sbx_engine::StateDir;
use sbx_engine::sandbox::offline;
use serde_json::json;

use super::policy::{choose, presets};
use crate::autostart;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::daemon_process::{DaemonProcess, Reach};
use crate::failure::{Failure, Kind};
use crate::lookup;

/// Manage the daemon, which starts on demand
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Start the daemon
    Start {
        /// Run in the background
        #[arg(short = 'd', long)]
        detach: bool,
        /// Set the initial network policy; see `sbx policy init`
        #[arg(long, value_name = "PRESET", value_parser = presets())]
        policy: Option<String>,
    },
    /// Stop the daemon and all sandboxes
    Stop,
    /// Restart the daemon; sandboxes keep running unless they use another protocol version
    Restart,
    /// Show whether the daemon is running
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show or set the daemon's log levels
    #[command(args_conflicts_with_subcommands = true)]
    LogLevel {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(subcommand)]
        command: Option<LogLevel>,
    },
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum LogLevel {
    /// Set a log level until the daemon stops
    Set {
        /// Which messages
        #[arg(value_enum)]
        target: Target,
        /// Lowest level to log
        #[arg(value_parser = ["error", "warn", "info", "debug", "trace"])]
        level: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Target {
    Proxy,
    General,
    All,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        match &self.command {
            Command::Status { json } | Command::LogLevel { json, .. } => *json,
            Command::Start { .. } | Command::Stop | Command::Restart => false,
        }
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Start { detach, policy } => start(context, *detach, policy.as_deref()),
        Command::Stop => stop(context),
        Command::Restart => restart(context),
        Command::Status { json } => status(context, *json),
        Command::LogLevel {
            json,
            command: None,
        } => show_levels(context, *json),
        Command::LogLevel {
            command: Some(LogLevel::Set { target, level }),
            ..
        } => set_levels(context, *target, level),
    }
}

fn start(context: &Context, detach: bool, policy: Option<&str>) -> Result<(), Failure> {
    let state = context.state()?;
    let running = lookup::daemon(context)?.is_some();
    if let Some(preset) = policy {
        choose(context, preset, running)?;
    }
    if running {
        context.ui.note("sandboxd is already running");
        return Ok(());
    }
    if detach {
        drop(autostart::start(context, &state)?);
        context.ui.note(format!(
            "sandboxd is listening on {}",
            state.socket().display()
        ));
        return Ok(());
    }
    context
        .ui
        .note(format!("starting sandboxd on {}", state.socket().display()));
    Err(autostart::become_daemon(context, &state))
}

fn stop(context: &Context) -> Result<(), Failure> {
    let said = match end(context)? {
        End::Ended => "sandboxd stopped",
        End::WasNotRunning => "sandboxd is not running",
    };
    context.ui.note(said);
    Ok(())
}

/// Whether there was a daemon to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Ended,
    WasNotRunning,
}

/// Stops the daemon and all sandboxes, and waits until its process is gone.
pub(crate) fn end(context: &Context) -> Result<End, Failure> {
    let client = Client::new(context, Absent::Report)?;
    let found = match DaemonProcess::find(&client)? {
        Some(process) if !killed_unresponsive(context, &client, &process)? => {
            process.wait_after(client.shutdown(true))?;
            return Ok(End::Ended);
        }
        Some(_) => End::Ended,
        None => End::WasNotRunning,
    };
    let is_up = |sandbox: &Sandbox| sandbox.status == Status::Running;
    if !offline::list(client.state())?.iter().any(is_up) {
        return Ok(found);
    }
    // Sandboxes survive a daemon that was killed, and only a daemon can stop them.
    let client = Client::new(context, Absent::Start)?;
    drop(client.connect()?);
    if let Some(process) = DaemonProcess::find(&client)? {
        process.wait_after(client.shutdown(true))?;
    }
    Ok(End::Ended)
}

/// Kills a daemon that cannot be reached or does not answer, and tells whether it did. Sandboxes keep running.
fn killed_unresponsive(
    context: &Context,
    client: &Client<'_>,
    process: &DaemonProcess,
) -> Result<bool, Failure> {
    let trouble = match process.reach() {
        Reach::Unreachable => "cannot be reached",
        Reach::Socket if client.is_silent() => "does not answer",
        Reach::Socket => return Ok(false),
    };
    let pid = process.pid();
    let message = format!("killing sandboxd (pid {pid}): it {trouble}");
    context.ui.warning(message);
    process.terminate_then_kill()?;
    Ok(true)
}

/// Starts a new daemon even when the old one does not shut down properly.
fn restart(context: &Context) -> Result<(), Failure> {
    let client = Client::new(context, Absent::Report)?;
    // Check first that a new daemon can start: an old daemon is better than none.
    autostart::program()?;
    client.state().settings()?;
    check_log_level(context)?;
    if let Some(process) = DaemonProcess::find(&client)?
        && !killed_unresponsive(context, &client, &process)?
    {
        match client.shutdown(false) {
            Ok(()) => {}
            Err(failure) if failure.kind == Kind::NoDaemon => {}
            Err(failure) => {
                context.ui.warning(&failure.message);
                process.terminate()?;
            }
        }
        if let Err(failure) = process.wait() {
            context.ui.warning(&failure.message);
        }
    }
    drop(autostart::start(context, client.state())?);
    context.ui.note("sandboxd restarted");
    Ok(())
}

fn check_log_level(context: &Context) -> Result<(), Failure> {
    let level = context.env.get("SANDBOXD_LOG_LEVEL");
    let level = level.filter(|level| !level.is_empty());
    sandboxd::check_log_level(level.map(OsStr::to_string_lossy).as_deref()).map_err(|error| {
        let failure = Failure::new(Kind::BadRequest, error.to_string());
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })
}

fn status(context: &Context, as_json: bool) -> Result<(), Failure> {
    let state = context.state()?;
    let (daemon, trouble) = match lookup::daemon(context) {
        Ok(daemon) => (daemon, None),
        Err(failure) if failure.kind == Kind::Unreachable => (None, Some(failure)),
        Err(failure) => return Err(failure),
    };
    let (status, pid) = match (&daemon, &trouble) {
        (Some(daemon), _) => ("running", Some(daemon.pid)),
        (None, Some(_)) => ("unreachable", holder(&state)),
        (None, None) => ("stopped", None),
    };
    let socket = state.socket().display().to_string();
    let logs = state.log().display().to_string();
    if as_json {
        let mut value = json!({"status": status, "socket": socket, "logs": logs});
        if let Some(object) = value.as_object_mut() {
            object.extend(pid.map(|pid| ("pid".to_owned(), pid.into())));
            if let Some(daemon) = daemon {
                object.insert("version".to_owned(), daemon.version.into());
                object.insert("started_at".to_owned(), json!(daemon.started_at));
            }
        }
        context.ui.json(&value)?;
    } else {
        let mut text = format!("Status: {status}\nSocket: {socket}\nLogs:   {logs}\n");
        if let Some(pid) = pid {
            text.push_str(&format!("PID:    {pid}\n"));
        }
        context.ui.data(text)?;
    }
    trouble.map_or(Ok(()), Err)
}

/// The pid of a daemon that does not answer, from its lock.
fn holder(state: &StateDir) -> Option<u32> {
    let pid = state.lock_holder()?.pid?;
    u32::try_from(pid.as_raw_pid()).ok()
}

fn show_levels(context: &Context, as_json: bool) -> Result<(), Failure> {
    let levels = Client::new(context, Absent::Report)?.log_levels()?;
    if as_json {
        return context
            .ui
            .json(&json!({"general": levels.general, "proxy": levels.proxy}));
    }
    context.ui.data(format!(
        "general: {}\nproxy:   {}\n",
        levels.general, levels.proxy
    ))
}

fn set_levels(context: &Context, target: Target, level: &str) -> Result<(), Failure> {
    let client = Client::new(context, Absent::Report)?;
    let now = client.log_levels()?;
    let pick = |own: Target, old: String| {
        if target == own || target == Target::All {
            level.to_owned()
        } else {
            old
        }
    };
    client.set_log_levels(&LogLevels {
        general: pick(Target::General, now.general),
        proxy: pick(Target::Proxy, now.proxy),
    })
}
