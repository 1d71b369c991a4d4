//! One command in a sandbox, from its start to its exit code: the poll loop between the caller's streams and
//! signals on one side and the sandbox's init on the other.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::Signal;
use sbx_api::Started;
use sbx_engine::socket::nobody_listens;
use sbx_proto::exec::{Cause, Exec, FailKind, Request, Stdio};
use sbx_sys::signals::SignalFd;

use crate::client::Client;
use crate::context::Context;
use crate::detach_keys::DetachKeys;
use crate::failure::{Failure, Kind, engine};
use crate::init::{self, Event, Init, Terminal, harmless};
use crate::lookup;
use crate::plumbing::{Plumbing, Stdin, set_nonblocking};
use crate::relay::{Input, Output, Wait};
use crate::terminal::{self, RawMode};

/// How long a terminal may be silent after the command's end before nothing more is expected.
const SILENCE: Duration = Duration::from_millis(100);
/// How long others that the command has left are listened to after its end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// More than the kernel keeps of what was written to a terminal and not read yet: what comes after that, the command
/// has not written.
const KEPT_BY_A_TERMINAL: usize = 64 << 10;

/// The signal with which a caller who has asked twice already ends the client, as with docker.
const PATIENCE_FOR_SIGNALS: usize = 3;

/// Before each start of a sandbox that does not run, or whose init was gone before it could be asked.
const START_DELAYS: [Duration; 7] = [
    Duration::ZERO,
    Duration::ZERO,
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];

/// How the command's streams are connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Streams {
    Pipes(Stdin),
    Terminal {
        stdin: Stdin,
        detach_keys: Option<DetachKeys>,
    },
    /// Output goes to the sandbox's log, and nobody waits.
    Log(Logged),
}

/// What a command has whose output is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logged {
    Pipes,
    Terminal,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// By the command's own exit code.
    Exited(u8),
    /// With the sandbox, by the signal that the code tells, and why.
    Stopped(u8, &'static str),
    /// It was left running.
    Detached,
    /// By a signal to this client.
    Interrupted(u8),
}

impl Streams {
    /// Programs with a terminal need to know its kind.
    pub(crate) fn have_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. } | Self::Log(Logged::Terminal))
    }
}

impl Outcome {
    /// The exit code, when that has been said which no code tells.
    pub(crate) fn told(self, context: &Context) -> u8 {
        if let Self::Stopped(_, why) = self {
            context.ui.note(why);
        }
        self.code()
    }

    fn code(self) -> u8 {
        match self {
            Self::Exited(code) | Self::Stopped(code, _) | Self::Interrupted(code) => code,
            Self::Detached => 0,
        }
    }
}

/// Runs a command in the sandbox, which is started when it is not running.
pub(crate) fn run(
    context: &Context,
    client: &Client<'_>,
    name: &str,
    exec: Exec,
    streams: &Streams,
) -> Result<Outcome, Failure> {
    let request = Request::Exec(Box::new(exec));
    // A sandbox that runs is reached without asking: its init listens, or it does not run.
    if let Some(socket) = client.socket_of_running(name)? {
        match attempt(client, &socket, &request, streams) {
            Err(Broken::BeforeStart) => {}
            Err(Broken::Failed(failure)) => return Err(failure),
            Ok(outcome) => return Ok(outcome),
        }
    } else {
        // No daemon is started for one that is not there.
        lookup::ensure_exists(context, client, name)?;
    }
    // The daemon hears of a killed init when the kernel has ended everything in its pid namespace; until then it says that
    // the sandbox runs, and its socket refuses. A second try at once may be in that time as well.
    for delay in START_DELAYS {
        std::thread::sleep(delay);
        let started = start(context, client, name)?;
        match attempt(client, &started.exec_socket, &request, streams) {
            Err(Broken::BeforeStart) => {}
            Err(Broken::Failed(failure)) => return Err(failure),
            Ok(outcome) => return Ok(outcome),
        }
        context
            .ui
            .debug(|| "the sandbox's init is gone; starting it again".to_owned());
    }
    Err(
        Failure::new(Kind::Engine, format!("sandbox `{name}` does not stay up"))
            .hint(format!("sbx inspect {name}")),
    )
}

/// Starts a sandbox that may be running already, and says what there is to say about it.
pub(crate) fn start(
    context: &Context,
    client: &Client<'_>,
    name: &str,
) -> Result<Started, Failure> {
    let started = client.start(name)?;
    for notice in &started.notices {
        context.ui.note(notice);
    }
    for warning in &started.warnings {
        context.ui.warning(warning);
    }
    Ok(started)
}

