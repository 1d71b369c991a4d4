//! How much one sandbox may have of what the kernel counts per user, so that it leaves some to the host's programs of
//! the same user and to other sandboxes.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use sbx_api::{LimitKind, Limits};
use sbx_proto::plan::{Limits as PlanLimits, OpenFiles};
use thiserror::Error;

use super::cgroup::Controllers;

/// Below `/proc/sys/user`. Each user namespace has its own values, and those of all above it count too.
const NAMESPACES: &[&str] = &[
    "max_cgroup_namespaces",
    "max_ipc_namespaces",
    "max_mnt_namespaces",
    "max_net_namespaces",
    "max_pid_namespaces",
    "max_time_namespaces",
    "max_user_namespaces",
    "max_uts_namespaces",
];
const WATCHES: &[&str] = &[
    "max_fanotify_groups",
    "max_fanotify_marks",
    "max_inotify_instances",
    "max_inotify_watches",
];
/// Far more than nested containers and browsers have.
const MOST_NAMESPACES: u64 = 4096;
/// What a command begins with; it may raise that to its hard limit.
const USUAL_OPEN_FILES: u64 = 65_536;

/// Fewer processes than this are not enough for a shell and its pipelines.
const LEAST_PROCESSES: u64 = 16;
/// Far more than builds and test suites have.
const MOST_PROCESSES: u64 = 16_384;
/// With less, programs fail in ways that do not tell why.
const LEAST_MEMORY: u64 = 64 << 20;
const MOST_MEMORY: u64 = 32 << 30;

/// With less, not even the directories of the layers fit.
const LEAST_DISK: u64 = 32 << 20;
/// The largest that ext4 can be with usual blocks.
const MOST_DISK: u64 = 16 << 40;

/// Why a sandbox cannot have the limits that were asked for.
#[derive(Debug, Error)]
pub enum LimitError {
    #[error("cannot enforce `--{}` here: {reason}", .limit.as_str())]
    Unenforceable {
        limit: LimitKind,
        reason: &'static str,
        remedy: &'static str,
    },
    #[error("invalid limit `--{}`: {reason}", .limit.as_str())]
    Invalid { limit: LimitKind, reason: String },
    #[error("cannot make a control group for the sandbox")]
    Group(#[source] io::Error),
    #[error("cannot make a disk for the sandbox: {0}")]
    Disk(String),
}

impl LimitError {
    pub fn hint(&self) -> String {
        match self {
            Self::Unenforceable { limit, remedy, .. } => {
                format!("{remedy}, or omit `--{}`", limit.as_str())
            }
            Self::Invalid { limit, .. } => format!("omit `--{}` for the default", limit.as_str()),
            Self::Group(_) | Self::Disk(_) => "sbx diagnose".to_owned(),
        }
    }
}

/// Why something cannot be limited here, and what helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsupported {
    pub reason: &'static str,
    pub remedy: &'static str,
}

impl Unsupported {
    fn error(self, limit: LimitKind) -> LimitError {
        let Self { reason, remedy } = self;
        LimitError::Unenforceable {
            limit,
            reason,
            remedy,
        }
    }
}

const NO_GROUPS: Unsupported = Unsupported {
    reason: "no control groups that sbx may change",
    remedy: "run sbx as root where control groups are mounted, or the daemon in a group of its own (see docs/engine/limits.md)",
};

/// What can be limited here, beside the number of processes, which always can.
#[derive(Debug, Clone, Copy)]
pub struct Support {
    pub memory: Result<(), Unsupported>,
    pub cpu: Result<(), Unsupported>,
    pub disk: Result<(), Unsupported>,
}

impl Support {
    pub fn new(controllers: &Controllers, disk: Result<(), Unsupported>) -> Self {
        let if_grouped = |is: bool| is.then_some(()).ok_or(NO_GROUPS);
        Self {
            memory: if_grouped(controllers.limits_memory()),
            cpu: if_grouped(controllers.limits_cpu()),
            disk,
        }
    }

