//! `sbx cp`
//!
//! One end of the copy is here, the other inside ([`sbx_proto::tool`]); between them is a tar stream on the stdin or stdout of
//! an ordinary command. For that time this process's own stdin, stdout and stderr are pipes to the threads that make or take
//! the stream, so that the session ([`attach`]) carries it as it carries any command's, by descriptors or as frames.

mod progress;
mod redirected;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;
use sbx_copy::pack::{Links, pack};
use sbx_copy::unpack::{LeftOut, Ownership, Source, destination, unpack};
use sbx_copy::{Base, CopyError, Kind as EntryKind, Pipe, Reader};
use sbx_engine::SandboxName;
use sbx_proto::OsBytes;
use sbx_proto::exec::Exec;
use sbx_proto::tool;

use crate::attach::{self, Outcome, Streams};
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind, engine};
use crate::host_path::WritableRoots;
use crate::plumbing::Stdin;
use crate::{lookup, text};
use progress::Progress;
use redirected::{PeerError, Redirected};

/// What reads or writes a tar stream here.
const STREAM: &str = "-";

/// Copy files between this machine and a sandbox
///
/// One of SRC and DST is SANDBOX:PATH. A relative PATH starts at the primary workspace. If DST is an existing directory,
/// the copy goes into it; otherwise DST is the copy's name. `SRC/.` means the contents of a directory. A stopped sandbox is started.
///
/// With `-` as SRC, DST is a directory that gets the files of a tar archive on stdin; with `-` as DST, a tar archive of SRC
/// goes to stdout.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  sbx cp ./a dev:/tmp/\n  sbx cp dev:OUT ./\n  tar c . | sbx cp - dev:/tmp"
)]
pub(crate) struct Args {
    /// Source: a path, SANDBOX:PATH or `-`
    #[arg(value_name = "SRC")]
    source: OsString,
    /// Destination: a path, SANDBOX:PATH or `-`
    #[arg(value_name = "DST")]
    destination: OsString,
    /// Follow links in SRC; on this machine those that lead out of it are an error
    #[arg(short = 'L', long)]
    follow_link: bool,
}

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Side {
    Host(PathBuf),
    Stream,
    Sandbox(SandboxName, OsBytes),
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let (source, target) = (side(&args.source)?, side(&args.destination)?);
    let call = |name: &SandboxName| Call::new(context, name.as_str(), args.follow_link);
    match (source, target) {
        (Side::Sandbox(..), Side::Sandbox(..)) => Err(Failure::new(
            Kind::BadRequest,
            "copying between sandboxes is not supported",
        )
        .hint("copy to this machine first, then to the other sandbox")),
        (Side::Host(from), Side::Sandbox(name, to)) => call(&name)?.copy_in(&from, &to),
        (Side::Stream, Side::Sandbox(name, to)) => call(&name)?.stream_in(&to),
        (Side::Sandbox(name, from), Side::Host(to)) => call(&name)?.copy_out(&from, &to),
        (Side::Sandbox(name, from), Side::Stream) => call(&name)?.stream_out(&from),
        (Side::Host(_) | Side::Stream, Side::Host(_) | Side::Stream) => Err(Failure::usage(
            "one of SRC and DST must be SANDBOX:PATH",
        )
        .hint("sbx cp SANDBOX:PATH DST, or sbx cp SRC SANDBOX:PATH; `sbx ls` lists the names")),
    }
}

/// `NAME:PATH` is in a sandbox, unless it looks like a path of this machine: `./a:b`, `/a:b`.
fn side(word: &OsStr) -> Result<Side, Failure> {
    if word == STREAM {
        return Ok(Side::Stream);
    }
    let bytes = word.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':');
    let Some((name, path)) = colon.and_then(|at| bytes.split_at_checked(at)) else {
        return Ok(Side::Host(PathBuf::from(word)));
    };
    if name.is_empty() || name.contains(&b'/') || name.first() == Some(&b'.') {
        return Ok(Side::Host(PathBuf::from(word)));
    }
    let name = String::from_utf8_lossy(name);
    let path = path.get(1..).unwrap_or_default();
    if path.is_empty() {
        let message = format!("no path after `{}:`", name.escape_debug());
        return Err(Failure::usage(message));
    }
    Ok(Side::Sandbox(
        SandboxName::parse(&name)?,
        OsBytes(path.to_vec()),
    ))
}

struct Call<'a> {
    context: &'a Context,
    client: Client<'a>,
    name: String,
    follow: bool,
    roots: Arc<WritableRoots>,
}

