//! One connection from its first byte to its last: transport, user authentication, channels.

use sbx_proto::rfc4251::{Reader, Writer};

use crate::connection::Connection;
use crate::transport::Transport;
use crate::{ChannelId, Error, Event, HostKey, Output, Refusal, message};

const MAX_AUTH_REQUESTS: u32 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The client asks for user authentication.
    Service,
    /// It says who it is.
    User {
        requests: u32,
    },
    Connected,
}

/// The server's side of one connection.
#[derive(Debug)]
pub struct Server {
    transport: Transport,
    stage: Stage,
    connection: Connection,
}

impl Server {
    pub fn new(key: HostKey) -> Self {
        Self {
            transport: Transport::new(key),
            stage: Stage::Service,
            connection: Connection::default(),
        }
    }

    /// Bytes of the client. After an error the connection is over; what is left in [`Self::out`] should still be sent.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.transport.receive(bytes);
        let done = self.messages();
        if let Err(error) = &done
            && *error != Error::Disconnected
        {
            let by_protocol: u32 = 2;
            let goodbye = Writer::message(message::DISCONNECT)
                .u32(by_protocol)
                .string(error.to_string())
                .string("en");
            // The error itself says more than a failure to send it.
            let _ = self.transport.send(goodbye.finish());
        }
        done
    }

    pub fn next_event(&mut self) -> Option<Event> {
        self.connection.next_event()
    }

    /// Bytes for the client, from which those that were written are to be removed.
    pub fn out(&mut self) -> Result<&mut Vec<u8>, Error> {
        self.flush()?;
        Ok(self.transport.out())
    }

    /// How many bytes wait for the client.
    pub fn unsent(&self) -> usize {
        let messages = self.connection.out.iter().map(Vec::len);
        self.transport.unsent() + messages.sum::<usize>()
    }

    /// How many of them can be written now. The others wait for the end of a key exchange, and so for the client: it must be
    /// read from.
    pub fn writable(&self) -> usize {
        self.transport.encrypted()
    }

    fn messages(&mut self) -> Result<(), Error> {
        while let Some(payload) = self.transport.next()? {
            match self.stage {
                Stage::Connected => self.connection.message(&payload)?,
                Stage::Service | Stage::User { .. } => self.authenticate(&payload)?,
            }
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        for payload in self.connection.out.drain(..) {
            self.transport.send(payload)?;
        }
        Ok(())
    }

    /// The pipe to this process is the user's own: `none` is enough, and nothing else is offered.
    fn authenticate(&mut self, payload: &[u8]) -> Result<(), Error> {
        let mut reader = Reader::new(payload);
        let kind = reader.byte()?;
        match (kind, self.stage) {
            (message::SERVICE_REQUEST, Stage::Service) => {
                let service = reader.string()?;
                if service != b"ssh-userauth" {
                    return Err(Error::Unexpected(kind));
                }
                self.stage = Stage::User { requests: 0 };
                let accept = Writer::message(message::SERVICE_ACCEPT).string(service);
                self.transport.send(accept.finish())
            }
            (message::USERAUTH_REQUEST, Stage::User { requests }) => {
                let user = reader.text()?.to_owned();
                let (service, method) = (reader.string()?, reader.string()?);
                if service != b"ssh-connection" || requests >= MAX_AUTH_REQUESTS {
                    return Err(Error::Unexpected(kind));
                }
                if method != b"none" {
                    self.stage = Stage::User {
                        requests: requests + 1,
                    };
                    let failure = Writer::message(message::USERAUTH_FAILURE)
                        .string("none")
                        .boolean(false);
                    return self.transport.send(failure.finish());
                }
                self.stage = Stage::Connected;
                self.connection.events.push_back(Event::User(user));
                self.transport.send(vec![message::USERAUTH_SUCCESS])
            }
            (kind, _) => Err(Error::Unexpected(kind)),
        }
    }
}

/// Channels. What is done with one that the client has closed meanwhile is done with nothing.
impl Server {
    /// A connection that was asked for is there.
    pub fn accept(&mut self, channel: ChannelId) {
        self.connection.accept(channel);
    }

    pub fn refuse(&mut self, channel: ChannelId, refusal: Refusal, words: &str) {
        self.connection.refuse(channel, refusal, words);
    }

    /// How many bytes the client takes.
    pub fn window(&self, channel: ChannelId) -> usize {
        self.connection.window(channel)
    }

    /// Sends as many of the bytes as the client takes, and says how many those are.
    pub fn send(&mut self, channel: ChannelId, output: Output, bytes: &[u8]) -> usize {
        self.connection.send(channel, output, bytes)
    }

    /// So many bytes of the client's data have been used: it may send as many more.
    pub fn used(&mut self, channel: ChannelId, count: usize) {
        self.connection.used(channel, count);
    }

    pub fn eof(&mut self, channel: ChannelId) {
        self.connection.eof(channel);
    }

    pub fn exit_status(&mut self, channel: ChannelId, code: u32) {
        self.connection.exit_status(channel, code);
    }

    /// The command ended by a signal; its name is without `SIG`.
    pub fn exit_signal(&mut self, channel: ChannelId, name: &str) {
        self.connection.exit_signal(channel, name);
    }

    pub fn close(&mut self, channel: ChannelId) {
        self.connection.close(channel);
    }

    /// Whether there is a channel, also one whose end the client has not confirmed.
    pub fn has_channels(&self) -> bool {
        self.connection.has_channels()
    }
}

#[cfg(test)]
mod tests;
