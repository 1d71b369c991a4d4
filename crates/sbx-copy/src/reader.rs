//! Reads a tar stream that anyone may have written: what it makes the reader keep is bounded, and every field is checked.

use std::fs::File;
use std::io::{self, Read};

use tar::{EntryType, GnuExtSparseHeader, Header, PaxExtensions};

use crate::error::CopyError;
use crate::name::Name;
use crate::pipe::Input;
use crate::writer::{Attributes, Segment};

const BLOCK: usize = 512;
/// What an entry about another entry may have: names of 4096 bytes, and a few numbers.
const MAX_EXTENSION: u64 = 64 << 10;
/// Pieces of a file with holes.
const MAX_SEGMENTS: usize = 1 << 18;
/// Entries about one entry that follow each other.
const MAX_EXTENSIONS: usize = 16;

/// One file of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: Name,
    pub kind: Kind,
    pub attributes: Attributes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Directory,
    /// Its bytes follow; see [`Reader::body`].
    File {
        size: u64,
    },
    Symlink(Vec<u8>),
    /// Another name of a file that came before.
    HardLink(Name),
    /// A device or a pipe.
    Special,
}

#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// What follows in the stream of the current entry.
    body: Body,
}

#[derive(Debug, Default)]
struct Body {
    /// In the stream.
    left: u64,
    padding: u64,
    /// Where the bytes belong; without it they are the file from its beginning.
    segments: Option<Vec<Segment>>,
}

/// What the entries before one say about it.
#[derive(Debug, Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<i64>,
}

impl<R: Input> Reader<R> {
    pub fn new(input: R) -> Self {
        Self {
            input,
            body: Body::default(),
        }
    }

    /// The next file; `None` at the end of the stream. What was not read of the one before is skipped.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, CopyError> {
        self.skip()?;
        let mut extensions = Extensions::default();
        for _ in 0..MAX_EXTENSIONS {
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let size = number(header.entry_size())?;
            match header.entry_type() {
                EntryType::GNULongName => extensions.name = Some(self.text(size)?),
                EntryType::GNULongLink => extensions.target = Some(self.text(size)?),
                EntryType::XHeader => extensions.read_pax(&self.extension(size)?)?,
                EntryType::XGlobalHeader => drop(self.extension(size)?),
                kind => return self.entry(kind, &header, size, extensions).map(Some),
            }
        }
        Err(CopyError::invalid("too many extensions of one entry"))
    }

    /// Moves the bytes of the current file to their places in `file`, which gets its size.
    pub fn body(&mut self, file: &File, size: u64) -> Result<u64, CopyError> {
        let Body { left, segments, .. } = &mut self.body;
        let whole = [(0, *left)];
        let segments = segments.take();
        let mut moved = 0;
        for (offset, length) in segments.as_deref().unwrap_or(&whole) {
            let count = self.input.read_to_file(file, *offset, *length);
            let count = count.map_err(CopyError::Stream)?;
            moved += count;
            *left -= count;
            if count < *length {
                return Err(CopyError::Truncated);
            }
        }
        if segments.is_some() {
            file.set_len(size).map_err(CopyError::Stream)?;
        }
        Ok(moved)
    }

    /// Reads on until the other side has said everything: it must not find its reader gone.
    pub fn drain(mut self) -> Result<(), CopyError> {
        io::copy(&mut self.input, &mut io::sink()).map_err(CopyError::Stream)?;
        Ok(())
    }

    fn skip(&mut self) -> Result<(), CopyError> {
        let Body { left, padding, .. } = std::mem::take(&mut self.body);
        let rest = left.saturating_add(padding);
        let mut skipped = (&mut self.input).take(rest);
        let count = io::copy(&mut skipped, &mut io::sink()).map_err(CopyError::Stream)?;
        if count == rest {
            Ok(())
        } else {
            Err(CopyError::Truncated)
        }
    }

    /// `None` at the end, which is two blocks of zeros; where the second is missing, one is enough (as for GNU tar).
    fn header(&mut self) -> Result<Option<Header>, CopyError> {
        let mut header = Header::new_old();
        self.fill(header.as_mut_bytes())?;
        let bytes = header.as_bytes();
        if bytes.iter().all(|byte| *byte == 0) {
            return match self.fill(&mut [0; BLOCK]) {
                Ok(()) | Err(CopyError::Truncated) => Ok(None),
                Err(error) => Err(error),
            };
        }
        let sum = |field: std::ops::Range<usize>| -> u32 {
            let numbered = bytes.iter().enumerate();
            // The checksum itself counts as spaces.
            let values = numbered.map(|(at, byte)| {
                if field.contains(&at) {
                    32
                } else {
                    u32::from(*byte)
                }
            });
            values.sum()
        };
        let said = header
            .cksum()
            .map_err(|_| CopyError::invalid("a damaged header"))?;
        if said != sum(148..156) {
            return Err(CopyError::invalid("a damaged header"));
        }
        Ok(Some(header))
    }

    fn entry(
        &mut self,
        kind: EntryType,
        header: &Header,
        size: u64,
        extensions: Extensions,
    ) -> Result<Entry, CopyError> {
        let name = extensions
            .name
            .unwrap_or_else(|| header.path_bytes().into_owned());
        let target = extensions
            .target
            .or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
        let target = || {
            target
                .clone()
                .ok_or_else(|| CopyError::invalid("a link without a target"))
        };
        let size = extensions.size.unwrap_or(size);
        let attributes = Attributes {
            mode: number(header.mode())? & 0o7777,
            uid: id(extensions.uid.map_or_else(|| number(header.uid()), Ok)?)?,
            gid: id(extensions.gid.map_or_else(|| number(header.gid()), Ok)?)?,
            mtime: match extensions.mtime {
                Some(mtime) => mtime,
                None => i64::try_from(number(header.mtime())?).unwrap_or(i64::MAX),
            },
        };
        let is_directory = name.ends_with(b"/");
        let name = Name::parse(&name)?;
        let mut body = Body {
            left: size,
            padding: size
                .checked_next_multiple_of(BLOCK as u64)
                .ok_or_else(too_large)?
                - size,
            segments: None,
        };
        let kind = match kind {
            EntryType::Directory => Kind::Directory,
            // Programs of the time before directories had a type.
            EntryType::Regular if is_directory => Kind::Directory,
            EntryType::Regular | EntryType::Continuous => Kind::File { size },
            EntryType::GNUSparse => {
                let (size, segments) = self.segments(header, size)?;
                body.segments = Some(segments);
                Kind::File { size }
            }
            EntryType::Symlink => Kind::Symlink(target()?),
            EntryType::Link => Kind::HardLink(Name::parse(&target()?)?),
            EntryType::Char | EntryType::Block | EntryType::Fifo => Kind::Special,
            other => {
                let byte = char::from(other.as_byte()).escape_default();
                return Err(CopyError::invalid(format!("an entry of type '{byte}'")));
            }
        };
        // Only files have bytes, whatever the field says; GNU's own links to large files have their size there.
        let has_body = matches!(kind, Kind::File { .. });
        if has_body || matches!(kind, Kind::Directory | Kind::Special) {
            self.body = body;
        }
        Ok(Entry {
            name,
            kind,
            attributes,
        })
    }

    /// The size of a file with holes, and where its bytes belong.
    fn segments(&mut self, header: &Header, sent: u64) -> Result<(u64, Vec<Segment>), CopyError> {
        let gnu = header
            .as_gnu()
            .ok_or_else(|| CopyError::invalid("holes without a map"))?;
        let size = number(gnu.real_size())?;
        let mut map = Map {
            size,
            sent,
            segments: Vec::new(),
        };
        for place in gnu.sparse.iter().filter(|place| !place.is_empty()) {
            map.add(number(place.offset())?, number(place.length())?)?;
        }
        let mut extended = gnu.is_extended();
        while extended {
            let mut block = GnuExtSparseHeader::new();
            self.fill(block.as_mut_bytes())?;
            for place in block.sparse.iter().filter(|place| !place.is_empty()) {
                map.add(number(place.offset())?, number(place.length())?)?;
            }
            extended = block.is_extended();
        }
        if map.sent > 0 {
            return Err(CopyError::invalid("a map of holes that does not add up"));
        }
        Ok((size, map.segments))
    }

    /// A name that ends with a NUL byte.
    fn text(&mut self, size: u64) -> Result<Vec<u8>, CopyError> {
        let mut bytes = self.extension(size)?;
        if bytes.last() == Some(&0) {
            bytes.pop();
        }
        Ok(bytes)
    }

    fn extension(&mut self, size: u64) -> Result<Vec<u8>, CopyError> {
        if size > MAX_EXTENSION {
            return Err(CopyError::invalid("an extension that is too long"));
        }
        let length = usize::try_from(size).map_err(|_| too_large())?;
        let mut bytes = vec![0; length.next_multiple_of(BLOCK)];
        self.fill(&mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), CopyError> {
        self.input
            .read_exact(bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => CopyError::Truncated,
                _ => CopyError::Stream(error),
            })
    }
}

