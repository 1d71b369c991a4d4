//! One command in a sandbox: its bytes as they are, its exit status, and its end when it is told to.
//!
//! Four things go on at once: the daemon's event stream, which says when and how the command ended; the download of each
//! output file from where the last one stopped; the upload of stdin; and the wait for a reason to stop. A lost stream is
//! never a success, and a command that may go on is looked for and reported.

use std::cell::{Cell, RefCell};
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use crabbox_core::process::{Cancel, Reason, Relay, RelayWriter};
use crabbox_core::provider::Execution;
use crabbox_core::settings::format_duration;
use crabbox_core::{Code, Failure};
use execd_proto::command::CommandRequest;
use execd_proto::event::{Ending, Event, Kind};
use tokio::sync::{Notify, watch};

use super::execd::Execd;
use super::http::{HttpError, canceled, within};
use super::script::{self, MARK};
use super::stdin::Feeder;

/// How much longer than the command's own limit we wait for the daemon to say that it ended.
pub(super) const GRACE: Duration = Duration::from_secs(30);
/// How long a command that was told to stop may take, before its connection is closed.
const STOP_GRACE: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses between two looks at an output file.
const MIN_PAUSE: Duration = Duration::from_millis(4);
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// A download that gives nothing for so long is made anew from where it stopped.
const STALLED: Duration = Duration::from_secs(20);
const MAX_DOWNLOAD_FAILURES: u32 = 4;
const BROKEN_PIPE: i32 = 128 + 13;

pub(super) struct Job<'a> {
    pub(super) cwd: &'a str,
    pub(super) timeout: Duration,
    pub(super) nonce: &'a str,
}

/// How far the command is, as the readers of its output need to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Running,
    /// The files cannot be made: output comes by lines.
    Lines,
    /// Whether there is anything in the files; unknown after a kill.
    Ended {
        stdout: bool,
        stderr: bool,
    },
}

/// Why we stop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Canceled(Reason),
    Timeout,
    /// No program reads our stdout any more.
    BrokenPipe,
}

pub(super) fn run(
    execd: &Execd<'_>,
    job: &Job<'_>,
    exec: Execution<'_>,
    cancel: &Cancel,
) -> Result<i32, Failure> {
    let run_id = exec.env.get("CRABBOX_RUN_ID").cloned();
    let (feeder, input) = Feeder::start(exec.stdin)?;
    let request = CommandRequest {
        command: Some(script::exact(&exec.argv, job.nonce, input)),
        cwd: Some(job.cwd.to_owned()),
        timeout: Some(u64::try_from(job.timeout.as_millis()).unwrap_or(u64::MAX)),
        envs: Some(exec.env.clone()),
        ..CommandRequest::default()
    };
    let (relay, stdout, stderr) = Relay::open(exec.stdout, exec.stderr, cancel)?;
    let running = Running {
        execd,
        job,
        cancel,
        request,
        stdout: RefCell::new(stdout),
        stderr: RefCell::new(stderr),
        progress: watch::channel(Progress::Running).0,
        id: RefCell::new(None),
        stop: Cell::new(None),
        broken: Notify::new(),
        started: Instant::now(),
    };
    let ended = execd.http.block_on(running.drive(feeder));
    let stop = running.stop.get();
    let survivors = match (&ended, stop) {
        (Ok(_), None) => None,
        (Err(_), _) | (_, Some(_)) => Some(running.end_survivors(run_id.as_deref())),
    };
    running.clear_up();
    let elapsed = running.started.elapsed();
    drop(running);
    let written = relay.finish();
    let ended = outcome(ended, stop, job.timeout, elapsed)?.map_or_else(
        |failure| Err(with_survivors(failure, survivors.as_ref())),
        Ok,
    )?;
    written.map(|()| ended)
}

struct Running<'r> {
    execd: &'r Execd<'r>,
    job: &'r Job<'r>,
    cancel: &'r Cancel,
    request: CommandRequest,
    stdout: RefCell<RelayWriter>,
    stderr: RefCell<RelayWriter>,
    progress: watch::Sender<Progress>,
    id: RefCell<Option<String>>,
    stop: Cell<Option<Stop>>,
    broken: Notify,
    started: Instant,
}

/// What became of processes that a stopped command may have left.
#[derive(Debug, PartialEq, Eq)]
enum Survivors {
    None,
    Pids(Vec<String>),
    Unknown(String),
}

