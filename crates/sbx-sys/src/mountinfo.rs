//! Reading `/proc/PID/mountinfo` (`proc_pid_mountinfo(5)`).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

const OWN: &str = "/proc/self/mountinfo";
/// More than most machines need.
const USUAL_SIZE: usize = 32 << 10;

/// One line, with the fields that are used here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The mount id, unique among mounts that exist: it is reused after an unmount.
    pub id: u64,
    /// The id of the mount that this one lies on.
    pub parent: u64,
    /// `major:minor` of the superblock: which file system this is a mount of.
    pub device: String,
    /// The directory of that file system which is mounted here; `/` unless it is a bind mount of a part.
    pub root: PathBuf,
    pub point: PathBuf,
    pub kind: String,
}

/// What is mounted now, for [`parse`].
pub fn own() -> io::Result<Vec<u8>> {
    // The kernel makes it while it is read, and tells no size: with room from the beginning it is read at once.
    let mut text = Vec::with_capacity(USUAL_SIZE);
    File::open(OWN)?.read_to_end(&mut text)?;
    Ok(text)
}

/// The mount points strictly below a directory, in order and each once.
pub fn points_below(bytes: &[u8], directory: &Path) -> Vec<PathBuf> {
    let points = parse(bytes).into_iter().map(|mount| mount.point);
    let below: BTreeSet<_> = points
        .filter(|point| point != directory && point.starts_with(directory))
        .collect();
    below.into_iter().collect()
}

/// Invalid lines are skipped. A mount point need not be UTF-8.
pub fn parse(bytes: &[u8]) -> Vec<Entry> {
    let lines = bytes.split(|byte| *byte == b'\n');
    lines.filter_map(entry).collect()
}

fn entry(line: &[u8]) -> Option<Entry> {
    // The optional fields (`shared:`, `master:`) vary in number; a lone hyphen ends them.
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
        parent: text(fields.next()?).parse().ok()?,
        device: text(fields.next()?),
        root: unescape(fields.next()?),
        point: unescape(fields.next()?),
        kind: text(tail.next()?),
    })
}

/// The kernel writes space, tab, newline and backslash as `\` and three octal digits (`seq_path`).
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'\\'
            && let Some((digits, after)) = tail.split_first_chunk::<3>()
            && let Ok(digits) = std::str::from_utf8(digits)
            && let Ok(byte) = u8::from_str_radix(digits, 8)
        {
            bytes.push(byte);
            rest = after;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_an_escaped_path_and_optional_fields() {
        let text = "36 35 98:0 /mnt\\0401 /a\\040b\\012c rw,noatime master:1 shared:2 - ext3 /dev/root rw\nrubbish\n";
        let expected = Entry {
            id: 36,
            parent: 35,
            device: "98:0".into(),
            root: "/mnt 1".into(),
            point: "/a b\nc".into(),
            kind: "ext3".into(),
        };
        assert_eq!(parse(text.as_bytes()), [expected]);
    }

    #[test]
    fn mount_points_below_a_directory() {
        let info = b"27 1 254:0 / / rw - ext4 /dev/vda rw\n28 27 0:1 / /usr rw - x x rw\n29 27 0:1 / /usr/my\\040dir rw - x x rw\n\
            30 27 0:1 / /usrx rw - x x rw\n";
        assert_eq!(
            points_below(info, Path::new("/usr")),
            [PathBuf::from("/usr/my dir")]
        );
        assert_eq!(points_below(info, Path::new("/opt")), Vec::<PathBuf>::new());
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
