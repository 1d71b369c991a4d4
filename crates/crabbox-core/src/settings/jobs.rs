//! `jobs.<name>`: flows of warmup, run and stop that have a name.
//!
//! What a job of a repository says about settings is held to the same limits as the settings themselves: the job only says
//! it later. Whether it may is decided when the files are read, and told when the job is run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::core_table::FOREIGN_JOB_KEYS;
use super::layers::{Catalogue, mapping};
use super::presets::{asks, boolean, text};
use super::source::{Position, Show, Source, printable};
use super::suggest::nearest;
use super::table::Setting;
use super::value::{self, Value};
use super::yaml::{Key, Node};
use crate::failure::Failure;

/// A named flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    pub command: String,
    /// Whether the command is a script.
    pub shell: bool,
    pub label: Option<String>,
    pub no_sync: bool,
    pub sync_only: bool,
    pub force_sync_large: bool,
    pub stop: StopPolicy,
    /// Settings that hold for this job: the flag and its value.
    pub flags: Vec<(&'static str, String)>,
    /// Keys that mean something to other providers only.
    pub unsupported: Vec<String>,
    /// What the repository may not say.
    pub refused: Vec<String>,
    pub file: PathBuf,
    pub line: u64,
    pub(super) assigned: Vec<(&'static Setting, Value, Position)>,
}

/// When the lease of a job is stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StopPolicy {
    /// If the job made it.
    #[default]
    Auto,
    Always,
    Success,
    Failure,
    Never,
}

const POLICIES: [(&str, StopPolicy); 5] = [
    ("auto", StopPolicy::Auto),
    ("always", StopPolicy::Always),
    ("success", StopPolicy::Success),
    ("failure", StopPolicy::Failure),
    ("never", StopPolicy::Never),
];

const KEYS: [&str; 12] = [
    "command",
    "shell",
    "label",
    "noSync",
    "syncOnly",
    "forceSyncLarge",
    "stop",
    "provider",
    "target",
    "profile",
    "ttl",
    "idleTimeout",
];

impl StopPolicy {
    pub fn parse(text: &str) -> Option<Self> {
        let known = POLICIES.iter().find(|(name, _)| *name == text);
        known.map(|(_, policy)| *policy)
    }

    pub fn as_str(self) -> &'static str {
        let known = POLICIES.iter().find(|(_, policy)| *policy == self);
        known.map_or("auto", |(name, _)| name)
    }

    /// Whether the lease goes. `own`: the job made it.
    pub fn stops(self, own: bool, succeeded: bool) -> bool {
        match self {
            Self::Auto => own,
            Self::Always => true,
            Self::Success => succeeded,
            Self::Failure => !succeeded,
            Self::Never => false,
        }
    }

    /// Its words, for messages.
    pub fn all() -> String {
        POLICIES.map(|(name, _)| name).join(", ")
    }
}

/// Reads the mapping under `jobs`.
pub(super) fn read(
    catalogue: &Catalogue<'_>,
    source: &Source<'_>,
    node: &Node,
) -> Result<BTreeMap<String, JobSpec>, Failure> {
    let mut jobs = BTreeMap::new();
    for (name, body) in mapping(source, "jobs", node)? {
        let path = format!("jobs.{}", name.name);
        let mut job = JobSpec {
            command: String::new(),
            shell: false,
            label: None,
            no_sync: false,
            sync_only: false,
            force_sync_large: false,
            stop: StopPolicy::default(),
            flags: Vec::new(),
            unsupported: Vec::new(),
            refused: Vec::new(),
            file: source.path.to_path_buf(),
            line: name.at.line,
            assigned: Vec::new(),
        };
        for (key, value) in mapping(source, &path, body)? {
            read_key(catalogue, source, &path, (key, value), &mut job)?;
        }
        if job.command.trim().is_empty() && !job.sync_only {
            let what = format!("`{}` needs a `command`", printable(&path));
            return Err(source.failure(name.at, Show::Line, &what));
        }
        jobs.insert(name.name.clone(), job);
    }
    Ok(jobs)
}

fn read_key(
    catalogue: &Catalogue<'_>,
    source: &Source<'_>,
    job_path: &str,
    (key, node): (&Key, &Node),
    job: &mut JobSpec,
) -> Result<(), Failure> {
    let path = format!("{job_path}.{}", key.name);
    match key.name.as_str() {
        "command" => job.command = text(source, &path, node)?,
        "label" => job.label = Some(text(source, &path, node)?).filter(|label| !label.is_empty()),
        "shell" => job.shell = boolean(source, &path, node)?,
        "noSync" => job.no_sync = boolean(source, &path, node)?,
        "syncOnly" => job.sync_only = boolean(source, &path, node)?,
        "forceSyncLarge" => job.force_sync_large = boolean(source, &path, node)?,
        "stop" => {
            let word = text(source, &path, node)?;
            job.stop = StopPolicy::parse(&word).ok_or_else(|| {
                let (path, all) = (printable(&path), StopPolicy::all());
                let what = format!("invalid `{path}`, expected one of {all}");
                source.failure(node.at, Show::Line, &what)
            })?;
        }
        name if FOREIGN_JOB_KEYS.contains(&name) => {
            job.unsupported.extend(asks(node).then(|| name.to_owned()));
        }
        name if KEYS.contains(&name) => setting(catalogue, source, &path, (key, node), job)?,
        name => {
            let known = KEYS.into_iter().chain(FOREIGN_JOB_KEYS);
            return Err(source.unknown_key(key.at, &path, nearest(name, known)));
        }
    }
    Ok(())
}

/// One that is a setting of its own at the top level.
fn setting(
    catalogue: &Catalogue<'_>,
    source: &Source<'_>,
    path: &str,
    (key, node): (&Key, &Node),
    job: &mut JobSpec,
) -> Result<(), Failure> {
    let row = catalogue.core.iter().find(|row| row.answers_to(&key.name));
    let Some((row, flag)) = row.and_then(|row| Some((row, row.flag?))) else {
        return Err(source.unknown_key(key.at, path, None));
    };
    let word = text(source, path, node)?;
    let read = value::scalar(row.kind, &word).map_err(|problem| {
        source.failure(node.at, Show::Line, &problem.about(&format!("`{path}`")))
    })?;
    if let Some(value) = read {
        job.flags.push((flag, value.to_text()));
        job.assigned.push((row, value, key.at));
    }
    Ok(())
}
