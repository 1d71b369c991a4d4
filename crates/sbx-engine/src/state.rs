//! The state directory: where everything of the engine lies, whose it is, and how files in it are written.
//!
//! Reading never creates anything. A directory that does not carry our marker belongs to another product and is left
//! alone, unless nothing is in it but settings that the user wrote before the first command.

mod ancestors;
pub(crate) mod copy_layers;
pub mod daemon_lock;
pub(crate) mod open_beneath;
pub mod remove_tree;
pub mod settings;
pub mod socket;
pub(crate) mod tree_size;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, IFlags, Mode, OFlags};
use sbx_proto::object;
use serde_json::Value;
use thiserror::Error;

use crate::sandbox::name::SandboxName;
use crate::state::settings::{SettingError, Settings, Values};

pub const SOCKET: &str = "sandboxd.sock";
pub const EXEC_SOCKET: &str = "exec.sock";
/// Where a Docker client of a sandbox connects; in the state directory itself lies the socket that all of them lead to.
pub const DOCKER_SOCKET: &str = "docker.sock";
pub const RECORD: &str = "sandbox.json";
const MARKER: &str = ".sbx-owner";
pub const LOCK: &str = "sandboxd.lock";
const LOG: &str = "sandboxd.log";
const OLDER_LOG: &str = "sandboxd.1.log";
const SANDBOXES: &str = "vm";
const TEMPLATES: &str = "templates";
/// Below the templates.
pub const SAVED: &str = "saved";
const CACHES: &str = "cache";
const TRASH: &str = "trash";
const SETTINGS: &str = "settings.json";
const SSH_HOST_KEY: &str = "ssh-host-key";
const MARKER_TEXT: &[u8] = b"state directory of sbx, format 1\n";
const MARKER_TEXT_OF_ANY_FORMAT: &[u8] = b"state directory of sbx, format ";
const TEMP_SUFFIX: &str = ".tmp";

/// What to do about a state directory that cannot be used.
pub const ANOTHER_PLACE: &str = "set SBX_HOME to an absolute path of a directory for sbx alone";

/// What to do about a disk, or a quota, that is used up.
const FREE_SPACE: &str = "free some disk space, for example with `sbx rm`";
const FULL: [io::ErrorKind; 2] = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];

#[derive(Debug, Error)]
pub enum StateError {
    #[error("`{path}` has files in it that this program did not make")]
    Foreign { path: PathBuf },
    #[error("`{path}` belongs to user {owner}, not to user {user}")]
    OtherUser {
        path: PathBuf,
        owner: u32,
        user: u32,
    },
    #[error("`{path}` lies below `{above}`, in which another user can rename directories")]
    Renamable { path: PathBuf, above: PathBuf },
    #[error("`{path}` is not an absolute path")]
    Relative { path: PathBuf },
    #[error("another daemon serves `{path}`")]
    Locked { path: PathBuf },
    #[error("cannot use `{path}`")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("settings in `{path}` are not valid")]
    Settings {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error(transparent)]
    Setting(#[from] SettingError),
}

impl StateError {
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Foreign { .. } | Self::OtherUser { .. } | Self::Relative { .. } => {
                Some(ANOTHER_PLACE)
            }
            Self::Renamable { .. } => Some(
                "set SBX_HOME to a directory below which only you and root can write, or take the permission from others (chmod go-w)",
            ),
            Self::Io { source, .. } => Some(place_hint(source)),
            Self::Locked { .. } => Some("sbx daemon status"),
            Self::Settings { .. } => {
                Some("correct the file, or remove it; `sbx diagnose` checks it")
            }
            Self::Setting(_) => Some("sbx settings list --all"),
        }
    }
}

/// Paths below the root; nothing is known about what exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir {
    root: PathBuf,
}

impl StateDir {
    /// `SBX_HOME` when it is set, else `~/.docker/sandboxes`.
    pub fn locate(home: &Path, sbx_home: Option<&Path>) -> Result<Self, StateError> {
        let root = match sbx_home {
            Some(path) => path.to_path_buf(),
            None => home.join(".docker").join("sandboxes"),
        };
        if !root.is_absolute() {
            return Err(StateError::Relative { path: root });
        }
        Ok(Self { root })
    }