impl<'a> Call<'a> {
    fn new(context: &'a Context, name: &str, follow: bool) -> Result<Self, Failure> {
        // Without starting a daemon for one that is not there.
        let sandboxes = lookup::list(context)?;
        lookup::find(&sandboxes, name)?;
        Ok(Self {
            context,
            client: Client::new(context, Absent::Start)?,
            name: name.to_owned(),
            follow,
            roots: Arc::new(WritableRoots::of(&sandboxes)),
        })
    }

    fn copy_in(&self, from: &Path, to: &OsBytes) -> Result<(), Failure> {
        let base = base(from)?;
        let keeps = !self.follow && !from.as_os_str().as_bytes().ends_with(b"/");
        let nofollow = if keeps {
            OFlags::NOFOLLOW
        } else {
            OFlags::empty()
        };
        let source = self.roots.open(from, OFlags::PATH | nofollow);
        let source = source.map_err(|errno| cannot_open(from, errno))?;
        let kind = if is_directory(&source) {
            tool::DIRECTORY
        } else {
            tool::FILE
        };
        let words = [
            tool::UNPACK.as_bytes(),
            kind.as_bytes(),
            base.as_bytes(),
            to.as_bytes(),
        ];
        let links = if self.follow {
            Links::FollowBelow
        } else {
            Links::Keep
        };
        let redirected = Redirected::stdin()?;
        let progress = Progress::start(&redirected.stderr);
        let (mut watch, out, base) = (progress.watch(), redirected.stream, base.clone());
        let packed = std::thread::spawn(move || {
            let packed = pack(&source, &base, links, Pipe(File::from(out)), &mut watch);
            packed.map(drop)
        });
        let ended = self.command(&words, Streams::Pipes(Stdin::Attached));
        let said = redirected.restored.restore();
        let packed = packed
            .join()
            .map_err(|_| Failure::failed("the copy failed"))?;
        let summary = progress.end();
        match (ended, packed) {
            // The other end says more about why it took no more.
            (ended, Err(CopyError::Stream(_)) | Ok(())) => finished(ended, &said)?,
            (_, Err(error)) => return Err(failed(&error)),
        }
        self.report(&summary, &format!("{}:{}", self.name, shown(to.as_bytes())));
        Ok(())
    }

    fn copy_out(&self, from: &OsBytes, to: &Path) -> Result<(), Failure> {
        let base = base(from.as_path())?;
        let words = self.pack_words(from);
        let redirected = Redirected::stdout()?;
        let progress = Progress::start(&redirected.stderr);
        let (mut watch, stream) = (progress.watch(), redirected.stream);
        let (roots, path) = (Arc::clone(&self.roots), to.to_owned());
        let umask = umask();
        let unpacked = std::thread::spawn(move || -> Result<LeftOut, CopyError> {
            let mut reader = Reader::new(Pipe(File::from(stream)));
            let first = reader.next_entry()?;
            let source = match first.as_ref().map(|entry| &entry.kind) {
                Some(EntryKind::Directory) => Source::Directory,
                Some(_) => Source::File,
                // The other end says why.
                None => return Err(CopyError::Truncated),
            };
            let open = |path: &Path| roots.open(path, OFlags::PATH | OFlags::DIRECTORY);
            let place = destination(&path, source, base, &open)?;
            unpack(
                first,
                &mut reader,
                place,
                Ownership::Caller { umask },
                &mut watch,
            )
        });
        let ended = self.command(&words, Streams::Pipes(Stdin::Empty));
        let said = redirected.restored.restore();
        let unpacked = progress.wait(unpacked)?;
        let summary = progress.end();
        let left_out = match (ended, unpacked) {
            (ended, Err(CopyError::Truncated)) => {
                finished(ended, &said)?;
                return Err(failed(&CopyError::Truncated));
            }
            (_, Err(error)) => return Err(failed(&error)),
            (ended, Ok(left_out)) => {
                finished(ended, &said)?;
                left_out
            }
        };
        self.report(&summary, &shown(to.as_os_str().as_bytes()));
        refuse(self.context, &left_out)
    }

    fn stream_in(&self, to: &OsBytes) -> Result<(), Failure> {
        if std::io::stdin().is_terminal() {
            return Err(Failure::usage("stdin is a terminal, not a tar archive"));
        }
        let words = [
            tool::UNPACK.as_bytes(),
            tool::ARCHIVE.as_bytes(),
            b".",
            to.as_bytes(),
        ];
        let redirected = Redirected::stderr()?;
        let ended = self.command(&words, Streams::Pipes(Stdin::Attached));
        finished(ended, &redirected.restore())
    }

    fn stream_out(&self, from: &OsBytes) -> Result<(), Failure> {
        if std::io::stdout().is_terminal() {
            return Err(
                Failure::usage("refusing to write a tar archive to a terminal")
                    .hint("redirect stdout to a file"),
            );
        }
        base(from.as_path())?;
        let words = self.pack_words(from);
        let redirected = Redirected::stderr()?;
        let ended = self.command(&words, Streams::Pipes(Stdin::Empty));
        finished(ended, &redirected.restore())
    }