    fn of(&self, limit: LimitKind) -> Result<(), Unsupported> {
        match limit {
            LimitKind::Memory => self.memory,
            LimitKind::Cpus => self.cpu,
            LimitKind::Disk => self.disk,
            LimitKind::Pids => Ok(()),
        }
    }
}

/// The limits of a new sandbox.
#[derive(Debug, PartialEq, Eq)]
pub struct Decided {
    pub limits: Limits,
    /// Those without which it is not to run.
    pub required: Vec<LimitKind>,
    pub warnings: Vec<String>,
}

/// What the limits of a sandbox follow from.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    pub memory_bytes: u64,
    pub cpus: u32,
    /// Of all users together.
    pub processes: u64,
}

impl Host {
    pub fn read() -> Self {
        let number = |path: &str| {
            let text = fs::read_to_string(path).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let kernel = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
        Self {
            memory_bytes: total_memory(&info).unwrap_or(0),
            cpus: u32::try_from(cpus).unwrap_or(u32::MAX),
            processes: kernel
                .into_iter()
                .filter_map(number)
                .min()
                .unwrap_or(32_768),
        }
    }
}

fn total_memory(info: &str) -> Option<u64> {
    let line = info.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// What is asked for is enforced or refused, but for what is only preferred; that, and the usual limits, are enforced
/// where that is possible.
pub fn effective(
    asked: &Limits,
    preferred: &[LimitKind],
    support: &Support,
    host: &Host,
) -> Result<Decided, LimitError> {
    check(asked)?;
    let mut warnings = Vec::new();
    // Whether a limit that was asked for applies.
    let mut applies = |limit: LimitKind, can: Result<(), LimitError>| match can {
        Ok(()) => Ok(true),
        Err(error) if preferred.contains(&limit) => {
            warnings.push(format!("{error}; it does not apply"));
            Ok(false)
        }
        Err(error) => Err(error),
    };
    let mut limits = Limits::default();
    if let Some(millis) = asked.cpu_millis {
        let can = support.cpu.map_err(|it| it.error(LimitKind::Cpus));
        if applies(LimitKind::Cpus, can.and(check_cpus(millis, host)))? {
            limits.cpu_millis = Some(millis);
        }
    }
    match asked.memory_bytes {
        Some(bytes) => {
            let can = support.memory.map_err(|it| it.error(LimitKind::Memory));
            if applies(LimitKind::Memory, can)? {
                limits.memory_bytes = Some(bytes);
            }
        }
        None if support.memory.is_ok() => {
            let usual = (host.memory_bytes / 2).clamp(LEAST_MEMORY, MOST_MEMORY);
            limits.memory_bytes = Some(usual);
        }
        None => {}
    }
    if let Some(bytes) = asked.disk_bytes {
        let can = support.disk.map_err(|it| it.error(LimitKind::Disk));
        if applies(LimitKind::Disk, can)? {
            limits.disk_bytes = Some(bytes);
        }
    }
    let usual = (host.processes / 2).clamp(LEAST_PROCESSES, MOST_PROCESSES);
    limits.processes = Some(asked.processes.unwrap_or(usual));
    let required = requested_kinds(asked).filter(|limit| !preferred.contains(limit));
    Ok(Decided {
        limits,
        required: required.collect(),
        warnings,
    })
}

/// The warning about a usual limit that cannot be enforced.
pub fn default_memory_warning(support: &Support) -> Option<String> {
    let unsupported = support.memory.err()?;
    Some(format!(
        "the memory of sandboxes is not limited here: {}",
        unsupported.reason
    ))
}

/// What of the limits of a sandbox can be enforced at this start: the machine may be another one than when it was made.
pub fn enforceable(
    limits: &Limits,
    required: &[LimitKind],
    support: &Support,
) -> Result<(Limits, Vec<String>), LimitError> {
    let (mut left, mut warnings) = (*limits, Vec::new());
    for limit in requested_kinds(limits) {
        let Err(unsupported) = support.of(limit) else {
            continue;
        };
        let error = unsupported.error(limit);
        // A disk that was made holds the sandbox's files.
        if required.contains(&limit) || limit == LimitKind::Disk {
            return Err(error);
        }
        warnings.push(format!("{error}; it does not apply"));
        match limit {
            LimitKind::Cpus => left.cpu_millis = None,
            LimitKind::Memory => left.memory_bytes = None,
            LimitKind::Pids => left.processes = None,
            LimitKind::Disk => {}
        }
    }
    Ok((left, warnings))
}

fn requested_kinds(limits: &Limits) -> impl Iterator<Item = LimitKind> {
    [
        limits.cpu_millis.map(|_| LimitKind::Cpus),
        limits.memory_bytes.map(|_| LimitKind::Memory),
        limits.processes.map(|_| LimitKind::Pids),
        limits.disk_bytes.map(|_| LimitKind::Disk),
    ]
    .into_iter()
    .flatten()
}

/// That the values make sense on any machine.
fn check(asked: &Limits) -> Result<(), LimitError> {
    let cpus = asked.cpu_millis.map(u64::from);
    for (limit, value, least) in [
        (LimitKind::Cpus, cpus, 10),
        (LimitKind::Memory, asked.memory_bytes, LEAST_MEMORY),
        (LimitKind::Pids, asked.processes, LEAST_PROCESSES),
        (LimitKind::Disk, asked.disk_bytes, LEAST_DISK),
    ] {
        if let Some(value) = value.filter(|value| *value < least) {
            let reason = format!("{value} is less than the minimum, {least}");
            return Err(LimitError::Invalid { limit, reason });
        }
    }
    match asked.disk_bytes {
        Some(bytes) if bytes > MOST_DISK => Err(LimitError::Invalid {
            limit: LimitKind::Disk,
            reason: format!("{bytes} is more than {MOST_DISK}"),
        }),
        Some(_) | None => Ok(()),
    }
}

fn check_cpus(millis: u32, host: &Host) -> Result<(), LimitError> {
    if u64::from(millis) <= u64::from(host.cpus) * 1000 {
        return Ok(());
    }
    Err(LimitError::Invalid {
        limit: LimitKind::Cpus,
        reason: format!("this machine has {} CPUs", host.cpus),
    })
}

/// The limits for a sandbox of this process's user. Records of earlier versions have no limit of processes.
pub fn current(own: &Limits) -> PlanLimits {
    let value = |name: &str| {
        let text = fs::read_to_string(Path::new("/proc/sys/user").join(name)).ok()?;
        text.trim().parse().ok()
    };
    let processes = own.processes.unwrap_or(MOST_PROCESSES);
    PlanLimits {
        processes,
        ..limits(&value, getrlimit(Resource::Nofile).maximum)
    }
}

/// Half of everything. For open files that is what keeps messages with descriptors going: the kernel counts those
/// under way per user, and refuses more (ETOOMANYREFS) to a process with a smaller limit than that.
fn limits(host: &dyn Fn(&str) -> Option<u64>, open_files: Option<u64>) -> PlanLimits {
    let half = |name: &str| host(name).map(|all| (all / 2).max(1));
    let namespaces = NAMESPACES
        .iter()
        .filter_map(|name| Some((*name, half(name)?.min(MOST_NAMESPACES))));
    let watches = WATCHES.iter().filter_map(|name| Some((*name, half(name)?)));
    let hard = open_files.unwrap_or(1 << 20) / 2;
    PlanLimits {
        user: namespaces
            .chain(watches)
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        open_files: OpenFiles {
            soft: hard.min(USUAL_OPEN_FILES),
            hard,
        },
        processes: MOST_PROCESSES,
    }
}

#[cfg(test)]
mod tests;