    /// As [`StateDir::locate`]; but where another product uses `~/.docker/sandboxes`, `sbx` in the directory for states
    /// (`$XDG_STATE_HOME`, else `~/.local/state`) is taken instead. Once that one is in use, it stays so.
    pub fn find(
        home: &Path,
        sbx_home: Option<&Path>,
        xdg_state: Option<&Path>,
    ) -> Result<Self, StateError> {
        let usual = Self::locate(home, sbx_home)?;
        if sbx_home.is_some() || usual.is_claimed() {
            return Ok(usual);
        }
        // The specification has relative ones ignored.
        let states = xdg_state.filter(|path| path.is_absolute());
        let states = states.map_or_else(|| home.join(".local/state"), Path::to_path_buf);
        let other = Self {
            root: states.join("sbx"),
        };
        if other.is_claimed() || usual.is_foreign() {
            return Ok(other);
        }
        Ok(usual)
    }

    /// Whether the directory is the caller's and another product has files in it.
    pub fn is_foreign(&self) -> bool {
        let own = fs::metadata(&self.root)
            .is_ok_and(|meta| meta.is_dir() && self.check_owner(meta.uid()).is_ok());
        own && !self.is_claimed() && self.is_unused().is_ok_and(|unused| !unused)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn socket(&self) -> PathBuf {
        self.root.join(SOCKET)
    }

    pub fn log(&self) -> PathBuf {
        self.root.join(LOG)
    }

    /// What was in the log before it had to begin anew.
    pub fn older_log(&self) -> PathBuf {
        self.root.join(OLDER_LOG)
    }

    /// What went out of sandboxes and what was refused; a file per sandbox.
    pub fn network_log(&self) -> PathBuf {
        self.root.join("log").join("network")
    }

    /// Build caches that outlive their sandboxes.
    pub fn caches(&self) -> PathBuf {
        self.root.join(CACHES)
    }

    pub fn templates(&self) -> PathBuf {
        self.root.join(TEMPLATES)
    }

    /// Those that were saved, beside those of the host.
    pub fn saved_templates(&self) -> PathBuf {
        self.templates().join(SAVED)
    }

    pub fn sandboxes(&self) -> PathBuf {
        self.root.join(SANDBOXES)
    }

    pub fn sandbox(&self, name: &SandboxName) -> SandboxDir {
        SandboxDir {
            path: self.sandboxes().join(name.as_str()),
        }
    }

    /// Where directories of removed sandboxes lie until their files are deleted.
    pub fn trash(&self) -> PathBuf {
        self.root.join(TRASH)
    }

    /// The place of a removed sandbox: its name is free again, so it lies below its id.
    pub fn trashed(&self, id: &str, name: &SandboxName) -> SandboxDir {
        SandboxDir {
            path: self.trash().join(id).join(name.as_str()),
        }
    }

    /// That what belongs to `owner` is the caller's.
    pub fn check_owner(&self, owner: u32) -> Result<(), StateError> {
        let user = rustix::process::geteuid().as_raw();
        if owner == user {
            return Ok(());
        }
        Err(StateError::OtherUser {
            path: self.root.clone(),
            owner,
            user,
        })
    }

    /// That the directory, if there is one, is the caller's.
    pub fn check_own(&self) -> Result<(), StateError> {
        match fs::metadata(&self.root) {
            Ok(meta) if meta.is_dir() => self.check_owner(meta.uid())?,
            Ok(_) | Err(_) => {}
        }
        self.check_place()
    }

    /// That no other user can put another directory in its place.
    fn check_place(&self) -> Result<(), StateError> {
        match ancestors::renamable(&self.root) {
            None => Ok(()),
            Some(above) => Err(StateError::Renamable {
                path: self.root.clone(),
                above,
            }),
        }
    }

    /// Makes the directory ours, or proves that it is.
    pub fn claim(&self) -> Result<(), StateError> {
        let root = &self.root;
        let failed = |source| io_error(root, source);
        self.check_own()?;
        make_private_dirs(root).map_err(failed)?;
        let meta = fs::metadata(root).map_err(failed)?;
        self.check_owner(meta.uid())?;
        if !self.is_claimed() {
            let occupied = !self.is_unused().map_err(failed)?;
            // Looked at again: what is in it may be the marker of a client that claims it at the same time.
            if occupied && !self.is_claimed() {
                return Err(StateError::Foreign { path: root.clone() });
            }
            // Written in place: a temporary file left by a crash would look like another product's.
            let marker = private().create_new(true).open(root.join(MARKER));
            match marker.and_then(|mut file| file.write_all(MARKER_TEXT)) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(failed(e)),
            }
        }
        fs::set_permissions(root, fs::Permissions::from_mode(0o700)).map_err(failed)?;
        keep_to_own_group(root);
        for dir in [self.sandboxes(), self.templates(), self.trash()] {
            make_private_dirs(&dir).map_err(|source| io_error(&dir, source))?;
            keep_to_own_group(&dir);
        }
        keep_apart(&self.sandboxes());
        Ok(())
    }

