//! The tool chains on the caller's PATH that live outside the system directories: shown read-only at their
//! own paths, without their credential files. Decides on what a [`Probe`] tells; touches nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Component, Path, PathBuf};

use sbx_api::{Caller, MountKind};

use super::layout::HostBind;
use super::spec::is_system;

/// What the decision needs to know of the host.
pub(super) struct Probe<'a> {
    /// The path without symlinks, if it exists.
    pub(super) canonical: &'a dyn Fn(&Path) -> Option<PathBuf>,
    /// The canonical path of a directory that can be shown; `None` for anything else.
    pub(super) dir: &'a dyn Fn(&Path) -> Option<PathBuf>,
    /// The names in a directory.
    pub(super) names: &'a dyn Fn(&Path) -> Vec<String>,
    /// The names of the directories in a directory, without symlinks and without workspaces.
    pub(super) dirs: &'a dyn Fn(&Path) -> Vec<String>,
    /// Where in one of the sandbox's own workspaces a path leads to, if it does.
    pub(super) own: &'a dyn Fn(&Path) -> Option<PathBuf>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ToolChains {
    pub(super) binds: Vec<HostBind>,
    pub(super) masks: Vec<PathBuf>,
    /// The entries of the caller's PATH that exist inside, in order.
    pub(super) path: Vec<PathBuf>,
    /// Where the caller says that each is, and where it really was.
    pub(super) sources: BTreeMap<PathBuf, PathBuf>,
}

impl ToolChains {
    /// Whether a path exists inside because of a tool chain or the system directories.
    pub(super) fn shows(&self, path: &Path) -> bool {
        is_system(path) || self.binds.iter().any(|bind| path.starts_with(&bind.target))
    }
}

/// Below the home: a PATH entry anywhere in it needs the whole directory.
const WHOLE: &[&str] = &[
    ".asdf",
    ".bun",
    ".deno",
    ".dotnet",
    ".elan",
    ".ghcup",
    ".goenv",
    ".jenv",
    ".juliaup",
    ".local/share/mise",
    ".local/share/pnpm",
    ".nodenv",
    ".opam",
    ".pyenv",
    ".rbenv",
    ".rvm",
    ".sdkman",
    ".volta",
    "anaconda3",
    "mambaforge",
    "miniconda3",
    "miniforge3",
];
/// Beside `~/.local/bin`: where the programs linked there live.
const LOCAL_SHARE: &[&str] = &[".local/share/uv", ".local/share/pipx", ".local/share/mise"];
const LINUXBREW: &str = "/home/linuxbrew/.linuxbrew";
/// First components outside the home that hold no tool chains, or must never be seen.
const REFUSED: &[&str] = &[
    "boot", "dev", "etc", "media", "mnt", "nix", "proc", "run", "snap", "srv", "sys", "var",
];
const AGENT_HOME: &str = "/home/agent";
/// Never a source, nor anything below or behind them, wherever they lie: nothing but secrets and settings.
const PRIVATE: &[&str] = &[
    ".aws",
    ".azure",
    ".config",
    ".docker",
    ".gcloud",
    ".gnupg",
    ".gsutil",
    ".kube",
    ".minikube",
    ".mozilla",
    ".netrc",
    ".oci",
    ".password-store",
    ".pki",
    ".ssh",
    ".terraform.d",
    ".thunderbird",
    ".vault-token",
    "keyrings",
];
/// What tools keep their programs in below one of those.
const TOOLS_IN_PRIVATE: &[&str] = &[
    ".config/composer/vendor",
    ".config/nvm",
    ".config/yarn/global",
    ".docker/bin",
];

const SECRET_NAMES: &[&str] = &[
    ".condarc",
    ".env",
    ".git",
    ".git-credentials",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".yarnrc.yml",
    "_netrc",
    "auth.json",
    "auth.toml",
    "config.json",
    "credentials",
    "credentials.db",
    "credentials.json",
    "credentials.toml",
    "hosts.yml",
    "token",
    "token.json",
    "tokens",
];
const SECRET_STARTS: &[&str] = &["id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"];
const SECRET_ENDS: &[&str] = &[".pem", ".key", ".p12", ".pfx", ".keytab"];
/// Deeper in a tool chain: what is nothing but a credential. A `config.json` or `cacert.pem` is part of a
/// package there.
const SECRET_BELOW: &[&str] = &[
    ".git-credentials",
    ".netrc",
    ".npmrc",
    ".pypirc",
    "_netrc",
    "credentials",
    "credentials.json",
    "credentials.toml",
    "npmrc",
];
/// How deep credentials are looked for, and in how many directories of one tool chain: it is done at every
/// start, and a tool chain has tens of thousands of files.
const DEPTH: usize = 3;
const MOST_DIRS: usize = 1000;

