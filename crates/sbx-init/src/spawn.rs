//! From a process in the sandbox into a command: take the streams, become the user, execute.
//!
//! Until `execve` the process has init's memory. It is closed to root inside (`ptrace`, `/proc/PID/mem`), because init is
//! not dumpable and was executed outside of the inner user namespace; every descriptor is close-on-exec.
//!
//! The working directory is entered after the change of user, so that the user's own permissions decide, and is checked
//! with `getcwd`: a path through `/proc/PID/fd` can lead out of the root. A failure up to `execve` goes to init as data,
//! and becomes the client's error message instead of an exit code.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, Mode as FileMode, OFlags, access};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sbx_proto::OsBytes;
use sbx_proto::exec::{Exec, FailKind, Reply, Stdio as WantedStdio};
use sbx_proto::plan::{Mode, OpenFiles};
use sbx_sys::process;
use sbx_sys::{credentials, seccomp, terminal};
use serde::{Deserialize, Serialize};

use crate::accounts::{self, Account};
use crate::setup::Namespaces;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// Where `pip` puts programs that root installs where it cannot write `/usr`. Other users do not look for them.
const ROOT_USER_BIN: &[u8] = b"/root/.local/bin";

/// The program that this process is a copy of. Root inside can put another in its place: what it says is not trusted.
const OWN_PROGRAM: &CStr = c"/proc/self/exe";

/// What every command of a sandbox has in common.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pub(crate) mode: Mode,
    pub(crate) namespaces: Namespaces,
    /// Files of control groups that commands join.
    pub(crate) groups: Vec<OwnedFd>,
    pub(crate) filter: Vec<seccomp::Instruction>,
    pub(crate) env: Vec<(OsBytes, OsBytes)>,
    pub(crate) workdir: OsBytes,
    pub(crate) open_files: OpenFiles,
}

/// The three descriptors that a command begins with.
pub(crate) type Stdio = [OwnedFd; 3];

/// How many characters of a message are kept, from its beginning and its end. Names of programs, directories and users
/// can be longer than a frame may be, or a socket takes at once, and escaped they grow six-fold.
const MESSAGE_ENDS: (usize, usize) = (300, 200);

/// Why a command did not start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    kind: FailKind,
    message: String,
}

impl Failure {
    /// The only way to make one: a message of any length becomes one that can be sent.
    pub(crate) fn new(kind: FailKind, message: String) -> Self {
        let message = shorten(message);
        Self { kind, message }
    }

    pub(crate) fn bad_request(message: String) -> Self {
        Self::new(FailKind::BadRequest, message)
    }

    pub(crate) fn engine(step: &str, error: impl Into<io::Error>) -> Self {
        let message = format!("failed to {step}: {}", error.into());
        Self::new(FailKind::Engine, message)
    }

    pub(crate) fn kind(&self) -> FailKind {
        self.kind
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn into_reply(self) -> Reply {
        let Self { kind, message } = self;
        Reply::Failed { kind, message }
    }
}

/// What was being done is said first, and why it failed last: what goes is in the middle.
fn shorten(message: String) -> String {
    let (first, last) = MESSAGE_ENDS;
    let begin = message.char_indices().nth(first);
    let end = message.char_indices().rev().nth(last - 1);
    match (begin, end) {
        (Some((begin, _)), Some((end, _))) if begin < end => {
            let (head, _) = message.split_at(begin);
            let (_, tail) = message.split_at(end);
            format!("{head}…{tail}")
        }
        _ => message,
    }
}

/// The user that most commands run as, looked up before a command needs it.
#[derive(Debug)]
pub(crate) struct CachedAccount {
    agent: Account,
    files: Stamps,
}

/// `passwd` and `group`, as they were: device, inode, size, time of the last change.
type Stamps = [(u64, u64, u64, i64, i64); 2];

impl CachedAccount {
    pub(crate) fn read(surroundings: &Surroundings) -> Option<Self> {
        // In this order: what changes after it was read is not what was stamped.
        let files = stamps()?;
        let agent = account(surroundings, None).ok()?;
        Some(Self { agent, files })
    }

