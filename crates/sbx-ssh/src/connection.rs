//! Channels (RFC 4254): messages of the client in, [`Event`]s and messages for it out.

use std::collections::{BTreeMap, VecDeque};

use sbx_proto::rfc4251::{Reader, Writer};

use crate::requests::{self, Request};
use crate::{Error, message};

/// The most bytes of data in one message, in both directions.
pub(crate) const MAX_DATA: usize = 32 << 10;
/// How much of a channel's data is kept at most until it has been used.
const WINDOW: u32 = 512 << 10;
/// More than editors open; each can hold a window.
const MAX_CHANNELS: usize = 256;
/// The type of extended data that is stderr.
const STDERR: u32 = 1;
const MAX_VARIABLES: usize = 128;

/// One of the connection's channels, by the server's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelId(u32);

/// What the client wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It said who it wants to be.
    User(String),
    /// A connection to a server; to be answered with [`crate::Server::accept`] or [`crate::Server::refuse`].
    Forward {
        channel: ChannelId,
        host: String,
        port: u32,
    },
    /// A session that is to run something.
    Start {
        channel: ChannelId,
        start: Start,
        terminal: Option<Terminal>,
        variables: Vec<(Vec<u8>, Vec<u8>)>,
    },
    Data(ChannelId, Vec<u8>),
    /// No more data follows.
    Eof(ChannelId),
    Resize {
        channel: ChannelId,
        rows: u16,
        cols: u16,
    },
    /// A signal, by its name without `SIG`.
    Signal(ChannelId, String),
    /// The client is not interested in it any more. The channel is gone.
    Closed(ChannelId),
}

/// What a session runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    Shell,
    Exec(Vec<u8>),
    Sftp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminal {
    /// Its kind: `TERM`; may be empty.
    pub kind: Vec<u8>,
    pub rows: u16,
    pub cols: u16,
}

/// The streams of a channel's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Data,
    Stderr,
}

/// Why a channel is not opened (RFC 4254 section 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    Prohibited,
    ConnectFailed,
    UnknownType,
    ResourceShortage,
}

