//! The tool chains on the caller's PATH that live outside the system directories: shown read-only at their
//! own paths, as far as they are needed and without their credential files. Decides on what a [`Probe`] tells; touches
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use sbx_api::{Caller, MountKind};

use super::layout::HostBind;
use super::managers::{
    ALL_PROGRAMS, ANYTHING, Contents, LINUXBREW, LOCAL_SHARE, MANAGERS, Manager, ONE_INSTALLATION,
    Part, RUSTUP,
};
use super::secrets::{FileSystemView, Kind, Scan, is_secret, outermost, scan, scan_top};
use super::spec::is_system;
use crate::workspace::private_dirs::is_private;

/// What the decision needs to know of the host.
pub(super) struct Probe<'a> {
    /// Whether the template itself shows a path.
    pub(super) system: &'a dyn Fn(&Path) -> bool,
    /// Whether another user than root puts files into such a directory.
    pub(super) personal: &'a dyn Fn(&Path) -> bool,
    /// The path without symlinks, if it exists.
    pub(super) canonical: &'a dyn Fn(&Path) -> Option<PathBuf>,
    /// The canonical path of a directory that can be shown; `None` for anything else.
    pub(super) dir: &'a dyn Fn(&Path) -> Option<PathBuf>,
    /// What a link says.
    pub(super) link: &'a dyn Fn(&Path) -> Option<PathBuf>,
    /// Why a directory cannot be shown through a layer.
    pub(super) layer: &'a dyn Fn(&Path) -> Option<&'static str>,
    /// Where in one of the sandbox's own workspaces a path leads to, if it does.
    pub(super) own: &'a dyn Fn(&Path) -> Option<PathBuf>,
    pub(super) view: FileSystemView<'a>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ToolChains {
    pub(super) binds: Vec<HostBind>,
    /// What some of them lie in, and nothing else does.
    pub(super) roots: BTreeSet<PathBuf>,
    /// Links beside them, and what they say: `current`, or the short name of a version.
    pub(super) links: BTreeMap<PathBuf, PathBuf>,
    /// The entries of the caller's PATH that exist inside, in order.
    pub(super) path: Vec<PathBuf>,
    /// Where the caller says that each is, and where it really was.
    pub(super) sources: BTreeMap<PathBuf, PathBuf>,
    /// In directories that the template itself shows: must not be seen.
    pub(super) hidden: BTreeSet<PathBuf>,
    pub(super) warnings: Vec<String>,
}

impl ToolChains {
    /// Whether a directory of the agent's can be made at a path: neither the system nor a tool chain is there, nor a
    /// closed directory around one.
    pub(super) fn leave_free(&self, path: &Path) -> bool {
        let binds = self.binds.iter().map(|bind| &bind.target);
        let mut taken = self.roots.iter().chain(binds).chain(self.links.keys());
        !is_system(path) && !taken.any(|taken| path.starts_with(taken))
    }

    /// Whether a path exists inside because of a tool chain.
    pub(super) fn shows(&self, path: &Path) -> bool {
        let mut binds = self.binds.iter().map(|bind| &bind.target);
        binds.any(|target| path.starts_with(target) || target.starts_with(path))
            || self.links.keys().any(|link| path.starts_with(link))
    }
}

