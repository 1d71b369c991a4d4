//! The caller's name and address, as git knows them.
//!
//! A workspace may be the work of a program in a sandbox. So git itself is never one that lies in a workspace, it is
//! not started in one, and of a repository's configuration it is only given the text: no includes, no hooks, no files
//! that would make it wait.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use sbx_api::Caller;

use crate::workspace::untrusted::{Resolved, UntrustedPaths};

/// It reads a file or two.
const GIT_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_ANSWER: u64 = 64 << 10;
const MAX_CONFIG: u64 = 1 << 20;
/// How the section of the name and the address begins in a file of configuration, whatever the case of its letters.
const SECTION: &[u8] = b"[user";
const QUESTION: [&str; 3] = ["-z", "--get-regexp", r"^user\.(name|email)$"];
/// What tells git where the caller's own configuration is, besides the home.
const KEPT_VARIABLES: &[&str] = &[
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_SYSTEM",
    "XDG_CONFIG_HOME",
];

/// The caller's own configuration may be a link into a workspace (a repository of settings), and would have git append to
/// any file of the caller's.
const UNTRACED: [(&str, &str); 3] = [
    ("GIT_TRACE2", "0"),
    ("GIT_TRACE2_EVENT", "0"),
    ("GIT_TRACE2_PERF", "0"),
];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) name: Option<String>,
    pub(crate) email: Option<String>,
}

/// Who commits in `workspace`? Answered while a sandbox is being made. `untrusted` is what programs in sandboxes can
/// write.
pub(crate) fn ask(caller: &Caller, workspace: &Path, untrusted: &UntrustedPaths) -> Question {
    let Some(git) = find(&caller.path, untrusted) else {
        return Question::default();
    };
    let kept = KEPT_VARIABLES
        .iter()
        .filter_map(|key| Some((*key, caller.env.get(*key)?)));
    let home = Some(("HOME", &caller.home)).filter(|(_, home)| !home.is_empty());
    let env: Vec<_> = home
        .into_iter()
        .chain(kept)
        .map(|(key, value)| (key, value.clone()))
        .collect();
    let asked = move |arguments: &[&str], stdin: Stdio| {
        let mut command = Command::new(&git);
        command
            .arg("config")
            .args(arguments)
            .args(QUESTION)
            .env_clear()
            .envs(env.iter().map(|(key, value)| (key, value)))
            .envs(UNTRACED)
            .current_dir("/")
            .stdin(stdin);
        Asked::start(&mut command, GIT_TIMEOUT)
    };
    let own = repository_config(workspace).filter(may_name_user);
    Question::on_thread(move || {
        let all = asked(&[], Stdio::null());
        let own = own.and_then(|config| asked(&["--no-includes", "-f", "-"], config.into()));
        all.into_iter().chain(own).collect()
    })
}

/// Programs that are asked, in the order in which one overrules the other.
#[derive(Debug, Default)]
pub(crate) struct Question(Option<JoinHandle<Vec<Asked>>>);

impl Question {
    /// Beside the caller, who would wait until each program is loaded. Without a thread nothing is asked.
    fn on_thread(start: impl FnOnce() -> Vec<Asked> + Send + 'static) -> Self {
        let thread = Builder::new().name("git-identity".into()).spawn(start);
        Self(
            thread
                .inspect_err(
                    |error| tracing::warn!(%error, "git is not asked for the caller's identity"),
                )
                .ok(),
        )
    }

    /// Empty without git.
    pub(crate) fn answer(self) -> Identity {
        let asked = self.0.and_then(|thread| thread.join().ok());
        let said = asked.into_iter().flatten().filter_map(Asked::answer);
        parse(&said.collect::<Vec<_>>().concat())
    }
}

