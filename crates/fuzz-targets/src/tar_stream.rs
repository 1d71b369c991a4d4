//! Tar streams of the other end of a copy.

use std::fs::File;
use std::io::{self, Read};

use sbx_copy::{Entry, Input, Kind, Name, Reader};

/// A stream that has bytes to give in pieces of this size, and none of whose files are stored.
struct Pieces<'a> {
    rest: &'a [u8],
    size: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let size = self.size.min(buffer.len());
        (&mut self.rest).take(size as u64).read(buffer)
    }
}

impl Input for Pieces<'_> {
    fn read_to_file(&mut self, _: &File, _: u64, length: u64) -> io::Result<u64> {
        io::copy(&mut self.rest.take(length), &mut io::sink())
    }
}

/// The files of a stream up to its end, or to what is refused.
pub fn fuzz_tar_stream(data: &[u8]) {
    let whole = entries(data, usize::MAX);
    assert_eq!(whole, entries(data, 1), "the same in any pieces");
    let (entries, _) = whole;
    // Each has a header.
    assert!(entries.len() <= data.len() / 512, "files from nothing");
    for entry in entries {
        leads_down(&entry.name);
        if let Kind::HardLink(target) = &entry.kind {
            leads_down(target);
        }
        let attributes = entry.attributes;
        assert!(attributes.mode <= 0o7777, "{attributes:?}");
        // -1 would leave a file with the owner that it has.
        let owners = [attributes.uid, attributes.gid];
        assert!(!owners.contains(&u32::MAX), "{attributes:?}");
    }
}

/// What can be had, and whether the stream ended well.
fn entries(data: &[u8], size: usize) -> (Vec<Entry>, bool) {
    let mut reader = Reader::new(Pieces { rest: data, size });
    let mut entries = Vec::new();
    loop {
        match reader.next_entry() {
            Ok(Some(entry)) => entries.push(entry),
            Ok(None) => return (entries, true),
            Err(_) => return (entries, false),
        }
    }
}

/// A name in a stream leads nowhere but below the directory that it is resolved in, and is read as it is written.
fn leads_down(name: &Name) {
    let bytes = name.to_bytes();
    let mut parts = bytes.split(|byte| *byte == b'/');
    let harmless = |part: &[u8]| !part.is_empty() && part != b".." && !part.contains(&0);
    assert!(parts.all(harmless), "{name:?}");
    assert_eq!(Name::parse(&bytes).ok().as_ref(), Some(name));
}
