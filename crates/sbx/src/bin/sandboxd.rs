//! `sandboxd`: the daemon of the sandbox engine. `sbx` starts it when it is needed.
//!
//! Executed under the name `sbx-init`, this program is also the set-up helper; the small program of that name is used
//! where it is installed.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sandboxd::{ServeConfig, VmHost};
use sbx_api::policy::CheckAnswer;
use sbx_api::{Caller, ErrorBody, ErrorCode};
use sbx_engine::StateDir;
use sbx_engine::error::chain;
use sbx_engine::policy::{PolicyBook, default_proxy_config};
use sbx_engine::state::StateError;
use sbx_engine::state::settings::Overrides;
use sbx_engine::state::settings::table::TABLE;

/// Tells the client that started us that connections are accepted.
const READY: &[u8] = b"ready\n";
/// In the home directory, or in `SBX_HOME`: where the daemon that `/vm` comes from keeps its images. Clients are told it.
const ASSETS: &str = ".container-platform";
/// Limit for a `CheckRequest`.
const MAX_REQUEST: u64 = 1 << 20;
/// Enough for 10,000 connections to published ports at the same time, of which half may be used for that, two for each. Root may have them.
const DESCRIPTORS: u64 = 65_536;
const HELP: &str = "\
The daemon of sbx, one per user. It is started on demand; use `sbx daemon` to control it.

Usage: sandboxd [--foreground]

Options:
      --foreground  Do not print `ready` to stdout
  -h, --help        Print help
  -V, --version     Print version

Environment:
  SBX_HOME            State directory [default: ~/.docker/sandboxes; if another product uses that,
                      $XDG_STATE_HOME/sbx or ~/.local/state/sbx]
  SANDBOXD_LOG_LEVEL  Log level: error, warn, info, debug or trace
";

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    if Path::new(&program)
        .file_name()
        .is_some_and(|name| name == "sbx-init")
    {
        return ExitCode::from(sbx_init::helper_main(
            sbx_engine::machine::namespace::helper::run_task,
        ));
    }
    match Action::of(args) {
        Action::Serve(ready) => daemon(ready),
        Action::CheckNetwork => answer_check(),
        Action::Print(text) => print(text.as_bytes()),
        Action::Unknown(word) => {
            let word = word.to_string_lossy();
            let word = word.escape_debug();
            complain(
                &format!("unexpected argument `{word}`"),
                Some("sandboxd --help"),
            );
            ExitCode::from(2)
        }
    }
}

/// Whether a client waits for the daemon to accept connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadyLine {
    Print,
    Omit,
}

/// What the arguments ask for.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    Serve(ReadyLine),
    /// For `sbx policy check` without a daemon; internal, so the help does not list it.
    CheckNetwork,
    Print(String),
    Unknown(OsString),
}

impl Action {
    /// An unknown argument must not start a daemon.
    fn of(args: impl Iterator<Item = OsString>) -> Self {
        let mut ready = ReadyLine::Print;
        for word in args {
            match word.to_str() {
                Some("--foreground") => ready = ReadyLine::Omit,
                Some("--check-network") => return Self::CheckNetwork,
                Some("-h" | "--help") => return Self::Print(HELP.to_owned()),
                Some("-V" | "--version") => {
                    return Self::Print(format!("sandboxd {}\n", sbx_api::VERSION));
                }
                _ => return Self::Unknown(word),
            }
        }
        Self::Serve(ready)
    }
}