/// The first git on the search path that no program in a sandbox can have put there.
fn find(path: &str, untrusted: &UntrustedPaths) -> Option<PathBuf> {
    std::env::split_paths(path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join("git"))
        .find(|git| {
            let Some(Resolved::Trusted(real)) = untrusted.resolve(git) else {
                return false;
            };
            fs::metadata(real)
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
}

/// The configuration of the repository that the workspace belongs to, if it is a plain file of a plain repository.
fn repository_config(workspace: &Path) -> Option<File> {
    let workspace = fs::canonicalize(workspace).ok()?;
    let dir = workspace
        .ancestors()
        .map(|above| above.join(".git"))
        .find(|dir| fs::symlink_metadata(dir).is_ok())?;
    let config = rustix::fs::openat2(
        rustix::fs::CWD,
        dir.join("config"),
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    );
    let config = File::from(config.ok()?);
    let meta = config.metadata().ok()?;
    (meta.is_file() && meta.len() <= MAX_CONFIG).then_some(config)
}

/// Whether there is anything to ask about: git reads nothing of such a section but where its name stands.
fn may_name_user(mut config: &File) -> bool {
    let mut text = Vec::new();
    let read = config.take(MAX_CONFIG).read_to_end(&mut text);
    let named = || {
        text.windows(SECTION.len())
            .any(|part| part.eq_ignore_ascii_case(SECTION))
    };
    // Git reads it from the beginning.
    config.rewind().is_ok() && (read.is_err() || named())
}

/// A program that runs, and has something to say until it ends.
#[derive(Debug)]
struct Asked {
    child: Child,
    until: Instant,
}

impl Asked {
    fn start(command: &mut Command, timeout: Duration) -> Option<Self> {
        let until = Instant::now() + timeout;
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        Some(Self { child, until })
    }

    /// One that takes too long has said nothing.
    fn answer(mut self) -> Option<Vec<u8>> {
        read_until(self.child.stdout.take()?, self.until)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // Harmless when it has ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn read_until(mut from: impl Read + AsFd, until: Instant) -> Option<Vec<u8>> {
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    while (said.len() as u64) < MAX_ANSWER {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok()?;
        let mut fds = [PollFd::new(&from, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
        }
        match from.read(&mut buffer).ok()? {
            0 => return Some(said),
            count => said.extend_from_slice(buffer.get(..count).unwrap_or_default()),
        }
    }
    None
}

fn parse(entries: &[u8]) -> Identity {
    let mut identity = Identity::default();
    for entry in entries.split(|byte| *byte == 0) {
        let Some((key, value)) = std::str::from_utf8(entry)
            .ok()
            .and_then(|entry| entry.split_once('\n'))
        else {
            continue;
        };
        match key {
            "user.name" => identity.name = Some(value.to_owned()),
            "user.email" => identity.email = Some(value.to_owned()),
            _ => {}
        }
    }
    identity
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_last_identity_wins() {
        let entries = b"user.name\nGlobal\0user.email\na@b.test\0user.name\nRepo\0";
        let both = Identity {
            name: Some("Repo".to_owned()),
            email: Some("a@b.test".to_owned()),
        };
        assert_eq!(parse(entries), both);
        assert_eq!(parse(b""), Identity::default());
    }

    #[test]
    fn a_git_that_times_out_gives_no_identity() {
        let before = Instant::now();
        let script = |text: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", text]).stdin(Stdio::null());
            Asked::start(&mut command, Duration::from_millis(300))
                .unwrap()
                .answer()
        };
        assert_eq!(script("echo x; exec sleep 60"), None);
        assert!(before.elapsed() < Duration::from_secs(20));
        assert_eq!(script("while :; do echo xxxxxxxxxxxxxxxxxxxxx; done"), None);
        let mut quick = Command::new("/bin/echo");
        let quick = Asked::start(quick.arg("y"), GIT_TIMEOUT).unwrap();
        assert_eq!(quick.answer(), Some(b"y\n".to_vec()));
    }

    #[test]
    fn a_configuration_has_git_write_nowhere() {
        let temp = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(temp.path()).unwrap();
        let target = |name: &str| home.join(name).display().to_string();
        let config = format!(
            "[user]\nname=N\n[trace2]\nnormalTarget={}\nperfTarget={}\neventTarget={}\n",
            target("normal"),
            target("perf"),
            target("event")
        );
        let mut file = File::create(home.join(".gitconfig")).unwrap();
        file.write_all(config.as_bytes()).unwrap();
        let caller = Caller {
            home: home.display().to_string(),
            path: "/usr/bin:/bin".to_owned(),
            ..Caller::default()
        };
        let asked = ask(
            &caller,
            &home,
            &UntrustedPaths::new([home.join("workspace")]),
        );
        assert_eq!(asked.answer().name.as_deref(), Some("N"));
        assert_eq!(fs::read_dir(&home).unwrap().count(), 1);
    }

    #[test]
    fn a_repository_is_asked_about_when_it_may_name_the_user() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("config");
        for (text, expected) in [
            ("", false),
            (
                "[core]\n\tbare = false\n[remote \"user\"]\nurl = user@host\n",
                false,
            ),
            ("[core]\n[User]\nname = N\n", true),
            ("[core] bare = true [USER]name=N", true),
        ] {
            let mut written = File::create(&path).unwrap();
            written.write_all(text.as_bytes()).unwrap();
            let mut config = File::open(&path).unwrap();
            assert_eq!(may_name_user(&config), expected, "{text}");
            let mut left = String::new();
            config.read_to_string(&mut left).unwrap();
            assert_eq!(left, text, "git reads it from the beginning");
        }
    }

    #[test]
    fn a_git_that_a_sandbox_may_have_planted_is_not_found() {
        let temp = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(temp.path()).unwrap();
        for dir in ["ws/bin", "bin", "linked"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        for git in ["ws/bin/git", "bin/git"] {
            fs::copy("/bin/true", root.join(git)).unwrap();
        }
        std::os::unix::fs::symlink(root.join("ws/bin/git"), root.join("linked/git")).unwrap();
        let untrusted = UntrustedPaths::new([root.join("ws")]);
        let path = |dirs: &[&str]| {
            let dirs = dirs.iter().map(|dir| match *dir {
                "." | "" => PathBuf::from(dir),
                dir => root.join(dir),
            });
            find(
                std::env::join_paths(dirs).unwrap().to_str().unwrap(),
                &untrusted,
            )
        };
        assert_eq!(path(&["", ".", "ws/bin", "linked"]), None);
        assert_eq!(
            path(&["ws/bin", "linked", "bin"]),
            Some(root.join("bin/git"))
        );
    }

    #[test]
    fn of_a_repository_only_a_plain_file_counts() {
        let temp = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(temp.path()).unwrap();
        let below = root.join("a/b");
        fs::create_dir_all(&below).unwrap();
        fs::create_dir(root.join(".git")).unwrap();
        assert!(repository_config(&below).is_none());
        let config = root.join(".git/config");
        std::os::unix::fs::symlink("/etc/passwd", &config).unwrap();
        assert!(repository_config(&below).is_none(), "a link");
        fs::remove_file(&config).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &config,
            kind,
            Mode::from_bits_truncate(0o600),
            0,
        )
        .unwrap();
        assert!(repository_config(&below).is_none(), "a pipe");
        fs::remove_file(&config).unwrap();
        File::create(&config).unwrap();
        assert!(repository_config(&below).is_some());
        std::os::unix::fs::symlink(root.join(".git"), root.join("a/.git")).unwrap();
        assert!(
            repository_config(&below).is_none(),
            "a link to a repository"
        );
    }
}
