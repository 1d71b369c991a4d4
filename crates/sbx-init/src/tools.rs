//! The inner ends of `sbx cp` and of SSH: this program, executed in the sandbox as any command is ([`sbx_proto::tool`]).

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use sbx_copy::pack::{Links, Watch, pack};
use sbx_copy::unpack::{Ownership, Source, destination, unpack};
use sbx_copy::{Base, CopyError, Pipe, Reader, widen};
use sbx_proto::tool::{ARCHIVE, DIRECTORY, ERROR, FILE, FOLLOW, HOLD, PACK, SFTP, UNPACK};

const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// By the arguments of this process; its exit code.
pub(crate) fn main() -> u8 {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let done = match words.as_slice() {
        [tool, path] if *tool == PACK.as_bytes() => pack_to_stdout(path, Links::Keep),
        [tool, flag, path] if *tool == PACK.as_bytes() && *flag == FOLLOW.as_bytes() => {
            pack_to_stdout(path, Links::Follow)
        }
        [tool, kind, base, path] if *tool == UNPACK.as_bytes() => {
            let known = [
                (DIRECTORY, Source::Directory),
                (FILE, Source::File),
                (ARCHIVE, Source::Archive),
            ];
            match known.iter().find(|(name, _)| name.as_bytes() == *kind) {
                Some((_, source)) => unpack_from_stdin(*source, base, path),
                None => return USAGE,
            }
        }
        [tool] if *tool == SFTP.as_bytes() => sftp().map_err(CopyError::Stream),
        [tool] if *tool == HOLD.as_bytes() => hold().map_err(CopyError::Stream),
        _ => return USAGE,
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            say(&format!("{ERROR}{error}"));
            FAILED
        }
    }
}

fn say(line: &str) {
    // Without a reader there is nothing to tell.
    let _ = writeln!(io::stderr(), "{line}");
}

struct WarningsOnStderr;

impl Watch for WarningsOnStderr {
    fn file(&mut self, _: u64) {}

    fn skipped(&mut self, name: &str, reason: &str) {
        say(&format!("warning: skipped `{name}`: {reason}"));
    }
}

fn path(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

fn stream(fd: impl AsFd) -> Result<Pipe, CopyError> {
    widen(&fd);
    let copy = rustix::io::fcntl_dupfd_cloexec(fd, 3);
    let copy = copy.map_err(|errno| CopyError::Stream(errno.into()))?;
    Ok(Pipe(File::from(copy)))
}

/// Begins in the user's home, as clients expect: `scp` takes `~/` away from a path.
#[expect(
    clippy::disallowed_methods,
    reason = "a program of its own: the command that init executes inside"
)]
fn sftp() -> io::Result<()> {
    let home = std::env::var_os("HOME").unwrap_or_else(|| "/".into());
    // Without one it begins where commands do.
    let _ = std::env::set_current_dir(&home);
    sbx_sftp::serve(
        io::stdin().lock(),
        io::BufWriter::new(io::stdout().lock()),
        Path::new(&home),
    )
}

fn hold() -> io::Result<()> {
    let mut buffer = [0; 64];
    while io::stdin().lock().read(&mut buffer)? > 0 {}
    Ok(())
}

fn pack_to_stdout(from: &[u8], links: Links) -> Result<(), CopyError> {
    let failed = |errno: Errno| CopyError::open(from, errno);
    let name = path(from);
    let base = Base::of(Path::new(&name)).ok_or_else(|| failed(Errno::INVAL))?;
    let follow = match links {
        // `link/` is what it leads to.
        Links::Keep if !from.ends_with(b"/") => OFlags::NOFOLLOW,
        Links::Keep | Links::Follow | Links::FollowBelow => OFlags::empty(),
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC | follow;
    let source = openat(CWD, &name, flags, Mode::empty()).map_err(failed)?;
    pack(
        &source,
        &base,
        links,
        stream(rustix::stdio::stdout())?,
        &mut WarningsOnStderr,
    )
    .map(drop)
}

fn unpack_from_stdin(source: Source, base: &[u8], to: &[u8]) -> Result<(), CopyError> {
    let base = match base {
        b"." => Base::Contents,
        name => Base::Named(name.to_vec()),
    };
    let open = |path: &Path| -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, path, flags, Mode::empty())
    };
    let place = destination(Path::new(&path(to)), source, base, &open)?;
    let mut reader = Reader::new(stream(rustix::stdio::stdin())?);
    let first = reader.next_entry()?;
    // Links inside lead to places inside.
    unpack(
        first,
        &mut reader,
        place,
        Ownership::Keep,
        &mut WarningsOnStderr,
    )?;
    reader.drain()
}
