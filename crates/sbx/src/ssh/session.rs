//! A command of an SSH session: frames of init on one side ([`sbx_proto::stream`]), a channel on the other. Both have windows,
//! so that neither side is sent more than it takes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sbx_proto::exec::{ExitStatus, Request};
use sbx_proto::stream::{Receiver, Sender, Stream, Violation, push_credit, push_data, push_end};
use sbx_ssh::{ChannelId, Output, Server};

use super::signals;
use crate::failure::Failure;
use crate::init::{Event, Init, harmless, out_of_protocol};

/// CommandEnd long a terminal may be silent after the command's end before nothing more is expected: processes that it has left
/// may hold it open.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(100);
/// CommandEnd long those are listened to at most.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Session {
    channel: ChannelId,
    init: Init,
    started: bool,
    terminal: bool,
    input: Input,
    outputs: Vec<Outgoing>,
    ended: Option<Ended>,
    /// Init has closed the connection.
    gone: bool,
    /// Frames for init.
    frames: Vec<u8>,
}

#[derive(Debug)]
struct Input {
    /// What init has not been sent.
    pending: VecDeque<u8>,
    window: Sender,
    /// No more comes from the client.
    over: bool,
    /// The command reads no more, or has been told the end.
    closed: bool,
}

#[derive(Debug)]
struct Outgoing {
    stream: Stream,
    to: Output,
    /// What the client has not taken.
    pending: VecDeque<u8>,
    window: Receiver,
}

#[derive(Debug)]
struct Ended {
    how: CommandEnd,
    at: Instant,
    heard: Instant,
}

#[derive(Debug)]
enum CommandEnd {
    Status(ExitStatus),
    /// It could not be started; the reason goes to stderr.
    Code(u8),
}

/// Whether a session goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Over,
}

impl Session {
    /// `init` has been sent the command.
    pub(super) fn new(channel: ChannelId, init: Init, terminal: bool) -> Self {
        let output = |stream: Stream, to: Output| Outgoing {
            stream,
            to,
            pending: VecDeque::new(),
            window: Receiver::new(stream),
        };
        let mut outputs = vec![output(Stream::Stdout, Output::Data)];
        if !terminal {
            outputs.push(output(Stream::Stderr, Output::Stderr));
        }
        Self {
            channel,
            init,
            started: false,
            terminal,
            input: Input {
                pending: VecDeque::new(),
                window: Sender::new(Stream::Stdin),
                over: false,
                closed: false,
            },
            outputs,
            ended: None,
            gone: false,
            frames: Vec::new(),
        }
    }

    /// The connection to init, while something can come from it; and whether it has not taken everything.
    pub(super) fn polled(&self) -> Option<(&Init, bool)> {
        (!self.gone).then_some((&self.init, self.init.has_unsent()))
    }

