//! A memfd that a child can write its status to, by a path.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// An anonymous file for one answer: the kernel frees it when we end, however we end.
#[derive(Debug)]
pub struct StatusMemfd(File);

impl StatusMemfd {
    /// `None` where there is no path by which a child could write to it.
    pub fn new() -> io::Result<Option<Self>> {
        Ok(memory()?.map(Self))
    }

    /// For our children, as long as we live: processes of other users have no access to it.
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
    let memory = memfd_create("crabbox-status", MemfdFlags::CLOEXEC)?;
    Ok(Some(File::from(memory)))
}

#[cfg(not(target_os = "linux"))]
fn memory() -> io::Result<Option<File>> {
    Ok(None)
}
