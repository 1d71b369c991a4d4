//! Copies from the host into a template: only regular files, directories and symlinks, only what others may
//! read, no symlink followed, modes without setuid and group or world write.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink,
};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::TemplateError;
use super::error::At as _;

const OTHERS_READ: u32 = 0o004;
const OTHERS_ENTER: u32 = 0o005;
/// A text that needs editing and is larger than this is not copied.
const EDIT_LIMIT: u64 = 4 << 20;

/// What happens to one file or directory of the host.
#[derive(Clone, Copy)]
pub(super) enum Take {
    Leave,
    AsIs,
    /// The text that the sandbox gets instead; `None` leaves the file out.
    Edited(fn(&str) -> Option<String>),
}

/// Copies `from`, whatever it is, to `to`. `rule` is asked with the path relative to the first `from`;
/// what is missing, unreadable or not for others is left out.
pub(super) fn copy_tree(
    from: &Path,
    to: &Path,
    rel: &Path,
    rule: &dyn Fn(&Path) -> Take,
) -> Result<(), TemplateError> {
    let take = rule(rel);
    if matches!(take, Take::Leave) {
        return Ok(());
    }
    let Some(meta) = present(fs::symlink_metadata(from)).at("look at", from)? else {
        return Ok(());
    };
    if meta.file_type().is_symlink() {
        return copy_link(from, to);
    }
    if meta.is_dir() {
        if !may_enter(meta.mode()) {
            return Ok(());
        }
        let Some(entries) = present(fs::read_dir(from)).at("list", from)? else {
            return Ok(());
        };
        make_dir(to, meta.mode() & 0o755 | 0o700)?;
        for entry in entries {
            let name = entry.at("list", from)?.file_name();
            copy_tree(&from.join(&name), &to.join(&name), &rel.join(&name), rule)?;
        }
        return Ok(());
    }
    if meta.is_file() {
        copy_file(from, to, take)?;
    }
    Ok(())
}

/// Writes a new file.
pub(super) fn write_file(path: &Path, content: &str, mode: u32) -> Result<(), TemplateError> {
    // Our own file wins over a copied symlink of the same name.
    absent(fs::remove_file(path)).at("replace", path)?;
    let mut file = create(path, mode)?;
    file.write_all(content.as_bytes()).at("write", path)
}

/// Makes a directory and what is missing above it (those with mode 755); an existing one gets the mode.
pub(super) fn make_dir(path: &Path, mode: u32) -> Result<(), TemplateError> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = path.parent() {
                make_dir(parent, 0o755)?;
            }
            fs::create_dir(path).at("make", path)?;
        }
        Err(error) => return Err(error).at("make", path),
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).at("set the mode of", path)
}

/// Makes a symlink in place of whatever file is there.
pub(super) fn make_link(path: &Path, to: &Path) -> Result<(), TemplateError> {
    absent(fs::remove_file(path)).at("replace", path)?;
    symlink(to, path).at("link", path)
}

pub(super) fn may_read(mode: u32) -> bool {
    mode & OTHERS_READ == OTHERS_READ
}

pub(super) fn may_enter(mode: u32) -> bool {
    mode & OTHERS_ENTER == OTHERS_ENTER
}

/// `None` for what is not there or not for us.
pub(super) fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::NOTDIR | Errno::LOOP) => {
                Ok(None)
            }
            Some(_) | None => Err(error),
        },
    }
}

fn absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn copy_link(from: &Path, to: &Path) -> Result<(), TemplateError> {
    match present(fs::read_link(from)).at("read", from)? {
        Some(target) => make_link(to, &target),
        None => Ok(()),
    }
}

fn copy_file(from: &Path, to: &Path, take: Take) -> Result<(), TemplateError> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(from);
    let Some(mut source) = present(opened).at("open", from)? else {
        return Ok(());
    };
    let meta = source.metadata().at("look at", from)?;
    if !meta.is_file() || !may_read(meta.mode()) {
        return Ok(());
    }
    let mode = meta.mode() & 0o755 | 0o600;
    match take {
        Take::Leave => Ok(()),
        Take::AsIs => {
            let mut target = create(to, mode)?;
            io::copy(&mut source, &mut target).at("copy to", to)?;
            Ok(())
        }
        Take::Edited(edit) => {
            if meta.len() > EDIT_LIMIT {
                return Ok(());
            }
            let mut bytes = Vec::new();
            source
                .take(EDIT_LIMIT)
                .read_to_end(&mut bytes)
                .at("read", from)?;
            match String::from_utf8(bytes).ok().and_then(|text| edit(&text)) {
                Some(text) => write_file(to, &text, mode),
                None => Ok(()),
            }
        }
    }
}

fn create(path: &Path, mode: u32) -> Result<File, TemplateError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .at("create", path)?;
    // The builder's umask may be anything.
    file.set_permissions(Permissions::from_mode(mode))
        .at("set the mode of", path)?;
    Ok(file)
}
