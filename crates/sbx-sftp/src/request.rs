//! What a client asks for.

use sbx_proto::rfc4251::{Malformed, Reader};

use crate::attributes::Attributes;

pub(crate) const INIT: u8 = 1;

/// A request and the number by which its answer is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered<'a> {
    pub number: u32,
    pub request: Request<'a>,
}

/// A handle is what this server has given; anything else is answered with a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    Open {
        path: &'a [u8],
        flags: u32,
        attributes: Attributes,
    },
    Close(Handle),
    Read {
        handle: Handle,
        offset: u64,
        length: u32,
    },
    Write {
        handle: Handle,
        offset: u64,
        data: &'a [u8],
    },
    Stat(&'a [u8]),
    Lstat(&'a [u8]),
    Fstat(Handle),
    Setstat(&'a [u8], Attributes),
    Lsetstat(&'a [u8], Attributes),
    Fsetstat(Handle, Attributes),
    Opendir(&'a [u8]),
    Readdir(Handle),
    Remove(&'a [u8]),
    Mkdir(&'a [u8], Attributes),
    Rmdir(&'a [u8]),
    Realpath(&'a [u8]),
    ExpandPath(&'a [u8]),
    /// Fails when there is something at the new path.
    Rename(&'a [u8], &'a [u8]),
    /// As rename(2).
    PosixRename(&'a [u8], &'a [u8]),
    Readlink(&'a [u8]),
    Symlink {
        target: &'a [u8],
        link: &'a [u8],
    },
    Hardlink(&'a [u8], &'a [u8]),
    Fsync(Handle),
    Statvfs(&'a [u8]),
    Fstatvfs(Handle),
    Limits,
    Unsupported,
}

/// `None`: no handle of ours looks like it.
pub type Handle = Option<u32>;

/// A whole message, without its length.
pub fn parse(message: &[u8]) -> Result<Numbered<'_>, Malformed> {
    let mut reader = Reader::new(message);
    let kind = reader.byte()?;
    let number = reader.u32()?;
    let request = body(kind, &mut reader)?;
    Ok(Numbered { number, request })
}

fn handle(reader: &mut Reader<'_>) -> Result<Handle, Malformed> {
    let bytes = reader.string()?;
    Ok(bytes.try_into().ok().map(u32::from_be_bytes))
}

fn body<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<Request<'a>, Malformed> {
    Ok(match kind {
        3 => Request::Open {
            path: reader.string()?,
            flags: reader.u32()?,
            attributes: Attributes::parse(reader)?,
        },
        4 => Request::Close(handle(reader)?),
        5 => Request::Read {
            handle: handle(reader)?,
            offset: reader.u64()?,
            length: reader.u32()?,
        },
        6 => Request::Write {
            handle: handle(reader)?,
            offset: reader.u64()?,
            data: reader.string()?,
        },
        7 => Request::Lstat(reader.string()?),
        8 => Request::Fstat(handle(reader)?),
        9 => Request::Setstat(reader.string()?, Attributes::parse(reader)?),
        10 => Request::Fsetstat(handle(reader)?, Attributes::parse(reader)?),
        11 => Request::Opendir(reader.string()?),
        12 => Request::Readdir(handle(reader)?),
        13 => Request::Remove(reader.string()?),
        14 => Request::Mkdir(reader.string()?, Attributes::parse(reader)?),
        15 => Request::Rmdir(reader.string()?),
        16 => Request::Realpath(reader.string()?),
        17 => Request::Stat(reader.string()?),
        18 => Request::Rename(reader.string()?, reader.string()?),
        19 => Request::Readlink(reader.string()?),
        // In the order that OpenSSH made a fact, not in that of the draft.
        20 => Request::Symlink {
            target: reader.string()?,
            link: reader.string()?,
        },
        200 => extended(reader)?,
        _ => Request::Unsupported,
    })
}

fn extended<'a>(reader: &mut Reader<'a>) -> Result<Request<'a>, Malformed> {
    Ok(match reader.string()? {
        b"posix-rename@openssh.com" => Request::PosixRename(reader.string()?, reader.string()?),
        b"hardlink@openssh.com" => Request::Hardlink(reader.string()?, reader.string()?),
        b"fsync@openssh.com" => Request::Fsync(handle(reader)?),
        b"lsetstat@openssh.com" => Request::Lsetstat(reader.string()?, Attributes::parse(reader)?),
        b"expand-path@openssh.com" => Request::ExpandPath(reader.string()?),
        b"statvfs@openssh.com" => Request::Statvfs(reader.string()?),
        b"fstatvfs@openssh.com" => Request::Fstatvfs(handle(reader)?),
        b"limits@openssh.com" => Request::Limits,
        _ => Request::Unsupported,
    })
}

/// What [`extended`] knows, with the versions of OpenSSH's server.
pub(crate) const EXTENSIONS: [(&str, &str); 8] = [
    ("posix-rename@openssh.com", "1"),
    ("statvfs@openssh.com", "2"),
    ("fstatvfs@openssh.com", "2"),
    ("hardlink@openssh.com", "1"),
    ("fsync@openssh.com", "1"),
    ("lsetstat@openssh.com", "1"),
    ("limits@openssh.com", "1"),
    ("expand-path@openssh.com", "1"),
];
