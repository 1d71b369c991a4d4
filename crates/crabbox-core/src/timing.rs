//! How long the phases of a run took, and the report about it.
//!
//! The clock is the caller's. Phases never overlap and what lies between them is a phase of its own, so that they add
//! up to the total, to the millisecond.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::settings::format_duration;
use crate::{Code, Failure};

/// The name of what lies between the named phases.
const OTHER: &str = "other";

/// Measures one run.
#[derive(Debug, Clone)]
pub struct Timing {
    started: Instant,
    /// In the order in which they first began.
    phases: Vec<(String, Duration)>,
    open: Option<(String, Instant)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    pub name: String,
    pub ms: u64,
}

impl Timing {
    pub fn new(now: Instant) -> Self {
        Self {
            started: now,
            phases: Vec::new(),
            open: None,
        }
    }

    /// Begins a phase, which ends the one before. One that comes again is added to.
    pub fn start(&mut self, name: impl Into<String>, now: Instant) {
        self.stop(now);
        self.open = Some((name.into(), now));
    }

    pub fn stop(&mut self, now: Instant) {
        let Some((name, since)) = self.open.take() else {
            return;
        };
        let took = now.saturating_duration_since(since);
        match self.phases.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += took,
            None => self.phases.push((name, took)),
        }
    }

    /// What a phase took so far.
    pub fn of(&self, name: &str, now: Instant) -> Duration {
        let ended = self
            .phases
            .iter()
            .find(|(known, _)| known == name)
            .map_or(Duration::ZERO, |(_, took)| *took);
        match &self.open {
            Some((open, since)) if open == name => ended + now.saturating_duration_since(*since),
            Some(_) | None => ended,
        }
    }

    /// The phases that ended, in the order in which they first began.
    pub fn named(&self) -> &[(String, Duration)] {
        &self.phases
    }

    pub fn total(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// All phases and the rest. Their milliseconds are those of the total.
    pub fn phases(&self, now: Instant) -> Vec<Phase> {
        let mut ended = self.clone();
        ended.stop(now);
        let mut left = millis(self.total(now));
        let mut phases: Vec<Phase> = Vec::with_capacity(ended.phases.len() + 1);
        for (name, took) in ended.phases {
            // Each is rounded down, so that they never take more than there is.
            let ms = millis(took).min(left);
            left -= ms;
            phases.push(Phase { name, ms });
        }
        match phases.iter_mut().find(|phase| phase.name == OTHER) {
            Some(other) => other.ms += left,
            None => phases.push(Phase {
                name: OTHER.to_owned(),
                ms: left,
            }),
        }
        phases
    }
}

/// A part of sending files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncPhase {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunStatus {
    Succeeded,
    Failed,
    TimedOut,
    Canceled,
}

/// What kind of thing made a run fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    CommandExit,
    Timeout,
    Canceled,
    ProviderError,
}

/// The timing report. Its keys are a contract with scripts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub provider: String,
    pub lease_id: String,
    pub slug: String,
    pub run_id: String,
    pub sync_ms: u64,
    pub sync_phases: Vec<SyncPhase>,
    pub sync_skipped: bool,
    pub sync_delegated: bool,
    pub command_ms: u64,
    /// Up to the end of the command, without the release.
    pub total_ms: u64,
    /// With the release.
    pub end_to_end_ms: u64,
    pub exit_code: i32,
    pub run_status: RunStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<ErrorKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// They add up to `end_to_end_ms`.
    pub phases: Vec<Phase>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_command: Option<String>,
}

/// The words of the report for an end.
pub fn classify(ended: &Result<i32, Failure>) -> (RunStatus, Option<ErrorKind>) {
    match ended {
        Ok(0) => (RunStatus::Succeeded, None),
        Ok(_) => (RunStatus::Failed, Some(ErrorKind::CommandExit)),
        Err(failure) => match failure.code {
            Code::Canceled => (RunStatus::Canceled, Some(ErrorKind::Canceled)),
            Code::CommandExit => (RunStatus::Failed, Some(ErrorKind::CommandExit)),
            Code::Timeout => (RunStatus::TimedOut, Some(ErrorKind::Timeout)),
            _ => (RunStatus::Failed, Some(ErrorKind::ProviderError)),
        },
    }
}

