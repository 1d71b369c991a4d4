//! Linked git worktrees in which commits are allowed: what of their own directory is the same inside and on the host.
//!
//! Git replaces a file by making `FILE.lock` beside it and renaming that, so the index and HEAD cannot be shared as single
//! files; and most of what can lie beside them acts on the host (rebase todo lists, `gitdir`, `config.worktree`, a
//! symbolic link in place of a file that git writes through). So the directory inside is an overlay of the sandbox's own,
//! and init copies: from the host before a command starts, to the host when one has ended. To the host go regular files
//! that were checked, under git's own lock files; the names are fixed. Whatever the host has changed meanwhile wins:
//! commits are objects and references, and only what was staged has to be staged again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use sbx_proto::inside::AGENT;
use sbx_sys::credentials::with_fsuid;

const FILES: [&str; 2] = ["index", "HEAD"];
const HEAD_LOG: &str = "logs/HEAD";
/// A million files or so.
const MAX_INDEX: u64 = 256 << 20;
const MAX_HEAD: u64 = 4 << 10;
const MAX_LOG: u64 = 16 << 20;
const MIN_INDEX: usize = 32;
/// How long a lock that a program of the host has is waited for.
const LOCK_TRIES: u32 = 20;
const LOCK_INTERVAL: Duration = Duration::from_millis(10);
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// Descriptors of directories; paths inside can be changed from inside.
#[derive(Debug)]
pub(crate) struct Directories {
    pub(crate) inside: OwnedFd,
    pub(crate) host: OwnedFd,
    /// `logs` of the repository.
    pub(crate) inside_logs: OwnedFd,
    pub(crate) host_logs: OwnedFd,
}

#[derive(Debug)]
pub(crate) struct Worktree {
    at: Directories,
    /// When both sides were last the same.
    settled: Option<Stamps>,
    /// How much of a reflog inside the host has.
    logged: BTreeMap<PathBuf, usize>,
}

/// Inode, size and time of last change of each of [`FILES`]: git replaces them, and never writes into one.
type Stamp = [Option<(u64, i64, i64, i64)>; 2];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamps {
    inside: Stamp,
    host: Stamp,
}

impl Worktree {
    pub(crate) fn new(at: Directories) -> Self {
        let mut worktree = Self {
            at,
            settled: None,
            logged: BTreeMap::new(),
        };
        worktree.follow_host();
        // What an earlier start of this sandbox has left was published then.
        for (path, inside) in worktree.logs() {
            worktree.logged.insert(path, inside.len());
        }
        worktree
    }

    /// Takes over what programs of the host have changed since both sides were the same.
    pub(crate) fn follow_host(&mut self) {
        let now = self.stamps();
        if self.settled.is_some_and(|settled| settled.host == now.host) {
            return;
        }
        let Some(locks) = Locks::take(&self.at.inside, 1) else {
            return; // a command is at it
        };
        for (name, lock) in FILES.into_iter().zip(&locks.files) {
            if let Some(content) = read(&self.at.host, Path::new(name), limit(name)) {
                let _ = locks.replace(name, lock, &content);
            }
        }
        drop(locks);
        // A change that came after `now` is another one than this.
        self.settled = Some(Stamps {
            host: now.host,
            inside: self.stamps().inside,
        });
    }

    /// Gives the host what commands inside have changed.
    pub(crate) fn publish(&mut self) {
        self.publish_files();
        self.publish_logs();
    }

    fn publish_files(&mut self) {
        let Some(settled) = self.settled else {
            return;
        };
        let before = self.stamps();
        if before.inside == settled.inside || before.host != settled.host {
            return;
        }
        let content = |name| read(&self.at.inside, Path::new(name), limit(name));
        let (Some(index), Some(head)) = (content("index"), content("HEAD")) else {
            return;
        };
        if !is_index(&index) || !is_head(&head) {
            return;
        }
        let Some(locks) = Locks::take(&self.at.host, LOCK_TRIES) else {
            return;
        };
        // Looked at again under the locks.
        if self.stamps().host != settled.host {
            return;
        }
        for ((name, lock), content) in FILES.into_iter().zip(&locks.files).zip([index, head]) {
            if locks.replace(name, lock, &content).is_err() {
                break;
            }
        }
        drop(locks);
        self.settled = Some(Stamps {
            inside: before.inside,
            host: self.stamps().host,
        });
    }

