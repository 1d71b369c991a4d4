//! The tree in the sandbox, as GNU find or GNU tar lists it.

use std::collections::BTreeMap;
use std::ffi::CStr;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::changes::shell_quote;
use crate::{Code, Failure};

/// What is in the directory, by path without a leading `./`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteTree(BTreeMap<Vec<u8>, RemoteEntry>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteEntry {
    pub kind: RemoteKind,
    pub size: u64,
    pub mode: u32,
    /// Seconds and nanoseconds since 1970.
    pub modified: Option<(i64, u32)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteKind {
    File,
    Directory,
    Symlink(Vec<u8>),
    /// A pipe or a device.
    Other,
}

/// What find prints of each entry: two texts, each with a NUL behind it, and a newline.
const RECORD: &str = r"%y %m %s %T@ %P\0%l\0\n";

/// Lists what is in `workdir` on stdout, without the entry `except` at its top: with GNU find where it is there, which takes
/// half of tar's time and has no dates to be read, else with GNU tar. It fails where there is neither, or a directory cannot
/// be read. Files are not read.
pub fn listing_command(workdir: &[u8], except: &[u8]) -> Vec<u8> {
    let mut excluded = b"./".to_vec();
    excluded.extend_from_slice(except);
    let excluded = shell_quote(&excluded);
    let mut command = b"cd -- ".to_vec();
    command.extend(shell_quote(workdir));
    command.extend_from_slice(
        b" && if find . -maxdepth 0 -printf '' >/dev/null 2>&1; then LC_ALL=C find . -mindepth 1 -path ",
    );
    command.extend_from_slice(&excluded);
    command.extend_from_slice(format!(" -prune -o -printf '{RECORD}'").as_bytes());
    command.extend_from_slice(
        b"; else LC_ALL=C TZ=UTC0 tar -cvvf /dev/null --full-time --numeric-owner --hard-dereference \
          --quoting-style=escape --quote-chars=' ' --exclude=",
    );
    command.extend(excluded);
    command.extend_from_slice(b" .; fi");
    command
}

impl RemoteTree {
    pub fn parse(listing: &[u8]) -> Result<Self, Failure> {
        // tar's second letter is a permission.
        match listing.get(1) {
            Some(b' ') => Self::found(listing),
            Some(_) | None => Self::archived(listing),
        }
    }

    fn found(listing: &[u8]) -> Result<Self, Failure> {
        let mut entries = BTreeMap::new();
        let mut rest = listing;
        while !rest.is_empty() {
            let (path, entry, more) = parse_record(rest).ok_or_else(|| {
                let line = rest.split(|&byte| byte == b'\n').next();
                unreadable(line.unwrap_or_default())
            })?;
            entries.insert(path.to_vec(), entry);
            rest = more;
        }
        Ok(Self(entries))
    }

    fn archived(listing: &[u8]) -> Result<Self, Failure> {
        let mut entries = BTreeMap::new();
        for line in listing.split(|&byte| byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            let (path, entry) = parse_line(line).ok_or_else(|| unreadable(line))?;
            if !path.is_empty() {
                entries.insert(path, entry);
            }
        }
        Ok(Self(entries))
    }

    pub fn get(&self, path: &[u8]) -> Option<&RemoteEntry> {
        self.0.get(path)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &RemoteEntry)> {
        self.0.iter().map(|(path, entry)| (path.as_slice(), entry))
    }
}

fn unreadable(line: &[u8]) -> Failure {
    let line = String::from_utf8_lossy(line);
    let message = format!("cannot read the sandbox's file list: {line:?}");
    Failure::new(Code::ProviderMalformed, message)
}

/// One [`RECORD`], and what follows it.
fn parse_record(listing: &[u8]) -> Option<(&[u8], RemoteEntry, &[u8])> {
    let (kind, rest) = column(listing)?;
    let (mode, rest) = column(rest)?;
    let (size, rest) = column(rest)?;
    let (time, rest) = column(rest)?;
    let (path, rest) = until_nul(rest.strip_prefix(b" ")?)?;
    let (target, rest) = until_nul(rest)?;
    if path.is_empty() || path.starts_with(b"/") {
        return None;
    }
    let entry = RemoteEntry {
        kind: match kind {
            b"f" => RemoteKind::File,
            b"d" => RemoteKind::Directory,
            b"l" => RemoteKind::Symlink(target.to_vec()),
            _ => RemoteKind::Other,
        },
        size: text(size)?.parse().ok()?,
        mode: u32::from_str_radix(text(mode)?, 8).ok()?,
        modified: seconds(text(time)?),
    };
    Some((path, entry, rest.strip_prefix(b"\n")?))
}

