//! What a stream is read from and written to. Between a pipe and a file the kernel moves bytes itself (`splice`).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};

const BUFFER: usize = 256 << 10;

/// Where a stream comes from.
pub trait Input: Read {
    /// Moves `length` bytes to this place in a file; fewer only at the end of the stream.
    fn read_to_file(&mut self, file: &File, offset: u64, length: u64) -> io::Result<u64>;
}

/// Where a stream goes.
pub trait Output: Write {
    /// Moves `length` bytes from this place in a file; fewer only at the end of the file.
    fn write_from_file(&mut self, file: &File, offset: u64, length: u64) -> io::Result<u64>;
}

/// One end of a pipe. Anything else works too, with a copy more.
#[derive(Debug)]
pub struct Pipe(pub File);

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Input for Pipe {
    fn read_to_file(&mut self, file: &File, offset: u64, length: u64) -> io::Result<u64> {
        let moved = moved(length, |done, left| {
            splice(
                &self.0,
                None,
                file,
                Some(&mut (offset + done)),
                left,
                SpliceFlags::MOVE,
            )
        });
        match moved {
            Err((done, Errno::INVAL)) => {
                let rest =
                    Buffered(&mut self.0).read_to_file(file, offset + done, length - done)?;
                Ok(done + rest)
            }
            Err((_, errno)) => Err(errno.into()),
            Ok(done) => Ok(done),
        }
    }
}

impl Output for Pipe {
    fn write_from_file(&mut self, file: &File, offset: u64, length: u64) -> io::Result<u64> {
        let moved = moved(length, |done, left| {
            splice(
                file,
                Some(&mut (offset + done)),
                &self.0,
                None,
                left,
                SpliceFlags::MOVE,
            )
        });
        match moved {
            Err((done, Errno::INVAL)) => {
                let rest =
                    Buffered(&mut self.0).write_from_file(file, offset + done, length - done)?;
                Ok(done + rest)
            }
            Err((_, errno)) => Err(errno.into()),
            Ok(done) => Ok(done),
        }
    }
}

/// Until all is moved, or no more comes; with an error, how much was moved before it.
fn moved(
    length: u64,
    mut some: impl FnMut(u64, usize) -> Result<usize, Errno>,
) -> Result<u64, (u64, Errno)> {
    let mut done = 0;
    while done < length {
        let left = usize::try_from(length - done)
            .unwrap_or(usize::MAX)
            .min(1 << 30);
        match some(done, left) {
            Ok(0) => break,
            Ok(count) => done += count as u64,
            Err(Errno::INTR) => {}
            Err(errno) => return Err((done, errno)),
        }
    }
    Ok(done)
}

/// Any stream, by way of a buffer.
#[derive(Debug)]
pub struct Buffered<T>(pub T);

impl<R: Read> Read for Buffered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl<W: Write> Write for Buffered<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<R: Read> Input for Buffered<R> {
    fn read_to_file(&mut self, file: &File, offset: u64, length: u64) -> io::Result<u64> {
        let mut buffer = vec![0; BUFFER];
        let mut done = 0;
        while done < length {
            let room = usize::try_from(length - done).unwrap_or(BUFFER).min(BUFFER);
            let room = buffer.get_mut(..room).unwrap_or_default();
            let count = match self.0.read(room) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            file.write_all_at(room.get(..count).unwrap_or_default(), offset + done)?;
            done += count as u64;
        }
        Ok(done)
    }
}

impl<W: Write> Output for Buffered<W> {
    fn write_from_file(&mut self, file: &File, offset: u64, length: u64) -> io::Result<u64> {
        let mut buffer = vec![0; BUFFER];
        let mut done = 0;
        while done < length {
            let room = usize::try_from(length - done).unwrap_or(BUFFER).min(BUFFER);
            let room = buffer.get_mut(..room).unwrap_or_default();
            let count = match file.read_at(room, offset + done) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.0.write_all(room.get(..count).unwrap_or_default())?;
            done += count as u64;
        }
        Ok(done)
    }
}

/// Larger pieces between two processes; where the system's limit for users forbids it, the usual ones.
pub fn widen(pipe: impl AsFd) {
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, 1 << 20);
}
