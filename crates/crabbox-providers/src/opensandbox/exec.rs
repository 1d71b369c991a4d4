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

use super::execd::{Download, Execd};
use super::http::{HttpError, canceled, unless_silent, within};
use super::script::{self, MARK};
use super::stdin::Feeder;
use super::survivors::{self, Survivors};

/// How much longer than the command's own limit we wait for the daemon to say that it ended.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a command that was told to stop may take, before its connection is closed.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often an output file is looked at.
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(4);
const MAX_LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A download that gives nothing for so long is made anew from where it stopped.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(20);
const MAX_DOWNLOAD_FAILURES: u32 = 4;
/// Until the daemon answers that it takes the command.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The daemon sends an event every three seconds, whatever the command does. One that sends none for so long is gone, or the
/// network between us.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// A file is looked at some times more where the script did not say that it is complete.
const REST_INTERVAL: Duration = Duration::from_millis(50);
const REST_LOOKS: u32 = 3;
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
    Ended(Files),
}

/// What the script left of one output file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    Something,
    /// Something, and not all of it: the process that writes the file failed.
    Part,
    /// The command removed it: what was not downloaded before is lost.
    Missing,
    /// The script did not come to say it.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Files {
    stdout: Left,
    stderr: Left,
}

/// A command that was followed to its end.
struct Done {
    ending: Ending,
    /// Whether output was lost.
    lost: bool,
}

/// Why we stop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Canceled(Reason),
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
    // A reader that takes nothing does not outlast the command's limit either.
    let started = Instant::now();
    let limit = started.checked_add(job.timeout.saturating_add(END_TIMEOUT));
    let cancel = &limit.map_or_else(|| cancel.clone(), |limit| cancel.until(limit));
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
    };
    let ended = execd.http.block_on(running.drive(feeder));
    let elapsed = started.elapsed();
    let is_late = elapsed >= job.timeout;
    let stop = running.stop.get();
    let survivors = match may_survive(&ended, stop, running.is_started(), is_late) {
        true => {
            running.interrupt();
            survivors::end(execd, run_id.as_deref(), started.elapsed())
        }
        false => Survivors::None,
    };
    running.clear_up();
    let lost = matches!(&ended, Ok(done) if done.lost);
    let ended = match outcome(ended, stop, job, is_late) {
        Ok(code) => {
            if lost {
                running.warn(&lost_output(job));
            }
            if let Some(report) = survivors.report() {
                running.warn(&report);
            }
            Ok(code)
        }
        Err(failure) => Err(survivors.add_to(failure)),
    };
    drop(running);
    let written = relay.finish();
    let code = ended?;
    written.map(|()| code)
}

/// Whether something of the command may go on: it was stopped, its end was not seen, or the daemon's own limit ended it,
/// which does not reach what has left its process group.
fn may_survive(
    ended: &Result<Done, HttpError>,
    stop: Option<Stop>,
    is_started: bool,
    is_late: bool,
) -> bool {
    match ended {
        _ if stop.is_some() => true,
        Err(error) => is_started || error.is_ambiguous(),
        Ok(Done {
            ending: Ending::Killed(_),
            ..
        }) => is_late,
        Ok(_) => false,
    }
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
}

