//! Reading `/proc/PID/mountinfo`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sbx_sys::mounts::unescape;

/// The fields that matter here of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    /// `major:minor` of the superblock.
    pub(crate) device: String,
    pub(crate) point: PathBuf,
    pub(crate) kind: String,
}

/// What of the mounts, by id and place, is in these directories, other than the directories themselves.
pub(crate) fn below(
    mounts: impl IntoIterator<Item = (u64, PathBuf)>,
    directories: &[&Path],
) -> BTreeSet<(u64, PathBuf)> {
    let inside = |point: &Path| {
        let mut directories = directories.iter();
        directories.any(|directory| point != *directory && point.starts_with(directory))
    };
    let mounts = mounts.into_iter();
    mounts.filter(|(_, point)| inside(point)).collect()
}

/// Lines that do not look like mountinfo are left out. A mount point need not be text.
pub(crate) fn parse(bytes: &[u8]) -> Vec<Entry> {
    let lines = bytes.split(|byte| *byte == b'\n');
    lines.filter_map(entry).collect()
}

fn entry(line: &[u8]) -> Option<Entry> {
    const END_OF_OPTIONAL: &[u8] = b" - ";
    let at = line
        .windows(END_OF_OPTIONAL.len())
        .position(|window| window == END_OF_OPTIONAL)?;
    let mut fields = line.get(..at)?.split(|byte| *byte == b' ');
    let mut tail = line
        .get(at + END_OF_OPTIONAL.len()..)?
        .split(|byte| *byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    Some(Entry {
        id: text(fields.next()?).parse().ok()?,
        device: text(fields.nth(1)?),
        point: unescape(fields.nth(1)?),
        kind: text(tail.next()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_an_escaped_path_and_optional_fields() {
        let text = "36 35 98:0 /mnt1 /a\\040b\\012c rw,noatime master:1 shared:2 - ext3 /dev/root rw\nrubbish\n";
        let expected = Entry {
            id: 36,
            device: "98:0".into(),
            point: "/a b\nc".into(),
            kind: "ext3".into(),
        };
        assert_eq!(parse(text.as_bytes()), [expected]);
    }

    #[test]
    fn what_is_mounted_in_a_directory_is_below_it() {
        let mounts = parse(
            b"1 0 0:5 / / rw - tmpfs none rw\n2 1 0:6 / /w rw - tmpfs none rw\n\
              3 1 0:6 / /w/a\\040b rw - tmpfs none rw\n4 1 0:6 / /work rw - tmpfs none rw\n",
        );
        let below = |directory| {
            let mounts = mounts.iter().map(|mount| (mount.id, mount.point.clone()));
            let found = below(mounts, &[Path::new(directory)]).into_iter();
            found.map(|(id, _)| id).collect::<Vec<_>>()
        };
        assert_eq!(below("/w"), [3]);
        assert_eq!(below("/"), [2, 3, 4]);
        for directory in ["/w/a b", "/work", "/w/a"] {
            assert_eq!(below(directory), [] as [u64; 0], "{directory}");
        }
    }

    #[test]
    fn a_mount_point_is_bytes() {
        let text =
            b"1 0 0:5 / /w/\xff\\040-\\040b rw - tmpfs none rw\n2 1 0:6 / /w rw - tmpfs none rw\n";
        let found: Vec<_> = parse(text)
            .into_iter()
            .map(|entry| (entry.id, entry.device, entry.kind))
            .collect();
        let tmpfs = |id, device: &str| (id, device.to_owned(), "tmpfs".to_owned());
        assert_eq!(found, [tmpfs(1, "0:5"), tmpfs(2, "0:6")]);
    }
}