    fn account(&self, user: Option<&str>) -> Option<Account> {
        (user.is_none() && stamps() == Some(self.files)).then(|| self.agent.clone())
    }
}

fn stamps() -> Option<Stamps> {
    let stamp = |path| {
        // The change time and not mtime: utimensat(2) sets that one to any value, and root inside may.
        let file = std::fs::metadata(path).ok()?;
        let (seconds, nanoseconds) = (file.ctime(), file.ctime_nsec());
        Some((file.dev(), file.ino(), file.size(), seconds, nanoseconds))
    };
    Some([stamp(PASSWD)?, stamp(GROUP)?])
}

fn account(surroundings: &Surroundings, user: Option<&str>) -> Result<Account, Failure> {
    let (passwd, group) = (read_small(PASSWD), read_small(GROUP));
    accounts::find(user, surroundings.mode, &passwd, &group).map_err(Failure::bad_request)
}

/// Becomes the command. Returns only when that fails.
pub(crate) fn enter(
    surroundings: &Surroundings,
    cached: Option<&CachedAccount>,
    exec: &Exec,
    stdio: &Stdio,
) -> Failure {
    match prepare(surroundings, cached, exec, stdio) {
        Ok(prepared) if exec.own_program => {
            let error = process::execve(OWN_PROGRAM, &prepared.argv, &prepared.env);
            Failure::engine("execute init's own program", error)
        }
        Ok(prepared) => execute(&prepared),
        Err(failure) => failure,
    }
}

struct Prepared {
    argv: Vec<CString>,
    env: Vec<CString>,
    /// Where a program is looked for that has no directory.
    path: Vec<u8>,
}

fn prepare(
    surroundings: &Surroundings,
    cached: Option<&CachedAccount>,
    exec: &Exec,
    stdio: &Stdio,
) -> Result<Prepared, Failure> {
    let engine = |step: &'static str| move |error: io::Error| Failure::engine(step, error);
    let terminal = matches!(
        exec.stdio,
        WantedStdio::Tty { .. } | WantedStdio::LogTty { .. } | WantedStdio::FramedTty { .. }
    );
    take_stdio(stdio, terminal).map_err(engine("set up stdin, stdout and stderr"))?;
    limit_open_files(surroundings.open_files).map_err(engine("limit open files"))?;
    let user = exec.user.as_deref();
    let account = match cached.and_then(|cached| cached.account(user)) {
        Some(account) => account,
        None => account(surroundings, user)?,
    };
    // A change of uid resets the dumpable flag to `fs.suid_dumpable`, which can open this process to others of that
    // id, for the moment until it is closed again.
    become_account(surroundings, &account).map_err(engine("become the user"))?;
    process::set_not_dumpable().map_err(engine("close this process to others"))?;
    enter_directory(&directory(&surroundings.workdir, exec.workdir.as_ref()))?;
    words(surroundings, &account, exec)
}

/// The command's arguments and environment.
fn words(surroundings: &Surroundings, account: &Account, exec: &Exec) -> Result<Prepared, Failure> {
    let env = environment(&surroundings.env, account, &exec.env);
    let path = env
        .iter()
        .find(|(key, _)| key.as_bytes() == b"PATH")
        .map_or_else(|| b"/usr/bin:/bin".to_vec(), |(_, value)| value.0.clone());
    let env = env
        .iter()
        .map(|(key, value)| c_string([key.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect::<Result<_, _>>()?;
    let argv = exec
        .argv
        .iter()
        .map(|arg| c_string(arg.0.clone()))
        .collect::<Result<_, _>>()?;
    Ok(Prepared { argv, env, path })
}

fn c_string(bytes: Vec<u8>) -> Result<CString, Failure> {
    CString::new(bytes)
        .map_err(|_| Failure::bad_request("an argument or variable contains a NUL byte".into()))
}

fn limit_open_files(wanted: OpenFiles) -> io::Result<()> {
    let own = getrlimit(Resource::Nofile);
    // Only CAP_SYS_RESOURCE of the initial user namespace raises a hard limit, so what init has is the most there is.
    let hard = own.maximum.map_or(wanted.hard, |own| own.min(wanted.hard));
    let limit = Rlimit {
        current: Some(wanted.soft.min(hard)),
        maximum: Some(hard),
    };
    Ok(setrlimit(Resource::Nofile, limit)?)
}

fn take_stdio([input, output, errors]: &Stdio, terminal: bool) -> io::Result<()> {
    // TIOCSCTTY: job control and the signals of the terminal's keys go to the session of the controlling terminal.
    if terminal {
        terminal::make_controlling(input.as_fd())?;
    }
    // dup2(2) clears close-on-exec on 0, 1 and 2. All else, above all the spare's socket, ends with execve(2).
    rustix::stdio::dup2_stdin(input)?;
    rustix::stdio::dup2_stdout(output)?;
    rustix::stdio::dup2_stderr(errors)?;
    process::close_on_exec_from(3)
}

fn become_account(surroundings: &Surroundings, account: &Account) -> io::Result<()> {
    match (surroundings.mode, &surroundings.namespaces.named_root) {
        (Mode::Root | Mode::Subordinate, _) => credentials::become_user(&account.credentials, true),
        // With one id mapped, root inside is the same id under another name: uid 0 of a child user namespace, whose
        // capabilities hold in that namespace only (user_namespaces(7)).
        (Mode::Single, Some(named_root)) if account.credentials.uid == 0 => {
            process::setns(named_root.as_fd(), process::NEW_USER)?;
            credentials::become_user(&account.credentials, false)
        }
        (Mode::Single, _) => {
            // setgroups(2) is denied where an unprivileged process wrote the gid map. setresuid(2) drops capabilities
            // only when it leaves uid 0; the uid here was never 0, so they are cleared by capset(2).
            credentials::become_user(&account.credentials, false)?;
            credentials::set_capabilities(0)
        }
    }
}

/// A relative one is meant from where commands start that ask for none.
fn directory(usual: &OsBytes, asked: Option<&OsBytes>) -> PathBuf {
    let usual = usual.as_path();
    asked.map_or_else(|| usual.to_owned(), |asked| usual.join(asked.as_path()))
}

/// The directory must be a place below the root: a link to a descriptor leads elsewhere.
fn enter_directory(path: &Path) -> Result<(), Failure> {
    let refused = |reason: String| {
        Failure::bad_request(format!(
            "cannot use the working directory `{}`: {reason}",
            path.display()
        ))
    };
    rustix::process::chdir(path).map_err(|e| refused(io::Error::from(e).to_string()))?;
    // getcwd(2) gives `(unreachable)/...` for a directory outside of the root of this mount namespace, and ENOENT for one
    // that was unlinked.
    match rustix::process::getcwd(Vec::new()) {
        Ok(cwd) if cwd.as_bytes().starts_with(b"/") => Ok(()),
        Err(Errno::NOENT) => Err(refused(
            "it was removed or replaced on the host; after `sbx stop` the next command has what is there now".into(),
        )),
        _ => Err(refused("it is not below the sandbox's root".into())),
    }
}

/// What belongs to the user, then what the sandbox was made with, then what the request says.
fn environment(
    base: &[(OsBytes, OsBytes)],
    account: &Account,
    request: &[(OsBytes, OsBytes)],
) -> Vec<(OsBytes, OsBytes)> {
    let mut env: Vec<(OsBytes, OsBytes)> = Vec::new();
    let own = [
        ("HOME", account.home.as_str()),
        ("USER", account.name.as_str()),
        ("LOGNAME", account.name.as_str()),
        ("SHELL", account.shell.as_str()),
    ];
    let own = own
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()));
    for (key, value) in own
        .chain(base.iter().cloned())
        .chain(request.iter().cloned())
    {
        match env.iter_mut().find(|(known, _)| *known == key) {
            Some((_, old)) => *old = value,
            None => env.push((key, value)),
        }
    }
    let asked = request.iter().any(|(key, _)| key.as_bytes() == b"PATH");
    if account.credentials.uid == 0 && !asked {
        let path = env.iter_mut().find(|(key, _)| key.as_bytes() == b"PATH");
        if let Some((_, path)) = path {
            path.0 = [ROOT_USER_BIN, b":", path.as_bytes()].concat();
        }
    }
    env
}

fn execute(prepared: &Prepared) -> Failure {
    let Some(program) = prepared.argv.first() else {
        return Failure::bad_request("no command was given".into());
    };
    let name = String::from_utf8_lossy(program.as_bytes()).into_owned();
    if program.as_bytes().is_empty() {
        return failure(&name, io::Error::from_raw_os_error(libc::ENOENT));
    }
    if program.as_bytes().contains(&b'/') {
        let error = process::execve(program, &prepared.argv, &prepared.env);
        let is_there = access(program, Access::EXISTS).is_ok();
        return match error.raw_os_error() {
            Some(libc::ENOENT) if is_there => without_interpreter(&name),
            _ => failure(&name, error),
        };
    }
    let mut lacks_interpreter = false;
    let mut worst = io::Error::from_raw_os_error(libc::ENOENT);
    for dir in prepared.path.split(|byte| *byte == b':') {
        // An empty entry of PATH means the working directory.
        let dir = if dir.is_empty() { b"." } else { dir };
        let Ok(candidate) = CString::new([dir, b"/", program.as_bytes()].concat()) else {
            continue;
        };
        // Asked first: to refuse to execute something takes the kernel longer.
        if let Err(Errno::NOENT | Errno::NOTDIR) = access(&candidate, Access::EXISTS) {
            continue;
        }
        let error = process::execve(&candidate, &prepared.argv, &prepared.env);
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => lacks_interpreter = true,
            Some(libc::EACCES) => worst = error,
            _ => return failure(&name, error),
        }
    }
    match worst.raw_os_error() {
        Some(libc::ENOENT) if lacks_interpreter => without_interpreter(&name),
        _ => failure(&name, worst),
    }
}

/// The kernel says of both that they are not there.
fn without_interpreter(name: &str) -> Failure {
    let message =
        format!("`{name}` cannot be executed: its interpreter was not found in the sandbox");
    Failure::new(FailKind::NotFound, message)
}

fn failure(name: &str, error: io::Error) -> Failure {
    let kind = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => FailKind::NotFound,
        _ => FailKind::NotExecutable,
    };
    let message = match kind {
        FailKind::NotFound => format!("`{name}` was not found in the sandbox"),
        FailKind::NotExecutable | FailKind::BadRequest | FailKind::Stopping | FailKind::Engine => {
            format!("`{name}` cannot be executed: {error}")
        }
    };
    Failure::new(kind, message)
}