/// Segments in order, within the file, and not more than were sent.
struct Map {
    size: u64,
    sent: u64,
    segments: Vec<Segment>,
}

impl Map {
    fn add(&mut self, offset: u64, length: u64) -> Result<(), CopyError> {
        let wrong = || CopyError::invalid("a map of holes that does not add up");
        let end = self
            .segments
            .last()
            .map_or(0, |(offset, length)| offset + length);
        let fits = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.size);
        if offset < end || !fits || self.segments.len() >= MAX_SEGMENTS {
            return Err(wrong());
        }
        self.sent = self.sent.checked_sub(length).ok_or_else(wrong)?;
        self.segments.push((offset, length));
        Ok(())
    }
}

impl Extensions {
    fn read_pax(&mut self, bytes: &[u8]) -> Result<(), CopyError> {
        for extension in PaxExtensions::new(bytes) {
            let extension = extension.map_err(|_| CopyError::invalid("a damaged extension"))?;
            let value = extension.value_bytes();
            let text = || std::str::from_utf8(value).unwrap_or_default();
            let wrong = || CopyError::invalid("a number in an extension");
            let digits = || text().parse().map_err(|_| wrong());
            match extension.key_bytes() {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"size" => self.size = Some(digits()?),
                b"uid" => self.uid = Some(digits()?),
                b"gid" => self.gid = Some(digits()?),
                // With a fraction, perhaps.
                b"mtime" => {
                    let seconds = text().split('.').next().unwrap_or_default();
                    self.mtime = Some(seconds.parse().map_err(|_| wrong())?);
                }
                key if key.starts_with(b"GNU.sparse.") => {
                    let advice = "holes in the format of POSIX; use `tar --format=gnu`";
                    return Err(CopyError::invalid(advice));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn number<T>(field: io::Result<T>) -> Result<T, CopyError> {
    field.map_err(|_| CopyError::invalid("a field that is not a number"))
}

/// -1 means "unchanged" to `chown`.
fn id(number: u64) -> Result<u32, CopyError> {
    let id = u32::try_from(number).ok().filter(|id| *id != u32::MAX);
    id.ok_or_else(|| CopyError::invalid("an owner that is not a number of 32 bits"))
}

fn too_large() -> CopyError {
    CopyError::invalid("an entry that is too large")
}
