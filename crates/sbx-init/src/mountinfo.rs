//! Reading `/proc/PID/mountinfo`.

use std::path::{Path, PathBuf};

/// The fields that matter here of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    /// `major:minor` of the superblock.
    pub(crate) device: String,
    pub(crate) mount_point: PathBuf,
    pub(crate) kind: String,
}

/// Lines that do not look like mountinfo are left out.
pub(crate) fn parse(text: &str) -> Vec<Entry> {
    text.lines().filter_map(entry).collect()
}

fn entry(line: &str) -> Option<Entry> {
    let (head, tail) = line.split_once(" - ")?;
    let mut fields = head.split(' ');
    Some(Entry {
        id: fields.next()?.parse().ok()?,
        device: fields.nth(1)?.to_owned(),
        mount_point: unescape(fields.nth(1)?),
        kind: tail.split(' ').next()?.to_owned(),
    })
}

impl Entry {
    pub(crate) fn is_below(&self, path: &Path) -> bool {
        self.mount_point.starts_with(path)
    }
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
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
            mount_point: PathBuf::from("/a b\nc"),
            kind: "ext3".into(),
        };
        assert_eq!(parse(text), [expected]);
    }
}
