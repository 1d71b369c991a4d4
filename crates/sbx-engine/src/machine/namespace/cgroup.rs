//! Control groups: what the kernel limits for all processes of a sandbox together. In root mode only; other users have
//! none that they may change.
//!
//! A sandbox has one group in each hierarchy that it needs, `sbx/<its first host id>`, which no other sandbox of this
//! machine has. Commands join it through descriptors that init gets, before they are in the sandbox's namespaces. Init
//! stays outside, so that the OOM killer never ends it. The version is that of each controller: a machine can have
//! both.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use sbx_api::Limits;

const PARENT: &str = "sbx";
/// `cpu.max` and `cpu.cfs_period_us`, in microseconds.
const PERIOD: u64 = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// Where one controller is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    root: PathBuf,
    version: Version,
}

/// The controllers that this process may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Controllers {
    memory: Option<Hierarchy>,
    cpu: Option<Hierarchy>,
}

impl Controllers {
    pub(super) fn of_this_machine() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let available =
            |root: &Path| fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let found = Self::find(&mounts, &available);
        // Root of a user namespace may find the files and have no right to them.
        let usable = |it: &Hierarchy| access(&it.root, Access::WRITE_OK).is_ok();
        Self {
            memory: found.memory.filter(usable),
            cpu: found.cpu.filter(usable),
        }
    }

    /// `available` are the controllers of a hierarchy of version 2.
    fn find(mounts: &str, available: &dyn Fn(&Path) -> String) -> Self {
        let hierarchy = |controller: &str| {
            mounts.lines().find_map(|line| {
                let (left, right) = line.split_once(" - ")?;
                let root = PathBuf::from(left.split(' ').nth(4)?);
                let mut right = right.split(' ');
                let version = match (right.next()?, right.nth(1)?) {
                    ("cgroup", options) if options.split(',').any(|it| it == controller) => {
                        Version::V1
                    }
                    ("cgroup2", _) => {
                        let all = available(&root);
                        all.split_whitespace().find(|it| *it == controller)?;
                        Version::V2
                    }
                    _ => return None,
                };
                let options = left.split(' ').nth(5)?;
                (!options.split(',').any(|it| it == "ro")).then_some(Hierarchy { root, version })
            })
        };
        Self {
            memory: hierarchy("memory"),
            cpu: hierarchy("cpu"),
        }
    }

    pub(super) fn limits_memory(&self) -> bool {
        self.memory.is_some()
    }

    pub(super) fn limits_cpu(&self) -> bool {
        self.cpu.is_some()
    }

    /// Makes or updates the groups of the sandbox with that first id. Writing `0` to one of the files moves the writer
    /// into the group: the kernel checks the rights of the process that opened it.
    pub(super) fn prepare(&self, base: u32, limits: &Limits) -> io::Result<Vec<File>> {
        let mut groups: Vec<PathBuf> = Vec::new();
        for (hierarchy, controller, values) in self.values(limits) {
            let group = hierarchy.group(base);
            make(hierarchy, controller, &group)?;
            for (file, value, needed) in values {
                match set(&group.join(file), &value) {
                    Err(error) if needed || error.kind() != io::ErrorKind::NotFound => {
                        return Err(error);
                    }
                    Ok(()) | Err(_) => {}
                }
            }
            let join = group.join(hierarchy.join_file());
            if !groups.contains(&join) {
                groups.push(join);
            }
        }
        let open = |path: &PathBuf| File::options().write(true).open(path);
        groups.iter().map(open).collect()
    }

    /// Files of each group and their values, and whether every kernel has them.
    fn values(&self, limits: &Limits) -> Vec<(&Hierarchy, &'static str, Values)> {
        let memory = self.memory.as_ref().zip(limits.memory_bytes);
        let memory = memory.map(|(it, bytes)| {
            let bytes = bytes.to_string();
            let values = match it.version {
                Version::V1 => vec![
                    ("memory.limit_in_bytes", bytes.clone(), true),
                    ("memory.memsw.limit_in_bytes", bytes, false),
                ],
                Version::V2 => vec![
                    ("memory.max", bytes, true),
                    ("memory.swap.max", "0".to_owned(), false),
                ],
            };
            (it, "memory", values)
        });
        let cpu = self
            .cpu
            .as_ref()
            .zip(limits.cpu_millis)
            .map(|(it, millis)| {
                let quota = u64::from(millis) * PERIOD / 1000;
                let values = match it.version {
                    Version::V1 => vec![
                        ("cpu.cfs_period_us", PERIOD.to_string(), true),
                        ("cpu.cfs_quota_us", quota.to_string(), true),
                    ],
                    Version::V2 => vec![("cpu.max", format!("{quota} {PERIOD}"), true)],
                };
                (it, "cpu", values)
            });
        memory.into_iter().chain(cpu).collect()
    }

    /// Removes the groups, which have to be empty.
    pub(super) fn remove(&self, base: u32) -> io::Result<()> {
        for hierarchy in [&self.memory, &self.cpu].into_iter().flatten() {
            match fs::remove_dir(hierarchy.group(base)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

type Values = Vec<(&'static str, String, bool)>;

impl Hierarchy {
    fn group(&self, base: u32) -> PathBuf {
        self.root.join(PARENT).join(base.to_string())
    }

    /// `tasks` moves one thread and does not wait for the others to stop, unlike `cgroup.procs`; version 2 has no such
    /// file.
    fn join_file(&self) -> &'static str {
        match self.version {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.procs",
        }
    }
}

fn make(hierarchy: &Hierarchy, controller: &str, group: &Path) -> io::Result<()> {
    fs::create_dir_all(group)?;
    if hierarchy.version == Version::V2 {
        // A controller is in a group's files if all groups above pass it on.
        for above in [hierarchy.root.clone(), hierarchy.root.join(PARENT)] {
            set(
                &above.join("cgroup.subtree_control"),
                &format!("+{controller}"),
            )?;
        }
    }
    Ok(())
}

/// Files of control groups exist or do not: they cannot be created.
fn set(file: &Path, value: &str) -> io::Result<()> {
    let mut file = File::options().write(true).truncate(true).open(file)?;
    file.write_all(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
        24 20 0:21 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        25 24 0:22 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
        26 24 0:23 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        27 24 0:24 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const LIMITS: Limits = Limits {
        cpu_millis: Some(1500),
        memory_bytes: Some(1 << 30),
        processes: None,
    };

    fn shown(controllers: &Controllers) -> Vec<String> {
        let values = controllers.values(&LIMITS);
        let of = values.iter().flat_map(|(it, _, values)| {
            let group = it.group(7);
            values
                .iter()
                .map(move |(file, value, _)| format!("{}={value}", group.join(file).display()))
        });
        of.collect()
    }

    #[test]
    fn each_controller_is_found_where_it_is_mounted() {
        let hybrid = Controllers::find(V1, &|_| "hugetlb".to_owned());
        let expected = [
            "/sys/fs/cgroup/memory/sbx/7/memory.limit_in_bytes=1073741824",
            "/sys/fs/cgroup/memory/sbx/7/memory.memsw.limit_in_bytes=1073741824",
            "/sys/fs/cgroup/cpu,cpuacct/sbx/7/cpu.cfs_period_us=100000",
            "/sys/fs/cgroup/cpu,cpuacct/sbx/7/cpu.cfs_quota_us=150000",
        ];
        assert_eq!(shown(&hybrid), expected);
        let unified = "30 24 0:24 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let unified = Controllers::find(unified, &|_| "cpuset cpu io memory pids".to_owned());
        let expected = [
            "/sys/fs/cgroup/sbx/7/memory.max=1073741824",
            "/sys/fs/cgroup/sbx/7/memory.swap.max=0",
            "/sys/fs/cgroup/sbx/7/cpu.max=150000 100000",
        ];
        assert_eq!(shown(&unified), expected);
    }

    #[test]
    fn what_is_read_only_or_absent_limits_nothing() {
        let closed = V1.replace("rw,relatime", "ro,relatime");
        let none = Controllers::find(&closed, &|_| String::new());
        assert_eq!(none, Controllers::default());
        assert!(!none.limits_memory() && !none.limits_cpu());
        assert!(none.prepare(7, &LIMITS).unwrap().is_empty());
        none.remove(7).unwrap();
    }

    #[test]
    fn groups_are_made_updated_and_removed() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().to_path_buf();
        let version = Version::V2;
        let hierarchy = Some(Hierarchy { root, version });
        let controllers = Controllers {
            memory: hierarchy.clone(),
            cpu: hierarchy,
        };
        let group = temp.path().join("sbx/7");
        fs::create_dir_all(&group).unwrap();
        let files = ["memory.max", "cpu.max", "cgroup.procs"].map(|name| group.join(name));
        let above = ["cgroup.subtree_control", "sbx/cgroup.subtree_control"];
        for file in files
            .into_iter()
            .chain(above.map(|name| temp.path().join(name)))
        {
            File::create(file).unwrap();
        }
        // Memory and cpu are one group: it is joined once.
        assert_eq!(controllers.prepare(7, &LIMITS).unwrap().len(), 1);
        let read = |path: &str| fs::read_to_string(temp.path().join(path)).unwrap();
        assert_eq!(read("sbx/7/memory.max"), "1073741824");
        assert_eq!(read("sbx/7/cpu.max"), "150000 100000");
        assert_eq!(read("sbx/cgroup.subtree_control"), "+cpu");
    }
}