impl Running<'_> {
    fn is_started(&self) -> bool {
        self.id.borrow().is_some()
    }

    async fn drive(&self, feeder: Option<Feeder>) -> Result<Done, HttpError> {
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
        let tails = async {
            let (out, err) = tokio::try_join!(
                self.tail(&out, &self.stdout, |files| files.stdout),
                self.tail(&err, &self.stderr, |files| files.stderr),
            )?;
            Ok(out || err)
        };
        let all = async {
            tokio::pin!(tails);
            let events = self.events();
            tokio::pin!(events);
            // A command whose output cannot be had is not left to run; an end that was not seen still leaves output.
            let (ended, lost) = tokio::select! {
                biased;
                ended = &mut events => (ended, tails.await),
                lost = &mut tails => match lost {
                    Ok(lost) => (events.await, Ok(lost)),
                    Err(error) => return Err(error),
                },
            };
            let ending = ended?;
            Ok(Done {
                ending,
                lost: lost?,
            })
        };
        tokio::select! {
            biased;
            done = all => done,
            error = feed => Err(error),
            () = self.stopped() => Err(HttpError::Lost("it did not stop".to_owned())),
        }
    }

    /// A line for people, where the command's own go.
    fn say(&self, line: &str) {
        // A reader that is gone does not want it.
        let _ = writeln!(self.stderr.borrow_mut(), "{line}");
    }

    fn warn(&self, what: &str) {
        self.say(&format!("warning: {}", self.execd.secrets.text(what)));
    }

    /// Reads the daemon's stream to the terminal event.
    async fn events(&self) -> Result<Ending, HttpError> {
        let ended = self.follow().await;
        // Whatever happened, what is in the files is output.
        self.progress.send_if_modified(|progress| match progress {
            Progress::Running => {
                *progress = Progress::Ended(Files {
                    stdout: Left::Unknown,
                    stderr: Left::Unknown,
                });
                true
            }
            Progress::Lines | Progress::Ended(_) => false,
        });
        ended
    }

    async fn follow(&self) -> Result<Ending, HttpError> {
        let answer = self.execd.command(&self.request);
        let mut events = unless_silent(ANSWER_TIMEOUT, answer).await??;
        let mark = format!("{MARK}{} ", self.job.nonce);
        loop {
            let event = unless_silent(SILENCE_TIMEOUT, events.next()).await??;
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
                self.warn(
                    "/tmp of the sandbox cannot be written, or mkfifo is missing: output is passed on by lines, and bytes that are not text are lost",
                );
                self.progress.send_replace(Progress::Lines);
                Ok(())
            }
            ("no-input", _) => Err(HttpError::Refused(
                "/tmp of the sandbox cannot be written, or mkfifo is missing, so stdin cannot be passed on; run with stdin from /dev/null".to_owned(),
            )),
            ("end", flags) => {
                self.progress.send_replace(Progress::Ended(Files::parse(flags)));
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
        // An empty line comes as a line feed.
        let text = match event.text.as_str() {
            text if text.ends_with('\n') => text.to_owned(),
            text => format!("{text}\n"),
        };
        // A reader that is gone takes no more lines; the command goes on, as it would with a pager that was left.
        let _ = to.borrow_mut().write_all(text.as_bytes());
    }

    /// Passes a file on while it grows, from where the last download stopped. True where some of it is lost.
    async fn tail(
        &self,
        path: &str,
        to: &RefCell<RelayWriter>,
        mine: impl Fn(Files) -> Left,
    ) -> Result<bool, HttpError> {
        let mut progress = self.progress.subscribe();
        let mut offset = 0;
        let mut pause = MIN_LOOK_INTERVAL;
        let mut failures = 0;
        let mut rest_looks = REST_LOOKS;
        // A command takes a moment to start.
        let _ = tokio::time::timeout(MIN_LOOK_INTERVAL, progress.changed()).await;
        loop {
            // Read before the download: what was written before the end is in it.
            let now = *progress.borrow_and_update();
            let left = match now {
                Progress::Lines => return Ok(false),
                Progress::Ended(files) => Some(mine(files)),
                Progress::Running => None,
            };
            match left {
                // Something was there, so it was removed from the file.
                Some(Left::Nothing) => return Ok(offset > 0),
                Some(Left::Missing) => return Ok(true),
                Some(Left::Something | Left::Part | Left::Unknown) | None => {}
            }
            let ended = left.is_some();
            let before = offset;
            match (self.download(path, &mut offset, to).await, left) {
                (Ok(Found::Shorter), _) => return Ok(true),
                (Ok(_), Some(Left::Part)) => return Ok(true),
                // The script was killed, and what copies the output is still at it.
                (Ok(Found::File), Some(Left::Unknown)) if rest_looks > 0 => {
                    rest_looks -= 1;
                    tokio::time::sleep(REST_INTERVAL).await;
                    continue;
                }
                (Ok(found), Some(left)) => {
                    return Ok(found == Found::Missing && left == Left::Something);
                }
                (Ok(_), None) => failures = 0,
                (Err(Broken::Reader), _) => {
                    self.broken.notify_one();
                    return Ok(false);
                }
                (Err(Broken::Source(error)), _) => {
                    failures += 1;
                    if failures >= MAX_DOWNLOAD_FAILURES {
                        return Err(error);
                    }
                }
            }
            pause = match offset > before {
                true => MIN_LOOK_INTERVAL,
                false => (pause * 3 / 2).min(MAX_LOOK_INTERVAL),
            };
            if !ended || failures > 0 {
                tokio::select! {
                    _ = progress.changed(), if !ended => {}
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    }

    /// One download, which ends at what was the file's end when it began. A cancellation does not cut it short: what the
    /// command says while it is stopped is output too.
    async fn download(
        &self,
        path: &str,
        offset: &mut u64,
        to: &RefCell<RelayWriter>,
    ) -> Result<Found, Broken> {
        let patient = Cancel::new();
        let opened = within(
            DOWNLOAD_TIMEOUT,
            &patient,
            self.execd.download(path, *offset),
        )
        .await;
        let (mut answer, mut skip) = match opened.map_err(Broken::Source)? {
            Download::Missing => return Ok(Found::Missing),
            Download::Nothing => return Ok(Found::File),
            Download::Shorter => return Ok(Found::Shorter),
            Download::Content { answer, skip } => (answer, skip),
        };
        loop {
            let piece = within(DOWNLOAD_TIMEOUT, &patient, answer.next()).await;
            let Some(piece) = piece.map_err(Broken::Source)? else {
                // The answer was the whole file, and it ends before what was read already.
                return Ok(match skip {
                    0 => Found::File,
                    _ => Found::Shorter,
                });
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
        let why = tokio::select! {
            reason = canceled(self.cancel) => Stop::Canceled(reason),
            () = self.broken.notified() => Stop::BrokenPipe,
        };
        self.stop.set(Some(why));
        let id = self.id.borrow().clone();
        if let Some(id) = id {
            // What comes of it is seen in the stream; a failure is followed by closing the connection.
            let patient = Cancel::new();
            let _ = within(STOP_TIMEOUT, &patient, self.execd.interrupt(&id)).await;
        }
        tokio::time::sleep(STOP_TIMEOUT).await;
    }

    /// Of a command that was not told to stop yet. The scan that follows is the proof.
    fn interrupt(&self) {
        let id = self.id.borrow().clone();
        if let Some(id) = id
            && self.stop.get().is_none()
        {
            let patient = Cancel::new();
            let _ = self
                .execd
                .http
                .wait(STOP_TIMEOUT, &patient, self.execd.interrupt(&id));
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
            self.warn(&format!("cannot remove {dir} of the sandbox: {error}"));
        }
    }
}

/// What a download found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    File,
    Missing,
    /// Less than was read already.
    Shorter,
}

enum Broken {
    /// Of our own output.
    Reader,
    Source(HttpError),
}

impl Files {
    /// As the script says it: a letter for each file.
    fn parse(flags: &str) -> Self {
        let left = |flag: Option<char>| match flag {
            Some('s') => Left::Something,
            Some('f') => Left::Part,
            Some('-') => Left::Nothing,
            Some('x') => Left::Missing,
            _ => Left::Unknown,
        };
        let mut flags = flags.trim_end().chars();
        Self {
            stdout: left(flags.next()),
            stderr: left(flags.next()),
        }
    }
}

/// Of a command whose time is over.
pub(super) fn late(timeout: Duration) -> Failure {
    let limit = format_duration(timeout);
    let message = format!("opensandbox command timed out after {limit}");
    Failure::new(Code::Timeout, message).hint("--opensandbox-exec-timeout-secs allows more")
}

/// The exit status, or why there is none.
fn outcome(
    ended: Result<Done, HttpError>,
    stop: Option<Stop>,
    job: &Job<'_>,
    is_late: bool,
) -> Result<i32, Failure> {
    let done = match (stop, ended) {
        (Some(Stop::Canceled(Reason::Late)), _) => return Err(late(job.timeout)),
        (Some(Stop::Canceled(reason)), _) => {
            return Err(Failure::new(Code::Canceled, format!("canceled: {reason}")));
        }
        (Some(Stop::BrokenPipe), _) => return Ok(BROKEN_PIPE),
        (None, Ok(done)) => done,
        (None, Err(error)) => return Err(error.into_failure("run")),
    };
    let code = match done.ending {
        Ending::Exited(code) => code,
        Ending::Killed(_) if is_late => return Err(late(job.timeout)),
        Ending::Killed(signal) => killed(&signal),
        Ending::NotStarted(why) => {
            let message = format!("opensandbox run failed: {why}");
            return Err(Failure::new(Code::Provider, message));
        }
    };
    match (code, done.lost) {
        (0, true) => {
            let lost = lost_output(job);
            let message = format!("opensandbox run failed: {lost}; its exit status was 0");
            Err(Failure::new(Code::Provider, message))
        }
        (code, _) => Ok(code),
    }
}

fn lost_output(job: &Job<'_>) -> String {
    let dir = script::directory(job.nonce);
    format!(
        "output is lost, because a file in {dir} of the sandbox was removed or cut, or could not be written (no space left?)"
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Job<'static> = Job {
        cwd: "/w",
        timeout: Duration::from_secs(10),
        nonce: "n1",
    };

    fn done(ending: Ending) -> Result<Done, HttpError> {
        Ok(Done {
            ending,
            lost: false,
        })
    }

    fn ended(
        ended: Result<Done, HttpError>,
        stop: Option<Stop>,
        is_late: bool,
    ) -> Result<i32, Failure> {
        outcome(ended, stop, &JOB, is_late)
    }

    #[test]
    fn only_a_terminal_event_gives_an_exit_code() {
        assert_eq!(ended(done(Ending::Exited(7)), None, false), Ok(7));
        let killed = || done(Ending::Killed("killed".into()));
        assert_eq!(ended(killed(), None, false), Ok(137));
        let terminated = done(Ending::Killed("terminated".into()));
        assert_eq!(ended(terminated, None, false), Ok(143));
        let late = ended(killed(), None, true).unwrap_err();
        assert_eq!(late.code, Code::Timeout);
        let lost = ended(Err(HttpError::Lost("reset".into())), None, false).unwrap_err();
        assert_eq!(lost.code, Code::Provider);
        let unstarted = ended(done(Ending::NotStarted("fork: no".into())), None, false);
        assert!(unstarted.unwrap_err().message.contains("fork: no"));
        // An exit status after we stopped the command is not the command's own.
        let stop = Some(Stop::Canceled(Reason::Interrupt));
        let canceled = ended(done(Ending::Exited(0)), stop, false).unwrap_err();
        assert_eq!(canceled.code, Code::Canceled);
        let broken = Some(Stop::BrokenPipe);
        assert_eq!(ended(done(Ending::Exited(0)), broken, false), Ok(141));
    }

    #[test]
    fn lost_output_is_a_failure() {
        let lost = |code| {
            Ok(Done {
                ending: Ending::Exited(code),
                lost: true,
            })
        };
        let failure = ended(lost(0), None, false).unwrap_err();
        assert!(failure.message.contains("/tmp/.crabbox-n1"), "{failure}");
        assert_eq!(ended(lost(3), None, false), Ok(3));
        let files = Files::parse("s-");
        assert_eq!(
            (files.stdout, files.stderr),
            (Left::Something, Left::Nothing)
        );
        assert_eq!(Files::parse("-x").stderr, Left::Missing);
        assert_eq!(Files::parse("f-").stdout, Left::Part);
        assert_eq!(Files::parse("").stdout, Left::Unknown);
    }

    #[test]
    fn survivors_are_searched_for_unless_the_end_was_seen() {
        let refused = || {
            Err(HttpError::Status {
                status: 400,
                code: String::new(),
                message: String::new(),
                request_id: None,
            })
        };
        assert!(!may_survive(&refused(), None, false, false));
        // The request for its output was refused, not the command.
        assert!(may_survive(&refused(), None, true, false));
        assert!(may_survive(
            &Err(HttpError::Lost(String::new())),
            None,
            false,
            false
        ));
        let killed = || done(Ending::Killed("killed".into()));
        assert!(may_survive(&killed(), None, true, true));
        assert!(!may_survive(&killed(), None, true, false));
        assert!(!may_survive(&done(Ending::Exited(1)), None, true, true));
        assert!(may_survive(
            &done(Ending::Exited(1)),
            Some(Stop::BrokenPipe),
            true,
            false
        ));
    }
}
