//! All sources together: flags, then variables, then the repository's files, then the user's file, then defaults.
//!
//! Every value keeps its origin. The repository's files are untrusted: what they assign is checked against what the user
//! says by the other sources, before anything is resolved, unless the file is trusted at its present hash.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::core_table::{PROVIDER, TARGET};
use super::env_and_flags::{self, EnvAndFlags};
use super::layers::{Assigned, Catalogue, FileLayer};
use super::origin::Origin;
use super::profiles::ProfileEnv;
use super::repository_limits::{User, UserValue, not_covered, refusal};
use super::resolved::{Entry, Settings};
use super::source::{SourceFile, printable};
use super::table::{Kind, Merge, ProviderTable, Setting, Trust};
use super::trust::TrustStore;
use super::value::{self, Value};
use super::yaml;
use crate::failure::{Code, Failure};

/// Everything that a setting can come from.
#[derive(Debug, Clone)]
pub struct Sources<'a> {
    /// The user's file, or that of `CRABBOX_CONFIG` if it is the user's word.
    pub user: Option<&'a SourceFile>,
    /// The repository's files, weakest first.
    pub repository: &'a [SourceFile],
    pub environment: &'a BTreeMap<String, String>,
    /// In the order of the command line.
    pub flags: &'a [FlagValue],
    pub trust: &'a TrustStore,
    /// The provider when none is chosen.
    pub default_provider: &'a str,
    /// Providers that the user has set up in a way that is not in the tables, such as a credential.
    pub configured: &'a [String],
    /// Sections of files that are known and have no table.
    pub foreign_sections: &'a [&'a str],
    pub untrusted: Untrusted,
    /// The values of `target` that can be had.
    pub targets: &'a [&'a str],
}

/// What becomes of what a repository may not set, and of its files that cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untrusted {
    /// An error: what the user asks for would not be what the repository expects.
    Refuse,
    /// Left out and told, for commands that only look or put away: a checkout must not prevent them.
    LeaveOut,
}

/// One flag as it was given. A flag that can be repeated comes several times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagValue {
    /// With or without dashes.
    pub flag: String,
    pub value: String,
}

/// What holds, and where each of it came from.
pub fn load(
    core: &'static [Setting],
    providers: &[ProviderTable],
    sources: &Sources<'_>,
) -> Result<Settings, Failure> {
    let catalogue = Catalogue {
        core,
        providers,
        foreign_sections: sources.foreign_sections,
    };
    let mut left_out = Vec::new();
    let mut repository = Vec::new();
    for file in sources.repository {
        match (read(&catalogue, file), sources.untrusted) {
            (Ok(layer), _) => repository.push(layer),
            (Err(failure), Untrusted::Refuse) => return Err(failure),
            (Err(failure), Untrusted::LeaveOut) => left_out.push(failure.to_string()),
        }
    }
    let mut layers = Layers {
        user: (sources.user.map(|file| read(&catalogue, file))).transpose()?,
        repository,
        env_and_flags: env_and_flags::read(&catalogue, sources)?,
    };
    // All layers are read before the trust is decided: what a repository may set can depend on the user's own values.
    let refused = refused(&catalogue, sources, &layers)?;
    match sources.untrusted {
        Untrusted::Refuse => refuse(refused)?,
        Untrusted::LeaveOut => {
            let unsupported = unsupported(sources, &layers);
            for one in refused.into_iter().chain(unsupported) {
                layers.leave_out(&one);
                left_out.push(one.message);
            }
        }
    }
    refuse_in_jobs(&catalogue, sources, &mut layers)?;
    let entries = (catalogue.settings())
        .map(|setting| resolve(setting, sources, &layers))
        .collect::<Result<_, _>>()?;
    Ok(layers.finish(entries, left_out))
}

/// Whether a file could be loaded at all, trusted or not.
pub fn check_file(
    core: &'static [Setting],
    providers: &[ProviderTable],
    foreign_sections: &[&str],
    file: &SourceFile,
) -> Result<(), Failure> {
    let catalogue = Catalogue {
        core,
        providers,
        foreign_sections,
    };
    read(&catalogue, file).map(drop)
}

