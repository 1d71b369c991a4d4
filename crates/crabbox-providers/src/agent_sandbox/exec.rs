//! A command in the pod: one `kubectl exec` that carries script, stdin and output.
//!
//! `kubectl exec` has one exit code for a command that failed and for a connection that broke, so the script prints the
//! command's own exit code behind a marker with a nonce ([`super::marker`]). The script arrives on stdin, before the user's
//! input, which follows in frames: the end of stdin ends the command, so it must not come before the command's own end.

use std::io::{self, Read, Write as _};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crabbox_core::claims::random_hex;
use crabbox_core::lifecycle::within;
use crabbox_core::process::{
    Cancel, Limits, Output, OutputComplete, ProcessError, Relay, Stdin, Tool, Whose,
};
use crabbox_core::provider::Execution;
use crabbox_core::timing::format_ms;
use crabbox_core::{Code, Failure};

use super::chain::Chain;
use super::conversation::Conversation;
use super::kubectl::Kubectl;
use super::marker::{Markers, Seen};
use super::script::{self, CommandScript, Input, WRONG_POD};

/// What a frame of stdin holds at most.
const FRAME: usize = 256 << 10;
/// The most that is kept of what kubectl says.
const MAX_WORDS: usize = 16 << 10;
/// How long the remains of a command are looked for.
const REAP_TIMEOUT: Duration = Duration::from_secs(20);

/// How a command ended.
pub(super) enum Ended {
    /// With its own code, proved.
    Code(i32),
    /// Not proved: what is known about it.
    Unproved { started: bool, said: Option<String> },
}

/// The pod and kubectl to reach it.
#[derive(Clone, Copy)]
pub(super) struct Pod<'a> {
    pub(super) kubectl: &'a Kubectl,
    pub(super) chain: &'a Chain,
}

