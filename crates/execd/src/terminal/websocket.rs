//! The WebSocket of a session.

use std::sync::Arc;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use execd_proto::error::Code;
use execd_proto::pty::{Control, Notice, Output, TAKEN_OVER, decode_input};
use rustix::process::Signal;
use serde::Deserialize;
use tokio::sync::watch;

use super::Terminal;
use super::shell::{Channel, Shell, Streams};
use crate::App;
use crate::extract::Parameters;
use crate::reply::{Failure, Reply};

#[derive(Debug, Deserialize)]
pub(crate) struct Options {
    pty: Option<String>,
    since: Option<u64>,
    takeover: Option<String>,
}

pub(crate) async fn connect(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Parameters(options): Parameters<Options>,
    upgrade: WebSocketUpgrade,
) -> Reply {
    let terminal = app.terminals.get(&id)?;
    let streams = match options.pty.as_deref() {
        Some("0" | "false") => Streams::Pipes,
        Some(_) | None => Streams::Terminal,
    };
    let shell = running_shell(&app, &terminal, streams).await?;
    if shell.has_client() && options.takeover.as_deref() != Some("1") {
        let message = format!("pty session {id} has a client already");
        return Err(Failure::new(Code::AlreadyConnected, message));
    }
    let since = options.since.unwrap_or(0);
    Ok(upgrade.on_upgrade(move |socket| serve(socket, shell, id, since)))
}

async fn running_shell(app: &App, terminal: &Terminal, streams: Streams) -> Reply<Arc<Shell>> {
    let mut slot = terminal.shell.lock().await;
    if let Some(shell) = slot.as_ref() {
        return Ok(Arc::clone(shell));
    }
    let shell = Shell::start(terminal, streams, app.env_file.as_deref())
        .map_err(|error| Failure::new(Code::RuntimeError, format!("start shell: {error}")))?;
    *slot = Some(Arc::clone(&shell));
    Ok(shell)
}

async fn serve(mut socket: WebSocket, shell: Arc<Shell>, id: String, since: u64) {
    if let Some(code) = drive(&mut socket, &shell, id, since).await {
        let frame = CloseFrame {
            code,
            reason: "".into(),
        };
        // The client may be gone already.
        let _ = socket.send(Message::Close(Some(frame))).await;
    }
}

/// The close code to send, or none where the client is gone.
async fn drive(socket: &mut WebSocket, shell: &Shell, id: String, since: u64) -> Option<u16> {
    let mut exit = shell.exit();
    let mode = match shell.streams() {
        Streams::Terminal => "pty",
        Streams::Pipes => "pipe",
    };
    let connected = Notice::Connected {
        session_id: id,
        mode: mode.to_owned(),
    };
    notify(socket, &connected).await?;
    let ((offset, bytes), mut output) = shell.attach(since);
    if !bytes.is_empty() {
        let replay = Output::Replay {
            offset,
            bytes: &bytes,
        };
        send(socket, Message::Binary(replay.encode().into())).await?;
    }
    loop {
        // Output before the exit status: the branches are tried in this order.
        tokio::select! {
            biased;
            message = output.recv() => match message {
                Some((channel, bytes)) => send(socket, encode(channel, &bytes)).await?,
                None => return Some(TAKEN_OVER),
            },
            message = socket.recv() => handle(shell, socket, message?.ok()?).await?,
            exit_code = exited(&mut exit) => {
                notify(socket, &Notice::Exit { exit_code }).await?;
                return Some(1000);
            }
        }
    }
}

async fn exited(exit: &mut watch::Receiver<Option<i32>>) -> i32 {
    let code = exit.wait_for(Option::is_some).await;
    // The sender lives as long as the shell, which the caller holds.
    code.ok().and_then(|code| *code).unwrap_or(-1)
}

fn encode(channel: Channel, bytes: &[u8]) -> Message {
    let output = match channel {
        Channel::Stdout => Output::Stdout(bytes),
        Channel::Stderr => Output::Stderr(bytes),
    };
    Message::Binary(output.encode().into())
}

async fn handle(shell: &Shell, socket: &mut WebSocket, message: Message) -> Option<()> {
    match message {
        Message::Binary(bytes) => {
            let input = decode_input(&bytes)?;
            // A shell that has closed its input still has output and an exit status.
            let _ = shell.write(input).await;
        }
        Message::Text(text) => match serde_json::from_str::<Control>(&text) {
            Ok(Control::Resize { cols, rows }) => {
                // A terminal that is gone has no size; the exit status follows.
                let _ = shell.resize(cols, rows);
            }
            Ok(Control::Signal { signal }) => match signal_named(&signal) {
                Some(signal) => shell.signal(signal),
                None => invalid(socket, &format!("unknown signal {signal}")).await?,
            },
            Ok(Control::Ping) => notify(socket, &Notice::Pong).await?,
            Err(error) => invalid(socket, &error.to_string()).await?,
        },
        Message::Close(_) => return None,
        Message::Ping(_) | Message::Pong(_) => {}
    }
    Some(())
}

async fn invalid(socket: &mut WebSocket, error: &str) -> Option<()> {
    let notice = Notice::Error {
        error: error.to_owned(),
        code: "INVALID_FRAME".to_owned(),
    };
    notify(socket, &notice).await
}

fn signal_named(name: &str) -> Option<Signal> {
    match name.strip_prefix("SIG").unwrap_or(name) {
        "INT" => Some(Signal::INT),
        "TERM" => Some(Signal::TERM),
        "KILL" => Some(Signal::KILL),
        "QUIT" => Some(Signal::QUIT),
        "HUP" => Some(Signal::HUP),
        "USR1" => Some(Signal::USR1),
        "USR2" => Some(Signal::USR2),
        "TSTP" => Some(Signal::TSTP),
        "CONT" => Some(Signal::CONT),
        _ => None,
    }
}

async fn notify(socket: &mut WebSocket, notice: &Notice) -> Option<()> {
    let text = serde_json::to_string(notice).ok()?;
    send(socket, Message::Text(text.into())).await
}

async fn send(socket: &mut WebSocket, message: Message) -> Option<()> {
    socket.send(message).await.ok()
}
