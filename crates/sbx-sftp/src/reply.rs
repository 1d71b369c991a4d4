//! Answers.

use rustix::fs::StatVfs;
use rustix::io::Errno;
use sbx_proto::rfc4251::Writer;

use crate::attributes::Attributes;
use crate::request::EXTENSIONS;
use crate::{MAX_DATA, MAX_MESSAGE};

const VERSION: u8 = 2;
const STATUS: u8 = 101;
const HANDLE: u8 = 102;
const DATA: u8 = 103;
const NAME: u8 = 104;
const ATTRS: u8 = 105;
const EXTENDED_REPLY: u8 = 201;

/// A name with its line for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: Vec<u8>,
    pub(crate) line: Vec<u8>,
    pub(crate) attributes: Attributes,
}

/// What a request came to.
#[derive(Debug)]
pub(crate) enum Reply {
    Done,
    /// Of a file or of a directory.
    End,
    Failed(Errno),
    /// By no system call.
    Refused(&'static str),
    BadMessage,
    Unsupported,
    Handle(u32),
    Data(Vec<u8>),
    Names(Vec<Named>),
    Attributes(Attributes),
    /// The numbers of statvfs(2) in their order.
    Volume([u64; 11]),
    Limits {
        handles: u64,
    },
}

impl From<Errno> for Reply {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

impl From<StatVfs> for Reply {
    fn from(volume: StatVfs) -> Self {
        Self::Volume([
            volume.f_bsize,
            volume.f_frsize,
            volume.f_blocks,
            volume.f_bfree,
            volume.f_bavail,
            volume.f_files,
            volume.f_ffree,
            volume.f_favail,
            volume.f_fsid,
            // ST_RDONLY and ST_NOSUID have the same values there.
            volume.f_flag.bits() & 3,
            volume.f_namemax,
        ])
    }
}

/// The answer to the client's first message.
pub(crate) fn version() -> Vec<u8> {
    let version = Writer::message(VERSION).u32(3);
    let with = |writer: Writer, (name, value): (&str, &str)| writer.string(name).string(value);
    EXTENSIONS.into_iter().fold(version, with).finish()
}

impl Reply {
    /// As a message, without its length.
    pub(crate) fn encode(self, number: u32) -> Vec<u8> {
        let begin = |kind: u8| Writer::message(kind).u32(number);
        let status = |code: u32, words: &str| begin(STATUS).u32(code).string(words).string("en");
        let writer = match self {
            Self::Done => status(0, "Success"),
            Self::End => status(1, "End of file"),
            Self::Failed(Errno::NOENT) => status(2, "No such file"),
            Self::Failed(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
                status(3, "Permission denied")
            }
            Self::Failed(errno) => status(4, &std::io::Error::from(errno).to_string()),
            Self::Refused(words) => status(4, words),
            Self::BadMessage => status(5, "Bad message"),
            Self::Unsupported => status(8, "Operation unsupported"),
            Self::Handle(handle) => begin(HANDLE).string(handle.to_be_bytes()),
            Self::Data(bytes) => begin(DATA).string(bytes),
            Self::Names(names) => {
                let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
                let with = |writer: Writer, named: Named| {
                    let writer = writer.string(&named.name).string(&named.line);
                    named.attributes.write(writer)
                };
                names.into_iter().fold(begin(NAME).u32(count), with)
            }
            Self::Attributes(attributes) => attributes.write(begin(ATTRS)),
            Self::Volume(numbers) => numbers.into_iter().fold(begin(EXTENDED_REPLY), Writer::u64),
            Self::Limits { handles } => begin(EXTENDED_REPLY)
                .u64(MAX_MESSAGE as u64)
                .u64(u64::from(MAX_DATA))
                .u64(u64::from(MAX_DATA))
                .u64(handles),
        };
        writer.finish()
    }
}
