//! Directories of the caller that a sandbox writes copies of: package caches, at the paths that they have outside so
//! that what was built with them stays valid, and the wrappers of version managers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::layout::{HostBind, HostLayout, OverlayDir};
use super::spec::layer_name;
use super::toolchain::{AGENT_HOME, clean};

/// A directory of the host, and its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CacheDir {
    pub(super) path: PathBuf,
    pub(super) owner: (u32, u32),
}

struct Cache {
    /// Where the caller has it: variables with what follows their value, then a path below the home. The first variable
    /// tells the tool inside.
    variables: &'static [(&'static str, &'static str)],
    home: &'static str,
    /// Below `/home/agent`, where it cannot keep its path.
    target: &'static str,
    /// Clones, whose settings name the repositories with what opens them.
    hidden: &'static [&'static str],
    /// What stands before the path in the value of the variable.
    prefix: &'static str,
}

const CACHES: &[Cache] = &[
    Cache {
        variables: &[(CARGO_HOME, "registry")],
        home: ".cargo/registry",
        target: ".cargo/registry",
        hidden: &[],
        prefix: "",
    },
    Cache {
        variables: &[("npm_config_cache", "_cacache")],
        home: ".npm/_cacache",
        target: ".npm/_cacache",
        hidden: &[],
        prefix: "",
    },
    Cache {
        variables: &[("PIP_CACHE_DIR", "")],
        home: ".cache/pip",
        target: ".cache/pip",
        hidden: &[],
        prefix: "",
    },
    Cache {
        variables: &[("GOMODCACHE", ""), ("GOPATH", "pkg/mod")],
        home: "go/pkg/mod",
        target: "go/pkg/mod",
        hidden: &["cache/vcs"],
        prefix: "",
    },
    Cache {
        // Options of the JVM: every version reads them.
        variables: &[(MAVEN_OPTS, "")],
        home: ".m2/repository",
        target: ".m2/repository",
        hidden: &[],
        prefix: "-Dmaven.repo.local=",
    },
    Cache {
        // Without `gradle.properties`, which may hold passwords.
        variables: &[(GRADLE_HOME, "caches/modules-2")],
        home: ".gradle/caches/modules-2",
        target: ".gradle/caches/modules-2",
        hidden: &[],
        prefix: "",
    },
];

/// What Go compiled of all the caller's projects: shown only if the user's settings ask for it.
const GO_BUILD: Cache = Cache {
    variables: &[("GOCACHE", "")],
    home: ".cache/go-build",
    target: ".cache/go-build",
    hidden: &[],
    prefix: "",
};

/// Below `/home/agent`: where tools keep what they compiled or downloaded, none of which is taken from the caller. Kept
/// for the next sandbox of a repository if that is asked for.
const OWN_CACHES: &[&str] = &[".cache", ".gradle/caches"];
/// The same below Cargo's home.
const CARGO_GIT: &str = "git";
const CARGO_HOME: &str = "CARGO_HOME";
/// And below Gradle's.
const GRADLE_CACHES: &str = "caches";
const GRADLE_HOME: &str = "GRADLE_USER_HOME";
const MAVEN_OPTS: &str = "MAVEN_OPTS";

/// Their places below `/home/agent`, which every template has.
pub(super) fn targets() -> impl Iterator<Item = PathBuf> {
    let found = CACHES.iter().map(|cache| PathBuf::from(cache.target));
    let own = OWN_CACHES.iter().map(PathBuf::from);
    found
        .chain(own)
        .chain([Path::new(".cargo").join(CARGO_GIT)])
}

/// The caches of a caller.
#[derive(Debug, Default)]
pub(super) struct Caches {
    pub(super) overlays: Vec<OverlayDir>,
    /// Where the caller says that each is, and where it really is.
    pub(super) sources: Vec<(PathBuf, PathBuf)>,
    /// Directories around them, in which tools write too: empty, and the agent's.
    pub(super) dirs: BTreeSet<PathBuf>,
    pub(super) env: BTreeMap<String, String>,
}

/// The caches that exist. `probe` gives the canonical path and owner of a directory that the caller may read and that can
/// be a layer; `free` says whether a directory of the agent's can be made at a path.
pub(super) fn caches(
    home: &Path,
    env: &BTreeMap<String, String>,
    go_build_cache: bool,
    probe: &dyn Fn(&Path) -> Option<CacheDir>,
    free: &dyn Fn(&Path) -> bool,
) -> Caches {
    let mut caches = Caches::default();
    for cache in CACHES.iter().chain(go_build_cache.then_some(&GO_BUILD)) {
        let place = cache.place(home, env);
        let told = cache.told(&place).filter(|(_, dir)| free(dir));
        let told = told.filter(|(_, dir)| cache.value(dir).is_some());
        let found = probe(&place);
        // A tool without a cache yet will have it where it has it outside.
        let around = |dir: &PathBuf| *dir != place && probe(dir).is_some();
        if let Some((variable, dir)) = told.as_ref()
            && (found.is_some() || around(dir))
            && let Some(text) = cache.value(dir)
        {
            caches.env.insert((*variable).to_owned(), text);
            if *dir != place {
                caches.dirs.insert(dir.clone());
            }
        }
        let Some(found) = found else { continue };
        let target = match told {
            Some(_) => place.clone(),
            // The template has no directory for it.
            None if cache.variables == GO_BUILD.variables => continue,
            None => Path::new(AGENT_HOME).join(cache.target),
        };
        caches.sources.push((place, found.path.clone()));
        caches.overlays.push(OverlayDir {
            dir: layer_name(&target),
            target,
            lowers: vec![found.path],
            agents: BTreeSet::new(),
            as_owner: Some(found.owner),
            hidden: cache.hidden.iter().map(PathBuf::from).collect(),
        });
    }
    if caches.env.contains_key(CARGO_HOME) {
        // Its own programs are on the caller's PATH, where nothing can be added.
        let root = format!("{AGENT_HOME}/.cargo");
        caches.env.insert("CARGO_INSTALL_ROOT".to_owned(), root);
    }
    if let Some(options) = caches.env.get(MAVEN_OPTS).cloned() {
        // Builds that set the options of the JVM themselves; since Maven 3.9.
        caches.env.insert("MAVEN_ARGS".to_owned(), options);
    }
    caches
}