/// `state` is the engine's state directory, canonical.
pub(super) fn tool_chains(caller: &Caller, state: &Path, probe: &Probe<'_>) -> ToolChains {
    let Some(home) = clean(&caller.home) else {
        return ToolChains::default();
    };
    let finder = Finder {
        caller,
        refusals: Refusals::new(&home, state, probe.canonical),
        home,
        probe,
    };
    let mut found = ToolChains::default();
    let mut seen = BTreeSet::new();
    let mut own = BTreeSet::new();
    for entry in caller.path.split(':').filter_map(clean) {
        if !seen.insert(entry.clone()) {
            continue;
        }
        if let Some(place) = (probe.own)(&entry) {
            // Seen through the workspace, which is mounted over everything else.
            own.insert(place.clone());
            found.path.push(place);
            continue;
        }
        let mut shown = false;
        for root in finder.roots(&entry) {
            shown |= finder.show(&root, &mut found);
        }
        if shown || (is_system(&entry) && (probe.dir)(&entry).is_some()) {
            found.path.push(entry);
        }
    }
    for name in ["GOROOT", "JAVA_HOME"] {
        if let Some(place) = caller.env.get(name).and_then(|value| clean(value)) {
            finder.show(&place, &mut found);
        }
    }
    found.binds = without_nested(found.binds);
    found.masks = masks(&found.binds, probe);
    let kept = ToolChains {
        binds: found.binds.clone(),
        ..ToolChains::default()
    };
    found
        .path
        .retain(|entry| own.contains(entry) || kept.shows(entry));
    found
}

/// An absolute path without `.`, `..` and doubled slashes; not `/`.
pub(super) fn clean(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let path: PathBuf = path.components().collect();
    path.parent().is_some().then_some(path)
}

struct Finder<'a> {
    caller: &'a Caller,
    home: PathBuf,
    refusals: Refusals,
    probe: &'a Probe<'a>,
}

/// What is never shown, whoever asks for it.
#[derive(Debug)]
pub(super) struct Refusals {
    /// The caller's, by every name.
    homes: Vec<PathBuf>,
    state: PathBuf,
}

impl Refusals {
    pub(super) fn new(
        home: &Path,
        state: &Path,
        canonical: &dyn Fn(&Path) -> Option<PathBuf>,
    ) -> Self {
        let homes = [Some(home.to_owned()), canonical(home)];
        Self {
            homes: homes.into_iter().flatten().collect(),
            state: state.to_owned(),
        }
    }

    pub(super) fn cover(&self, path: &Path) -> bool {
        let in_home = self.homes.iter().any(|home| path.starts_with(home));
        let holds_home = self.homes.iter().any(|home| home.starts_with(path));
        let first = path
            .components()
            .nth(1)
            .and_then(|part| part.as_os_str().to_str());
        holds_home
            || self.state.starts_with(path)
            || path.starts_with(&self.state)
            || is_private(path)
            || (!in_home && first.is_none_or(|first| REFUSED.contains(&first)))
            // The agent's own home: read-only there would take it from the agent.
            || Path::new(AGENT_HOME).starts_with(path)
            || path.starts_with(Path::new(AGENT_HOME).join(".local"))
    }
}

/// Does it lie in a directory of secrets or settings?
pub(crate) fn is_private(path: &Path) -> bool {
    path.ancestors().any(|above| {
        let private = above
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| PRIVATE.contains(&name));
        let tool = || {
            let mut tools = TOOLS_IN_PRIVATE.iter().map(Path::new);
            tools.any(|tool| {
                let base = above.parent().unwrap_or(above);
                path.starts_with(base.join(tool))
            })
        };
        private && !tool()
    })
}

