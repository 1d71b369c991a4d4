//! Which controllers this process may use, and below which directory. Pure functions over what the kernel lists.

use std::path::{Path, PathBuf};

use super::{Hierarchy, Version};

/// Where a controller is looked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Location<'a> {
    /// At the top of what is mounted: root's sandboxes are beside everything else.
    Top,
    /// In the group of this process, as `/proc/self/cgroup` says: a user may have been given that one (*delegation*).
    Own(&'a str),
}

/// `available` are the controllers of a directory of version 2.
pub(super) fn hierarchy(
    controller: &str,
    mounts: &str,
    location: Location<'_>,
    available: &dyn Fn(&Path) -> String,
) -> Option<Hierarchy> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (top, point, options) = (left.next()?, left.next()?, left.next()?);
        let mut right = right.split(' ');
        let version = match (right.next()?, right.nth(1)?) {
            ("cgroup", options) if has(options, controller) => Version::V1,
            ("cgroup2", _) => Version::V2,
            _ => return None,
        };
        let root = match location {
            Location::Top => PathBuf::from(point),
            Location::Own(groups) => {
                let own = own_group(groups, controller, version)?;
                let below = own.strip_prefix(top).ok()?;
                // Without the slash that joining nothing adds.
                Path::new(point).join(below).components().collect()
            }
        };
        if version == Version::V2 {
            let all = available(&root);
            all.split_whitespace().find(|it| *it == controller)?;
        }
        (!has(options, "ro")).then_some(Hierarchy { root, version })
    })
}

/// Where version 2 is mounted whole and can be written.
pub(super) fn unified(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (top, point, options) = (left.next()?, left.next()?, left.next()?);
        let is_meant = top == "/" && right.starts_with("cgroup2 ") && !has(options, "ro");
        is_meant.then(|| PathBuf::from(point))
    })
}

fn has(list: &str, word: &str) -> bool {
    list.split(',').any(|it| it == word)
}

/// Lines are `number:controllers:path`; that of version 2 has no controllers.
fn own_group<'a>(groups: &'a str, controller: &str, version: Version) -> Option<&'a Path> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let is_meant = match version {
            Version::V1 => has(controllers, controller),
            Version::V2 => controllers.is_empty(),
        };
        is_meant.then_some(Path::new(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
        24 20 0:21 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        25 24 0:22 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
        26 24 0:23 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        27 24 0:24 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const UNIFIED: &str = "30 24 0:24 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    fn found(mounts: &str, location: Location<'_>, available: &str) -> Vec<String> {
        let available = |_: &Path| available.to_owned();
        let all = ["memory", "cpu"]
            .into_iter()
            .filter_map(|it| hierarchy(it, mounts, location, &available));
        all.map(|it| format!("{:?} {}", it.version, it.root.display()))
            .collect()
    }

    #[test]
    fn each_controller_is_found_where_it_is_mounted() {
        let expected = ["V1 /sys/fs/cgroup/memory", "V1 /sys/fs/cgroup/cpu,cpuacct"];
        assert_eq!(found(HYBRID, Location::Top, "hugetlb"), expected);
        let expected = ["V2 /sys/fs/cgroup", "V2 /sys/fs/cgroup"];
        assert_eq!(
            found(UNIFIED, Location::Top, "cpu io memory pids"),
            expected
        );
    }

    #[test]
    fn what_is_read_only_or_absent_limits_nothing() {
        let closed = HYBRID.replace("rw,relatime", "ro,relatime");
        assert!(found(&closed, Location::Top, "").is_empty());
        assert!(found(UNIFIED, Location::Top, "io pids").is_empty());
    }

    #[test]
    fn version_2_is_found_without_controllers() {
        let at = |mounts: &str| unified(mounts).map(|point| point.display().to_string());
        assert_eq!(at(HYBRID).unwrap(), "/sys/fs/cgroup/unified");
        assert_eq!(at(UNIFIED).unwrap(), "/sys/fs/cgroup");
        assert_eq!(at(&UNIFIED.replace("rw,nosuid -", "ro,nosuid -")), None);
        assert_eq!(at(&UNIFIED.replace("0:24 / ", "0:24 /docker/x ")), None);
        let first = HYBRID.rsplit_once("27 24").unwrap().0;
        assert_eq!(at(first), None, "version 1 only");
    }

    #[test]
    fn a_group_of_ones_own_is_found() {
        let own = "0::/user.slice/u.service/sbx.scope\n";
        let dir = "V2 /sys/fs/cgroup/user.slice/u.service/sbx.scope";
        assert_eq!(found(UNIFIED, Location::Own(own), "cpu memory"), [dir, dir]);
        // In a container the mount begins below the top.
        let inner = UNIFIED.replace("0:24 / ", "0:24 /docker/x ");
        let own = "0::/docker/x/y\n";
        let dir = "V2 /sys/fs/cgroup/y";
        assert_eq!(found(&inner, Location::Own(own), "cpu memory"), [dir, dir]);
        assert!(found(&inner, Location::Own("0::/elsewhere\n"), "memory").is_empty());
        let own = "4:memory:/mine\n1:cpu,cpuacct:/\n0::/\n";
        let expected = [
            "V1 /sys/fs/cgroup/memory/mine",
            "V1 /sys/fs/cgroup/cpu,cpuacct",
        ];
        assert_eq!(found(HYBRID, Location::Own(own), ""), expected);
    }
}