    /// The reflogs of HEAD and of its branch, which is what commands add to.
    fn logs(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        for path in [Some(PathBuf::from(HEAD_LOG)), self.branch()]
            .into_iter()
            .flatten()
        {
            if let Some(content) = read(self.side(&path).0, &path, MAX_LOG) {
                found.push((path, content));
            }
        }
        found
    }

    /// `refs/heads/NAME`, where HEAD inside is on a branch.
    fn branch(&self) -> Option<PathBuf> {
        let head = read(&self.at.inside, Path::new("HEAD"), MAX_HEAD)?;
        let name = branch_of(&head)?;
        Some(PathBuf::from(name))
    }

    /// The directories that a reflog lies in, inside and on the host.
    fn side(&self, log: &Path) -> (&OwnedFd, &OwnedFd) {
        if log == Path::new(HEAD_LOG) {
            (&self.at.inside, &self.at.host)
        } else {
            (&self.at.inside_logs, &self.at.host_logs)
        }
    }

    fn publish_logs(&mut self) {
        for (path, inside) in self.logs() {
            let host = self.side(&path).1;
            let known = self.logged.get(&path).copied().unwrap_or_else(|| {
                let theirs = read(host, &path, MAX_LOG).unwrap_or_default();
                common_lines(&inside, &theirs)
            });
            let fresh = inside.get(known..).unwrap_or_default();
            if fresh.is_empty() || (is_log(fresh) && append(host, &path, fresh).is_ok()) {
                self.logged.insert(path, inside.len());
            }
        }
    }

    fn stamps(&self) -> Stamps {
        let of = |dir: &OwnedFd| FILES.map(|name| stamp(dir, name));
        Stamps {
            inside: of(&self.at.inside),
            host: of(&self.at.host),
        }
    }
}

fn limit(name: &str) -> u64 {
    if name == "HEAD" { MAX_HEAD } else { MAX_INDEX }
}

fn stamp(dir: &OwnedFd, name: &str) -> Option<(u64, i64, i64, i64)> {
    let stat = as_agent(|| rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)).ok()?;
    Some((
        stat.st_ino,
        stat.st_size,
        stat.st_mtime,
        stat.st_mtime_nsec.cast_signed(),
    ))
}

/// As the owner of the files on the host: root of the user namespace has no capability over an inode whose group is not
/// mapped, and what it makes would be another user's.
fn as_agent<T>(work: impl FnOnce() -> T) -> T {
    with_fsuid(AGENT, work)
}

/// A regular file, whatever else has its name.
fn read(dir: &OwnedFd, path: &Path, most: u64) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(dir, path, flags, Mode::empty()).ok()?;
    if !is_regular(&rustix::fs::fstat(&file).ok()?) {
        return None;
    }
    let mut content = Vec::new();
    let read = File::from(file).take(most + 1).read_to_end(&mut content);
    read.ok().filter(|size| *size as u64 <= most)?;
    Some(content)
}

fn open(dir: &OwnedFd, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    as_agent(|| rustix::fs::openat2(dir, path, flags, mode, RESOLVE))
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// `index.lock` and `HEAD.lock` in one of the directories, which git respects; those that were not renamed are removed.
struct Locks<'a> {
    dir: &'a OwnedFd,
    files: Vec<OwnedFd>,
}

impl<'a> Locks<'a> {
    fn take(dir: &'a OwnedFd, tries: u32) -> Option<Self> {
        let mut locks = Self {
            dir,
            files: Vec::new(),
        };
        for name in FILES {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mode = Mode::from_bits_truncate(0o644);
            let make = || open(dir, Path::new(&lock_of(name)), flags, mode);
            let mut made = make();
            for _ in 1..tries {
                if !matches!(made, Err(Errno::EXIST)) {
                    break;
                }
                std::thread::sleep(LOCK_INTERVAL);
                made = make();
            }
            let file = made.ok()?;
            // Fails with one id, which is the agent's already.
            let (uid, gid) = (Uid::from_raw(AGENT), Gid::from_raw(AGENT));
            let _ = rustix::fs::fchown(&file, Some(uid), Some(gid));
            locks.files.push(file);
        }
        Some(locks)
    }

