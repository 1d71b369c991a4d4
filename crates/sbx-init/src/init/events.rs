//! The poll loop: what init waits for, and which part of it is woken.

use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use sbx_proto::stream::Stream;

use super::Init;
use super::answers::{ANSWER_CHECK_INTERVAL, MAX_ANSWERS};
use super::mount_watch::CHECK_INTERVAL;

/// Which of the polled descriptors is which.
#[derive(Clone, Copy)]
enum Source {
    Listener,
    Signals,
    Peer(u64),
    Starting(i32),
    /// A stream of a peer's command.
    Stream(u64, Stream),
    Output(usize),
    Filter(usize),
    Mounts,
}

impl Init<'_> {
    pub(super) fn run(&mut self) {
        self.look_after_mounts();
        loop {
            if self.finished() {
                return;
            }
            let Ok(ready) = self.wait() else {
                // It cannot wait any more, so it must not go on: the kernel ends the sandbox with it.
                return;
            };
            // Handlers remove filters and outputs by index: from the last to the first, the indices that are left hold.
            // What is gone by the time its turn comes is looked up by key or index, and not found.
            for (source, flags) in ready.into_iter().rev() {
                self.handle(source, flags);
            }
            self.look_after_mounts();
            self.look_after_answers();
            self.end_abandoned();
        }
    }

    fn wait(&self) -> Result<Vec<(Source, PollFlags)>, Errno> {
        let (sources, mut fds): (Vec<Source>, Vec<PollFd<'_>>) =
            self.interests().into_iter().unzip();
        let stopping = self.stopping.as_ref();
        let kill_at = stopping.filter(|it| !it.killed).map(|it| it.kill_at);
        let until = kill_at
            .into_iter()
            .chain(stopping.and_then(|it| it.drain_until));
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let look = self.mount_watch.as_ref().map(|_| CHECK_INTERVAL);
        let answers = (!self.answers.is_empty()).then_some(ANSWER_CHECK_INTERVAL);
        let abandoned = self.abandoned.next();
        let abandoned = abandoned.map(|at| at.saturating_duration_since(Instant::now()));
        let times = left.chain(look).chain(answers).chain(abandoned);
        let timeout = times.min().map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => Ok(vec![]),
            Ok(_) => Ok(sources
                .into_iter()
                .zip(&fds)
                .map(|(source, fd)| (source, fd.revents()))
                .filter(|(_, flags)| !flags.is_empty())
                .collect()),
            Err(error) => Err(error),
        }
    }

    fn interests(&self) -> Vec<(Source, PollFd<'_>)> {
        let mut all = vec![(Source::Signals, PollFd::new(&self.signals, PollFlags::IN))];
        if self.stopping.is_none() {
            all.push((Source::Listener, PollFd::new(&self.listener, PollFlags::IN)));
        }
        for (key, peer) in &self.peers {
            all.push((Source::Peer(*key), PollFd::new(peer, peer.interest())));
            for (stream, fd, flags) in peer.stream_interests() {
                let source = Source::Stream(*key, stream);
                all.push((source, PollFd::from_borrowed_fd(fd, flags)));
            }
        }
        for (pid, command) in &self.commands {
            if let Some(starting) = &command.starting {
                all.push((
                    Source::Starting(*pid),
                    PollFd::new(&starting.status, starting.interest()),
                ));
            }
        }
        for (index, output) in self.outputs.iter().enumerate() {
            all.push((
                Source::Output(index),
                PollFd::new(&output.pipe, PollFlags::IN),
            ));
        }
        // While enough answers are under way a filter's callers wait, but its end is still seen.
        let questions = if self.answers.len() < MAX_ANSWERS {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        for (index, filter) in self.filters.iter().enumerate() {
            all.push((Source::Filter(index), PollFd::new(filter, questions)));
        }
        if let Some(watch) = &self.mount_watch {
            all.push((Source::Mounts, PollFd::new(watch, PollFlags::PRI)));
        }
        all
    }

    fn handle(&mut self, source: Source, flags: PollFlags) {
        match source {
            Source::Signals => {
                // One read: the same signal is pending once, and another makes the descriptor ready again.
                let _ = self.signals.read();
                self.reap();
            }
            Source::Listener => self.accept(),
            Source::Peer(key) => self.peer_ready(key, flags),
            Source::Stream(key, stream) => {
                if let Some(peer) = self.peers.get_mut(&key) {
                    peer.stream_ready(stream, flags);
                }
            }
            Source::Starting(pid) => self.hear_start(pid),
            Source::Output(index) => self.copy_output(index),
            Source::Filter(index) => self.filter_ready(index, flags),
            // Looked after in any case.
            Source::Mounts => {}
        }
    }
}
