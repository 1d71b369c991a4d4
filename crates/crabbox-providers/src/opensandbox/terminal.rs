//! A command on a terminal: the daemon's PTY over a WebSocket, the user's terminal in raw mode.
//!
//! The daemon may say that the command ended before it has sent all of its output. So the command's script prints a mark
//! with the exit status after it, which is not shown.

mod mark;
mod raw;

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crabbox_core::process::{Cancel, Reason, Relay, RelayWriter};
use crabbox_core::provider::Execution;
use crabbox_core::{Code, Failure};
use execd_proto::pty::{Control, Notice, PtyRequest, encode_input};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use rustix::termios::tcgetwinsize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::{Request, generate_key};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};

use super::exec::Job;
use super::execd::{Execd, Upload};
use super::http::{HttpError, Stream, canceled, unless_silent, within};
use super::script;
use super::survivors;
use mark::EndScanner;
use raw::RawMode;

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the size of the user's terminal is looked at.
const SIZE_INTERVAL: Duration = Duration::from_millis(150);
/// How long a command that is canceled may take to be told so.
const HANGUP_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_MESSAGE: usize = 4 << 20;
/// A shell that waits says nothing, so the daemon is asked for an answer that often (RFC 6455, section 5.5.2), and has to say
/// something for as long as that.
const LIVENESS: Liveness = Liveness {
    ping: Duration::from_secs(10),
    silent: Duration::from_secs(45),
};

#[derive(Clone, Copy)]
struct Liveness {
    ping: Duration,
    silent: Duration,
}

pub(super) fn run(
    execd: &Execd<'_>,
    job: &Job<'_>,
    exec: Execution<'_>,
    cancel: &Cancel,
) -> Result<i32, Failure> {
    let started = Instant::now();
    let limit = started.checked_add(job.timeout);
    let cancel = limit.map_or_else(|| cancel.clone(), |limit| cancel.until(limit));
    let run_id = exec.env.get("CRABBOX_RUN_ID").cloned();
    let session = Session {
        execd,
        job,
        cancel: &cancel,
        id: RefCell::new(None),
    };
    let ended = session.run(exec);
    let removed = session.remove(ended.is_err());
    let failure = match ended {
        Ok(code) => return Ok(code),
        Err(failure) => failure,
    };
    if session.id.borrow().is_none() {
        return Err(failure); // no shell was started
    }
    let failure = match removed {
        Ok(()) => failure,
        Err(error) => {
            let report = format!("the terminal session may still be there: {error}");
            failure.and(&Failure::new(Code::Provider, report))
        }
    };
    let survivors = survivors::end(execd, run_id.as_deref(), started.elapsed());
    Err(survivors.add_to(failure))
}

/// One terminal session of the daemon, and the file with the variables of its command.
struct Session<'s> {
    execd: &'s Execd<'s>,
    job: &'s Job<'s>,
    /// With the command's time limit.
    cancel: &'s Cancel,
    /// From the moment that the daemon knows it.
    id: RefCell<Option<String>>,
}

impl Session<'_> {
    fn run(&self, exec: Execution<'_>) -> Result<i32, Failure> {
        let failed = |error| self.failure(error);
        let execd = self.execd;
        let input = read_input(exec.stdin)?;
        let path = format!("{}/env", script::directory(self.job.nonce));
        let env = script::env_file(exec.env).into_bytes();
        let dir = script::directory(self.job.nonce);
        // Ours alone from the beginning: an upload would make it with other permissions, and the file in it as well.
        let prepare = async {
            execd.make_directory(&dir, 700).await?;
            execd.upload(vec![Upload::bytes(&path, env)]).await
        };
        execd.wait(self.cancel, prepare).map_err(failed)?;
        let request = PtyRequest {
            cwd: Some(self.job.cwd.to_owned()),
            command: Some(script::terminal(&exec.argv, self.job.nonce, window_size())),
        };
        let id = execd
            .wait(self.cancel, execd.create_terminal(&request))
            .map_err(failed)?;
        self.id.replace(Some(id.clone()));
        let (relay, stdout, stderr) = Relay::open(exec.stdout, exec.stderr, self.cancel)?;
        let raw = RawMode::enter(rustix::stdio::stdin());
        let attached = attach(execd, &id, self.job.nonce, input, stdout, self.cancel);
        let ended = execd.http.block_on(attached);
        drop(raw);
        drop(stderr);
        let written = relay.finish();
        let code = ended.map_err(failed)?;
        written.map(|()| code)
    }

    fn failure(&self, error: HttpError) -> Failure {
        match (self.cancel.reason(), error) {
            (Some(Reason::Late), _) => super::exec::late(self.job.timeout),
            (Some(reason), _) => Failure::new(Code::Canceled, format!("canceled: {reason}")),
            (None, error) => error.into_failure("terminal"),
        }
    }

    /// The session goes, and its shell with it. The file is removed by its reader, unless it did not come to that.
    fn remove(&self, failed: bool) -> Result<(), HttpError> {
        let patient = Cancel::new();
        let wait = |work| {
            let done: Result<(), HttpError> = work;
            match done {
                // Gone already is what we want.
                Err(error) if error.is_not_found() => Ok(()),
                other => other,
            }
        };
        let http = self.execd.http;
        let id = self.id.borrow().clone();
        let ended = id.map_or(Ok(()), |id| {
            wait(http.wait(CALL_TIMEOUT, &patient, self.execd.delete_terminal(&id)))
        });
        let dir = script::directory(self.job.nonce);
        let cleared = match failed {
            true => wait(http.wait(CALL_TIMEOUT, &patient, self.execd.remove_directory(&dir))),
            false => Ok(()),
        };
        ended.and(cleared)
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

/// Both directions at once, so that none waits for the other, and neither outlasts the cancellation.
async fn attach(
    execd: &Execd<'_>,
    id: &str,
    nonce: &str,
    input: mpsc::Receiver<Vec<u8>>,
    stdout: RelayWriter,
    cancel: &Cancel,
) -> Result<i32, HttpError> {
    let socket = within(CALL_TIMEOUT, cancel, connect(execd, id)).await?;
    let (mut sink, stream) = socket.split();
    let reason = tokio::select! {
        ended = show(stream, nonce, stdout, LIVENESS) => return ended,
        error = send_input(&mut sink, input, LIVENESS) => return Err(error),
        reason = canceled(cancel) => reason,
    };
    let hangup = Control::Signal {
        signal: "SIGHUP".to_owned(),
    };
    if let Ok(text) = serde_json::to_string(&hangup) {
        // The session is removed next, which ends the shell as well.
        let sent = sink.send(Message::Text(text.into()));
        let _ = tokio::time::timeout(HANGUP_TIMEOUT, sent).await;
    }
    Err(HttpError::Canceled(reason))
}

fn lost(error: tungstenite::Error) -> HttpError {
    HttpError::Lost(error.to_string())
}

/// Output, to the end of the command.
async fn show<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: SplitStream<WebSocketStream<S>>,
    nonce: &str,
    mut stdout: impl io::Write,
    liveness: Liveness,
) -> Result<i32, HttpError> {
    let mut scanner = EndScanner::new(nonce);
    while let Some(message) = unless_silent(liveness.silent, stream.next()).await? {
        let message = message.map_err(lost)?;
        let (shown, ended) = scanner.read(&message);
        if stdout.write_all(&shown).is_err() {
            return Err(HttpError::Local("the user's terminal is gone".to_owned()));
        }
        if let Some(code) = ended {
            return Ok(code);
        }
        if let Some(ended) = notice(&message) {
            return ended;
        }
    }
    Err(HttpError::Lost("the terminal was closed".to_owned()))
}

