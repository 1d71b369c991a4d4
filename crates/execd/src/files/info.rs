//! Metadata: reading and setting.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::SystemTime;

use execd_proto::error::Code;
use execd_proto::files::{Attributes, FileInfo, FileKind, Mode};

use crate::reply::{Failure, Reply};

pub(super) fn read(path: &Path) -> io::Result<FileInfo> {
    let metadata = std::fs::symlink_metadata(path)?;
    let kind = match metadata.file_type() {
        kind if kind.is_symlink() => FileKind::Symlink,
        kind if kind.is_dir() => FileKind::Directory,
        kind if kind.is_file() => FileKind::File,
        _ => FileKind::Other,
    };
    let modified = metadata.modified()?;
    Ok(FileInfo {
        path: path.to_string_lossy().into_owned(),
        kind,
        size: metadata.len(),
        modified_at: rfc3339(modified),
        // Not every file system records the time of birth.
        created_at: rfc3339(metadata.created().unwrap_or(modified)),
        owner: name_of("/etc/passwd", metadata.uid()),
        group: name_of("/etc/group", metadata.gid()),
        mode: Mode::from_bits(metadata.mode()),
    })
}

fn rfc3339(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .unwrap_or_default()
        .to_string()
}

/// Mode, owner and group, as far as they are given.
pub(super) fn apply(path: &Path, attributes: &Attributes) -> Reply<()> {
    let failed = |error: io::Error| Failure::file(path, &error);
    let (uid, gid) = owners(attributes)?;
    if uid.is_some() || gid.is_some() {
        std::os::unix::fs::chown(path, uid, gid).map_err(failed)?;
    }
    // After chown, which clears the setuid and setgid bits.
    if let Some(mode) = attributes.mode {
        let permissions = std::fs::Permissions::from_mode(mode.bits());
        std::fs::set_permissions(path, permissions).map_err(failed)?;
    }
    Ok(())
}

/// The same for the file that was opened, whatever has its name by now.
pub(super) fn apply_to(file: &File, path: &Path, attributes: &Attributes) -> Reply<()> {
    let failed = |error: io::Error| Failure::file(path, &error);
    let (uid, gid) = owners(attributes)?;
    if uid.is_some() || gid.is_some() {
        std::os::unix::fs::fchown(file, uid, gid).map_err(failed)?;
    }
    if let Some(mode) = attributes.mode {
        let permissions = std::fs::Permissions::from_mode(mode.bits());
        file.set_permissions(permissions).map_err(failed)?;
    }
    Ok(())
}

fn owners(attributes: &Attributes) -> Reply<(Option<u32>, Option<u32>)> {
    let uid = id_of("/etc/passwd", attributes.owner.as_deref())?;
    let gid = id_of("/etc/group", attributes.group.as_deref())?;
    Ok((uid, gid))
}

/// `passwd` and `group` have the name first and the number third.
fn name_of(database: &str, id: u32) -> String {
    let number = id.to_string();
    let text = std::fs::read_to_string(database).unwrap_or_default();
    text.lines()
        .find(|line| line.split(':').nth(2) == Some(&number))
        .and_then(|line| line.split(':').next())
        .map_or(number.clone(), str::to_owned)
}

fn id_of(database: &str, name: Option<&str>) -> Reply<Option<u32>> {
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    if let Ok(id) = name.parse() {
        return Ok(Some(id));
    }
    let text = std::fs::read_to_string(database).unwrap_or_default();
    text.lines()
        .find(|line| line.split(':').next() == Some(name))
        .and_then(|line| line.split(':').nth(2)?.parse().ok())
        .map(Some)
        .ok_or_else(|| {
            let message = format!("unknown owner or group `{name}`");
            Failure::new(Code::InvalidFileMetadata, message)
        })
}
