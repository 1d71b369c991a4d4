//! When a lease's time is over. Pure: the clock is the caller's.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::claim::{Claim, after};

/// The earlier of the two ends that a lease can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    pub at: Timestamp,
    pub reason: Reason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    Idle,
    Ttl,
}

/// When a lease ends, as every document for programs has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// The end of its time to live, which no use moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The earlier end of the two, and which it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_reason: Option<Reason>,
}

impl Reason {
    /// The word that `cleanup` prints.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle timeout",
            Self::Ttl => "ttl",
        }
    }
}

impl Claim {
    /// None when it may stay for ever. `keep` does not matter: it is about the end of a run.
    pub fn deadline(&self) -> Option<Deadline> {
        let deadline = |reason| move |at| Deadline { at, reason };
        let idle = self.idle_deadline().map(deadline(Reason::Idle));
        let ttl = self.expires_at.map(deadline(Reason::Ttl));
        match (ttl, idle) {
            // On a tie the end that no use can move is the one to tell.
            (Some(ttl), Some(idle)) if idle.at < ttl.at => Some(idle),
            (Some(ttl), _) => Some(ttl),
            (None, idle) => idle,
        }
    }

    pub fn deadlines(&self) -> Deadlines {
        let deadline = self.deadline();
        Deadlines {
            expires_at: self.expires_at,
            due_at: deadline.map(|deadline| deadline.at),
            due_reason: deadline.map(|deadline| deadline.reason),
        }
    }

    /// When it will have been idle for too long, if it is not used until then.
    pub fn idle_deadline(&self) -> Option<Timestamp> {
        after(self.last_used_at, self.idle_timeout_seconds)
    }

    /// Whether the time is over, and why.
    pub fn due(&self, now: Timestamp) -> Option<Reason> {
        let deadline = self.deadline()?;
        (deadline.at <= now).then_some(deadline.reason)
    }

    /// Whether it has lived as long as it may. Being idle is another matter: the next use ends that.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }

    /// Nothing is left of a time that is over; None when there is no end.
    pub fn remaining(&self, now: Timestamp) -> Option<Duration> {
        let left = self.deadline()?.at.duration_since(now);
        Some(Duration::try_from(left).unwrap_or(Duration::ZERO))
    }

    /// How long it has not been used.
    pub fn idle_for(&self, now: Timestamp) -> Duration {
        let idle = now.duration_since(self.last_used_at);
        Duration::try_from(idle).unwrap_or(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{claim, time};
    use super::*;

    /// Gap of the original: `list` and `status` had nothing to show.
    #[test]
    fn the_earlier_end_counts() {
        let mut claim = claim("x_1");
        let idle = Deadline {
            at: time("2026-08-01T12:30:00Z"),
            reason: Reason::Idle,
        };
        let ttl = Deadline {
            at: time("2026-08-01T13:30:00Z"),
            reason: Reason::Ttl,
        };
        assert_eq!(claim.deadline(), Some(idle));
        claim.last_used_at = time("2026-08-01T13:10:00Z");
        assert_eq!(claim.deadline(), Some(ttl));
        claim.last_used_at = time("2026-08-01T13:00:00Z");
        assert_eq!(claim.deadline(), Some(ttl));
        claim.idle_timeout_seconds = 0;
        assert_eq!(claim.deadline(), Some(ttl));
        claim.expires_at = None;
        assert_eq!(claim.deadline(), None);
        claim.idle_timeout_seconds = u64::MAX;
        assert_eq!(claim.deadline(), None);
    }

    #[test]
    fn only_the_time_to_live_makes_it_useless() {
        let claim = claim("x_1");
        assert_eq!(claim.due(time("2026-08-01T13:00:00Z")), Some(Reason::Idle));
        assert!(!claim.is_expired(time("2026-08-01T13:29:59Z")));
        assert!(claim.is_expired(time("2026-08-01T13:30:00Z")));
    }

    #[test]
    fn it_is_due_at_the_second() {
        let claim = claim("x_1");
        let before = time("2026-08-01T12:29:59Z");
        let at = time("2026-08-01T12:30:00Z");
        assert_eq!(claim.due(before), None);
        assert_eq!(claim.due(at), Some(Reason::Idle));
        assert_eq!(claim.remaining(before), Some(Duration::from_secs(1)));
        assert_eq!(claim.remaining(at), Some(Duration::ZERO));
        let late = time("2027-01-01T00:00:00Z");
        assert_eq!(claim.remaining(late), Some(Duration::ZERO));
        assert_eq!(claim.idle_for(at), Duration::from_secs(1800));
        assert_eq!(claim.idle_for(time("2020-01-01T00:00:00Z")), Duration::ZERO);
    }
}