impl Pod<'_> {
    /// `kubectl exec` of a script that comes on stdin.
    pub(super) fn tool(&self, script: &[u8]) -> Tool {
        self.exec(&["-i"], &script::loader(&self.chain.pod_uid, script.len()))
    }

    fn exec(&self, flags: &[&str], loader: &str) -> Tool {
        let namespace = format!("--namespace={}", self.kubectl.namespace);
        let pod = format!("pod/{}", self.chain.pod);
        let container = format!("--container={}", self.chain.container);
        let mut words = vec!["exec", &namespace];
        words.extend(flags);
        words.extend([&pod, &container, "--", "/bin/sh", "-c", loader]);
        self.kubectl.tool(words)
    }

    /// Runs the command to its end, or to the end of its time.
    pub(super) fn run(
        &self,
        exec: Execution<'_>,
        workdir: &str,
        timeout: Option<Duration>,
        cancel: &Cancel,
    ) -> Result<Ended, Failure> {
        let nonce = random_hex(16)?;
        let script = CommandScript {
            nonce: &nonce,
            workdir,
            env: exec.env,
            argv: &exec.argv,
        };
        if exec.terminal {
            let run_id = exec.env.get("CRABBOX_RUN_ID").map(String::as_str);
            return self.run_in_terminal(&script, run_id, timeout, cancel);
        }
        let run_id = exec.env.get("CRABBOX_RUN_ID").cloned();
        let input = match exec.stdin {
            Stdin::Null => Input::Null,
            _ => Input::Frames,
        };
        let script = script.with_watchdog(input);
        let tool = self.tool(&script);
        let (end, over) = mpsc::channel::<()>();
        let stdin = Frames::new(script, exec.stdin, over)
            .map_err(|error| Failure::new(Code::Local, "cannot read stdin").because(&error))?;
        let (relay, stdout, stderr) = Relay::open(exec.stdout, exec.stderr, cancel)?;
        let enough = OutputComplete::new(cancel);
        let markers = Markers::new(&enough);
        let marker = script::marker(&nonce);
        let limits = Limits {
            timeout,
            grace: Duration::from_secs(1),
            ..Limits::default()
        };
        let streamed = tool.stdin(Stdin::Reader(Box::new(stdin))).stream_until(
            Output::To(Box::new(markers.stdout(&marker, stdout))),
            Output::To(Box::new(markers.stderr(&marker, stderr))),
            &limits,
            cancel,
            &enough,
        );
        drop(end);
        let relayed = relay.finish();
        let seen = markers.take();
        match streamed {
            Ok(streamed) => {
                let broken = !streamed.broken.is_empty();
                relayed?;
                self.ended(seen, broken)
            }
            Err(error) => Err(self.cut_short(error, timeout, seen.started, run_id.as_deref())),
        }
    }

    fn ended(&self, seen: Seen, broken: bool) -> Result<Ended, Failure> {
        if String::from_utf8_lossy(&seen.words).contains(WRONG_POD) {
            let message = format!("pod {} was replaced; nothing was run", self.chain.pod);
            return Err(Failure::new(Code::NotOwned, message));
        }
        match seen.code {
            Some(code) if seen.stdout_ended || broken => Ok(Ended::Code(code)),
            Some(code) => {
                let message = format!(
                    "the command ended with {code}, but the connection was lost before all of its output arrived"
                );
                Err(Failure::new(Code::Provider, message))
            }
            None => Ok(Ended::Unproved {
                started: seen.started,
                said: self.kubectl.said(&seen.words),
            }),
        }
    }

    /// Whatever ended kubectl ended the command's stdin, and with it the command. Whether it did is looked at.
    fn cut_short(
        &self,
        error: ProcessError,
        timeout: Option<Duration>,
        started: bool,
        run_id: Option<&str>,
    ) -> Failure {
        let timed_out = matches!(error, ProcessError::TimedOut { .. });
        let mut failure = self.kubectl.explain(error.into_failure(Whose::Provider));
        if timed_out {
            let limit = format_ms(timeout.unwrap_or_default());
            let message = format!("agent-sandbox command did not end within {limit}");
            failure = Failure::new(Code::Timeout, message)
                .hint("set agentSandbox.execTimeoutSecs (0 means no limit)");
        }
        match (started, run_id) {
            (true, Some(run_id)) => match self.end(run_id) {
                Ok(()) => failure,
                Err(other) => failure.and(&other),
            },
            _ => failure,
        }
    }

    /// Makes sure that nothing of a run is left in the pod. A cancellation does not cut it short.
    pub(super) fn end(&self, run_id: &str) -> Result<(), Failure> {
        within(REAP_TIMEOUT, |cancel| self.reap(run_id, cancel))
    }

    fn reap(&self, run_id: &str, cancel: &Cancel) -> Result<(), Failure> {
        let nonce = random_hex(8)?;
        let script = script::reap(&nonce, run_id);
        let pod = &self.chain.pod;
        let left = Conversation::hold(self, &script, &nonce, cancel, |talk| {
            let line = talk.line()?;
            Ok(line.strip_prefix("left").map(|left| left.trim().to_owned()))
        });
        match left {
            Ok(Some(left)) if left.is_empty() => Ok(()),
            Ok(left) => {
                let left = left.unwrap_or_default();
                let message = format!("processes of the command still run in pod {pod}: {left}");
                Err(Failure::new(Code::Provider, message))
            }
            Err(failure) => Err(may_still_run(pod, &failure)),
        }
    }

    /// A terminal has one stream for all, so the script is put into a file before and the end is read from one after.
    fn run_in_terminal(
        &self,
        script: &CommandScript<'_>,
        run_id: Option<&str>,
        timeout: Option<Duration>,
        cancel: &Cancel,
    ) -> Result<Ended, Failure> {
        let nonce = script.nonce;
        let dir = format!("{}/.crabbox-run-{nonce}", script.workdir);
        let body = script.for_terminal(&dir);
        let quoted = crabbox_core::command::quote(&dir);
        let workdir = crabbox_core::command::quote(script.workdir);
        let put = format!(
            "umask 077; mkdir -p -- {workdir} && mkdir -- {quoted} && dd bs=1 count={} of={quoted}/run 2>/dev/null && echo {nonce} put; cat >/dev/null",
            body.len()
        );
        Conversation::hold(self, put.as_bytes(), nonce, cancel, |talk| {
            talk.send(&body)?;
            talk.line().map(drop)
        })?;
        let limits = Limits {
            timeout,
            ..Limits::default()
        };
        // The command's stderr is the terminal too: this one has only what kubectl itself says.
        let words = Words::default();
        let streamed = self
            .exec(&["-i", "-t"], &format!(". {quoted}/run"))
            .stdin(Stdin::Inherit)
            .stream(
                Output::Inherit,
                Output::To(Box::new(words.clone())),
                &limits,
                cancel,
            );
        let read = format!(
            "p=; e=; read -r p <{quoted}/pid; read -r e <{quoted}/end; [ \"$e\" ] || [ -z \"$p\" ] || {{ kill -s HUP -- \"-$p\"; sleep 1; kill -s KILL -- \"-$p\"; }}; rm -rf -- {quoted}; echo \"{nonce} end $e\"; cat >/dev/null"
        );
        let end = within(REAP_TIMEOUT, |cancel| {
            Conversation::hold(self, read.as_bytes(), nonce, cancel, Conversation::line)
        });
        if let Err(error) = streamed {
            // A process that left the terminal's session is found by its variable.
            let failure = self.cut_short(error, timeout, true, run_id);
            return Err(match end {
                Ok(_) => failure,
                Err(other) => failure.and(&other),
            });
        }
        let code = end?.strip_prefix("end ").and_then(|code| code.parse().ok());
        Ok(code.map_or(
            Ended::Unproved {
                started: true,
                said: self.kubectl.said(&words.take()),
            },
            Ended::Code,
        ))
    }
}

