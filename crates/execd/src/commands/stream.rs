//! A foreground command as a stream of events.
//!
//! Two readers split stdout and stderr into lines; a bounded channel carries their events to the HTTP body, so a client
//! that reads slowly slows the command down instead of filling memory. When the client disconnects, hyper drops the body,
//! [`Running`] with it, and the whole process group is killed.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::response::Response;
use execd_proto::event::{Ending, Event, Kind};
use execd_proto::lines::LineSplitter;
use futures_util::StreamExt;
use rustix::process::Signal;
use tokio::io::AsyncRead;
use tokio::process::Child;
use tokio::sync::{OwnedMutexGuard, mpsc};

use super::{event_response, new_id};
use crate::App;
use crate::output::{self, ReaderHandle};
use crate::process::{Group, Invocation, ending};
use crate::reply::now_millis;

const PING_INTERVAL: Duration = Duration::from_secs(3);
const QUEUED_FRAMES: usize = 64;

/// Where stderr goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Separate,
    /// Sessions send both streams as stdout.
    Merged,
}

/// Kills the command when the client is gone.
#[derive(Debug)]
pub(crate) struct Running {
    app: Arc<App>,
    id: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.app.commands.signal(&self.id, Signal::KILL);
    }
}

type Frames = mpsc::Sender<Bytes>;

/// `turn` is given back when the command has ended.
pub(crate) fn stream_events(
    app: &Arc<App>,
    invocation: &Invocation,
    timeout: Option<Duration>,
    output: Output,
    turn: Option<OwnedMutexGuard<()>>,
) -> Response {
    let id = new_id();
    app.commands.started(&id, String::new(), None);
    let (frames, receiver) = mpsc::channel(QUEUED_FRAMES);
    let running = Running {
        app: Arc::clone(app),
        id: id.clone(),
    };
    let spawned = invocation.spawn(Stdio::piped(), Stdio::piped());
    if let Ok((_, group)) = &spawned {
        app.commands.running(&id, *group);
    }
    let task_app = Arc::clone(app);
    tokio::spawn(async move {
        let ended = drive(spawned, &task_app, &id, &frames, timeout, output).await;
        task_app.commands.ended(&id, &ended.0);
        // Before the terminal event: the client's next run finds the session free.
        drop(turn);
        send(&frames, &ended.1).await;
    });
    let body = futures_util::stream::unfold((receiver, running), |(mut receiver, running)| async {
        let frame = receiver.recv().await?;
        Some((Ok::<_, io::Error>(frame), (receiver, running)))
    });
    event_response(Body::from_stream(body.boxed()))
}

/// Everything up to the terminal event, which is returned.
async fn drive(
    spawned: io::Result<(Child, Group)>,
    app: &App,
    id: &str,
    frames: &Frames,
    timeout: Option<Duration>,
    output: Output,
) -> (Ending, Event) {
    let started = Instant::now();
    send(frames, &Event::new(Kind::Init, now_millis()).with_text(id)).await;
    let (mut child, group) = match spawned {
        Ok(spawned) => spawned,
        Err(error) => {
            let ended = Ending::NotStarted(error.to_string());
            let event = Event::failed(&ended, now_millis());
            return (ended, event);
        }
    };
    let stderr = match output {
        Output::Separate => Kind::Stderr,
        Output::Merged => Kind::Stdout,
    };
    let readers = [
        child
            .stdout
            .take()
            .map(|pipe| spawn_reader(pipe, Kind::Stdout, frames)),
        child
            .stderr
            .take()
            .map(|pipe| spawn_reader(pipe, stderr, frames)),
    ];
    let ping = tokio::spawn(ping(frames.clone()));
    let status = wait(&mut child, group, timeout).await;
    app.commands.reaped(id);
    for reader in readers.into_iter().flatten() {
        reader.finish().await;
    }
    ping.abort();
    let millis = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let ended = match status {
        Ok(status) => ending(status),
        Err(error) => Ending::NotStarted(error.to_string()),
    };
    let event = match ended {
        Ending::Exited(0) => Event::complete(millis, now_millis()),
        Ending::Exited(_) | Ending::Killed(_) | Ending::NotStarted(_) => {
            Event::failed(&ended, now_millis())
        }
    };
    (ended, event)
}

/// Waits for the command; at its timeout the whole group is killed.
pub(crate) async fn wait(
    child: &mut Child,
    group: Group,
    timeout: Option<Duration>,
) -> io::Result<ExitStatus> {
    let Some(timeout) = timeout else {
        return child.wait().await;
    };
    match tokio::time::timeout(timeout, child.wait()).await {
        Ok(status) => status,
        Err(_) => {
            group.signal(Signal::KILL);
            child.wait().await
        }
    }
}

fn spawn_reader<R>(pipe: R, kind: Kind, frames: &Frames) -> ReaderHandle
where
    R: AsyncRead + Unpin + Send + 'static,
{
    let (mut reader, handle, token) = output::reader(pipe);
    let frames = frames.clone();
    tokio::spawn(async move {
        let mut splitter = LineSplitter::default();
        while let Some(bytes) = reader.next().await {
            for text in splitter.push(bytes) {
                send(&frames, &line(&kind, text)).await;
            }
        }
        if let Some(text) = splitter.finish() {
            send(&frames, &line(&kind, text)).await;
        }
        drop((frames, token));
        reader.discard().await;
    });
    handle
}

fn line(kind: &Kind, text: String) -> Event {
    Event::new(kind.clone(), now_millis()).with_text(text)
}

async fn ping(frames: Frames) {
    loop {
        let event = Event::new(Kind::Ping, now_millis()).with_text("pong");
        if !send(&frames, &event).await {
            return;
        }
        tokio::time::sleep(PING_INTERVAL).await;
    }
}

/// Whether the client is still there.
async fn send(frames: &Frames, event: &Event) -> bool {
    frames.send(Bytes::from(event.encode())).await.is_ok()
}
