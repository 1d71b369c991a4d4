//! Timings of runs, kept to be compared: one line of JSON per run, and what a report says about them.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::claims::hex;
use crate::timing::{Report, RunStatus};
use crate::{Code, Failure};

const SCHEMA_VERSION: u32 = 1;
const FILE: &str = "timings.jsonl";

/// One line of the ledger. The keys are a contract with the original.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    pub schema_version: u32,
    pub recorded_at: Timestamp,
    pub source: String,
    pub benchmark: Subject,
    pub timing: Report,
}

/// What was timed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    pub command_fingerprint: String,
    pub command_display: String,
    pub repo_fingerprint: String,
    pub repo_name: String,
    pub repo_head: String,
    pub provider_family: String,
    pub provider_kind: String,
    pub provider_category: String,
    /// Whether the run made its own sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_run: Option<bool>,
}

impl Observation {
    pub fn of_run(recorded_at: Timestamp, benchmark: Subject, timing: Report) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            recorded_at,
            source: "run".to_owned(),
            benchmark,
            timing,
        }
    }
}

/// `sha256:` and the hash of the words as JSON.
pub fn command_fingerprint(words: &[String]) -> String {
    // Texts alone: nothing of it cannot be written.
    fingerprint(&serde_json::to_vec(words).unwrap_or_default())
}

pub fn fingerprint(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

/// Where observations are written by default.
pub fn default_ledger(state: &Path) -> PathBuf {
    state.join(FILE)
}

/// A ledger that is open for one more line, so that what is wrong with it is known before a run.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
}

impl Ledger {
    /// That of a state directory, which may not exist yet.
    pub fn open_default(state: &Path) -> Result<Self, Failure> {
        // What is wrong with the directory is wrong with the file.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(state);
        Self::open(&default_ledger(state))
    }

    pub fn open(path: &Path) -> Result<Self, Failure> {
        let opened = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path);
        let file = opened.map_err(|error| {
            let message = format!("cannot write --timing-record `{}`", path.display());
            Failure::usage(message).because(&error)
        })?;
        let path = path.to_path_buf();
        Ok(Self { path, file })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// In one write at the end of the file, which no other writer can divide.
    pub fn append(mut self, observation: &Observation) -> Result<(), Failure> {
        let failed = |error: &dyn std::error::Error| {
            let message = format!("cannot write --timing-record `{}`", self.path.display());
            Failure::new(Code::State, message).because(error)
        };
        let mut line = serde_json::to_vec(observation).map_err(|error| failed(&error))?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(|error| failed(&error))
    }
}

/// What the observations of one command on one provider come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    pub provider: String,
    pub command: String,
    pub command_fingerprint: String,
    /// Runs that succeeded: only they are counted.
    pub samples: usize,
    pub failed: usize,
    pub total_ms: Spread,
    pub command_ms: Spread,
    pub insufficient_evidence: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    pub median: u64,
    pub p95: u64,
}

impl Spread {
    /// By nearest rank: every number is one that was measured.
    fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let rank = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1);
            values.get(rank - 1).copied().unwrap_or_default()
        };
        Self {
            median: rank(50),
            p95: rank(95),
        }
    }
}

/// The observations of a ledger, and how many lines are none.
pub fn parse(text: &str) -> (Vec<Observation>, usize) {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let mut unread = 0;
    let read = lines.filter_map(|line| {
        let read: Result<Observation, _> = serde_json::from_str(line);
        match read {
            Ok(observation) if observation.schema_version == SCHEMA_VERSION => Some(observation),
            Ok(_) | Err(_) => {
                unread += 1;
                None
            }
        }
    });
    let read = read.collect();
    (read, unread)
}

/// By provider and command, in this order. Fewer than `min_samples` prove nothing.
pub fn report(observations: &[Observation], min_samples: usize) -> Vec<Group> {
    let mut groups: BTreeMap<(&str, &str), Vec<&Observation>> = BTreeMap::new();
    for one in observations {
        let key = (
            one.timing.provider.as_str(),
            one.benchmark.command_fingerprint.as_str(),
        );
        groups.entry(key).or_default().push(one);
    }
    let mut report: Vec<_> = (groups.into_iter())
        .map(|((provider, fingerprint), all)| {
            let good = || {
                let good = all.iter().map(|one| &one.timing);
                good.filter(|timing| timing.run_status == RunStatus::Succeeded)
            };
            let samples = good().count();
            Group {
                provider: provider.to_owned(),
                command: (all.last())
                    .map_or_else(String::new, |one| one.benchmark.command_display.clone()),
                command_fingerprint: fingerprint.to_owned(),
                samples,
                failed: all.len() - samples,
                total_ms: Spread::of(good().map(|timing| timing.total_ms).collect()),
                command_ms: Spread::of(good().map(|timing| timing.command_ms).collect()),
                insufficient_evidence: samples < min_samples,
            }
        })
        .collect();
    report.sort_by(|a, b| (&a.provider, &a.command).cmp(&(&b.provider, &b.command)));
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(provider: &str, command: &str, ms: u64, status: &str) -> Observation {
        let report = format!(
            r#"{{"provider":"{provider}","leaseId":"l","slug":"s","runId":"r","syncMs":0,"syncPhases":[],"syncSkipped":true,"syncDelegated":true,"commandMs":{ms},"totalMs":{},"endToEndMs":0,"exitCode":0,"runStatus":"{status}","phases":[]}}"#,
            ms * 2
        );
        let subject = Subject {
            command_fingerprint: command_fingerprint(&[command.to_owned()]),
            command_display: command.to_owned(),
            repo_fingerprint: String::new(),
            repo_name: String::new(),
            repo_head: String::new(),
            provider_family: String::new(),
            provider_kind: String::new(),
            provider_category: String::new(),
            cold_run: None,
        };
        let timing = serde_json::from_str(&report).unwrap();
        Observation::of_run(Timestamp::UNIX_EPOCH, subject, timing)
    }

    #[test]
    fn a_report_groups_by_provider_and_command_and_counts_successes() {
        let mut all: Vec<_> = (1..=20)
            .map(|ms| observed("p", "test", ms, "succeeded"))
            .collect();
        all.push(observed("p", "test", 999, "failed"));
        all.push(observed("p", "build", 7, "succeeded"));
        all.push(observed("o", "test", 7, "failed"));
        let report = report(&all, 2);
        let shown: Vec<_> = (report.iter())
            .map(|group| {
                let Group {
                    provider,
                    command,
                    samples,
                    failed,
                    ..
                } = group;
                let (total, ms) = (group.total_ms, group.command_ms);
                format!(
                    "{provider} {command} {samples} {failed} {}/{} {}/{} {}",
                    total.median, total.p95, ms.median, ms.p95, group.insufficient_evidence
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                "o test 0 1 0/0 0/0 true",
                "p build 1 0 14/14 7/7 true",
                "p test 20 1 20/38 10/19 false",
            ]
        );
    }

    #[test]
    fn a_ledger_grows_by_lines_and_survives_a_damaged_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = default_ledger(dir.path());
        let one = observed("p", "test", 1, "succeeded");
        Ledger::open(&path).unwrap().append(&one).unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{ half a line\n").unwrap();
        Ledger::open(&path).unwrap().append(&one).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(parse(&text), (vec![one.clone(), one], 1));
        assert_eq!(
            command_fingerprint(&["a".to_owned(), "b".to_owned()]),
            "sha256:0473ef2dc0d324ab659d3580c1134e9d812035905c4781fdd6d529b0c6860e13"
        );
        assert_eq!(Ledger::open(dir.path()).unwrap_err().code, Code::Usage);
    }
}
