//! The input of the checks as plain data, so that tests can use the facts of any machine.

use std::path::PathBuf;

use sbx_engine::machine::namespace::devices::UnusableDevice;
use sbx_proto::plan::Mode;

#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) executable: Option<PathBuf>,
    pub(crate) companions: Companions,
    pub(crate) version: &'static str,
    /// The privilege mode that the engine chooses here.
    pub(crate) mode: Mode,
    /// This process is root of a user namespace without the ids that sandboxes of root need.
    pub(crate) confined: bool,
    pub(crate) user: String,
    pub(crate) daemon: Daemon,
    pub(crate) socket: Socket,
    pub(crate) storage: Storage,
    pub(crate) settings: Settings,
    pub(crate) rules: Rules,
    /// Free bytes on the file system of the state directory.
    pub(crate) disk_free: Option<u64>,
    pub(crate) kernel: String,
    pub(crate) user_namespaces: UserNamespaces,
    pub(crate) overlay: bool,
    pub(crate) nf_tables: bool,
    pub(crate) cgroups: Cgroups,
    pub(crate) subordinate: Subordinate,
    /// The actions that the kernel's seccomp knows; empty without seccomp.
    pub(crate) seccomp_actions: Vec<String>,
    /// The result of creating a sandbox's namespaces and mounts as a trial.
    pub(crate) trial: Result<(), String>,
    /// The host's device nodes that a sandbox cannot use.
    pub(crate) unusable_devices: Vec<UnusableDevice>,
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
    /// There is no usable state directory.
    NotChecked,
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
    /// The usual place, if another product has it.
    pub(crate) foreign: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StorageState {
    /// Its path cannot be determined from the environment.
    Unresolved {
        message: String,
        hint: String,
    },
    /// The first command that needs it creates it, if the parent is writable.
    Missing {
        parent_writable: bool,
    },
    /// It, or a parent, is not a directory.
    NotDirectory,
    /// It cannot be accessed.
    Inaccessible {
        reason: String,
    },
    OtherUser {
        owner: u32,
    },
    /// It belongs to another product.
    Foreign,
    Ours {
        mode: u32,
    },
}

impl StorageState {
    /// Whether it can have a daemon and settings of ours.
    pub(crate) fn is_usable(&self) -> bool {
        match self {
            Self::Missing { .. } | Self::Ours { .. } => true,
            Self::Unresolved { .. }
            | Self::NotDirectory
            | Self::Inaccessible { .. }
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
    /// There is no usable state directory.
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
    /// The first and last id of an unassigned range.
    pub(crate) free: Option<(u32, u32)>,
}
