//! Where the network rules lie: `policy.json` of the state directory for what `sbx policy` decides, and a
//! `proxy-config.json` per sandbox for the older surface. Both are read again for every question, so that what a
//! person edits by hand counts. The daemon alone writes; reading creates nothing.
//!
//! A file that cannot be read is an error and never an empty one: the daemon then lets nothing out.

mod error;
pub mod own_addresses;
mod proxy_config;
mod rule_ends;
#[cfg(test)]
mod tests;
mod view;

pub use error::PolicyBookError;
pub use proxy_config::default_proxy_config;
pub use rule_ends::{ClockReading, SteadyClock};
pub use view::{Question, answer, shown};

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustix::fs::OFlags;
use rustix::io::Errno;
use sbx_api::policy::{PolicyRule, RuleDecision, RuleRemoval, RuleRequest};
use sbx_policy::{
    Added, Decision, Existing, Host, NewRule, Pattern, Policy, PolicyFile, Preset, ProxyConfig,
    Removal, Rule, Scope, is_gateway, is_host_alias, is_localhost, preset,
};

use self::proxy_config::read_proxy_config;
use self::rule_ends::RuleEnds;
use crate::policy::own_addresses::own_addresses;
use crate::sandbox::name::SandboxName;
use crate::sandbox::record::{Record, RecordError};
use crate::state::{Durability, StateDir, is_temporary, write_atomic};
use crate::threads::lock;

const POLICY: &str = "policy.json";
/// No file with rules is larger.
const MAX_SIZE: u64 = 16 << 20;
/// What holds until the user chooses.
const DEFAULT: Preset = Preset::Balanced;
/// Expired rules are shown on request for that long.
const EXPIRED_REMOVAL_DELAY: SignedDuration = SignedDuration::from_hours(24);
const NOTICE: &str = "No network policy was chosen; using \"balanced\": package registries, code hosts, AI services and system \
     packages are allowed, the rest is denied. See `sbx policy ls`; `sbx policy reset` undoes it.";

/// The patterns of a list as it comes over the wire.
pub fn parse_resources(texts: &[String]) -> Result<Vec<Pattern>, PolicyBookError> {
    let mut patterns = Vec::new();
    for text in texts {
        patterns.extend(Pattern::parse_list(text)?);
    }
    Ok(patterns)
}

#[derive(Debug)]
pub struct PolicyBook {
    state: StateDir,
    /// Copied to every new sandbox, if it exists.
    default_proxy_config: PathBuf,
    /// Held by the one change that is under way.
    writing: Mutex<PresetNotice>,
    /// What was asked for last: most sandboxes have the same rules, and share them.
    compiled: Mutex<Option<Policy>>,
    clock: SteadyClock,
    ends: Mutex<RuleEnds>,
}

/// Whether the user still has to be told which preset was taken.
#[derive(Debug, Default)]
enum PresetNotice {
    #[default]
    Given,
    Pending,
}

/// When a new sandbox has a `proxy-config.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyFile {
    /// When there is a default one to copy, and it changes something.
    Copied,
    /// In any case: programs that use `/vm` expect the file. Without a default it changes nothing.
    Always,
}

/// What a change left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    pub rules: Vec<PolicyRule>,
    /// Resources that needed no rule.
    pub existing: Vec<Existing>,
    pub notice: Option<&'static str>,
}

/// The rules that a removal removed, and what is left of those that it removed in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    pub rules: Vec<PolicyRule>,
    pub remaining: Vec<PolicyRule>,
}

/// Reading.
impl PolicyBook {
    pub fn new(state: &StateDir, default_proxy_config: PathBuf) -> Self {
        Self::with_clock(state, default_proxy_config, SteadyClock::of_this_machine())
    }

    pub fn with_clock(state: &StateDir, default_proxy_config: PathBuf, clock: SteadyClock) -> Self {
        Self {
            clock,
            ends: Mutex::default(),
            state: state.clone(),
            default_proxy_config,
            writing: Mutex::default(),
            compiled: Mutex::default(),
        }
    }

