//! Whether what would be sent is too much.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::manifest::Manifest;
use crate::{Code, Failure};

const MOST_DIRS: usize = 5;

/// From how much on there is a warning, or no sync. 0 means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    pub warn_files: u64,
    pub warn_bytes: u64,
    pub fail_files: u64,
    pub fail_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            warn_files: 50_000,
            warn_bytes: 5 << 30,
            fail_files: 150_000,
            fail_bytes: 20 << 30,
        }
    }
}

/// Whether the user has said that more may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allow {
    UpToLimits,
    Large,
}

/// How much would be sent, and where most of it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub files: u64,
    pub bytes: u64,
    /// The directories with the most files, and how many.
    pub dirs: Vec<(String, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    Warning,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    Files,
    Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Reason {
    pub status: Status,
    pub metric: Metric,
    pub actual: u64,
    pub limit: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub status: Status,
    pub reasons: Vec<Reason>,
    /// For people, in this order. What makes the sync fail is not among them: see [`Verdict::failure`].
    pub lines: Vec<String>,
}

impl Candidate {
    pub fn of(manifest: &Manifest) -> Self {
        let mut dirs: BTreeMap<&[u8], u64> = BTreeMap::new();
        for entry in &manifest.entries {
            *dirs.entry(top_dir(entry.path.as_bytes())).or_default() += 1;
        }
        let mut dirs: Vec<_> = dirs.into_iter().collect();
        // Stable: equals stay in the order of their names.
        dirs.sort_by_key(|(_, files)| Reverse(*files));
        let shown = dirs.into_iter().take(MOST_DIRS);
        Self {
            files: manifest.entries.len() as u64,
            bytes: manifest.bytes,
            dirs: shown
                .map(|(dir, files)| (super::path::escaped(dir), files))
                .collect(),
        }
    }
}

/// Compares a candidate with the limits.
pub fn check(candidate: &Candidate, limits: &Limits, allow: Allow) -> Verdict {
    let reasons: Vec<Reason> = [
        reason(
            Metric::Files,
            candidate.files,
            limits.warn_files,
            limits.fail_files,
            allow,
        ),
        reason(
            Metric::Bytes,
            candidate.bytes,
            limits.warn_bytes,
            limits.fail_bytes,
            allow,
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    let failed = reasons.iter().any(|r| r.status == Status::Failed);
    let status = match (failed, reasons.is_empty()) {
        (true, _) => Status::Failed,
        (false, false) => Status::Warning,
        (false, true) => Status::Ok,
    };
    let size = human_bytes(candidate.bytes);
    let mut lines = vec![format!("sync candidate: {} files, {size}", candidate.files)];
    let warnings = reasons.iter().filter(|r| r.status == Status::Warning);
    lines.extend(warnings.map(|reason| {
        let (actual, limit) = reason.amounts();
        format!("warning: large sync candidate: {actual} >= warning threshold {limit}")
    }));
    if failed {
        let dirs = candidate.dirs.iter().take(MOST_DIRS);
        let dirs: Vec<String> = dirs.map(|(dir, files)| format!("{dir}:{files}")).collect();
        lines.push(format!("sync top dirs: {}", dirs.join(",")));
    }
    Verdict {
        status,
        reasons,
        lines,
    }
}

impl Verdict {
    /// The failure that ends the sync, where there is one. Its hint is for after the lines.
    pub fn failure(&self) -> Option<Failure> {
        let reason = self.reasons.iter().find(|r| r.status == Status::Failed)?;
        let (actual, limit) = reason.amounts();
        let message = format!(
            "sync candidate too large: {actual} >= limit {limit}; \
             use --force-sync-large or CRABBOX_SYNC_ALLOW_LARGE=1"
        );
        let hint = "run `crabbox sync-plan` to see what is large, and exclude it in .crabboxignore";
        Some(Failure::new(Code::Sync, message).hint(hint))
    }
}

impl Reason {
    fn amounts(&self) -> (String, String) {
        match self.metric {
            Metric::Files => (format!("{} files", self.actual), self.limit.to_string()),
            Metric::Bytes => (human_bytes(self.actual), human_bytes(self.limit)),
        }
    }
}

fn reason(metric: Metric, actual: u64, warn: u64, fail: u64, allow: Allow) -> Option<Reason> {
    let reaches = |limit: u64| limit > 0 && actual >= limit;
    let (status, limit) = if reaches(fail) && allow == Allow::UpToLimits {
        (Status::Failed, fail)
    } else if reaches(warn) {
        (Status::Warning, warn)
    } else {
        return None;
    };
    Some(Reason {
        status,
        metric,
        actual,
        limit,
    })
}

/// The directory that a path counts for: its own, cut after two components. `.` is the root.
pub(super) fn top_dir(path: &[u8]) -> &[u8] {
    let mut slashes = path
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'/')
        .map(|(at, _)| at);
    let end = match (slashes.next(), slashes.next()) {
        (_, Some(second)) => second,
        (Some(first), None) => first,
        (None, None) => return b".",
    };
    path.get(..end).unwrap_or(path)
}

/// With one decimal from a KiB on: `12 B`, `1.5 KiB`, `20.0 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    let (unit, shift) = match bytes {
        0..0x400 => return format!("{bytes} B"),
        0x400..0x10_0000 => ("KiB", 10),
        0x10_0000..0x4000_0000 => ("MiB", 20),
        0x4000_0000.. => ("GiB", 30),
    };
    // In tenths and in whole numbers: no sum of sizes is too large to be exact.
    let unit_size = 1_u128 << shift;
    let tenths = (u128::from(bytes) * 10 + unit_size / 2) / unit_size;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(files: u64, bytes: u64) -> Candidate {
        let dirs = [("a/b", 10), ("src", 3)];
        Candidate {
            files,
            bytes,
            dirs: dirs.map(|(dir, n)| (dir.to_owned(), n)).to_vec(),
        }
    }

    const LIMITS: Limits = Limits {
        warn_files: 10,
        warn_bytes: 1 << 20,
        fail_files: 100,
        fail_bytes: 1 << 30,
    };

    #[test]
    fn little_is_fine() {
        let verdict = check(&candidate(9, 512), &LIMITS, Allow::UpToLimits);
        assert_eq!(
            verdict,
            Verdict {
                status: Status::Ok,
                reasons: vec![],
                lines: vec!["sync candidate: 9 files, 512 B".to_owned()],
            }
        );
        assert_eq!(verdict.failure(), None);
    }

    #[test]
    fn much_is_warned_about() {
        let verdict = check(&candidate(10, 3 << 20), &LIMITS, Allow::UpToLimits);
        assert_eq!(verdict.status, Status::Warning);
        assert_eq!(
            verdict.lines,
            [
                "sync candidate: 10 files, 3.0 MiB",
                "warning: large sync candidate: 10 files >= warning threshold 10",
                "warning: large sync candidate: 3.0 MiB >= warning threshold 1.0 MiB",
            ]
        );
        assert_eq!(verdict.failure(), None);
    }

    #[test]
    fn too_much_fails() {
        let verdict = check(&candidate(100, 12), &LIMITS, Allow::UpToLimits);
        assert_eq!(
            verdict.lines,
            [
                "sync candidate: 100 files, 12 B",
                "sync top dirs: a/b:10,src:3"
            ]
        );
        assert_eq!(
            verdict.reasons,
            [Reason {
                status: Status::Failed,
                metric: Metric::Files,
                actual: 100,
                limit: 100,
            }]
        );
        let failure = verdict.failure().unwrap();
        assert_eq!(failure.code.exit_code(), 6);
        assert_eq!(
            failure.message,
            "sync candidate too large: 100 files >= limit 100; \
             use --force-sync-large or CRABBOX_SYNC_ALLOW_LARGE=1"
        );
        let bytes = check(&candidate(1, 1 << 30), &LIMITS, Allow::UpToLimits);
        assert_eq!(
            bytes.failure().unwrap().message,
            "sync candidate too large: 1.0 GiB >= limit 1.0 GiB; \
             use --force-sync-large or CRABBOX_SYNC_ALLOW_LARGE=1"
        );
    }

    #[test]
    fn large_syncs_are_allowed_on_request_and_zero_means_unlimited() {
        let verdict = check(&candidate(1000, 2 << 30), &LIMITS, Allow::Large);
        assert_eq!(verdict.status, Status::Warning);
        assert_eq!(verdict.failure(), None);
        let none = Limits {
            warn_files: 0,
            warn_bytes: 0,
            fail_files: 0,
            fail_bytes: 0,
        };
        let verdict = check(&candidate(u64::MAX, u64::MAX), &none, Allow::UpToLimits);
        assert_eq!(verdict.status, Status::Ok);
    }

    #[test]
    fn sizes_for_people() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (5 << 30, "5.0 GiB"),
            (2048 << 30, "2048.0 GiB"),
            (u64::MAX, "17179869184.0 GiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human_bytes(bytes), text);
        }
    }

    #[test]
    fn directories_have_two_components_at_most() {
        let cases = [
            ("a", "."),
            ("a/b", "a"),
            ("a/b/c", "a/b"),
            ("a/b/c/d", "a/b"),
        ];
        for (path, dir) in cases {
            assert_eq!(top_dir(path.as_bytes()), dir.as_bytes());
        }
    }
}
