//! Control groups: what the kernel limits, and counts, for all processes of a sandbox together.
//!
//! A sandbox has one group in each hierarchy that it needs, `sbx/<its id>`, and in it `box`, which has the limits.
//! Commands join `box` through descriptors that init gets, before they are in the sandbox's namespaces; what they make
//! of groups inside is below it. Init stays outside, so that the OOM killer never ends it. The version is that of
//! each controller: a machine can have both. Root makes groups at the top of each hierarchy, other users in the group of
//! the daemon if they may.

mod find;
mod usage;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{Access, access};
use sbx_api::Limits;
use sbx_proto::plan::Mode;

use find::Location;

pub(super) use usage::used;

const PARENT: &str = "sbx";
/// Where processes are that have limits.
const BOX: &str = "box";
/// Where the daemon moves to in a group that it was given: version 2 has processes in groups without children only.
const DAEMON: &str = "sbx-daemon";
/// Stays without processes and groups. All sandboxes of root can see it, and nothing else of a hierarchy: programs that
/// start containers (runc) stop where no control groups are mounted.
const SHOWN: &str = "shown";
/// Begins the name of a group that is made to see whether that works. The process id follows.
const TRIAL: &str = "trial-";
/// `cpu.max` and `cpu.cfs_period_us`, in microseconds.
const PERIOD: u64 = 100_000;
/// A killed process is in its group until the kernel has taken it apart.
const REMOVAL_ATTEMPTS: u32 = 20;
const REMOVAL_DELAY: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// Where groups are made for one controller.
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
    /// At the top of each hierarchy, for root.
    pub(super) fn of_this_machine() -> Self {
        Self::found(Location::Top)
    }

    /// In the group of this process, if the user was given that one.
    pub(super) fn delegated() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::found(Location::Own(&own))
    }

    fn found(location: Location<'_>) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let available =
            |root: &Path| fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        // Root of a user namespace may find the files and have no right to them.
        let usable = |it: &Hierarchy| it.is_writable();
        let controller =
            |name: &str| find::hierarchy(name, &mounts, location, &available).filter(usable);
        Self {
            memory: controller("memory"),
            cpu: controller("cpu"),
        }
    }

    /// What sandboxes of that mode can join. In version 1 a process can be moved by root or with its own id only, and
    /// with subordinate ids what joins has another id than the daemon.
    pub(super) fn usable_in(self, mode: Mode) -> Self {
        let joinable = |it: &Hierarchy| mode != Mode::Subordinate || it.version == Version::V2;
        Self {
            memory: self.memory.filter(joinable),
            cpu: self.cpu.filter(joinable),
        }
    }

    /// Without what turns out not to work when a group is made and removed: the kernel refuses for reasons that cannot
    /// be looked up, such as processes in a group above (EBUSY).
    pub(super) fn that_work(self) -> Self {
        let works = |one: &Self, limits: Limits| {
            let id = format!("{TRIAL}{}", std::process::id());
            one.sweep_trials();
            let made = one.prepare(&id, &limits);
            let removed = remove(&one.groups(&id));
            match made.and(removed) {
                Ok(()) => true,
                Err(error) => {
                    tracing::info!(%error, "cannot use a controller of control groups");
                    false
                }
            }
        };
        let usual = Limits {
            cpu_millis: Some(1000),
            memory_bytes: Some(1 << 30),
            ..Limits::default()
        };
        let memory = Self {
            memory: self.memory,
            cpu: None,
        };
        let cpu = Self {
            memory: None,
            cpu: self.cpu,
        };
        Self {
            memory: memory.memory.clone().filter(|_| works(&memory, usual)),
            cpu: cpu.cpu.clone().filter(|_| works(&cpu, usual)),
        }
    }

    /// Removes trial groups of processes that were killed meanwhile.
    fn sweep_trials(&self) {
        for hierarchy in self.hierarchies() {
            let groups = fs::read_dir(hierarchy.root.join(PARENT));
            for group in groups.into_iter().flatten().flatten() {
                let name = group.file_name();
                let pid = name.to_str().and_then(|name| name.strip_prefix(TRIAL));
                if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                    drop(remove(&[group.path()]));
                }
            }
        }
    }

    pub(super) fn limits_memory(&self) -> bool {
        self.memory.is_some()
    }

    pub(super) fn limits_cpu(&self) -> bool {
        self.cpu.is_some()
    }

    fn hierarchies(&self) -> impl Iterator<Item = &Hierarchy> {
        [&self.memory, &self.cpu].into_iter().flatten()
    }

    /// The directories of all groups that the sandbox with that id can have.
    pub(super) fn groups(&self, id: &str) -> Vec<PathBuf> {
        let mut groups: Vec<_> = self.hierarchies().map(|it| it.group(id)).collect();
        groups.dedup();
        groups
    }

    /// Makes or updates the groups of the sandbox with that id. Writing `0` to one of the files moves the writer into
    /// the group: the kernel checks the rights of the process that opened it.
    pub(super) fn prepare(&self, id: &str, limits: &Limits) -> io::Result<Vec<File>> {
        let mut joins: Vec<PathBuf> = Vec::new();
        for (hierarchy, controller, values) in self.values(limits) {
            let group = hierarchy.group(id).join(BOX);
            make(hierarchy, controller, &group)?;
            if controller == "cpu" {
                weigh(hierarchy);
            }
            for (file, value, needed) in values {
                match set(&group.join(file), &value) {
                    Err(error) if needed || error.kind() != io::ErrorKind::NotFound => {
                        return Err(error);
                    }
                    Ok(()) | Err(_) => {}
                }
            }
            let join = group.join(hierarchy.join_file());
            if !joins.contains(&join) {
                joins.push(join);
            }
        }
        let open = |path: &PathBuf| {
            let opened = File::options().write(true).open(path);
            opened.map_err(|error| with_path(path, &error))
        };
        joins.iter().map(open).collect()
    }

    /// Files of each group and their values, and whether every kernel has them.
    fn values(&self, limits: &Limits) -> Vec<(&Hierarchy, &'static str, Values)> {
        let memory = self.memory.as_ref().zip(limits.memory_bytes);
        let memory = memory.map(|(it, bytes)| {
            let bytes = bytes.to_string();
            let values = match it.version {
                Version::V1 => vec![
                    ("memory.limit_in_bytes", bytes.clone(), true),
                    ("memory.memsw.limit_in_bytes", bytes.clone(), false),
                    // What waits in TCP sockets is counted by itself, and only with a limit; in version 2 with the rest.
                    ("memory.kmem.tcp.limit_in_bytes", bytes, false),
                ],
                Version::V2 => vec![
                    ("memory.max", bytes, true),
                    ("memory.swap.max", "0".to_owned(), false),
                ],
            };
            (it, "memory", values)
        });
        // Also without a limit: in a group of its own a sandbox weighs as one process, however many it has.
        let cpu = self.cpu.as_ref().map(|it| {
            let quota = limits.cpu_millis.map(|it| u64::from(it) * PERIOD / 1000);
            let values = match (it.version, quota) {
                (_, None) => Vec::new(),
                (Version::V1, Some(quota)) => vec![
                    ("cpu.cfs_period_us", PERIOD.to_string(), true),
                    ("cpu.cfs_quota_us", quota.to_string(), true),
                ],
                (Version::V2, Some(quota)) => vec![("cpu.max", format!("{quota} {PERIOD}"), true)],
            };
            (it, "cpu", values)
        });
        memory.into_iter().chain(cpu).collect()
    }
}