    /// When [`Self::advance`] has something to do although nothing has come.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        let ended = self.ended.as_ref().filter(|_| self.terminal)?;
        let waits = self.outputs.iter().all(|output| output.pending.is_empty());
        let silence = ended.heard + SILENCE_TIMEOUT;
        waits.then(|| silence.min(ended.at + OTHERS_TIMEOUT))
    }

    pub(super) fn data(&mut self, bytes: &[u8], server: &mut Server) {
        if self.input.closed {
            // As with a pipe that has lost its reader; the client goes on.
            server.used(self.channel, bytes.len());
        } else {
            self.input.pending.extend(bytes);
        }
    }

    pub(super) fn eof(&mut self) {
        self.input.over = true;
    }

    pub(super) fn resize(&mut self, rows: u16, cols: u16) {
        if self.terminal {
            // A connection that is closed shows itself when it is read.
            drop(self.init.send(&Request::Resize { rows, cols }));
        }
    }

    pub(super) fn signal(&mut self, name: &str) {
        if let Some(signal) = signals::number(name) {
            drop(self.init.send(&Request::Signal { signal }));
        }
    }

    /// What init has sent.
    pub(super) fn receive(&mut self, server: &mut Server) -> Result<(), Failure> {
        self.gone = !self.init.receive()?;
        while let Some(event) = self.init.next()? {
            self.event(event, server)?;
        }
        if self.gone && self.ended.is_none() {
            let why = "the sandbox stopped while the command was running";
            self.fail(125, why);
        }
        Ok(())
    }

    fn event(&mut self, event: Event, server: &mut Server) -> Result<(), Failure> {
        let violated = |violation: Violation| out_of_protocol(&violation.to_string());
        match event {
            Event::Started { .. } => self.started = true,
            Event::Exited { status, .. } => self.end(CommandEnd::Status(status)),
            Event::Failed { kind, message } => self.fail(kind.code(), &harmless(&message)),
            Event::Output(stream, bytes) => {
                let output = self.output(stream)?;
                output.window.received(bytes.len()).map_err(violated)?;
                output.pending.extend(bytes);
                if let Some(ended) = &mut self.ended {
                    ended.heard = Instant::now();
                }
            }
            Event::End(stream) => self.output(stream)?.window.end().map_err(violated)?,
            Event::Credit(credit) => self.input.window.grant(credit).map_err(violated)?,
            Event::InputClosed => {
                self.input.closed = true;
                server.used(self.channel, self.input.pending.len());
                self.input.pending.clear();
            }
        }
        Ok(())
    }

    fn output(&mut self, stream: Stream) -> Result<&mut Outgoing, Failure> {
        let mut outputs = self.outputs.iter_mut();
        let found = outputs.find(|output| output.stream == stream);
        found.ok_or_else(|| out_of_protocol("a frame about an unknown stream"))
    }

    fn end(&mut self, how: CommandEnd) {
        let now = Instant::now();
        self.ended = Some(Ended {
            how,
            at: now,
            heard: now,
        });
    }

    /// Says why there is no command, or none any more.
    pub(super) fn fail(&mut self, code: u8, why: &str) {
        if let Some(output) = self.outputs.last_mut() {
            let end = if self.terminal { "\r\n" } else { "\n" };
            let line = format!("sbx: {why}{end}");
            output.pending.extend(line.as_bytes());
        }
        self.gone = true;
        self.end(CommandEnd::Code(code));
    }

    /// Moves what can be moved. `room`: whether the client's pipe takes more.
    pub(super) fn advance(
        &mut self,
        server: &mut Server,
        mut room: impl FnMut(&Server) -> bool,
    ) -> State {
        self.send_input(server);
        for output in &mut self.outputs {
            while !output.pending.is_empty() && room(server) {
                let (bytes, _) = output.pending.as_slices();
                let sent = server.send(self.channel, output.to, bytes);
                if sent == 0 {
                    break;
                }
                output.pending.drain(..sent);
                if let Some(credit) = output.window.delivered(sent) {
                    push_credit(&mut self.frames, output.stream, credit);
                }
            }
        }
        if !self.frames.is_empty() && !self.gone {
            drop(self.init.send_frames(&self.frames));
        }
        self.frames.clear();
        if !self.gone {
            drop(self.init.flush());
        }
        self.finish(server)
    }

    /// Nothing goes to a command before it has started.
    fn send_input(&mut self, server: &mut Server) {
        if !self.started || self.gone {
            return;
        }
        let input = &mut self.input;
        while !input.closed && !input.pending.is_empty() && input.window.credit() > 0 {
            let (bytes, _) = input.pending.as_slices();
            let count = bytes.len().min(input.window.credit());
            push_data(
                &mut self.frames,
                Stream::Stdin,
                bytes.get(..count).unwrap_or_default(),
            );
            input.pending.drain(..count);
            input.window.sent(count);
            server.used(self.channel, count);
        }
        if input.over && input.pending.is_empty() && !input.closed {
            input.closed = true;
            push_end(&mut self.frames, Stream::Stdin);
        }
    }

    /// The end, when the command has ended and everything that it wrote has been sent.
    fn finish(&self, server: &mut Server) -> State {
        let Some(ended) = &self.ended else {
            return State::Running;
        };
        let now = Instant::now();
        let silent = self.terminal
            && (now >= ended.heard + SILENCE_TIMEOUT || now >= ended.at + OTHERS_TIMEOUT);
        let complete = |output: &Outgoing| {
            output.pending.is_empty() && (output.window.has_ended() || self.gone || silent)
        };
        if !self.outputs.iter().all(complete) {
            return State::Running;
        }
        server.eof(self.channel);
        match ended.how {
            CommandEnd::Code(code) => server.exit_status(self.channel, u32::from(code)),
            CommandEnd::Status(status @ ExitStatus::Code(_)) => {
                server.exit_status(self.channel, u32::from(status.code()));
            }
            CommandEnd::Status(status @ ExitStatus::Signal(number)) => {
                match signals::name(number) {
                    Some(name) => server.exit_signal(self.channel, name),
                    None => server.exit_status(self.channel, u32::from(status.code())),
                }
            }
        }
        server.close(self.channel);
        State::Over
    }
}