    fn pack_words<'b>(&self, from: &'b OsBytes) -> Vec<&'b [u8]> {
        let follow = self.follow.then_some(tool::FOLLOW.as_bytes());
        let first = [tool::PACK.as_bytes()].into_iter();
        first.chain(follow).chain([from.as_bytes()]).collect()
    }

    /// The other end, as root: files keep their owners, and everything can be read.
    fn command(&self, words: &[&[u8]], streams: Streams) -> Result<Outcome, Failure> {
        let program = OsBytes::from(tool::PROGRAM);
        let words = words.iter().map(|word| OsBytes(word.to_vec()));
        let exec = Exec {
            argv: std::iter::once(program).chain(words).collect(),
            own_program: true,
            env: Vec::new(),
            user: Some("root".to_owned()),
            workdir: None,
            stdio: attach::stdio(&streams),
        };
        attach::run(self.context, &self.client, &self.name, exec, &streams)
    }

    fn report(&self, summary: &str, to: &str) {
        if self.context.ui.watched() {
            self.context.ui.note(format!("Copied {summary} to {to}"));
        }
    }
}

/// What the other end said of its end.
fn finished(ended: Result<Outcome, Failure>, said: &PeerError) -> Result<(), Failure> {
    match ended? {
        Outcome::Exited(0) => Ok(()),
        Outcome::Exited(_) if said.error.is_some() => {
            let reason = said.error.as_deref().unwrap_or_default();
            Err(Failure::failed(format!("in the sandbox: {reason}")))
        }
        Outcome::Exited(code) | Outcome::Stopped(code, _) => Err(Failure::failed(format!(
            "the copy ended in the sandbox with code {code}"
        ))),
        Outcome::Interrupted(code) => Err(Failure::quiet(code)),
        Outcome::Detached => Err(Failure::failed("the copy was left")),
    }
}

/// Links that would lead elsewhere are left out, and the copy has failed.
fn refuse(context: &Context, left_out: &LeftOut) -> Result<(), Failure> {
    for name in &left_out.names {
        let message = format!("`{name}` was not copied: a link that leads out of what was copied");
        context.ui.warning(message);
    }
    match left_out.count {
        0 => Ok(()),
        count => Err(Failure::failed(format!(
            "{count} link(s) were not copied; everything else was"
        ))
        .hint("use -L to copy their targets")),
    }
}

fn failed(error: &CopyError) -> Failure {
    Failure::failed(error.to_string())
}

fn cannot_open(path: &Path, errno: Errno) -> Failure {
    let reason = match errno {
        Errno::XDEV => "a link in a workspace leads out of it".to_owned(),
        errno => std::io::Error::from(errno).to_string(),
    };
    Failure::failed(format!(
        "cannot open `{}`: {reason}",
        shown(path.as_os_str().as_bytes())
    ))
}

fn base(path: &Path) -> Result<Base, Failure> {
    Base::of(path).ok_or_else(|| {
        let message = format!("`{}` has no file name", shown(path.as_os_str().as_bytes()));
        Failure::new(Kind::BadRequest, message).hint("name it by a path that does not end in `..`")
    })
}

fn is_directory(place: &OwnedFd) -> bool {
    fstat(place).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn umask() -> u32 {
    let none = rustix::fs::Mode::empty();
    let umask = rustix::process::umask(none);
    rustix::process::umask(umask);
    umask.as_raw_mode()
}

fn shown(bytes: &[u8]) -> String {
    text::one_line(&OsString::from_vec(bytes.to_vec()).to_string_lossy())
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Failure> {
    let made = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let (read, write) = made.map_err(|errno| engine("cannot make a pipe")(errno.into()))?;
    sbx_copy::widen(&write);
    Ok((read, write))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_side_is_the_sandbox() {
        let of = |word: &str| side(OsStr::new(word));
        let sandbox =
            |name: &str, path: &str| Side::Sandbox(SandboxName::parse(name).unwrap(), path.into());
        assert_eq!(of("dev:/tmp/x").unwrap(), sandbox("dev", "/tmp/x"));
        assert_eq!(of("dev:a:b").unwrap(), sandbox("dev", "a:b"));
        assert_eq!(of("-").unwrap(), Side::Stream);
        for path in ["a", "./a:b", "/a:b", "../x:y", ":a", "a/b:c"] {
            assert_eq!(of(path).unwrap(), Side::Host(path.into()), "{path}");
        }
        assert!(of("dev:").is_err());
        assert!(of("x_y:a").is_err());
    }
}