#[derive(Debug)]
struct Layers<'a> {
    user: Option<Layer<'a>>,
    repository: Vec<Layer<'a>>,
    env_and_flags: EnvAndFlags,
}

#[derive(Debug)]
struct Layer<'a> {
    file: &'a SourceFile,
    content: FileLayer,
}

fn read<'a>(catalogue: &Catalogue<'_>, file: &'a SourceFile) -> Result<Layer<'a>, Failure> {
    let document = yaml::parse(file)?;
    let content = catalogue.read(&document)?;
    Ok(Layer { file, content })
}

impl Layer<'_> {
    fn find(&self, setting: &Setting) -> Option<&Assigned> {
        (self.content.assigned.iter()).find(|assigned| assigned.setting == setting)
    }
}

fn default_of(setting: &Setting, sources: &Sources<'_>) -> Result<Value, Failure> {
    let text = match (setting.section, setting.key) {
        (None, PROVIDER) => sources.default_provider,
        (None | Some(_), _) => setting.default,
    };
    value::default(setting.kind, text).map_err(|problem| {
        let name = format!("the default of `{}`", setting.path());
        Failure::new(Code::Config, problem.about(&name))
    })
}

fn resolve(
    setting: &'static Setting,
    sources: &Sources<'_>,
    layers: &Layers<'_>,
) -> Result<Entry, Failure> {
    let mut entry = Entry {
        setting,
        value: default_of(setting, sources)?,
        origin: Origin::Default,
        also: Vec::new(),
        location: None,
    };
    if let Some(layer) = &layers.user {
        entry.put(layer, |path, line| Origin::User { path, line });
    }
    for layer in &layers.repository {
        entry.put(layer, |path, line| Origin::Repository { path, line });
    }
    // Weakest first, so the last one that says something wins. A variable or flag replaces a list, files add to it.
    for (value, origin) in layers.env_and_flags.of(setting) {
        entry.value = value.clone();
        entry.origin = origin.clone();
        entry.also.clear();
    }
    Ok(entry)
}

impl Entry {
    /// Puts a file on top of what weaker sources say.
    fn put(&mut self, layer: &Layer<'_>, origin: impl Fn(PathBuf, u64) -> Origin) {
        let Some(assigned) = layer.find(self.setting) else {
            return;
        };
        let weaker = std::mem::replace(
            &mut self.origin,
            origin(layer.file.path.clone(), assigned.at.line),
        );
        let adds = matches!(
            self.setting.kind,
            Kind::List(Merge::Append | Merge::AppendUnique)
        );
        // A list has several origins: `config show` names all of them, the strongest first.
        if adds && !self.value.to_text().is_empty() {
            self.also.insert(0, weaker);
        }
        self.location = Some(assigned.location.clone());
        match (self.setting.kind, &mut self.value, &assigned.value) {
            (Kind::List(Merge::Append), Value::List(list), Value::List(more)) => {
                list.extend(more.iter().cloned());
            }
            (Kind::List(Merge::AppendUnique), Value::List(list), Value::List(more)) => {
                for entry in more {
                    if !list.contains(entry) {
                        list.push(entry.clone());
                    }
                }
            }
            (_, value, new) => *value = new.clone(),
        }
    }
}

/// Something that the repository may not set.
#[derive(Debug)]
struct Refused {
    /// Which of the repository's files.
    layer: usize,
    what: Which,
    message: String,
}