    fn replace(&self, name: &str, lock: &OwnedFd, content: &[u8]) -> std::io::Result<()> {
        File::from(lock.as_fd().try_clone_to_owned()?).write_all(content)?;
        as_agent(|| rustix::fs::renameat(self.dir, lock_of(name), self.dir, name))?;
        Ok(())
    }
}

impl Drop for Locks<'_> {
    fn drop(&mut self) {
        // Only its own: the name may be that of a lock that was taken since.
        for (name, file) in FILES.into_iter().zip(&self.files) {
            let lock = lock_of(name);
            let there = rustix::fs::statat(self.dir, &lock, AtFlags::SYMLINK_NOFOLLOW);
            if let (Ok(there), Ok(own)) = (there, rustix::fs::fstat(file))
                && (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)
            {
                let _ = as_agent(|| rustix::fs::unlinkat(self.dir, &lock, AtFlags::empty()));
            }
        }
    }
}

fn lock_of(name: &str) -> String {
    format!("{name}.lock")
}

fn append(dir: &OwnedFd, path: &Path, lines: &[u8]) -> std::io::Result<()> {
    make_parents(dir, path)?;
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let file = open(dir, path, flags, Mode::from_bits_truncate(0o644))?;
    if !is_regular(&rustix::fs::fstat(&file)?) {
        return Err(Errno::INVAL.into());
    }
    let (uid, gid) = (Uid::from_raw(AGENT), Gid::from_raw(AGENT));
    let _ = rustix::fs::fchown(&file, Some(uid), Some(gid));
    File::from(file).write_all(lines)
}

