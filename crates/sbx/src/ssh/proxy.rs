//! `sbx ssh proxy`: one SSH connection, from stdin and stdout to the sandbox. One thread, which waits for everything at once.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use sbx_engine::machine::inside::Inside;
use sbx_engine::sandbox::offline;
use sbx_engine::state::StateError;
use sbx_engine::state::settings::{Settings, table};
use sbx_engine::{SandboxName, StateDir};
use sbx_proto::exec::{Exec, FramedStderr, FramedStdin, Request, Stdio};
use sbx_proto::tool;
use sbx_proto::{OsBytes, SSH_SINCE};
use sbx_ssh::{ChannelId, Error, Event, Refusal, Server, Start, Terminal as Pty};

use super::forward::{self, Forward};
use super::hold::{self, Hold};
use super::host_key;
use super::session::{self, Session};
use crate::attach::Broken;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind, engine};
use crate::init::Terminal;
use crate::lookup;
use crate::plumbing::{set_nonblocking, widen};

/// The user in the block of `sbx setup ssh`: the one that commands have by default.
const DEFAULT_USER: &str = "_default_user_";
/// What waits for the client at most, besides answers.
const MAX_UNSENT: usize = 256 << 10;
const CHUNK: usize = 64 << 10;

/// The user's shell inside: for a login in the primary workspace, and for a command as `sshd` runs it. Programs that use
/// SSH count on a command and SFTP to begin in the user's home.
const LOGIN: &str = r#"exec "${SHELL:-/bin/sh}" -l"#;
const COMMAND: &str = r#"cd; exec "${SHELL:-/bin/sh}" -c "$1""#;

/// The setting is the client's: this process has a variable of its own, as the daemon has for the others.
fn accepted_variables(context: &Context, state: &StateDir) -> Result<Vec<String>, Failure> {
    let key = "ssh_accept_env";
    let variable = table::find(key).and_then(|setting| context.env.text(setting.variable));
    let overrides = variable.map(|text| (key.to_owned(), text.to_owned()));
    let settings = Settings::new(&state.settings_values()?, &overrides.into_iter().collect());
    Ok(settings.map_err(StateError::from)?.ssh_accept_env)
}

pub(crate) fn run(context: &Context, name: &str) -> Result<(), Failure> {
    let (stdin, stdout) = (rustix::stdio::stdin(), rustix::stdio::stdout());
    if rustix::termios::isatty(stdin) {
        return Err(Failure::usage("`sbx ssh proxy` is started by ssh")
            .hint(format!("sbx setup ssh, then: ssh {name}.sbx")));
    }
    let client = Client::new(context, Absent::Start)?;
    lookup::ensure_exists(context, &client, name)?;
    let accepted = accepted_variables(context, client.state())?;
    let key = host_key::load_or_make(client.state())?;
    let hold = Hold::take(context, &client, name)?;
    let inside = inside(&client, name)?;
    // Where it has ended meanwhile, the hold tells.
    inside.protocol().map_or(Ok(()), check_version)?;
    for fd in [stdin, stdout] {
        set_nonblocking(fd).map_err(|errno| engine("cannot use the pipe to ssh")(errno.into()))?;
        widen(fd);
    }
    let proxy = Proxy {
        client: &client,
        server: Server::new(key),
        hold: Some(hold),
        inside,
        accepted,
        user: None,
        sessions: BTreeMap::new(),
        forwards: BTreeMap::new(),
    };
    proxy.serve()
}

fn inside(client: &Client<'_>, name: &str) -> Result<Inside, Failure> {
    let name = SandboxName::parse(name)?;
    let sandbox = offline::inspect(client.state(), &name)?;
    let dir = client.state().sandbox(&name);
    Ok(Inside::new(dir.path(), &sandbox.id))
}

/// An init of an earlier version has no programs for the hold and SFTP. The hold would end at once, as when the sandbox stops.
fn check_version(protocol: u32) -> Result<(), Failure> {
    if protocol >= SSH_SINCE {
        return Ok(());
    }
    let failure = Failure::new(
        Kind::VersionMismatch,
        "no SSH into this sandbox: it was started by an earlier version of sbx",
    )
    .hint("stop it with `sbx stop`; the next connection starts it again");
    Err(failure)
}

