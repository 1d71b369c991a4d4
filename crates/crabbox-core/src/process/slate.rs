//! Memory that a child can write to by a path.

use std::io;

pub use here::Slate;

impl Slate {
    /// What the child wrote.
    pub fn read(mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut self.0, &mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(target_os = "linux")]
mod here {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    use rustix::fs::{MemfdFlags, memfd_create};

    /// A file without a place, for one answer: it is gone with us, however we end.
    #[derive(Debug)]
    pub struct Slate(pub(super) File);

    impl Slate {
        pub fn new() -> io::Result<Self> {
            Ok(Self(File::from(memfd_create(
                "slate",
                MemfdFlags::CLOEXEC,
            )?)))
        }

        /// For our children, as long as we live: nobody else's processes may look there.
        pub fn path(&self) -> Option<PathBuf> {
            let (process, number) = (std::process::id(), self.0.as_raw_fd());
            Some(PathBuf::from(format!("/proc/{process}/fd/{number}")))
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod here {
    use std::fs::File;
    use std::io;
    use std::path::PathBuf;

    /// A file that has no path here, so that nobody is asked to write to it.
    #[derive(Debug)]
    pub struct Slate(pub(super) File);

    impl Slate {
        pub fn new() -> io::Result<Self> {
            tempfile::tempfile().map(Self)
        }

        pub fn path(&self) -> Option<PathBuf> {
            None
        }
    }
}
