//! How much one sandbox may have of what the kernel counts per user, so that it leaves some to the host's programs of
//! the same user and to other sandboxes.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use sbx_api::Limits;
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

/// Why a sandbox cannot have the limits that were asked for.
#[derive(Debug, Error)]
pub enum LimitError {
    #[error("cannot enforce `{flag}` here: {reason}")]
    Unenforceable {
        flag: &'static str,
        reason: &'static str,
    },
    #[error("invalid limit `{flag}`: {reason}")]
    Invalid { flag: &'static str, reason: String },
    #[error("cannot make a control group for the sandbox")]
    Unusable(#[source] std::io::Error),
}

impl LimitError {
    pub fn hint(&self) -> String {
        match self {
            Self::Unenforceable { flag, .. } => {
                format!("run sbx as root where control groups are mounted, or omit `{flag}`")
            }
            Self::Invalid { flag, .. } => format!("omit `{flag}` for the default"),
            Self::Unusable(_) => "sbx diagnose".to_owned(),
        }
    }
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

/// What is asked for is enforced or refused; the usual limits are enforced where that is possible.
pub fn effective(
    asked: &Limits,
    controllers: &Controllers,
    host: &Host,
) -> Result<Limits, LimitError> {
    let enforceable = |flag, is: bool| {
        let reason = "no control groups that sbx may change";
        is.then_some(())
            .ok_or(LimitError::Unenforceable { flag, reason })
    };
    let at_least = |flag, value: u64, least: u64| match value {
        value if value < least => {
            let reason = format!("{value} is less than {least}");
            Err(LimitError::Invalid { flag, reason })
        }
        value => Ok(value),
    };
    let usual_memory = (host.memory_bytes / 2).clamp(LEAST_MEMORY, MOST_MEMORY);
    let memory_bytes = match asked.memory_bytes {
        Some(bytes) => {
            enforceable("--memory", controllers.limits_memory())?;
            Some(at_least("--memory", bytes, LEAST_MEMORY)?)
        }
        None => controllers.limits_memory().then_some(usual_memory),
    };
    if let Some(millis) = asked.cpu_millis {
        enforceable("--cpus", controllers.limits_cpu())?;
        at_least("--cpus", millis.into(), 10)?;
        if u64::from(millis) > u64::from(host.cpus) * 1000 {
            let reason = format!("this machine has {} CPUs", host.cpus);
            let flag = "--cpus";
            return Err(LimitError::Invalid { flag, reason });
        }
    }
    let processes = match asked.processes {
        Some(count) => at_least("--pids", count, LEAST_PROCESSES)?,
        None => (host.processes / 2).clamp(LEAST_PROCESSES, MOST_PROCESSES),
    };
    Ok(Limits {
        cpu_millis: asked.cpu_millis,
        memory_bytes,
        processes: Some(processes),
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
mod tests {
    use super::*;

    const HOST: Host = Host {
        memory_bytes: 8 << 30,
        cpus: 4,
        processes: 4_000_000,
    };

    #[test]
    fn the_usual_limits_protect_the_host() {
        let none = Controllers::default();
        let usual = effective(&Limits::default(), &none, &HOST).unwrap();
        let expected = Limits {
            processes: Some(MOST_PROCESSES),
            ..Limits::default()
        };
        assert_eq!(usual, expected);
        let small = Host {
            processes: 1000,
            ..HOST
        };
        let usual = effective(&Limits::default(), &none, &small).unwrap();
        assert_eq!(usual.processes, Some(500));
        assert_eq!(
            total_memory("MemFree: 1 kB\nMemTotal:  2048 kB\n"),
            Some(2 << 20)
        );
    }

    #[test]
    fn what_is_asked_for_and_cannot_be_enforced_is_refused() {
        let none = Controllers::default();
        for (asked, flag) in [
            (limits_of(Some(1000), None, None), "--cpus"),
            (limits_of(None, Some(1 << 30), None), "--memory"),
            (limits_of(None, None, Some(3)), "--pids"),
        ] {
            let error = effective(&asked, &none, &HOST).unwrap_err();
            assert!(error.to_string().contains(flag), "{error}");
            assert!(error.hint().contains(flag), "{error}");
        }
    }

    fn limits_of(
        cpu_millis: Option<u32>,
        memory_bytes: Option<u64>,
        processes: Option<u64>,
    ) -> Limits {
        Limits {
            cpu_millis,
            memory_bytes,
            processes,
        }
    }

    #[test]
    fn half_of_what_the_host_has() {
        let host = |name: &str| match name {
            "max_inotify_instances" => Some(128),
            "max_user_namespaces" => Some(100_000),
            "max_pid_namespaces" => Some(0),
            _ => None,
        };
        let got = limits(&host, Some(20_000));
        let user: Vec<_> = got.user.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        let expected = [
            ("max_pid_namespaces", 1),
            ("max_user_namespaces", 4096),
            ("max_inotify_instances", 64),
        ];
        assert_eq!(user, expected);
        let files = |soft, hard| OpenFiles { soft, hard };
        assert_eq!(got.open_files, files(10_000, 10_000));
        let many = limits(&host, Some(1 << 20)).open_files;
        assert_eq!(many, files(65_536, 1 << 19));
    }
}
