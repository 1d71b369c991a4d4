//! Passing a child's output on to a descriptor of ours, with a listener that records it.
//!
//! The beginning is copied by hand, and all of it is heard. After that the kernel moves the bytes from pipe to pipe, and
//! what is heard is the end: a second pipe keeps the last of them, and what it has no room for is thrown away unread.

use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsFd;

use super::pump::{CHUNK, Turn, Turns, widen};

/// Who hears what is passed on.
pub trait Listener: Send {
    fn hear(&self, bytes: &[u8]);
    /// So many bytes went by unheard.
    fn miss(&self, bytes: u64);
}

/// As much as is heard in full.
const MAX_HEARD_BYTES: u64 = 8 << 20;

pub(super) fn pass(
    mut from: impl Read + AsFd,
    ended: &PipeReader,
    mut to: File,
    listener: &dyn Listener,
) -> io::Result<()> {
    let mut turns = Turns::new(ended);
    // Most commands say little.
    let mut buffer = vec![0; 8 << 10];
    let mut moved = 0_u64;
    let mut kernel = Kernel::Not;
    loop {
        match turns.next(&from)? {
            Turn::Again => continue,
            Turn::Over => break,
            Turn::Read => {}
        }
        if moved >= MAX_HEARD_BYTES && matches!(kernel, Kernel::Not) {
            kernel = Kernel::start(&from, &to);
        }
        let count = match &mut kernel {
            Kernel::Moves(tail) => match tail.forward(&from, &to) {
                Ok(count) => count,
                // Not every descriptor can be spliced to. Nothing was moved yet.
                Err(Spliced::Refused) => {
                    kernel = Kernel::Cannot;
                    continue;
                }
                Err(Spliced::Failed(error)) => return Err(error),
            },
            Kernel::Not | Kernel::Cannot => {
                let count = match from.read(&mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    other => other?,
                };
                let bytes = buffer.get(..count).unwrap_or_default();
                to.write_all(bytes)?;
                listener.hear(bytes);
                if count == buffer.len() {
                    buffer.resize(CHUNK, 0);
                }
                count as u64
            }
        };
        if count == 0 {
            break;
        }
        turns.took(count);
        moved += count;
    }
    if let Kernel::Moves(tail) = kernel {
        tail.tell(listener)?;
    }
    Ok(())
}

/// Whether the kernel moves the bytes.
enum Kernel {
    Not,
    Moves(Tail),
    Cannot,
}

enum Spliced {
    Refused,
    Failed(io::Error),
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::{File, OpenOptions};
    use std::io::{self, PipeReader, PipeWriter, Read};
    use std::os::fd::AsFd;

    use rustix::io::Errno;
    use rustix::pipe::{SpliceFlags, splice, tee};

    use super::{Kernel, Listener, Spliced, widen};

    /// The most that is moved at once.
    const MOST: usize = 1 << 20;

    /// The last bytes that went by.
    pub(super) struct Tail {
        kept: PipeReader,
        keep: PipeWriter,
        nowhere: File,
        missed: u64,
    }

    impl Kernel {
        pub(super) fn start(from: &impl AsFd, to: &File) -> Self {
            let tail = || {
                let (kept, keep) = io::pipe()?;
                let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
                widen(from);
                widen(to);
                widen(&keep);
                Ok::<_, io::Error>(Tail {
                    kept,
                    keep,
                    nowhere,
                    missed: 0,
                })
            };
            tail().map_or(Self::Cannot, Self::Moves)
        }
    }

    impl Tail {
        /// Moves what there is, and keeps a copy. 0 at the end.
        pub(super) fn forward(&mut self, from: &impl AsFd, to: &File) -> Result<u64, Spliced> {
            let count = loop {
                match tee(from, &self.keep, MOST, SpliceFlags::NONBLOCK) {
                    Ok(count) => break count,
                    Err(Errno::INTR) => {}
                    // There is something to read, so it is the copy that has no room.
                    Err(Errno::AGAIN) => self.forget()?,
                    Err(error) => return Err(Spliced::Failed(error.into())),
                }
            };
            let mut left = count;
            while left > 0 {
                match splice(from, None, to, None, left, SpliceFlags::MOVE) {
                    Ok(0) => break,
                    Ok(moved) => left -= moved,
                    Err(Errno::INTR) => {}
                    Err(Errno::INVAL) if left == count => return Err(Spliced::Refused),
                    Err(error) => return Err(Spliced::Failed(error.into())),
                }
            }
            Ok((count - left) as u64)
        }

        /// Makes room by letting go of the oldest half.
        fn forget(&mut self) -> Result<(), Spliced> {
            let flags = SpliceFlags::NONBLOCK;
            match splice(&self.kept, None, &self.nowhere, None, MOST / 2, flags) {
                Ok(0) | Err(Errno::AGAIN) => {
                    Err(Spliced::Failed(io::Error::other("the pipe has no space")))
                }
                Ok(count) => {
                    self.missed += count as u64;
                    Ok(())
                }
                Err(error) => Err(Spliced::Failed(error.into())),
            }
        }

        pub(super) fn tell(self, listener: &dyn Listener) -> io::Result<()> {
            let Self {
                mut kept,
                keep,
                missed,
                ..
            } = self;
            drop(keep);
            let mut last = Vec::new();
            kept.read_to_end(&mut last)?;
            if missed > 0 {
                listener.miss(missed);
            }
            listener.hear(&last);
            Ok(())
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod linux {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsFd;

    use super::{Kernel, Listener, Spliced};

    pub(super) enum Tail {}

    impl Kernel {
        pub(super) fn start(_from: &impl AsFd, _to: &File) -> Self {
            Self::Cannot
        }
    }

    impl Tail {
        pub(super) fn forward(&mut self, _from: &impl AsFd, _to: &File) -> Result<u64, Spliced> {
            match *self {}
        }

        pub(super) fn tell(self, _listener: &dyn Listener) -> io::Result<()> {
            match self {}
        }
    }
}

use linux::Tail;
