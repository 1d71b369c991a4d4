//! A script in the pod that asks and is answered, over one `kubectl exec`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crabbox_core::process::{Cancel, End, Limits, Output, OutputComplete, Stdin, Whose};
use crabbox_core::{Code, Failure};

use super::exec::Pod;
use super::script::WRONG_POD;

/// The most that is kept of stderr, and of a list.
const MAX_STDERR: usize = 16 << 10;
const MAX_LIST: usize = 256 << 20;

/// Lines that begin with the nonce are the script's; everything else is what a program printed.
pub(super) struct Conversation {
    nonce: String,
    /// Closed when nothing more is to be said.
    to: Option<PipeWriter>,
    from: BufReader<PipeReader>,
    stderr: StderrLog,
}

#[derive(Debug, Clone)]
struct StderrLog {
    all: Arc<Mutex<Vec<u8>>>,
    /// Set where the loader is in another pod: it reads stdin to an end that comes only after its answer.
    refused: OutputComplete,
}

impl Write for StderrLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_STDERR.saturating_sub(all.len());
        all.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        let is_refused = String::from_utf8_lossy(&all).contains(WRONG_POD);
        drop(all);
        if is_refused {
            self.refused.set();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Conversation {
    /// Starts the script and talks with it. What `talk` finds out counts, unless kubectl did not come to an end.
    pub(super) fn hold<T>(
        pod: &Pod<'_>,
        script: &[u8],
        nonce: &str,
        cancel: &Cancel,
        talk: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let failed =
            |error: io::Error| Failure::new(Code::Local, "cannot make a pipe").because(&error);
        let (child_in, to) = io::pipe().map_err(failed)?;
        let (from, child_out) = io::pipe().map_err(failed)?;
        let refused = OutputComplete::new(cancel);
        let stderr = StderrLog {
            all: Arc::default(),
            refused: refused.clone(),
        };
        let tool = pod
            .tool(script)
            .stdin(Stdin::File(File::from(OwnedFd::from(child_in))));
        let (out, err) = (
            Output::To(Box::new(child_out)),
            Output::To(Box::new(stderr.clone())),
        );
        let limits = Limits::default();
        thread::scope(|scope| {
            let running = scope.spawn(|| tool.stream_until(out, err, &limits, cancel, &refused));
            let mut conversation = Self {
                nonce: nonce.to_owned(),
                to: Some(to),
                from: BufReader::new(from),
                stderr,
            };
            let said = conversation
                .send(script)
                .and_then(|()| talk(&mut conversation));
            conversation.finish();
            let ended = running.join();
            let stderr = conversation.stderr.clone();
            drop(conversation);
            match (said, ended) {
                (_, Err(_)) => Err(Failure::new(Code::Local, "a thread failed")),
                // What was said before the time was over holds.
                (Ok(said), Ok(_)) => Ok(said),
                (Err(_), Ok(Err(error))) => {
                    Err(pod.kubectl.explain(error.into_failure(Whose::Provider)))
                }
                (Err(failure), Ok(Ok(streamed))) => {
                    Err(explain_failure(pod, failure, &stderr, streamed.end))
                }
            }
        })
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = match &mut self.to {
            Some(to) => to.write_all(bytes),
            None => Ok(()),
        };
        written.map_err(|error| connection_lost(&error))
    }

    /// Copies everything, and closes the script's stdin.
    pub(super) fn send_all(&mut self, mut from: impl Read) -> Result<(), Failure> {
        let sent = match &mut self.to {
            Some(to) => io::copy(&mut from, to).map(drop),
            None => Ok(()),
        };
        self.close();
        sent.map_err(|error| connection_lost(&error))
    }

    pub(super) fn close(&mut self) {
        self.to = None;
    }

    /// The next line of the script, without the nonce.
    pub(super) fn line(&mut self) -> Result<String, Failure> {
        self.lines_until(&mut Vec::new())
    }

    /// The same, with what programs print until then.
    pub(super) fn lines_until(&mut self, printed: &mut Vec<u8>) -> Result<String, Failure> {
        loop {
            let mut line = Vec::new();
            let read = self.from.read_until(b'\n', &mut line);
            match read {
                Ok(read) if read > 0 && line.ends_with(b"\n") => {}
                Ok(_) => {
                    let message = "the connection to the pod ended before its answer";
                    return Err(Failure::new(Code::Provider, message));
                }
                Err(error) => return Err(connection_lost(&error)),
            }
            let own = line
                .strip_prefix(self.nonce.as_bytes())
                .and_then(|rest| rest.strip_prefix(b" "));
            if let Some(own) = own {
                return Ok(String::from_utf8_lossy(own).trim_end().to_owned());
            }
            if printed.len() + line.len() > MAX_LIST {
                let message = "the pod printed too much";
                return Err(Failure::new(Code::ProviderMalformed, message));
            }
            printed.extend_from_slice(&line);
        }
    }

    /// What programs of the script printed to stderr so far.
    pub(super) fn first_error(&self) -> Option<String> {
        let all = self
            .stderr
            .all
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&all);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty());
        line.map(str::to_owned)
    }

    /// Reads to the end, so that the script can end.
    fn finish(&mut self) {
        self.close();
        let _ = io::copy(&mut self.from, &mut io::sink()); // its end is what is waited for
    }
}

fn connection_lost(error: &io::Error) -> Failure {
    Failure::new(Code::Provider, "the connection to the pod was lost").because(error)
}

/// With what kubectl said about it.
fn explain_failure(pod: &Pod<'_>, mut failure: Failure, stderr: &StderrLog, end: End) -> Failure {
    let words = stderr.all.lock().unwrap_or_else(PoisonError::into_inner);
    let text = String::from_utf8_lossy(&words);
    if text.contains(WRONG_POD) {
        let message = format!("pod {} was replaced; nothing was sent to it", pod.chain.pod);
        return Failure::new(Code::NotOwned, message);
    }
    if let Some(denied) = pod.kubectl.denied(&text) {
        let message = format!("agent-sandbox RBAC denied: {denied}");
        return Failure::new(Code::Denied, message);
    }
    if !end.success() && failure.causes.is_empty() {
        failure.causes.extend(pod.kubectl.said(&words));
    }
    failure
}