/// Whole milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A duration for people: as Go prints it, rounded to milliseconds.
pub fn format_ms(duration: Duration) -> String {
    let rounded = duration.saturating_add(Duration::from_micros(500));
    format_duration(Duration::from_millis(millis(rounded)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn every_outcome_is_named_in_the_report() {
        let failed = |code| Err(Failure::new(code, "x"));
        for (ended, status, kind) in [
            (Ok(0), RunStatus::Succeeded, None),
            (Ok(7), RunStatus::Failed, Some(ErrorKind::CommandExit)),
            (
                failed(Code::Timeout),
                RunStatus::TimedOut,
                Some(ErrorKind::Timeout),
            ),
            (
                failed(Code::Canceled),
                RunStatus::Canceled,
                Some(ErrorKind::Canceled),
            ),
            (
                failed(Code::Provider),
                RunStatus::Failed,
                Some(ErrorKind::ProviderError),
            ),
        ] {
            assert_eq!(classify(&ended), (status, kind), "{ended:?}");
        }
    }

    #[test]
    fn phases_add_up_to_the_total() {
        let start = Instant::now();
        let mut timing = Timing::new(start);
        timing.start("create", start + ms(5));
        timing.start("command", start + ms(105));
        timing.stop(start + ms(305));
        timing.start("create", start + ms(310));
        timing.start("release", start + ms(320));
        let phase = |name: &str, ms| Phase {
            name: name.to_owned(),
            ms,
        };
        let now = start + ms(400);
        assert_eq!(timing.total(now), ms(400));
        assert_eq!(timing.of("create", now), ms(110));
        assert_eq!(timing.of("release", now), ms(80));
        assert_eq!(
            timing.phases(now),
            [
                phase("create", 110),
                phase("command", 200),
                phase("release", 80),
                phase("other", 10)
            ]
        );
    }

    #[test]
    fn the_report_has_the_contracts_keys_in_one_line() {
        let report = Report {
            provider: "p".to_owned(),
            lease_id: "l_1".to_owned(),
            slug: "blue-crab".to_owned(),
            run_id: "run_0123456789ab".to_owned(),
            sync_ms: 3,
            sync_phases: vec![
                SyncPhase {
                    name: "pack".to_owned(),
                    ms: Some(3),
                    ..SyncPhase::default()
                },
                SyncPhase {
                    name: "upload".to_owned(),
                    skipped: Some(true),
                    reason: Some("unchanged".to_owned()),
                    ..SyncPhase::default()
                },
            ],
            sync_skipped: false,
            sync_delegated: true,
            command_ms: 5,
            total_ms: 9,
            end_to_end_ms: 9,
            exit_code: 124,
            run_status: RunStatus::TimedOut,
            error_kind: Some(ErrorKind::Timeout),
            label: Some("a <b> & \"c\"\n".to_owned()),
            phases: vec![Phase {
                name: OTHER.to_owned(),
                ms: 9,
            }],
            workdir: None,
            stop_command: Some("crabbox stop blue-crab".to_owned()),
        };
        let line = serde_json::to_string(&report).unwrap();
        assert_eq!(
            line,
            r#"{"provider":"p","leaseId":"l_1","slug":"blue-crab","runId":"run_0123456789ab","syncMs":3,"syncPhases":[{"name":"pack","ms":3},{"name":"upload","skipped":true,"reason":"unchanged"}],"syncSkipped":false,"syncDelegated":true,"commandMs":5,"totalMs":9,"endToEndMs":9,"exitCode":124,"runStatus":"timed-out","errorKind":"timeout","label":"a <b> & \"c\"\n","phases":[{"name":"other","ms":9}],"stopCommand":"crabbox stop blue-crab"}"#
        );
        assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
    }

    #[test]
    fn every_status_and_kind_has_the_contracts_word() {
        let statuses = [
            RunStatus::Succeeded,
            RunStatus::Failed,
            RunStatus::TimedOut,
            RunStatus::Canceled,
        ];
        assert_eq!(
            serde_json::to_string(&statuses).unwrap(),
            r#"["succeeded","failed","timed-out","canceled"]"#
        );
        let kinds = [
            ErrorKind::CommandExit,
            ErrorKind::Timeout,
            ErrorKind::Canceled,
            ErrorKind::ProviderError,
        ];
        assert_eq!(
            serde_json::to_string(&kinds).unwrap(),
            r#"["command-exit","timeout","canceled","provider-error"]"#
        );
    }

    #[test]
    fn durations_for_people_are_rounded_to_milliseconds() {
        assert_eq!(format_ms(Duration::ZERO), "0s");
        assert_eq!(format_ms(Duration::from_micros(1_499)), "1ms");
        assert_eq!(format_ms(Duration::from_micros(1_500)), "2ms");
        assert_eq!(format_ms(ms(1_234)), "1.234s");
        assert_eq!(format_ms(ms(3_661_500)), "1h1m1.5s");
        assert_eq!(format_ms(Duration::from_secs(60)), "1m0s");
    }

    proptest! {
        #[test]
        fn any_phases_add_up(
            steps in proptest::collection::vec((0_u8..4, 0_u64..5_000_000), 0..20)
        ) {
            let start = Instant::now();
            let mut now = start;
            let mut timing = Timing::new(start);
            for (what, micros) in steps {
                match what {
                    0 => timing.stop(now),
                    1 => timing.start("a", now),
                    2 => timing.start("b", now),
                    _ => timing.start(OTHER, now),
                }
                now += Duration::from_micros(micros);
            }
            let sum: u64 = timing.phases(now).iter().map(|phase| phase.ms).sum();
            prop_assert_eq!(sum, millis(timing.total(now)));
        }
    }
}
