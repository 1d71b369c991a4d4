//! Calls to the execd of one sandbox. Only what the official daemon has.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use crabbox_core::process::Cancel;
use execd_proto::command::CommandRequest;
use execd_proto::decode::Decoder;
use execd_proto::event::{Ending, Event, Kind};
use execd_proto::pty::PtyRequest;
use hyper::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderValue, RANGE};
use hyper::{Method, StatusCode};

use super::api::Endpoint;
use super::http::{Answer, Body, Call, Http, HttpError, MAX_JSON, Part, within};
use super::secrets::Secrets;
use super::url::encode;

const BOUNDARY: &str = "crabbox-6f1d2c5ab84e4b0e9a77";
/// For calls that only change or look something up.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// What a helper script may print: they say a few lines.
const MAX_SCRIPT_OUTPUT: usize = 256 << 10;

pub(super) struct Execd<'h> {
    pub(super) http: &'h Http,
    pub(super) endpoint: Arc<Endpoint>,
    /// For texts that do not leave as a failure.
    pub(super) secrets: &'h Secrets,
}

/// The rest of a file.
pub(super) enum Download<'h> {
    /// No such file, or not yet.
    Missing,
    /// Nothing behind that offset.
    Nothing,
    /// The file ends before that offset.
    Shorter,
    /// The answer's first `skip` bytes lie before the offset.
    Content { answer: Box<Answer<'h>>, skip: u64 },
}

/// A file to upload.
pub(super) struct Upload<'a> {
    pub(super) path: &'a str,
    /// As the daemon takes it: octal digits as a decimal number.
    pub(super) mode: u32,
    pub(super) content: Part,
}

/// The events of a command, up to its terminal event.
pub(super) struct Events<'h> {
    answer: Answer<'h>,
    decoder: Decoder,
    ready: std::collections::VecDeque<Event>,
}

/// What a helper script left.
#[derive(Debug)]
pub(super) struct ScriptEnd {
    pub(super) ending: Ending,
    pub(super) stdout: Vec<String>,
    pub(super) stderr: Vec<String>,
}

impl<'h> Execd<'h> {
    fn call(&self, method: Method, path: &str, query: &str) -> Call {
        let url = &self.endpoint.url;
        let mut call = Call::new(method, &url.origin, url.path(path, query));
        call.headers.clone_from(&self.endpoint.headers);
        call
    }

    pub(super) async fn ping(&self) -> Result<(), HttpError> {
        self.http.done(self.call(Method::GET, "/ping", "")).await
    }

