//! A connection to a server on the sandbox's own loopback (`direct-tcpip`): a socket of the sandbox's network on one side, a
//! channel on the other.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};
use sbx_engine::machine::inside::Inside;
use sbx_proto::exec::SocketKind;
use sbx_ssh::{ChannelId, Output, Refusal, Server};

const CHUNK: usize = 32 << 10;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

#[derive(Debug)]
pub(super) struct Forward {
    channel: ChannelId,
    socket: OwnedFd,
    /// Addresses to try when this one refuses; `None` once connected.
    others: Option<VecDeque<SocketAddr>>,
    /// What the server has not taken.
    pending: VecDeque<u8>,
    client_over: bool,
    server_over: bool,
    shut: bool,
}

/// Whether a forward goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Open,
    Over,
}

/// The addresses that a host name of the client means; `None` for all that are not the sandbox's own.
pub(super) fn addresses(host: &str, port: u32) -> Option<VecDeque<SocketAddr>> {
    let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
    let addresses: &[IpAddr] = match host {
        "127.0.0.1" => &[V4],
        "::1" | "[::1]" => &[V6],
        host if host.eq_ignore_ascii_case("localhost") => &[V4, V6],
        _ => return None,
    };
    let with_port = |ip: &IpAddr| SocketAddr::new(*ip, port);
    Some(addresses.iter().map(with_port).collect())
}

impl Forward {
    /// Begins to connect.
    pub(super) fn connect(
        channel: ChannelId,
        inside: &Inside,
        mut addresses: VecDeque<SocketAddr>,
    ) -> Result<Self, String> {
        let socket = dial(inside, &mut addresses)?;
        Ok(Self {
            channel,
            socket,
            others: Some(addresses),
            pending: VecDeque::new(),
            client_over: false,
            server_over: false,
            shut: false,
        })
    }

    /// What to wait for. A socket that nothing is wanted of is not polled: its end would be reported again and again.
    pub(super) fn interest(
        &self,
        server: &Server,
        room: bool,
    ) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let mut flags = PollFlags::empty();
        if self.others.is_some() || !self.pending.is_empty() {
            flags |= PollFlags::OUT;
        }
        let takes = room && server.window(self.channel) > 0;
        if self.others.is_none() && !self.server_over && takes {
            flags |= PollFlags::IN;
        }
        (!flags.is_empty()).then(|| (self.socket.as_fd(), flags))
    }

    pub(super) fn data(&mut self, bytes: &[u8]) {
        self.pending.extend(bytes);
    }

    pub(super) fn eof(&mut self) {
        self.client_over = true;
    }

    /// The socket is ready for something.
    pub(super) fn ready(&mut self, inside: &Inside, server: &mut Server) -> State {
        if let Some(others) = &mut self.others {
            match sockopt::socket_error(&self.socket) {
                Ok(Ok(())) => {
                    self.others = None;
                    server.accept(self.channel);
                }
                Ok(Err(error)) | Err(error) => match dial(inside, others) {
                    Ok(socket) => self.socket = socket,
                    Err(_) => {
                        let words = std::io::Error::from(error).to_string();
                        server.refuse(self.channel, Refusal::ConnectFailed, &words);
                        return State::Over;
                    }
                },
            }
            return State::Open;
        }
        if !self.server_over && self.read(server).is_err() {
            server.close(self.channel);
            return State::Over;
        }
        State::Open
    }

    fn read(&mut self, server: &mut Server) -> Result<(), Errno> {
        let mut buffer = vec![0; CHUNK.min(server.window(self.channel))];
        if buffer.is_empty() {
            return Ok(());
        }
        match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((_, 0)) => {
                self.server_over = true;
                server.eof(self.channel);
            }
            Ok((_, count)) => {
                server.send(
                    self.channel,
                    Output::Data,
                    buffer.get(..count).unwrap_or_default(),
                );
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Moves what the client sent.
    pub(super) fn advance(&mut self, server: &mut Server) -> State {
        if self.others.is_some() {
            return State::Open;
        }
        while !self.pending.is_empty() {
            let (bytes, _) = self.pending.as_slices();
            match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.pending.drain(..count);
                    server.used(self.channel, count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    server.close(self.channel);
                    return State::Over;
                }
            }
        }
        if self.client_over && self.pending.is_empty() && !self.shut {
            self.shut = true;
            // One that is closed already shows itself when it is read.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        }
        if self.shut && self.server_over {
            server.close(self.channel);
            return State::Over;
        }
        State::Open
    }

    /// The sandbox is gone.
    pub(super) fn end(&self, server: &mut Server) {
        if self.others.is_some() {
            let words = "the sandbox stopped";
            server.refuse(self.channel, Refusal::ConnectFailed, words);
        } else {
            server.close(self.channel);
        }
    }
}

/// A socket that connects to the first address that does not refuse at once.
fn dial(inside: &Inside, addresses: &mut VecDeque<SocketAddr>) -> Result<OwnedFd, String> {
    let mut last = "no address is left".to_owned();
    while let Some(address) = addresses.pop_front() {
        let kind = match address {
            SocketAddr::V4(_) => SocketKind::Tcp4,
            SocketAddr::V6(_) => SocketKind::Tcp6,
        };
        let sockets = inside.sockets(kind, 1).map_err(|error| error.to_string())?;
        let socket = sockets.into_iter().next().ok_or("no socket came")?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {
                // Small messages of editors do not wait for each other; without it they are only slower.
                let _ = sockopt::set_tcp_nodelay(&socket, true);
                return Ok(socket);
            }
            Err(error) => last = std::io::Error::from(error).to_string(),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_sandboxs_own_loopback() {
        let of = |host: &str| addresses(host, 80).map(Vec::from);
        let at = |ip: IpAddr| SocketAddr::new(ip, 80);
        assert_eq!(of("localhost"), Some(vec![at(V4), at(V6)]));
        assert_eq!(of("LocalHost"), Some(vec![at(V4), at(V6)]));
        assert_eq!(of("127.0.0.1"), Some(vec![at(V4)]));
        assert_eq!(of("::1"), Some(vec![at(V6)]));
        for host in [
            "",
            "0.0.0.0",
            "127.0.0.2",
            "10.0.0.1",
            "example.com",
            "localhost.example.com",
            "::ffff:127.0.0.1",
            "gateway.docker.internal",
            "/run/x.sock",
            "localhost ",
        ] {
            assert_eq!(of(host), None, "{host}");
        }
        assert_eq!(addresses("localhost", 0), None);
        assert_eq!(addresses("localhost", 65536), None);
    }
}
