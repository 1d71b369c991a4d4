//! Writes a tar stream: GNU's format, with long names, files of any size, and holes.

use std::fs::File;
use std::io;

use tar::{EntryType, GnuExtSparseHeader, Header};

use crate::error::CopyError;
use crate::pipe::Output;

const BLOCK: u64 = 512;
const ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
/// The name of an entry that carries a long name.
const LONG_LINK: &[u8] = b"././@LongLink";

/// What is the same for every kind of entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: i64,
}

/// Offset and length of a piece of a file that is not a hole.
pub type Segment = (u64, u64);

#[derive(Debug)]
pub struct Writer<W> {
    out: W,
}

impl<W: Output> Writer<W> {
    pub fn new(out: W) -> Self {
        Self { out }
    }

    pub fn directory(&mut self, name: &[u8], attributes: Attributes) -> Result<(), CopyError> {
        let header = header(EntryType::Directory, attributes, 0);
        self.entry(&[name, b"/"].concat(), None, header)
    }

    pub fn symlink(
        &mut self,
        name: &[u8],
        target: &[u8],
        attributes: Attributes,
    ) -> Result<(), CopyError> {
        let header = header(EntryType::Symlink, attributes, 0);
        self.entry(name, Some(target), header)
    }

    /// Another name of a file that was written already.
    pub fn hard_link(
        &mut self,
        name: &[u8],
        target: &[u8],
        attributes: Attributes,
    ) -> Result<(), CopyError> {
        let header = header(EntryType::Link, attributes, 0);
        self.entry(name, Some(target), header)
    }

    /// A file with these bytes.
    pub fn bytes(
        &mut self,
        name: &[u8],
        bytes: &[u8],
        attributes: Attributes,
    ) -> Result<(), CopyError> {
        let size = bytes.len() as u64;
        let header = header(EntryType::Regular, attributes, size);
        self.entry(name, None, header)?;
        self.put(bytes)?;
        self.pad(size)
    }

    /// A file of that size. When it is found to be shorter, the rest is zeros, and false is returned.
    pub fn file(
        &mut self,
        name: &[u8],
        file: &File,
        size: u64,
        attributes: Attributes,
    ) -> Result<bool, CopyError> {
        let header = header(EntryType::Regular, attributes, size);
        self.entry(name, None, header)?;
        let whole = self.segment(name, file, (0, size))?;
        self.pad(size)?;
        Ok(whole)
    }

    /// A file of that size, of which only the segments are sent.
    pub fn sparse(
        &mut self,
        name: &[u8],
        file: &File,
        size: u64,
        segments: &[Segment],
        attributes: Attributes,
    ) -> Result<bool, CopyError> {
        let sent = segments.iter().map(|(_, length)| length).sum();
        let mut first = header(EntryType::GNUSparse, attributes, sent);
        // A map ends with an empty segment at the end of the file, so that it has its size.
        let mut map = segments.to_vec();
        map.push((size, 0));
        let (inline, rest) = map.split_at_checked(4).unwrap_or((&map, &[]));
        if let Some(gnu) = first.as_gnu_mut() {
            number(&mut gnu.realsize, size);
            for (place, (offset, length)) in gnu.sparse.iter_mut().zip(inline) {
                number(&mut place.offset, *offset);
                number(&mut place.numbytes, *length);
            }
            gnu.isextended = [u8::from(!rest.is_empty())];
        }
        self.entry(name, None, first)?;
        let mut blocks = rest.chunks(21).peekable();
        while let Some(block) = blocks.next() {
            let mut extended = GnuExtSparseHeader::new();
            for (place, (offset, length)) in extended.sparse.iter_mut().zip(block) {
                number(&mut place.offset, *offset);
                number(&mut place.numbytes, *length);
            }
            extended.isextended = [u8::from(blocks.peek().is_some())];
            self.put(extended.as_bytes())?;
        }
        let mut whole = true;
        for segment in segments {
            whole &= self.segment(name, file, *segment)?;
        }
        self.pad(sent)?;
        Ok(whole)
    }

    /// The end of the stream: two blocks of zeros. They are one write of less than `PIPE_BUF` bytes, which is atomic: a reader
    /// that leaves after the first of them would break the pipe under the second.
    pub fn finish(mut self) -> Result<W, CopyError> {
        self.put(&[0; 2 * BLOCK as usize])?;
        self.out.flush().map_err(CopyError::Stream)?;
        Ok(self.out)
    }

    fn segment(
        &mut self,
        name: &[u8],
        file: &File,
        (offset, length): Segment,
    ) -> Result<bool, CopyError> {
        let sent = self.out.write_from_file(file, offset, length);
        let sent = sent.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => CopyError::Stream(error),
            _ => CopyError::file("copy", name, error),
        })?;
        // The header has said how much comes.
        for _ in 0..(length - sent) / BLOCK {
            self.put(&ZEROS)?;
        }
        let rest = usize::try_from((length - sent) % BLOCK).unwrap_or(0);
        self.put(ZEROS.get(..rest).unwrap_or_default())?;
        Ok(sent == length)
    }

    fn entry(
        &mut self,
        name: &[u8],
        target: Option<&[u8]>,
        mut header: Header,
    ) -> Result<(), CopyError> {
        if let Some(target) = target {
            self.field(EntryType::GNULongLink, target, &mut header, |header| {
                &mut header.as_old_mut().linkname
            })?;
        }
        self.field(EntryType::GNULongName, name, &mut header, |header| {
            &mut header.as_old_mut().name
        })?;
        header.set_cksum();
        self.put(header.as_bytes())
    }

    /// A name in the header, or in an entry before it if it is too long for that.
    fn field(
        &mut self,
        long: EntryType,
        name: &[u8],
        of: &mut Header,
        field: impl Fn(&mut Header) -> &mut [u8; 100],
    ) -> Result<(), CopyError> {
        if name.len() > 100 {
            let none = Attributes {
                mode: 0o644,
                uid: 0,
                gid: 0,
                mtime: 0,
            };
            // With the byte that ends it.
            let size = name.len() as u64 + 1;
            let mut header = header(long, none, size);
            fill(&mut header.as_old_mut().name, LONG_LINK);
            header.set_cksum();
            self.put(header.as_bytes())?;
            self.put(name)?;
            self.put(&[0])?;
            self.pad(size)?;
        }
        fill(field(of), name);
        Ok(())
    }

    fn pad(&mut self, size: u64) -> Result<(), CopyError> {
        let rest = usize::try_from(size.next_multiple_of(BLOCK) - size).unwrap_or(0);
        self.put(ZEROS.get(..rest).unwrap_or_default())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), CopyError> {
        self.out.write_all(bytes).map_err(CopyError::Stream)
    }
}

fn fill(field: &mut [u8; 100], name: &[u8]) {
    for (place, byte) in field.iter_mut().zip(name) {
        *place = *byte;
    }
}

fn header(kind: EntryType, attributes: Attributes, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(attributes.mode);
    header.set_uid(attributes.uid.into());
    header.set_gid(attributes.gid.into());
    // Before 1970 there were no files.
    header.set_mtime(u64::try_from(attributes.mtime).unwrap_or(0));
    header.set_size(size);
    header
}

/// As octal digits, or in binary where they do not fit.
fn number(field: &mut [u8; 12], value: u64) {
    if value < 1 << 33 {
        let digits = format!("{value:011o}\0");
        for (place, digit) in field.iter_mut().zip(digits.bytes()) {
            *place = digit;
        }
    } else {
        *field = [0; 12];
        field[0] = 0x80;
        field[4..].copy_from_slice(&value.to_be_bytes());
    }
}