type Values = Vec<(&'static str, String, bool)>;

/// The group that sandboxes see, made if it is missing. `None` where version 2 is not mounted, or is read-only.
pub(super) fn shown() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let group = find::unified(&mounts)?.join(PARENT).join(SHOWN);
    fs::create_dir_all(&group).ok()?;
    Some(group)
}

impl Hierarchy {
    fn group(&self, id: &str) -> PathBuf {
        self.root.join(PARENT).join(id)
    }

    /// `tasks` moves one thread and does not wait for the others to stop, unlike `cgroup.procs`; version 2 has no such
    /// file.
    fn join_file(&self) -> &'static str {
        match self.version {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.procs",
        }
    }

    fn is_writable(&self) -> bool {
        let may = |path: &Path| access(path, Access::WRITE_OK).is_ok();
        let needed = match self.version {
            Version::V1 => "tasks",
            Version::V2 => SUBTREE,
        };
        may(&self.root) && may(&self.root.join(needed))
    }
}

/// What groups below have; version 2 only.
const SUBTREE: &str = "cgroup.subtree_control";

/// Makes `group`, two levels below `sbx`.
fn make(hierarchy: &Hierarchy, controller: &str, group: &Path) -> io::Result<()> {
    fs::create_dir_all(group).map_err(|error| with_path(group, &error))?;
    if hierarchy.version == Version::V1 {
        return Ok(());
    }
    // A controller is in a group's files if all groups above pass it on.
    let mut above: Vec<_> = group.ancestors().skip(1).take(3).collect();
    above.reverse();
    for above in above {
        let file = above.join(SUBTREE);
        let value = format!("+{controller}");
        match set(&file, &value) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy
                    && above == hierarchy.root
                    && move_daemon_below(above) =>
            {
                set(&file, &value)?;
            }
            other => other?,
        }
    }
    Ok(())
}

