//! The layer between a directory of the host and the sandbox's own one.
//!
//! The host's files keep the host's ids in every mode, so that the kernel decides at every access, with the
//! permissions of that moment, what a sandbox may read: what others may read, or what the caller may read
//! where the caller is an id inside. Such files are nobody's inside, and a directory of nobody's cannot be
//! written. So every directory is there again under root's name, to make packages installable, and so is
//! every setuid program, which would be powerless as nobody's, and the few packages that are updated in
//! place. No symlink is followed, and what is mounted below a directory is not part of an overlay.

use std::collections::BTreeSet;
use std::fs::{self, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, CWD, FileType, Mode, access, mknodat};
use rustix::process::geteuid;
use sbx_proto::plan::Mode as SandboxMode;

use super::TemplateError;
use super::copy::{Take, copy_tree, make_dir, make_link, may_enter, may_read, present};
use super::error::At as _;

const SETID: u32 = 0o6000;
const OTHERS_SEARCH: u32 = 0o001;
const NOBODY: u32 = 65534;
/// The device number that means "not there" to overlayfs; anybody may make it.
const WHITEOUT: u64 = 0;
/// Below `/usr`: packages that are updated in place by their own manager, and where the links to their
/// programs are. npm moves every file of a package aside before it replaces it, and a file of nobody's cannot
/// be moved (EOVERFLOW).
const OWNED: &[(&str, &str)] = &[
    ("lib/node_modules", "bin"),
    ("local/lib/node_modules", "local/bin"),
];
/// More than this stays the host's, and cannot be updated: a copy would take longer than it is worth.
const OWNED_LIMIT: u64 = 64 << 20;

/// Makes every directory below `host` that can be listed again in `layer`, and its setuid programs.
pub(super) fn skeleton(
    host: &Path,
    layer: &Path,
    mounts: &BTreeSet<PathBuf>,
    mode: SandboxMode,
) -> Result<(), TemplateError> {
    mirror_all(host, layer, Path::new(""))?;
    let mut todo = vec![PathBuf::new()];
    while let Some(rel) = todo.pop() {
        let dir = host.join(&rel);
        let Some(entries) = present(fs::read_dir(&dir)).at("list", &dir)? else {
            continue;
        };
        for entry in entries {
            let entry = entry.at("list", &dir)?;
            let kind = entry.file_type().at("look at", &dir)?;
            if !(kind.is_dir() || kind.is_file()) {
                continue;
            }
            let Some(meta) = present(entry.metadata()).at("look at", &entry.path())? else {
                continue;
            };
            if mounts.contains(&entry.path()) {
                continue;
            }
            let name = rel.join(entry.file_name());
            if kind.is_dir() {
                match reach(&entry.path(), &meta, mode) {
                    Reach::Listed => {
                        imitate(&layer.join(&name), &meta)?;
                        todo.push(name);
                    }
                    // Nobody's, as the host has it: what is known by name is found in it.
                    Reach::Entered => {}
                    // A package that has files in it could not even look for them.
                    Reach::Closed => hide(&layer.join(&name))?,
                }
            } else if meta.mode() & SETID != 0 {
                set_id(&entry.path(), &layer.join(&name), &meta)?;
            }
        }
    }
    Ok(())
}

/// Copies what is in [`OWNED`]; `host` and `layer` are those of `/usr`.
pub(super) fn owned(
    host: &Path,
    layer: &Path,
    mounts: &BTreeSet<PathBuf>,
) -> Result<(), TemplateError> {
    for (rel, programs) in OWNED {
        let from = host.join(rel);
        if mounts.iter().any(|point| point.starts_with(&from)) {
            continue;
        }
        // The skeleton has it where it is a directory that the sandbox may enter.
        if layer.join(rel).is_dir() && size(&from)? <= OWNED_LIMIT {
            copy_tree(&from, &layer.join(rel), Path::new(""), &|_| Take::AsIs)?;
            copy_links(&host.join(programs), &layer.join(programs), rel)?;
        }
    }
    Ok(())
}

/// Copies the links in `from` that lead into `into`.
fn copy_links(from: &Path, to: &Path, into: &str) -> Result<(), TemplateError> {
    let name = Path::new(into).file_name();
    for entry in present(fs::read_dir(from))
        .at("list", from)?
        .into_iter()
        .flatten()
    {
        let entry = entry.at("list", from)?;
        if !entry.file_type().at("look at", from)?.is_symlink() || !to.is_dir() {
            continue;
        }
        let target = present(fs::read_link(entry.path())).at("read", &entry.path())?;
        if let Some(target) = target.filter(|target| target.iter().any(|part| Some(part) == name)) {
            make_link(&to.join(entry.file_name()), &target)?;
        }
    }
    Ok(())
}

