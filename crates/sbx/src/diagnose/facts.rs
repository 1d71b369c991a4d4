//! Everything that the checks look at, as plain data: recorded facts of another machine are as good as this one's.

use std::path::PathBuf;

use sbx_proto::plan::Mode;

#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) executable: Option<PathBuf>,
    pub(crate) companions: Companions,
    pub(crate) version: &'static str,
    /// What the engine picks here.
    pub(crate) mode: Mode,
    /// The user namespace that this process is in lacks the ids that sandboxes of root get.
    pub(crate) confined: bool,
    pub(crate) user: String,
    pub(crate) daemon: Daemon,
    pub(crate) socket: Socket,
    pub(crate) storage: Storage,
    pub(crate) settings: Settings,
    pub(crate) rules: Rules,
    /// Bytes free where the state lies or will lie.
    pub(crate) disk_free: Option<u64>,
    pub(crate) kernel: String,
    pub(crate) user_namespaces: UserNamespaces,
    pub(crate) overlay: bool,
    pub(crate) nf_tables: bool,
    pub(crate) cgroups: Cgroups,
    pub(crate) subordinate: Subordinate,
    /// The actions that the kernel's seccomp knows; empty without seccomp.
    pub(crate) seccomp_actions: Vec<String>,
    /// What making a sandbox's namespaces and mounts came to, when it was tried: why it failed.
    pub(crate) trial: Result<(), String>,
    /// Mounts below /proc, which hide parts of it.
    pub(crate) proc_masks: Vec<String>,
    pub(crate) kvm: bool,
}

/// The programs that are installed beside this one: where each should be, and whether it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Companions {
    pub(crate) daemon: Companion,
    pub(crate) init: Companion,
    pub(crate) sudo: Companion,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Companion {
    pub(crate) path: PathBuf,
    pub(crate) found: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Daemon {
    /// There is no state directory in which one of ours could serve.
    Unasked,
    NotRunning,
    Running {
        version: String,
    },
    Unreachable {
        message: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) path: PathBuf,
    /// Permission bits, `None` when there is no socket.
    pub(crate) mode: Option<u32>,
    pub(crate) own: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Storage {
    pub(crate) path: PathBuf,
    pub(crate) state: StorageState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StorageState {
    /// The environment does not say where it is: why, and what to do.
    Nowhere {
        message: String,
        hint: String,
    },
    /// Made by the first command that needs it; whether that can work.
    Missing {
        parent_writable: bool,
    },
    /// It is something else, or something else is where a directory above it should be.
    NotDirectory,
    /// It cannot be looked at.
    Closed {
        reason: String,
    },
    OtherUser {
        owner: u32,
    },
    /// Exists, and another product made it.
    Foreign,
    Ours {
        mode: u32,
    },
}

impl StorageState {
    /// Whether there can be a daemon of ours, and settings.
    pub(crate) fn is_usable(&self) -> bool {
        match self {
            Self::Missing { .. } | Self::Ours { .. } => true,
            Self::Nowhere { .. }
            | Self::NotDirectory
            | Self::Closed { .. }
            | Self::OtherUser { .. }
            | Self::Foreign => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rules {
    Unread,
    Readable,
    Broken {
        reason: String,
        hint: Option<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Settings {
    /// There is no state directory to look into.
    Unread,
    Valid,
    /// Why they cannot be used.
    Broken {
        path: PathBuf,
        reason: String,
    },
}

/// The switches that can turn user namespaces off; `None` where the kernel has no such switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UserNamespaces {
    pub(crate) supported: bool,
    pub(crate) unprivileged_userns_clone: Option<u64>,
    pub(crate) max_user_namespaces: Option<u64>,
    pub(crate) apparmor_restrict: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cgroups {
    None,
    V1 {
        writable: bool,
    },
    V2 {
        writable: bool,
        controllers: String,
    },
    /// Controllers of v1 beside a tree of v2.
    Hybrid {
        writable: bool,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Subordinate {
    /// `newuidmap` and `newgidmap` are installed.
    pub(crate) tools: bool,
    /// The group of this process is not the one of the account.
    pub(crate) other_group: bool,
    /// The largest range of the user.
    pub(crate) uids: u32,
    pub(crate) gids: u32,
    /// The first and last id of a range that nobody has.
    pub(crate) free: Option<(u32, u32)>,
}