/// What kubectl says.
#[derive(Debug, Clone, Default)]
struct Words(Arc<Mutex<Vec<u8>>>);

impl Words {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl io::Write for Words {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_WORDS.saturating_sub(words.len());
        words.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Of a command that could not be looked for.
pub(super) fn may_still_run(pod: &str, why: &Failure) -> Failure {
    let message = format!("the command may still run in pod {pod}: {why}");
    Failure::new(Code::Provider, message)
}

/// The script, then the user's stdin in frames. It ends only when the command has: its end would end the command.
struct Frames {
    ready: io::Cursor<Vec<u8>>,
    user: Option<Box<dyn Read + Send>>,
    buffer: Vec<u8>,
    over: Receiver<()>,
}

impl Frames {
    fn new(script: Vec<u8>, stdin: Stdin, over: Receiver<()>) -> io::Result<Self> {
        let user = match stdin {
            Stdin::Null => None,
            other => Some(other.into_reader()?),
        };
        Ok(Self {
            ready: io::Cursor::new(script),
            user,
            buffer: Vec::new(),
            over,
        })
    }

    /// Fills `ready` with the next frame. A stdin that cannot be read has ended.
    fn next(&mut self) -> io::Result<()> {
        let Some(user) = &mut self.user else {
            return Ok(());
        };
        self.buffer.resize(FRAME, 0);
        let read = match user.read(&mut self.buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(_) | Ok(0) => {
                self.user = None;
                0
            }
            Ok(read) => read,
        };
        let mut frame = format!("{read}\n").into_bytes();
        frame.write_all(self.buffer.get(..read).unwrap_or_default())?;
        self.ready = io::Cursor::new(frame);
        Ok(())
    }
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut read = self.ready.read(buffer)?;
        if read == 0 && self.user.is_some() {
            self.next()?;
            read = self.ready.read(buffer)?;
        }
        if read == 0 {
            // Until the other side is dropped.
            let _ = self.over.recv();
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stdin_follows_the_script_in_frames_and_never_ends_by_itself() {
        let (end, over) = mpsc::channel();
        let stdin = Stdin::Bytes(b"some\ninput".to_vec());
        let mut frames = Frames::new(b"script".to_vec(), stdin, over).unwrap();
        let expected = b"script10\nsome\ninput0\n";
        let mut first = vec![0; expected.len()];
        frames.read_exact(&mut first).unwrap();
        assert_eq!(first, expected);
        drop(end);
        assert_eq!(frames.read(&mut [0]).unwrap(), 0);
    }
}