fn make_parents(dir: &OwnedFd, path: &Path) -> Result<(), Errno> {
    let mut at =
        as_agent(|| rustix::fs::openat(dir, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()))?;
    for part in path.parent().into_iter().flat_map(Path::components) {
        let Component::Normal(name) = part else {
            return Err(Errno::INVAL);
        };
        match as_agent(|| rustix::fs::mkdirat(&at, name, Mode::from_bits_truncate(0o755))) {
            Ok(()) => {
                let (uid, gid) = (Uid::from_raw(AGENT), Gid::from_raw(AGENT));
                let _ =
                    rustix::fs::chownat(&at, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        at = open(&at, Path::new(name), flags, Mode::empty())?;
    }
    Ok(())
}

fn is_index(content: &[u8]) -> bool {
    content.starts_with(b"DIRC") && content.len() >= MIN_INDEX
}

/// A branch, or the name of a commit.
fn is_head(content: &[u8]) -> bool {
    let commit = content.strip_suffix(b"\n").is_some_and(is_object_name);
    commit || branch_of(content).is_some()
}

fn is_object_name(text: &[u8]) -> bool {
    matches!(text.len(), 40 | 64)
        && text
            .iter()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The full name of HEAD's branch, if it is a valid one (git-check-ref-format(1)).
fn branch_of(head: &[u8]) -> Option<&str> {
    let name = head.strip_prefix(b"ref: ")?.strip_suffix(b"\n")?;
    let name = std::str::from_utf8(name).ok()?;
    let short = name.strip_prefix("refs/heads/")?;
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    let refused = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    let valid = short.split('/').all(part)
        && !short.contains(refused)
        && !short.contains("..")
        && !short.contains("@{")
        && !short.ends_with('.');
    valid.then_some(name)
}

/// Whole lines of a reflog: two object names, an identity with a time, a tab and a message. Nothing in it may control a
/// terminal.
fn is_log(lines: &[u8]) -> bool {
    let Some(lines) = lines.strip_suffix(b"\n") else {
        return false;
    };
    lines.split(|byte| *byte == b'\n').all(|line| {
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let names =
            words.next().is_some_and(is_object_name) && words.next().is_some_and(is_object_name);
        let rest = words.next().unwrap_or_default();
        let tabs = rest.iter().filter(|byte| **byte == b'\t').count();
        let printable = rest
            .iter()
            .all(|byte| *byte == b'\t' || !byte.is_ascii_control());
        names && rest.contains(&b'>') && tabs <= 1 && printable
    })
}

/// The length of the lines that both begin with.
fn common_lines(one: &[u8], other: &[u8]) -> usize {
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let last = one
        .get(..same)
        .and_then(|same| same.iter().rposition(|byte| *byte == b'\n'));
    last.map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let hex = "0123456789abcdef0123456789abcdef01234567";
        for (content, valid) in [
            ("ref: refs/heads/main\n", true),
            ("ref: refs/heads/a/b-c.d\n", true),
            (&*format!("{hex}\n"), true),
            (hex, false),
            ("ref: refs/heads/main", false),
            ("ref: refs/heads/../../config\n", false),
            ("ref: refs/heads/a/.x\n", false),
            ("ref: refs/heads/a//b\n", false),
            ("ref: refs/heads/a\nx\n", false),
            ("ref: refs/remotes/x\n", false),
            ("ref: ../../x\n", false),
            ("", false),
        ] {
            assert_eq!(is_head(content.as_bytes()), valid, "{content:?}");
        }
    }

    #[test]
    fn lines_of_reflogs() {
        let hex = "0123456789abcdef0123456789abcdef01234567";
        let line = format!("{hex} {hex} A U Thor <a@b.test> 1700000000 +0000\tcommit: x; y\n");
        for (text, valid) in [
            (line.clone(), true),
            (format!("{line}{line}"), true),
            (line.replace('\n', ""), false),
            (line.replace("commit", "\x1b[2J"), false),
            (format!("{line}evil\n"), false),
            (format!("{line}\n"), false),
            (String::new(), false),
        ] {
            assert_eq!(is_log(text.as_bytes()), valid, "{text:?}");
        }
        assert_eq!(common_lines(b"a\nb\nc\n", b"a\nb\nx\n"), 4);
        assert_eq!(common_lines(b"ab\n", b"a"), 0);
    }

    #[test]
    fn the_index_moves_both_ways_and_the_host_wins() {
        let temp = tempfile::tempdir().unwrap();
        // The agent's, as inside; an ordinary user cannot give them away, and acts with the one id there is.
        let give = |path: &Path| {
            let _ = std::os::unix::fs::chown(path, Some(AGENT), Some(AGENT));
        };
        let dir = |name: &str| {
            let path = temp.path().join(name);
            std::fs::create_dir_all(path.join("logs")).unwrap();
            give(&path);
            give(&path.join("logs"));
            path
        };
        give(temp.path());
        let (inside, host) = (dir("inside"), dir("host"));
        let fd = |path: &Path| OwnedFd::from(File::open(path).unwrap());
        let index = |text: &str| format!("DIRC{text:->40}");
        let put = |dir: &Path, name: &str, text: &str| {
            let mut file = File::create(dir.join("new")).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            std::fs::rename(dir.join("new"), dir.join(name)).unwrap();
        };
        let get = |dir: &Path, name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        put(&host, "index", &index("one"));
        put(&host, "HEAD", "ref: refs/heads/main\n");
        let mut worktree = Worktree::new(Directories {
            inside: fd(&inside),
            host: fd(&host),
            inside_logs: fd(&inside.join("logs")),
            host_logs: fd(&host.join("logs")),
        });
        assert_eq!(get(&inside, "index"), index("one"));
        put(&inside, "index", &index("inside"));
        put(&inside, "HEAD", "ref: refs/heads/other\n");
        worktree.publish();
        assert_eq!(get(&host, "index"), index("inside"));
        assert_eq!(get(&host, "HEAD"), "ref: refs/heads/other\n");
        // Both have changed it.
        put(&host, "index", &index("host"));
        put(&inside, "index", &index("late"));
        worktree.publish();
        assert_eq!(get(&host, "index"), index("host"));
        worktree.follow_host();
        assert_eq!(get(&inside, "index"), index("host"));
        // Anything but a regular file with an index stays inside.
        put(&inside, "index", "#!/bin/sh\n");
        worktree.publish();
        std::fs::remove_file(inside.join("index")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", inside.join("index")).unwrap();
        worktree.publish();
        assert_eq!(get(&host, "index"), index("host"));
        for dir in [&inside, &host] {
            let names = std::fs::read_dir(dir).unwrap().flatten();
            let names: Vec<_> = names.map(|it| it.file_name()).collect();
            assert_eq!(names.len(), 3, "{names:?}");
        }
    }
}