impl Running<'_> {
    async fn drive(&self, feeder: Option<Feeder>) -> Result<Ending, HttpError> {
        let dir = script::directory(self.job.nonce);
        let feed = async {
            // A command that has ended, or is about to, needs no input.
            if let Some(feeder) = feeder
                && let Err(error) = feeder.run(self.execd, &dir).await
                && *self.progress.borrow() == Progress::Running
            {
                return error;
            }
            std::future::pending().await
        };
        let (out, err) = (format!("{dir}/out"), format!("{dir}/err"));
        let all = async {
            tokio::join!(
                self.events(),
                self.tail(&out, &self.stdout, |progress| progress.0),
                self.tail(&err, &self.stderr, |progress| progress.1),
            )
        };
        tokio::select! {
            biased;
            (ended, out, err) = all => {
                let ended = ended?;
                out?;
                err?;
                Ok(ended)
            }
            error = feed => Err(error),
            () = self.stopped() => Err(HttpError::Lost("it did not stop".to_owned())),
        }
    }

    /// A line for people, where the command's own go.
    fn say(&self, line: &str) {
        // A reader that is gone does not want it.
        let _ = writeln!(self.stderr.borrow_mut(), "{line}");
    }

    /// Reads the daemon's stream to the terminal event.
    async fn events(&self) -> Result<Ending, HttpError> {
        let ended = self.follow().await;
        // Whatever happened, what is in the files is output.
        self.progress.send_if_modified(|progress| match progress {
            Progress::Running => {
                *progress = Progress::Ended {
                    stdout: true,
                    stderr: true,
                };
                true
            }
            Progress::Lines | Progress::Ended { .. } => false,
        });
        ended
    }

    async fn follow(&self) -> Result<Ending, HttpError> {
        let mut events = self.execd.command(&self.request).await?;
        let mark = format!("{MARK}{} ", self.job.nonce);
        loop {
            let event = events.next().await?;
            if let Some(ending) = event.ending() {
                return Ok(ending);
            }
            match event.kind {
                Kind::Init => *self.id.borrow_mut() = Some(event.text),
                Kind::Stdout if event.text.starts_with(&mark) => {
                    let said = event.text.strip_prefix(&mark).unwrap_or_default();
                    self.hear(said)?;
                }
                Kind::Stdout | Kind::Stderr => self.line(&event),
                _ => {}
            }
        }
    }

    /// What our own script says.
    fn hear(&self, said: &str) -> Result<(), HttpError> {
        match said.split_once(' ').unwrap_or((said, "")) {
            ("lines", _) => {
                self.say(
                    "warning: /tmp of the sandbox cannot be written: output is passed on by lines, and bytes that are not text are lost",
                );
                self.progress.send_replace(Progress::Lines);
                Ok(())
            }
            ("no-input", _) => Err(HttpError::Refused(
                "/tmp of the sandbox cannot be written, so stdin cannot be passed on; run with stdin from /dev/null".to_owned(),
            )),
            ("end", flags) => {
                self.progress.send_replace(Progress::Ended {
                    stdout: flags.starts_with('o'),
                    stderr: flags.ends_with('e'),
                });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A line of the fallback.
    fn line(&self, event: &Event) {
        if *self.progress.borrow() != Progress::Lines {
            return;
        }
        let to = match event.kind {
            Kind::Stderr => &self.stderr,
            _ => &self.stdout,
        };
        let text = match event.text.as_str() {
            "\n" => "\n".to_owned(),
            text => format!("{text}\n"),
        };
        // A reader that is gone takes no more lines; the command goes on, as it would with a pager that was left.
        let _ = to.borrow_mut().write_all(text.as_bytes());
    }

    /// Passes a file on while it grows, from where the last download stopped.
    async fn tail(
        &self,
        path: &str,
        to: &RefCell<RelayWriter>,
        mine: impl Fn((bool, bool)) -> bool,
    ) -> Result<(), HttpError> {
        let mut progress = self.progress.subscribe();
        let mut offset = 0;
        let mut pause = MIN_PAUSE;
        let mut failures = 0;
        // A command takes a moment to start.
        let _ = tokio::time::timeout(MIN_PAUSE, progress.changed()).await;
        loop {
            // Read before the download: what was written before the end is in it.
            let now = *progress.borrow_and_update();
            let ended = match now {
                Progress::Lines => return Ok(()),
                Progress::Ended { stdout, stderr } if !mine((stdout, stderr)) => return Ok(()),
                Progress::Ended { .. } => true,
                Progress::Running => false,
            };
            let before = offset;
            match self.download(path, &mut offset, to).await {
                Ok(()) if ended => return Ok(()),
                Ok(()) => failures = 0,
                Err(Broken::Reader) => {
                    self.broken.notify_one();
                    return Ok(());
                }
                Err(Broken::Source(error)) => {
                    failures += 1;
                    if failures >= MAX_DOWNLOAD_FAILURES {
                        return Err(error);
                    }
                }
            }
            pause = match offset > before {
                true => MIN_PAUSE,
                false => (pause * 3 / 2).min(MAX_PAUSE),
            };
            if !ended || failures > 0 {
                tokio::select! {
                    _ = progress.changed(), if !ended => {}
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    }

    /// One download, which ends at what was the file's end when it began.
    async fn download(
        &self,
        path: &str,
        offset: &mut u64,
        to: &RefCell<RelayWriter>,
    ) -> Result<(), Broken> {
        let opened = within(STALLED, self.cancel, self.execd.download(path, *offset)).await;
        let Some(mut answer) = opened.map_err(Broken::Source)? else {
            return Ok(());
        };
        // A server that ignores ranges sends what we have as well.
        let mut skip = match answer.status().as_u16() {
            206 => 0,
            _ => *offset,
        };
        loop {
            let piece = within(STALLED, self.cancel, answer.next()).await;
            let Some(piece) = piece.map_err(Broken::Source)? else {
                return Ok(());
            };
            let length = piece.len() as u64;
            let skipped = skip.min(length);
            skip -= skipped;
            let new = usize::try_from(skipped).unwrap_or(usize::MAX);
            let new = piece.get(new..).unwrap_or_default();
            match to.borrow_mut().write_all(new) {
                Ok(()) => *offset += length - skipped,
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    return Err(Broken::Reader);
                }
                Err(error) => return Err(Broken::Source(HttpError::Local(error.to_string()))),
            }
        }
    }

    /// Returns when the command was told to stop and has had its time to do so.
    async fn stopped(&self) {
        let limit = self.job.timeout.saturating_add(GRACE);
        let why = tokio::select! {
            reason = canceled(self.cancel) => Stop::Canceled(reason),
            () = tokio::time::sleep(limit) => Stop::Timeout,
            () = self.broken.notified() => Stop::BrokenPipe,
        };
        self.stop.set(Some(why));
        let id = self.id.borrow().clone();
        if let Some(id) = id {
            // What comes of it is seen in the stream; a failure is followed by closing the connection.
            let patient = Cancel::new();
            let _ = within(STOP_GRACE, &patient, self.execd.interrupt(&id)).await;
        }
        tokio::time::sleep(STOP_GRACE).await;
    }

    /// Looks for processes of this run, ends them and says which stay.
    fn end_survivors(&self, run_id: Option<&str>) -> Survivors {
        let Some(run_id) = run_id else {
            return Survivors::Unknown("the run has no id".to_owned());
        };
        let text = script::end_survivors(run_id);
        let patient = Cancel::new();
        let looked = self.execd.http.wait(
            CALL_TIMEOUT,
            &patient,
            self.execd.script(&text, CALL_TIMEOUT),
        );
        match looked.map(super::execd::ScriptEnd::check) {
            Ok(Ok(pids)) if pids.is_empty() => Survivors::None,
            Ok(Ok(pids)) => Survivors::Pids(pids),
            Ok(Err(why)) => Survivors::Unknown(why),
            Err(error) => Survivors::Unknown(error.to_string()),
        }
    }

    /// The files of the command. What cannot be removed goes with the sandbox.
    fn clear_up(&self) {
        let dir = script::directory(self.job.nonce);
        let patient = Cancel::new();
        let remove = self.execd.remove_directory(&dir);
        if let Err(error) = self.execd.http.wait(CALL_TIMEOUT, &patient, remove)
            && !error.is_not_found()
        {
            self.say(&format!(
                "warning: cannot remove {dir} of the sandbox: {error}"
            ));
        }
    }
}

enum Broken {
    /// Of our own output.
    Reader,
    Source(HttpError),
}

/// The exit status, or why there is none. The outer failure is of a request that was refused: no command ran.
fn outcome(
    ended: Result<Ending, HttpError>,
    stop: Option<Stop>,
    timeout: Duration,
    elapsed: Duration,
) -> Result<Result<i32, Failure>, Failure> {
    let late = || {
        let limit = format_duration(timeout);
        Failure::new(
            Code::Timeout,
            format!("opensandbox command timed out after {limit}"),
        )
        .hint("--opensandbox-exec-timeout-secs allows more")
    };
    Ok(match (stop, ended) {
        (Some(Stop::Canceled(Reason::Late) | Stop::Timeout), _) => Err(late()),
        (Some(Stop::Canceled(reason)), _) => {
            Err(Failure::new(Code::Canceled, format!("canceled: {reason}")))
        }
        (Some(Stop::BrokenPipe), _) => Ok(BROKEN_PIPE),
        (None, Ok(Ending::Exited(code))) => Ok(code),
        (None, Ok(Ending::Killed(_))) if elapsed >= timeout => Err(late()),
        (None, Ok(Ending::Killed(signal))) => Ok(killed(&signal)),
        (None, Ok(Ending::NotStarted(why))) => {
            let message = format!("opensandbox run failed: {why}");
            return Err(Failure::new(Code::Provider, message));
        }
        (None, Err(error @ HttpError::Status { .. })) => return Err(error.into_failure("run")),
        (None, Err(error @ HttpError::Connect { .. })) => return Err(error.into_failure("run")),
        (None, Err(error)) => Err(error.into_failure("run")),
    })
}

/// The exit code that a shell gives to a command that a signal ended.
fn killed(signal: &str) -> i32 {
    128 + match signal {
        "hangup" => 1,
        "interrupt" => 2,
        "quit" => 3,
        "terminated" => 15,
        other => other.parse().unwrap_or(9),
    }
}

fn with_survivors(failure: Failure, survivors: Option<&Survivors>) -> Failure {
    let report = match survivors {
        None | Some(Survivors::None) => return failure,
        Some(Survivors::Pids(pids)) => format!(
            "processes of the command are still running in the sandbox: {}",
            pids.join(" ")
        ),
        Some(Survivors::Unknown(why)) => {
            format!("the command may still be running in the sandbox: {why}")
        }
    };
    // Not "canceled": that says only what the user knows.
    let code = match failure.code {
        Code::Canceled => Code::Provider,
        other => other,
    };
    let failure = failure.and(&Failure::new(Code::Provider, report));
    Failure { code, ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(
        ended: Result<Ending, HttpError>,
        stop: Option<Stop>,
        secs: u64,
    ) -> Result<i32, Failure> {
        outcome(
            ended,
            stop,
            Duration::from_secs(10),
            Duration::from_secs(secs),
        )
        .and_then(|end| end)
    }

    #[test]
    fn only_a_terminal_event_gives_an_exit_code() {
        assert_eq!(ended(Ok(Ending::Exited(7)), None, 1), Ok(7));
        assert_eq!(ended(Ok(Ending::Killed("killed".into())), None, 1), Ok(137));
        assert_eq!(
            ended(Ok(Ending::Killed("terminated".into())), None, 1),
            Ok(143)
        );
        let late = ended(Ok(Ending::Killed("killed".into())), None, 10).unwrap_err();
        assert_eq!(late.code, Code::Timeout);
        let lost = ended(Err(HttpError::Lost("reset".into())), None, 1).unwrap_err();
        assert_eq!(lost.code, Code::Provider);
        let unstarted = ended(Ok(Ending::NotStarted("fork: no".into())), None, 1).unwrap_err();
        assert!(unstarted.message.contains("fork: no"));
        // An exit that we asked for is no exit of its own.
        let stop = Some(Stop::Canceled(Reason::Interrupt));
        let canceled = ended(Ok(Ending::Exited(0)), stop, 1).unwrap_err();
        assert_eq!(canceled.code, Code::Canceled);
        assert_eq!(
            ended(Ok(Ending::Exited(0)), Some(Stop::BrokenPipe), 1),
            Ok(141)
        );
    }

    #[test]
    fn survivors_are_reported_even_when_canceled() {
        let canceled = || Failure::new(Code::Canceled, "canceled: interrupted");
        let clean = with_survivors(canceled(), Some(&Survivors::None));
        assert_eq!(clean.code, Code::Canceled);
        let pids = with_survivors(canceled(), Some(&Survivors::Pids(vec!["7".into()])));
        assert_eq!(pids.code, Code::Provider);
        assert!(pids.to_string().contains("still running in the sandbox: 7"));
        let unknown = Survivors::Unknown("refused".into());
        assert!(
            with_survivors(canceled(), Some(&unknown))
                .to_string()
                .contains("may still be running")
        );
    }
}
