//! Which of the host's directories and files a template may have something of, decided on the `fstat` of what was opened.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::{FileType, Stat};
use rustix::process::geteuid;
use sbx_proto::OsBytes;
use sbx_proto::plan::Mode;

use super::copy::{may_enter, may_read};
use super::host_dir::{HostDir, kind_of};
use super::spec::Spec;
use sbx_proto::inside::AGENT;

/// The id that the kernel shows for an owner who has none in this user namespace (`/proc/sys/kernel/overflowuid`).
pub(super) const OVERFLOW_ID: u32 = 65534;
const OTHERS_SEARCH: u32 = 0o001;
const WRITABLE_FOR_MORE: u32 = 0o022;

/// What a sandbox may do with a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Listed,
    Entered,
    Closed,
}

pub(super) struct AccessRules {
    mode: Mode,
    /// The builder's own id.
    us: u32,
    /// Device and inode of each directory that is left out.
    left_out: BTreeSet<(u64, u64)>,
}

impl AccessRules {
    pub(super) fn new(spec: &Spec) -> Self {
        let paths = spec.left_out.iter().map(OsBytes::as_path);
        let found = paths.filter_map(|path| fs::symlink_metadata(path).ok());
        Self {
            mode: spec.mode,
            us: geteuid().as_raw(),
            left_out: found.map(|meta| (meta.dev(), meta.ino())).collect(),
        }
    }

    /// A workspace, or the state directory: by any name it is the same directory.
    pub(super) fn leaves_out(&self, place: &HostDir) -> bool {
        self.left_out.contains(&place.identity())
    }

    /// Whether it is root's or the caller's. In a user namespace the kernel does not tell root from the host's other
    /// users.
    pub(super) fn knows_owner(&self, stat: &Stat) -> bool {
        self.is_roots(stat) || (self.in_namespace() && stat.st_uid == AGENT)
    }

    pub(super) fn is_roots(&self, stat: &Stat) -> bool {
        stat.st_uid == 0
            || stat.st_uid == self.us
            || (self.in_namespace() && stat.st_uid == OVERFLOW_ID)
    }

    /// Whether only root can change what is in it.
    pub(super) fn is_solid(&self, place: &HostDir) -> bool {
        self.is_roots(&place.stat) && place.stat.st_mode & WRITABLE_FOR_MORE == 0
    }

    /// Whether directories are made again. Where the caller is the only user inside, the host's alone do.
    pub(super) fn mirrors(&self) -> bool {
        match self.mode {
            Mode::Root | Mode::Subordinate => true,
            Mode::Single => false,
        }
    }

    /// Whether something can be private at all: in root mode the sandbox has no id of the host, and the kernel decides.
    pub(super) fn seeks_private(&self) -> bool {
        match self.mode {
            Mode::Root => false,
            Mode::Subordinate | Mode::Single => true,
        }
    }

    /// Whether it belongs to the caller, whose id programs inside have. With subordinate ids these are the caller's as
    /// well, and root inside has them all: a rootless container's files are private in the same way.
    pub(super) fn is_callers(&self, stat: &Stat) -> bool {
        match self.mode {
            Mode::Root => false,
            Mode::Subordinate if self.us == 0 => stat.st_uid != OVERFLOW_ID,
            Mode::Subordinate | Mode::Single => stat.st_uid == self.us,
        }
    }

    /// Whether the caller keeps it from others, although programs inside could read it.
    pub(super) fn is_private(&self, stat: &Stat) -> bool {
        let open = match kind_of(stat) {
            FileType::Directory => may_enter(stat.st_mode),
            _ => may_read(stat.st_mode),
        };
        self.is_callers(stat) && !open
    }

    /// Root outside can enter everything; root inside is one of the others there.
    pub(super) fn reach(&self, place: &HostDir) -> Reach {
        let bits = place.stat.st_mode;
        let (listed, entered) = match self.mode {
            Mode::Root => (may_enter(bits), bits & OTHERS_SEARCH != 0),
            Mode::Subordinate | Mode::Single => (place.can_be_listed(), place.can_be_entered()),
        };
        match (listed, entered) {
            (true, _) => Reach::Listed,
            (false, true) => Reach::Entered,
            (false, false) => Reach::Closed,
        }
    }

    /// Whether programs inside may find something in a directory that could not be looked through. What is closed to the
    /// builder may be open to the agent, who has the caller's group.
    pub(super) fn opens_inside(&self, reach: Reach) -> bool {
        match (self.mode, reach) {
            (Mode::Root, _) | (_, Reach::Listed) | (Mode::Single, Reach::Closed) => false,
            (Mode::Subordinate | Mode::Single, Reach::Entered)
            | (Mode::Subordinate, Reach::Closed) => true,
        }
    }

    fn in_namespace(&self) -> bool {
        matches!(self.mode, Mode::Subordinate)
    }
}
