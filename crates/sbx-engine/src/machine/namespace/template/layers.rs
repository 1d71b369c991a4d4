//! The layer between a directory of the host and the sandbox's own one.
//!
//! The host's files keep the host's ids in every mode, so that the kernel decides at every access, with the
//! permissions of that moment, what a sandbox may read: what others may read, or what the caller may read
//! where the caller is an id inside. Inside, such files belong to the overflow uid (`nobody`), and a directory of that
//! owner cannot be written. So every directory is there again under root's name, to make packages installable, and so
//! is every setuid program of root's, which would have no effect under that owner, and the few packages that are updated
//! in place. No symlink is followed, and what is mounted below a directory is not part of an overlay. What lies in a
//! directory of another user is as the host has it: we do not account for its number or its depth.
//! Where programs inside have the caller's ids, what the caller keeps from others is looked for as well, also on other
//! file systems; what could not be looked through is taken for private.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr};
use std::fs::{self, Permissions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, Stat, mknodat};
use rustix::process::geteuid;

use super::TemplateError;
use super::access_rules::{AccessRules, OVERFLOW_ID, Reach};
use super::copy::{Copying, NAME, Take, create, fits, make_dir, make_link, may_enter, may_read};
use super::error::At as _;
use super::host_dir::{HostDir, MOST_DEPTH, Mounts, kind_of, next_name};

const SETID: u32 = 0o6000;
/// The device number that means "not there" to overlayfs; making it needs no privilege.
const WHITEOUT: u64 = 0;
/// Below `/usr`: packages that are updated in place by their own manager, and where the links to their
/// programs are. npm moves every file of a package aside before it replaces it, and a file of the
/// overflow uid cannot be moved (EOVERFLOW).
const OWNED: &[(&str, &str)] = &[
    ("lib/node_modules", "bin"),
    ("local/lib/node_modules", "local/bin"),
];
/// More than this stays the host's, and cannot be updated: a copy would take longer than it is worth.
const OWNED_LIMIT: u64 = 64 << 20;

/// Of one top-level directory, so that a user who makes many directories below one fills neither the disk nor our time.
const MOST_DIRS: u32 = 100_000;
const MOST_NAMES: u32 = 4_000_000;
/// A directory has half of the names that are left to the one above it, down to this depth: a user who uses
/// up their own does not use up those of others.
const SHARED_DEPTH: usize = 2;
const MOST_SET_ID: u64 = 256 << 20;

/// More than that are not told one by one.
const MOST_PRIVATE: usize = 4096;
/// A longer path cannot be hidden; what it lies in is.
const LONGEST_PRIVATE: usize = 2048;

/// Makes every directory below `host` that can be listed again in `layer`, and its setuid programs. Returns what is
/// below `host` that the caller keeps from others, by paths of the host.
pub(super) fn skeleton(
    host: &Path,
    layer: &Path,
    rules: &AccessRules,
) -> Result<BTreeSet<PathBuf>, TemplateError> {
    let Some(top) = HostDir::at(host)? else {
        return Ok(BTreeSet::new());
    };
    if rules.mirrors() {
        mirror_dir(layer, &top.stat)?;
    }
    let mut mirror = Mirror::new(host, layer, rules);
    if !rules.leaves_out(&top) {
        mirror.enter(top, rules.mirrors())?;
    }
    mirror.run()
}

struct Mirror<'a> {
    host: &'a Path,
    layer: &'a Path,
    rules: &'a AccessRules,
    /// From the top to where we are.
    open: Vec<Level>,
    /// The same by names.
    rel: PathBuf,
    left: Budget,
    left_out: u32,
    private: BTreeSet<PathBuf>,
}

/// A directory that is being walked.
struct Level {
    place: HostDir,
    entries: Dir,
    /// Only root can change what is in it, and what it lies in.
    solid: bool,
    /// The layer has it.
    made: bool,
    /// How many names it leaves to the others.
    floor: u32,
}

/// What may still be made, and looked at.
struct Budget {
    dirs: u32,
    names: u32,
    set_id: u64,
}

