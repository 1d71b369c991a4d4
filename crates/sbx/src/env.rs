//! The caller's environment, read once by `main` and passed on as a value.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sbx_engine::StateDir;
use sbx_engine::policy::default_proxy_config;

use crate::failure::{Failure, Kind};

/// Overrides the state directory.
pub(crate) const SBX_HOME: &str = "SBX_HOME";

/// How a command's streams travel: `descriptors` (the default) or `frames`. For the engine's own tests: frames are what a
/// sandbox will need that does not share the host's kernel.
const SBX_EXEC_TRANSPORT: &str = "SBX_EXEC_TRANSPORT";

/// The variables that a daemon inherits; no others are passed on, as they may be secrets.
const FOR_DAEMON: [&str; 19] = [
    "HOME",
    "PATH",
    "USER",
    SBX_HOME,
    "LANG",
    "TZ",
    "SANDBOXD_LOG_LEVEL",
    "SBX_AUTO_STOP_SECONDS",
    "SBX_CACHE_MAX_MIB",
    "SBX_GO_BUILD_CACHE",
    "SBX_MODE",
    "DOCKER_SANDBOXES_PROXY",
    "DOCKER_SANDBOXES_NO_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Variables for tool chains, git's configuration, locale and time zone that a sandbox inherits (and `LC_*`).
const FOR_SANDBOX: [&str; 20] = [
    "RUSTUP_HOME",
    "CARGO_HOME",
    "PYENV_ROOT",
    "GOROOT",
    "GOPATH",
    "GOMODCACHE",
    "GOCACHE",
    "GRADLE_USER_HOME",
    "npm_config_cache",
    "PIP_CACHE_DIR",
    "GOTOOLCHAIN",
    "JAVA_HOME",
    "NVM_DIR",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_SYSTEM",
    "XDG_CONFIG_HOME",
    "LANG",
    "LANGUAGE",
    "TZ",
];

/// How the streams of a command travel between the client and the sandbox's init.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Pipe ends or a pty master are passed over the socket (`SCM_RIGHTS`): both sides share a kernel.
    Descriptors,
    /// As frames on the connection itself.
    Frames,
}

/// Environment variables of the calling process.
#[derive(Debug, Default)]
pub(crate) struct Env {
    vars: BTreeMap<OsString, OsString>,
}

impl Env {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where this program reads its environment"
    )]
    pub(crate) fn from_process() -> Self {
        Self {
            vars: std::env::vars_os().collect(),
        }
    }

    #[cfg(test)]
    pub(crate) fn of(pairs: &[(&str, &str)]) -> Self {
        Self {
            vars: pairs
                .iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        }
    }

    pub(crate) fn get(&self, key: impl AsRef<OsStr>) -> Option<&OsStr> {
        self.vars.get(key.as_ref()).map(OsString::as_os_str)
    }

    /// The same environment with another state directory.
    pub(crate) fn with_state(mut self, root: &Path) -> Self {
        self.vars.insert(SBX_HOME.into(), root.into());
        self
    }

    pub(crate) fn no_colour(&self) -> bool {
        self.get("NO_COLOR").is_some_and(|value| !value.is_empty())
            || self.get("TERM").is_some_and(|terminal| terminal == "dumb")
    }

    /// The variable's value when it is set, not empty, and text.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.to_str().filter(|value| !value.is_empty())
    }

    pub(crate) fn home(&self) -> Option<PathBuf> {
        self.get("HOME")
            .filter(|home| !home.is_empty())
            .map(PathBuf::from)
    }

    pub(crate) fn exec_transport(&self) -> Result<Transport, Failure> {
        match self.text(SBX_EXEC_TRANSPORT) {
            None | Some("descriptors") => Ok(Transport::Descriptors),
            Some("frames") => Ok(Transport::Frames),
            Some(other) => Err(Failure::new(
                Kind::BadRequest,
                format!(
                    "invalid {SBX_EXEC_TRANSPORT} `{}`: expected `descriptors` or `frames`",
                    other.escape_debug()
                ),
            )),
        }
    }

    fn sbx_home(&self) -> Option<&Path> {
        self.get(SBX_HOME)
            .filter(|root| !root.is_empty())
            .map(Path::new)
    }

    /// The proxy configuration that new sandboxes start with.
    pub(crate) fn default_proxy_config(&self) -> PathBuf {
        default_proxy_config(&self.home().unwrap_or_default(), self.sbx_home())
    }

    /// Locates the state directory without creating it.
    pub(crate) fn state_dir(&self) -> Result<StateDir, Failure> {
        let sbx_home = self.sbx_home();
        let home = self.home();
        if home.is_none() && sbx_home.is_none() {
            return Err(
                Failure::failed("cannot locate the state directory: HOME is not set")
                    .hint(format!("set {SBX_HOME}=/some/directory")),
            );
        }
        let states = self.get("XDG_STATE_HOME").map(Path::new);
        StateDir::find(&home.unwrap_or_default(), sbx_home, states).map_err(Failure::from)
    }

    pub(crate) fn for_daemon(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.vars.iter().filter_map(|(key, value)| {
            let wanted =
                FOR_DAEMON.iter().any(|name| key == name) || key.as_bytes().starts_with(b"XDG_");
            wanted.then_some((key.as_os_str(), value.as_os_str()))
        })
    }

    pub(crate) fn for_sandbox(&self) -> BTreeMap<String, String> {
        self.vars
            .iter()
            .filter_map(|(key, value)| Some((key.to_str()?, value.to_str()?)))
            .filter(|(key, _)| FOR_SANDBOX.contains(key) || key.starts_with("LC_"))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_variables_are_passed_on() {
        let env = Env::of(&[
            ("HOME", "/h"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("LC_ALL", "C"),
            ("XDG_STATE_HOME", "/s"),
            ("CARGO_HOME", "/c"),
        ]);
        let daemon: Vec<_> = env.for_daemon().map(|(key, _)| key).collect();
        assert_eq!(daemon, ["HOME", "XDG_STATE_HOME"]);
        let sandbox: Vec<_> = env.for_sandbox().into_keys().collect();
        assert_eq!(sandbox, ["CARGO_HOME", "LC_ALL"]);
    }

    #[test]
    fn descriptors_are_passed_unless_frames_are_asked_for() {
        let transport = |value| Env::of(&[(SBX_EXEC_TRANSPORT, value)]).exec_transport();
        for usual in ["", "descriptors"] {
            assert_eq!(transport(usual).unwrap(), Transport::Descriptors);
        }
        assert_eq!(transport("frames").unwrap(), Transport::Frames);
        assert!(transport("pigeons").is_err());
    }

    #[test]
    fn sbx_home_moves_the_state() {
        let env = Env::of(&[("HOME", "/h")]);
        assert_eq!(
            env.state_dir().unwrap().root(),
            Path::new("/h/.docker/sandboxes")
        );
        let env = Env::of(&[("HOME", "/h"), ("SBX_HOME", "/elsewhere")]);
        assert_eq!(env.state_dir().unwrap().root(), Path::new("/elsewhere"));
        assert!(Env::of(&[]).state_dir().is_err());
    }
}
