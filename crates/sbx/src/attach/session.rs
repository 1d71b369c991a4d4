//! A command from its start to its exit code: the poll loop between the caller's streams and signals on one side and the
//! sandbox's init on the other.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::Signal;
use sbx_proto::exec::{Cause, FailKind, Request};
use sbx_proto::stream::{Stream, Violation};
use sbx_sys::signals::SignalFd;

use super::ended::{Ended, SILENCE_TIMEOUT};
use super::{Broken, Outcome, Streams};
use crate::env::Transport;
use crate::failure::{Failure, Kind, engine};
use crate::init::{Event, Init, harmless, out_of_protocol};
use crate::plumbing::{Plumbing, Stdin, same_file, set_nonblocking};
use crate::relay::{Input, Output, Wait};
use crate::terminal::{self, RawMode};

/// The signal with which a caller who has asked twice already ends the client, as with docker.
const MAX_END_SIGNALS: usize = 3;

/// Signals that mean: end.
fn is_end(number: i32) -> bool {
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT]
        .iter()
        .any(|signal| signal.as_raw() == number)
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
pub(super) struct Session {
    /// Restores the terminal when the session ends, however it ends. The first to go: as long as signals are watched, none of
    /// them ends us before that.
    raw: Option<RawMode>,
    init: Init,
    /// Until init closes the connection, which ends output that comes as frames.
    connected: bool,
    transport: Transport,
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

impl Session {
    pub(super) fn new(
        init: Init,
        signals: SignalFd,
        plumbing: Option<Plumbing>,
        streams: Streams,
        transport: Transport,
    ) -> Self {
        Self {
            raw: None,
            init,
            connected: true,
            transport,
            signals,
            streams,
            plumbing,
            input: None,
            outputs: Vec::new(),
            ended: None,
            ends_asked: 0,
        }
    }

    pub(super) fn run(mut self) -> Result<Outcome, Broken> {
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
            if self.transport == Transport::Frames {
                self.send_frames();
            }
            if self.input.as_ref().is_some_and(|input| input.detached) {
                // An init that is gone shows itself to the next command.
                drop(self.init.send_last(&Request::Detach));
                return Ok(Outcome::Detached);
            }
        }
    }

    /// What this turn of the loop has for init. A connection that is closed shows itself when it is read.
    fn send_frames(&mut self) {
        let outputs = self.outputs.iter_mut().map(Output::take_frames);
        let input = self.input.as_mut().map(Input::take_frames);
        for frames in outputs.chain(input) {
            if !frames.is_empty() {
                drop(self.init.send_frames(&frames));
            }
        }
        drop(self.init.flush());
    }

    /// Whether init has anything to say: after the exit status only output that comes as frames.
    fn awaits_init(&self) -> bool {
        match self.transport {
            Transport::Descriptors => self.ended.is_none(),
            Transport::Frames => self.connected,
        }
    }

