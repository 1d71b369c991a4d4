//! What a command works with: this machine, the settings that hold here, the provider, the claims.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use crabbox_core::claims::ClaimStore;
use crabbox_core::env;
use crabbox_core::git::{Repository, directory_name};
use crabbox_core::lifecycle::Context;
use crabbox_core::process::Cancel;
use crabbox_core::provider::{HostContext, Notices, Provider, Spec, Workspace, WorkspaceKind};
use crabbox_core::settings::{
    self, CORE, Entry, FlagValue, Origin, Owner, PartialSettings, ProviderTable, ResolvedPath,
    Setting, Settings, SourceFile, Sources, TrustStore, Untrusted,
};
use crabbox_core::{Code, Failure, small_file};
use crabbox_providers::{DEFAULT, NOT_PROVIDERS, OTHER_SECTIONS, PROVIDERS, Registration, specs};

use crate::host::Host;
use crate::ui::{Ui, Verbosity};

/// What sandboxes run.
const TARGETS: &[&str] = &["linux"];

pub(crate) struct App<'a> {
    pub(crate) host: &'a Host,
    pub(crate) ui: &'a Ui,
    pub(crate) cancel: Cancel,
}

/// The files that settings come from.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) user: Option<SourceFile>,
    pub(crate) repository: Vec<SourceFile>,
}

pub(crate) fn tables() -> Vec<ProviderTable> {
    specs().map(|spec| spec.table).collect()
}