fn until_nul(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = CStr::from_bytes_until_nul(bytes).ok()?.to_bytes();
    Some((text, bytes.get(text.len() + 1..)?))
}

/// `1794767953.0764344980`
fn seconds(time: &str) -> Option<(i64, u32)> {
    let (whole, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut nanoseconds = 0;
    for place in 0..9 {
        let digit = fraction.as_bytes().get(place).unwrap_or(&b'0');
        let digit = digit.is_ascii_digit().then(|| u32::from(digit - b'0'))?;
        nanoseconds = nanoseconds * 10 + digit;
    }
    Some((whole.parse().ok()?, nanoseconds))
}

/// `-rw-r--r-- 0/0 6 2026-11-18 07:00:00.5 ./path`, with more blanks between the columns.
fn parse_line(line: &[u8]) -> Option<(Vec<u8>, RemoteEntry)> {
    let (permissions, rest) = column(line)?;
    let (_owner, rest) = column(rest)?;
    let (size, rest) = column(rest)?;
    let (date, rest) = column(rest)?;
    let (time, rest) = column(rest)?;
    let name = rest.trim_ascii_start();
    let (name, target) = match permissions.first()? {
        b'l' => {
            let arrow = name.windows(4).position(|four| four == b" -> ")?;
            (name.get(..arrow)?, Some(unescape(name.get(arrow + 4..)?)?))
        }
        _ => (name, None),
    };
    let kind = match (permissions.first()?, target) {
        (b'-', _) => RemoteKind::File,
        (b'd', _) => RemoteKind::Directory,
        (b'l', Some(target)) => RemoteKind::Symlink(target),
        _ => RemoteKind::Other,
    };
    let name = unescape(name)?;
    let path = name.strip_prefix(b"./")?;
    let path = path.strip_suffix(b"/").unwrap_or(path).to_vec();
    let entry = RemoteEntry {
        kind,
        // Of a device it is two numbers.
        size: text(size)?.parse().unwrap_or(0),
        mode: mode(permissions.get(1..)?)?,
        modified: modified(text(date)?, text(time)?),
    };
    Some((path, entry))
}

/// The next word, and what follows it.
fn column(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = line.trim_ascii_start();
    let end = line.iter().position(|&byte| byte == b' ')?;
    line.split_at_checked(end)
}

fn text(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(bytes).ok()
}

fn modified(date: &str, time: &str) -> Option<(i64, u32)> {
    let at: DateTime = format!("{date}T{time}").parse().ok()?;
    let at = at.to_zoned(TimeZone::UTC).ok()?.timestamp();
    Some((at.as_second(), u32::try_from(at.subsec_nanosecond()).ok()?))
}

/// `rwsr-xr-t`, and perhaps a mark after it.
fn mode(letters: &[u8]) -> Option<u32> {
    let letters = letters.get(..9)?;
    let mut mode = 0;
    for (place, letter) in (0..9_u32).zip(letters) {
        let bit = 1 << (8 - place);
        let special = 1 << (11 - place / 3);
        mode |= match letter {
            b'-' => 0,
            b'r' | b'w' | b'x' => bit,
            b's' | b't' => bit | special,
            b'S' | b'T' => special,
            _ => return None,
        };
    }
    Some(mode)
}

/// As `--quoting-style=escape` writes it.
fn unescape(name: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(name.len());
    let mut bytes = name.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'\\' {
            plain.push(byte);
            continue;
        }
        plain.push(match *bytes.next()? {
            b'a' => 7,
            b'b' => 8,
            b't' => 9,
            b'n' => 10,
            b'v' => 11,
            b'f' => 12,
            b'r' => 13,
            high @ b'0'..=b'3' => {
                let mut value = u32::from(high - b'0');
                for _ in 0..2 {
                    let digit = bytes.next().filter(|digit| (b'0'..=b'7').contains(digit))?;
                    value = value * 8 + u32::from(digit - b'0');
                }
                u8::try_from(value).ok()?
            }
            other => other,
        });
    }
    Some(plain)
}
