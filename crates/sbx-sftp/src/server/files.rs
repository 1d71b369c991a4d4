//! What is done with files.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, chownat, fchmod,
    fchown, ftruncate, futimens, open as open_path, renameat_with, utimensat,
};
use rustix::io::{Errno, pread, pwrite};

use super::as_path;
use crate::MAX_DATA;
use crate::attributes::Attributes;
use crate::reply::Reply;

const READ: u32 = 1;
const WRITE: u32 = 2;
const APPEND: u32 = 4;
const CREATE: u32 = 8;
const TRUNCATE: u32 = 0x10;
const EXCLUSIVE: u32 = 0x20;

/// What may be set: no file type, which chmod(2) would ignore.
const PERMISSIONS: u32 = 0o7777;

fn permissions(attributes: Attributes, default: u32) -> Mode {
    Mode::from_raw_mode(attributes.permissions.unwrap_or(default) & PERMISSIONS)
}

pub(super) fn open(path: &[u8], wanted: u32, attributes: Attributes) -> Result<OwnedFd, Errno> {
    let has = |flag: u32| wanted & flag != 0;
    // A pipe, which may be in a file's place by now, must not keep the client waiting.
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    flags |= match (has(READ), has(WRITE)) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        (true, false) => OFlags::RDONLY,
        (false, false) => return Err(Errno::INVAL),
    };
    for (flag, meaning) in [
        (APPEND, OFlags::APPEND),
        (CREATE, OFlags::CREATE),
        (TRUNCATE, OFlags::TRUNC),
        (EXCLUSIVE, OFlags::EXCL),
    ] {
        if has(flag) {
            flags |= meaning;
        }
    }
    open_path(path, flags, permissions(attributes, 0o666))
}

pub(super) fn read(file: &OwnedFd, offset: u64, length: u32) -> Result<Reply, Errno> {
    let length = usize::try_from(length.min(MAX_DATA)).unwrap_or(0);
    let mut bytes = vec![0; length];
    let count = match pread(file, &mut bytes, offset) {
        // Pipes and terminals have no places.
        Err(Errno::SPIPE) => rustix::io::read(file, &mut bytes)?,
        other => other?,
    };
    bytes.truncate(count);
    Ok(match count {
        0 if length > 0 => Reply::End,
        _ => Reply::Data(bytes),
    })
}

pub(super) fn write(file: &OwnedFd, offset: u64, data: &[u8]) -> Result<(), Errno> {
    let mut written = 0;
    while let Some(rest @ [_, ..]) = data.get(written..) {
        let place = offset.checked_add(written as u64).ok_or(Errno::FBIG)?;
        let count = match pwrite(file, rest, place) {
            Err(Errno::INTR) => 0,
            Err(Errno::SPIPE) => rustix::io::write(file, rest)?,
            other => other?,
        };
        written += count;
    }
    Ok(())
}

pub(super) fn stat(path: &[u8]) -> Result<Reply, Errno> {
    let stat = rustix::fs::stat(path)?;
    Ok(Reply::Attributes(Attributes::of(&stat)))
}

pub(super) fn lstat(path: &[u8]) -> Result<Reply, Errno> {
    let stat = rustix::fs::lstat(path)?;
    Ok(Reply::Attributes(Attributes::of(&stat)))
}

pub(super) fn fstat(file: &OwnedFd) -> Result<Reply, Errno> {
    let stat = rustix::fs::fstat(file)?;
    Ok(Reply::Attributes(Attributes::of(&stat)))
}

fn timestamps((access, change): (u32, u32)) -> Timestamps {
    let at = |seconds: u32| Timespec {
        tv_sec: i64::from(seconds),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: at(access),
        last_modification: at(change),
    }
}

fn owner((user, group): (u32, u32)) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))
}

/// In the order of OpenSSH's server: the owner last, as that may take the right to the rest away.
pub(super) fn set(path: &[u8], attributes: Attributes) -> Result<(), Errno> {
    if let Some(size) = attributes.size {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        ftruncate(open_path(path, flags, Mode::empty())?, size)?;
    }
    if attributes.permissions.is_some() {
        rustix::fs::chmod(path, permissions(attributes, 0))?;
    }
    if let Some(times) = attributes.times {
        utimensat(CWD, path, &timestamps(times), AtFlags::empty())?;
    }
    if let Some(ids) = attributes.owner {
        let (user, group) = owner(ids);
        chownat(CWD, path, user, group, AtFlags::empty())?;
    }
    Ok(())
}

/// Of a link itself, which has no size and no mode to set.
pub(super) fn set_link(path: &[u8], attributes: Attributes) -> Result<(), Errno> {
    if attributes.size.is_some() {
        return Err(Errno::INVAL);
    }
    if attributes.permissions.is_some() {
        match rustix::fs::chmodat(
            CWD,
            path,
            permissions(attributes, 0),
            AtFlags::SYMLINK_NOFOLLOW,
        ) {
            Err(Errno::OPNOTSUPP) if !is_link(path) => {
                rustix::fs::chmod(path, permissions(attributes, 0))?;
            }
            other => other?,
        }
    }
    if let Some(times) = attributes.times {
        utimensat(CWD, path, &timestamps(times), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if let Some(ids) = attributes.owner {
        let (user, group) = owner(ids);
        chownat(CWD, path, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

fn is_link(path: &[u8]) -> bool {
    as_path(path).is_symlink()
}

pub(super) fn set_open(file: &OwnedFd, attributes: Attributes) -> Result<(), Errno> {
    if let Some(size) = attributes.size {
        ftruncate(file, size)?;
    }
    if attributes.permissions.is_some() {
        fchmod(file, permissions(attributes, 0))?;
    }
    if let Some(times) = attributes.times {
        futimens(file, &timestamps(times))?;
    }
    if let Some(ids) = attributes.owner {
        let (user, group) = owner(ids);
        fchown(file, user, group)?;
    }
    Ok(())
}

pub(super) fn mkdir(path: &[u8], attributes: Attributes) -> Result<(), Errno> {
    rustix::fs::mkdir(path, permissions(attributes, 0o777))
}

/// The draft's rename fails when there is something already. File systems without RENAME_NOREPLACE have a moment between the
/// look and the rename, as OpenSSH's server has.
pub(super) fn rename_to_new(from: &[u8], to: &[u8]) -> Result<(), Errno> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL) if as_path(to).symlink_metadata().is_err() => {
            rustix::fs::rename(from, to)
        }
        other => other,
    }
}

/// Without links, `.` and `..`. What is last need not be there: a client may want to make it.
pub(super) fn real_path(path: &[u8]) -> Result<Vec<u8>, Errno> {
    let path = match path {
        b"" => as_path(b"."),
        path => as_path(path),
    };
    let found = path.canonicalize().or_else(|error| {
        let parent = path
            .parent()
            .filter(|_| error.kind() == std::io::ErrorKind::NotFound);
        let (parent, name) = parent.zip(path.file_name()).ok_or(error)?;
        let parent = if parent.as_os_str().is_empty() {
            as_path(b".")
        } else {
            parent
        };
        Ok(parent.canonicalize()?.join(name))
    });
    let found = found
        .map_err(|error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
    Ok(found.as_os_str().as_bytes().to_vec())
}