/// A file of the sandbox that may be anything by now: no waiting for a FIFO, no more than 1 MiB.
fn read_small(path: &str) -> String {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Room for any ordinary one, so that it is read in one go.
    let mut text = Vec::with_capacity(16 << 10);
    if let Ok(file) = rustix::fs::open(path, flags, FileMode::empty()) {
        let _ = File::from(file).take(1 << 20).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use sbx_sys::credentials::Credentials;

    use super::*;

    #[test]
    fn a_relative_directory_is_meant_from_the_usual_one() {
        let in_usual = |asked: Option<&str>| {
            let asked = asked.map(OsBytes::from);
            directory(&OsBytes::from("/ws"), asked.as_ref())
        };
        assert_eq!(in_usual(None), Path::new("/ws"));
        assert_eq!(in_usual(Some("")), Path::new("/ws"));
        assert_eq!(in_usual(Some("a/b")), Path::new("/ws/a/b"));
        assert_eq!(in_usual(Some("../b")), Path::new("/ws/../b"));
        assert_eq!(in_usual(Some("/a")), Path::new("/a"));
    }

    #[test]
    fn a_message_of_any_length_can_be_sent_and_says_why() {
        for letter in ["x", "\"", "é", "\u{1}", "🦀"] {
            let name = letter.repeat(130_000);
            let error = io::Error::from_raw_os_error(libc::ENAMETOOLONG);
            let failure = failure(&name, error);
            assert_eq!(failure.kind(), FailKind::NotExecutable);
            let message = failure.message();
            let (begin, end) = (
                format!("`{letter}"),
                format!("{letter}` cannot be executed: "),
            );
            assert!(message.starts_with(&begin) && message.contains(&end));
            assert!(message.contains("too long"), "{message}");
            let frame = sbx_proto::frame::encode(&failure.into_reply()).unwrap();
            assert!(frame.len() < 4096, "{}", frame.len());
        }
        for short in ["", "x", &"é".repeat(500), &"x".repeat(500)] {
            assert_eq!(shorten(short.to_owned()), short);
        }
        let cut = shorten("é".repeat(502));
        assert_eq!(cut.chars().count(), 501, "{cut}");
    }

    #[test]
    fn roots_own_programs_are_on_roots_path_alone() {
        let pair = |key: &str, value: &str| (OsBytes::from(key), OsBytes::from(value));
        let path = |uid, request: &[(OsBytes, OsBytes)]| {
            let account = Account {
                name: "x".into(),
                home: "/".into(),
                shell: "/bin/sh".into(),
                credentials: Credentials {
                    uid,
                    gid: uid,
                    groups: vec![],
                },
            };
            let env = environment(&[pair("PATH", "/bin")], &account, request);
            let mut env = env.into_iter();
            env.find(|(key, _)| key.as_bytes() == b"PATH").unwrap()
        };
        assert_eq!(path(0, &[]), pair("PATH", "/root/.local/bin:/bin"));
        assert_eq!(path(1000, &[]), pair("PATH", "/bin"));
        assert_eq!(path(0, &[pair("PATH", "/p")]), pair("PATH", "/p"));
    }

    #[test]
    fn a_request_is_stronger_than_the_sandbox_and_the_sandbox_than_the_user() {
        let pair = |key: &str, value: &str| (OsBytes::from(key), OsBytes::from(value));
        let account = Account {
            name: "root".into(),
            home: "/root".into(),
            shell: "/bin/bash".into(),
            credentials: Credentials {
                uid: 0,
                gid: 0,
                groups: vec![],
            },
        };
        let base = [pair("HOME", "/elsewhere"), pair("A", "1")];
        assert_eq!(
            environment(&base, &account, &[pair("USER", "me"), pair("A", "2")]),
            [
                pair("HOME", "/elsewhere"),
                pair("USER", "me"),
                pair("LOGNAME", "root"),
                pair("SHELL", "/bin/bash"),
                pair("A", "2"),
            ]
        );
    }
}
