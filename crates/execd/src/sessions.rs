//! Sessions: a working directory and exported variables that outlive a command.
//!
//! Each run is a fresh `bash --noprofile --norc`. It sources what the run before it saved, executes the command, and saves
//! its exports and directory again when it exits, also by `exit`. Runs of one session are one after the other: a second one waits
//! for the first, and starts nothing if its client leaves meanwhile.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::{Path, State};
use axum::response::IntoResponse;
use execd_proto::command::{Program, SessionCreated, SessionRequest, SessionRun};
use execd_proto::error::Code;
use tokio::sync::Mutex as Turn;

use crate::App;
use crate::commands::{Output, checked_directory, milliseconds, new_id, stream_events};
use crate::extract;
use crate::process::{Invocation, read_env_file, shell};
use crate::reply::{Failure, Reply};

/// `$0` is the state file. The command comes as `$1`, so that no quoting is needed; `set --` hides both from it.
const SCRIPT: &str = r#"
__execd_state=$0 __execd_command=$1
[ -f "$__execd_state" ] && . "$__execd_state"
trap '__execd_code=$?; { export -p; printf "cd -- %q\n" "$PWD"; } >"$__execd_state.new" && mv -f "$__execd_state.new" "$__execd_state"; exit $__execd_code' EXIT
set --
eval "$__execd_command"
"#;

#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<BTreeMap<String, Session>>);

#[derive(Debug, Clone)]
struct Session {
    state: PathBuf,
    cwd: Option<String>,
    /// Held by the run that goes on.
    turn: Arc<Turn<()>>,
}

impl Sessions {
    fn insert(&self, id: &str, session: Session) {
        self.lock().insert(id.to_owned(), session);
    }

    fn get(&self, id: &str) -> Reply<Session> {
        self.lock().get(id).cloned().ok_or_else(|| unknown(id))
    }

    fn remove(&self, id: &str) -> Reply<Session> {
        self.lock().remove(id).ok_or_else(|| unknown(id))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(id: &str) -> Failure {
    Failure::new(Code::ContextNotFound, format!("session {id} not found"))
}

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    body: axum::body::Bytes,
) -> Reply<Json<SessionCreated>> {
    // Clients that choose no directory send no body at all.
    let request: SessionRequest = match body.is_empty() {
        true => SessionRequest::default(),
        false => serde_json::from_slice(&body).map_err(Failure::body)?,
    };
    let id = new_id();
    let session = Session {
        state: app.directory.join(format!("{id}.session")),
        cwd: checked_directory(request.cwd.as_deref())?,
        turn: Arc::default(),
    };
    app.sessions.insert(&id, session);
    Ok(Json(SessionCreated { session_id: id }))
}

pub(crate) async fn run(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    extract::Json(request): extract::Json<SessionRun>,
) -> Reply {
    let session = app.sessions.get(&id)?;
    if request.command.is_empty() || request.command.contains('\0') {
        return Err(Failure::body("command is required"));
    }
    let mut command = request.command;
    if let Some(cwd) = checked_directory(request.cwd.as_deref())? {
        command = format!("cd -- {} && {{ {command}\n}}", quote(&cwd));
    }
    let argv = [shell(), "--noprofile", "--norc", "-c", SCRIPT];
    let mut argv: Vec<String> = argv.map(str::to_owned).to_vec();
    argv.extend([session.state.to_string_lossy().into_owned(), command]);
    let invocation = Invocation {
        program: Program::Argv(argv),
        cwd: session.cwd,
        envs: read_env_file(app.env_file.as_deref()),
        uid: None,
        gid: None,
    };
    let turn = Arc::clone(&session.turn).lock_owned().await;
    // It may have been deleted while this run waited.
    app.sessions.get(&id)?;
    let timeout = milliseconds(request.timeout);
    let output = Output::Merged;
    Ok(stream_events(
        &app,
        &invocation,
        timeout,
        output,
        Some(turn),
    ))
}

pub(crate) async fn delete(State(app): State<Arc<App>>, Path(id): Path<String>) -> Reply {
    let session = app.sessions.remove(&id)?;
    // A session without a run has no state file.
    let _ = std::fs::remove_file(session.state);
    Ok(().into_response())
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
