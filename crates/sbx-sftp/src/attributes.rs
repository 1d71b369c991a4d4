//! Attributes of files, each of which may be absent.

use rustix::fs::Stat;
use sbx_proto::rfc4251::{Malformed, Reader, Writer};

const SIZE: u32 = 1;
const OWNER: u32 = 2;
const PERMISSIONS: u32 = 4;
const TIMES: u32 = 8;
const EXTENDED: u32 = 0x8000_0000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    pub size: Option<u64>,
    /// User and group.
    pub owner: Option<(u32, u32)>,
    pub permissions: Option<u32>,
    /// Of the last access and the last change, in seconds.
    pub times: Option<(u32, u32)>,
}

impl Attributes {
    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let flags = reader.u32()?;
        let has = |flag: u32| flags & flag != 0;
        let mut attributes = Self::default();
        if has(SIZE) {
            attributes.size = Some(reader.u64()?);
        }
        if has(OWNER) {
            attributes.owner = Some((reader.u32()?, reader.u32()?));
        }
        if has(PERMISSIONS) {
            attributes.permissions = Some(reader.u32()?);
        }
        if has(TIMES) {
            attributes.times = Some((reader.u32()?, reader.u32()?));
        }
        if has(EXTENDED) {
            for _ in 0..reader.u32()? {
                reader.string()?;
                reader.string()?;
            }
        }
        Ok(attributes)
    }

    pub(crate) fn of(stat: &Stat) -> Self {
        let seconds = |time: i64| u32::try_from(time.max(0)).unwrap_or(u32::MAX);
        Self {
            size: u64::try_from(stat.st_size).ok(),
            owner: Some((stat.st_uid, stat.st_gid)),
            permissions: Some(stat.st_mode),
            times: Some((seconds(stat.st_atime), seconds(stat.st_mtime))),
        }
    }

    pub(crate) fn write(&self, writer: Writer) -> Writer {
        let mut flags = 0;
        let mut values = Writer::default();
        if let Some(size) = self.size {
            flags |= SIZE;
            values = values.u64(size);
        }
        if let Some((user, group)) = self.owner {
            flags |= OWNER;
            values = values.u32(user).u32(group);
        }
        if let Some(permissions) = self.permissions {
            flags |= PERMISSIONS;
            values = values.u32(permissions);
        }
        if let Some((access, change)) = self.times {
            flags |= TIMES;
            values = values.u32(access).u32(change);
        }
        writer.u32(flags).raw(&values.finish())
    }
}
