//! The bytes of a tar archive, in the format that GNU tar, bsdtar and busybox read.
//!
//! The `tar` crate knows the header. Its builder is not used: it cleans up link targets, which have to stay as they
//! are, and wants to know a file's length for certain.

use std::io::{self, Write};

use tar::{EntryType, Header};

const BLOCK: u64 = 512;
/// The zeros at the end of an archive.
pub(super) const END: u64 = 2 * BLOCK;
const ZEROS: [u8; 4096] = [0; 4096];
const LONG_NAME: &[u8] = b"././@LongLink";

pub(super) struct Tar<W>(W);

/// What a header says about a file, besides its kind. Owner and group are 0: what is unpacked belongs to the user who
/// unpacks it, and no id of this machine means anything there.
pub(super) struct Member<'a> {
    pub(super) path: &'a [u8],
    pub(super) mode: u32,
    /// In seconds since 1970.
    pub(super) modified: i64,
}

impl<W: Write> Tar<W> {
    pub(super) fn new(out: W) -> Self {
        Self(out)
    }

    /// Begins a file. Exactly `size` bytes have to follow, and [`Tar::pad`].
    pub(super) fn file(&mut self, member: &Member<'_>, size: u64) -> io::Result<()> {
        let mut header = member.header(EntryType::Regular);
        header.set_size(size);
        self.name(member, &mut header)?;
        self.header(header)
    }

    pub(super) fn symlink(&mut self, member: &Member<'_>, target: &[u8]) -> io::Result<()> {
        let mut header = member.header(EntryType::Symlink);
        if !fits(&mut header.as_old_mut().linkname, target) {
            self.long(EntryType::GNULongLink, target)?;
        }
        self.name(member, &mut header)?;
        self.header(header)
    }

    pub(super) fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    pub(super) fn zeros(&mut self, mut count: u64) -> io::Result<()> {
        while count > 0 {
            let most = usize::try_from(count).unwrap_or(ZEROS.len());
            let zeros = ZEROS.get(..most).unwrap_or(&ZEROS);
            self.0.write_all(zeros)?;
            count = count.saturating_sub(zeros.len() as u64);
        }
        Ok(())
    }

    /// Fills the last block of a file of this size.
    pub(super) fn pad(&mut self, size: u64) -> io::Result<()> {
        self.zeros(size.next_multiple_of(BLOCK).saturating_sub(size))
    }

    pub(super) fn end(&mut self) -> io::Result<()> {
        self.zeros(END)
    }

    fn name(&mut self, member: &Member<'_>, header: &mut Header) -> io::Result<()> {
        if fits(&mut header.as_old_mut().name, member.path) {
            return Ok(());
        }
        self.long(EntryType::GNULongName, member.path)
    }

    /// A name that is too long for the header of its file goes before it, with a NUL at its end.
    fn long(&mut self, kind: EntryType, text: &[u8]) -> io::Result<()> {
        let size = text.len() as u64 + 1;
        let about = Member {
            path: LONG_NAME,
            mode: 0o644,
            modified: 0,
        };
        let mut header = about.header(kind);
        header.set_size(size);
        fits(&mut header.as_old_mut().name, LONG_NAME);
        self.header(header)?;
        self.data(text)?;
        self.zeros(1)?;
        self.pad(size)
    }

    fn header(&mut self, mut header: Header) -> io::Result<()> {
        header.set_cksum();
        self.0.write_all(header.as_bytes())
    }
}

impl Member<'_> {
    fn header(&self, kind: EntryType) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(self.mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        // Before 1970 is as good as 1970.
        header.set_mtime(u64::try_from(self.modified).unwrap_or(0));
        header
    }
}

/// Writes the text into the field, or its beginning where it is longer: readers that do not know the long form see that.
fn fits(field: &mut [u8; 100], text: &[u8]) -> bool {
    for (place, byte) in field.iter_mut().zip(text) {
        *place = *byte;
    }
    text.len() <= field.len()
}
