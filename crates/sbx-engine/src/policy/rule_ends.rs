//! When rules with a time end. They say so in the time of day, which can be set. So a rule ends when the time that it had
//! left when this process first saw it has passed, on a clock that cannot be set; and what has ended once stays ended.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};
use sbx_policy::Rule;

/// Both clocks at one time.
#[derive(Debug, Clone, Copy)]
pub struct ClockReading {
    pub time_of_day: Timestamp,
    /// Since the machine has started, with the time in which it slept.
    pub since_boot: Duration,
}

/// Begins with the time of day, and then passes steadily.
#[derive(Clone)]
pub struct SteadyClock {
    read: Arc<dyn Fn() -> ClockReading + Send + Sync>,
    began: ClockReading,
}

impl fmt::Debug for SteadyClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteadyClock").finish_non_exhaustive()
    }
}

impl SteadyClock {
    pub fn new(read: impl Fn() -> ClockReading + Send + Sync + 'static) -> Self {
        Self {
            began: read(),
            read: Arc::new(read),
        }
    }

    pub fn of_this_machine() -> Self {
        Self::new(|| ClockReading {
            time_of_day: Timestamp::now(),
            since_boot: Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default(),
        })
    }

    pub fn now(&self) -> Timestamp {
        self.at((self.read)())
    }

    fn at(&self, reading: ClockReading) -> Timestamp {
        let passed = reading.since_boot.saturating_sub(self.began.since_boot);
        let passed = SignedDuration::try_from(passed).unwrap_or(SignedDuration::MAX);
        saturating_add(self.began.time_of_day, passed)
    }
}

/// Beyond what a timestamp can tell it is the first or the last.
fn saturating_add(to: Timestamp, duration: SignedDuration) -> Timestamp {
    to.saturating_add(duration).unwrap_or(to)
}

/// By the id of a rule: when it says that it ends, and when that is on the steady clock.
#[derive(Debug, Default)]
pub(super) struct RuleEnds {
    known: BTreeMap<String, (Timestamp, Timestamp)>,
}

impl RuleEnds {
    /// When a rule ends, on the steady clock; for one that was edited, anew.
    fn end_of(&mut self, rule: &Rule, clock: &SteadyClock) -> Option<Timestamp> {
        let expires = rule.expires?;
        match self.known.get(&rule.id) {
            Some((said, end)) if *said == expires => Some(*end),
            Some(_) | None => {
                let reading = (clock.read)();
                let left = expires.duration_since(reading.time_of_day);
                let end = saturating_add(clock.at(reading), left);
                self.known.insert(rule.id.clone(), (expires, end));
                Some(end)
            }
        }
    }

    /// Marks those that have ended. True if there is a new one.
    pub(super) fn mark(&mut self, rules: &mut [Rule], clock: &SteadyClock) -> bool {
        let now = clock.now();
        let mut found = false;
        for rule in rules.iter_mut().filter(|rule| !rule.expired) {
            if self.end_of(rule, clock).is_some_and(|end| end <= now) {
                rule.expired = true;
                found = true;
            }
        }
        found
    }

    /// How long it is until the next one ends.
    pub(super) fn until_next(&mut self, rules: &[Rule], clock: &SteadyClock) -> Option<Duration> {
        let now = clock.now();
        let current = rules.iter().filter(|rule| !rule.expired);
        let ends = current.filter_map(|rule| self.end_of(rule, clock));
        let next = ends.filter(|end| *end > now).min()?;
        Some(Duration::try_from(next.duration_since(now)).unwrap_or_default())
    }

    /// The rules with their ends on the steady clock.
    pub(super) fn on(&mut self, mut rules: Vec<Rule>, clock: &SteadyClock) -> Vec<Rule> {
        for rule in &mut rules {
            rule.expires = self.end_of(rule, clock);
        }
        rules
    }

    /// Only these are left.
    pub(super) fn retain(&mut self, rules: &[Rule]) {
        let is_left = |id: &String| rules.iter().any(|rule| rule.id == *id);
        self.known.retain(|id, _| is_left(id));
    }
}
