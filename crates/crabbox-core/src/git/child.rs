//! The git child: found, shielded, run and read to the end.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::{Code, Failure};

/// The caller's environment, as values.
pub type Env = BTreeMap<OsString, OsString>;

/// A variable that is always set and empty, for `--config-env`.
pub(super) const EMPTY: &str = "CRABBOX_EMPTY";

/// Where the variables that place a repository and the user's own configuration come from. Everything else stays
/// out: `GIT_CONFIG_PARAMETERS`, `GIT_EXEC_PATH`, `GIT_TRACE*` and the like say what git runs and writes.
/// With `SUDO_UID` git takes the repositories of the user behind `sudo` for root's own.
const KEPT: [&str; 14] = [
    "HOME",
    "USER",
    "LANG",
    "XDG_CONFIG_HOME",
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_CEILING_DIRECTORIES",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
    "SUDO_UID",
    "TEMP",
];
const KEPT_PREFIXES: [&str; 2] = ["LC_", "TMP"];

const FIXED: [(&str, &str); 6] = [
    ("LC_ALL", "C"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_TERMINAL_PROMPT", "0"),
    // A blob that a partial clone lacks would be fetched, by programs that the repository names: none of it, and for
    // versions of git that do not know the first variable, no transport either.
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_ALLOW_PROTOCOL", "none"),
    (EMPTY, ""),
];

/// Stand above the repository's own configuration. The empty monitor is "none" for every version of git; `false`
/// was the name of a program once.
const SHIELD: [&str; 7] = [
    "--no-pager",
    "-c",
    "core.fsmonitor=",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "submodule.recurse=false",
];

const USUAL_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
const MOST_OUTPUT: usize = 1 << 30;
const BUFFER: usize = 64 << 10;
const MOST_COMPLAINTS: u64 = 64 << 10;

/// The git executable with the environment that its children get.
#[derive(Debug, Clone)]
pub struct Git {
    program: PathBuf,
    env: Env,
}

pub(super) struct Answer {
    status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

impl Git {
    /// Finds git on the PATH of `env`. Relative entries do not count: the current directory is the checkout, and a
    /// `git` in it is not the user's.
    pub fn find(env: &Env) -> Result<Self, Failure> {
        let path = env.get(OsStr::new("PATH"));
        let path = path.map_or(OsStr::new(USUAL_PATH), OsString::as_os_str);
        let dirs = || std::env::split_paths(path).filter(|dir| dir.is_absolute());
        let candidates = dirs().map(|dir| dir.join("git"));
        let Some(program) = candidates.into_iter().find(|file| is_program(file)) else {
            let message = "`git` is not on PATH";
            return Err(Failure::new(Code::Local, message).hint("install git"));
        };
        let kept = env.iter().filter(|(name, _)| is_kept(name));
        let mut env: Env = kept.map(|(n, v)| (n.clone(), v.clone())).collect();
        // Cannot fail: the parts come from a split.
        let path = std::env::join_paths(dirs()).unwrap_or_else(|_| USUAL_PATH.into());
        env.insert("PATH".into(), path);
        env.extend(FIXED.map(|(name, value)| (name.into(), value.into())));
        Ok(Self { program, env })
    }

    /// Whether the user says where the repository is, instead of having it searched for.
    pub(super) fn names_its_repository(&self) -> bool {
        ["GIT_DIR", "GIT_WORK_TREE"]
            .iter()
            .any(|name| self.env.contains_key(OsStr::new(name)))
    }

    /// The same git, for exactly this repository wherever it is started.
    pub(super) fn pinned(mut self, git_dir: &Path, root: &Path) -> Self {
        // A linked work tree's own directory says where the common one is.
        self.env.remove(OsStr::new("GIT_COMMON_DIR"));
        self.env.insert("GIT_DIR".into(), git_dir.into());
        self.env.insert("GIT_WORK_TREE".into(), root.into());
        self
    }

    /// Runs git in `dir` to its end.
    pub(super) fn ask<A: AsRef<OsStr>>(
        &self,
        dir: &Path,
        args: impl IntoIterator<Item = A>,
    ) -> Result<Answer, Failure> {
        let mut stdout = Vec::new();
        let answer = self.stream(dir, args, &mut |bytes| stdout.extend_from_slice(bytes))?;
        Ok(Answer { stdout, ..answer })
    }

    /// As [`Git::ask`], but the output goes to `out` as it comes.
    pub(super) fn stream<A: AsRef<OsStr>>(
        &self,
        dir: &Path,
        args: impl IntoIterator<Item = A>,
        out: &mut dyn FnMut(&[u8]),
    ) -> Result<Answer, Failure> {
        let mut command = Command::new(&self.program);
        command
            .args(SHIELD)
            .args(args)
            .current_dir(dir)
            .env_clear()
            .envs(&self.env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let failed = |what: &str, error: io::Error| {
            let message = format!("{what} `{}` in {}", self.program.display(), dir.display());
            Failure::new(Code::Local, message).because(&error)
        };
        let mut child = command.spawn().map_err(|e| failed("start", e))?;
        let read = read_both(&mut child, out);
        if read.is_err() {
            // Already gone is as good.
            let _ = child.kill();
        }
        let status = child.wait().map_err(|e| failed("wait for", e))?;
        let stderr = read.map_err(|e| failed("read from", e))?;
        Ok(Answer {
            status,
            stdout: Vec::new(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        })
    }
}

impl Answer {
    pub(super) fn succeeded(&self) -> bool {
        self.status.success()
    }

    pub(super) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// git's own words as the cause.
    pub(super) fn failure(&self, code: Code, what: &str) -> Failure {
        let mut failure = Failure::new(code, what);
        let words = self.stderr.lines().find(|line| !line.trim().is_empty());
        failure.causes.push(match words {
            Some(words) => words.trim().to_owned(),
            None => format!("git ended with {}", self.status),
        });
        failure
    }
}

fn is_kept(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    KEPT.contains(&name) || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn is_program(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Reads both streams at once: a child that fills the one that nobody reads would wait for ever. Gives back the
/// beginning of stderr.
fn read_both(child: &mut Child, out: &mut dyn FnMut(&[u8])) -> io::Result<Vec<u8>> {
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("the child has no output"));
    };
    std::thread::scope(|scope| {
        let complaints = scope.spawn(move || beginning(stderr));
        // Ends with the pipe closed: a child that is cut off ends as well, and with it the other stream.
        let read = read_all(stdout, out);
        let complaints = complaints.join();
        read?;
        complaints.map_err(|_| io::Error::other("the reader of stderr ended early"))?
    })
}

fn read_all(mut stdout: impl Read, out: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    let mut left = MOST_OUTPUT;
    loop {
        let read = match stdout.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        left = left
            .checked_sub(read)
            .ok_or_else(|| io::Error::other("more than 1 GiB of output"))?;
        out(buffer.get(..read).unwrap_or_default());
    }
}

fn beginning(mut stderr: impl Read) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    let mut bounded = stderr.by_ref().take(MOST_COMPLAINTS);
    bounded.read_to_end(&mut kept)?;
    io::copy(&mut stderr, &mut io::sink())?;
    Ok(kept)
}

#[cfg(test)]
impl Git {
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    pub(super) fn variables(&self) -> Vec<String> {
        let names = self.env.keys();
        names.map(|n| n.to_string_lossy().into_owned()).collect()
    }
}
