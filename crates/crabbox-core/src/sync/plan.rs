//! What a sync would send, for `sync-plan`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::guard::{self, Allow, Candidate, Limits, Reason, Status, human_bytes, top_dir};
use super::manifest::{Entry, Manifest};
use super::path::escaped;
use super::status::parse_status;
use crate::git::Repository;
use crate::{Code, Failure};

const MOST_EXAMPLES: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub candidate: Amount,
    /// What is changed, untracked or deleted.
    pub dirty_delta: Amount,
    pub deleted_tracked_paths: u64,
    pub protected_tracked_files: ProtectedFiles,
    pub guardrail: Guardrail,
    pub top_files: Vec<Size>,
    pub top_dirs: Vec<Size>,
    #[serde(skip)]
    lines: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Amount {
    pub files: u64,
    pub bytes: u64,
    pub human_bytes: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProtectedFiles {
    pub count: u64,
    pub examples: Vec<Example>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Example {
    pub path: String,
    pub pattern: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Guardrail {
    /// Always `candidate`: an archive holds everything, however little has changed.
    pub scope: &'static str,
    #[serde(flatten)]
    pub amount: Amount,
    pub limits: Limits,
    pub allow_large: bool,
    pub status: Status,
    pub reasons: Vec<Reason>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Size {
    pub path: String,
    pub bytes: u64,
    pub human_bytes: String,
}

/// How much of a manifest differs from HEAD. Without a repository everything does. Two git processes.
pub fn dirty_delta(
    manifest: &Manifest,
    repository: Option<&Repository>,
) -> Result<Amount, Failure> {
    let Some(repository) = repository else {
        return Ok(Amount::of(manifest.entries.iter()));
    };
    let status = repository.status()?;
    let changed = parse_status(&status).ok_or_else(|| {
        let message = "cannot parse git's list of differences from HEAD";
        Failure::new(Code::Sync, message)
    })?;
    let is_dirty = |entry: &&Entry| !entry.tracked || changed.contains(entry.path.as_bytes());
    let mut delta = Amount::of(manifest.entries.iter().filter(is_dirty));
    delta.files += manifest.deleted.len() as u64;
    Ok(delta)
}

impl Plan {
    /// Puts together what is known. At most `top` files and directories are named. The manifest's own warnings are the
    /// caller's to show.
    pub fn new(
        manifest: &Manifest,
        dirty_delta: Amount,
        limits: Limits,
        allow: Allow,
        top: usize,
    ) -> Self {
        let verdict = guard::check(&Candidate::of(manifest), &limits, allow);
        let candidate = Amount::of(manifest.entries.iter());
        let files = manifest.entries.iter();
        let files = files.map(|entry| (entry.path.as_bytes(), entry.size));
        let mut dirs: BTreeMap<&[u8], u64> = BTreeMap::new();
        for entry in &manifest.entries {
            *dirs.entry(top_dir(entry.path.as_bytes())).or_default() += entry.size;
        }
        let examples = manifest.protected.iter().take(MOST_EXAMPLES);
        let mut lines = verdict.lines.clone();
        lines.extend(verdict.failure().map(|failure| failure.to_string()));
        Self {
            guardrail: Guardrail {
                scope: "candidate",
                amount: candidate.clone(),
                limits,
                allow_large: allow == Allow::Large,
                status: verdict.status,
                reasons: verdict.reasons,
            },
            candidate,
            dirty_delta,
            deleted_tracked_paths: manifest.deleted.len() as u64,
            protected_tracked_files: ProtectedFiles {
                count: manifest.protected.len() as u64,
                examples: examples
                    .map(|file| Example {
                        path: file.path.to_text(),
                        pattern: file.pattern.clone(),
                    })
                    .collect(),
            },
            top_files: largest(files, top),
            top_dirs: largest(dirs, top),
            lines,
        }
    }

    /// For people, with a newline at the end.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for line in self.lines.iter().take(1) {
            text.push_str(line);
            text.push('\n');
        }
        let delta = &self.dirty_delta;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "dirty delta: {} files, {}",
            delta.files, delta.human_bytes
        );
        if self.deleted_tracked_paths > 0 {
            let _ = writeln!(
                text,
                "deleted tracked paths: {}",
                self.deleted_tracked_paths
            );
        }
        for line in self.lines.iter().skip(1) {
            text.push_str(line);
            text.push('\n');
        }
        for (title, sizes) in [("top files", &self.top_files), ("top dirs", &self.top_dirs)] {
            let _ = writeln!(text, "{title}:");
            for size in sizes {
                let path = escaped(size.path.as_bytes());
                let _ = writeln!(text, "  {:<10} {path}", size.human_bytes);
            }
        }
        text
    }
}

impl Amount {
    fn of<'m>(entries: impl Iterator<Item = &'m Entry>) -> Self {
        let (files, bytes) = entries.fold((0_u64, 0_u64), |(files, bytes), entry| {
            (files + 1, bytes.saturating_add(entry.size))
        });
        Self {
            files,
            bytes,
            human_bytes: human_bytes(bytes),
        }
    }
}

/// The largest first, equals by name.
fn largest<'a>(sizes: impl IntoIterator<Item = (&'a [u8], u64)>, top: usize) -> Vec<Size> {
    let mut sizes: Vec<(&[u8], u64)> = sizes.into_iter().collect();
    sizes.sort_by_key(|(path, bytes)| (Reverse(*bytes), *path));
    let shown = sizes.into_iter().take(top);
    shown
        .map(|(path, bytes)| Size {
            path: String::from_utf8_lossy(path).into_owned(),
            bytes,
            human_bytes: human_bytes(bytes),
        })
        .collect()
}