impl App<'_> {
    /// The directory that a command is for: the repository, or where we are.
    pub(crate) fn root(&self) -> PathBuf {
        self.host
            .repository()
            .unwrap_or_else(|| self.host.cwd.clone())
    }

    pub(crate) fn settings(&self, matches: &ArgMatches) -> Result<Settings, Failure> {
        self.load(&flags(matches), Untrusted::Refuse)
    }

    /// For commands that only look or remove, which no checkout can prevent.
    pub(crate) fn lenient_settings(&self, matches: &ArgMatches) -> Result<Settings, Failure> {
        let settings = self.load(&flags(matches), Untrusted::LeaveOut)?;
        self.tell_left_out(&settings);
        Ok(settings)
    }

    pub(crate) fn tell_left_out(&self, settings: &Settings) {
        for what in &settings.left_out {
            self.ui.say(&format!("warning: skipped: {what}"));
        }
    }

    pub(crate) fn load(
        &self,
        flags: &[FlagValue],
        untrusted: Untrusted,
    ) -> Result<Settings, Failure> {
        let (files, unread) = self.files_for(untrusted)?;
        let environment = self.host.utf8_env();
        let trust = TrustStore::read(&self.host.state()?)?;
        let sources = Sources {
            untrusted,
            ..sources(&files, &environment, flags, &trust)
        };
        let mut settings = settings::load(CORE, &tables(), &sources)?;
        settings.left_out.extend(unread);
        Ok(settings)
    }

    /// The settings as far as they hold and name a provider, and what is wrong with the rest. `further` is one more flag.
    pub(crate) fn partial_settings(
        &self,
        matches: &ArgMatches,
        further: Option<FlagValue>,
    ) -> Result<PartialSettings, Failure> {
        let (files, unreadable) = or_default(self.files());
        let (trust, distrusted) = or_default(TrustStore::read(&self.host.state()?));
        let environment = self.host.utf8_env();
        let flags: Vec<_> = flags(matches).into_iter().chain(further).collect();
        let sources = sources(&files, &environment, &flags, &trust);
        let usable = |settings: &Settings| self.provider(settings).map(drop);
        let partial = settings::load_partial(CORE, &tables(), &sources, &usable)?;
        let wrong = unreadable.into_iter().chain(distrusted);
        Ok(PartialSettings {
            failures: wrong.chain(partial.failures).collect(),
            ..partial
        })
    }

    /// What is wrong with a file by itself.
    pub(crate) fn check_file(&self, file: &SourceFile) -> Result<(), Failure> {
        settings::check_file(CORE, &tables(), OTHER_SECTIONS, file)
    }

    /// The file that is the user's to edit: the named one, if one is.
    pub(crate) fn config_file(&self) -> Result<PathBuf, Failure> {
        match self.named() {
            Some(named) => Ok(named),
            None => self.host.user_file(),
        }
    }

    /// The file of `CRABBOX_CONFIG`.
    pub(crate) fn named(&self) -> Option<PathBuf> {
        let named = self.host.get("CRABBOX_CONFIG");
        let named = named.filter(|path| !path.is_empty())?;
        Some(self.host.cwd.join(named))
    }

    pub(crate) fn files(&self) -> Result<Files, Failure> {
        Ok(self.files_for(Untrusted::Refuse)?.0)
    }

    /// The files, and what is wrong with those of the repository that are left out.
    fn files_for(&self, untrusted: Untrusted) -> Result<(Files, Vec<String>), Failure> {
        let user = self.host.user_file().ok();
        let root = self.host.repository();
        if let Some(path) = self.named() {
            let files = self.named_file(&path, user.as_deref(), root.as_deref())?;
            return Ok((files, Vec::new()));
        }
        let mut files = Files {
            user: match user {
                Some(user) => read(&user)?,
                None => None,
            },
            repository: Vec::new(),
        };
        let mut unread = Vec::new();
        for path in settings::repository_files(&self.root()) {
            match (read(&path), untrusted) {
                (Ok(file), _) => files.repository.extend(file),
                (Err(failure), Untrusted::Refuse) => return Err(failure),
                (Err(failure), Untrusted::LeaveOut) => unread.push(failure.to_string()),
            }
        }
        Ok((files, unread))
    }

    /// The file of `CRABBOX_CONFIG` stands for all others.
    fn named_file(
        &self,
        path: &Path,
        user: Option<&Path>,
        root: Option<&Path>,
    ) -> Result<Files, Failure> {
        let Some(file) = read(path)? else {
            let message = format!(
                "CRABBOX_CONFIG names `{}`, which does not exist",
                path.display()
            );
            return Err(Failure::new(Code::Config, message));
        };
        let user = user.map(place);
        let owner = settings::owner_of(&place(path), user.as_ref(), root.map(place).as_ref());
        Ok(match owner {
            Owner::User => Files {
                user: Some(file),
                repository: Vec::new(),
            },
            Owner::Repository => Files {
                user: None,
                repository: vec![file],
            },
        })
    }

    pub(crate) fn spec(&self, name: &str) -> Result<&'static Spec, Failure> {
        self.registration(name)
            .map(|registration| registration.spec)
    }

    fn registration(&self, name: &str) -> Result<&'static Registration, Failure> {
        let wanted = name.trim().to_lowercase();
        let found = PROVIDERS
            .iter()
            .find(|registration| registration.spec.name == wanted);
        if let Some(registration) = found {
            return Ok(registration);
        }
        let message = format!("unknown provider {name:?}");
        let failure = Failure::new(Code::UnknownProvider, message);
        // Names that users try and that this build lacks on purpose get the reason instead of the list.
        Err(
            match NOT_PROVIDERS.iter().find(|(name, _)| *name == wanted) {
                Some((_, hint)) => failure.hint(*hint),
                None => {
                    let known: Vec<_> = specs().map(|spec| spec.name).collect();
                    failure.hint(format!("providers: {}", known.join(", ")))
                }
            },
        )
    }

    /// The provider that holds here, with the one of a flag for a command line that is not parsed.
    pub(crate) fn chosen(&self, flag: Option<String>) -> Result<&'static Spec, Failure> {
        let flags: Vec<_> = flag.into_iter().map(provider_flag).collect();
        let settings = self.load(&flags, Untrusted::LeaveOut)?;
        self.spec_of(&settings)
    }

    /// Whether neither the user nor a variable chooses an engine. A repository chooses a provider at most.
    pub(crate) fn engine_is_default(&self) -> bool {
        let Ok(settings) = self.load(&[], Untrusted::LeaveOut) else {
            return false;
        };
        let by_user = |section: Option<&str>, key| match settings.origin(section, key) {
            Some(Origin::User { .. } | Origin::Environment { .. } | Origin::Flag { .. }) => true,
            Some(Origin::Default | Origin::Repository { .. }) | None => false,
        };
        settings.provider() == DEFAULT
            && !by_user(None, "provider")
            && !by_user(Some("dockerSandbox"), "cliPath")
    }

    fn spec_of(&self, settings: &Settings) -> Result<&'static Spec, Failure> {
        self.registration_of(settings)
            .map(|registration| registration.spec)
    }

    fn registration_of(&self, settings: &Settings) -> Result<&'static Registration, Failure> {
        self.registration(settings.provider())
            .map_err(|failure| settings.with_location(None, "provider", failure))
    }

    pub(crate) fn provider(&self, settings: &Settings) -> Result<Box<dyn Provider>, Failure> {
        let registration = self.registration_of(settings)?;
        if !TARGETS.contains(&settings.text(None, "target")) {
            let message = format!(
                "provider={} managed provisioning supports target=linux only",
                registration.spec.name
            );
            // With file and line: the value may come from the repository.
            let failure = Failure::new(Code::Unsupported, message);
            return Err(settings.with_location(None, "target", failure));
        }
        let host = HostContext {
            path: self.host.get("PATH").unwrap_or_default().to_os_string(),
            beside: self.host.beside.clone(),
            checkouts: vec![self.root()],
            root: self.root(),
            cwd: self.host.cwd.clone(),
            state: self.host.state()?,
            env: self.host.env.clone(),
        };
        // Opening reads settings only and starts nothing: what is wrong with an engine shows at its first use.
        let mut provider = (registration.open)(settings, &host);
        let watched = self.ui.verbosity() == Verbosity::Brief;
        provider.listen(Notices::new(self.ui.line_writer(), watched));
        Ok(provider)
    }

    /// One line about settings that were set and do nothing with this provider.
    pub(crate) fn warn_no_effect(&self, settings: &Settings, spec: &Spec) {
        let entries = no_effect(settings, spec);
        let names: Vec<_> = entries
            .iter()
            .map(|entry| format!("{} ({})", entry.setting.path(), entry.origin))
            .collect();
        if !names.is_empty() {
            self.ui.say(&format!(
                "warning: no effect with provider={}: {}",
                spec.name,
                names.join(", ")
            ));
        }
    }

    pub(crate) fn store(&self) -> Result<ClaimStore, Failure> {
        Ok(ClaimStore::open(&self.host.state()?))
    }

    /// Files with variables that killed runs left. What cannot be removed is reported, and hinders nothing.
    pub(crate) fn sweep_env_files(&self) -> Result<(), Failure> {
        for failure in env::sweep(&self.host.state()?) {
            self.ui.say(&format!("warning: {failure}"));
        }
        Ok(())
    }

    pub(crate) fn context<'c>(
        &'c self,
        provider: &'c dyn Provider,
        store: &'c ClaimStore,
    ) -> Context<'c> {
        Context {
            provider,
            store,
            cancel: &self.cancel,
            report: self.ui,
        }
    }

    /// For a new sandbox, which is named after the repository.
    pub(crate) fn named_workspace(&self) -> Result<Workspace, Failure> {
        self.require_cwd()?;
        let root = self.root();
        let name = match self.host.repository() {
            Some(_) => Repository::name_around(&root, &self.host.env)?,
            None => None,
        };
        let name = name.unwrap_or_else(|| directory_name(&root));
        Ok(Workspace::new(&root, name))
    }

    pub(crate) fn workspace(&self) -> Result<Workspace, Failure> {
        self.require_cwd()?;
        let root = self.root();
        let name = directory_name(&root);
        Ok(Workspace::new(&root, name))
    }

    /// For what needs a directory to work in.
    pub(crate) fn require_cwd(&self) -> Result<(), Failure> {
        if !self.host.cwd_is_gone {
            return Ok(());
        }
        let message = "the working directory no longer exists";
        Err(Failure::new(Code::Local, message).hint("cd to an existing directory"))
    }
}

