//! A command on a terminal: the daemon's PTY over a WebSocket, the user's terminal in raw mode.
//!
//! The daemon may say that the command ended before it has sent all of its output. So the command's script prints a mark
//! with the exit status after it, which is not shown.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use crabbox_core::process::{Cancel, Relay, RelayWriter};
use crabbox_core::provider::Execution;
use crabbox_core::{Code, Failure};
use execd_proto::pty::{Control, Notice, Output, PtyRequest, encode_input};
use futures_util::{SinkExt as _, StreamExt as _};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::{Request, generate_key};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::exec::Job;
use super::execd::{Execd, Upload};
use super::http::{HttpError, Stream, canceled, within};
use super::script::{self, MARK};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the size of the user's terminal is looked at.
const SIZE_INTERVAL: Duration = Duration::from_millis(150);
const MAX_MESSAGE: usize = 4 << 20;

pub(super) fn run(
    execd: &Execd<'_>,
    job: &Job<'_>,
    exec: Execution<'_>,
    cancel: &Cancel,
) -> Result<i32, Failure> {
    let failed = |error: HttpError| error.into_failure("terminal");
    let dir = script::directory(job.nonce);
    let env_path = format!("{dir}/env");
    let env = script::env_file(exec.env).into_bytes();
    execd
        .wait(cancel, execd.upload(vec![Upload::bytes(&env_path, env)]))
        .map_err(failed)?;
    let request = PtyRequest {
        cwd: Some(job.cwd.to_owned()),
        command: Some(script::terminal(&exec.argv, job.nonce)),
    };
    let id = execd
        .wait(cancel, execd.create_terminal(&request))
        .map_err(failed)?;
    let input = read_input(exec.stdin)?;
    let (relay, stdout, stderr) = Relay::open(exec.stdout, exec.stderr, cancel)?;
    let raw = RawMode::enter();
    let ended = execd
        .http
        .block_on(attach(execd, &id, job, input, stdout, cancel));
    drop(raw);
    drop(stderr);
    // Whatever happened, the session and its shell go. One that is gone already is what we want.
    let patient = Cancel::new();
    let removed = execd
        .http
        .wait(CALL_TIMEOUT, &patient, execd.delete_terminal(&id));
    let written = relay.finish();
    match ended {
        Ok(code) => written.map(|()| code),
        Err(error) => {
            let failure = failed(error);
            Err(match removed {
                Err(other) if !other.is_not_found() => {
                    let report =
                        format!("the command may still be running in the sandbox: {other}");
                    failure.and(&Failure::new(Code::Provider, report))
                }
                Ok(()) | Err(_) => failure,
            })
        }
    }
}

fn read_input(stdin: crabbox_core::process::Stdin) -> Result<mpsc::Receiver<Vec<u8>>, Failure> {
    let failed = |error: &io::Error| Failure::new(Code::Local, "cannot read stdin").because(error);
    let reader = stdin.into_reader().map_err(|error| failed(&error))?;
    let (sender, input) = mpsc::channel(4);
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || super::stdin::read(reader, &sender))
        .map_err(|error| failed(&error))?;
    Ok(input)
}

async fn attach(
    execd: &Execd<'_>,
    id: &str,
    job: &Job<'_>,
    mut input: mpsc::Receiver<Vec<u8>>,
    mut stdout: RelayWriter,
    cancel: &Cancel,
) -> Result<i32, HttpError> {
    let socket = within(CALL_TIMEOUT, cancel, connect(execd, id)).await?;
    let (mut sink, mut stream) = socket.split();
    let lost = |error: tokio_tungstenite::tungstenite::Error| HttpError::Lost(error.to_string());
    let mut scanner = EndScanner::new(job.nonce);
    let mut size = None;
    let mut look = tokio::time::interval(SIZE_INTERVAL);
    let deadline = tokio::time::sleep(job.timeout);
    tokio::pin!(deadline);
    let mut open = true;
    loop {
        tokio::select! {
            message = stream.next() => {
                let message = match message {
                    Some(message) => message.map_err(lost)?,
                    None => return Err(HttpError::Lost("the terminal was closed".to_owned())),
                };
                let (shown, ended) = scanner.read(&message);
                if stdout.write_all(&shown).is_err() {
                    return Err(HttpError::Local("the user's terminal is gone".to_owned()));
                }
                if let Some(code) = ended {
                    return Ok(code);
                }
                if let Some(failure) = notice(&message) {
                    return failure;
                }
            }
            piece = input.recv(), if open => match piece {
                Some(piece) => sink.send(Message::Binary(encode_input(&piece).into())).await.map_err(lost)?,
                // End of transmission, as a terminal says it.
                None => {
                    open = false;
                    sink.send(Message::Binary(encode_input(&[4]).into())).await.map_err(lost)?;
                }
            },
            _ = look.tick() => {
                let now = tcgetwinsize(io::stdin().as_fd()).ok().map(|size| (size.ws_col, size.ws_row));
                if now != size && let Some((cols, rows)) = now.filter(|(cols, rows)| *cols > 0 && *rows > 0) {
                    let resize = serde_json::to_string(&Control::Resize { cols, rows })
                        .map_err(|error| HttpError::Local(error.to_string()))?;
                    sink.send(Message::Text(resize.into())).await.map_err(lost)?;
                }
                size = now;
            }
            reason = canceled(cancel) => {
                let hangup = Control::Signal { signal: "SIGHUP".to_owned() };
                if let Ok(text) = serde_json::to_string(&hangup) {
                    // The session is removed next, which ends the shell as well.
                    let _ = sink.send(Message::Text(text.into())).await;
                }
                return Err(HttpError::Canceled(reason));
            }
            () = &mut deadline => return Err(HttpError::Timeout(job.timeout)),
        }
    }
}

