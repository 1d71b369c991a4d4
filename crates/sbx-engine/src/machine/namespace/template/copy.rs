//! Copies from the host into a template: only regular files, directories and symlinks, only what others may
//! read, no symlink followed, modes without setuid and group or world write.
//!
//! The builder may be root while another user renames what is being copied. So no path of the host is resolved twice: each
//! directory is an `O_PATH` descriptor ([`HostDir`]), each name is opened relative to it with `O_NOFOLLOW`, and owner,
//! mode and size are those of the descriptor (`fstat`), not of the name. A name that changes its kind between `statat`
//! and `openat` is left out. Sizes and depths are bounded, because files can grow while they are copied.

use std::ffi::{CStr, OsStr};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use super::TemplateError;
use super::error::At as _;
use super::host_dir::{HostDir, MOST_DEPTH, Mounts, c_name, kind_of, next_name};

const OTHERS_READ: u32 = 0o004;
const OTHERS_ENTER: u32 = 0o005;
/// A text that needs editing and is larger than this is not copied.
const EDIT_LIMIT: u64 = 4 << 20;

/// What a name takes of [`Copying::bytes`].
pub(super) const NAME: u64 = 512;
/// The path is too long, or something of another kind is there: a directory, a file, or what hides one.
const NO_PLACE: [Errno; 6] = [
    Errno::NAMETOOLONG,
    Errno::EXIST,
    Errno::NOTDIR,
    Errno::ISDIR,
    Errno::NXIO,
    Errno::ACCESS,
];

/// What happens to one file or directory of the host.
#[derive(Clone, Copy)]
pub(super) enum Take {
    Leave,
    AsIs,
    /// The text that the sandbox gets instead; `None` leaves the file out.
    Edited(Edit),
    /// The same of a text. What is binary is taken as it is.
    EditedText(Edit),
}

pub(super) type Edit = fn(&str) -> Option<String>;

/// Copies `from`, whatever it is, to `to`. `rule` is asked with the path relative to the first `from`;
/// what is missing, unreadable or not for others is left out. Only root can change the names above `from`.
pub(super) fn copy_tree(
    from: &Path,
    to: &Path,
    rel: &Path,
    rule: &dyn Fn(&Path) -> Take,
) -> Result<(), TemplateError> {
    let (Some(parent), Some(name)) = (from.parent(), from.file_name().and_then(c_name)) else {
        return Ok(());
    };
    let Some(above) = HostDir::reached(parent)? else {
        return Ok(());
    };
    let mut copying = Copying {
        rule,
        admits: &|_| true,
        mounts: Mounts::Cross,
        bytes: u64::MAX,
    };
    copying.entry(&above, &name, to, rel)
}

/// How a tree is copied.
pub(super) struct Copying<'a> {
    pub(super) rule: &'a dyn Fn(&Path) -> Take,
    /// Which directories are looked into, of those that others may enter.
    pub(super) admits: &'a dyn Fn(&HostDir) -> bool,
    pub(super) mounts: Mounts,
    /// How much more may be copied.
    pub(super) bytes: u64,
}