impl Refusal {
    fn number(self) -> u32 {
        match self {
            Self::Prohibited => 1,
            Self::ConnectFailed => 2,
            Self::UnknownType => 3,
            Self::ResourceShortage => 4,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A forward that has not been answered.
    Asked,
    /// A session that runs nothing yet.
    Preparing,
    Running,
}

#[derive(Debug)]
struct Channel {
    stage: Stage,
    /// The client's number of it.
    theirs: u32,
    /// How much may be sent, in all and at once.
    window: u32,
    max_data: usize,
    /// How much the client may send, and what has been used since it was told.
    granted: u32,
    used: u32,
    terminal: Option<Terminal>,
    variables: Vec<(Vec<u8>, Vec<u8>)>,
    eof_received: bool,
    eof_sent: bool,
    close_sent: bool,
}

/// The channels of a connection, by messages without their packets.
#[derive(Debug, Default)]
pub struct Connection {
    channels: BTreeMap<u32, Channel>,
    next: u32,
    pub(crate) events: VecDeque<Event>,
    pub(crate) out: Vec<Vec<u8>>,
}

impl Connection {
    /// A message of the client. After an error the connection is over.
    pub fn message(&mut self, payload: &[u8]) -> Result<(), Error> {
        let mut reader = Reader::new(payload);
        match reader.byte()? {
            message::GLOBAL_REQUEST => {
                let _name = reader.string()?;
                if reader.boolean()? {
                    self.out.push(vec![message::REQUEST_FAILURE]);
                }
                Ok(())
            }
            message::CHANNEL_OPEN => self.open(reader),
            message::CHANNEL_WINDOW_ADJUST => {
                let (_, channel) = self.channel(&mut reader)?;
                // More than 2^32-1 is the client's mistake; it only may not send by it.
                channel.window = channel.window.saturating_add(reader.u32()?);
                Ok(())
            }
            message::CHANNEL_DATA => self.data(reader),
            message::CHANNEL_EXTENDED_DATA => {
                // There is none towards a server; it takes room all the same.
                let (id, _) = self.channel(&mut reader)?;
                reader.u32()?;
                let length = reader.string()?.len();
                self.take_window(id, length)?;
                self.used(id, length);
                Ok(())
            }
            message::CHANNEL_EOF => {
                let (id, channel) = self.channel(&mut reader)?;
                if !std::mem::replace(&mut channel.eof_received, true) {
                    self.events.push_back(Event::Eof(id));
                }
                Ok(())
            }
            message::CHANNEL_CLOSE => {
                let (id, _) = self.channel(&mut reader)?;
                self.close(id);
                self.channels.remove(&id.0);
                self.events.push_back(Event::Closed(id));
                Ok(())
            }
            message::CHANNEL_REQUEST => self.request(reader),
            // Answers to what this side never asks.
            other => Err(Error::Unexpected(other)),
        }
    }

    fn channel(&mut self, reader: &mut Reader<'_>) -> Result<(ChannelId, &mut Channel), Error> {
        let number = reader.u32()?;
        let channel = self.channels.get_mut(&number);
        channel
            .map(|channel| (ChannelId(number), channel))
            .ok_or(Error::NoChannel)
    }

    fn open(&mut self, mut reader: Reader<'_>) -> Result<(), Error> {
        let kind = reader.string()?;
        let (theirs, window, max_data) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let max_data = usize::try_from(max_data).unwrap_or(MAX_DATA).min(MAX_DATA);
        if self.channels.len() >= MAX_CHANNELS || max_data == 0 {
            self.refusal(theirs, Refusal::ResourceShortage, "too many channels");
            return Ok(());
        }
        let id = ChannelId(self.next);
        let stage = match kind {
            b"session" => Stage::Preparing,
            b"direct-tcpip" => {
                let (host, port) = (reader.text()?.to_owned(), reader.u32()?);
                self.events.push_back(Event::Forward {
                    channel: id,
                    host,
                    port,
                });
                Stage::Asked
            }
            _ => {
                self.refusal(theirs, Refusal::UnknownType, "not offered by a sandbox");
                return Ok(());
            }
        };
        // A number is not used again while a channel has it: there are far fewer than numbers.
        self.next = self.next.wrapping_add(1);
        self.channels.insert(
            id.0,
            Channel {
                stage,
                theirs,
                window,
                max_data,
                granted: WINDOW,
                used: 0,
                terminal: None,
                variables: Vec::new(),
                eof_received: false,
                eof_sent: false,
                close_sent: false,
            },
        );
        if stage == Stage::Preparing {
            self.confirm(id);
        }
        Ok(())
    }

    fn confirm(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get(&id.0) {
            let message = Writer::message(message::CHANNEL_OPEN_CONFIRMATION)
                .u32(channel.theirs)
                .u32(id.0)
                .u32(WINDOW)
                .u32(u32::try_from(MAX_DATA).unwrap_or(u32::MAX));
            self.out.push(message.finish());
        }
    }

    fn refusal(&mut self, theirs: u32, refusal: Refusal, words: &str) {
        let message = Writer::message(message::CHANNEL_OPEN_FAILURE)
            .u32(theirs)
            .u32(refusal.number())
            .string(words)
            .string("en");
        self.out.push(message.finish());
    }

    fn data(&mut self, mut reader: Reader<'_>) -> Result<(), Error> {
        let (id, _) = self.channel(&mut reader)?;
        let bytes = reader.string()?.to_vec();
        self.take_window(id, bytes.len())?;
        if !bytes.is_empty() {
            self.events.push_back(Event::Data(id, bytes));
        }
        Ok(())
    }

    fn take_window(&mut self, id: ChannelId, length: usize) -> Result<(), Error> {
        let channel = self.channels.get_mut(&id.0).ok_or(Error::NoChannel)?;
        if channel.eof_received || channel.stage == Stage::Asked {
            return Err(Error::Unexpected(message::CHANNEL_DATA));
        }
        let length = u32::try_from(length).map_err(|_| Error::Window)?;
        let left = channel.granted.checked_sub(length).ok_or(Error::Window)?;
        channel.granted = left;
        Ok(())
    }

    fn request(&mut self, mut reader: Reader<'_>) -> Result<(), Error> {
        let (id, channel) = self.channel(&mut reader)?;
        let kind = reader.text()?;
        let wants_reply = reader.boolean()?;
        let theirs = channel.theirs;
        let done = match requests::parse(kind, &mut reader)? {
            Some(request) => self.apply(id, request),
            None => false,
        };
        if wants_reply {
            let number = if done {
                message::CHANNEL_SUCCESS
            } else {
                message::CHANNEL_FAILURE
            };
            self.out.push(Writer::message(number).u32(theirs).finish());
        }
        Ok(())
    }

    /// Whether it can be done.
    fn apply(&mut self, id: ChannelId, request: Request) -> bool {
        let Some(channel) = self.channels.get_mut(&id.0) else {
            return false;
        };
        match (request, channel.stage) {
            (Request::Terminal(terminal), Stage::Preparing) => channel.terminal = Some(terminal),
            (Request::Variable(name, value), Stage::Preparing) => {
                if channel.variables.len() >= MAX_VARIABLES {
                    return false;
                }
                channel.variables.push((name, value));
            }
            (Request::Start(start), Stage::Preparing) => {
                channel.stage = Stage::Running;
                let start = Event::Start {
                    channel: id,
                    start,
                    terminal: channel.terminal.take(),
                    variables: std::mem::take(&mut channel.variables),
                };
                self.events.push_back(start);
            }
            (Request::Resize { rows, cols }, stage) => match (&mut channel.terminal, stage) {
                (Some(terminal), Stage::Preparing) => (terminal.rows, terminal.cols) = (rows, cols),
                _ => self.events.push_back(Event::Resize {
                    channel: id,
                    rows,
                    cols,
                }),
            },
            (Request::Signal(name), Stage::Running) => {
                self.events.push_back(Event::Signal(id, name));
            }
            _ => return false,
        }
        true
    }
}

/// What the server does with its channels. One that the client has closed meanwhile no longer exists, and nothing is
/// sent about it.
impl Connection {
    pub(crate) fn accept(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get_mut(&id.0)
            && channel.stage == Stage::Asked
        {
            channel.stage = Stage::Running;
            self.confirm(id);
        }
    }

    pub(crate) fn refuse(&mut self, id: ChannelId, refusal: Refusal, words: &str) {
        if let Some(channel) = self.channels.remove(&id.0) {
            self.refusal(channel.theirs, refusal, words);
        }
    }

    /// How many bytes may be sent.
    pub(crate) fn window(&self, id: ChannelId) -> usize {
        let channel = self.channels.get(&id.0);
        let open = channel.filter(|channel| !channel.eof_sent && !channel.close_sent);
        open.map_or(0, |channel| usize::try_from(channel.window).unwrap_or(0))
    }

    /// Sends what the window has room for; how much that was.
    pub(crate) fn send(&mut self, id: ChannelId, output: Output, bytes: &[u8]) -> usize {
        let room = self.window(id).min(bytes.len());
        let Some(channel) = self.channels.get_mut(&id.0) else {
            return 0;
        };
        let bytes = bytes.get(..room).unwrap_or_default();
        for piece in bytes.chunks(channel.max_data) {
            let message = match output {
                Output::Data => Writer::message(message::CHANNEL_DATA).u32(channel.theirs),
                Output::Stderr => Writer::message(message::CHANNEL_EXTENDED_DATA)
                    .u32(channel.theirs)
                    .u32(STDERR),
            };
            self.out.push(message.string(piece).finish());
        }
        channel.window = channel
            .window
            .saturating_sub(u32::try_from(room).unwrap_or(u32::MAX));
        room
    }

    /// So many bytes of the client have gone on: it may send as many more, which it is told in large pieces.
    pub(crate) fn used(&mut self, id: ChannelId, count: usize) {
        let Some(channel) = self.channels.get_mut(&id.0) else {
            return;
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        channel.used = channel.used.saturating_add(count);
        if channel.used < WINDOW / 2 || channel.eof_received || channel.close_sent {
            return;
        }
        let more = std::mem::take(&mut channel.used);
        channel.granted = channel.granted.saturating_add(more);
        let message = Writer::message(message::CHANNEL_WINDOW_ADJUST)
            .u32(channel.theirs)
            .u32(more);
        self.out.push(message.finish());
    }

    pub(crate) fn eof(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get_mut(&id.0)
            && !channel.close_sent
            && !std::mem::replace(&mut channel.eof_sent, true)
        {
            let message = Writer::message(message::CHANNEL_EOF).u32(channel.theirs);
            self.out.push(message.finish());
        }
    }

    pub(crate) fn exit_status(&mut self, id: ChannelId, code: u32) {
        self.tell(id, "exit-status", |message| message.u32(code));
    }

    /// `name` is without `SIG`.
    pub(crate) fn exit_signal(&mut self, id: ChannelId, name: &str) {
        self.tell(id, "exit-signal", |message| {
            message.string(name).boolean(false).string("").string("")
        });
    }

    fn tell(&mut self, id: ChannelId, what: &str, with: impl FnOnce(Writer) -> Writer) {
        if let Some(channel) = self.channels.get(&id.0).filter(|it| !it.close_sent) {
            let message = Writer::message(message::CHANNEL_REQUEST)
                .u32(channel.theirs)
                .string(what)
                .boolean(false);
            self.out.push(with(message).finish());
        }
    }

    /// Ends it. The client's answer removes it.
    pub(crate) fn close(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get_mut(&id.0)
            && !std::mem::replace(&mut channel.close_sent, true)
        {
            let message = Writer::message(message::CHANNEL_CLOSE).u32(channel.theirs);
            self.out.push(message.finish());
        }
    }

    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn has_channels(&self) -> bool {
        !self.channels.is_empty()
    }
}

#[cfg(test)]
mod tests;
