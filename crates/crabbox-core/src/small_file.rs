//! Reads small files that may be hostile: O_NONBLOCK, so that a FIFO does not block; regular files only; a size limit.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The largest file of settings or variables.
pub const MAX_BYTES: u64 = 1 << 20;

/// The content of a regular file of at most [`MAX_BYTES`] bytes. A pipe, a device or a directory in its place is an error
/// at once: to open a pipe would wait for its writer, perhaps for ever.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // A socket, or a device without a driver.
        Err(Errno::NXIO) => return Err(irregular()),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Err(irregular());
    }
    let mut bytes = Vec::new();
    let mut bounded = file.take(MAX_BYTES + 1);
    bounded.read_to_end(&mut bytes)?;
    if bounded.limit() == 0 {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "larger than 1 MiB",
        ));
    }
    Ok(bytes)
}

fn irregular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_regular_files_of_some_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        File::create(path("file")).unwrap();
        assert_eq!(read(&path("file")).unwrap(), b"");
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        assert_eq!(read(&path("link")).unwrap(), b"");
        let missing = read(&path("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);

        fs::create_dir(path("dir")).unwrap();
        let _listener = UnixListener::bind(path("socket")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        for name in ["dir", "socket", "pipe", "/dev/zero", "/dev/tty"] {
            let error = read(&path(name)).unwrap_err();
            assert_eq!(error.to_string(), "not a regular file", "{name}");
        }

        let large = File::create(path("large")).unwrap();
        large.set_len(MAX_BYTES).unwrap();
        assert!(read(&path("large")).is_ok());
        large.set_len(MAX_BYTES + 1).unwrap();
        let error = read(&path("large")).unwrap_err();
        assert_eq!(error.to_string(), "larger than 1 MiB");
    }
}
