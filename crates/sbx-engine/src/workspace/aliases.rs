//! The same directory by other names: what mounts show elsewhere of one file system.

use std::path::{Path, PathBuf};

use sbx_sys::mountinfo::{self, Entry};

/// What is mounted now; nothing where the kernel does not say.
pub(crate) fn mounts() -> Vec<Entry> {
    mountinfo::parse(&mountinfo::own().unwrap_or_default())
}

/// The mount that a canonical path lies on.
pub(crate) fn mount_of<'a>(mounts: &'a [Entry], path: &Path) -> Option<&'a Entry> {
    let around = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    // Of several at the same place the last line lies on top.
    around.max_by_key(|mount| mount.point.components().count())
}

/// Every path at which a directory can be seen, or a part of it that is mounted by itself; the given one among them.
/// What is mounted in it is not a part of it.
pub(crate) fn names(mounts: &[Entry], directory: &Path) -> Vec<PathBuf> {
    let itself = mount_of(mounts, directory).and_then(|on| {
        let inner = directory.strip_prefix(&on.point).ok()?;
        Some((on.device.as_str(), join(&on.root, inner)))
    });
    let mut names = vec![directory.to_path_buf()];
    if let Some((device, inner)) = itself {
        let same = mounts.iter().filter(|mount| mount.device == device);
        names.extend(same.filter_map(|mount| seen_at(mount, &inner)));
    }
    names.sort();
    names.dedup();
    names
}

/// The same with everything that is mounted in it.
pub(crate) fn names_of_all(mounts: &[Entry], directory: &Path) -> Vec<PathBuf> {
    let points = mounts.iter().map(|mount| mount.point.as_path());
    let within = points.filter(|point| *point != directory && point.starts_with(directory));
    let places = std::iter::once(directory).chain(within);
    places.flat_map(|place| names(mounts, place)).collect()
}

/// Where a mount shows what lies at `inner` of its file system, or a part of it.
fn seen_at(mount: &Entry, inner: &Path) -> Option<PathBuf> {
    if mount.root.starts_with(inner) {
        return Some(mount.point.clone());
    }
    let rest = inner.strip_prefix(&mount.root).ok()?;
    Some(join(&mount.point, rest))
}

/// Without the slash that `Path::join` puts at the end for an empty rest.
fn join(directory: &Path, rest: &Path) -> PathBuf {
    directory.components().chain(rest.components()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
        30 22 254:0 /h/data/home /h/home rw - ext4 /dev/vda rw\n\
        31 22 254:0 /h/data/home/state/vm/box /mnt/part rw - ext4 /dev/vda rw\n\
        32 22 0:40 / /h/home/state/templates rw - tmpfs t rw\n\
        33 22 0:40 /sub /mnt/t rw - tmpfs t rw\n\
        34 22 0:41 /h/data/home/state /mnt/other rw - tmpfs t rw\n\
        35 22 254:0 /h/data/home/states /mnt/states rw - ext4 /dev/vda rw\n";

    fn text(names: Vec<PathBuf>) -> Vec<String> {
        let names = names.iter();
        names.map(|name| name.display().to_string()).collect()
    }

    #[test]
    fn a_directory_is_seen_wherever_its_file_system_is_mounted() {
        let mounts = mountinfo::parse(TABLE);
        let named = |directory: &str| text(names(&mounts, Path::new(directory)));
        let own = ["/h/data/home/state", "/h/home/state", "/mnt/part"];
        assert_eq!(named("/h/home/state"), own);
        assert_eq!(named("/h/data/home/state"), own);
        assert_eq!(named("/srv"), ["/srv"]);
        assert_eq!(named("/mnt/t"), ["/h/home/state/templates/sub", "/mnt/t"]);
        let all = text(names_of_all(&mounts, Path::new("/h/home/state")));
        let mounted = ["/h/home/state/templates", "/mnt/t"].map(str::to_owned);
        assert_eq!(all, [&own.map(str::to_owned)[..], &mounted].concat());
    }

    #[test]
    fn without_a_list_of_mounts_there_is_the_one_name() {
        assert_eq!(names(&[], Path::new("/a")), [PathBuf::from("/a")]);
    }

    #[test]
    fn the_innermost_mount_and_of_those_the_last_one() {
        let text = b"1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / /a rw - tmpfs x rw\n3 2 0:3 / /a rw - xfs x rw\n";
        let mounts = mountinfo::parse(text);
        let kind = |path: &str| mount_of(&mounts, Path::new(path)).map(|on| on.kind.as_str());
        assert_eq!((kind("/ab"), kind("/a/b")), (Some("ext4"), Some("xfs")));
    }
}