impl Copying<'_> {
    /// Copies what has this name in `above`, whatever it is.
    pub(super) fn entry(
        &mut self,
        above: &HostDir,
        name: &CStr,
        to: &Path,
        rel: &Path,
    ) -> Result<(), TemplateError> {
        let take = (self.rule)(rel);
        if matches!(take, Take::Leave) {
            return Ok(());
        }
        let Some(stat) = above.look(name)? else {
            return Ok(());
        };
        // Only a choice of how to open it: each of these checks the kind again on what it has opened.
        match kind_of(&stat) {
            FileType::Symlink => match above.link(name)? {
                Some(target) => make_link(to, &target),
                None => Ok(()),
            },
            FileType::Directory => match above.dir(name, self.mounts)? {
                Some(place) => self.directory(&place, to, rel),
                None => Ok(()),
            },
            FileType::RegularFile => match above.file(name)? {
                Some((source, stat)) => self.file(source, &stat, to, take),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Copies a directory and what is in it.
    pub(super) fn directory(
        &mut self,
        place: &HostDir,
        to: &Path,
        rel: &Path,
    ) -> Result<(), TemplateError> {
        if !may_enter(place.stat.st_mode)
            || rel.components().count() > MOST_DEPTH
            || !(self.admits)(place)
        {
            return Ok(());
        }
        let Some(mut entries) = place.list()? else {
            return Ok(());
        };
        if !fits(make_dir(to, place.stat.st_mode & 0o755 | 0o700))? {
            return Ok(());
        }
        while let Some((name, _)) = next_name(&mut entries) {
            let Some(bytes) = self.bytes.checked_sub(NAME) else {
                return Ok(());
            };
            self.bytes = bytes;
            let below = OsStr::from_bytes(name.to_bytes());
            fits(self.entry(place, &name, &to.join(below), &rel.join(below)))?;
        }
        Ok(())
    }

    fn file(
        &mut self,
        mut source: File,
        stat: &Stat,
        to: &Path,
        take: Take,
    ) -> Result<(), TemplateError> {
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        if !may_read(stat.st_mode) || size > self.bytes {
            return Ok(());
        }
        let mode = stat.st_mode & 0o755 | 0o600;
        match take {
            Take::Leave => Ok(()),
            Take::AsIs => {
                let mut target = create(to, mode)?;
                let limit = self.bytes;
                // It may grow while it is copied.
                let copied = io::copy(&mut (&mut source).take(limit), &mut target);
                self.bytes -= copied.at("copy to", to)?.min(limit);
                Ok(())
            }
            Take::EditedText(edit) => {
                let mut bytes = Vec::new();
                let start = (&mut source).take(EDIT_LIMIT).read_to_end(&mut bytes);
                start.at("read for", to)?;
                if bytes.contains(&0) {
                    return self.binary(&bytes, source, to, mode);
                }
                match edit(&String::from_utf8_lossy(&bytes)) {
                    Some(text) if size <= EDIT_LIMIT => write_file(to, &text, mode),
                    Some(_) | None => Ok(()),
                }
            }
            Take::Edited(_) if size > EDIT_LIMIT => Ok(()),
            Take::Edited(edit) => {
                let mut bytes = Vec::new();
                let read = source.take(EDIT_LIMIT).read_to_end(&mut bytes);
                read.at("read for", to)?;
                match String::from_utf8(bytes).ok().and_then(|text| edit(&text)) {
                    Some(text) => write_file(to, &text, mode),
                    None => Ok(()),
                }
            }
        }
    }
}

impl Copying<'_> {
    /// `start` of it was read already.
    fn binary(
        &mut self,
        start: &[u8],
        rest: File,
        to: &Path,
        mode: u32,
    ) -> Result<(), TemplateError> {
        let mut target = create(to, mode)?;
        let limit = self.bytes;
        let copied = io::copy(&mut start.chain(rest).take(limit), &mut target);
        self.bytes -= copied.at("copy to", to)?.min(limit);
        Ok(())
    }
}

/// Whether something could be made where it has to be. Left out is what has too long a path, and what was something else
/// when its name was met before: a user who does that on the host must not keep others from making sandboxes.
pub(super) fn fits(made: Result<(), TemplateError>) -> Result<bool, TemplateError> {
    match made {
        Ok(()) => Ok(true),
        Err(TemplateError::Io { path, source, .. })
            if Errno::from_io_error(&source).is_some_and(|error| NO_PLACE.contains(&error)) =>
        {
            let error = source.to_string();
            tracing::warn!(path = %path.display(), error, "left out of the template");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Writes a new file.
pub(super) fn write_file(path: &Path, content: &str, mode: u32) -> Result<(), TemplateError> {
    // Our own file wins over a copied symlink of the same name, which `open` would refuse (`O_NOFOLLOW`).
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

pub(super) fn create(path: &Path, mode: u32) -> Result<File, TemplateError> {
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