    /// `None` when no preset was chosen yet.
    pub fn load(&self) -> Result<Option<PolicyFile>, PolicyBookError> {
        let path = self.path();
        let Some(text) = read(&path, Links::Refused)? else {
            return Ok(None);
        };
        PolicyFile::parse(&text)
            .map(Some)
            .map_err(|source| PolicyBookError::Damaged {
                path,
                source: Box::new(source),
            })
    }

    /// The rules that hold for a sandbox, for those of a repository, or for all of them.
    pub fn rules_for(&self, scope: &Scope) -> Result<Vec<Rule>, PolicyBookError> {
        let rules = self.newer_rules_for(scope)?;
        let Scope::Sandbox(name) = scope else {
            return Ok(rules);
        };
        match self.proxy_config(&SandboxName::parse(name)?)? {
            None => Ok(rules),
            Some(config) => {
                let mut rules = config.narrow(rules);
                rules.extend(config.rules(name));
                Ok(rules)
            }
        }
    }

    /// What the older settings of a sandbox take away from it now, in words; nothing, as a rule.
    pub fn narrowed(
        &self,
        scope: &Scope,
        now: Timestamp,
    ) -> Result<Option<String>, PolicyBookError> {
        let Scope::Sandbox(name) = scope else {
            return Ok(None);
        };
        let name = SandboxName::parse(name)?;
        let Some(config) = self.proxy_config(&name)? else {
            return Ok(None);
        };
        let rules = self.newer_rules_for(scope)?;
        let narrowed = config.narrowed(&rules, now);
        let names: Vec<&str> = narrowed.iter().map(|rule| rule.name.as_str()).collect();
        Ok((!names.is_empty()).then(|| {
            format!(
                "`{}` has the policy `deny`, which takes away what allows everything: `{}`",
                self.proxy_config_path(&name).display(),
                names.join("`, `")
            )
        }))
    }

    /// Without the older settings.
    fn newer_rules_for(&self, scope: &Scope) -> Result<Vec<Rule>, PolicyBookError> {
        let Some(file) = self.load()? else {
            return Ok(preset(DEFAULT));
        };
        let repo = match scope {
            Scope::Sandbox(name) => self.repo_of(&SandboxName::parse(name)?)?,
            Scope::Global | Scope::Repo(_) => None,
        };
        Ok(file.rules_for(scope, repo.as_deref()))
    }

    /// The directory whose rules concern the sandbox. One that has no record has no such rules; a record that cannot be
    /// read could hide a denial.
    fn repo_of(&self, name: &SandboxName) -> Result<Option<String>, PolicyBookError> {
        let record = match Record::read(&self.state.sandbox(name)) {
            Err(RecordError::Missing { .. }) => return Ok(None),
            other => other?,
        };
        let primary = record.primary();
        // Rules have paths in UTF-8 only.
        Ok(primary.and_then(|workspace| str::from_utf8(&workspace.path.0).ok().map(str::to_owned)))
    }

    /// The rules of every scope; and the first of the older settings that cannot be read, which are those of one sandbox
    /// and do not concern the others.
    pub fn all_rules(&self) -> Result<(Vec<Rule>, Option<PolicyBookError>), PolicyBookError> {
        let mut rules = match self.load()? {
            Some(file) => {
                let own = file.rules.iter().cloned();
                own.chain(preset(file.preset)).collect()
            }
            None => preset(DEFAULT),
        };
        let mut broken = None;
        for name in self.state.names()? {
            match self.proxy_config(&name) {
                Ok(Some(config)) => rules.extend(config.rules(name.as_str())),
                Ok(None) => {}
                Err(error) => broken = broken.or(Some(error)),
            }
        }
        Ok((rules, broken))
    }

    /// On this machine as it is now. Its rules end by [`PolicyBook::clock`].
    pub fn policy_for(&self, scope: &Scope) -> Result<Policy, PolicyBookError> {
        let rules = lock(&self.ends).on(self.rules_for(scope)?, &self.clock);
        let mut compiled = lock(&self.compiled);
        let policy = match compiled.take().filter(|last| last.rules() == rules) {
            Some(last) => last,
            None => Policy::compile(rules),
        };
        Ok(compiled
            .insert(policy)
            .with_local_addresses(own_addresses(&[])))
    }

