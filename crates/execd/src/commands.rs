//! `POST /command` and what follows from it: status, logs, interrupt.

mod registry;
mod stream;

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use execd_proto::command::{CommandRequest, CommandStatus};
use execd_proto::error::Code;
use execd_proto::event::{Ending, Event, Kind};
use rustix::process::Signal;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

pub(crate) use registry::Registry;
pub(crate) use stream::{Output, stream_events};

use crate::App;
use crate::extract::{self, Parameters};
use crate::process::{Invocation, ending, read_env_file};
use crate::reply::{Failure, Reply, now_millis};

/// Where clients continue to read a background command's output.
const CURSOR_HEADER: &str = "EXECD-COMMANDS-TAIL-CURSOR";
/// Of a log in one answer; clients ask on from the cursor.
const MAX_LOG_ANSWER: u64 = 16 << 20;

pub(crate) async fn run(
    State(app): State<Arc<App>>,
    extract::Json(request): extract::Json<CommandRequest>,
) -> Reply {
    let program = request.program()?;
    let mut envs = read_env_file(app.env_file.as_deref());
    envs.extend(request.envs.clone().unwrap_or_default());
    let invocation = Invocation {
        program,
        cwd: checked_directory(request.cwd.as_deref())?,
        envs,
        uid: request.uid,
        gid: request.gid,
    };
    let timeout = milliseconds(request.timeout);
    if request.background {
        return start_background(&app, &invocation, request.command, timeout);
    }
    let output = Output::Separate;
    Ok(stream_events(&app, &invocation, timeout, output, None))
}

/// The official daemon refuses a directory that does not exist before it starts anything.
pub(crate) fn checked_directory(cwd: Option<&str>) -> Reply<Option<String>> {
    let Some(cwd) = cwd.filter(|cwd| !cwd.is_empty()) else {
        return Ok(None);
    };
    let path = crate::files::expand(cwd);
    if !path.is_dir() {
        let message = format!("cwd {}: no such directory", path.display());
        return Err(Failure::new(Code::InvalidRequestBody, message));
    }
    Ok(Some(path.to_string_lossy().into_owned()))
}

pub(crate) fn milliseconds(timeout: Option<u64>) -> Option<Duration> {
    timeout
        .filter(|limit| *limit > 0)
        .map(Duration::from_millis)
}

pub(crate) fn event_response(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, body).into_response()
}

/// Output goes to a file, so that the command runs on without a reader and logs can be read from any offset.
fn start_background(
    app: &Arc<App>,
    invocation: &Invocation,
    text: Option<String>,
    timeout: Option<Duration>,
) -> Reply {
    let id = new_id();
    let log = app.directory.join(format!("{id}.log"));
    let open = || {
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)?;
        Ok::<_, std::io::Error>((file.try_clone()?, file))
    };
    let (stdout, stderr) = open().map_err(|error| Failure::file(&log, &error))?;
    app.commands
        .started(&id, text.unwrap_or_default(), Some(log));
    let mut frames = Event::new(Kind::Init, now_millis())
        .with_text(id.clone())
        .encode();
    match invocation.spawn(Stdio::from(stdout), Stdio::from(stderr)) {
        Ok((mut child, group)) => {
            app.commands.running(&id, group);
            let app = Arc::clone(app);
            tokio::spawn(async move {
                let ended = match stream::wait(&mut child, group, timeout).await {
                    Ok(status) => ending(status),
                    Err(error) => Ending::NotStarted(error.to_string()),
                };
                app.commands.ended(&id, &ended);
            });
            frames.extend(Event::complete(0, now_millis()).encode());
        }
        Err(error) => {
            let ended = Ending::NotStarted(error.to_string());
            app.commands.ended(&id, &ended);
            frames.extend(Event::failed(&ended, now_millis()).encode());
        }
    }
    Ok(event_response(Body::from(frames)))
}

pub(crate) fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

#[derive(Debug, Deserialize)]
pub(crate) struct ById {
    id: Option<String>,
}

pub(crate) async fn interrupt(
    State(app): State<Arc<App>>,
    Parameters(query): Parameters<ById>,
) -> Reply {
    let id = query
        .id
        .ok_or_else(|| Failure::new(Code::MissingQuery, "query parameter id is required"))?;
    match app.commands.signal(&id, Signal::TERM) {
        true => Ok(().into_response()),
        false => Err(unknown(&id)),
    }
}

pub(crate) async fn status(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Reply<Json<CommandStatus>> {
    app.commands
        .status(&id)
        .map(Json)
        .ok_or_else(|| unknown(&id))
}

#[derive(Debug, Deserialize)]
pub(crate) struct Cursor {
    cursor: Option<u64>,
}

pub(crate) async fn logs(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Parameters(query): Parameters<Cursor>,
) -> Reply {
    let log: PathBuf = app.commands.log(&id).ok_or_else(|| unknown(&id))?;
    let start = query.cursor.unwrap_or(0);
    let rest = read_log(&log, start)
        .await
        .map_err(|error| Failure::file(&log, &error))?;
    let end = start.saturating_add(rest.len() as u64);
    let text = String::from_utf8_lossy(&rest).into_owned();
    let headers = [
        ("content-type", "text/plain; charset=utf-8".to_owned()),
        (CURSOR_HEADER, end.to_string()),
    ];
    Ok((headers, text).into_response())
}

/// One answer's worth from that byte on. A character that the answer would cut is left for the next one.
async fn read_log(log: &std::path::Path, start: u64) -> std::io::Result<Vec<u8>> {
    let mut file = tokio::fs::File::open(log).await?;
    file.seek(std::io::SeekFrom::Start(start)).await?;
    let mut bytes = Vec::new();
    file.take(MAX_LOG_ANSWER).read_to_end(&mut bytes).await?;
    if bytes.len() as u64 == MAX_LOG_ANSWER {
        bytes.truncate(whole_characters(&bytes));
    }
    Ok(bytes)
}

/// The length without the beginning of a UTF-8 sequence at the end.
fn whole_characters(bytes: &[u8]) -> usize {
    let last = bytes
        .iter()
        .rev()
        .take(4)
        .position(|byte| byte & 0xc0 != 0x80);
    let Some(start) = last.and_then(|back| bytes.len().checked_sub(back + 1)) else {
        return bytes.len();
    };
    match std::str::from_utf8(bytes.get(start..).unwrap_or_default()) {
        Err(error) if error.error_len().is_none() => start,
        Ok(_) | Err(_) => bytes.len(),
    }
}

fn unknown(id: &str) -> Failure {
    Failure::new(Code::ContextNotFound, format!("command {id} not found"))
}

#[cfg(test)]
mod tests {
    use super::whole_characters;

    #[test]
    fn texts_are_cut_between_characters() {
        for (bytes, length) in [
            (&b"abc"[..], 3),
            ("a\u{e9}".as_bytes(), 3),
            (b"a\xc3", 1),
            (b"a\xe2\x82", 1),
            (b"a\xf0\x9f\x98", 1),
            // Not text at all.
            (b"a\x80\x80\x80\x80", 5),
            (b"a\xff", 2),
            (b"", 0),
        ] {
            assert_eq!(whole_characters(bytes), length, "{bytes:?}");
        }
    }
}
