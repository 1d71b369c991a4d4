//! Terminal sessions: `POST /pty`, then one WebSocket at a time.
//!
//! The shell starts with the first WebSocket and outlives it: output goes to a bounded history, and a client that comes
//! back gets what it has missed (`since=N`). `pty=0` gives pipes instead of a terminal, with stdout and stderr apart and
//! byte-exact; the input ends when the client sends an empty input message.

mod history;
mod shell;
mod websocket;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use execd_proto::command::SessionCreated;
use execd_proto::error::Code;
use execd_proto::pty::{PtyRequest, PtyStatus};
use rustix::process::Signal;

pub(crate) use shell::{TERMINAL_CHILD, become_terminal_child};
pub(crate) use websocket::connect;

use crate::App;
use crate::commands::{checked_directory, new_id};
use crate::reply::{Failure, Reply};
use shell::Shell;

#[derive(Debug, Default)]
pub(crate) struct Terminals(Mutex<BTreeMap<String, Arc<Terminal>>>);

/// A session: what to start, and the shell once it runs.
#[derive(Debug)]
pub(crate) struct Terminal {
    cwd: Option<String>,
    command: Option<String>,
    /// Async, because starting the shell and taking over a client wait.
    shell: tokio::sync::Mutex<Option<Arc<Shell>>>,
}

impl Terminals {
    fn get(&self, id: &str) -> Reply<Arc<Terminal>> {
        self.lock().get(id).cloned().ok_or_else(|| unknown(id))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Terminal>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(id: &str) -> Failure {
    Failure::new(Code::ContextNotFound, format!("pty session {id} not found"))
}

pub(crate) async fn create(State(app): State<Arc<App>>, body: axum::body::Bytes) -> Reply {
    let request: PtyRequest = match body.is_empty() {
        true => PtyRequest::default(),
        false => serde_json::from_slice(&body).map_err(Failure::body)?,
    };
    let id = new_id();
    let terminal = Terminal {
        cwd: checked_directory(request.cwd.as_deref())?,
        command: request.command.filter(|command| !command.is_empty()),
        shell: tokio::sync::Mutex::default(),
    };
    app.terminals.lock().insert(id.clone(), Arc::new(terminal));
    let created = SessionCreated { session_id: id };
    Ok((StatusCode::CREATED, Json(created)).into_response())
}

pub(crate) async fn status(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Reply<Json<PtyStatus>> {
    let terminal = app.terminals.get(&id)?;
    let shell = terminal.shell.lock().await.clone();
    Ok(Json(PtyStatus {
        session_id: id,
        running: shell.as_ref().is_some_and(|shell| shell.is_running()),
        output_offset: shell.map_or(0, |shell| shell.output_offset()),
    }))
}

pub(crate) async fn delete(State(app): State<Arc<App>>, Path(id): Path<String>) -> Reply {
    let removed = app.terminals.lock().remove(&id);
    let terminal = removed.ok_or_else(|| unknown(&id))?;
    if let Some(shell) = terminal.shell.lock().await.as_ref() {
        shell.signal(Signal::HUP);
        shell.signal(Signal::KILL);
    }
    Ok(().into_response())
}