    /// The same directory, which exists, by its real name: what is shown to sandboxes is opened through no symbolic link,
    /// and a home may lie behind one.
    pub fn real(&self) -> Result<Self, StateError> {
        let root = fs::canonicalize(&self.root).map_err(|source| io_error(&self.root, source))?;
        Ok(Self { root })
    }

    /// Whether the directory exists and is ours; reading commands look no further when it is not.
    pub fn is_claimed(&self) -> bool {
        marker(&self.root).exists()
    }

    /// Whether a directory that exists has nothing in it but, perhaps, settings, a file of the directory's owner, and
    /// what a command makes that comes while another one removes everything.
    pub fn is_unused(&self) -> io::Result<bool> {
        let owner = fs::metadata(&self.root)?.uid();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            let unused = match entry.file_name().to_str() {
                Some(SETTINGS) => meta.is_file(),
                Some(LOCK | LOG) => meta.is_file() && meta.len() == 0,
                Some(SANDBOXES | TEMPLATES | TRASH) => {
                    meta.is_dir() && fs::read_dir(entry.path())?.next().is_none()
                }
                _ => false,
            };
            if !unused || meta.uid() != owner {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// `daemon.json`: who serves, for people and for `daemon status`.
    pub fn write_daemon_info(&self, json: &[u8]) -> Result<(), StateError> {
        let path = self.root.join("daemon.json");
        write_atomic(&self.root, "daemon.json", json, Durability::Soon)
            .map_err(|source| io_error(&path, source))
    }

    pub fn settings_file(&self) -> PathBuf {
        self.root.join(SETTINGS)
    }

    /// What `sbx ssh proxy` proves itself with.
    pub fn ssh_host_key(&self) -> PathBuf {
        self.root.join(SSH_HOST_KEY)
    }

    /// Everything in the directory that is ours, in the order in which it can be removed: what says that the rest
    /// is ours goes after it, and the lock, under which this is done, last.
    pub fn contents(&self) -> Result<Vec<PathBuf>, StateError> {
        const OURS: &[&str] = &[
            SANDBOXES,
            TRASH,
            TEMPLATES,
            CACHES,
            "log",
            SOCKET,
            DOCKER_SOCKET,
            "daemon.json",
            "policy.json",
            "proxy-config.json",
            SSH_HOST_KEY,
            SETTINGS,
            OLDER_LOG,
            LOG,
        ];
        let failed = |source| io_error(&self.root, source);
        let mut names: Vec<_> = OURS.iter().map(|name| (*name).to_owned()).collect();
        for entry in fs::read_dir(&self.root).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.into_string().ok().filter(|name| is_temporary(name)));
        }
        names.extend([MARKER, LOCK].map(str::to_owned));
        Ok(names.iter().map(|name| self.root.join(name)).collect())
    }

    pub fn settings(&self) -> Result<Settings, StateError> {
        let path = self.settings_file();
        match fs::read(&path) {
            Ok(bytes) => {
                object::from_slice(&bytes).map_err(|source| StateError::Settings { path, source })
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Settings::default()),
            Err(source) => Err(io_error(&path, source)),
        }
    }