impl Cache {
    fn place(&self, home: &Path, env: &BTreeMap<String, String>) -> PathBuf {
        let named = self.variables.iter().find_map(|(name, rest)| {
            let value = env.get(*name)?.strip_prefix(self.prefix).and_then(clean)?;
            Some(value.join(rest).components().collect())
        });
        named.unwrap_or_else(|| home.join(self.home))
    }

    /// What the variable is for a directory. Words of options have no blanks in them.
    fn value(&self, dir: &Path) -> Option<String> {
        let text = dir.to_str()?;
        let is_word = self.prefix.is_empty() || !text.contains(char::is_whitespace);
        is_word.then(|| format!("{}{text}", self.prefix))
    }

    /// The directory that the first variable names in `env`.
    fn dir<'a>(&self, env: &'a BTreeMap<String, String>) -> Option<&'a Path> {
        let (name, _) = self.variables.first()?;
        env.get(*name)?.strip_prefix(self.prefix).map(Path::new)
    }

    /// The variable that tells the tool where `place` is, and the directory that it names.
    fn told(&self, place: &Path) -> Option<(&'static str, PathBuf)> {
        let (name, rest) = self.variables.first()?;
        let mut dir = place;
        for _ in Path::new(rest) {
            dir = dir.parent()?;
        }
        dir.join(rest)
            .components()
            .eq(place.components())
            .then(|| (*name, dir.to_owned()))
    }
}

/// Every directory whose content can be kept for the next sandbox of a repository: the caches of `layout`, and those that
/// begin empty, which are added to it. The names of their layers.
pub(super) fn keep(layout: &mut HostLayout, owner: (u32, u32)) -> BTreeSet<String> {
    let cargo = layout.env.get(CARGO_HOME);
    let cargo = cargo.map_or_else(|| Path::new(AGENT_HOME).join(".cargo"), PathBuf::from);
    let lower = layout.root_lower.join("home/agent");
    let has = |caches: &[OverlayDir], target: &Path| caches.iter().any(|it| it.target == target);
    let mut wanted = vec![(cargo.join(CARGO_GIT), Path::new(".cargo").join(CARGO_GIT))];
    for own in OWN_CACHES {
        wanted.push((Path::new(AGENT_HOME).join(own), own.into()));
    }
    if let Some(gradle) = layout.env.get(GRADLE_HOME) {
        let caches = Path::new(".gradle").join(GRADLE_CACHES);
        wanted.push((Path::new(gradle).join(GRADLE_CACHES), caches));
    }
    for cache in CACHES {
        let rest = cache.variables.first().map_or("", |(_, rest)| rest);
        let target = match cache.dir(&layout.env) {
            Some(dir) => below(dir, rest),
            None => Path::new(AGENT_HOME).join(cache.target),
        };
        if !has(&layout.caches, &target) {
            wanted.push((target, cache.target.into()));
        }
    }
    wanted.retain(|(target, _)| !has(&layout.caches, target));
    // Parents first.
    wanted.sort();
    let added = wanted.into_iter().map(|(target, own)| OverlayDir {
        dir: layer_name(&target),
        target,
        lowers: vec![lower.join(own)],
        agents: BTreeSet::new(),
        as_owner: Some(owner),
        hidden: BTreeSet::new(),
    });
    let added: Vec<OverlayDir> = added.collect();
    layout.caches.splice(0..0, added);
    let kept = layout
        .caches
        .iter()
        .filter(|it| !it.target.ends_with(SHIMS));
    kept.map(|it| it.dir.clone()).collect()
}

/// Without the slash that joining nothing adds.
fn below(dir: &Path, rest: &str) -> PathBuf {
    dir.join(rest).components().collect()
}

/// Where pyenv, rbenv and their like keep a wrapper per program. They write it again after every installation,
/// and an installation that cannot is a failed one (`pip install` ends with 1).
const SHIMS: &str = "shims";

/// Takes the wrappers out of the tool chains in `binds`: they are shown at their own places, but can be written.
pub(super) fn shims(
    binds: &mut Vec<HostBind>,
    probe: &dyn Fn(&Path) -> Option<CacheDir>,
) -> Vec<OverlayDir> {
    let mut taken = Vec::new();
    binds.retain(|bind| {
        let wrappers = bind.hidden.is_empty() && bind.target.ends_with(SHIMS);
        let found = wrappers.then(|| probe(&bind.source)).flatten();
        let overlay = found.map(|found| OverlayDir {
            dir: layer_name(&bind.target),
            target: bind.target.clone(),
            lowers: vec![found.path],
            agents: BTreeSet::new(),
            as_owner: Some(found.owner),
            hidden: BTreeSet::new(),
        });
        let kept = overlay.is_none();
        taken.extend(overlay);
        kept
    });
    taken
}
