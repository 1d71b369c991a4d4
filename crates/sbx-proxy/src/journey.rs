//! One connection from the decision to its end: on record, and cut when the rules no longer allow it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sbx_policy::{Kind, Verdict};
use tokio::time::Instant;

use crate::audit::{Audit, Entrance, Line, Outcome, Phase, Via};
use crate::gate::{Gate, Judged};
use crate::seldom::Seldom;
use crate::tunnel::Counters;

/// A request that follows others on a connection, and takes longer, is on record before it ends. Everything else is
/// before it begins.
const NOTED_AFTER: Duration = Duration::from_secs(5);

/// What happens to a connection besides its bytes.
enum News {
    /// They may be others than before.
    Rules,
    /// There are no rules any more.
    Stopped,
    /// It is open for so long that it goes on record.
    Long,
}

/// Whether it is on record as it is now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Noted {
    No,
    /// It follows another one on the same way, which is: its own line is written when it ends.
    Later,
    Yes,
}

/// A decision that is being carried out. A line is written before its first byte goes anywhere, and another at its
/// end, at the latest when it is dropped.
pub(crate) struct Journey<'a> {
    audit: &'a Audit,
    line: Line,
    noted: Noted,
    started: Instant,
    counters: Arc<Counters>,
}

impl<'a> Journey<'a> {
    pub(crate) fn begin(audit: &'a Audit, entrance: Entrance, via: Via, judged: &Judged) -> Self {
        let target = &judged.target;
        let line = line(audit, entrance, via, &judged.verdict);
        Self {
            audit,
            line: Line {
                host: target.host.to_string(),
                port: Some(target.port),
                ..line
            },
            noted: Noted::No,
            started: Instant::now(),
            counters: Arc::default(),
        }
    }

    /// For whoever moves the bytes.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// It was allowed and came to nothing.
    pub(crate) fn failed(&mut self, error: impl std::fmt::Display) {
        self.line.error = Some(error.to_string());
    }

    /// It turned out to be for somebody else than its first bytes said.
    pub(crate) fn became(&mut self, via: Via, judged: &Judged) {
        let target = &judged.target;
        self.line = Line {
            host: target.host.to_string(),
            port: Some(target.port),
            time: self.line.time,
            id: self.line.id,
            address: self.line.address,
            ..line(self.audit, self.line.entrance, via, &judged.verdict)
        };
        self.noted = Noted::No;
    }

    /// It follows a request to the same target on the same connection.
    pub(crate) fn follows(&mut self) {
        self.noted = Noted::Later;
    }

    /// What failed is tried again, on a connection of its own.
    pub(crate) fn recovered(&mut self) {
        self.line.error = None;
        self.noted = Noted::No;
    }

    /// False when it cannot be put on record: then it is not let out.
    fn departs(&mut self, address: SocketAddr) -> bool {
        self.line.address = Some(address);
        if self.noted != Noted::No || self.note() {
            return true;
        }
        self.failed("cut: it cannot be put on record");
        false
    }

    /// Runs the connection until it ends or until it is no longer allowed: true in the latter case.
    pub(crate) async fn guard(
        &mut self,
        gate: &Gate,
        judged: &Judged,
        address: SocketAddr,
        work: impl Future<Output = io::Result<()>>,
    ) -> bool {
        if !self.departs(address) {
            return true;
        }
        let _carried = gate.under_way().enter();
        let mut changes = gate.changes();
        let note = tokio::time::sleep(NOTED_AFTER);
        tokio::pin!(work, note);
        loop {
            let unnoted = self.noted == Noted::Later;
            let news = async {
                tokio::select! {
                    biased;
                    changed = changes.changed() => changed.map_or(News::Stopped, |()| News::Rules),
                    () = until_expiry(gate) => News::Rules,
                    () = &mut note, if unnoted => News::Long,
                }
            };
            tokio::pin!(news);
            // The rules first: what they no longer allow does not get another byte through.
            tokio::select! {
                biased;
                news = Seldom::new(news) => match news {
                    News::Rules => {}
                    News::Stopped => {
                        self.failed("cut: the sandbox or the daemon stopped");
                        return true;
                    }
                    News::Long => {
                        self.note();
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
            let verdict = gate.still_allowed(judged, address);
            if !verdict.allowed {
                self.failed(format!("cut: {}", verdict.reason));
                return true;
            }
        }
    }

    fn note(&mut self) -> bool {
        self.line.phase = Phase::Open;
        self.noted = Noted::Yes;
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

impl Drop for Journey<'_> {
    fn drop(&mut self) {
        self.line.phase = Phase::Closed;
        self.write();
    }
}

/// A denial, on record at once.
pub(crate) fn record_denial(audit: &Audit, entrance: Entrance, via: Via, judged: &Judged) {
    audit.write(&Line {
        host: judged.target.host.to_string(),
        port: Some(judged.target.port),
        ..line(audit, entrance, via, &judged.verdict)
    });
}

/// Something that named no target that could be judged.
pub(crate) fn record_nonsense(
    audit: &Audit,
    entrance: Entrance,
    via: Via,
    host: &str,
    port: Option<u16>,
    reason: &str,
) {
    audit.write(&Line {
        host: host.chars().take(300).collect(),
        port,
        ..blank(audit, entrance, via, Outcome::Deny, reason)
    });
}

/// A question for records that are not answered.
pub(crate) fn record_question(audit: &Audit, host: &str, reason: &str) {
    audit.write(&Line {
        host: host.to_owned(),
        deny_kind: Some(Kind::RecordType),
        ..blank(audit, Entrance::Dns, Via::Dns, Outcome::Deny, reason)
    });
}

/// A name that was asked for.
pub(crate) fn record_lookup(audit: &Audit, host: &str, verdict: &Verdict) {
    audit.write(&Line {
        host: host.to_owned(),
        ..line(audit, Entrance::Dns, Via::Dns, verdict)
    });
}

fn line(audit: &Audit, entrance: Entrance, via: Via, verdict: &Verdict) -> Line {
    let outcome = if verdict.allowed {
        Outcome::Allow
    } else {
        Outcome::Deny
    };
    Line {
        // That it was denied for.
        address: refused_address(verdict),
        deny_kind: (!verdict.allowed).then_some(verdict.kind),
        rule: verdict.rule.as_ref().map(|rule| rule.id.clone()),
        rule_name: verdict.rule.as_ref().map(|rule| rule.name.clone()),
        ..blank(audit, entrance, via, outcome, &verdict.reason)
    }
}

fn refused_address(verdict: &Verdict) -> Option<SocketAddr> {
    let opens = verdict.opens.as_ref()?;
    Some(SocketAddr::new(opens.address()?, opens.port()?))
}

fn blank(audit: &Audit, entrance: Entrance, via: Via, verdict: Outcome, reason: &str) -> Line {
    Line {
        time: Timestamp::now(),
        sandbox: audit.sandbox().to_owned(),
        id: audit.next_id(),
        entrance,
        proxy: via,
        host: String::new(),
        port: None,
        address: None,
        verdict,
        deny_kind: Some(Kind::Malformed),
        rule: None,
        rule_name: None,
        reason: reason.to_owned(),
        sent: 0,
        received: 0,
        duration_ms: 0,
        phase: Phase::Closed,
        error: None,
    }
}

/// When a rule that is in force ends; never, when none does.
async fn until_expiry(gate: &Gate) {
    let now = Timestamp::now();
    match gate.next_expiry(now) {
        Some(at) => {
            let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
            // A moment later, so that it has passed for whoever asks then.
            tokio::time::sleep(left + Duration::from_millis(1)).await;
        }
        None => std::future::pending().await,
    }
}
