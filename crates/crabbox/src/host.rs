//! This machine, read once: environment, directories, terminals.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use crabbox_core::{Code, Failure, settings};

#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(crate) env: BTreeMap<OsString, OsString>,
    /// Where we are, or were: see [`Self::cwd_is_gone`].
    pub(crate) cwd: PathBuf,
    /// The directory is gone. What needs one says so; the rest works.
    pub(crate) cwd_is_gone: bool,
    /// The directory of our own program.
    pub(crate) beside: Option<PathBuf>,
    pub(crate) stdin_is_terminal: bool,
    /// Stdin, stdout and stderr are terminals.
    pub(crate) all_are_terminals: bool,
}

impl Host {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where this program reads its environment"
    )]
    pub(crate) fn read() -> std::io::Result<Self> {
        let own = std::env::current_exe().ok();
        let (cwd, cwd_is_gone) = match std::env::current_dir() {
            Ok(cwd) => (cwd, false),
            // Its old name with a remark of the kernel's, under which nothing is found.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => (
                std::fs::read_link("/proc/self/cwd").unwrap_or_default(),
                true,
            ),
            Err(error) => return Err(error),
        };
        Ok(Self {
            env: std::env::vars_os().collect(),
            cwd,
            cwd_is_gone,
            beside: own.and_then(|path| path.parent().map(Path::to_path_buf)),
            stdin_is_terminal: std::io::stdin().is_terminal(),
            all_are_terminals: std::io::stdin().is_terminal()
                && std::io::stdout().is_terminal()
                && std::io::stderr().is_terminal(),
        })
    }

    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        self.env.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// A directory that the environment names, if it does.
    fn directory(&self, name: &str) -> Option<PathBuf> {
        self.get(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    }

    /// `None` when nothing says where the user's configuration is.
    pub(crate) fn config_home(&self) -> Option<PathBuf> {
        self.directory("XDG_CONFIG_HOME")
            .or_else(|| Some(self.directory("HOME")?.join(".config")))
    }

    /// Where claims and records are. Without a place for them nothing may be made: it could not be found again.
    pub(crate) fn state(&self) -> Result<PathBuf, Failure> {
        let home = self.directory("XDG_STATE_HOME");
        let state = home.map(|home| home.join("crabbox"));
        state
            .or_else(|| Some(self.config_home()?.join("crabbox").join("state")))
            .ok_or_else(|| {
                no_home(
                    "state",
                    "none of XDG_STATE_HOME, XDG_CONFIG_HOME and HOME is an absolute path",
                )
            })
    }

    pub(crate) fn user_file(&self) -> Result<PathBuf, Failure> {
        let home = self.config_home();
        home.map(|home| settings::user_file(&home)).ok_or_else(|| {
            no_home(
                "configuration",
                "neither XDG_CONFIG_HOME nor HOME is an absolute path",
            )
        })
    }

    /// Variables that are text: settings can come from no others.
    pub(crate) fn utf8_env(&self) -> BTreeMap<String, String> {
        let text = |(name, value): (&OsString, &OsString)| {
            Some((name.to_str()?.to_owned(), value.to_str()?.to_owned()))
        };
        self.env.iter().filter_map(text).collect()
    }

    /// The root of the repository that we are in, found without asking git: it is needed by every command.
    pub(crate) fn repository(&self) -> Option<PathBuf> {
        self.cwd
            .ancestors()
            .find(|dir| dir.join(".git").exists())
            .map(Path::to_path_buf)
    }
}

fn no_home(directory: &str, why: &str) -> Failure {
    let mut failure = Failure::new(
        Code::State,
        format!("cannot find the {directory} directory"),
    );
    failure.causes.push(why.to_owned());
    failure.hint("set HOME to your home directory")
}
