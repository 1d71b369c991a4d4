//! How much one sandbox may have of what the kernel counts per user, so that it leaves some to the host's programs of
//! the same user and to other sandboxes.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use sbx_proto::plan::{Limits, OpenFiles};

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

/// The limits for a sandbox of this process's user.
pub fn current() -> Limits {
    let value = |name: &str| {
        let text = fs::read_to_string(Path::new("/proc/sys/user").join(name)).ok()?;
        text.trim().parse().ok()
    };
    limits(&value, getrlimit(Resource::Nofile).maximum)
}

/// Half of everything. For open files that is what keeps messages with descriptors going: the kernel counts those
/// under way per user, and refuses more (ETOOMANYREFS) to a process with a smaller limit than that.
fn limits(host: &dyn Fn(&str) -> Option<u64>, open_files: Option<u64>) -> Limits {
    let half = |name: &str| host(name).map(|all| (all / 2).max(1));
    let namespaces = NAMESPACES
        .iter()
        .filter_map(|name| Some((*name, half(name)?.min(MOST_NAMESPACES))));
    let watches = WATCHES.iter().filter_map(|name| Some((*name, half(name)?)));
    let hard = open_files.unwrap_or(1 << 20) / 2;
    Limits {
        user: namespaces
            .chain(watches)
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        open_files: OpenFiles {
            soft: hard.min(USUAL_OPEN_FILES),
            hard,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