/// The wire form of [`Streams`].
pub(crate) fn stdio(streams: &Streams) -> Stdio {
    match streams {
        Streams::Pipes(_) => Stdio::Pipes,
        Streams::Log(Logged::Pipes) => Stdio::Log,
        Streams::Log(Logged::Terminal) => {
            let (rows, cols) = terminal::size();
            Stdio::LogTty { rows, cols }
        }
        Streams::Terminal { .. } => {
            let (rows, cols) = terminal::size();
            Stdio::Tty { rows, cols }
        }
    }
}

enum Broken {
    /// Init went away before the command ran: nothing of the input is lost, so one may try again.
    BeforeStart,
    Failed(Failure),
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

fn attempt(
    client: &Client<'_>,
    socket: &str,
    request: &Request,
    streams: &Streams,
) -> Result<Outcome, Broken> {
    let wanted = match streams {
        Streams::Terminal { .. } => Terminal::Wanted,
        Streams::Pipes(_) | Streams::Log(_) => Terminal::None,
    };
    // All of it before the connection wakes init: what it is to do then comes at once.
    let opening = init::opening(request).map_err(engine("cannot write the request"))?;
    let plumbing = match streams {
        Streams::Pipes(stdin) => {
            Some(Plumbing::lay(*stdin).map_err(|e| engine("cannot make pipes")(e.into()))?)
        }
        Streams::Terminal { .. } | Streams::Log(_) => None,
    };
    // Descriptors under way are counted per user; with a higher limit than commands inside have, none of them can
    // use up what this message needs.
    let _ = sbx_sys::process::raise_nofile_limit();
    let init = match Init::connect(client.state(), socket, wanted) {
        Ok(init) => init,
        Err(error) if nobody_listens(&error) => return Err(Broken::BeforeStart),
        Err(error) => return Err(engine("cannot reach the sandbox's init")(error).into()),
    };
    // Before anything can run: from here on a signal is the command's, and must not end us instead.
    let signals = watch_signals(streams)?;
    let sent = match &plumbing {
        Some(plumbing) => init.open(&opening, &plumbing.remote()),
        None => init.open(&opening, &[]),
    };
    match sent {
        Ok(()) => {}
        Err(error) if gone(&error) => return Err(Broken::BeforeStart),
        Err(error) => return Err(engine("cannot ask the sandbox's init")(error).into()),
    }
    Session::new(init, signals, plumbing, streams.clone()).run()
}

/// Signals that mean: end.
fn is_end(number: i32) -> bool {
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT]
        .iter()
        .any(|signal| signal.as_raw() == number)
}

fn watch_signals(streams: &Streams) -> Result<SignalFd, Failure> {
    let mut wanted = vec![
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR1,
        Signal::USR2,
    ];
    if matches!(streams, Streams::Terminal { .. }) {
        wanted.push(Signal::WINCH);
    }
    let wanted: Vec<i32> = wanted.into_iter().map(Signal::as_raw).collect();
    SignalFd::new(&wanted).map_err(engine("cannot watch signals"))
}

fn gone(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset
    )
}

/// What the poll loop has found ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Init,
    Signal,
    Source,
    Destination,
    Output(usize),
}

#[derive(Debug)]
struct Session {
    /// Restores the terminal when the session ends, however it ends. The first to go: as long as signals are watched, none of
    /// them ends us before that.
    raw: Option<RawMode>,
    init: Init,
    signals: SignalFd,
    streams: Streams,
    /// Until the command has started.
    plumbing: Option<Plumbing>,
    input: Option<Input>,
    outputs: Vec<Output>,
    ended: Option<Ended>,
    /// How often the caller has asked for the end.
    ends_asked: usize,
}

/// The command has ended; only its output is still being delivered.
#[derive(Debug, Clone, Copy)]
struct Ended {
    code: u8,
    by: Cause,
    at: Instant,
    /// What was read since.
    read: usize,
    /// How long nothing has come from its terminal, and how long that was waited for in all. Not counted is how long
    /// the caller takes to read: what the command has written waits for that in the kernel.
    silent: Duration,
    waited: Duration,
}

impl Ended {
    fn now(code: u8, by: Cause) -> Self {
        Self {
            code,
            by,
            at: Instant::now(),
            read: 0,
            silent: Duration::ZERO,
            waited: Duration::ZERO,
        }
    }

    fn has_waited(&mut self, time: Duration) {
        self.silent = self.silent.saturating_add(time);
        self.waited = self.waited.saturating_add(time);
    }

    fn has_read(&mut self, count: usize) {
        self.read = self.read.saturating_add(count);
        if count > 0 {
            self.silent = Duration::ZERO;
        }
    }

    /// Everything that the command wrote to its terminal has been read. Others may go on for ever.
    fn has_said_all(&self) -> bool {
        let only_others = self.read >= KEPT_BY_A_TERMINAL && self.at.elapsed() >= LAST_WORDS;
        self.silent >= SILENCE || self.waited >= LAST_WORDS || only_others
    }
}

