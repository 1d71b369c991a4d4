//! Directories of the caller that a sandbox writes copies of: package caches, below `/home/agent`, and the
//! wrappers of version managers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::layout::{HostBind, OverlayDir};
use super::spec::layer_name;

/// A directory of the host, and its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CacheDir {
    pub(super) path: PathBuf,
    pub(super) owner: (u32, u32),
}

struct Cache {
    /// Where the caller has it: variables with what follows their value, then a path below the home.
    variables: &'static [(&'static str, &'static str)],
    home: &'static str,
    /// Below `/home/agent`.
    target: &'static str,
    /// Clones, whose settings name the repositories with what opens them.
    hidden: &'static [&'static str],
}

const CACHES: &[Cache] = &[
    Cache {
        variables: &[("CARGO_HOME", "registry")],
        home: ".cargo/registry",
        target: ".cargo/registry",
        hidden: &[],
    },
    Cache {
        variables: &[("npm_config_cache", "_cacache")],
        home: ".npm/_cacache",
        target: ".npm/_cacache",
        hidden: &[],
    },
    Cache {
        variables: &[("PIP_CACHE_DIR", "")],
        home: ".cache/pip",
        target: ".cache/pip",
        hidden: &[],
    },
    Cache {
        variables: &[("GOMODCACHE", ""), ("GOPATH", "pkg/mod")],
        home: "go/pkg/mod",
        target: "go/pkg/mod",
        hidden: &["cache/vcs"],
    },
];

/// Their places below `/home/agent`.
pub(super) fn targets() -> impl Iterator<Item = &'static str> {
    CACHES.iter().map(|cache| cache.target)
}

/// The caches that exist, each with the place that the caller has it at. `probe` gives the canonical path and owner of a directory that the caller may read
/// and that can be a layer.
pub(super) fn caches(
    home: &Path,
    env: &BTreeMap<String, String>,
    probe: &dyn Fn(&Path) -> Option<CacheDir>,
) -> Vec<(PathBuf, OverlayDir)> {
    CACHES
        .iter()
        .filter_map(|cache| {
            let place = cache
                .variables
                .iter()
                .find_map(|(name, rest)| {
                    let value = env
                        .get(*name)
                        .map(Path::new)
                        .filter(|value| value.is_absolute())?;
                    Some(value.join(rest))
                })
                .unwrap_or_else(|| home.join(cache.home));
            let found = probe(&place)?;
            let target = Path::new("/home/agent").join(cache.target);
            let cache = OverlayDir {
                dir: layer_name(&target),
                target,
                lowers: vec![found.path],
                agents: BTreeSet::new(),
                as_owner: Some(found.owner),
                hidden: cache.hidden.iter().map(PathBuf::from).collect(),
            };
            Some((place, cache))
        })
        .collect()
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
