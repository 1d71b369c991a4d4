//! The conversation, and the handles of what is open.

mod files;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, OFlags};
use rustix::io::Errno;

use crate::MAX_MESSAGE;
use crate::attributes::Attributes;
use crate::listing;
use crate::reply::{Named, Reply, version};
use crate::request::{self, Handle, Request};

/// Far less than a process may have open.
const MAX_HANDLES: usize = 256;
/// Names of one answer: with the longest ones they are less than a message.
const NAMES_AT_ONCE: usize = 100;

#[derive(Debug)]
enum Open {
    File(OwnedFd),
    Directory(Box<Dir>),
}

#[derive(Debug)]
struct Server {
    home: PathBuf,
    open: BTreeMap<u32, Open>,
    next: u32,
}

/// Answers the client until its end. `home` is what `~` stands for; relative paths begin at the working directory.
pub fn serve(mut input: impl Read, mut output: impl Write, home: &Path) -> io::Result<()> {
    let mut server = Server {
        home: home.to_owned(),
        open: BTreeMap::new(),
        next: 0,
    };
    let mut message = Vec::new();
    while receive(&mut input, &mut message)? {
        let answer = match message.first() {
            Some(&request::INIT) => version(),
            _ => server.answer(&message)?,
        };
        let length = u32::try_from(answer.len()).map_err(io::Error::other)?;
        output.write_all(&[&length.to_be_bytes()[..], &answer].concat())?;
        output.flush()?;
    }
    Ok(())
}

/// The next message; false at the end.
fn receive(input: &mut impl Read, message: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; 4];
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        other => other?,
    }
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length == 0 || length > MAX_MESSAGE {
        return Err(io::Error::other("a message has a wrong length"));
    }
    message.resize(length, 0);
    input.read_exact(message)?;
    Ok(true)
}

impl Server {
    /// A message without even a number cannot be answered.
    fn answer(&mut self, message: &[u8]) -> io::Result<Vec<u8>> {
        match request::parse(message) {
            Ok(numbered) => {
                let reply = self.perform(&numbered.request);
                Ok(reply.unwrap_or_else(Reply::from).encode(numbered.number))
            }
            Err(malformed) => match message.get(1..).and_then(<[u8]>::first_chunk) {
                Some(number) => Ok(Reply::BadMessage.encode(u32::from_be_bytes(*number))),
                None => Err(io::Error::other(malformed)),
            },
        }
    }