fn print(text: &[u8]) -> ExitCode {
    match std::io::stdout().write_all(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Reads a `CheckRequest` from stdin and writes the answer or an error to stdout, all as JSON.
fn answer_check() -> ExitCode {
    match serde_json::to_vec(&check()) {
        Ok(text) => print(&text),
        Err(_) => ExitCode::FAILURE,
    }
}

fn check() -> Result<CheckAnswer, ErrorBody> {
    let failed = |message: String| ErrorBody {
        message,
        code: ErrorCode::Engine,
        hint: None,
    };
    let request = serde_json::from_reader(std::io::stdin().take(MAX_REQUEST))
        .map_err(|error| failed(error.to_string()))?;
    let home = value("HOME").map(PathBuf::from).unwrap_or_default();
    let moved = value("SBX_HOME").map(PathBuf::from);
    let state = state_dir(&home, moved.as_deref()).map_err(|error| failed(chain(&error)))?;
    let book = PolicyBook::new(&state, default_proxy_config(&home, moved.as_deref()));
    sandboxd::check_offline(&book, &request)
}

fn daemon(ready: ReadyLine) -> ExitCode {
    // The kernel counts descriptors in flight (SCM_RIGHTS) per user against this limit, also those of sandboxes.
    let _ = sbx_sys::process::raise_nofile_limits(DESCRIPTORS);
    match serve(ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err((message, hint)) => {
            complain(&message, hint.as_deref());
            ExitCode::FAILURE
        }
    }
}

/// To stderr, which is the log (a client quotes its end) or a terminal. The error is the last line.
fn complain(message: &str, hint: Option<&str>) {
    let mut text = String::new();
    if let Some(hint) = hint {
        text.push_str(&format!("hint: {hint}\n"));
    }
    text.push_str(&format!("error: {message}\n"));
    drop(std::io::stderr().write_all(text.as_bytes()));
}

fn serve(ready: ReadyLine) -> Result<(), (String, Option<String>)> {
    let moved = value("SBX_HOME").map(PathBuf::from);
    let home = match (value("HOME"), &moved) {
        (Some(home), _) => PathBuf::from(home),
        (None, Some(_)) => PathBuf::new(),
        (None, None) => {
            return Err((
                "cannot locate the state directory: neither HOME nor SBX_HOME is set".to_owned(),
                None,
            ));
        }
    };
    let state = state_dir(&home, moved.as_deref())
        .map_err(|error| (chain(&error), error.hint().map(str::to_owned)))?;
    let path = value("PATH").unwrap_or_default();
    let default_proxy_config = default_proxy_config(&home, moved.as_deref());
    let vm = VmHost {
        state: state.clone(),
        caller: Caller {
            home: home.to_string_lossy().into_owned(),
            path: path.to_string_lossy().into_owned(),
            ..Caller::default()
        },
        asset_dir: moved.as_deref().unwrap_or(&home).join(ASSETS),
    };
    let served = sandboxd::serve(ServeConfig {
        state,
        vm,
        path_dirs: std::env::split_paths(&path).collect(),
        overrides: overrides(),
        log_level: value("SANDBOXD_LOG_LEVEL").map(|level| level.to_string_lossy().into_owned()),
        default_proxy_config,
        makes_proxy_config: moved.is_none(),
        companions: beside(),
        on_ready: Box::new(move || print_ready(ready)),
    });
    served.map_err(|error| (chain(&error), error.hint()))
}

/// The same as the client finds.
fn state_dir(home: &Path, moved: Option<&Path>) -> Result<StateDir, StateError> {
    let states = value("XDG_STATE_HOME").map(PathBuf::from);
    StateDir::find(home, moved, states.as_deref())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where this program reads its environment"
)]
fn value(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn overrides() -> Overrides {
    let set = TABLE.iter().filter_map(|setting| {
        let value = value(setting.variable)?;
        Some((setting.key.to_owned(), value.to_string_lossy().into_owned()))
    });
    set.collect()
}

/// The directory of the programs that are installed with this one.
fn beside() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_owned())
}

/// Tells the waiting client, and replaces stdout, which is its pipe.
fn print_ready(ready: ReadyLine) {
    if ready == ReadyLine::Omit {
        return;
    }
    let mut stdout = std::io::stdout();
    // The client may have exited.
    drop(stdout.write_all(READY).and_then(|()| stdout.flush()));
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_arguments_start_a_daemon() {
        let action = |line: &str| Action::of(line.split_whitespace().map(OsString::from));
        assert_eq!(action(""), Action::Serve(ReadyLine::Print));
        assert_eq!(action("--foreground"), Action::Serve(ReadyLine::Omit));
        assert_eq!(action("--foreground -h"), Action::Print(HELP.to_owned()));
        assert!(
            matches!(action("--version"), Action::Print(text) if text.starts_with("sandboxd "))
        );
        assert_eq!(action("--bogus --help"), Action::Unknown("--bogus".into()));
        assert_eq!(action("--check-network"), Action::CheckNetwork);
        assert_eq!(action("start"), Action::Unknown("start".into()));
    }
}