/// What the daemon says that ends the session without a mark.
fn notice(message: &Message) -> Option<Result<i32, HttpError>> {
    let Message::Text(text) = message else {
        return matches!(message, Message::Close(_))
            .then(|| Err(HttpError::Lost("the terminal was closed".to_owned())));
    };
    match serde_json::from_str(text).ok()? {
        // A shell that was killed prints no mark.
        Notice::Exit { exit_code } if exit_code < 0 => Some(Ok(137)),
        Notice::Exit { exit_code } => Some(Ok(exit_code)),
        Notice::Error { error, code } => {
            Some(Err(HttpError::Malformed(format!("{code}: {error}"))))
        }
        Notice::Connected { .. } | Notice::Pong | Notice::Unknown => None,
    }
}

async fn connect(execd: &Execd<'_>, id: &str) -> Result<WebSocketStream<Stream>, HttpError> {
    let url = &execd.endpoint.url;
    let stream = execd.http.connect(&url.origin).await?;
    let path = execd.terminal_path(id);
    let mut request = Request::builder()
        .uri(format!("ws://{}{path}", url.origin.authority()))
        .header("Host", url.origin.authority())
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", generate_key())
        .body(())
        .map_err(|error| HttpError::Malformed(error.to_string()))?;
    request.headers_mut().extend(execd.endpoint.headers.clone());
    let limits = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    let (socket, _) = tokio_tungstenite::client_async_with_config(request, stream, Some(limits))
        .await
        .map_err(|error| HttpError::Lost(error.to_string()))?;
    Ok(socket)
}

/// Takes the mark with the exit status out of the output.
struct EndScanner {
    mark: Vec<u8>,
    held: Vec<u8>,
}

impl EndScanner {
    fn new(nonce: &str) -> Self {
        Self {
            mark: format!("\x1b]{MARK}{nonce};").into_bytes(),
            held: Vec::new(),
        }
    }

    fn read(&mut self, message: &Message) -> (Vec<u8>, Option<i32>) {
        let Message::Binary(bytes) = message else {
            return (Vec::new(), None);
        };
        match Output::decode(bytes) {
            Some(Output::Stdout(bytes) | Output::Stderr(bytes) | Output::Replay { bytes, .. }) => {
                self.push(bytes)
            }
            None => (Vec::new(), None),
        }
    }

    /// What can be shown, and the exit status once it is there.
    fn push(&mut self, bytes: &[u8]) -> (Vec<u8>, Option<i32>) {
        self.held.extend_from_slice(bytes);
        let found = self
            .held
            .windows(self.mark.len())
            .position(|window| window == self.mark);
        let Some(at) = found else {
            // The end may be the beginning of the mark.
            let start = self.held.len().saturating_sub(self.mark.len() - 1);
            let keep = (start..self.held.len())
                .find(|at| {
                    let rest = self.held.get(*at..).unwrap_or_default();
                    self.mark.starts_with(rest)
                })
                .unwrap_or(self.held.len());
            let rest = self.held.split_off(keep);
            return (std::mem::replace(&mut self.held, rest), None);
        };
        let status = self.held.get(at + self.mark.len()..).unwrap_or_default();
        let Some(end) = status.iter().position(|byte| *byte == 7) else {
            return (Vec::new(), None);
        };
        let code = std::str::from_utf8(status.get(..end).unwrap_or_default())
            .ok()
            .and_then(|text| text.parse().ok());
        self.held.truncate(at);
        (std::mem::take(&mut self.held), Some(code.unwrap_or(1)))
    }
}

/// Keys go to the command as they are, Ctrl-C included. Set back when it is dropped.
struct RawMode(Option<Termios>);

impl RawMode {
    fn enter() -> Self {
        let before = tcgetattr(io::stdin().as_fd()).ok();
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.make_raw();
            // Without it the terminal is as it was, and so are its keys.
            let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, &raw);
        }
        Self(before)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_in_any_pieces_and_not_shown() {
        let text = b"a\x1b[0mb\x1b]other\x07\x1b]crabbox:n1;42\x07trailing";
        for cut in 0..text.len() {
            let mut scanner = EndScanner::new("n1");
            let (first, ended) = scanner.push(&text[..cut]);
            let (shown, ended) = match ended {
                Some(code) => (first, Some(code)),
                None => {
                    let (second, ended) = scanner.push(&text[cut..]);
                    ([first, second].concat(), ended)
                }
            };
            assert_eq!(shown, b"a\x1b[0mb\x1b]other\x07", "{cut}");
            assert_eq!(ended, Some(42), "{cut}");
        }
        let mut scanner = EndScanner::new("n1");
        assert_eq!(scanner.push(b"x\x1b]crabbox:n2;1\x07").1, None);
    }
}
