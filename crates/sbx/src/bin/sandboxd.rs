//! `sandboxd`: the daemon of the sandbox engine. `sbx` starts it; nobody has to.
//!
//! The same executable is the setup helper, under the name `sbx-init`. What stays in a sandbox is the smaller program
//! of that name, where it is installed.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sandboxd::ServeConfig;
use sbx_api::policy::CheckAnswer;
use sbx_api::{ErrorBody, ErrorCode};
use sbx_engine::StateDir;
use sbx_engine::error::chain;
use sbx_engine::policybook::{PolicyBook, default_proxy_config};

/// What a client that started us waits for on our stdout.
const READY: &[u8] = b"ready\n";
/// No question is longer.
const QUESTION: u64 = 1 << 20;
const HELP: &str = "\
The daemon of sbx, for one user. The first `sbx` command that needs it starts it; `sbx daemon` controls it.

Usage: sandboxd [--foreground]

Options:
      --foreground  Do not say `ready` on stdout
  -h, --help        Print help
  -V, --version     Print version

Environment:
  SBX_HOME            State directory [default: ~/.docker/sandboxes]
  SANDBOXD_LOG_LEVEL  What is logged: error, warn, info, debug or trace
";

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    if Path::new(&program)
        .file_name()
        .is_some_and(|name| name == "sbx-init")
    {
        return ExitCode::from(sbx_init::helper_main(sbx_engine::setup::run_task));
    }
    match Asked::of(args) {
        Asked::Serve(waiting) => daemon(waiting),
        Asked::CheckNetwork => answer_check(),
        Asked::Print(text) => say(text.as_bytes()),
        Asked::Unknown(word) => {
            let word = word.to_string_lossy();
            let word = word.escape_debug();
            complain(&format!(
                "unexpected argument `{word}`\nhint: sandboxd --help"
            ));
            ExitCode::from(2)
        }
    }
}

/// Who waits for the daemon to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Client,
    Nobody,
}

/// What the arguments ask for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Serve(Waiting),
    /// A question of `sbx policy check` without a daemon; not for people, so the help does not have it.
    CheckNetwork,
    Print(String),
    Unknown(OsString),
}

impl Asked {
    /// Nothing is made for words that are not understood.
    fn of(args: impl Iterator<Item = OsString>) -> Self {
        let mut waiting = Waiting::Client;
        for word in args {
            match word.to_str() {
                Some("--foreground") => waiting = Waiting::Nobody,
                Some("--check-network") => return Self::CheckNetwork,
                Some("-h" | "--help") => return Self::Print(HELP.to_owned()),
                Some("-V" | "--version") => {
                    return Self::Print(format!("sandboxd {}\n", sbx_api::VERSION));
                }
                _ => return Self::Unknown(word),
            }
        }
        Self::Serve(waiting)
    }
}

fn say(text: &[u8]) -> ExitCode {
    match std::io::stdout().write_all(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// A `CheckRequest` comes from stdin; an answer or an error goes to stdout, both as JSON.
fn answer_check() -> ExitCode {
    match serde_json::to_vec(&check()) {
        Ok(text) => say(&text),
        Err(_) => ExitCode::FAILURE,
    }
}

fn check() -> Result<CheckAnswer, ErrorBody> {
    let failed = |message: String| ErrorBody {
        message,
        code: ErrorCode::Engine,
        hint: None,
    };
    let request = serde_json::from_reader(std::io::stdin().take(QUESTION))
        .map_err(|error| failed(error.to_string()))?;
    let home = value("HOME").map(PathBuf::from).unwrap_or_default();
    let moved = value("SBX_HOME").map(PathBuf::from);
    let state = StateDir::locate(&home, moved.as_deref()).map_err(|error| failed(chain(&error)))?;
    let book = PolicyBook::new(&state, default_proxy_config(&home, moved.as_deref()));
    sandboxd::check_offline(&book, &request)
}

fn daemon(waiting: Waiting) -> ExitCode {
    // A sandbox of the same user may have half of it, of descriptors under way too.
    let _ = sbx_sys::process::raise_nofile_limit();
    match serve(waiting) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            complain(&message);
            ExitCode::FAILURE
        }
    }
}

/// Stderr is the log, of which a client shows the end, or a terminal.
fn complain(message: &str) {
    drop(writeln!(std::io::stderr(), "error: {message}"));
}

fn serve(waiting: Waiting) -> Result<(), String> {
    let moved = value("SBX_HOME").map(PathBuf::from);
    let home = match (value("HOME"), &moved) {
        (Some(home), _) => PathBuf::from(home),
        (None, Some(_)) => PathBuf::new(),
        (None, None) => return Err("neither HOME nor SBX_HOME is set".to_owned()),
    };
    let state = StateDir::locate(&home, moved.as_deref()).map_err(|error| chain(&error))?;
    let path = value("PATH").unwrap_or_default();
    let default_proxy_config = default_proxy_config(&home, moved.as_deref());
    let served = sandboxd::serve(ServeConfig {
        state,
        path_dirs: std::env::split_paths(&path).collect(),
        log_level: value("SANDBOXD_LOG_LEVEL").map(|level| level.to_string_lossy().into_owned()),
        default_proxy_config,
        companions: beside(),
        on_ready: Box::new(move || say_ready(waiting)),
    });
    served.map_err(|error| match error.hint() {
        Some(hint) => format!("{}\nhint: {hint}", chain(&error)),
        None => chain(&error),
    })
}

fn value(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// What is installed with this program lies beside it.
fn beside() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_owned())
}

/// One line to the client, which then goes its way.
fn say_ready(waiting: Waiting) {
    if waiting == Waiting::Nobody {
        return;
    }
    let mut stdout = std::io::stdout();
    // A client that has gone away needs no answer.
    drop(stdout.write_all(READY).and_then(|()| stdout.flush()));
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_words_start_a_daemon() {
        let asked = |line: &str| Asked::of(line.split_whitespace().map(OsString::from));
        assert_eq!(asked(""), Asked::Serve(Waiting::Client));
        assert_eq!(asked("--foreground"), Asked::Serve(Waiting::Nobody));
        assert_eq!(asked("--foreground -h"), Asked::Print(HELP.to_owned()));
        assert!(matches!(asked("--version"), Asked::Print(text) if text.starts_with("sandboxd ")));
        assert_eq!(asked("--bogus --help"), Asked::Unknown("--bogus".into()));
        assert_eq!(asked("--check-network"), Asked::CheckNetwork);
        assert_eq!(asked("start"), Asked::Unknown("start".into()));
    }
}