impl<'a> Mirror<'a> {
    fn new(host: &'a Path, layer: &'a Path, rules: &'a AccessRules) -> Self {
        Self {
            host,
            layer,
            rules,
            open: Vec::new(),
            rel: PathBuf::new(),
            left: Budget {
                dirs: MOST_DIRS,
                names: MOST_NAMES,
                set_id: MOST_SET_ID,
            },
            left_out: 0,
            private: BTreeSet::new(),
        }
    }

    fn run(mut self) -> Result<BTreeSet<PathBuf>, TemplateError> {
        while let Some(level) = self.open.last_mut() {
            let Some((name, kind)) = next_name(&mut level.entries) else {
                self.open.pop();
                self.rel.pop();
                continue;
            };
            if self.left.names <= level.floor {
                if !self.give_up(&name) {
                    break;
                }
                continue;
            }
            self.left.names -= 1;
            self.entry(&name, kind)?;
        }
        if self.left_out > 0 {
            tracing::warn!(
                top = %self.host.display(),
                number = self.left_out,
                "directories left out of the template: too deep, too many or too long"
            );
        }
        Ok(self.private)
    }

    /// Leaves the rest of a directory, from `name` on. Of the top the names are left one by one: the system is in it.
    /// Returns whether to go on.
    fn give_up(&mut self, name: &CStr) -> bool {
        self.left_out += 1;
        if self.open.len() > 1 {
            self.keep_unseen(self.rel.clone());
            self.open.pop();
            self.rel.pop();
            return true;
        }
        if self.private.len() >= MOST_PRIVATE {
            self.private = BTreeSet::from([self.host.to_owned()]);
            return false;
        }
        self.keep_unseen(PathBuf::from(OsStr::from_bytes(name.to_bytes())));
        self.rules.seeks_private()
    }

    fn enter(&mut self, place: HostDir, made: bool) -> Result<(), TemplateError> {
        let above = self.open.last().is_none_or(|level| level.solid);
        let solid = above && self.rules.is_solid(&place);
        let floor = self.open.last().map_or(0, |level| level.floor);
        let shared = (1..=SHARED_DEPTH).contains(&self.open.len());
        let floor = if shared {
            floor + self.left.names.saturating_sub(floor) / 2
        } else {
            floor
        };
        if let Some(entries) = place.list()? {
            self.open.push(Level {
                place,
                entries,
                solid,
                made,
                floor,
            });
        }
        Ok(())
    }

    fn entry(&mut self, name: &CStr, kind: FileType) -> Result<(), TemplateError> {
        let Some(level) = self.open.last() else {
            return Ok(());
        };
        match kind {
            FileType::Directory => {}
            FileType::RegularFile | FileType::Unknown => {
                let Some(stat) = level.place.look(name)? else {
                    self.keep_unseen(self.below(name));
                    return Ok(());
                };
                if kind_of(&stat) != FileType::Directory {
                    return self.file(name, &stat);
                }
            }
            _ => return Ok(()),
        }
        if let Some(place) = level.place.dir(name, Mounts::Stay)? {
            return self.directory(name, place, level.made);
        }
        if !self.rules.seeks_private() {
            return Ok(());
        }
        // What is mounted there is shown where the whole directory is bound.
        match level.place.dir(name, Mounts::Cross)? {
            // Its names are those of processes, which come and go.
            Some(place) if !place.is_proc() => self.directory(name, place, false),
            Some(_) | None => {
                self.keep_unseen(self.below(name));
                Ok(())
            }
        }
    }