    pub fn clock(&self) -> SteadyClock {
        self.clock.clone()
    }

    /// What of the rules cannot be read, if something cannot.
    pub fn unreadable(&self) -> Option<PolicyBookError> {
        match self.all_rules() {
            Ok((_, broken)) => broken,
            Err(error) => Some(error),
        }
    }

    fn path(&self) -> PathBuf {
        self.state.root().join(POLICY)
    }

    /// Removes what a daemon that was killed while it wrote has left. For a daemon that begins.
    pub fn sweep(&self) {
        let entries = fs::read_dir(self.state.root()).into_iter().flatten();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let ours = |name: &str| is_temporary(name) && name.starts_with(".policy.json.");
            if name.to_str().is_some_and(ours)
                && let Err(error) = fs::remove_file(entry.path())
            {
                tracing::warn!(path = %entry.path().display(), %error, "cannot remove");
            }
        }
    }
}

/// Changing.
impl PolicyBook {
    /// Chooses a preset, once.
    pub fn init(&self, preset: &str, now: Timestamp) -> Result<Preset, PolicyBookError> {
        let preset: Preset = preset.parse()?;
        let mut notice = lock(&self.writing);
        let file = PolicyFile::init(self.load()?.as_ref(), preset, now)?;
        self.write(&file)?;
        *notice = PresetNotice::Given;
        Ok(preset)
    }

