//! Memory that a child can write to by a path.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// A file without a place, for one answer: it is gone with us, however we end.
#[derive(Debug)]
pub struct Slate(File);

impl Slate {
    /// `None` where there is no path by which a child could write to it: nobody is to be asked to.
    pub fn new() -> io::Result<Option<Self>> {
        Ok(memory()?.map(Self))
    }

    /// For our children, as long as we live: nobody else's processes may look there.
    pub fn path(&self) -> PathBuf {
        let (process, number) = (std::process::id(), self.0.as_raw_fd());
        PathBuf::from(format!("/proc/{process}/fd/{number}"))
    }

    /// What the child wrote.
    pub fn read(mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut self.0, &mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(target_os = "linux")]
fn memory() -> io::Result<Option<File>> {
    use rustix::fs::{MemfdFlags, memfd_create};
    let memory = memfd_create("slate", MemfdFlags::CLOEXEC)?;
    Ok(Some(File::from(memory)))
}

#[cfg(not(target_os = "linux"))]
fn memory() -> io::Result<Option<File>> {
    Ok(None)
}
