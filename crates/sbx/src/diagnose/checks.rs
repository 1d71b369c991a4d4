//! Evaluates facts: what each means for sandboxes, and how to fix it. No I/O.

use sbx_api::VERSION;
use sbx_engine::machine::namespace::devices::UnusableDevice;
use sbx_engine::machine::namespace::ids::{CONFINED_REMEDY, OTHER_GROUP_REMEDY};
use sbx_proto::plan::Mode;
use sbx_proto::shell::quoted;
use serde::Serialize;

use super::facts::{Cgroups, Companion, Daemon, Facts, Rules, Settings, StorageState};

/// Less free space than this is a failure, less than the second a warning.
const DISK_FAIL: u64 = 100 << 20;
const DISK_WARN: u64 = 1 << 30;
/// Unprivileged overlayfs and idmapped mounts.
const KERNEL_MIN: (u32, u32) = (5, 12);
/// Idmapped lower layers of overlayfs, which root's sandboxes use.
const KERNEL_ROOT: (u32, u32) = (5, 19);
const IDS: u32 = 65_536;
const TOGETHER: &str = "install `sbx`, `sandboxd`, `sbx-init` and `sbx-sudo` in one directory";
const NO_STATE_DIR: &str = "no state directory";
const CANNOT_CREATE: &str = "a sandbox cannot be created here";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Pass,
    Warn,
    Fail,
    Skip,
}

impl Status {
    pub(crate) fn mark(self) -> &'static str {
        match self {
            Self::Pass => "✓",
            Self::Warn => "!",
            Self::Fail => "✗",
            Self::Skip => "-",
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Installation,
    Platform,
    Storage,
    Connection,
}

impl Group {
    pub(crate) const ALL: [Self; 4] = [
        Self::Installation,
        Self::Platform,
        Self::Storage,
        Self::Connection,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Installation => "Installation",
            Self::Platform => "Platform",
            Self::Storage => "Storage",
            Self::Connection => "Connection",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    #[serde(skip)]
    pub(crate) group: Group,
    pub(crate) name: &'static str,
    pub(crate) status: Status,
    pub(crate) message: String,
    pub(crate) detail: String,
    pub(crate) hint: String,
}

impl Check {
    fn new(group: Group, name: &'static str, status: Status, message: impl Into<String>) -> Self {
        Self {
            group,
            name,
            status,
            message: message.into(),
            detail: String::new(),
            hint: String::new(),
        }
    }

    fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}

pub(crate) fn check(facts: &Facts) -> Vec<Check> {
    vec![
        binary(facts),
        daemon_binary(facts),
        init_binary(facts),
        sudo_binary(facts),
        Check::new(
            Group::Installation,
            "Binary version",
            Status::Pass,
            format!("v{}", facts.version),
        ),
        Check::new(
            Group::Installation,
            "Authentication",
            Status::Pass,
            "no account is needed",
        ),
        kernel(facts),
        virtualization(facts),
        mode(facts),
        trial(facts),
        user_namespaces(facts),
        subordinate(facts),
        overlay(facts),
        seccomp(facts),
        proc_mount(facts),
        cgroups(facts),
        nf_tables(facts),
        directories(facts),
        permissions(facts),
        settings(facts),
        rules(facts),
        disk(facts),
        daemon(facts),
        version_match(facts),
        socket(facts),
    ]
}

fn binary(facts: &Facts) -> Check {
    let check =
        |status, message: String| Check::new(Group::Installation, "CLI binary", status, message);
    match &facts.executable {
        Some(path) => check(Status::Pass, path.display().to_string()),
        None => check(
            Status::Warn,
            "cannot determine the path of this program".to_owned(),
        ),
    }
}

fn daemon_binary(facts: &Facts) -> Check {
    let check =
        |status, message: String| Check::new(Group::Installation, "Daemon binary", status, message);
    let daemon = &facts.companions.daemon;
    let path = daemon.path.display();
    if daemon.found {
        return check(Status::Pass, path.to_string());
    }
    check(Status::Fail, format!("{path} is missing"))
        .detail("no sandbox can be created without it")
        .hint(TOGETHER)
}

fn init_binary(facts: &Facts) -> Check {
    let without = "without it every sandbox keeps a copy of the larger daemon program in memory";
    companion("Init binary", &facts.companions.init, without)
}

fn sudo_binary(facts: &Facts) -> Check {
    let without = "without it there is no `sudo` in sandboxes";
    companion("Sudo binary", &facts.companions.sudo, without)
}

/// An optional program.
fn companion(name: &'static str, companion: &Companion, without: &str) -> Check {
    let path = companion.path.display();
    let check = |status, message: String| Check::new(Group::Installation, name, status, message);
    if companion.found {
        return check(Status::Pass, path.to_string());
    }
    check(Status::Warn, format!("{path} is missing"))
        .detail(without)
        .hint(TOGETHER)
}

fn kernel(facts: &Facts) -> Check {
    let check =
        |status, message: String| Check::new(Group::Platform, "Kernel version", status, message);
    let mut parts = facts
        .kernel
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let kernel = &facts.kernel;
    if version < KERNEL_MIN {
        return check(Status::Fail, format!("{kernel} is too old"))
            .detail("overlayfs in user namespaces and idmapped mounts are required")
            .hint("use Linux 5.12 or newer");
    }
    if facts.mode == Mode::Root && version < KERNEL_ROOT {
        return check(
            Status::Fail,
            format!("{kernel} does not support idmapped overlay layers"),
        )
        .detail("sandboxes of root need them; those of an ordinary user do not")
        .hint("use Linux 5.19 or newer, or run sbx as an ordinary user");
    }
    check(Status::Pass, kernel.clone())
}

fn virtualization(facts: &Facts) -> Check {
    let kvm = if facts.kvm {
        "/dev/kvm is available"
    } else {
        "no /dev/kvm"
    };
    Check::new(
        Group::Platform,
        "Virtualization",
        Status::Pass,
        "backend `namespace`: sandboxes share this machine's kernel",
    )
    .detail(format!(
        "the backend `microvm` is not supported by this version of sbx ({kvm})"
    ))
}

fn trial(facts: &Facts) -> Check {
    let check =
        |status, message: &str| Check::new(Group::Platform, "Sandbox trial", status, message);
    match &facts.trial {
        Ok(()) if !facts.unusable_devices.is_empty() => devices(&facts.unusable_devices),
        Ok(()) => check(
            Status::Pass,
            "namespaces, overlay, proc, terminals and seccomp filter work",
        ),
        Err(reason) => check(Status::Fail, CANNOT_CREATE)
            .detail(reason.clone())
            .hint("see the other failed checks; in a container, start it with user namespaces allowed (for docker: --security-opt seccomp=unconfined --security-opt systempaths=unconfined)"),
    }
}

/// Device nodes of the host that sandboxes cannot use as they are.
fn devices(unusable: &[UnusableDevice]) -> Check {
    let (status, message) = match unusable.iter().any(UnusableDevice::prevents_create) {
        true => (Status::Fail, CANNOT_CREATE),
        false => (Status::Warn, "programs in sandboxes cannot use all devices"),
    };
    let check = Check::new(Group::Platform, "Sandbox trial", status, message);
    let details: Vec<_> = unusable.iter().map(ToString::to_string).collect();
    let check = check.detail(details.join("; "));
    match UnusableDevice::remedy(unusable) {
        Some(remedy) => check.hint(remedy),
        None => check,
    }
}

fn mode(facts: &Facts) -> Check {
    let check =
        |status, message: String| Check::new(Group::Platform, "Privilege mode", status, message);
    if facts.mode == Mode::Root && facts.confined {
        let message = "root of a user namespace without ids for sandboxes";
        return check(Status::Fail, message.to_owned())
            .detail("/proc/self/uid_map: root here is another user on the host")
            .hint(CONFINED_REMEDY);
    }
    let (mode, gives) = match facts.mode {
        Mode::Root => (
            "root",
            "a range of ids per sandbox; package installation works",
        ),
        Mode::Subordinate => (
            "subordinate",
            "root inside is one of your subordinate ids; package installation works",
        ),
        Mode::Single => (
            "single",
            "one id only: `-u root` is root in name, package installation does not work",
        ),
    };
    check(Status::Pass, format!("{mode}: {gives}"))
}

fn user_namespaces(facts: &Facts) -> Check {
    let check =
        |status, message: &str| Check::new(Group::Platform, "User namespaces", status, message);
    let switches = &facts.user_namespaces;
    if !switches.supported {
        return check(Status::Fail, "not supported by the kernel")
            .hint("use a kernel with CONFIG_USER_NS");
    }
    if switches.max_user_namespaces == Some(0) {
        return check(Status::Fail, "disabled: user.max_user_namespaces is 0")
            .hint("sudo sysctl -w user.max_user_namespaces=28633");
    }
    if facts.mode == Mode::Root {
        return check(Status::Pass, "available");
    }
    if switches.unprivileged_userns_clone == Some(0) {
        return check(
            Status::Fail,
            "disabled for users: kernel.unprivileged_userns_clone is 0",
        )
        .hint("sudo sysctl -w kernel.unprivileged_userns_clone=1");
    }
    if switches.apparmor_restrict == Some(1) {
        return check(
            Status::Fail,
            "restricted by AppArmor: kernel.apparmor_restrict_unprivileged_userns is 1",
        )
        .detail("sbx needs an AppArmor profile that allows `userns`, or no restriction")
        .hint("sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0");
    }
    check(Status::Pass, "available")
}

fn subordinate(facts: &Facts) -> Check {
    let check =
        |status, message: String| Check::new(Group::Platform, "Subordinate ids", status, message);
    if facts.mode == Mode::Root {
        return check(Status::Skip, "not needed for root".to_owned());
    }
    let ids = &facts.subordinate;
    let weaker = "without them `sudo` and package installation do not work in sandboxes";
    if !ids.tools {
        return check(
            Status::Warn,
            "newuidmap and newgidmap are not installed".to_owned(),
        )
        .detail(weaker)
        .hint("sudo apt-get install uidmap");
    }
    if ids.uids < IDS || ids.gids < IDS {
        let user = &facts.user;
        let remedy = match ids.free {
            Some((first, last)) => {
                format!(
                    "sudo usermod --add-subuids {first}-{last} --add-subgids {first}-{last} {user}"
                )
            }
            None => format!("give `{user}` {IDS} ids in /etc/subuid and /etc/subgid"),
        };
        return check(
            Status::Warn,
            format!("user `{user}` has no range of {IDS} in /etc/subuid and /etc/subgid"),
        )
        .detail(weaker)
        .hint(remedy);
    }
    if ids.other_group {
        return check(
            Status::Warn,
            "not usable: the group of this shell is not the one of your account".to_owned(),
        )
        .detail(weaker)
        .hint(OTHER_GROUP_REMEDY);
    }
    check(
        Status::Pass,
        format!("{} uids and {} gids", ids.uids, ids.gids),
    )
}

fn overlay(facts: &Facts) -> Check {
    let check =
        |status, message: &str| Check::new(Group::Platform, "Overlay file system", status, message);
    if facts.overlay {
        check(Status::Pass, "available")
    } else {
        check(Status::Fail, "overlayfs is not loaded").hint("sudo modprobe overlay")
    }
}

fn seccomp(facts: &Facts) -> Check {
    let check = |status, message: &str| Check::new(Group::Platform, "Seccomp", status, message);
    let knows = |action: &str| facts.seccomp_actions.iter().any(|known| known == action);
    if facts.seccomp_actions.is_empty() {
        check(Status::Fail, "not supported by the kernel")
            .hint("use a kernel with CONFIG_SECCOMP_FILTER")
    } else if knows("user_notif") {
        check(Status::Pass, "filters and user notification are available")
    } else {
        check(
            Status::Fail,
            "the kernel does not support seccomp user notification",
        )
        .hint("use Linux 5.12 or newer")
    }
}

fn proc_mount(facts: &Facts) -> Check {
    let check = |status, message: &str| Check::new(Group::Platform, "Proc mount", status, message);
    if facts.proc_masks.is_empty() {
        return check(Status::Pass, "/proc is not masked");
    }
    check(
        Status::Fail,
        "parts of /proc are masked, so the kernel refuses to mount /proc in sandboxes",
    )
    .detail(format!("mounts: {}", facts.proc_masks.join(", ")))
    .hint("in a container: docker run --security-opt systempaths=unconfined ...")
}

fn cgroups(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new(Group::Platform, "Cgroups", status, message);
    let (kind, writable) = match &facts.cgroups {
        Cgroups::None => {
            return check(
                Status::Warn,
                "no cgroups are mounted: memory and CPU limits cannot be enforced".to_owned(),
            )
            .hint("sudo mount -t cgroup2 none /sys/fs/cgroup");
        }
        Cgroups::V1 { writable } => ("v1".to_owned(), *writable),
        Cgroups::Hybrid { writable } => ("v1 and v2 (hybrid)".to_owned(), *writable),
        Cgroups::V2 {
            writable,
            controllers,
        } => (format!("v2 ({controllers})"), *writable),
    };
    if writable {
        return check(Status::Pass, kind);
    }
    check(Status::Warn, format!("{kind}, not delegated to this user"))
        .detail("memory and CPU limits cannot be enforced")
        .hint("run in a systemd user session with Delegate=yes, or as root")
}

fn nf_tables(facts: &Facts) -> Check {
    let check = |status, message: &str| Check::new(Group::Platform, "nf_tables", status, message);
    if facts.nf_tables {
        check(Status::Pass, "available")
    } else {
        check(Status::Warn, "not found")
            .detail("without it the proxy occupies the ports 22, 53, 80, 443 and 3128 in sandboxes, and other ports have no network")
            .hint("sudo modprobe nf_tables")
    }
}

fn directories(facts: &Facts) -> Check {
    let check = |status, message: String| {
        Check::new(Group::Storage, "Storage directories", status, message)
    };
    let path = facts.storage.path.display();
    match &facts.storage.state {
        StorageState::Unresolved { message, hint } => {
            check(Status::Fail, message.clone()).hint(hint.clone())
        }
        StorageState::Missing {
            parent_writable: true,
        } => check(Status::Pass, format!("{path} will be created on first use"))
            .detail(instead(facts)),
        StorageState::Missing {
            parent_writable: false,
        } => check(Status::Fail, format!("{path} cannot be created"))
            .hint("set SBX_HOME to a directory that you can write to"),
        StorageState::NotDirectory => check(Status::Fail, format!("{path} is not a directory"))
            .hint("set SBX_HOME to a directory that you can write to"),
        StorageState::Inaccessible { reason } => {
            check(Status::Fail, format!("{path} cannot be accessed"))
                .detail(reason.clone())
                .hint("set SBX_HOME to a directory that you can write to")
        }
        StorageState::OtherUser { owner } => {
            check(Status::Fail, format!("{path} belongs to user {owner}"))
                .hint("set SBX_HOME to a directory of your own")
        }
        StorageState::Foreign => check(Status::Fail, format!("{path} belongs to another product"))
            .hint("set SBX_HOME to a directory of its own"),
        StorageState::Ours { .. } => check(Status::Pass, path.to_string()).detail(instead(facts)),
    }
}

/// Why the usual directory is not the one.
fn instead(facts: &Facts) -> String {
    match &facts.storage.foreign {
        Some(usual) => format!("{} belongs to another product", usual.display()),
        None => String::new(),
    }
}

fn permissions(facts: &Facts) -> Check {
    let check = |status, message: String| {
        Check::new(Group::Storage, "Directory permissions", status, message)
    };
    let path = facts.storage.path.display();
    match facts.storage.state {
        StorageState::Ours { mode } if mode & 0o777 != 0o700 => {
            // What others may do there too is taken from them by the next command that needs the directory.
            let is_repaired = mode & 0o700 == 0o700 || facts.mode == Mode::Root;
            let status = match is_repaired {
                true => Status::Warn,
                false => Status::Fail,
            };
            check(status, format!("{path} has mode {mode:o}"))
                .hint(format!("chmod 700 {}", quoted(&path.to_string())))
        }
        StorageState::Ours { mode } => check(Status::Pass, format!("mode {mode:o}")),
        StorageState::Unresolved { .. }
        | StorageState::Missing { .. }
        | StorageState::NotDirectory
        | StorageState::Inaccessible { .. }
        | StorageState::OtherUser { .. }
        | StorageState::Foreign => check(Status::Skip, NO_STATE_DIR.to_owned()),
    }
}

fn settings(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new(Group::Storage, "Settings", status, message);
    match &facts.settings {
        Settings::Unread => check(Status::Skip, NO_STATE_DIR.to_owned()),
        Settings::Valid => check(Status::Pass, "valid".to_owned()),
        Settings::Broken { path, reason } => {
            let path = path.display();
            check(Status::Fail, format!("{path} is invalid"))
                .detail(reason.clone())
                .hint(format!("correct '{path}', or remove it"))
        }
    }
}

fn rules(facts: &Facts) -> Check {
    let check =
        |status, message: &str| Check::new(Group::Storage, "Network rules", status, message);
    match &facts.rules {
        Rules::Unread => check(Status::Skip, NO_STATE_DIR),
        Rules::Readable => check(Status::Pass, "readable"),
        Rules::Broken { reason, hint } => {
            let check = check(Status::Fail, "a rules file cannot be read").detail(reason.clone());
            match hint {
                Some(hint) => check.hint(hint.clone()),
                None => check,
            }
        }
    }
}

fn disk(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new(Group::Storage, "Disk space", status, message);
    let Some(free) = facts.disk_free else {
        return check(Status::Skip, "unknown".to_owned());
    };
    let message = format!("{} MiB free", free >> 20);
    let path = facts.storage.path.display();
    let remedy = format!("free some space on the file system of {path}");
    if free < DISK_FAIL {
        check(Status::Fail, message).hint(remedy)
    } else if free < DISK_WARN {
        check(Status::Warn, message).hint(remedy)
    } else {
        check(Status::Pass, message)
    }
}

fn daemon(facts: &Facts) -> Check {
    let check = |status, message: &str| Check::new(Group::Connection, "Daemon", status, message);
    match &facts.daemon {
        Daemon::NotChecked => check(Status::Skip, NO_STATE_DIR),
        Daemon::NotRunning => check(Status::Pass, "not running; it starts on demand"),
        Daemon::Running { .. } => check(Status::Pass, "running"),
        Daemon::Unreachable { message } => check(Status::Fail, "does not answer")
            .detail(message.clone())
            .hint("sbx daemon restart"),
    }
}

fn version_match(facts: &Facts) -> Check {
    let check =
        |status, message: String| Check::new(Group::Connection, "Version match", status, message);
    match &facts.daemon {
        Daemon::NotChecked | Daemon::NotRunning | Daemon::Unreachable { .. } => {
            check(Status::Skip, "no daemon to compare with".to_owned())
        }
        Daemon::Running { version } if version == VERSION => {
            check(Status::Pass, format!("both are v{VERSION}"))
        }
        Daemon::Running { version } => check(
            Status::Fail,
            format!("client is v{VERSION}, daemon is v{version}"),
        )
        .hint("sbx daemon restart"),
    }
}

fn socket(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new(Group::Connection, "Socket", status, message);
    let path = facts.socket.path.display();
    match (facts.socket.mode, facts.socket.own) {
        _ if facts.daemon == Daemon::NotChecked => check(Status::Skip, NO_STATE_DIR.to_owned()),
        (None, _) if facts.daemon == Daemon::NotRunning => {
            check(Status::Skip, "no daemon is running".to_owned())
        }
        (None, _) => check(Status::Fail, format!("{path} is missing")).hint("sbx daemon restart"),
        (Some(_), false) => check(Status::Fail, format!("{path} belongs to another user"))
            .hint("sbx daemon restart"),
        (Some(mode), true) if mode & 0o077 != 0 => {
            check(Status::Fail, format!("{path} has mode {mode:o}")).hint("sbx daemon restart")
        }
        (Some(_), true) => check(Status::Pass, path.to_string()),
    }
}