    /// What the user has set. Fails where [`Self::settings`] does.
    pub fn settings_values(&self) -> Result<Values, StateError> {
        self.settings()?;
        let path = self.settings_file();
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|source| StateError::Settings { path, source }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Values::new()),
            Err(source) => Err(io_error(&path, source)),
        }
    }

    /// Sets it, or takes it out of the file; false when it was not in it.
    pub fn change_setting(&self, key: &str, value: Option<Value>) -> Result<bool, StateError> {
        let failed = |source| io_error(&self.settings_file(), source);
        // Two changes at the same time: neither is lost. The directory is locked, as the file is replaced.
        let dir = File::open(&self.root).map_err(failed)?;
        rustix::fs::flock(&dir, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
        let mut values = self.settings_values()?;
        match value {
            Some(value) => drop(values.insert(key.to_owned(), value)),
            None if values.remove(key).is_none() => return Ok(false),
            None => {}
        }
        let mut text = serde_json::to_vec_pretty(&values).map_err(|e| failed(e.into()))?;
        text.push(b'\n');
        write_atomic(&self.root, SETTINGS, &text, Durability::Now).map_err(failed)?;
        Ok(true)
    }

    /// Names that have a directory, whatever is in it. Entries that cannot be names are not the engine's.
    pub fn names(&self) -> Result<Vec<SandboxName>, StateError> {
        let mut names = Vec::new();
        for name in file_names(&self.sandboxes())? {
            names.extend(SandboxName::parse(&name).ok());
        }
        names.sort();
        Ok(names)
    }

    /// Directories of removed sandboxes, each with the place that it had before.
    pub(crate) fn in_trash(&self) -> Result<Vec<Trashed>, StateError> {
        let mut found = Vec::new();
        for id in file_names(&self.trash())? {
            let path = self.trash().join(&id);
            let names = file_names(&path)?;
            if names.is_empty() {
                // The directory of a removal that was interrupted before its first or after its last step.
                fs::remove_dir(&path).map_err(|source| io_error(&path, source))?;
            }
            for name in names
                .iter()
                .filter_map(|name| SandboxName::parse(name).ok())
            {
                found.push(Trashed {
                    dir: self.trashed(&id, &name),
                    origin: self.sandbox(&name),
                });
            }
        }
        Ok(found)
    }
}

/// A removed sandbox whose files are still there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trashed {
    pub(crate) dir: SandboxDir,
    /// Where it was while it ran.
    pub(crate) origin: SandboxDir,
}

/// Names that are not UTF-8 are not the engine's. A missing directory has none.
fn file_names(dir: &Path) -> Result<Vec<String>, StateError> {
    let failed = |source| io_error(dir, source);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    Ok(names)
}

/// A directory can hand its group down to those that are made in it, and root of a user namespace has no power over a
/// directory whose group is not in it. The bits for the group are off, so that it grants nothing whichever one it is.
fn keep_to_own_group(dir: &Path) {
    let group = rustix::process::getegid().as_raw();
    let changed = match fs::metadata(dir) {
        Ok(meta) if meta.gid() == group => Ok(()),
        Ok(_) => std::os::unix::fs::chown(dir, None, Some(group)),
        Err(error) => Err(error),
    };
    if let Err(error) = changed {
        tracing::debug!(%error, dir = %dir.display(), "it keeps a group of others");
    }
}

/// Tells the file system that what lies in the directory has nothing to do with each other. ext4 then gives every
/// sandbox a part of the disk for itself. Else a new one is put where others were removed just now, and without a
/// journal ext4 looks at each of their inodes before it makes a file. Other file systems do not know that.
fn keep_apart(dir: &Path) {
    let tell = || {
        let dir = File::open(dir)?;
        let flags = rustix::fs::ioctl_getflags(&dir)?;
        if !flags.contains(IFlags::TOPDIR) {
            rustix::fs::ioctl_setflags(&dir, flags | IFlags::TOPDIR)?;
        }
        io::Result::Ok(())
    };
    if let Err(error) = tell() {
        tracing::debug!(%error, dir = %dir.display(), "sandboxes are not kept apart on the disk");
    }
}

/// The file that says whose a directory is.
pub fn marker(dir: &Path) -> PathBuf {
    dir.join(MARKER)
}

/// Whether that very directory is a state directory, of any user. A file of the marker's name alone says nothing:
/// programs in a sandbox can make one.
pub fn is_state(dir: &Path) -> bool {
    let keeps = |meta: fs::Metadata| meta.is_dir();
    has_marker_text(dir) && fs::symlink_metadata(dir.join(SANDBOXES)).is_ok_and(keeps)
}

/// Of any format. What is in its place is neither followed nor waited for.
fn has_marker_text(dir: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::open(marker(dir), flags, Mode::empty()) else {
        return false;
    };
    let file = File::from(opened);
    let mut text = Vec::new();
    let wanted = MARKER_TEXT_OF_ANY_FORMAT;
    let limit = u64::try_from(wanted.len()).unwrap_or(u64::MAX);
    file.metadata().is_ok_and(|meta| meta.is_file())
        && file.take(limit).read_to_end(&mut text).is_ok()
        && text == wanted
}