#[derive(Debug)]
enum Which {
    Setting(&'static Setting),
    /// The list of the profile of this name.
    Profile(String),
}

/// Everything that the repository may not set.
fn refused(
    catalogue: &Catalogue<'_>,
    sources: &Sources<'_>,
    layers: &Layers<'_>,
) -> Result<Vec<Refused>, Failure> {
    let user = User {
        providers: configured(catalogue, sources, layers),
        profiles: layers.user.as_ref().map(|layer| &layer.content.profiles),
    };
    let mut refused = Vec::new();
    for (number, layer) in layers.repository.iter().enumerate() {
        let file = layer.file;
        let trusted = sources.trust.trusts(&file.canonical, &file.bytes);
        let may_be_refused =
            |setting: &Setting| !trusted || setting.trust == Trust::NeverRepository;
        for assigned in &layer.content.assigned {
            if !may_be_refused(assigned.setting) {
                continue;
            }
            let own = layers.own(assigned.setting, sources)?;
            if let Some(why) = refusal(assigned.setting, &assigned.value, &own, &user) {
                let key = assigned.setting.path();
                refused.push(Refused {
                    layer: number,
                    what: Which::Setting(assigned.setting),
                    message: refused_key(&file.path, assigned.at.line, &key, &why),
                });
            }
        }
        if trusted {
            continue;
        }
        for (name, message) in refused_profiles(catalogue, sources, layers, layer)? {
            refused.push(Refused {
                layer: number,
                what: Which::Profile(name),
                message,
            });
        }
    }
    Ok(refused)
}

/// What the repository's jobs may not say. A job is refused when it is run, and hinders nothing else.
fn refuse_in_jobs(
    catalogue: &Catalogue<'_>,
    sources: &Sources<'_>,
    layers: &mut Layers<'_>,
) -> Result<(), Failure> {
    let user = User {
        providers: configured(catalogue, sources, layers),
        profiles: layers.user.as_ref().map(|layer| &layer.content.profiles),
    };
    let mut refused = Vec::new();
    for (number, layer) in layers.repository.iter().enumerate() {
        let file = layer.file;
        if sources.trust.trusts(&file.canonical, &file.bytes) {
            continue;
        }
        for (name, job) in &layer.content.jobs {
            for (setting, value, at) in &job.assigned {
                let own = layers.own(setting, sources)?;
                if let Some(why) = refusal(setting, value, &own, &user) {
                    let key = format!("jobs.{}.{}", printable(name), setting.key);
                    let message = refused_key(&file.path, at.line, &key, &why);
                    refused.push((number, name.clone(), message));
                }
            }
        }
    }
    for (number, name, message) in refused {
        let layer = layers.repository.get_mut(number);
        let job = layer.and_then(|layer| layer.content.jobs.get_mut(&name));
        if let Some(job) = job {
            job.refused.push(message);
        }
    }
    Ok(())
}

/// Values that no provider supports, and that would keep the user from every lease here.
fn unsupported(sources: &Sources<'_>, layers: &Layers<'_>) -> Vec<Refused> {
    let mut unsupported = Vec::new();
    for (number, layer) in layers.repository.iter().enumerate() {
        for assigned in &layer.content.assigned {
            let wanted = assigned.value.to_text();
            if !assigned.setting.answers_to(TARGET) || sources.targets.contains(&wanted.as_str()) {
                continue;
            }
            let (path, line) = (layer.file.path.display(), assigned.at.line);
            let (wanted, known) = (printable(&wanted), sources.targets.join(", "));
            unsupported.push(Refused {
                layer: number,
                what: Which::Setting(assigned.setting),
                message: format!(
                    "config {path}:{line}: unsupported `{TARGET}` `{wanted}`, expected {known}"
                ),
            });
        }
    }
    unsupported
}

/// All of it at once.
fn refuse(refused: Vec<Refused>) -> Result<(), Failure> {
    let for_good = |one: &Refused| match &one.what {
        Which::Setting(setting) => setting.trust == Trust::NeverRepository,
        Which::Profile(_) => false,
    };
    let hint = match refused.iter().find(|one| for_good(one)) {
        Some(_) => {
            "remove the key from the file; set it in your own (`crabbox config path`) if you want it"
        }
        None => "review the file, then accept it with `crabbox trust`",
    };
    let mut refused = refused.into_iter().map(|one| one.message);
    let Some(first) = refused.next() else {
        return Ok(());
    };
    let mut failure = Failure::new(Code::Untrusted, first).hint(hint);
    failure.also = refused.collect();
    Err(failure)
}

/// A profile's list is `env.allow` by another name.
fn refused_profiles(
    catalogue: &Catalogue<'_>,
    sources: &Sources<'_>,
    layers: &Layers<'_>,
    layer: &Layer<'_>,
) -> Result<Vec<(String, String)>, Failure> {
    let row = (catalogue.core.iter()).find(|setting| setting.answers_to("env.allow"));
    let own = (row.map(|row| layers.own(row, sources))).transpose()?;
    let mut refused = Vec::new();
    for (name, profile) in &layer.content.profiles {
        let Some(allow) = &profile.allow else {
            continue;
        };
        let mut lists = own.as_ref().map(UserValue::lists).unwrap_or_default();
        let mine = (layers.user.as_ref()).and_then(|user| user.content.profiles.get(name));
        if let Some(mine) = mine.and_then(|profile| profile.allow.as_ref()) {
            lists.push(&mine.names);
        }
        if let Some(why) = not_covered(&allow.names, &lists) {
            let key = format!("profiles.{}.envAllow", printable(name));
            let message = refused_key(&layer.file.path, allow.at.line, &key, &why);
            refused.push((name.clone(), message));
        }
    }
    Ok(refused)
}

fn refused_key(path: &Path, line: u64, key: &str, why: &str) -> String {
    let path = path.display();
    format!("config {path}:{line}: a repository may not set `{key}`: {why}")
}

/// The providers that the user has named or told something.
fn configured(
    catalogue: &Catalogue<'_>,
    sources: &Sources<'_>,
    layers: &Layers<'_>,
) -> BTreeSet<String> {
    let mut names: BTreeSet<_> = sources.configured.iter().cloned().collect();
    names.insert(sources.default_provider.to_owned());
    let own = |setting: &'static Setting| {
        let file = layers.user.as_ref().and_then(|layer| layer.find(setting));
        let file = file.map(|assigned| &assigned.value);
        let outside = layers.env_and_flags.of(setting).map(|(value, _)| value);
        file.into_iter().chain(outside)
    };
    if let Some(row) = catalogue.core.iter().find(|row| row.answers_to(PROVIDER)) {
        names.extend(own(row).map(Value::to_text));
    }
    for table in catalogue.providers {
        if table.settings.iter().any(|row| own(row).next().is_some()) {
            names.insert(table.name.to_owned());
        }
    }
    names
}