const HOMEBREW: &str = "/home/linuxbrew/.linuxbrew";
/// First components outside the home that hold no tool chains, or must never be seen.
const REFUSED: &[&str] = &[
    "boot", "dev", "etc", "media", "mnt", "nix", "proc", "run", "snap", "srv", "sys", "var",
];
pub(super) const AGENT_HOME: &str = "/home/agent";
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
    let mut found = Found::default();
    let mut path = Vec::new();
    let mut seen = BTreeSet::new();
    let mut own = BTreeSet::new();
    for entry in caller.path.split(':').filter_map(clean) {
        if !seen.insert(entry.clone()) {
            continue;
        }
        if let Some(place) = (probe.own)(&entry) {
            // Seen through the workspace, which is mounted over everything else.
            own.insert(place.clone());
            path.push(place);
            continue;
        }
        let mut shown = false;
        for chain in finder.chains(&entry) {
            shown |= finder.show(&chain, &entry, &mut found);
        }
        if shown && !(probe.system)(&entry) && !found.covers(&entry) {
            // Beside what is usual for its manager. Not the root of it, which was decided on.
            finder.show(&unknown(&entry), &entry, &mut found);
        }
        if shown || ((probe.system)(&entry) && (probe.dir)(&entry).is_some()) {
            path.push(entry);
        }
    }
    for name in ["GOROOT", "JAVA_HOME"] {
        if let Some(root) = caller.env.get(name).and_then(|value| clean(value)) {
            let chain = Chain {
                parts: ONE_INSTALLATION,
                root: root.clone(),
            };
            finder.show(&chain, &root, &mut found);
        }
    }
    let mut tools = finder.hide(found);
    finder.hide_in_system(&path, &mut tools);
    let shown: Vec<bool> = path
        .iter()
        .map(|entry| own.contains(entry) || (probe.system)(entry) || tools.shows(entry))
        .collect();
    let kept = path.into_iter().zip(shown);
    tools.path = kept.filter_map(|(e, shown)| shown.then_some(e)).collect();
    tools
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

/// What is never shown, whatever asks for it.
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

/// A directory, and what of it is shown.
struct Chain {
    root: PathBuf,
    parts: &'static [Part],
}

fn unknown(entry: &Path) -> Chain {
    Chain {
        root: entry.to_owned(),
        parts: ANYTHING,
    }
}

/// What was found to be shown, before it was looked at.
#[derive(Default)]
struct Found {
    /// Where inside, where outside, and as which part.
    shown: Vec<(PathBuf, PathBuf, Part)>,
    roots: BTreeSet<PathBuf>,
    links: BTreeMap<PathBuf, PathBuf>,
    sources: BTreeMap<PathBuf, PathBuf>,
}

impl Found {
    fn covers(&self, path: &Path) -> bool {
        let mut shown = self.shown.iter().map(|(target, _, _)| target);
        shown.any(|target| path.starts_with(target) || target.starts_with(path))
            || self.links.keys().any(|link| path.starts_with(link))
    }
}

