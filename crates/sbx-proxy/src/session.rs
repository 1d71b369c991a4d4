//! One connection from the decision to its end: on record, and cut when the rules no longer allow it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::audit::{Audit, Entrance, Line, Phase, Via};
use crate::gate::{Gate, GateDecision};
use crate::record::line;
use crate::relay::Counters;

/// A request that follows others on a connection, and takes longer, is on record before it ends. Everything else is
/// before it begins.
const RECORD_DELAY: Duration = Duration::from_secs(5);

/// What happens to a connection besides its bytes.
enum Event {
    /// They may be others than before.
    Rules,
    /// There are no rules any more.
    Stopped,
    /// It is open for so long that it goes on record.
    Long,
}

/// Whether it is on record as it is now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recorded {
    No,
    /// It follows another one on the same way, which is: its own line is written when it ends.
    AtEnd,
    Yes,
}

/// A decision that is being carried out. A line is written before its first byte goes anywhere, and another at its
/// end, at the latest when it is dropped.
pub(crate) struct Session<'a> {
    audit: &'a Audit,
    line: Line,
    recorded: Recorded,
    started: Instant,
    counters: Arc<Counters>,
}

impl<'a> Session<'a> {
    pub(crate) fn begin(
        audit: &'a Audit,
        entrance: Entrance,
        via: Via,
        decision: &GateDecision,
    ) -> Self {
        let target = &decision.target;
        let line = line(audit, entrance, via, &decision.verdict);
        Self {
            audit,
            line: Line {
                host: target.host.to_string(),
                port: Some(target.port),
                ..line
            },
            recorded: Recorded::No,
            started: Instant::now(),
            counters: Arc::default(),
        }
    }

    /// For the code that moves the bytes.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// It was allowed and came to nothing.
    pub(crate) fn failed(&mut self, error: impl std::fmt::Display) {
        self.line.error = Some(error.to_string());
    }

    /// Its later bytes name another target than it was opened for.
    pub(crate) fn retarget(&mut self, via: Via, decision: &GateDecision) {
        let target = &decision.target;
        self.line = Line {
            host: target.host.to_string(),
            port: Some(target.port),
            time: self.line.time,
            id: self.line.id,
            address: self.line.address,
            ..line(self.audit, self.line.entrance, via, &decision.verdict)
        };
        self.recorded = Recorded::No;
    }

    /// It follows a request to the same target on the same connection.
    pub(crate) fn follows(&mut self) {
        self.recorded = Recorded::AtEnd;
    }

    /// What failed is tried again, on a connection of its own.
    pub(crate) fn retry(&mut self) {
        self.line.error = None;
        self.recorded = Recorded::No;
    }

    /// False when it cannot be put on record: then it is not let out.
    fn start(&mut self, address: SocketAddr) -> bool {
        self.line.address = Some(address);
        if self.recorded != Recorded::No || self.record_open() {
            return true;
        }
        self.failed("cut: it cannot be written to the network log");
        false
    }

    /// Runs the connection until it ends or until it is no longer allowed: true in the latter case.
    pub(crate) async fn guard(
        &mut self,
        gate: &Gate,
        decision: &GateDecision,
        address: SocketAddr,
        work: impl Future<Output = io::Result<()>>,
    ) -> bool {
        if !self.start(address) {
            return true;
        }
        let _active = gate.active_sessions().enter();
        let (mut changes, mut checked_at) = (decision.changes(), decision.decided_at());
        let due = tokio::time::sleep(RECORD_DELAY);
        tokio::pin!(work, due);
        loop {
            let unrecorded = self.recorded == Recorded::AtEnd;
            let since = checked_at;
            let event = async {
                tokio::select! {
                    biased;
                    changed = changes.changed() => changed.map_or(Event::Stopped, |()| Event::Rules),
                    () = until_expiry(gate, since) => Event::Rules,
                    () = &mut due, if unrecorded => Event::Long,
                }
            };
            tokio::pin!(event);
            // The rules first: what they no longer allow does not get another byte through.
            tokio::select! {
                biased;
                event = &mut event => match event {
                    Event::Rules => {}
                    Event::Stopped => {
                        self.failed("cut: the sandbox or the daemon stopped");
                        return true;
                    }
                    Event::Long => {
                        self.record_open();
                        continue;
                    }
                },
                ended = &mut work => {
                    // What the two sides do to each other is theirs; it is on record, and no more than that.
                    if let Err(error) = ended {
                        self.failed(error);
                    }
                    return false;
                }
            }
            checked_at = gate.now();
            let verdict = gate.still_allowed(decision, address);
            if !verdict.allowed {
                self.failed(format!("cut: {}", verdict.reason));
                return true;
            }
        }
    }

    fn record_open(&mut self) -> bool {
        self.line.phase = Phase::Open;
        self.recorded = Recorded::Yes;
        self.write()
    }

    fn write(&mut self) -> bool {
        self.line.sent = self.counters.sent();
        self.line.received = self.counters.received();
        let duration = self.started.elapsed().as_millis();
        self.line.duration_ms = u64::try_from(duration).unwrap_or(u64::MAX);
        self.audit.write(&self.line)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.line.phase = Phase::Closed;
        self.write();
    }
}

/// When the first rule ends that was in force at `since`; never, when none does.
async fn until_expiry(gate: &Gate, since: Timestamp) {
    match gate.next_expiry(since) {
        Some(at) => {
            let left = Duration::try_from(at.duration_since(gate.now())).unwrap_or_default();
            // A millisecond later, so that the time has passed for the check that follows.
            tokio::time::sleep(left + Duration::from_millis(1)).await;
        }
        None => std::future::pending().await,
    }
}