/// Paths of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxDir {
    path: PathBuf,
}

impl SandboxDir {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn record(&self) -> PathBuf {
        self.path.join(RECORD)
    }

    pub fn docker_socket(&self) -> PathBuf {
        self.path.join(DOCKER_SOCKET)
    }

    /// Leads what connects to the sandbox's Docker socket to the daemon's, which says why there is none. A link, so that
    /// it costs neither a descriptor nor a listener per sandbox, and the next daemon answers too.
    pub(crate) fn link_docker_socket(&self) -> io::Result<()> {
        let target = Path::new("../..").join(DOCKER_SOCKET);
        match std::os::unix::fs::symlink(target, self.docker_socket()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    pub fn layers(&self) -> PathBuf {
        self.path.join("layers")
    }

    /// The image that holds the layers of a sandbox with a limited disk.
    pub fn disk(&self) -> PathBuf {
        self.path.join("disk.img")
    }

    /// Names the sandbox's control groups, a path per line: they are removed also where the record cannot be read.
    pub fn groups(&self) -> PathBuf {
        self.path.join("cgroups")
    }

    /// The two halves of the log, of which the inside writes one at a time.
    pub fn outputs(&self) -> [PathBuf; 2] {
        [
            self.path.join("output.0.log"),
            self.path.join("output.1.log"),
        ]
    }
}

/// When a write must have reached the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When it returns: what it says survives a power cut.
    Now,
    /// When the kernel gets to it: enough against a crash of the daemon, and not milliseconds slower.
    Soon,
}

/// Writes `dir/name` so that a reader sees the old bytes or the new ones, also after a crash.
pub fn write_atomic(
    dir: &Path,
    name: &str,
    bytes: &[u8],
    durability: Durability,
) -> io::Result<()> {
    write_then(dir, name, bytes, durability, |temp, path| {
        fs::rename(temp, path)
    })
}

/// Writes `dir/name` in the same way where nothing has that name yet; else it stays as it is.
pub fn write_new(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let link = |temp: &Path, path: &Path| {
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(rustix::fs::CWD, temp, rustix::fs::CWD, path, flags) {
            Err(rustix::io::Errno::EXIST) => fs::remove_file(temp),
            other => Ok(other?),
        }
    };
    write_then(dir, name, bytes, Durability::Now, link)
}

fn write_then(
    dir: &Path,
    name: &str,
    bytes: &[u8],
    durability: Durability,
    place: impl FnOnce(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let temp = dir.join(format!(
        ".{name}.{}.{number}{TEMP_SUFFIX}",
        std::process::id()
    ));
    let written = private()
        .create_new(true)
        .open(&temp)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            match durability {
                Durability::Now => file.sync_all(),
                Durability::Soon => Ok(()),
            }
        })
        .and_then(|()| place(&temp, &dir.join(name)));
    if let Err(e) = written {
        // The error that matters is the first one.
        drop(fs::remove_file(&temp));
        return Err(e);
    }
    match durability {
        Durability::Now => File::open(dir)?.sync_all(),
        Durability::Soon => Ok(()),
    }
}

/// Whether a file name is one that [`write_atomic`] leaves behind when it is interrupted.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(TEMP_SUFFIX)
}

/// Makes the directory and its parents, all 0700.
pub fn make_private_dirs(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Options for a file that is the user's alone.
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

/// What to do when the state directory, or something in it, cannot be used for that reason.
pub fn place_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::ReadOnlyFilesystem => ANOTHER_PLACE,
        kind if FULL.contains(&kind) => FREE_SPACE,
        _ => "sbx diagnose",
    }
}

/// What to do about an error with a file that a full disk is the cause of. Not for others: making a namespace fails with
/// ENOSPC too, where there are as many as the kernel allows.
pub(crate) fn full_disk_hint(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|io| FULL.contains(&io.kind())) {
            return Some(FREE_SPACE);
        }
        next = error.source();
    }
    None
}