    pub(super) async fn command(&self, request: &CommandRequest) -> Result<Events<'h>, HttpError> {
        let call = self.call(Method::POST, "/command", "").json(request)?;
        Ok(Events {
            answer: self.http.open(call).await?,
            decoder: Decoder::default(),
            ready: std::collections::VecDeque::new(),
        })
    }

    pub(super) async fn interrupt(&self, id: &str) -> Result<(), HttpError> {
        let query = format!("id={}", encode(id));
        self.http
            .done(self.call(Method::DELETE, "/command", &query))
            .await
    }

    /// The file from that offset to its end.
    pub(super) async fn download(
        &self,
        path: &str,
        offset: u64,
    ) -> Result<Download<'h>, HttpError> {
        let query = format!("path={}", encode(path));
        let range = HeaderValue::from_str(&format!("bytes={offset}-"))
            .map_err(|_| HttpError::Malformed("range".to_owned()))?;
        let call = self
            .call(Method::GET, "/files/download", &query)
            .header(RANGE, range)
            .accept(StatusCode::RANGE_NOT_SATISFIABLE);
        match self.http.open(call).await {
            Ok(answer) if answer.status() == StatusCode::RANGE_NOT_SATISFIABLE => {
                let size = size_of(answer.headers().get(CONTENT_RANGE));
                // Read to its end, so that its connection is kept.
                answer.bytes(MAX_JSON).await?;
                Ok(match size {
                    Some(size) if size < offset => Download::Shorter,
                    Some(_) | None => Download::Nothing,
                })
            }
            Ok(answer) if answer.status() == StatusCode::PARTIAL_CONTENT => {
                check_range(answer.headers().get(CONTENT_RANGE), offset)?;
                Ok(Download::Content {
                    answer: Box::new(answer),
                    skip: 0,
                })
            }
            // A server that ignores ranges sends what we have as well.
            Ok(answer) => Ok(Download::Content {
                answer: Box::new(answer),
                skip: offset,
            }),
            Err(HttpError::Status { status: 404, .. }) => Ok(Download::Missing),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn exists(&self, path: &str) -> Result<bool, HttpError> {
        let query = format!("path={}", encode(path));
        match self
            .http
            .done(self.call(Method::GET, "/files/info", &query))
            .await
        {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn upload(&self, files: Vec<Upload<'_>>) -> Result<(), HttpError> {
        let mut parts = Vec::new();
        for file in files {
            let metadata = serde_json::json!({"path": file.path, "mode": file.mode});
            // Both parts have file names: the daemon demands it of the first.
            let head = format!(
                "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"metadata\"; filename=\"metadata\"\r\nContent-Type: application/json\r\n\r\n{metadata}\r\n--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"file\"\r\nContent-Type: application/octet-stream\r\n\r\n"
            );
            parts.push(Part::Bytes(head.into()));
            parts.push(file.content);
            parts.push(Part::Bytes(Bytes::from_static(b"\r\n")));
        }
        parts.push(Part::Bytes(format!("--{BOUNDARY}--\r\n").into()));
        let kind = HeaderValue::from_str(&format!("multipart/form-data; boundary={BOUNDARY}"))
            .map_err(|_| HttpError::Malformed("boundary".to_owned()))?;
        let call = self
            .call(Method::POST, "/files/upload", "")
            .header(CONTENT_TYPE, kind)
            .body(Body::parts(parts));
        self.http.done(call).await
    }

    /// `mode`: octal digits as a decimal number.
    pub(super) async fn make_directory(&self, path: &str, mode: u32) -> Result<(), HttpError> {
        let call = self
            .call(Method::POST, "/directories", "")
            .json(&serde_json::json!({path: {"mode": mode}}))?;
        self.http.done(call).await
    }

    pub(super) async fn remove_file(&self, path: &str) -> Result<(), HttpError> {
        let query = format!("path={}", encode(path));
        self.http
            .done(self.call(Method::DELETE, "/files", &query))
            .await
    }

    pub(super) async fn remove_directory(&self, path: &str) -> Result<(), HttpError> {
        let query = format!("path={}", encode(path));
        self.http
            .done(self.call(Method::DELETE, "/directories", &query))
            .await
    }

    /// A helper script, to its end.
    pub(super) async fn script(
        &self,
        script: &str,
        timeout: Duration,
    ) -> Result<ScriptEnd, HttpError> {
        let request = CommandRequest {
            command: Some(script.to_owned()),
            timeout: Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            ..CommandRequest::default()
        };
        let mut events = self.command(&request).await?;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut length = 0;
        loop {
            let event = events.next().await?;
            if let Some(ending) = event.ending() {
                return Ok(ScriptEnd {
                    ending,
                    stdout,
                    stderr,
                });
            }
            let to = match event.kind {
                Kind::Stdout => &mut stdout,
                Kind::Stderr => &mut stderr,
                _ => continue,
            };
            length += event.text.len() + 1;
            // Closing the connection ends the script.
            if length > MAX_SCRIPT_OUTPUT {
                return Err(HttpError::TooLarge(MAX_SCRIPT_OUTPUT));
            }
            to.push(event.text);
        }
    }

    pub(super) async fn create_terminal(&self, request: &PtyRequest) -> Result<String, HttpError> {
        let call = self.call(Method::POST, "/pty", "").json(request)?;
        let created: execd_proto::command::SessionCreated = self.http.json(call).await?;
        Ok(created.session_id)
    }

    pub(super) async fn delete_terminal(&self, id: &str) -> Result<(), HttpError> {
        let path = format!("/pty/{}", encode(id));
        self.http.done(self.call(Method::DELETE, &path, "")).await
    }

    /// The path of a terminal's WebSocket.
    pub(super) fn terminal_path(&self, id: &str) -> String {
        self.endpoint
            .url
            .path(&format!("/pty/{}/ws", encode(id)), "pty=1")
    }

    /// One of the short calls, with its limits.
    pub(super) fn wait<T>(
        &self,
        cancel: &Cancel,
        work: impl Future<Output = Result<T, HttpError>>,
    ) -> Result<T, HttpError> {
        self.http.block_on(within(CALL_TIMEOUT, cancel, work))
    }
}

/// A part that begins elsewhere would be written to the wrong place of the output.
fn check_range(range: Option<&HeaderValue>, offset: u64) -> Result<(), HttpError> {
    let said = range.and_then(|value| value.to_str().ok());
    let start = said
        .and_then(|text| text.trim().strip_prefix("bytes "))
        .and_then(|text| text.split_once('-'))
        .and_then(|(start, _)| start.trim().parse::<u64>().ok());
    match start {
        Some(start) if start == offset => Ok(()),
        _ => Err(HttpError::Malformed(
            "it is not the part of the file that was asked for".to_owned(),
        )),
    }
}

/// The file's size, as an answer says it that has no part to send (RFC 9110, section 14.4).
fn size_of(range: Option<&HeaderValue>) -> Option<u64> {
    let size = range?.to_str().ok()?.trim().strip_prefix("bytes */")?;
    size.parse().ok()
}

impl Events<'_> {
    /// The next event. A stream that ends before its terminal event is lost: nothing is known about the command.
    pub(super) async fn next(&mut self) -> Result<Event, HttpError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let malformed =
                |error: execd_proto::decode::DecodeError| HttpError::Malformed(error.to_string());
            match self.answer.next().await? {
                Some(bytes) => self
                    .ready
                    .extend(self.decoder.push(&bytes).map_err(malformed)?),
                None => match self.decoder.finish().map_err(malformed)? {
                    Some(event) => return Ok(event),
                    None => {
                        let cause = "the stream ended without the command's exit status";
                        return Err(HttpError::Lost(cause.to_owned()));
                    }
                },
            }
        }
    }
}