    /// `above`: the layer has the directory that it lies in.
    fn directory(&mut self, name: &CStr, place: HostDir, above: bool) -> Result<(), TemplateError> {
        if self.rules.leaves_out(&place) {
            return Ok(());
        }
        let below = self.below(name);
        if self.rules.is_private(&place.stat) {
            self.keep(below);
            return Ok(());
        }
        let to = self.layer.join(&below);
        match self.rules.reach(&place) {
            Reach::Listed if self.open.len() == MOST_DEPTH => {
                self.left_out += 1;
                self.keep_unseen(below);
                Ok(())
            }
            Reach::Listed => {
                let made = above && self.make(&to, &place)?;
                if !made && !self.rules.seeks_private() {
                    return Ok(());
                }
                let depth = self.open.len();
                self.enter(place, made)?;
                if self.open.len() > depth {
                    self.rel = below;
                } else {
                    self.keep_unseen(below);
                }
                Ok(())
            }
            // A package that has files in it could not even look for them.
            Reach::Closed if above && fits(hide(&to))? => Ok(()),
            // What is known by name is found in it: something of the caller's as well.
            reach if self.rules.opens_inside(reach) => {
                self.keep_unseen(below);
                Ok(())
            }
            // The overflow uid's, as the host has it.
            Reach::Entered | Reach::Closed => Ok(()),
        }
    }

    /// Whether the layer has such a directory now.
    fn make(&mut self, to: &Path, place: &HostDir) -> Result<bool, TemplateError> {
        if !self.rules.knows_owner(&place.stat) {
            return Ok(false);
        }
        if self.left.dirs == 0 || !fits(mirror_dir(to, &place.stat))? {
            self.left_out += 1;
            return Ok(false);
        }
        self.left.dirs -= 1;
        Ok(true)
    }

    fn file(&mut self, name: &CStr, stat: &Stat) -> Result<(), TemplateError> {
        if kind_of(stat) != FileType::RegularFile {
            return Ok(());
        }
        let private = self.rules.is_private(stat);
        if !private && stat.st_mode & SETID == 0 {
            return Ok(());
        }
        let below = self.below(name);
        let to = self.layer.join(&below);
        if private {
            self.keep(below);
        }
        let made = match self.open.last().filter(|level| level.made) {
            None => return Ok(()),
            Some(_) if stat.st_mode & SETID == 0 => return Ok(()),
            // It does not exist inside: dpkg changes the mode of such a file before it removes it, which fails on a
            // file of the overflow uid.
            Some(_) if !may_read(stat.st_mode) => hide(&to),
            Some(level) => set_id(level, name, &to, self.rules, &mut self.left.set_id),
        };
        fits(made).map(drop)
    }

    fn below(&self, name: &CStr) -> PathBuf {
        self.rel.join(OsStr::from_bytes(name.to_bytes()))
    }

    /// Notes what was not looked through: all of it may be private.
    fn keep_unseen(&mut self, below: PathBuf) {
        if self.rules.seeks_private() {
            self.keep(below);
        }
    }

    /// Notes what the caller keeps from others. Of too many, all that lies beside them is kept as well.
    fn keep(&mut self, below: PathBuf) {
        let all = below.iter().next().map(PathBuf::from);
        let mut kept = match all {
            Some(all) if self.private.len() >= MOST_PRIVATE => all,
            Some(_) | None => below,
        };
        while kept.as_os_str().len() > LONGEST_PRIVATE && kept.pop() {}
        self.private.insert(self.host.join(kept));
    }
}

/// A setuid program under root's name, if it is root's and where only root could put it. Decided on what was opened:
/// it need not be what was listed.
fn set_id(
    level: &Level,
    name: &CStr,
    to: &Path,
    rules: &AccessRules,
    left: &mut u64,
) -> Result<(), TemplateError> {
    let Some((source, stat)) = level.place.file(name)? else {
        return Ok(());
    };
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    let trusted = level.solid && rules.is_roots(&stat);
    let is_one = stat.st_mode & SETID != 0 && may_read(stat.st_mode);
    if !trusted || !is_one || size > *left {
        return Ok(());
    }
    *left -= size;
    let mut target = create(to, 0o600)?;
    io::copy(&mut source.take(size), &mut target).at("copy to", to)?;
    let mode = Permissions::from_mode(stat.st_mode & 0o5755);
    target.set_permissions(mode).at("set the mode of", to)
}