    /// Takes the usual preset when there is none; the sentence is for the user and comes once.
    pub fn ensure_chosen(&self, now: Timestamp) -> Result<Option<&'static str>, PolicyBookError> {
        let mut notice = lock(&self.writing);
        if self.load()?.is_none() {
            self.write(&self.chosen(&mut notice, now)?)?;
        }
        Ok(notice.take())
    }

    /// Adds a rule for all sandboxes, those of a repository, or one; whether that exists is for the caller to know.
    pub fn add(&self, request: &RuleRequest, now: Timestamp) -> Result<Changed, PolicyBookError> {
        let resources = parse_resources(&request.resources)?;
        if request.decision == RuleDecision::Allow {
            resources.iter().try_for_each(check_acts)?;
        }
        let expires = match request.for_seconds {
            None => None,
            Some(seconds) => Some(after(now, seconds)?),
        };
        let rule = NewRule {
            id: uuid::Uuid::new_v4().to_string(),
            name: None,
            scope: scope(request.sandbox.as_deref(), request.repo.as_deref())?,
            decision: match request.decision {
                RuleDecision::Allow => Decision::Allow,
                RuleDecision::Deny => Decision::Deny,
            },
            resources,
            allow_private: request.allow_private,
            expires,
        };
        let mut notice = lock(&self.writing);
        let mut file = self.chosen(&mut notice, now)?;
        let Added { rule, existing } = file.add_rule(rule, now)?;
        self.write(&file)?;
        Ok(Changed {
            rules: rule.iter().map(|rule| shown(rule, now)).collect(),
            existing,
            notice: notice.take(),
        })
    }

    /// Removes rules, or resources of rules.
    pub fn remove(
        &self,
        request: &RuleRemoval,
        now: Timestamp,
    ) -> Result<Removed, PolicyBookError> {
        let removal = Removal {
            scope: scope(request.sandbox.as_deref(), request.repo.as_deref())?,
            id: request.id.clone(),
            resources: parse_resources(&request.resources)?,
        };
        let _writing = lock(&self.writing);
        let mut file = match self.load()? {
            Some(file) => file,
            // Only for the error that it gives.
            None => PolicyFile::init(None, DEFAULT, now)?,
        };
        let before = file.rules.clone();
        let removed = file.remove(&removal)?;
        self.write(&file)?;
        let rules = removed.iter().filter_map(|part| {
            let rule = before.iter().find(|rule| rule.id == part.rule_id)?;
            let taken = Rule {
                resources: part.resources.clone(),
                ..rule.clone()
            };
            Some(shown(&taken, now))
        });
        let parts = removed.iter().filter(|part| !part.entirely);
        let remaining = parts.filter_map(|part| {
            let rule = file.rules.iter().find(|rule| rule.id == part.rule_id)?;
            Some(shown(rule, now))
        });
        Ok(Removed {
            rules: rules.collect(),
            remaining: remaining.collect(),
        })
    }

    /// Forgets the choice and all rules, readable or not.
    pub fn reset(&self) -> Result<(), PolicyBookError> {
        let mut notice = lock(&self.writing);
        *notice = PresetNotice::Given;
        let path = self.path();
        let removed = match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.and_then(|()| fs::File::open(self.state.root())?.sync_all()),
        };
        removed.map_err(|source| PolicyBookError::Io { path, source })
    }

    /// What a new sandbox begins with: nothing of an earlier one of its name, its own denials, and a copy of the
    /// default `proxy-config.json`. Its directory exists.
    pub fn begin_sandbox(
        &self,
        name: &SandboxName,
        denied: Vec<Pattern>,
        proxy_file: ProxyFile,
        now: Timestamp,
    ) -> Result<(), PolicyBookError> {
        let config = read_proxy_config(&self.default_proxy_config, Links::Followed)?;
        let mut notice = lock(&self.writing);
        let mut file = match self.load()? {
            None if denied.is_empty() => None,
            _ => Some(self.chosen(&mut notice, now)?),
        };
        if let Some(file) = &mut file {
            let left = file.remove_sandbox(name.as_str());
            if !denied.is_empty() {
                let rule = NewRule {
                    id: uuid::Uuid::new_v4().to_string(),
                    name: Some("deny-network".into()),
                    scope: Scope::Sandbox(name.to_string()),
                    decision: Decision::Deny,
                    resources: denied,
                    allow_private: false,
                    expires: None,
                };
                file.add_rule(rule, now)?;
                self.write(file)?;
            } else if !left.is_empty() {
                self.write(file)?;
            }
        }
        match (config, proxy_file) {
            (config, ProxyFile::Always) => {
                self.write_proxy_config(name, &config.unwrap_or_default())
            }
            (Some(config), ProxyFile::Copied) if config != ProxyConfig::default() => {
                self.write_proxy_config(name, &config)
            }
            (Some(_) | None, ProxyFile::Copied) => Ok(()),
        }
    }

    /// The rules of a sandbox go with it.
    pub fn forget_sandbox(&self, name: &SandboxName) -> Result<(), PolicyBookError> {
        self.forget(|file| file.remove_sandbox(name.as_str()))
    }

    /// After a crash: rules of sandboxes that were removed.
    pub fn keep_sandboxes(&self, is_there: impl Fn(&str) -> bool) -> Result<(), PolicyBookError> {
        self.forget(|file| file.keep_sandboxes(is_there))
    }

    fn forget(
        &self,
        take: impl FnOnce(&mut PolicyFile) -> Vec<Rule>,
    ) -> Result<(), PolicyBookError> {
        let _writing = lock(&self.writing);
        let Some(mut file) = self.load()? else {
            return Ok(());
        };
        if take(&mut file).is_empty() {
            return Ok(());
        }
        self.write(&file)
    }

    /// Writes down which rules have ended, so that they stay so for a later daemon and another time of day. Gives the time
    /// until the next one ends.
    pub fn end_rules(&self) -> Result<Option<Duration>, PolicyBookError> {
        let _writing = lock(&self.writing);
        let Some(mut file) = self.load()? else {
            return Ok(None);
        };
        if self.mark_ended(&mut file) {
            self.write(&file)?;
        }
        Ok(lock(&self.ends).until_next(&file.rules, &self.clock))
    }

    fn mark_ended(&self, file: &mut PolicyFile) -> bool {
        let mut ends = lock(&self.ends);
        ends.retain(&file.rules);
        ends.mark(&mut file.rules, &self.clock)
    }

    /// The file to change: with the default preset when none was chosen, of which the user is told.
    fn chosen(
        &self,
        notice: &mut MutexGuard<'_, PresetNotice>,
        now: Timestamp,
    ) -> Result<PolicyFile, PolicyBookError> {
        if let Some(mut file) = self.load()? {
            self.mark_ended(&mut file);
            file.drop_expired(
                now.saturating_sub(EXPIRED_REMOVAL_DELAY)
                    .unwrap_or(Timestamp::MIN),
            );
            return Ok(file);
        }
        **notice = PresetNotice::Pending;
        Ok(PolicyFile::init(None, DEFAULT, now)?)
    }

    fn write(&self, file: &PolicyFile) -> Result<(), PolicyBookError> {
        let text = file.to_json()?;
        write_atomic(self.state.root(), POLICY, text.as_bytes(), Durability::Now).map_err(
            |source| PolicyBookError::Io {
                path: self.path(),
                source,
            },
        )
    }
}