/// Moves the processes of a group that the daemon has for itself into one below. False where that is not so.
fn move_daemon_below(group: &Path) -> bool {
    let listed = fs::read_to_string(group.join(PROCS)).unwrap_or_default();
    let own = std::process::id();
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        usage::stat_fields(&stat)?.nth(1)?.parse().ok()
    };
    let Some(pids) = own_processes(&listed, own, &parent) else {
        return false;
    };
    let location = group.join(DAEMON);
    let moved = fs::create_dir_all(&location).and_then(|()| {
        let mut each = pids.iter();
        each.try_for_each(|pid| set(&location.join(PROCS), &pid.to_string()))
    });
    moved.is_ok()
}

/// Gives all sandboxes together the weight of one process on each processor. The usual weight of a group is that of one
/// process altogether, and the kernel divides it among the processors on which the group has something to run.
fn weigh(hierarchy: &Hierarchy) {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (file, value) = weight(hierarchy.version, cpus as u64);
    // Where the kernel has no such file, or does not let us write it, the usual weight stays: it is not a limit.
    let _ = set(&hierarchy.root.join(PARENT).join(file), &value.to_string());
}

/// sched(7), cgroup-v2: the usual values are 1024 and 100, the largest 262144 and 10000.
fn weight(version: Version, cpus: u64) -> (&'static str, u64) {
    match version {
        Version::V1 => ("cpu.shares", cpus.saturating_mul(1024).min(262_144)),
        Version::V2 => ("cpu.weight", cpus.saturating_mul(100).min(10_000)),
    }
}

const PROCS: &str = "cgroup.procs";

/// The processes of a group, if there are none but `own` and its children: others must not be moved.
fn own_processes(listed: &str, own: u32, parent: &dyn Fn(u32) -> Option<u32>) -> Option<Vec<u32>> {
    let pids: Result<Vec<u32>, _> = listed.lines().map(str::parse).collect();
    let pids = pids.ok()?;
    let ours = |pid: &u32| *pid == own || parent(*pid) == Some(own);
    (!pids.is_empty() && pids.iter().all(ours)).then_some(pids)
}

/// Removes groups with all below them. No process may be in them.
pub(super) fn remove(groups: &[PathBuf]) -> io::Result<()> {
    let mut done = Ok(());
    for group in groups {
        done = done.and(remove_with_retries(group));
    }
    done
}

fn remove_with_retries(group: &Path) -> io::Result<()> {
    for _ in 1..REMOVAL_ATTEMPTS {
        match remove_one(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => sleep(REMOVAL_DELAY),
            other => return other,
        }
    }
    remove_one(group)
}

fn remove_one(group: &Path) -> io::Result<()> {
    let below = match fs::read_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        below => below.map_err(|error| with_path(group, &error))?,
    };
    for entry in below.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_one(&entry.path())?;
        }
    }
    match fs::remove_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| with_path(group, &error)),
    }
}

/// Whether a path can be that of a sandbox's group, as [`Controllers::groups`] names them.
pub(super) fn is_group(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let parent = path.parent().and_then(Path::file_name);
    path.is_absolute()
        && parent.is_some_and(|parent| parent == PARENT)
        && name.is_some_and(|name| uuid::Uuid::parse_str(name).is_ok())
}

/// Files of control groups exist or do not: they cannot be created.
fn set(file: &Path, value: &str) -> io::Result<()> {
    let written = File::options().write(true).truncate(true).open(file);
    let written = written.and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|error| with_path(file, &error))
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