struct Proxy<'a> {
    client: &'a Client<'a>,
    server: Server,
    /// `None` when the sandbox has stopped.
    hold: Option<Hold>,
    inside: Inside,
    /// Which variables of the client are passed on.
    accepted: Vec<String>,
    user: Option<String>,
    sessions: BTreeMap<ChannelId, Session>,
    forwards: BTreeMap<ChannelId, Forward>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Client,
    Pipe,
    /// The pipe has no reader any more.
    Gone,
    Hold,
    Session(ChannelId),
    Forward(ChannelId),
}

/// Whether more may be queued for the client.
fn room(server: &Server) -> bool {
    server.unsent() < MAX_UNSENT
}

impl Proxy<'_> {
    fn serve(mut self) -> Result<(), Failure> {
        loop {
            self.advance();
            if !self.write()? {
                return Ok(());
            }
            if self.hold.is_none() && self.sessions.is_empty() && self.server.unsent() == 0 {
                return Err(Failure::failed("the sandbox was stopped"));
            }
            for ready in self.poll()? {
                match ready {
                    Ready::Pipe => {}
                    Ready::Gone => return Ok(()),
                    Ready::Client => {
                        if !self.read()? {
                            return Ok(());
                        }
                    }
                    Ready::Hold => {
                        if self.hold.as_mut().is_some_and(|hold| !hold.is_up()) {
                            self.stopped();
                        }
                    }
                    Ready::Session(id) => {
                        if let Some(session) = self.sessions.get_mut(&id)
                            && let Err(failure) = session.receive(&mut self.server)
                        {
                            session.fail(125, &failure.message);
                        }
                    }
                    Ready::Forward(id) => {
                        let forward = self.forwards.get_mut(&id);
                        let state = forward.map(|it| it.ready(&self.inside, &mut self.server));
                        if state == Some(forward::State::Over) {
                            self.forwards.remove(&id);
                        }
                    }
                }
            }
        }
    }

    /// Sockets of its network say nothing of its end.
    fn stopped(&mut self) {
        self.hold = None;
        for forward in self.forwards.values() {
            forward.end(&mut self.server);
        }
        self.forwards.clear();
    }

    fn advance(&mut self) {
        let server = &mut self.server;
        self.sessions
            .retain(|_, it| it.advance(server, room) == session::State::Running);
        self.forwards
            .retain(|_, it| it.advance(server) == forward::State::Open);
    }

    /// False when ssh has gone.
    fn write(&mut self) -> Result<bool, Failure> {
        let out = self.server.out().map_err(broken)?;
        let mut written = 0;
        let open = loop {
            let rest = out.get(written..).unwrap_or_default();
            if rest.is_empty() {
                break true;
            }
            match rustix::io::write(rustix::stdio::stdout(), rest) {
                Ok(count) => written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break true,
                Err(_) => break false,
            }
        };
        out.drain(..written);
        Ok(open)
    }

    /// False when ssh has gone, or says that it goes.
    fn read(&mut self) -> Result<bool, Failure> {
        let mut buffer = vec![0; CHUNK];
        let count = match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(true),
            Err(_) => return Ok(false),
        };
        let received = self.server.receive(buffer.get(..count).unwrap_or_default());
        while let Some(event) = self.server.next_event() {
            self.event(event);
        }
        match received {
            Ok(()) => Ok(true),
            Err(Error::Disconnected) => Ok(false),
            Err(error) => {
                // The client is told as well, as far as its pipe takes it.
                let _ = self.write();
                Err(broken(error))
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::User(user) => {
                let given = Some(user).filter(|user| !user.is_empty() && user != DEFAULT_USER);
                self.user = given;
            }
            Event::Forward {
                channel,
                host,
                port,
            } => self.forward(channel, &host, port),
            Event::Start {
                channel,
                start,
                terminal,
                variables,
            } => self.start(channel, start, terminal.as_ref(), variables),
            Event::Data(channel, bytes) => {
                if let Some(session) = self.sessions.get_mut(&channel) {
                    session.data(&bytes, &mut self.server);
                } else if let Some(forward) = self.forwards.get_mut(&channel) {
                    forward.data(&bytes);
                } else {
                    self.server.used(channel, bytes.len());
                }
            }
            Event::Eof(channel) => {
                if let Some(session) = self.sessions.get_mut(&channel) {
                    session.eof();
                } else if let Some(forward) = self.forwards.get_mut(&channel) {
                    forward.eof();
                }
            }
            Event::Resize {
                channel,
                rows,
                cols,
            } => {
                if let Some(session) = self.sessions.get_mut(&channel) {
                    session.resize(rows, cols);
                }
            }
            Event::Signal(channel, name) => {
                if let Some(session) = self.sessions.get_mut(&channel) {
                    session.signal(&name);
                }
            }
            // Init ends a command whose client has gone.
            Event::Closed(channel) => {
                self.sessions.remove(&channel);
                self.forwards.remove(&channel);
            }
        }
    }

    fn forward(&mut self, channel: ChannelId, host: &str, port: u32) {
        let refusal = match forward::addresses(host, port) {
            None => (
                Refusal::Prohibited,
                "only localhost of the sandbox can be forwarded".to_owned(),
            ),
            Some(_) if self.hold.is_none() => {
                (Refusal::ConnectFailed, "the sandbox stopped".to_owned())
            }
            Some(addresses) => match Forward::connect(channel, &self.inside, addresses) {
                Ok(forward) => {
                    self.forwards.insert(channel, forward);
                    return;
                }
                Err(words) => (Refusal::ConnectFailed, words),
            },
        };
        self.server.refuse(channel, refusal.0, &refusal.1);
    }

    fn start(
        &mut self,
        channel: ChannelId,
        start: Start,
        terminal: Option<&Pty>,
        variables: Vec<(Vec<u8>, Vec<u8>)>,
    ) {
        // What SFTP sends is binary.
        let terminal = terminal.filter(|_| start != Start::Sftp);
        let exec = self.exec(start, terminal, variables);
        let wanted = match terminal {
            Some(_) => Terminal::Wanted,
            None => Terminal::None,
        };
        let opened = match &self.hold {
            Some(hold) => {
                let request = Request::Exec(Box::new(exec));
                hold::open(self.client, &hold.socket, &request, wanted)
            }
            None => Err(Broken::BeforeStart),
        };
        match opened {
            Ok(init) => {
                let session = Session::new(channel, init, terminal.is_some());
                self.sessions.insert(channel, session);
            }
            Err(broken) => {
                let why = match &broken {
                    Broken::BeforeStart => "the sandbox stopped",
                    Broken::Failed(failure) => &failure.message,
                };
                let line = format!("sbx: {why}\r\n");
                self.server
                    .send(channel, sbx_ssh::Output::Stderr, line.as_bytes());
                self.server.exit_status(channel, 125);
                self.server.close(channel);
            }
        }
    }

    fn exec(
        &self,
        start: Start,
        terminal: Option<&Pty>,
        variables: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Exec {
        let own_program = start == Start::Sftp;
        let argv: Vec<OsBytes> = match start {
            Start::Shell => ["sh", "-c", LOGIN].map(OsBytes::from).to_vec(),
            Start::Exec(command) => {
                let mut argv = ["sh", "-c", COMMAND, "sh"].map(OsBytes::from).to_vec();
                argv.push(OsBytes(command));
                argv
            }
            Start::Sftp => [tool::PROGRAM, tool::SFTP].map(OsBytes::from).to_vec(),
        };
        let accepted = |(name, _): &(Vec<u8>, Vec<u8>)| {
            let mut patterns = self.accepted.iter();
            patterns.any(|pattern| matches(pattern.as_bytes(), name))
        };
        let mut env: Vec<(OsBytes, OsBytes)> = variables
            .into_iter()
            .filter(accepted)
            .map(|(name, value)| (OsBytes(name), OsBytes(value)))
            .collect();
        let stdio = match terminal {
            Some(pty) => {
                if !pty.kind.is_empty() {
                    env.push((OsBytes::from("TERM"), OsBytes(pty.kind.clone())));
                }
                Stdio::FramedTty {
                    rows: pty.rows,
                    cols: pty.cols,
                }
            }
            None => Stdio::Framed {
                stdin: FramedStdin::Stream,
                stderr: FramedStderr::Stream,
            },
        };
        Exec {
            argv,
            own_program,
            env,
            user: self.user.clone(),
            workdir: None,
            stdio,
        }
    }

    fn poll(&self) -> Result<Vec<Ready>, Failure> {
        let room = room(&self.server);
        let (stdin, stdout) = (rustix::stdio::stdin(), rustix::stdio::stdout());
        let mut fds = Vec::new();
        if self.server.writable() < MAX_UNSENT {
            fds.push((
                PollFd::from_borrowed_fd(stdin, PollFlags::IN),
                Ready::Client,
            ));
        }
        // Always: its end is the end of ssh.
        let flags = if self.server.writable() > 0 {
            PollFlags::OUT
        } else {
            PollFlags::empty()
        };
        fds.push((PollFd::from_borrowed_fd(stdout, flags), Ready::Pipe));
        if let Some(hold) = &self.hold {
            let fd = PollFd::from_borrowed_fd(hold.as_fd(), PollFlags::IN);
            fds.push((fd, Ready::Hold));
        }
        for (id, session) in &self.sessions {
            if let Some((init, unsent)) = session.polled() {
                let mut flags = PollFlags::IN;
                flags.set(PollFlags::OUT, unsent);
                let fd = PollFd::from_borrowed_fd(init.as_fd(), flags);
                fds.push((fd, Ready::Session(*id)));
            }
        }
        for (id, forward) in &self.forwards {
            if let Some((socket, flags)) = forward.interest(&self.server, room) {
                let fd = PollFd::from_borrowed_fd(socket, flags);
                fds.push((fd, Ready::Forward(*id)));
            }
        }
        let (mut polled, meanings): (Vec<_>, Vec<_>) = fds.into_iter().unzip();
        match rustix::event::poll(&mut polled, self.timeout().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(engine("cannot wait for the sandbox")(error.into())),
        }
        let gone = |fd: &PollFd<'_>| fd.revents().intersects(PollFlags::ERR | PollFlags::HUP);
        let ready = polled.iter().zip(meanings);
        let ready = ready.filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ready
            .map(|(fd, what)| match what {
                Ready::Pipe if gone(fd) => Ready::Gone,
                what => what,
            })
            .collect())
    }

    fn timeout(&self) -> Option<Timespec> {
        let at = self.sessions.values().filter_map(Session::wakes_at).min()?;
        Timespec::try_from(at.saturating_duration_since(Instant::now())).ok()
    }
}

fn broken(error: Error) -> Failure {
    Failure::failed(format!("the connection to ssh cannot go on: {error}"))
}

/// `*` stands for any bytes, `?` for one.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], name) => {
            matches(rest, name)
                || name
                    .split_first()
                    .is_some_and(|(_, name)| matches(pattern, name))
        }
        ([b'?', rest @ ..], [_, name @ ..]) => matches(rest, name),
        ([first, rest @ ..], [byte, name @ ..]) if first == byte => matches(rest, name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_of_an_earlier_version_is_refused() {
        assert!(check_version(SSH_SINCE).is_ok());
        let failure = check_version(SSH_SINCE - 1).unwrap_err();
        assert!(failure.message.contains("an earlier version of sbx"));
        assert!(failure.hint.is_some());
    }

    #[test]
    fn variables_by_pattern() {
        for (pattern, name, expected) in [
            ("LANG", "LANG", true),
            ("LANG", "LANGUAGE", false),
            ("LC_*", "LC_ALL", true),
            ("*", "X", true),
            ("?X", "AX", true),
            ("?X", "X", false),
            ("", "X", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected);
        }
    }
}
