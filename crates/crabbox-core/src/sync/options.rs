//! How a sync is done: the settings of the section `sync`, as values.

use std::time::Duration;

use super::guard::{Allow, Limits};
use crate::provider::SyncMode;
use crate::settings::Settings;

const SECTION: &str = "sync";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub exclude: Vec<String>,
    pub include: Vec<String>,
    pub limits: Limits,
    pub allow: Allow,
    /// `sync.delete`.
    pub mode: SyncMode,
    /// Whether a sync that would change nothing is skipped.
    pub fingerprint: bool,
    /// Whether everything is sent, whatever the sandbox has: `--full-resync`.
    pub full: bool,
    /// For packing and transfer together; `None` means unlimited.
    pub timeout: Option<Duration>,
}

impl Options {
    pub fn from(settings: &Settings) -> Self {
        let count = |key| settings.count(SECTION, key);
        let timeout = settings.duration(SECTION, "timeout");
        Self {
            exclude: settings.list(SECTION, "exclude").to_vec(),
            include: settings.list(SECTION, "include").to_vec(),
            limits: Limits {
                warn_files: count("warnFiles"),
                warn_bytes: count("warnBytes"),
                fail_files: count("failFiles"),
                fail_bytes: count("failBytes"),
            },
            allow: match settings.flag(SECTION, "allowLarge") {
                true => Allow::Large,
                false => Allow::UpToLimits,
            },
            mode: match settings.flag(SECTION, "delete") {
                true => SyncMode::Replace,
                false => SyncMode::Merge,
            },
            fingerprint: settings.flag(SECTION, "fingerprint"),
            full: false,
            timeout: Some(timeout).filter(|timeout| !timeout.is_zero()),
        }
    }
}