impl PresetNotice {
    fn take(&mut self) -> Option<&'static str> {
        match std::mem::take(self) {
            Self::Given => None,
            Self::Pending => Some(NOTICE),
        }
    }
}

/// What a request is about.
pub fn scope(sandbox: Option<&str>, repo: Option<&str>) -> Result<Scope, PolicyBookError> {
    match (sandbox, repo) {
        (None, None) => Ok(Scope::Global),
        (Some(name), None) => Ok(Scope::Sandbox(SandboxName::parse(name)?.into())),
        (None, Some(path)) => Ok(Scope::repo(path)?),
        (Some(_), Some(_)) => Err(PolicyBookError::TwoScopes),
    }
}

/// That an allow of this can ever open something. The names of the host and the sandbox are decided before any pattern.
fn check_acts(resource: &Pattern) -> Result<(), PolicyBookError> {
    let Some(name) = resource.name() else {
        return Ok(());
    };
    let host = Host::Name(name.clone());
    let meant = || match resource.port() {
        Some(port) => format!("localhost:{port}"),
        None => "localhost:PORT".to_owned(),
    };
    let (why, meant) = if is_host_alias(&host) {
        let why = "a service of the host is opened as `localhost` with its port";
        (why, Some(meant()))
    } else if is_gateway(&host) {
        ("it is the sandbox's proxy, not a target", None)
    } else if name.as_str() == "localhost" && resource.port().is_some() {
        return Ok(());
    } else if is_localhost(&host) {
        let why = "a service of the host is opened by `localhost` and its port";
        (why, Some(meant()))
    } else {
        return Ok(());
    };
    Err(PolicyBookError::Idle {
        resource: resource.clone(),
        why,
        meant,
    })
}

fn after(now: Timestamp, seconds: u64) -> Result<Timestamp, PolicyBookError> {
    i64::try_from(seconds)
        .ok()
        .filter(|seconds| *seconds > 0)
        .and_then(|seconds| now.checked_add(SignedDuration::from_secs(seconds)).ok())
        .ok_or(PolicyBookError::Duration(seconds))
}

/// Whether the file may be a link to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    Followed,
    /// A change of its target would go unnoticed by inotify.
    Refused,
}

/// The text of a file that may not exist.
fn read(path: &Path, links: Links) -> Result<Option<String>, PolicyBookError> {
    match read_regular(path, links) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PolicyBookError::Io {
            path: path.to_path_buf(),
            source,
        }),
    }
}

/// Opened with O_NONBLOCK: a named pipe could block a reader for ever.
fn read_regular(path: &Path, links: Links) -> io::Result<String> {
    let mut flags = OFlags::NONBLOCK;
    if links == Links::Refused {
        flags |= OFlags::NOFOLLOW;
    }
    let opened = fs::File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) if links == Links::Refused => {
            io::Error::other("it is a symbolic link; rules are read from regular files only")
        }
        Some(_) | None => error,
    })?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    file.take(MAX_SIZE).read_to_string(&mut text)?;
    Ok(text)
}