    fn perform(&mut self, request: &Request<'_>) -> Result<Reply, Errno> {
        let done = |()| Reply::Done;
        match *request {
            Request::Open {
                path,
                flags,
                attributes,
            } => {
                let file = files::open(path, flags, attributes)?;
                self.keep(Open::File(file))
            }
            Request::Opendir(path) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let opened = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
                self.keep(Open::Directory(Box::new(Dir::new(opened)?)))
            }
            Request::Close(handle) => Ok(match handle.and_then(|it| self.open.remove(&it)) {
                Some(_) => Reply::Done,
                None => NO_HANDLE,
            }),
            Request::Read {
                handle,
                offset,
                length,
            } => self.with_file(handle, |file| files::read(file, offset, length)),
            Request::Write {
                handle,
                offset,
                data,
            } => self.with_file(handle, |file| files::write(file, offset, data).map(done)),
            Request::Stat(path) => files::stat(path),
            Request::Lstat(path) => files::lstat(path),
            Request::Fstat(handle) => self.with_file(handle, files::fstat),
            Request::Setstat(path, attributes) => files::set(path, attributes).map(done),
            Request::Lsetstat(path, attributes) => files::set_link(path, attributes).map(done),
            Request::Fsetstat(handle, attributes) => {
                self.with_file(handle, |file| files::set_open(file, attributes).map(done))
            }
            Request::Readdir(handle) => self.read_directory(handle),
            Request::Remove(path) => rustix::fs::unlink(path).map(done),
            Request::Mkdir(path, attributes) => files::mkdir(path, attributes).map(done),
            Request::Rmdir(path) => rustix::fs::rmdir(path).map(done),
            Request::Realpath(path) => files::real_path(path).map(one),
            Request::ExpandPath(path) => self.expand(path),
            Request::Rename(from, to) => files::rename_to_new(from, to).map(done),
            Request::PosixRename(from, to) => rustix::fs::rename(from, to).map(done),
            Request::Readlink(path) => {
                let target = rustix::fs::readlink(path, Vec::new())?;
                Ok(one(target.into_bytes()))
            }
            Request::Symlink { target, link } => rustix::fs::symlink(target, link).map(done),
            Request::Hardlink(from, to) => rustix::fs::link(from, to).map(done),
            Request::Fsync(handle) => {
                self.with_file(handle, |file| rustix::fs::fsync(file).map(done))
            }
            Request::Statvfs(path) => rustix::fs::statvfs(path).map(Reply::from),
            Request::Fstatvfs(handle) => {
                self.with_file(handle, |file| rustix::fs::fstatvfs(file).map(Reply::from))
            }
            Request::Limits => Ok(Reply::Limits {
                handles: MAX_HANDLES as u64,
            }),
            Request::Unsupported => Ok(Reply::Unsupported),
        }
    }

    fn keep(&mut self, open: Open) -> Result<Reply, Errno> {
        if self.open.len() >= MAX_HANDLES {
            return Err(Errno::MFILE);
        }
        // Less than 2^32 are open.
        while self.open.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let handle = self.next;
        self.next = self.next.wrapping_add(1);
        self.open.insert(handle, open);
        Ok(Reply::Handle(handle))
    }

    fn with_file(
        &self,
        handle: Handle,
        work: impl FnOnce(&OwnedFd) -> Result<Reply, Errno>,
    ) -> Result<Reply, Errno> {
        match handle.and_then(|handle| self.open.get(&handle)) {
            Some(Open::File(file)) => work(file),
            _ => Ok(NO_HANDLE),
        }
    }

    fn read_directory(&mut self, handle: Handle) -> Result<Reply, Errno> {
        let Some(Open::Directory(directory)) = handle.and_then(|it| self.open.get_mut(&it)) else {
            return Ok(NO_HANDLE);
        };
        let mut names = Vec::new();
        while names.len() < NAMES_AT_ONCE {
            let Some(entry) = directory.read().transpose()? else {
                break;
            };
            let name = entry.file_name();
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            // It may have been removed meanwhile, or lie behind a mount that is gone.
            let stat = rustix::fs::statat(directory.fd()?, name, flags).ok();
            let name = name.to_bytes();
            names.push(Named {
                name: name.to_vec(),
                line: match &stat {
                    Some(stat) => listing::line(name, stat),
                    None => name.to_vec(),
                },
                attributes: stat.as_ref().map(Attributes::of).unwrap_or_default(),
            });
        }
        Ok(if names.is_empty() {
            Reply::End
        } else {
            Reply::Names(names)
        })
    }

    /// `~` and `~/x`; other users' homes are not looked up.
    fn expand(&self, path: &[u8]) -> Result<Reply, Errno> {
        let expanded = match path.strip_prefix(b"~") {
            None => path.to_vec(),
            Some(rest) if rest.is_empty() || rest.starts_with(b"/") => {
                let home = self.home.as_os_str().as_bytes();
                [home, rest].concat()
            }
            Some(_) => return Ok(Reply::Refused("only `~` itself is known")),
        };
        files::real_path(&expanded).map(one)
    }
}

const NO_HANDLE: Reply = Reply::Refused("no such handle");

fn one(path: Vec<u8>) -> Reply {
    Reply::Names(vec![Named {
        line: path.clone(),
        name: path,
        attributes: Attributes::default(),
    }])
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests;
