//! Connections: who may ask for what, and the replies.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, fstat, openat};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use sbx_proto::exec::{MAX_SOCKETS, Reply, Request, Role, SocketKind};

use sbx_proto::plan::{self, Node};

use super::Init;
use super::peer::Peer;
use crate::handover::identity;
use crate::spawn::Failure;

impl Init<'_> {
    pub(super) fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                let key = self.next_number();
                self.peers.insert(key, Peer::new(stream));
            }
        }
    }

    pub(super) fn peer_ready(&mut self, key: u64, flags: PollFlags) {
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        if flags.contains(PollFlags::OUT) {
            peer.flush();
        }
        let alive = peer.receive();
        loop {
            let Some(peer) = self.peers.get_mut(&key) else {
                return;
            };
            match peer.next_request() {
                Ok(Some(request)) => self.request(key, request),
                Ok(None) => break,
                Err(message) => {
                    self.reply(key, &Failure::bad_request(message).into_reply());
                    self.forget_peer(key);
                    return;
                }
            }
        }
        // What a client waits for is what became of its command; others wait for the greeting.
        if let Some(peer) = self.peers.get_mut(&key)
            && (peer.command.is_none() || peer.carries_streams())
        {
            peer.pump();
        }
        if !alive {
            self.forget_peer(key);
        }
    }

    /// A command ends with its client, unless it was left on purpose ([`Request::Detach`]) or never had one.
    fn forget_peer(&mut self, key: u64) {
        let peer = self.peers.remove(&key);
        let of_peer = self.commands.iter().find(|(_, it)| it.peer == Some(key));
        if let Some(pid) = of_peer.map(|(pid, _)| *pid) {
            self.client_gone(pid);
        }
        if peer.is_some_and(|peer| peer.role() == Some(Role::Client)) {
            self.keep_a_spare();
        }
    }

    pub(super) fn reply(&mut self, key: u64, reply: &Reply) {
        self.reply_with(key, reply, vec![]);
    }

    fn reply_with(&mut self, key: u64, reply: &Reply, fds: Vec<OwnedFd>) {
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.send(reply, fds);
        }
    }

    fn is_daemon(&self, key: u64) -> bool {
        let peer = self.peers.get(&key);
        peer.is_some_and(|peer| peer.role() == Some(Role::Daemon))
    }

    fn request(&mut self, key: u64, request: Request) {
        let greeted = self
            .peers
            .get(&key)
            .is_some_and(|peer| peer.role().is_some());
        if !greeted && !matches!(request, Request::Hello { .. }) {
            self.forget_peer(key);
            return;
        }
        match request {
            Request::Hello { protocol, role } => self.hello(key, protocol, role),
            Request::Exec(exec) => {
                if let Err(failure) = self.exec(key, &exec) {
                    self.reply(key, &failure.into_reply());
                }
            }
            Request::Signal { signal } => self.signal(key, signal),
            Request::Resize { rows, cols } => self.resize(key, rows, cols),
            Request::Detach => self.detach(key),
            Request::Shutdown { grace_ms, if_idle } => {
                if !self.is_daemon(key) {
                    return;
                }
                // Clients come without the daemon's knowledge: only here it is known what runs.
                if if_idle && self.running() > 0 {
                    self.reply(key, &Reply::Busy);
                } else {
                    self.shut_down(Duration::from_millis(grace_ms));
                }
            }
            Request::Listeners => {
                if self.is_daemon(key) {
                    self.hand_listeners_out(key);
                }
            }
            Request::Sockets { kind, count } => match make_sockets(kind, count) {
                Ok(fds) => self.reply_with(key, &Reply::Sockets { kind }, fds),
                Err(failure) => self.reply(key, &failure.into_reply()),
            },
            Request::Namespaces | Request::Share | Request::Unshare { .. } => {
                if self.is_daemon(key) {
                    self.change_workspaces(key, &request);
                }
            }
        }
    }

    fn hello(&mut self, key: u64, protocol: u32, role: Role) {
        let known = sbx_proto::SPOKEN.contains(&protocol);
        let reply = Reply::Hello {
            protocol: if known { protocol } else { sbx_proto::PROTOCOL },
            sandbox: self.id.clone(),
        };
        if !known {
            self.reply(key, &reply);
            self.forget_peer(key);
            return;
        }
        let outside = self.outside;
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        if peer.role().is_none() && !peer.comes_from(outside) {
            self.forget_peer(key);
            return;
        }
        peer.set_role(role);
        peer.hold(&reply);
        if role == Role::Daemon {
            let running = self.running();
            self.reply(key, &Reply::Commands { running });
        }
    }

    /// Copies: init's own stay open.
    fn hand_listeners_out(&mut self, key: u64) {
        let sockets = self.network.sockets.iter();
        match sockets.map(|(_, socket)| socket.try_clone()).collect() {
            Ok(fds) => self.reply_with(key, &Reply::Listeners(self.network.listeners()), fds),
            Err(error) => {
                let failure = Failure::engine("copy the listeners", error);
                self.reply(key, &failure.into_reply());
            }
        }
    }

    /// What a helper of the daemon's needs to mount something in a sandbox that runs, and what it has done.
    fn change_workspaces(&mut self, key: u64, request: &Request) {
        let came = self.peers.get_mut(&key).map(Peer::take_fds);
        let done = match request {
            Request::Namespaces => self.own_namespaces().map(|fds| (Reply::Namespaces, fds)),
            Request::Share => self.share(came.unwrap_or_default()),
            Request::Unshare { node } => Ok(self.unshare(*node)),
            _ => return,
        };
        match done {
            Ok((reply, fds)) => self.reply_with(key, &reply, fds),
            Err(failure) => self.reply(key, &failure.into_reply()),
        }
    }

    /// As [`RUNNING_DESCRIPTORS`](sbx_proto::plan::RUNNING_DESCRIPTORS) has them.
    fn own_namespaces(&self) -> Result<Vec<OwnedFd>, Failure> {
        let failed = |error| Failure::engine("open a namespace", error);
        let own = |name: &str| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            openat(self.guard.proc(), name, flags, Mode::empty()).map_err(failed)
        };
        let inner = &self.surroundings.namespaces;
        let copy = |fd: &OwnedFd| fcntl_dupfd_cloexec(fd, 0).map_err(failed);
        let [user, mount] = [copy(&inner.user)?, copy(&inner.mount)?];
        Ok(vec![own("self/ns/user")?, own("self/ns/mnt")?, user, mount])
    }

    fn share(&mut self, came: Vec<OwnedFd>) -> Result<(Reply, Vec<OwnedFd>), Failure> {
        let [workspace] = <[OwnedFd; 1]>::try_from(came)
            .map_err(|_| Failure::bad_request("a workspace comes with one descriptor".into()))?;
        let facts = fstat(&workspace).map_err(|e| Failure::engine("look at a workspace", e))?;
        self.guard.add_foreign(facts.st_dev);
        // With one id there is nothing to hand over.
        if self.surroundings.mode != plan::Mode::Single {
            self.workspaces.push(workspace);
        }
        Ok((Reply::Done, vec![]))
    }

    fn unshare(&mut self, node: Node) -> (Reply, Vec<OwnedFd>) {
        let is_it = |fd: &OwnedFd| fstat(fd).is_ok_and(|stat| identity(&stat) == node);
        self.workspaces.retain(|workspace| !is_it(workspace));
        (Reply::Done, vec![])
    }

    pub(super) fn tell_daemons(&mut self, reply: &Reply) {
        for peer in self.peers.values_mut() {
            if peer.role() == Some(Role::Daemon) {
                peer.send(reply, vec![]);
            }
        }
    }
}

/// Init is in the sandbox's network namespace, and so are its sockets, wherever they are used.
fn make_sockets(kind: SocketKind, count: u8) -> Result<Vec<OwnedFd>, Failure> {
    if !(1..=MAX_SOCKETS).contains(&count) {
        let message = format!("{count} sockets, where 1 to {MAX_SOCKETS} can be had at once");
        return Err(Failure::bad_request(message));
    }
    let (family, transport) = match kind {
        SocketKind::Tcp4 => (AddressFamily::INET, SocketType::STREAM),
        SocketKind::Tcp6 => (AddressFamily::INET6, SocketType::STREAM),
        SocketKind::Udp4 => (AddressFamily::INET, SocketType::DGRAM),
        SocketKind::Udp6 => (AddressFamily::INET6, SocketType::DGRAM),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    (0..count)
        .map(|_| socket_with(family, transport, flags, None))
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::engine("make a socket inside", error))
}