impl Session {
    fn new(init: Init, signals: SignalFd, plumbing: Option<Plumbing>, streams: Streams) -> Self {
        Self {
            raw: None,
            init,
            signals,
            streams,
            plumbing,
            input: None,
            outputs: Vec::new(),
            ended: None,
            ends_asked: 0,
        }
    }

    fn run(mut self) -> Result<Outcome, Broken> {
        loop {
            if self.ended.is_some() && self.delivered() {
                return self.finish().map_err(Broken::Failed);
            }
            let polled_at = Instant::now();
            let ready = self.poll()?;
            if self.listens()
                && let Some(ended) = &mut self.ended
            {
                ended.has_waited(polled_at.elapsed());
            }
            for what in ready {
                if let Some(outcome) = self.handle(what)? {
                    return Ok(outcome);
                }
            }
            if let Some(input) = &mut self.input {
                input.tick(Instant::now());
            }
            if self.input.as_ref().is_some_and(|input| input.detached) {
                // An init that is gone shows itself to the next command.
                drop(self.init.send(&Request::Detach));
                return Ok(Outcome::Detached);
            }
        }
    }

    fn poll(&self) -> Result<Vec<Ready>, Failure> {
        let (input, output, nothing) = (PollFlags::IN, PollFlags::OUT, PollFlags::empty());
        let mut fds = vec![PollFd::new(&self.signals, input)];
        let mut meanings = vec![Ready::Signal];
        if self.ended.is_none() {
            fds.push(PollFd::new(&self.init, input));
            meanings.push(Ready::Init);
            if let Some(relay) = &self.input {
                if let Some(source) = relay.source() {
                    fds.push(PollFd::from_borrowed_fd(source, input));
                    meanings.push(Ready::Source);
                }
                if let Some((to, wait)) = relay.destination() {
                    let flags = if wait == Wait::Writable {
                        output
                    } else {
                        nothing
                    };
                    fds.push(PollFd::from_borrowed_fd(to, flags));
                    meanings.push(Ready::Destination);
                }
            }
        }
        for (index, relay) in self.outputs.iter().enumerate() {
            if let Some(fd) = relay.polled() {
                let flags = match relay.wait() {
                    Wait::Readable => input,
                    Wait::Writable => output,
                    Wait::Done => nothing,
                };
                fds.push(PollFd::from_borrowed_fd(fd, flags));
                meanings.push(Ready::Output(index));
            }
        }
        match rustix::event::poll(&mut fds, self.timeout().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(engine("cannot wait for the sandbox")(error.into())),
        }
        Ok(fds
            .iter()
            .zip(meanings)
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(fd, what)| (fd.revents(), what))
            .filter(|(events, what)| {
                // Anything else is no news about the command's end of the input.
                *what != Ready::Destination
                    || events.intersects(PollFlags::OUT | PollFlags::ERR | PollFlags::HUP)
            })
            .map(|(_, what)| what)
            .collect())
    }

    /// Only the last words of a terminal are waited for with a limit, and what follows a detach key.
    fn timeout(&self) -> Option<Timespec> {
        let limit = match (&self.streams, self.ended) {
            // The caller may take as long as it likes to read.
            (Streams::Terminal { .. }, Some(_)) if !self.listens() => return None,
            (Streams::Terminal { .. }, Some(ended)) => SILENCE.saturating_sub(ended.silent),
            _ => {
                let until = self.input.as_ref().and_then(Input::held_until)?;
                until.saturating_duration_since(Instant::now())
            }
        };
        Timespec::try_from(limit).ok()
    }

    fn handle(&mut self, what: Ready) -> Result<Option<Outcome>, Broken> {
        match what {
            Ready::Init => return self.init_speaks(),
            Ready::Signal => return Ok(self.signal()?),
            Ready::Source => {
                if let Some(input) = &mut self.input {
                    input.source_ready();
                }
            }
            Ready::Destination => {
                if let Some(input) = &mut self.input {
                    match input.destination() {
                        Some((_, Wait::Writable)) => input.destination_ready(),
                        _ => input.destination_closed(),
                    }
                }
            }
            Ready::Output(index) => {
                let read = self.outputs.get_mut(index).map_or(0, Output::advance);
                if let Some(ended) = &mut self.ended {
                    ended.has_read(read);
                }
            }
        }
        Ok(None)
    }

    fn init_speaks(&mut self) -> Result<Option<Outcome>, Broken> {
        let open = self.init.receive()?;
        while let Some(event) = self.init.next()? {
            match event {
                Event::Started { terminal } => {
                    if matches!(self.streams, Streams::Log(_)) {
                        return Ok(Some(Outcome::Detached));
                    }
                    self.started(terminal)?;
                }
                Event::Exited { status, by } => {
                    self.ended = Some(Ended::now(status.code(), by));
                    if matches!(self.streams, Streams::Pipes(_)) {
                        self.outputs.iter_mut().for_each(Output::command_ended);
                    }
                    return Ok(None);
                }
                Event::Failed {
                    kind: FailKind::Stopping,
                    ..
                } => return Err(Broken::BeforeStart),
                Event::Failed { kind, message } => return Err(refused(kind, &message).into()),
            }
        }
        if open {
            Ok(None)
        } else if self.init.has_started() {
            Err(Failure::new(
                Kind::Engine,
                "the sandbox stopped while the command was running",
            )
            .into())
        } else {
            Err(Broken::BeforeStart)
        }
    }

    fn started(&mut self, master: Option<OwnedFd>) -> Result<(), Failure> {
        if let Some(plumbing) = self.plumbing.take() {
            (self.input, self.outputs) = plumbing.sent();
        }
        let (Some(master), Streams::Terminal { stdin, detach_keys }) = (master, &self.streams)
        else {
            return Ok(());
        };
        let failed = |error: Errno| engine("cannot use the sandbox's terminal")(error.into());
        set_nonblocking(&master).map_err(failed)?;
        if *stdin == Stdin::Attached {
            let copy = rustix::io::fcntl_dupfd_cloexec(&master, 3).map_err(failed)?;
            let input = Input::new(rustix::stdio::stdin(), copy);
            self.input = Some(input.with_detach_keys(detach_keys.clone()));
            self.raw = Some(
                RawMode::enter(rustix::stdio::stdin())
                    .map_err(|e| engine("cannot use the terminal")(e.into()))?,
            );
        }
        self.outputs = vec![Output::from_pipe(master, rustix::stdio::stdout())];
        Ok(())
    }

    fn signal(&mut self) -> Result<Option<Outcome>, Failure> {
        while let Some(number) = self.signals.read().map_err(engine("cannot read signals"))? {
            let request = if number == Signal::WINCH.as_raw() {
                let (rows, cols) = terminal::size();
                Request::Resize { rows, cols }
            } else if self.raw.is_some() || self.ended.is_some() {
                // With a raw terminal, signals for the command are typed; this one is for us.
                let code = u8::try_from((128 + number) & 0xff).unwrap_or(255);
                return Ok(Some(Outcome::Interrupted(code)));
            } else {
                self.ends_asked += usize::from(is_end(number));
                if self.ends_asked >= PATIENCE_FOR_SIGNALS {
                    // The command, or an init that is hostile, does not listen: the caller's word is the last.
                    let code = u8::try_from((128 + number) & 0xff).unwrap_or(255);
                    return Ok(Some(Outcome::Interrupted(code)));
                }
                Request::Signal { signal: number }
            };
            // A connection that is full or closed shows itself elsewhere.
            drop(self.init.send(&request));
        }
        Ok(None)
    }

    /// Everything that the command wrote has reached the caller.
    fn delivered(&self) -> bool {
        let finished = |output: &Output| output.wait() == Wait::Done;
        match (&self.streams, self.ended) {
            (Streams::Terminal { .. }, Some(ended)) => self.outputs.iter().all(|output| {
                let silent = output.wait() == Wait::Readable && ended.has_said_all();
                silent || finished(output)
            }),
            _ => self.outputs.iter().all(finished),
        }
    }

    /// Whether it is the command's side that is waited for, and not the caller's.
    fn listens(&self) -> bool {
        let mut waits = self.outputs.iter().map(Output::wait);
        !waits.any(|wait| wait == Wait::Writable)
    }

    fn finish(self) -> Result<Outcome, Failure> {
        let outcome = match self.ended {
            None => Outcome::Exited(0),
            Some(Ended { code, by, .. }) => match by {
                Cause::Itself => Outcome::Exited(code),
                Cause::Stop => Outcome::Stopped(
                    code,
                    "the sandbox was stopped while the command was running",
                ),
                Cause::MountLost => Outcome::Stopped(
                    code,
                    "the sandbox ended while the command was running: a read-only part of a writable workspace was \
                     replaced on the host",
                ),
            },
        };
        match self.outputs.iter().find_map(Output::lost) {
            None => Ok(outcome),
            Some(error) => Err(Failure::new(
                Kind::Engine,
                format!("cannot write the command's output: {error}"),
            )),
        }
    }
}

fn refused(kind: FailKind, message: &str) -> Failure {
    let kind = match kind {
        FailKind::NotFound => Kind::CommandNotFound,
        FailKind::NotExecutable => Kind::NotExecutable,
        FailKind::BadRequest => Kind::BadRequest,
        FailKind::Stopping | FailKind::Engine => Kind::Engine,
    };
    Failure::new(kind, harmless(message))
}
