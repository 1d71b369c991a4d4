//! The git child: found, shielded, run and read to the end.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::{Code, Failure, search_path};

/// The caller's environment, as values.
pub type Env = BTreeMap<OsString, OsString>;

/// A variable that is always set and empty, for `--config-env`.
pub(super) const EMPTY_VARIABLE: &str = "CRABBOX_EMPTY";

/// Where the variables that place a repository and the user's own configuration come from. Everything else stays
/// out: `GIT_CONFIG_PARAMETERS`, `GIT_EXEC_PATH`, `GIT_TRACE*` and the like say what git runs and writes.
/// With `SUDO_UID` git takes the repositories of the user behind `sudo` for root's own.
const KEPT_VARIABLES: [&str; 14] = [
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
const KEPT_VARIABLE_PREFIXES: [&str; 2] = ["LC_", "TMP"];

const FIXED_VARIABLES: [(&str, &str); 6] = [
    ("LC_ALL", "C"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_TERMINAL_PROMPT", "0"),
    // A blob that a partial clone lacks would be fetched, by programs that the repository names: none of it, and for
    // versions of git that do not know the first variable, no transport either.
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_ALLOW_PROTOCOL", "none"),
    (EMPTY_VARIABLE, ""),
];

/// Stand above the repository's own configuration. The empty monitor is "none" for every version of git; `false`
/// was the name of a program once.
const SAFE_OPTIONS: [&str; 7] = [
    "--no-pager",
    "-c",
    "core.fsmonitor=",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "submodule.recurse=false",
];

const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
const MAX_OUTPUT: usize = 1 << 30;
const BUFFER: usize = 64 << 10;
const MAX_STDERR: usize = 64 << 10;

/// A question about a few small files.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// A look at every file there is.
const SCAN_TIMEOUT: Duration = Duration::from_secs(120);

/// The git executable with the environment that its children get.
#[derive(Debug, Clone)]
pub struct Git {
    program: PathBuf,
    env: Env,
    pub(super) query_timeout: Duration,
    pub(super) scan_timeout: Duration,
}

/// One call: git, and how long it may take.
pub(super) struct Call<'g> {
    git: &'g Git,
    timeout: Duration,
}

pub(super) struct Answer {
    status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

impl Git {
    /// Which git it is.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Finds git on the PATH of `env`. Relative entries do not count, nor does what lies in one of `checkouts`: a `git`
    /// there is not the user's.
    pub fn find(env: &Env, checkouts: &[PathBuf]) -> Result<Self, Failure> {
        let path = env.get(OsStr::new("PATH"));
        let path = path.map_or(OsStr::new(DEFAULT_PATH), OsString::as_os_str);
        let program = search_path::find(OsStr::new("git"), path, checkouts).map_err(|missing| {
            let failure = Failure::new(Code::Local, "`git` not found on PATH").hint("install git");
            match missing.in_checkout {
                Some(in_checkout) => failure.hint(format!(
                    "`{}` was skipped: it is inside the checkout, where a sandbox can write",
                    in_checkout.display()
                )),
                None => failure,
            }
        })?;
        let kept = env.iter().filter(|(name, _)| is_kept(name));
        let mut env: Env = kept.map(|(n, v)| (n.clone(), v.clone())).collect();
        // Cannot fail: the parts come from a split.
        let path = std::env::join_paths(search_path::entries(path, checkouts))
            .unwrap_or_else(|_| DEFAULT_PATH.into());
        env.insert("PATH".into(), path);
        env.extend(FIXED_VARIABLES.map(|(name, value)| (name.into(), value.into())));
        Ok(Self {
            program,
            env,
            query_timeout: QUERY_TIMEOUT,
            scan_timeout: SCAN_TIMEOUT,
        })
    }

    /// The same git with other variables.
    pub(super) fn with<const N: usize>(
        &self,
        without: &[&str],
        variables: [(&str, OsString); N],
    ) -> Self {
        let mut changed = self.clone();
        for name in without {
            changed.env.remove(OsStr::new(name));
        }
        let variables = variables.map(|(name, value)| (OsString::from(name), value));
        changed.env.extend(variables);
        changed
    }

    /// To be asked something small.
    pub(super) fn query(&self) -> Call<'_> {
        Call {
            git: self,
            timeout: self.query_timeout,
        }
    }

    /// To look at the whole work tree.
    pub(super) fn scan(&self) -> Call<'_> {
        Call {
            timeout: self.scan_timeout,
            ..self.query()
        }
    }
}