impl Layers<'_> {
    /// What the user says about `setting`, the repository's files left out.
    fn own(&self, setting: &Setting, sources: &Sources<'_>) -> Result<UserValue, Failure> {
        let default = default_of(setting, sources)?;
        let file = self.user.as_ref().and_then(|layer| layer.find(setting));
        Ok(UserValue {
            base: file.map_or(default, |assigned| assigned.value.clone()),
            stronger: (self.env_and_flags.of(setting))
                .map(|(value, _)| value.clone())
                .collect(),
        })
    }

    /// As if the repository had not said it.
    fn leave_out(&mut self, refused: &Refused) {
        let Some(layer) = self.repository.get_mut(refused.layer) else {
            return;
        };
        match &refused.what {
            Which::Setting(setting) => {
                let content = &mut layer.content;
                content.assigned.retain(|one| one.setting != *setting);
            }
            Which::Profile(name) => {
                if let Some(profile) = layer.content.profiles.get_mut(name) {
                    profile.allow = None;
                }
            }
        }
    }

    fn finish(self, entries: Vec<Entry>, left_out: Vec<String>) -> Settings {
        let mut profiles: BTreeMap<String, ProfileEnv> = BTreeMap::new();
        let mut ignored = Vec::new();
        let (mut presets, mut jobs) = (BTreeMap::new(), BTreeMap::new());
        for layer in self.user.into_iter().chain(self.repository) {
            ignored.extend(layer.content.ignored);
            presets.extend(layer.content.presets);
            jobs.extend(layer.content.jobs);
            for (name, profile) in layer.content.profiles {
                profiles.entry(name).or_default().put(profile);
            }
        }
        Settings {
            entries,
            profiles,
            presets,
            jobs,
            ignored,
            left_out,
        }
    }
}
