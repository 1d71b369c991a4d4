//! What a sandbox on the host template consists of. Data only; the engine turns it into mounts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use sbx_api::MountKind;

use super::caches::keep;

/// A directory that is copy-on-write inside. The kernel takes mode and owner of its top from the sandbox's own
/// layer: 755, root's, or the agent's where `as_owner` is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayDir {
    pub target: PathBuf,
    /// Uppermost first.
    pub lowers: Vec<PathBuf>,
    /// Name of its directory in the sandbox's own layer: unique in a layout, `[a-z0-9-]` only.
    pub dir: String,
    /// The host's owner of the lowers, whose files are the agent's inside (root mode maps them as
    /// `SourceIds::Owner`; shifted, root would own the agent's caches). `None`: system directories.
    pub as_owner: Option<(u32, u32)>,
    /// Of the lowers, what must not be seen: paths below them.
    pub hidden: BTreeSet<PathBuf>,
    /// Directories on the way to `hidden` that belong to the agent, and not to whom the top does.
    pub agents: BTreeSet<PathBuf>,
}

/// A file or directory of the host, read-only inside. Its ids are plain in every mode: in root mode root
/// inside then reads what others may read, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostBind {
    pub source: PathBuf,
    pub target: PathBuf,
    pub kind: MountKind,
    /// Whether it is shown through a layer: a directory without anything mounted below it. A read-only mount alone does
    /// not prevent connecting to a socket of the host's in there, or watching what the host opens.
    pub layered: bool,
    /// Must not be seen, now or when it is made later: paths below it. Only a layer hides them.
    pub hidden: BTreeSet<PathBuf>,
}

/// The layer of a build cache that outlives its sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptCaches {
    pub layers: PathBuf,
    /// The host's owner of the repository, whose files are the agent's inside.
    pub owner: (u32, u32),
    /// Which caches, by [`OverlayDir::dir`].
    pub dirs: BTreeSet<String>,
}

/// What a sandbox changed that a template was saved from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedLayers {
    /// Has a directory for each of `dirs`.
    pub layers: PathBuf,
    /// By [`OverlayDir::dir`].
    pub dirs: BTreeSet<String>,
    /// In root mode, the host id of root in that sandbox.
    pub base: Option<u32>,
}

impl HostLayout {
    /// Keeps what tools cache in `layers`.
    pub(crate) fn keep_caches(&mut self, layers: PathBuf, owner: (u32, u32)) {
        let dirs = keep(self, owner);
        self.kept = Some(KeptCaches {
            layers,
            owner,
            dirs,
        });
    }
}

/// Workspaces are mounted after all of it: a PATH entry inside a workspace must not make that part read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLayout {
    /// The host's version; a sandbox records it and warns when it has changed.
    pub fingerprint: String,
    /// Lowest layer of `/`: `/etc`, `/var`, `/home/agent`, mount points.
    pub root_lower: PathBuf,
    /// System directories, to be mounted in this order.
    pub overlays: Vec<OverlayDir>,
    /// System directories that cannot be overlays, to be mounted in this order.
    pub system: Vec<HostBind>,
    /// Files in `system` that must not be read.
    pub masked: BTreeSet<PathBuf>,
    /// Directories in which `binds` and `links` lie, and which are made for them anew at each start and cannot be
    /// written: what is gone outside then is gone inside, and the disk is spared. Also what must not be seen of `system`.
    pub roots: BTreeSet<PathBuf>,
    /// To be mounted in this order, after all of these.
    pub binds: Vec<HostBind>,
    /// Links beside them, and what they say.
    pub links: BTreeMap<PathBuf, PathBuf>,
    /// Empty directories of the agent's, in which `caches` lie; after `links`.
    pub dirs: BTreeSet<PathBuf>,
    /// Package caches, and wrappers in tool chains; after `dirs`.
    pub caches: Vec<OverlayDir>,
    /// Layers above all lowers, uppermost first.
    pub saved: Vec<SavedLayers>,
    /// Where what is written to some of the caches is kept, if not with the sandbox.
    pub kept: Option<KeptCaches>,
    pub env: BTreeMap<String, String>,
    /// Where the caller says that its tools and caches are, and where they really are: to be given again at the
    /// next start.
    pub sources: BTreeMap<PathBuf, PathBuf>,
    pub warnings: Vec<String>,
}