impl Finder<'_> {
    /// What has to be shown so that the programs in `entry` work.
    fn roots(&self, entry: &Path) -> Vec<PathBuf> {
        let cargo = self.place("CARGO_HOME", ".cargo").join("bin");
        // A caller who says where rustup's tool chains are may have its programs below another home.
        let elsewhere =
            entry.ends_with(".cargo/bin") && self.caller.env.contains_key("RUSTUP_HOME");
        if entry == cargo || elsewhere {
            return vec![entry.to_owned(), self.place("RUSTUP_HOME", ".rustup")];
        }
        let pyenv = self.place("PYENV_ROOT", ".pyenv");
        if entry.starts_with(&pyenv) {
            return vec![pyenv];
        }
        let nvm = self.place("NVM_DIR", ".nvm").join("versions/node");
        if let Ok(rest) = entry.strip_prefix(&nvm)
            && let Some(version) = rest.iter().next()
        {
            return vec![nvm.join(version)];
        }
        if entry.starts_with(LINUXBREW) {
            return vec![LINUXBREW.into()];
        }
        let Ok(below) = entry.strip_prefix(&self.home) else {
            return self.roots_elsewhere(entry);
        };
        if below.starts_with(".nix-profile") {
            return Vec::new();
        }
        if let Some(root) = WHOLE.iter().find(|root| below.starts_with(root)) {
            return vec![self.home.join(root)];
        }
        let mut roots = self.unknown(entry);
        if below == Path::new(".local/bin") {
            roots.extend(LOCAL_SHARE.iter().map(|share| self.home.join(share)));
        }
        roots
    }

    fn roots_elsewhere(&self, entry: &Path) -> Vec<PathBuf> {
        if is_system(entry) {
            // A link that leaves the system directories has to lead somewhere.
            return (self.probe.dir)(entry)
                .filter(|canonical| !is_system(canonical))
                .map(|canonical| self.unknown(&canonical))
                .unwrap_or_default();
        }
        self.unknown(entry)
    }

    /// Only the directory itself; of a Go distribution all.
    fn unknown(&self, entry: &Path) -> Vec<PathBuf> {
        let parent = entry.parent().filter(|parent| {
            entry.ends_with("bin")
                && ["pkg/tool", "src/runtime"]
                    .iter()
                    .all(|part| (self.probe.dir)(&parent.join(part)).is_some())
        });
        vec![parent.unwrap_or(entry).to_owned()]
    }

    /// Adds the binds of `root`, if it may be shown at all.
    fn show(&self, root: &Path, found: &mut ToolChains) -> bool {
        let Some(canonical) = (self.probe.dir)(root) else {
            return false;
        };
        if is_system(root) && is_system(&canonical) {
            return true;
        }
        if self.refusals.cover(root) || self.refusals.cover(&canonical) {
            return false;
        }
        // Programs know their place by either spelling.
        for target in [root, canonical.as_path()] {
            if !is_system(target) && !found.binds.iter().any(|bind| bind.target == target) {
                found.binds.push(HostBind {
                    source: canonical.clone(),
                    target: target.to_owned(),
                    kind: MountKind::Toolchain,
                });
            }
        }
        found.sources.insert(root.to_owned(), canonical);
        true
    }

    fn place(&self, variable: &str, usual: &str) -> PathBuf {
        self.caller
            .env
            .get(variable)
            .and_then(|value| clean(value))
            .unwrap_or_else(|| self.home.join(usual))
    }
}

/// Parents first, and none below another one: there it is the same directory, or a link that leads inside to where
/// it leads outside.
fn without_nested(mut binds: Vec<HostBind>) -> Vec<HostBind> {
    binds.sort_by(|a, b| a.target.cmp(&b.target));
    let mut kept: Vec<HostBind> = Vec::new();
    for bind in binds {
        if !kept
            .iter()
            .any(|above| bind.target.starts_with(&above.target))
        {
            kept.push(bind);
        }
    }
    kept
}

/// A mount covers a file, not the links to it: what a credential is a link to is masked where it is shown.
fn masks(binds: &[HostBind], probe: &Probe<'_>) -> Vec<PathBuf> {
    let mut masks: Vec<PathBuf> = Vec::new();
    for bind in binds {
        let mut names = (probe.names)(&bind.source);
        names.retain(|name| is_secret(name));
        names.sort();
        let mut found: Vec<PathBuf> = names.iter().map(|name| bind.target.join(name)).collect();
        found.extend(masks_below(bind, probe, &found));
        for target in found {
            let source = match target.strip_prefix(&bind.target) {
                Ok(rest) => bind.source.join(rest),
                Err(_) => continue,
            };
            match (probe.canonical)(&source).filter(|real| *real != source) {
                Some(real) => masks.extend(binds.iter().filter_map(|shown| {
                    let rest = real.strip_prefix(&shown.source).ok()?;
                    (rest != Path::new("")).then(|| shown.target.join(rest))
                })),
                None => masks.push(target),
            }
        }
    }
    let mut seen = BTreeSet::new();
    masks.retain(|mask| seen.insert(mask.clone()));
    masks
}

/// The credentials in the directories of a tool chain that are not masked as a whole.
fn masks_below(bind: &HostBind, probe: &Probe<'_>, masked: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = VecDeque::from([(bind.source.clone(), bind.target.clone(), 0)]);
    let mut seen = 0;
    while let Some((source, target, depth)) = todo.pop_front() {
        seen += 1;
        if seen > MOST_DIRS {
            break;
        }
        if depth > 0 {
            let mut names = (probe.names)(&source);
            names.retain(|name| SECRET_BELOW.contains(&name.to_ascii_lowercase().as_str()));
            names.sort();
            found.extend(names.into_iter().map(|name| target.join(name)));
        }
        if depth < DEPTH {
            let dirs = (probe.dirs)(&source).into_iter();
            let dirs = dirs.map(|name| (source.join(&name), target.join(&name), depth + 1));
            todo.extend(dirs.filter(|(_, target, _)| !masked.contains(target)));
        }
    }
    found
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.contains(&name.as_str())
        || PRIVATE.contains(&name.as_str())
        || SECRET_STARTS.iter().any(|start| name.starts_with(start))
        || SECRET_ENDS.iter().any(|end| name.ends_with(end))
}
