//! What a setting is: one row yields its YAML key, its variables, its flag, its default, who may set it, its line in
//! `config show` and its line in the reference.

/// One row of a table of settings.
#[derive(Debug, PartialEq, Eq)]
pub struct Setting {
    /// The mapping in the file that the key stands in; `None` is the file's top level.
    pub section: Option<&'static str>,
    pub key: &'static str,
    /// Other spellings, as whole paths from the top of the file.
    pub aliases: &'static [&'static str],
    /// Variables; the first that is set counts.
    pub env: &'static [&'static str],
    /// The flag's name without dashes.
    pub flag: Option<&'static str>,
    pub kind: Kind,
    /// What the entries of a list may be.
    pub entries: Entries,
    /// As it would be written in a variable.
    pub default: &'static str,
    pub trust: Trust,
    pub applies: Applies,
    pub effect: Effect,
    /// The engine that comes with this program refuses it; another one may know it.
    pub other_engines: bool,
    /// The name in the text form of `config show`, where it does not follow from the key.
    pub label: Option<&'static str>,
    pub help: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An empty text leaves the weaker source's value.
    Text,
    /// An empty text is a value: it clears what a weaker source says.
    OptionalText,
    /// Compared without regard to case: trimmed and in lower case.
    Name,
    /// Like [`Kind::OptionalText`], and shown without user, password and query.
    Url,
    /// A whole number from 0.
    Count,
    Bool,
    Duration,
    /// A duration that must be positive, with the name that it has in its error.
    Lifetime(&'static str),
    List(Merge),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entries {
    /// Anything but nothing.
    Texts,
    /// Names of variables, and beginnings of names with a `*`; several of them with commas between.
    Variables,
}

/// What a stronger file's list does to a weaker one's. Variables and flags always replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    Replace,
    Append,
    AppendUnique,
}

/// What it has an effect on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applies {
    Always,
    /// A sandbox that is yet to be made.
    ToNewSandboxes,
    /// A new sandbox, and every later run in it says it anew.
    ToRuns,
}

/// With which providers it has an effect at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    AllProviders,
    /// Those that the repository is sent to.
    ArchiveSync,
    /// Those that keep a build cache.
    BuildCache,
    /// None of this build: it is accepted because other programs read the same files.
    NoProvider,
}

/// Who may set it. A repository's file is untrusted: it may be a checkout of anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    Anyone,
    /// Not the repository, unless the user trusts the file.
    User,
    /// Not the repository, even if the user trusts the file.
    NeverRepository,
    /// The repository may only shorten it. Zero means without limit.
    ShorterThanUser,
    /// The repository's list may only name what the user's own list, or the default if there is none, allows.
    WithinUser,
    /// The repository may choose a provider that the user has configured, or the default.
    ConfiguredProvider,
    /// The repository may name a profile, but not one to which the user has given variables.
    OwnProfile,
    /// No file may set it, only variables and flags.
    OutsideFiles,
    /// Only the flag sets it.
    FlagOnly,
}

/// What one provider may be told.
#[derive(Debug, Clone, Copy)]
pub struct ProviderTable {
    /// The provider's name, as `--provider` takes it.
    pub name: &'static str,
    /// Its mapping in the file. Every row of `settings` has it as its section.
    pub section: &'static str,
    pub settings: &'static [Setting],
}

impl Setting {
    /// A setting that only files can set, the repository's included.
    pub const fn new(
        section: Option<&'static str>,
        key: &'static str,
        kind: Kind,
        default: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            section,
            key,
            aliases: &[],
            env: &[],
            flag: None,
            kind,
            entries: Entries::Texts,
            default,
            trust: Trust::Anyone,
            applies: Applies::Always,
            effect: Effect::AllProviders,
            other_engines: false,
            label: None,
            help,
        }
    }

    #[must_use]
    pub const fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    #[must_use]
    pub const fn env(mut self, env: &'static [&'static str]) -> Self {
        self.env = env;
        self
    }

    #[must_use]
    pub const fn flag(mut self, flag: &'static str) -> Self {
        self.flag = Some(flag);
        self
    }

    #[must_use]
    pub const fn variables(mut self) -> Self {
        self.entries = Entries::Variables;
        self
    }

    #[must_use]
    pub const fn trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    #[must_use]
    pub const fn creation_only(mut self) -> Self {
        self.applies = Applies::ToNewSandboxes;
        self
    }

    #[must_use]
    pub const fn renewed_by_runs(mut self) -> Self {
        self.applies = Applies::ToRuns;
        self
    }

    #[must_use]
    pub const fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    #[must_use]
    pub const fn for_other_engines(mut self) -> Self {
        self.other_engines = true;
        self
    }

    #[must_use]
    pub const fn label(mut self, label: &'static str) -> Self {
        self.label = Some(label);
        self
    }

    /// Its path from the top of the file.
    pub fn path(&self) -> String {
        match self.section {
            Some(section) => format!("{section}.{}", self.key),
            None => self.key.to_owned(),
        }
    }

    pub(super) fn answers_to(&self, path: &str) -> bool {
        let own = match self.section {
            Some(section) => path
                .strip_prefix(section)
                .and_then(|rest| rest.strip_prefix('.'))
                .is_some_and(|key| key == self.key),
            None => path == self.key,
        };
        own || self.aliases.contains(&path)
    }
}