/// The size of the files below `dir`; what cannot be listed counts nothing.
fn size(dir: &Path) -> Result<u64, TemplateError> {
    let mut total = 0_u64;
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in present(fs::read_dir(&dir))
            .at("list", &dir)?
            .into_iter()
            .flatten()
        {
            let entry = entry.at("list", &dir)?;
            let Some(meta) = present(entry.metadata()).at("look at", &entry.path())? else {
                continue;
            };
            if meta.is_dir() {
                todo.push(entry.path());
            } else {
                total = total.saturating_add(meta.len());
            }
        }
    }
    Ok(total)
}

/// What a sandbox may do with a directory.
enum Reach {
    Listed,
    Entered,
    Closed,
}

/// Root outside can enter everything; root inside is one of the others there.
fn reach(path: &Path, meta: &Metadata, mode: SandboxMode) -> Reach {
    let (listed, entered) = match mode {
        SandboxMode::Root => (may_enter(meta.mode()), meta.mode() & OTHERS_SEARCH != 0),
        SandboxMode::Subordinate | SandboxMode::Single => (
            access(path, Access::READ_OK | Access::EXEC_OK).is_ok(),
            access(path, Access::EXEC_OK).is_ok(),
        ),
    };
    match (listed, entered) {
        (true, _) => Reach::Listed,
        (false, true) => Reach::Entered,
        (false, false) => Reach::Closed,
    }
}

/// Makes something of the host not exist inside, so that it is not in the way of a package.
fn hide(place: &Path) -> Result<(), TemplateError> {
    mknodat(
        CWD,
        place,
        FileType::CharacterDevice,
        Mode::empty(),
        WHITEOUT,
    )
    .at("hide with", place)
}

/// Makes the directory `rel` and those above it in `layer`, each like the host's.
pub(super) fn mirror_all(host: &Path, layer: &Path, rel: &Path) -> Result<(), TemplateError> {
    let (from, to) = (host.join(rel), layer.join(rel));
    if to.is_dir() {
        return Ok(());
    }
    if let Some(parent) = rel.parent() {
        mirror_all(host, layer, parent)?;
    }
    match fs::symlink_metadata(&from) {
        Ok(meta) if meta.is_dir() => imitate(&to, &meta),
        Ok(_) | Err(_) => make_dir(&to, 0o755),
    }
}

/// The same for a directory that something is to be put in, unless the host has a link on the way to it, which
/// would be hidden.
pub(super) fn own(host: &Path, layer: &Path, rel: &Path) -> Result<(), TemplateError> {
    let in_the_way = |path: &Path| {
        let found = fs::symlink_metadata(host.join(path));
        found.is_ok_and(|meta| !meta.is_dir())
    };
    if rel.ancestors().any(in_the_way) {
        return Ok(());
    }
    mirror_all(host, layer, rel)
}

/// The mode of the host's directory, always with everything for the owner, and its owner where root builds
/// and the id exists: one that does not looks like nobody's, and becomes root's.
fn imitate(path: &Path, host: &Metadata) -> Result<(), TemplateError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).at("make", path);
        }
        Ok(()) | Err(_) => {}
    }
    let known = |id: u32| if id >= NOBODY { 0 } else { id };
    let owner = (known(host.uid()), known(host.gid()));
    if owner != (0, 0) && geteuid().is_root() {
        chown(path, Some(owner.0), Some(owner.1)).at("set the owner of", path)?;
    }
    let mode = host.mode() & 0o1777 | 0o700;
    fs::set_permissions(path, Permissions::from_mode(mode)).at("set the mode of", path)
}

/// A setuid program under root's name. One that is not for others does not exist inside: dpkg changes the
/// mode of such a file before it removes it, which nobody's file does not let it do.
fn set_id(from: &Path, to: &Path, meta: &Metadata) -> Result<(), TemplateError> {
    if !may_read(meta.mode()) {
        return hide(to);
    }
    if present(fs::copy(from, to)).at("copy", from)?.is_none() {
        return Ok(());
    }
    fs::set_permissions(to, Permissions::from_mode(meta.mode() & 0o5777)).at("set the mode of", to)
}
