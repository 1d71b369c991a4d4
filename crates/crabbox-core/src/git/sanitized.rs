//! The configuration that git gets to see instead of the repository's own.
//!
//! A program in a sandbox can write all of `.git`, also between two calls of git. Its configuration names programs:
//! filters, monitors, helpers. So git never reads it. The file is read here, once and without includes, and of what it
//! says only what names no program goes into a file of ours. That file lies in a
//! directory which git takes for the common part of the repository, and in which everything else is a link to the
//! repository's.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::discover::{self, Location};
use super::{Env, config};
use crate::{Code, Failure, small_file};

/// What git needs of the common part besides its configuration.
const LINKED: [&str; 5] = ["info", "objects", "packed-refs", "refs", "reftable"];

/// How files are compared and how the repository is stored. Values are words and numbers.
const SAFE_KEYS: [&str; 17] = [
    "core.autocrlf",
    "core.bigfilethreshold",
    "core.checkstat",
    "core.eol",
    "core.filemode",
    "core.ignorecase",
    "core.longpaths",
    "core.precomposeunicode",
    "core.protecthfs",
    "core.protectntfs",
    "core.repositoryformatversion",
    "core.safecrlf",
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
    "core.symlinks",
    "core.trustctime",
    "index.sparse",
];
const EXTENSIONS: &str = "extensions.";
/// The first fetches what is missing; the second is a file that is read here.
const UNSAFE_EXTENSIONS: [&str; 2] = ["extensions.partialclone", "extensions.worktreeconfig"];

/// Where the directory may lie, besides `TMPDIR`.
const TEMP_BASES: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

#[derive(Debug)]
pub(super) struct SanitizedGitDir {
    dir: TempDir,
    settings: Vec<(String, Vec<u8>)>,
}

impl SanitizedGitDir {
    pub(super) fn new(location: &Location, env: &Env) -> Result<Self, Failure> {
        let failed = |error: &io::Error| {
            let what = "cannot create a temporary directory for git configuration";
            Failure::new(Code::Local, what).because(error)
        };
        let dir = temp_dir_outside(location, env).map_err(|error| failed(&error))?;
        let mut sanitized = Self {
            dir,
            settings: Vec::new(),
        };
        for name in LINKED {
            symlink(location.common_dir.join(name), sanitized.path().join(name))
                .map_err(|error| failed(&error))?;
        }
        sanitized.read_config(&location.common_dir.join("config"))?;
        if sanitized.is_true("extensions.worktreeconfig") {
            sanitized.read_config(&location.git_dir.join("config.worktree"))?;
        }
        let config = sanitized.path().join("config");
        File::create_new(config)
            .and_then(|mut file| file.write_all(safe_settings(&sanitized.settings).as_bytes()))
            .map_err(|error| failed(&error))?;
        Ok(sanitized)
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// What the repository's configuration says: the first value, as git gives the first address of a remote.
    pub(super) fn first(&self, key: &str) -> Option<&[u8]> {
        let mut all = self.settings.iter();
        all.find(|(name, _)| name == key).map(|(_, v)| v.as_slice())
    }

    pub(super) fn last(&self, key: &str) -> Option<&[u8]> {
        let mut all = self.settings.iter().rev();
        all.find(|(name, _)| name == key).map(|(_, v)| v.as_slice())
    }

    pub(super) fn is_true(&self, key: &str) -> bool {
        self.last(key).is_some_and(discover::is_true)
    }

    /// The work tree that the repository names.
    pub(super) fn work_tree(&self, git_dir: &Path) -> Option<PathBuf> {
        let named = self.last("core.worktree")?;
        Some(git_dir.join(OsStr::from_bytes(named)))
    }

    fn read_config(&mut self, path: &Path) -> Result<(), Failure> {
        let what = || format!("cannot read git configuration `{}`", path.display());
        let text = match small_file::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Failure::new(Code::Local, what()).because(&error)),
        };
        let settings = config::parse(&text).map_err(|line| {
            let mut failure = Failure::new(Code::Local, what());
            failure.causes.push(format!("bad config line {line}"));
            failure
        })?;
        self.settings.extend(settings);
        Ok(())
    }
}

fn safe_settings(settings: &[(String, Vec<u8>)]) -> String {
    let mut text = String::new();
    for (key, value) in settings {
        let is_extension =
            key.starts_with(EXTENSIONS) && !UNSAFE_EXTENSIONS.contains(&key.as_str());
        let Some((section, name)) = key.split_once('.') else {
            continue;
        };
        let words = |text: &[u8]| {
            text.iter()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        };
        if (is_extension || SAFE_KEYS.contains(&key.as_str()))
            && words(name.as_bytes())
            && words(value)
        {
            let value = String::from_utf8_lossy(value);
            text.push_str(&format!("[{section}]\n\t{name} = \"{value}\"\n"));
        }
    }
    text
}

/// A new directory outside the checkout: a process that can write the checkout could write our configuration as well.
fn temp_dir_outside(location: &Location, env: &Env) -> io::Result<TempDir> {
    let wanted = env.get(OsStr::new("TMPDIR")).map(PathBuf::from);
    let bases = wanted.into_iter().chain(TEMP_BASES.map(PathBuf::from));
    let theirs = [&location.top, &location.git_dir, &location.common_dir];
    let mut last = io::Error::other("all temporary directories are inside the checkout");
    for base in bases.filter(|base| base.is_absolute()) {
        let base = match base.canonicalize() {
            Ok(base) if theirs.iter().any(|dir| base.starts_with(dir)) => continue,
            Ok(base) => base,
            Err(error) => {
                last = error;
                continue;
            }
        };
        match tempfile::Builder::new()
            .prefix("crabbox-git-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(base)
        {
            Ok(dir) => return Ok(dir),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_under_known_names_are_taken() {
        let text = b"[core]\nbare = false\nfilemode\nfsmonitor = /x\neol = \"lf\\n[filter \\\"x\\\"]\"\nexcludesfile = /x\n\
            [filter \"evil\"]\nclean = id\n[include]\npath = x\n[extensions]\nobjectformat = sha256\n\
            partialclone = origin\nworktreeconfig = true\n[extensions \"a\"]\nb = c\n";
        let settings = config::parse(text).unwrap();
        assert_eq!(
            safe_settings(&settings),
            "[core]\n\tfilemode = \"true\"\n[extensions]\n\tobjectformat = \"sha256\"\n"
        );
    }

    #[test]
    fn the_directory_is_never_in_the_checkout() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("tmp")).unwrap();
        let location = |top: &Path| Location {
            top: top.to_owned(),
            git_dir: top.join(".git"),
            common_dir: top.join(".git"),
        };
        let env = Env::from([("TMPDIR".into(), top.join("tmp").into())]);
        let made = temp_dir_outside(&location(&top), &env).unwrap();
        assert!(!made.path().starts_with(&top));
        assert!(temp_dir_outside(&location(Path::new("/")), &env).is_err());
        let elsewhere = temp_dir_outside(&location(&top.join("repo")), &env).unwrap();
        assert!(elsewhere.path().starts_with(top.join("tmp")));
    }
}