    fn poll(&self) -> Result<Vec<Ready>, Failure> {
        let (input, output, nothing) = (PollFlags::IN, PollFlags::OUT, PollFlags::empty());
        let mut fds = vec![PollFd::new(&self.signals, input)];
        let mut meanings = vec![Ready::Signal];
        if self.awaits_init() {
            let room = if self.init.has_unsent() {
                output
            } else {
                nothing
            };
            fds.push(PollFd::new(&self.init, input | room));
            meanings.push(Ready::Init);
        }
        if let Some(relay) = self.input.as_ref().filter(|_| self.ended.is_none()) {
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
                // Other events say nothing about the command's end of the input.
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
            (Streams::Terminal { .. }, Some(ended)) => SILENCE_TIMEOUT.saturating_sub(ended.silent),
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
                    if self.transport == Transport::Descriptors {
                        return Ok(None);
                    }
                }
                Event::Failed {
                    kind: FailKind::Stopping,
                    ..
                } => return Err(Broken::BeforeStart),
                Event::Failed { kind, message } => return Err(refused(kind, &message).into()),
                event => self
                    .stream_event(event)
                    .map_err(|violation| out_of_protocol(&violation.to_string()))?,
            }
        }
        if open {
            Ok(None)
        } else if self.ended.is_some() {
            self.connected = false;
            self.outputs.iter_mut().for_each(Output::no_more_frames);
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

    /// A frame about one of the command's streams.
    fn stream_event(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Output(stream, bytes) => {
                self.framed_output(stream)?.receive(&bytes)?;
                if let Some(ended) = &mut self.ended {
                    ended.has_read(bytes.len());
                }
                Ok(())
            }
            Event::End(stream) => self.framed_output(stream)?.end(),
            Event::Credit(credit) => match &mut self.input {
                Some(input) => input.grant(credit),
                None => Err(Violation::TooMuchCredit),
            },
            Event::InputClosed => {
                if let Some(input) = &mut self.input {
                    input.destination_closed();
                }
                Ok(())
            }
            Event::Started { .. } | Event::Exited { .. } | Event::Failed { .. } => Ok(()),
        }
    }

    fn framed_output(&mut self, stream: Stream) -> Result<&mut Output, Violation> {
        let mut outputs = self.outputs.iter_mut();
        let found = outputs.find(|output| output.carries(stream));
        found.ok_or(Violation::WrongDirection)
    }

    fn started(&mut self, master: Option<OwnedFd>) -> Result<(), Failure> {
        if let Some(plumbing) = self.plumbing.take() {
            (self.input, self.outputs) = plumbing.sent();
            return Ok(());
        }
        let (stdin, stdout) = (rustix::stdio::stdin(), rustix::stdio::stdout());
        match (&self.streams, master) {
            (Streams::Terminal { stdin: wanted, .. }, master) => {
                let attached = *wanted == Stdin::Attached;
                let input = match &master {
                    Some(master) if attached => Some(over_master(master)?),
                    None if attached => Some(Input::to_frames(stdin)),
                    _ => None,
                };
                self.outputs = vec![match master {
                    Some(master) => {
                        set_nonblocking(&master).map_err(no_terminal)?;
                        Output::from_pipe(master, stdout)
                    }
                    None => Output::from_frames(Stream::Stdout, stdout),
                }];
                if let Some(input) = input {
                    self.attach_keyboard(input)?;
                }
            }
            (Streams::Pipes(wanted), _) => {
                if *wanted == Stdin::Attached {
                    self.input = Some(Input::to_frames(stdin));
                }
                self.outputs = vec![Output::from_frames(Stream::Stdout, stdout)];
                let stderr = rustix::stdio::stderr();
                // As it was asked for: one stream where the caller has one.
                if !same_file(stdout, stderr) {
                    let stderr = Output::from_frames(Stream::Stderr, stderr);
                    self.outputs.push(stderr);
                }
            }
            (Streams::Log(_), _) => {}
        }
        Ok(())
    }

    /// What is typed is the command's, but for the detach keys.
    fn attach_keyboard(&mut self, input: Input) -> Result<(), Failure> {
        let Streams::Terminal { detach_keys, .. } = &self.streams else {
            return Ok(());
        };
        self.input = Some(input.with_detach_keys(detach_keys.clone()));
        let raw = RawMode::enter(rustix::stdio::stdin());
        self.raw = Some(raw.map_err(|e| engine("cannot use the terminal")(e.into()))?);
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
                if self.ends_asked >= MAX_END_SIGNALS {
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
                let silent = output.wait() == Wait::Readable && ended.is_drained();
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

/// What is typed, written to the pty's master.
fn over_master(master: &OwnedFd) -> Result<Input, Failure> {
    let copy = rustix::io::fcntl_dupfd_cloexec(master, 3).map_err(no_terminal)?;
    Ok(Input::new(rustix::stdio::stdin(), copy))
}

fn no_terminal(error: Errno) -> Failure {
    engine("cannot use the sandbox's terminal")(error.into())
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
