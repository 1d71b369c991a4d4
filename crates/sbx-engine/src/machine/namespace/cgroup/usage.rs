//! What the processes of a sandbox use: as its control groups count it, and for what they do not count, as `/proc`
//! shows its processes.
//!
//! All processes of a sandbox descend from its init, and those whose parent ended are init's children. So the CPU time of
//! all of them is that of those that live, with that of the children which each has waited for.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::param::clock_ticks_per_second;

use super::BOX;

/// Without init.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::machine) struct Used {
    /// Since the start of the sandbox, in microseconds.
    pub(in crate::machine) cpu_micros: u64,
    pub(in crate::machine) memory_bytes: u64,
    /// Processes and threads.
    pub(in crate::machine) processes: u64,
}

/// `groups` are those of the sandbox, `init` is its process 1.
pub(in crate::machine::namespace) fn used(groups: &[PathBuf], init: i32) -> Used {
    let boxes: Vec<_> = groups.iter().map(|group| group.join(BOX)).collect();
    let of_groups = |count: fn(&Path) -> Option<u64>| boxes.iter().find_map(|it| count(it));
    let (cpu, memory, processes) = (
        of_groups(cpu_micros),
        of_groups(memory_bytes),
        of_groups(tasks),
    );
    if let (Some(cpu_micros), Some(memory_bytes), Some(processes)) = (cpu, memory, processes) {
        return Used {
            cpu_micros,
            memory_bytes,
            processes,
        };
    }
    let seen = of_processes(Path::new("/proc"), init);
    Used {
        cpu_micros: cpu.unwrap_or(seen.cpu_micros),
        memory_bytes: memory.unwrap_or(seen.memory_bytes),
        processes: processes.unwrap_or(seen.processes),
    }
}

fn number(file: PathBuf) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The value of a line `name value`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.trim().parse().ok())?
    })
}

fn cpu_micros(group: &Path) -> Option<u64> {
    let v1 = || Some(number(group.join("cpuacct.usage"))? / 1000);
    let v2 = || {
        let text = fs::read_to_string(group.join("cpu.stat")).ok()?;
        field(&text, "usage_usec")
    };
    v1().or_else(v2)
}

/// Without files that the kernel can forget at once, as `docker stats` counts.
fn memory_bytes(group: &Path) -> Option<u64> {
    let (all, cached) = match number(group.join("memory.current")) {
        Some(all) => (all, "inactive_file"),
        None => (
            number(group.join("memory.usage_in_bytes"))?,
            "total_inactive_file",
        ),
    };
    let text = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    Some(all.saturating_sub(field(&text, cached).unwrap_or(0)))
}

fn tasks(group: &Path) -> Option<u64> {
    if let Some(count) = number(group.join("pids.current")) {
        return Some(count);
    }
    let listed = ["tasks", "cgroup.threads"]
        .iter()
        .find_map(|name| fs::read_to_string(group.join(name)).ok())?;
    let mut count = u64::try_from(listed.lines().count()).ok()?;
    for entry in fs::read_dir(group).ok()?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            count += tasks(&entry.path()).unwrap_or(0);
        }
    }
    Some(count)
}

/// What follows the name of a process in its `stat`, from the state on. The name may hold anything.
pub(super) fn stat_fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace())
}

/// Memory is what processes have for themselves: what they share would count for each.
fn of_processes(proc: &Path, init: i32) -> Used {
    let mut used = Used::default();
    let mut ticks = times(proc, init).map_or(0, |[_, _, user, system]| user + system);
    let mut seen = BTreeSet::new();
    let mut open = children(proc, init);
    while let Some(pid) = open.pop() {
        if !seen.insert(pid) {
            continue;
        }
        ticks += times(proc, pid).map_or(0, |all| all.iter().sum());
        let status = fs::read_to_string(proc.join(format!("{pid}/status"))).unwrap_or_default();
        let (kib, threads) = memory_and_threads(&status);
        used.memory_bytes += kib * 1024;
        used.processes += threads;
        open.extend(children(proc, pid));
    }
    used.cpu_micros = ticks * 1_000_000 / clock_ticks_per_second().max(1);
    used
}

/// User and system time of its own, and of the children that it has waited for, in clock ticks.
fn times(proc: &Path, pid: i32) -> Option<[u64; 4]> {
    let stat = fs::read_to_string(proc.join(format!("{pid}/stat"))).ok()?;
    let fields: Vec<u64> = stat_fields(&stat)?
        .skip(11)
        .take(4)
        .map(|text| text.parse().unwrap_or(0))
        .collect();
    fields.try_into().ok()
}

fn memory_and_threads(status: &str) -> (u64, u64) {
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    (
        value("RssAnon:").unwrap_or(0),
        value("Threads:").unwrap_or(0),
    )
}

fn children(proc: &Path, pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(proc.join(format!("{pid}/task")));
    let lists = threads.into_iter().flatten().flatten();
    let lists = lists.filter_map(|it| fs::read_to_string(it.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let pids = list
                .split_ascii_whitespace()
                .filter_map(|it| it.parse().ok());
            pids.collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = fs::File::create(path).unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    }

    #[test]
    fn what_groups_count() {
        let temp = tempfile::tempdir().unwrap();
        let file = |name: &str| temp.path().join(name);
        write(file("two/box/cpu.stat"), "usage_usec 1500\nuser_usec 1\n");
        write(file("two/box/memory.current"), "5000\n");
        write(file("two/box/memory.stat"), "anon 1\ninactive_file 1000\n");
        write(file("two/box/pids.current"), "3\n");
        let expected = Used {
            cpu_micros: 1500,
            memory_bytes: 4000,
            processes: 3,
        };
        assert_eq!(used(&[file("two")], 0), expected);
        write(file("one/box/cpuacct.usage"), "1500000\n");
        write(file("one/box/tasks"), "7\n8\n");
        write(file("one/box/nested/tasks"), "9\n");
        write(file("memory/box/memory.usage_in_bytes"), "5000\n");
        write(file("memory/box/memory.stat"), "total_inactive_file 1000\n");
        assert_eq!(used(&[file("memory"), file("one")], 0), expected);
    }

    #[test]
    fn what_processes_show() {
        let temp = tempfile::tempdir().unwrap();
        let process = |pid: i32, times: &str, kib: u64, children: &str| {
            let dir = temp.path().join(pid.to_string());
            let stat = format!("{pid} (a) b (c) S 1 1 1 0 -1 0 0 0 0 0 {times} 20 0 2");
            write(dir.join("stat"), &stat);
            let status = format!("Name:\tx\nRssAnon:\t  {kib} kB\nThreads:\t2\n");
            write(dir.join("status"), &status);
            write(dir.join(format!("task/{pid}/children")), children);
        };
        // Of init, only what its children used.
        process(10, "1000 1000 10 20", 1 << 20, "11 12 ");
        process(11, "1 2 3 4", 10, "13 ");
        process(12, "0 0 0 0", 20, "");
        process(13, "5 5 0 0", 30, "11 ");
        let expected = Used {
            cpu_micros: 50 * 1_000_000 / clock_ticks_per_second(),
            memory_bytes: 60 << 10,
            processes: 6,
        };
        assert_eq!(of_processes(temp.path(), 10), expected);
        assert_eq!(of_processes(temp.path(), 99), Used::default());
    }
}