/// Copies what is in [`OWNED`]; `host` and `layer` are those of `/usr`.
pub(super) fn owned(
    host: &Path,
    layer: &Path,
    mounts: &BTreeSet<PathBuf>,
    rules: &AccessRules,
) -> Result<(), TemplateError> {
    let admits = |place: &HostDir| {
        !rules.leaves_out(place) && may_enter(place.stat.st_mode) && rules.knows_owner(&place.stat)
    };
    let open = |rel: &str| match HostDir::at(host)? {
        Some(top) => top.below(Path::new(rel), Mounts::Stay, &admits),
        None => Ok(None),
    };
    for (rel, programs) in OWNED {
        let mounted = |point: &PathBuf| point.starts_with(host.join(rel));
        // The skeleton has it where it is a directory that the sandbox may enter.
        if mounts.iter().any(mounted) || !layer.join(rel).is_dir() {
            continue;
        }
        let Some(place) = open(rel)? else {
            continue;
        };
        if size(&place, &admits, 0)? > OWNED_LIMIT {
            continue;
        }
        let mut copying = Copying {
            rule: &|_| Take::AsIs,
            admits: &admits,
            mounts: Mounts::Stay,
            bytes: OWNED_LIMIT,
        };
        copying.directory(&place, &layer.join(rel), Path::new(""))?;
        if let Some(place) = open(programs)? {
            copy_links(&place, &layer.join(programs), rel)?;
        }
    }
    Ok(())
}

/// Copies the links in `from` that lead into `into`.
fn copy_links(from: &HostDir, to: &Path, into: &str) -> Result<(), TemplateError> {
    let into = Path::new(into).file_name();
    let Some(mut entries) = from.list()?.filter(|_| to.is_dir()) else {
        return Ok(());
    };
    while let Some((name, _)) = next_name(&mut entries) {
        // Only a symlink has a target.
        let target = from.link(&name)?;
        if let Some(target) = target.filter(|target| target.iter().any(|part| Some(part) == into)) {
            make_link(&to.join(OsStr::from_bytes(name.to_bytes())), &target)?;
        }
    }
    Ok(())
}

/// The size of the files below a directory, as far as they would be copied. No more than one above [`OWNED_LIMIT`] is
/// counted.
fn size(
    dir: &HostDir,
    admits: &dyn Fn(&HostDir) -> bool,
    depth: usize,
) -> Result<u64, TemplateError> {
    let mut total = 0_u64;
    let Some(mut entries) = dir.list()?.filter(|_| depth < MOST_DEPTH) else {
        return Ok(total);
    };
    while let Some((name, _)) = next_name(&mut entries) {
        let Some(stat) = dir.look(&name)? else {
            continue;
        };
        total = total.saturating_add(NAME);
        if kind_of(&stat) == FileType::Directory {
            if let Some(below) = dir.dir(&name, Mounts::Stay)?.filter(|place| admits(place)) {
                total = total.saturating_add(size(&below, admits, depth + 1)?);
            }
        } else {
            total = total.saturating_add(u64::try_from(stat.st_size).unwrap_or_default());
        }
        if total > OWNED_LIMIT {
            break;
        }
    }
    Ok(total)
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
    match rustix::fs::lstat(&from) {
        Ok(stat) if kind_of(&stat) == FileType::Directory => mirror_dir(&to, &stat),
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

fn is_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// The mode of the host's directory, always with everything for the owner, and its owner where root builds
/// and the id exists: one that does not appears as the overflow uid, and becomes root's.
fn mirror_dir(path: &Path, host: &Stat) -> Result<(), TemplateError> {
    match fs::create_dir(path) {
        // Anything but a directory was put there when the host's was something else.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !is_dir(path) => {
            return Err(error).at("make", path);
        }
        Ok(()) | Err(_) => {}
    }
    let known = |id: u32| if id >= OVERFLOW_ID { 0 } else { id };
    let owner = (known(host.st_uid), known(host.st_gid));
    if owner != (0, 0) && geteuid().is_root() {
        chown(path, Some(owner.0), Some(owner.1)).at("set the owner of", path)?;
    }
    let mode = host.st_mode & 0o1777 | 0o700;
    fs::set_permissions(path, Permissions::from_mode(mode)).at("set the mode of", path)
}

#[cfg(test)]
mod tests;