impl Finder<'_> {
    /// What has to be shown so that the programs in `entry` work.
    fn chains(&self, entry: &Path) -> Vec<Chain> {
        let cargo = self.place(Some("CARGO_HOME"), ".cargo").join("bin");
        // A caller who says where rustup's tool chains are may have its programs below another home.
        let elsewhere =
            entry.ends_with(".cargo/bin") && self.caller.env.contains_key("RUSTUP_HOME");
        if entry == cargo || elsewhere {
            let rustup = self.place(Some("RUSTUP_HOME"), ".rustup");
            return vec![
                Chain {
                    root: entry.to_owned(),
                    parts: ALL_PROGRAMS,
                },
                Chain {
                    root: rustup,
                    parts: RUSTUP,
                },
            ];
        }
        if entry.starts_with(HOMEBREW) {
            return vec![Chain {
                root: HOMEBREW.into(),
                parts: LINUXBREW,
            }];
        }
        let managed = MANAGERS.iter().map(|manager| self.chain(manager));
        if let Some(chain) = managed.into_iter().find(|c| entry.starts_with(&c.root)) {
            return vec![chain];
        }
        let Ok(below) = entry.strip_prefix(&self.home) else {
            return self.chains_elsewhere(entry);
        };
        if below.starts_with(".nix-profile") {
            return Vec::new();
        }
        let mut chains = vec![self.own(entry)];
        if below == Path::new(".local/bin") {
            chains.extend(LOCAL_SHARE.iter().map(|manager| self.chain(manager)));
        }
        chains
    }

    fn chain(&self, manager: &Manager) -> Chain {
        Chain {
            root: self.place(manager.variable, manager.home),
            parts: manager.parts,
        }
    }

    fn chains_elsewhere(&self, entry: &Path) -> Vec<Chain> {
        if (self.probe.system)(entry) {
            // A link that leaves the system directories has to lead somewhere.
            return (self.probe.dir)(entry)
                .filter(|canonical| !(self.probe.system)(canonical))
                .map(|canonical| vec![self.own(&canonical)])
                .unwrap_or_default();
        }
        vec![self.own(entry)]
    }

    /// Only the directory itself; of a Go distribution all.
    fn own(&self, entry: &Path) -> Chain {
        let go = entry.parent().filter(|parent| {
            entry.ends_with("bin")
                && ["pkg/tool", "src/runtime"]
                    .iter()
                    .all(|part| (self.probe.dir)(&parent.join(part)).is_some())
        });
        match go {
            Some(root) => Chain {
                root: root.to_owned(),
                parts: ONE_INSTALLATION,
            },
            None => unknown(entry),
        }
    }

    /// Notes what is shown of a tool chain, if it may be shown at all.
    fn show(&self, chain: &Chain, entry: &Path, found: &mut Found) -> bool {
        let root = &chain.root;
        let Some(canonical) = (self.probe.dir)(root) else {
            return false;
        };
        if (self.probe.system)(root) && (self.probe.system)(&canonical) {
            return true;
        }
        if self.refusals.cover(root) || self.refusals.cover(&canonical) {
            return false;
        }
        let on_the_way = entry.strip_prefix(root).unwrap_or(Path::new(""));
        let once = !chain.parts.iter().any(|part| part.place.contains('@'));
        if once && found.sources.get(root) == Some(&canonical) {
            return true;
        }
        for part in chain.parts {
            for (place, kind) in self.places(&canonical, part.place, on_the_way) {
                // Programs know their place by either spelling.
                for base in [root, &canonical] {
                    let target = below(base, &place);
                    if (self.probe.system)(&target) {
                        continue;
                    }
                    let source = below(&canonical, &place);
                    if !place.as_os_str().is_empty() {
                        found.roots.insert(base.clone());
                    }
                    match kind {
                        Kind::Link => found
                            .links
                            .extend((self.probe.link)(&source).map(|to| (target, to))),
                        Kind::File if part.contents == Contents::Unknown => {}
                        Kind::File | Kind::Dir => {
                            let part = if kind == Kind::File {
                                // Nothing to look into.
                                Part {
                                    contents: Contents::Packages,
                                    ..*part
                                }
                            } else {
                                *part
                            };
                            if !found.shown.iter().any(|(known, _, _)| *known == target) {
                                found.shown.push((target, source, part));
                            }
                        }
                    }
                }
            }
        }
        found.sources.insert(root.clone(), canonical);
        true
    }

    /// The places of a part below the root of a tool chain. A link on the way is one itself, and not followed.
    fn places(&self, root: &Path, pattern: &str, entry: &Path) -> Vec<(PathBuf, Kind)> {
        let mut links = Vec::new();
        let mut places = vec![(PathBuf::new(), Kind::Dir)];
        let mut entry = entry.iter();
        for name in Path::new(pattern) {
            let on_the_way = entry.next();
            let mut next = Vec::new();
            for (place, kind) in places {
                match kind {
                    Kind::Dir => {}
                    Kind::Link => {
                        links.push((place, kind));
                        continue;
                    }
                    Kind::File => continue,
                }
                let names = match (name.to_str(), on_the_way) {
                    (Some("*"), _) => (self.probe.view.list)(&below(root, &place))
                        .into_iter()
                        .filter(|found| found.kind != Kind::File && !is_secret(&found.name))
                        .map(|found| found.name)
                        .collect(),
                    (Some("@"), on_the_way) => {
                        on_the_way.map(OsStr::to_owned).into_iter().collect()
                    }
                    _ => vec![name.to_owned()],
                };
                for name in names {
                    let place = place.join(name);
                    let kind = (self.probe.view.kind)(&root.join(&place));
                    next.extend(kind.map(|kind| (place, kind)));
                }
            }
            places = next;
        }
        links.extend(places);
        links
    }

    /// Looks at everything that is shown, and says what of it is not.
    fn hide(&self, found: Found) -> ToolChains {
        let mut tools = ToolChains {
            roots: found.roots,
            links: found.links,
            sources: found.sources,
            ..ToolChains::default()
        };
        let mut followed = BTreeSet::new();
        let mut known: BTreeMap<PathBuf, Scan> = BTreeMap::new();
        for (target, source, part) in without_nested(found.shown) {
            let looked = known
                .entry(source.clone())
                .or_insert_with(|| scan(&source, &part, &self.probe.view));
            if let Some(unseen) = looked.unseen.first() {
                tools.warnings.push(format!(
                    "`{}` is not shown inside, nor {} more: too much to look through for credentials; hint: have a \
                     directory with programs only in PATH",
                    below(&target, unseen).display(),
                    looked.unseen.len() - 1
                ));
            }
            let links = looked.links.iter().map(|link| source.join(link));
            followed.extend(links.filter_map(|link| (self.probe.canonical)(&link)));
            tools.binds.push(HostBind {
                layered: (self.probe.view.kind)(&source) != Some(Kind::File),
                hidden: looked.hidden.clone(),
                source,
                target,
                kind: MountKind::Toolchain,
            });
        }
        // There the directory has them itself.
        let shown: Vec<&PathBuf> = tools.binds.iter().map(|bind| &bind.target).collect();
        let hangs = |path: &Path| !shown.iter().any(|above| path.starts_with(above));
        tools.links.retain(|link, _| hangs(link));
        tools.roots.retain(|root| hangs(root));
        // What a credential is a link to is hidden where it is shown.
        for real in followed {
            for bind in &mut tools.binds {
                let below = real.strip_prefix(&bind.source).ok();
                if let Some(below) = below.filter(|path| *path != Path::new("")) {
                    bind.hidden.insert(below.to_owned());
                    bind.hidden = outermost(std::mem::take(&mut bind.hidden));
                }
            }
        }
        let ToolChains {
            binds, warnings, ..
        } = &mut tools;
        binds.retain(|bind| {
            let problem = self.problem(bind);
            warnings.extend(problem.map(|problem| {
                format!("`{}` is not shown inside: {problem}", bind.target.display())
            }));
            problem.is_none()
        });
        tools
    }

    /// The same in what the template itself shows, where a user has directories of the PATH among root's.
    fn hide_in_system(&self, path: &[PathBuf], tools: &mut ToolChains) {
        let system = |path: &PathBuf| (self.probe.system)(path);
        let places = path.iter().filter_map(|entry| (self.probe.dir)(entry));
        let places: BTreeSet<PathBuf> = places
            .filter(|place| system(place) && (self.probe.personal)(place))
            .collect();
        for place in places {
            let looked = scan_top(&place, &self.probe.view);
            let links = looked.links.iter().map(|link| place.join(link));
            let real = links.filter_map(|link| (self.probe.canonical)(&link));
            tools.hidden.extend(real.filter(system));
            let hidden = looked.hidden.iter().map(|hidden| place.join(hidden));
            tools.hidden.extend(hidden);
        }
    }

    /// Why it cannot be shown through a layer, where it has to be.
    fn problem(&self, bind: &HostBind) -> Option<&'static str> {
        let holds = self.probe.view.holds_workspace;
        if !bind.layered {
            return None;
        }
        let held = || {
            let mut hidden = bind.hidden.iter();
            hidden
                .any(|hidden| holds(&bind.source.join(hidden)))
                .then_some("a workspace lies in a part of it that must be hidden")
        };
        (self.probe.layer)(&bind.source).or_else(held)
    }

    fn place(&self, variable: Option<&str>, usual: &str) -> PathBuf {
        variable
            .and_then(|variable| self.caller.env.get(variable))
            .and_then(|value| clean(value))
            .unwrap_or_else(|| self.home.join(usual))
    }
}

/// Without the slash that joining nothing adds.
fn below(root: &Path, place: &Path) -> PathBuf {
    root.join(place).components().collect()
}

/// Parents first, and none below another one: there it is the same directory, or a link that leads inside to where
/// it leads outside.
fn without_nested(mut shown: Vec<(PathBuf, PathBuf, Part)>) -> Vec<(PathBuf, PathBuf, Part)> {
    shown.sort_by(|(a, _, _), (b, _, _)| a.cmp(b));
    let mut kept: Vec<(PathBuf, PathBuf, Part)> = Vec::new();
    for next in shown {
        if !kept.iter().any(|(above, _, _)| next.0.starts_with(above)) {
            kept.push(next);
        }
    }
    kept
}