impl Call<'_> {
    /// Runs git in `dir` to its end.
    pub(super) fn run<A: AsRef<OsStr>>(
        self,
        dir: &Path,
        args: impl IntoIterator<Item = A>,
    ) -> Result<Answer, Failure> {
        let mut stdout = Vec::new();
        let answer = self.stream(dir, args, &mut |bytes| stdout.extend_from_slice(bytes))?;
        Ok(Answer { stdout, ..answer })
    }

    /// As [`Call::run`], but the output goes to `out` as it comes.
    pub(super) fn stream<A: AsRef<OsStr>>(
        self,
        dir: &Path,
        args: impl IntoIterator<Item = A>,
        out: &mut dyn FnMut(&[u8]),
    ) -> Result<Answer, Failure> {
        let mut command = Command::new(&self.git.program);
        command
            .args(SAFE_OPTIONS)
            .args(args)
            .current_dir(dir)
            .env_clear()
            .envs(&self.git.env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let program = self.git.program.display();
        let failed = |what: &str, error: io::Error| {
            let message = format!("cannot {what} `{program}` in `{}`", dir.display());
            Failure::new(Code::Local, message).because(&error)
        };
        let mut child = command.spawn().map_err(|e| failed("start", e))?;
        let read = read_both(&mut child, Instant::now() + self.timeout, out);
        if read.is_err() {
            // Already gone is as good.
            let _ = child.kill();
        }
        let status = child.wait().map_err(|e| failed("wait for", e))?;
        let stderr = read.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => {
                let waited = self.timeout.as_secs_f32();
                let message = format!(
                    "git timed out: `{program}` in `{}` was killed after {waited} seconds",
                    dir.display()
                );
                Failure::new(Code::Local, message)
                    .hint("check for named pipes and unreachable mounts in that directory")
            }
            _ => failed("read from", error),
        })?;
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
            None => format!("git exited with {}", self.status),
        });
        failure
    }
}

fn is_kept(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    KEPT_VARIABLES.contains(&name)
        || KEPT_VARIABLE_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// Reads both streams at once: a child that fills a pipe which is not read would block for ever. Gives back the
/// beginning of stderr.
fn read_both(child: &mut Child, until: Instant, out: &mut dyn FnMut(&[u8])) -> io::Result<Vec<u8>> {
    let mut stdout = child.stdout.take();
    let mut stderr = child.stderr.take();
    let mut buffer = vec![0; BUFFER];
    let mut left = MAX_OUTPUT;
    let mut stderr_start = Vec::new();
    while stdout.is_some() || stderr.is_some() {
        let (said, complained) = ready(stdout.as_ref(), stderr.as_ref(), until)?;
        if said {
            match read_some(&mut stdout, &mut buffer)? {
                [] => stdout = None,
                bytes => {
                    left = left
                        .checked_sub(bytes.len())
                        .ok_or_else(|| io::Error::other("more than 1 GiB of output"))?;
                    out(bytes);
                }
            }
        }
        if complained {
            match read_some(&mut stderr, &mut buffer)? {
                [] => stderr = None,
                bytes => {
                    let room = MAX_STDERR - stderr_start.len();
                    stderr_start.extend(bytes.iter().take(room));
                }
            }
        }
    }
    Ok(stderr_start)
}

/// Which of the two has something to read, or has ended.
fn ready(
    stdout: Option<&ChildStdout>,
    stderr: Option<&ChildStderr>,
    until: Instant,
) -> io::Result<(bool, bool)> {
    let fds = stdout.map(|s| s.as_fd()).into_iter();
    let fds = fds.chain(stderr.map(|s| s.as_fd()));
    let mut fds: Vec<PollFd<'_>> = fds
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    Ok((
        stdout.is_some() && ready.next().unwrap_or_default(),
        stderr.is_some() && ready.next().unwrap_or_default(),
    ))
}

/// Nothing is the end.
fn read_some<'b>(from: &mut Option<impl Read>, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
    let Some(from) = from else {
        return Ok(&[]);
    };
    loop {
        match from.read(buffer) {
            Ok(read) => return Ok(buffer.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
impl Git {
    pub(super) fn variables(&self) -> Vec<String> {
        let names = self.env.keys();
        names.map(|n| n.to_string_lossy().into_owned()).collect()
    }
}