/// Settings that a source sets, and that the provider has no use for.
pub(crate) fn no_effect<'s>(settings: &'s Settings, spec: &Spec) -> Vec<&'s Entry> {
    settings.without_effect(spec.workspace == WorkspaceKind::Archive, spec.build_cache)
}

fn sources<'a>(
    files: &'a Files,
    environment: &'a BTreeMap<String, String>,
    flags: &'a [FlagValue],
    trust: &'a TrustStore,
) -> Sources<'a> {
    Sources {
        user: files.user.as_ref(),
        repository: &files.repository,
        environment,
        flags,
        trust,
        default_provider: DEFAULT,
        configured: &[],
        foreign_sections: OTHER_SECTIONS,
        untrusted: Untrusted::Refuse,
        targets: TARGETS,
    }
}

fn or_default<T: Default>(read: Result<T, Failure>) -> (T, Option<Failure>) {
    match read {
        Ok(whole) => (whole, None),
        Err(failure) => (T::default(), Some(failure)),
    }
}

pub(crate) fn place(path: &Path) -> ResolvedPath {
    ResolvedPath {
        given: path.to_path_buf(),
        canonical: fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()),
    }
}

/// `None` when there is no such file.
fn read(path: &Path) -> Result<Option<SourceFile>, Failure> {
    match small_file::read(path) {
        Ok(bytes) => Ok(Some(SourceFile {
            canonical: place(path).canonical,
            path: path.to_path_buf(),
            bytes,
        })),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => {
            let message = format!("cannot read config `{}`", path.display());
            Err(Failure::new(Code::Config, message).because(&error))
        }
    }
}

/// All rows that have a flag.
pub(crate) fn flagged() -> impl Iterator<Item = &'static Setting> {
    let providers = specs().flat_map(|spec| spec.table.settings);
    CORE.iter()
        .chain(providers)
        .filter(|setting| setting.flag.is_some())
}

pub(crate) fn provider_flag(value: String) -> FlagValue {
    FlagValue {
        flag: "provider".to_owned(),
        value,
    }
}

/// The settings that stand on the command line.
pub(crate) fn flags(matches: &ArgMatches) -> Vec<FlagValue> {
    let mut found = Vec::new();
    for flag in flagged().filter_map(|setting| setting.flag) {
        let here = matches.try_contains_id(flag).is_ok()
            && matches.value_source(flag) == Some(ValueSource::CommandLine);
        if !here {
            continue;
        }
        for value in matches.get_many::<String>(flag).into_iter().flatten() {
            found.push(FlagValue {
                flag: flag.to_owned(),
                value: value.clone(),
            });
        }
    }
    found
}
