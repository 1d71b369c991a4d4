//! The state directory: where everything of the engine lies. Whose it is says [`ownership`], how files in it are written
//! [`atomic_write`].

mod ancestors;
mod atomic_write;
pub(crate) mod copy_layers;
pub mod daemon_lock;
mod error;
pub(crate) mod open_beneath;
mod ownership;
pub mod remove_tree;
mod sandbox_dir;
pub mod settings;
pub mod socket;
pub(crate) mod tree_size;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use sbx_proto::object;
use serde_json::Value;

use crate::sandbox::name::SandboxName;
use crate::state::settings::{Settings, Values};

pub use atomic_write::{
    Durability, is_temporary, make_private_dirs, private, write_atomic, write_new,
};
pub use error::{ANOTHER_PLACE, StateError, place_hint};
pub(crate) use error::{full_disk_hint, io_error};
pub use ownership::{is_state, marker};
pub use sandbox_dir::SandboxDir;
pub(crate) use sandbox_dir::Trashed;

use ownership::MARKER;

pub const SOCKET: &str = "sandboxd.sock";
pub const EXEC_SOCKET: &str = "exec.sock";
/// Where a Docker client of a sandbox connects; in the state directory itself lies the socket that all of them lead to.
pub const DOCKER_SOCKET: &str = "docker.sock";
pub const RECORD: &str = "sandbox.json";
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

#[cfg(test)]
mod tests;