/// Keys and sizes of the user's terminal, for as long as they can be sent.
async fn send_input<S: AsyncRead + AsyncWrite + Unpin>(
    sink: &mut SplitSink<WebSocketStream<S>, Message>,
    mut input: mpsc::Receiver<Vec<u8>>,
    liveness: Liveness,
) -> HttpError {
    let mut look = tokio::time::interval(SIZE_INTERVAL);
    let mut ping = tokio::time::interval(liveness.ping);
    let mut size = None;
    let mut open = true;
    loop {
        let message = tokio::select! {
            piece = input.recv(), if open => {
                open = piece.is_some();
                // End of transmission, as a terminal says it.
                let piece = piece.unwrap_or_else(|| vec![4]);
                Message::Binary(encode_input(&piece).into())
            }
            _ = ping.tick() => Message::Ping(Bytes::new()),
            _ = look.tick() => {
                let now = window_size();
                let changed = std::mem::replace(&mut size, now) != now;
                match now {
                    Some((cols, rows)) if changed => {
                        match serde_json::to_string(&Control::Resize { cols, rows }) {
                            Ok(resize) => Message::Text(resize.into()),
                            Err(error) => return HttpError::Local(error.to_string()),
                        }
                    }
                    _ => continue,
                }
            }
        };
        if let Err(error) = sink.send(message).await {
            return lost(error);
        }
    }
}

/// Columns and rows of the user's terminal, if it has any.
fn window_size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(io::stdin().as_fd()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
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

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    const QUICK: Liveness = Liveness {
        ping: Duration::from_millis(20),
        silent: Duration::from_millis(480),
    };

    /// A WebSocket's two ends, on a runtime of their own.
    fn with_sockets<F: Future>(
        work: impl FnOnce(WebSocketStream<DuplexStream>, WebSocketStream<DuplexStream>) -> F,
    ) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (near, far) = tokio::io::duplex(4096);
            let near = WebSocketStream::from_raw_socket(near, Role::Client, None).await;
            let far = WebSocketStream::from_raw_socket(far, Role::Server, None).await;
            work(near, far).await
        })
    }

    #[test]
    fn a_daemon_that_says_nothing_is_lost() {
        let ended = with_sockets(|near, far| async move {
            let (_sink, stream) = near.split();
            let ended = show(stream, "n", Vec::new(), QUICK).await;
            drop(far);
            ended
        });
        assert!(matches!(ended, Err(HttpError::Lost(_))), "{ended:?}");
    }

    #[test]
    fn a_shell_that_waits_is_not_lost() {
        let began = Instant::now();
        let ended = with_sockets(|near, mut far| async move {
            let (mut sink, stream) = near.split();
            let (_keys, input) = mpsc::channel(1);
            // It answers pings as it reads; the command ends after more than the silence that is allowed.
            let daemon = async {
                let mut pings = 0;
                while began.elapsed() < QUICK.silent * 2 {
                    if let Some(Ok(Message::Ping(_))) = far.next().await {
                        pings += 1;
                    }
                }
                let said = b"\x01\x1b]crabbox:n;7\x07".as_slice();
                far.send(Message::Binary(said.into())).await.unwrap();
                assert!(pings > 2);
                std::future::pending::<()>().await
            };
            tokio::select! {
                ended = show(stream, "n", Vec::new(), QUICK) => ended,
                error = send_input(&mut sink, input, QUICK) => Err(error),
                () = daemon => unreachable!(),
            }
        });
        assert!(matches!(ended, Ok(7)), "{ended:?}");
    }
}
