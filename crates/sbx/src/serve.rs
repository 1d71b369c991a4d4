//! Being the daemon.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use sandboxd::{ServeConfig, ServeError};
use sbx_engine::StateDir;

use crate::autostart::READY;
use crate::context::Context;
use crate::env::Env;
use crate::failure::{Failure, Kind, with_causes};
use crate::ui::{ErrorStyle, Ui};

/// Started by a client: detached, with a pipe as stdout that says when it serves.
pub(crate) fn as_daemon(env: &Env) -> ExitCode {
    let served = env
        .state_dir()
        .and_then(|state| serve(env, state, Box::new(say_ready)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Stderr is the log, of which the client shows the end.
            Ui::new(ErrorStyle::Text, false, true).failure(&failure);
            ExitCode::FAILURE
        }
    }
}

/// `sbx daemon start` without `-d`.
pub(crate) fn in_foreground(context: &Context, state: StateDir) -> Result<(), Failure> {
    let socket = state.socket();
    context
        .ui
        .note(format!("sandboxd serves {}", socket.display()));
    serve(&context.env, state, Box::new(|| {}))
}

fn serve(env: &Env, state: StateDir, on_ready: Box<dyn FnOnce()>) -> Result<(), Failure> {
    let path = env.get("PATH").unwrap_or_default();
    sandboxd::serve(ServeConfig {
        state,
        path_dirs: std::env::split_paths(path).collect(),
        log_level: env.text("SANDBOXD_LOG_LEVEL").map(str::to_owned),
        sudo: sudo(),
        on_ready,
    })
    .map_err(|error| did_not_serve(&error))
}

/// The program that sandboxes have as `sudo` lies beside ours.
fn sudo() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.with_file_name("sbx-sudo");
    beside.exists().then_some(beside)
}

/// One line to the client, which then goes its way.
fn say_ready() {
    let mut stdout = std::io::stdout();
    // A client that has gone away needs no answer.
    drop(stdout.write_all(READY).and_then(|()| stdout.flush()));
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

fn did_not_serve(error: &ServeError) -> Failure {
    let failure = Failure::new(Kind::Engine, with_causes(error));
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
