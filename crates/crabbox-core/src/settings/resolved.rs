//! The values that hold, by section and key.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::core_table::PROVIDER;
use super::jobs::JobSpec;
use super::layers::Ignored;
use super::origin::Origin;
use super::presets::Preset;
use super::profiles::ProfileEnv;
use super::table::{Effect, Setting};
use super::value::Value;
use super::value_location::ValueLocation;

/// Everything that was decided. A section of `None` is the file's top level.
#[derive(Debug, Clone)]
pub struct Settings {
    pub(super) entries: Vec<Entry>,
    pub(super) profiles: BTreeMap<String, ProfileEnv>,
    pub(super) presets: BTreeMap<String, Preset>,
    /// By name.
    pub jobs: BTreeMap<String, JobSpec>,
    /// Keys that are known and have no effect here.
    pub ignored: Vec<Ignored>,
    /// What a repository says and was not heard, in words.
    pub left_out: Vec<String>,
}

/// One row with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub setting: &'static Setting,
    pub value: Value,
    pub origin: Origin,
    /// The weaker sources that a list comes from as well, the strongest of them first.
    pub also: Vec<Origin>,
    /// The place in the file that the origin names.
    pub(super) location: Option<ValueLocation>,
}

impl Settings {
    /// All rows, in the order of the tables.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn entry<'s>(&self, section: impl Into<Option<&'s str>>, key: &str) -> Option<&Entry> {
        let section = section.into();
        (self.entries.iter())
            .find(|entry| entry.setting.section == section && entry.setting.key == key)
    }

    /// What a source sets although the provider has no use for it. `archive_sync`: whether the repository is sent to it;
    /// `build_cache`: whether it keeps one.
    pub fn without_effect(&self, archive_sync: bool, build_cache: bool) -> Vec<&Entry> {
        let has_effect = |entry: &&Entry| match entry.setting.effect {
            Effect::AllProviders => true,
            Effect::ArchiveSync => archive_sync,
            Effect::BuildCache => build_cache,
            Effect::NoProvider => false,
        };
        let chosen = self.entries.iter().filter(|entry| entry.origin.is_choice());
        chosen.filter(|entry| !has_effect(entry)).collect()
    }

    /// `None` for a row that no table has.
    pub fn origin<'s>(&self, section: impl Into<Option<&'s str>>, key: &str) -> Option<&Origin> {
        self.entry(section, key).map(|entry| &entry.origin)
    }

    pub fn text<'s>(&self, section: impl Into<Option<&'s str>>, key: &str) -> &str {
        match self.value(section.into(), key) {
            Some(Value::Text(text)) => text,
            other => wrong_kind(key, other),
        }
    }

    pub fn list<'s>(&self, section: impl Into<Option<&'s str>>, key: &str) -> &[String] {
        match self.value(section.into(), key) {
            Some(Value::List(list)) => list,
            other => wrong_kind(key, other),
        }
    }

    pub fn count<'s>(&self, section: impl Into<Option<&'s str>>, key: &str) -> u64 {
        match self.value(section.into(), key) {
            Some(Value::Count(count)) => *count,
            other => wrong_kind(key, other),
        }
    }

    pub fn flag<'s>(&self, section: impl Into<Option<&'s str>>, key: &str) -> bool {
        match self.value(section.into(), key) {
            Some(Value::Bool(yes)) => *yes,
            other => wrong_kind(key, other),
        }
    }

    pub fn duration<'s>(&self, section: impl Into<Option<&'s str>>, key: &str) -> Duration {
        match self.value(section.into(), key) {
            Some(Value::Duration(duration)) => *duration,
            other => wrong_kind(key, other),
        }
    }

    pub fn profile_env(&self, name: &str) -> Option<&ProfileEnv> {
        self.profiles.get(name)
    }

    /// A preset of the profile, else one of the top level.
    pub fn preset(&self, profile: &str, name: &str) -> Option<&Preset> {
        let own = self.profiles.get(profile);
        own.and_then(|profile| profile.presets.get(name))
            .or_else(|| self.presets.get(name))
    }

    /// The names of the presets that can be had with a profile.
    pub fn preset_names(&self, profile: &str) -> Vec<&str> {
        let own = self
            .profiles
            .get(profile)
            .map(|profile| profile.presets.keys());
        let all: BTreeSet<_> = own
            .into_iter()
            .flatten()
            .chain(self.presets.keys())
            .collect();
        all.into_iter().map(String::as_str).collect()
    }

    /// The provider's name, in lower case.
    pub fn provider(&self) -> &str {
        self.text(None, PROVIDER)
    }

    fn value(&self, section: Option<&str>, key: &str) -> Option<&Value> {
        self.entry(section, key).map(|entry| &entry.value)
    }
}

/// The caller asks for a row that no table has, or for another kind than it is: a mistake in the program, which
/// every test that comes along here finds.
fn wrong_kind<T: Default>(key: &str, found: Option<&Value>) -> T {
    debug_assert!(false, "no such setting: {key}, found {found:?}");
    T::default()
}