impl ScriptEnd {
    /// What it says went wrong, unless it exited with 0.
    pub(super) fn check(self) -> Result<Vec<String>, String> {
        let said = || match self.stderr.is_empty() {
            true => String::new(),
            false => format!(": {}", self.stderr.join("; ")),
        };
        match &self.ending {
            Ending::Exited(0) => Ok(self.stdout),
            Ending::Exited(code) => Err(format!("exit status {code}{}", said())),
            Ending::Killed(signal) => Err(format!("signal {signal}{}", said())),
            Ending::NotStarted(why) => Err(format!("it could not be started: {why}")),
        }
    }
}

impl<'a> Upload<'a> {
    pub(super) fn bytes(path: &'a str, bytes: Vec<u8>) -> Self {
        Self {
            path,
            mode: 600,
            content: Part::Bytes(bytes.into()),
        }
    }

    /// `sent` says how much of it has been read, as it goes.
    pub(super) fn file(path: &'a str, file: File, length: u64, sent: Arc<AtomicU64>) -> Self {
        Self {
            path,
            mode: 600,
            content: Part::File(file, length, sent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_part_that_was_asked_for_is_taken() {
        let check = |text: &'static str| {
            check_range(Some(&HeaderValue::from_static(text)), 7).map_err(|error| error.to_string())
        };
        check("bytes 7-9/10").unwrap();
        check("bytes 7-9/*").unwrap();
        for other in ["bytes 0-9/10", "bytes */10", "bytes 70-71/90", "7-9/10", ""] {
            assert!(check(other).is_err(), "{other}");
        }
        assert!(check_range(None, 7).is_err());
        let size = |text: &'static str| size_of(Some(&HeaderValue::from_static(text)));
        assert_eq!(size("bytes */12"), Some(12));
        assert_eq!((size("bytes */*"), size("bytes 0-1/2")), (None, None));
    }
}