pub(crate) fn io_error(path: &Path, source: io::Error) -> StateError {
    StateError::Io {
        path: path.to_path_buf(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn state(path: &Path) -> StateDir {
        StateDir::locate(Path::new("/nowhere"), Some(path)).unwrap()
    }

    #[test]
    fn another_products_directory_is_left_to_it() {
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path();
        let usual = home.join(".docker/sandboxes");
        let root = |xdg: Option<&str>| {
            let xdg = xdg.map(|name| home.join(name));
            let found = StateDir::find(home, None, xdg.as_deref()).unwrap();
            found.root().strip_prefix(home).unwrap().to_owned()
        };
        assert_eq!(root(None), Path::new(".docker/sandboxes"));
        fs::create_dir_all(&usual).unwrap();
        assert_eq!(root(None), Path::new(".docker/sandboxes"), "empty");
        File::create(usual.join("theirs")).unwrap();
        assert_eq!(root(None), Path::new(".local/state/sbx"));
        assert_eq!(root(Some("x")), Path::new("x/sbx"));
        let relative = StateDir::find(home, None, Some(Path::new("relative"))).unwrap();
        assert_eq!(relative.root(), home.join(".local/state/sbx"));
        let given = home.join("given");
        let given = StateDir::find(home, Some(&given), None).unwrap();
        assert_eq!(given.root(), home.join("given"));
        // It stays the one in use when the other product is gone.
        StateDir::find(home, None, None).unwrap().claim().unwrap();
        fs::remove_file(usual.join("theirs")).unwrap();
        assert_eq!(root(None), Path::new(".local/state/sbx"));
        // One that was ours all along stays ours.
        StateDir::locate(home, None).unwrap().claim().unwrap();
        assert_eq!(root(None), Path::new(".docker/sandboxes"));
    }

    #[test]
    fn sbx_home_is_stronger_than_home() {
        let home = Path::new("/home/u");
        let plain = StateDir::locate(home, None).unwrap();
        assert_eq!(plain.root(), Path::new("/home/u/.docker/sandboxes"));
        assert_eq!(
            plain.sandbox(&SandboxName::parse("ab").unwrap()).record(),
            Path::new("/home/u/.docker/sandboxes/vm/ab/sandbox.json")
        );
        assert_eq!(
            state(Path::new("/s")).socket(),
            Path::new("/s/sandboxd.sock")
        );
        assert!(matches!(
            StateDir::locate(home, Some(Path::new("relative"))),
            Err(StateError::Relative { .. })
        ));
    }

    #[test]
    fn claiming_makes_private_directories() {
        let temp = tempfile::tempdir().unwrap();
        let state = state(&temp.path().join("a/b"));
        assert!(!state.is_claimed());
        assert_eq!(state.names().unwrap(), vec![]);
        assert!(!temp.path().join("a").exists(), "reading created something");
        state.claim().unwrap();
        state.claim().unwrap();
        assert!(state.is_claimed());
        assert_eq!(mode(state.root()), 0o700);
        assert_eq!(mode(&state.sandboxes()), 0o700);
        assert_eq!(mode(&state.root().join(MARKER)), 0o600);
    }

    #[test]
    fn a_place_that_another_user_can_rename_is_refused_and_left_as_it_is() {
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let state = state(&temp.path().join("a/b"));
        for refused in [state.claim(), state.check_own()] {
            let error = refused.unwrap_err();
            assert!(matches!(&error, StateError::Renamable { above, .. } if above == temp.path()));
            assert!(error.hint().unwrap().contains("SBX_HOME"));
        }
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_group_of_a_directory_above_is_not_taken_over() {
        if !rustix::process::geteuid().is_root() {
            return; // an ordinary user may be in one group only
        }
        let temp = tempfile::tempdir().unwrap();
        let own = rustix::process::getegid().as_raw();
        std::os::unix::fs::chown(temp.path(), None, Some(own + 1)).unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o3775)).unwrap();
        let state = state(&temp.path().join("state"));
        state.claim().unwrap();
        for dir in [
            state.root().to_owned(),
            state.sandboxes(),
            state.templates(),
        ] {
            let gid = fs::metadata(&dir).unwrap().gid();
            assert_eq!((gid, mode(&dir)), (own, 0o700), "{}", dir.display());
        }
    }

    #[test]
    fn the_directory_of_another_product_is_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        let theirs = temp.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        File::create(theirs.join("state.db")).unwrap();
        fs::set_permissions(&theirs, fs::Permissions::from_mode(0o755)).unwrap();
        let error = state(&theirs).claim().unwrap_err();
        assert!(matches!(error, StateError::Foreign { .. }));
        assert!(error.hint().unwrap().contains("SBX_HOME"));
        assert_eq!(mode(&theirs), 0o755);
        assert_eq!(fs::read_dir(&theirs).unwrap().count(), 1);
    }

    #[test]
    fn settings_may_be_there_first() {
        let temp = tempfile::tempdir().unwrap();
        let settings = |dir: &str| temp.path().join(dir).join(SETTINGS);
        let place = |dir: &str| {
            fs::create_dir(temp.path().join(dir)).unwrap();
            state(&temp.path().join(dir))
        };
        let ours = place("ours");
        let write =
            |path: PathBuf, text: &[u8]| File::create(path).unwrap().write_all(text).unwrap();
        write(settings("ours"), b"{\"auto_stop_seconds\": 5}");
        assert!(ours.is_unused().unwrap());
        ours.claim().unwrap();
        assert!(ours.settings().unwrap().auto_stop.is_some());
        assert!(!ours.is_unused().unwrap());
        for text in ["[]", "[5]", ""] {
            write(settings("ours"), text.as_bytes());
            let refused = ours.settings().unwrap_err();
            assert!(matches!(refused, StateError::Settings { .. }), "{text}");
        }

        let linked = place("linked");
        std::os::unix::fs::symlink(settings("ours"), settings("linked")).unwrap();
        let directory = place("directory");
        fs::create_dir(settings("directory")).unwrap();
        let more = place("more");
        write(settings("more"), b"{}");
        write(temp.path().join("more/theirs"), b"");
        for theirs in [linked, directory, more] {
            let error = theirs.claim().unwrap_err();
            assert!(matches!(error, StateError::Foreign { .. }), "{error:?}");
        }
    }

    #[test]
    fn what_a_removal_may_leave_is_used_again() {
        let temp = tempfile::tempdir().unwrap();
        let left = state(temp.path());
        for dir in [SANDBOXES, TEMPLATES] {
            fs::create_dir(temp.path().join(dir)).unwrap();
        }
        for file in [LOCK, LOG] {
            File::create(temp.path().join(file)).unwrap();
        }
        left.claim().unwrap();
        fs::remove_file(temp.path().join(MARKER)).unwrap();
        fs::create_dir(left.sandboxes().join("theirs")).unwrap();
        let error = left.claim().unwrap_err();
        assert!(matches!(error, StateError::Foreign { .. }), "{error:?}");
    }

    #[test]
    fn a_state_directory_is_more_than_a_name() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        fs::create_dir(at(SANDBOXES)).unwrap();
        assert!(!is_state(temp.path()));
        File::create(at(MARKER)).unwrap();
        assert!(!is_state(temp.path()), "without the text");
        assert!(state(temp.path()).is_claimed(), "one claims it just now");
        fs::remove_file(at(MARKER)).unwrap();
        File::create(at("text"))
            .unwrap()
            .write_all(MARKER_TEXT)
            .unwrap();
        std::os::unix::fs::symlink("text", at(MARKER)).unwrap();
        assert!(!is_state(temp.path()), "a link");
        fs::remove_file(at(MARKER)).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, at(MARKER), mode).unwrap();
        assert!(!is_state(temp.path()), "a pipe without a writer");
        fs::remove_file(at(MARKER)).unwrap();
        fs::rename(at("text"), at(MARKER)).unwrap();
        assert!(is_state(temp.path()));
        fs::remove_dir(at(SANDBOXES)).unwrap();
        assert!(!is_state(temp.path()), "without sandboxes");
    }

    #[test]
    fn a_full_disk_is_the_cause_however_deep() {
        let io = || io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        let deep = io_error(Path::new("/state/file"), io());
        let unrelated = io_error(Path::new("/state/file"), io::ErrorKind::NotFound.into());
        assert_eq!(full_disk_hint(&io()), Some(FREE_SPACE));
        assert_eq!(full_disk_hint(&deep), Some(FREE_SPACE));
        assert_eq!(deep.hint(), Some(FREE_SPACE));
        assert_eq!(full_disk_hint(&unrelated), None);
    }

    #[test]
    fn atomic_writes_replace_and_leave_nothing_behind() {
        let temp = tempfile::tempdir().unwrap();
        write_atomic(temp.path(), "f", b"one", Durability::Now).unwrap();
        write_atomic(temp.path(), "f", b"two", Durability::Soon).unwrap();
        assert_eq!(fs::read(temp.path().join("f")).unwrap(), b"two");
        assert_eq!(mode(&temp.path().join("f")), 0o600);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    }
}
