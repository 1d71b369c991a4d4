//! The stdin of a command, in pieces that the sandbox's side puts together: the daemon has no input for commands.
//!
//! Each piece is a file, and a second, empty file says that it is complete. A few pieces at most wait in the sandbox: a
//! command that does not read does not fill its disk.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use crabbox_core::process::Stdin;
use crabbox_core::{Code, Failure};
use tokio::sync::mpsc;

use super::execd::{Execd, Upload};
use super::http::{HttpError, Part, unless_silent};
use super::script::Input;

const PIECE: usize = 1 << 20;
const MAX_WAITING: u64 = 8;
/// How often the sandbox is looked at for what it has read.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// One request: a piece, or a look. A daemon that takes that long for it is gone.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long stdin may take to turn out to be empty.
const FIRST_PIECE_TIMEOUT: Duration = Duration::from_millis(15);

pub(super) struct Feeder {
    pieces: mpsc::Receiver<Vec<u8>>,
    first: Option<Vec<u8>>,
}

impl Feeder {
    /// Starts to read. An input that is at its end needs no feeder.
    pub(super) fn start(stdin: Stdin) -> Result<(Option<Self>, Input), Failure> {
        if matches!(stdin, Stdin::Null) {
            return Ok((None, Input::Null));
        }
        let failed =
            |error: &std::io::Error| Failure::new(Code::Local, "cannot read stdin").because(error);
        let reader = stdin.into_reader().map_err(|error| failed(&error))?;
        let (sender, mut pieces) = mpsc::channel(2);
        // It may wait in a read for ever, so it is not waited for.
        std::thread::Builder::new()
            .name("stdin".to_owned())
            .spawn(move || read(reader, &sender))
            .map_err(|error| failed(&error))?;
        let deadline = std::time::Instant::now() + FIRST_PIECE_TIMEOUT;
        let first = loop {
            match pieces.try_recv() {
                Ok(piece) => break Some(piece),
                Err(mpsc::error::TryRecvError::Disconnected) => return Ok((None, Input::Null)),
                Err(mpsc::error::TryRecvError::Empty) => {}
            }
            if std::time::Instant::now() >= deadline {
                break None;
            }
            std::thread::sleep(Duration::from_micros(200));
        };
        Ok((Some(Self { pieces, first }), Input::Fed))
    }

    /// Uploads all of it.
    pub(super) async fn run(mut self, execd: &Execd<'_>, dir: &str) -> Result<(), HttpError> {
        // Its directory would be made by the first upload otherwise, with other permissions.
        while !timed(execd.exists(&format!("{dir}/in"))).await? {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        let mut count: u64 = 0;
        loop {
            let piece = match self.first.take() {
                Some(piece) => Some(piece),
                None => self.pieces.recv().await,
            };
            let Some(piece) = piece else {
                let end = format!("{dir}/in.{count}.end");
                return timed(execd.upload(vec![Upload::bytes(&end, Vec::new())])).await;
            };
            if let Some(oldest) = count.checked_sub(MAX_WAITING) {
                let oldest = format!("{dir}/in.{oldest}.ok");
                while timed(execd.exists(&oldest)).await? {
                    tokio::time::sleep(LOOK_INTERVAL).await;
                }
            }
            let path = format!("{dir}/in.{count}");
            let complete = format!("{path}.ok");
            let content = Upload {
                path: &path,
                mode: 600,
                content: Part::Bytes(Bytes::from(piece)),
            };
            timed(execd.upload(vec![content, Upload::bytes(&complete, Vec::new())])).await?;
            count += 1;
        }
    }
}

/// One request, unless the daemon does not answer it.
async fn timed<T>(request: impl Future<Output = Result<T, HttpError>>) -> Result<T, HttpError> {
    unless_silent(REQUEST_TIMEOUT, request).await?
}

/// Passes on what there is: a terminal's line as well as a megabyte of a file.
pub(super) fn read(mut reader: Box<dyn Read + Send>, sender: &mpsc::Sender<Vec<u8>>) {
    let mut buffer = vec![0; PIECE];
    loop {
        let count = match reader.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            // For the command it is the end of its input, as it would be with a terminal that is gone.
            Err(_) => return,
        };
        let piece = buffer.get(..count).unwrap_or_default().to_vec();
        if sender.blocking_send(piece).is_err() {
            return;
        }
    }
}
