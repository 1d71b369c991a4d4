//! What is asked of git, and how it is asked.
//!
//! git reads a checkout that may be hostile, also while it is being read, and parts of its configuration name
//! programs. So the repository's own configuration is never git's to read: it gets one of ours, with what names no
//! program ([`sanitized`]). Every call goes through [`Git`], which gives the child an environment of its own, shuts what
//! needs no configuration (hooks, a pager, the transports behind a lazy fetch), and ends it when it hangs. What is the
//! user's own, `safe.directory` above all, stays in force.
//!
//! Needs git 2.18 or later; naming what differs from HEAD needs 2.31 where filters are configured.

mod child;
mod config;
mod discover;
mod sanitized;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

pub use child::{Env, Git};

use crate::{Code, Failure};
use child::Answer;
use sanitized::SanitizedGitDir;

/// Stands between two answers of `rev-parse`, which echoes what it does not know: paths may hold newlines.
const MARK: &str = "--crabbox-mark";

/// A work tree and the repository behind it.
#[derive(Debug)]
pub struct Repository {
    git: Git,
    sanitized: SanitizedGitDir,
    root: PathBuf,
    git_dir: PathBuf,
    linked: bool,
}

impl Repository {
    /// Finds the work tree around `dir`, with one git process where there is one. `None` outside of a work tree: no
    /// repository, a bare one, or the inside of a `.git` directory.
    pub fn discover(dir: &Path, env: &Env) -> Result<Option<Self>, Failure> {
        let Some(location) = discover::find(dir, env)? else {
            return Ok(None);
        };
        let named = |name| env.get(OsStr::new(name));
        let mut work_tree = named("GIT_WORK_TREE").map(|path| dir.join(path));
        let checkouts = [Some(&location.top), work_tree.as_ref()];
        let git = Git::find(
            env,
            &checkouts
                .map(|c| c.cloned())
                .into_iter()
                .flatten()
                .collect::<Vec<_>>(),
        )?;
        let sanitized = SanitizedGitDir::new(&location, env)?;
        let linked = location.git_dir != location.common_dir;
        if named("GIT_DIR").is_some() && work_tree.is_none() && !linked {
            work_tree = sanitized.work_tree(&location.git_dir);
        }
        if !linked && work_tree.is_none() && sanitized.is_true("core.bare") {
            return Ok(None);
        }
        let git = git.with(&[], [("GIT_COMMON_DIR", sanitized.path().into())]);
        let git = match work_tree {
            Some(work_tree) => git.with(&[], [("GIT_WORK_TREE", work_tree.into())]),
            None => git,
        };
        // With a location that it finds itself, git says whether the owner is one to trust.
        let questions = ["rev-parse", "--show-toplevel", MARK, "--git-dir"];
        let answer = git.query().run(&location.top, questions.map(OsStr::new))?;
        if !answer.succeeded() {
            return no_work_tree(dir, &answer);
        }
        let Some([root, git_dir]) = two_paths(&answer.stdout) else {
            return Err(Failure::new(
                Code::Local,
                format!(
                    "cannot parse git's answer about `{}`: {:?}",
                    dir.display(),
                    String::from_utf8_lossy(&answer.stdout)
                ),
            ));
        };
        let git_dir = discover::resolved(&location.top.join(git_dir))?;
        if git_dir != location.git_dir {
            let message = format!(
                "git found a repository other than `{}`",
                location.git_dir.display()
            );
            return Err(Failure::new(Code::Local, message));
        }
        if !linked && named("GIT_DIR").is_none() && named("GIT_WORK_TREE").is_none() {
            check_work_tree(&root, &git_dir, &sanitized)?;
        }
        let here = [
            ("GIT_DIR", git_dir.clone().into()),
            ("GIT_WORK_TREE", root.clone().into()),
        ];
        Ok(Some(Self {
            git: git.with(&[], here),
            sanitized,
            linked,
            root,
            git_dir,
        }))
    }

    /// The name of the repository around `dir`; `None` outside of a work tree. A repository of the caller's own that
    /// nothing leads elsewhere (`GIT_DIR` and its kin, `core.worktree`) is read without a git process; of any other git
    /// has to say whether it may be read (`safe.directory`).
    pub fn name_around(dir: &Path, env: &Env) -> Result<Option<String>, Failure> {
        let led = ["GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR"];
        let ask = || Ok(Self::discover(dir, env)?.map(|repository| repository.name()));
        if led.iter().any(|name| env.contains_key(OsStr::new(name))) {
            return ask();
        }
        let Some(location) = discover::find(dir, env)? else {
            return Ok(None);
        };
        let linked = location.git_dir != location.common_dir;
        if linked || !location.is_own() {
            return ask();
        }
        let sanitized = SanitizedGitDir::new(&location, env)?;
        if sanitized.is_true("core.bare") || sanitized.work_tree(&location.git_dir).is_some() {
            return ask();
        }
        Ok(Some(name_of(&sanitized, &location.top)))
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn git_dir(&self) -> &Path {
        &self.git_dir
    }

    /// Whether this is a work tree that `git worktree add` made, and not the main checkout.
    pub fn is_linked_worktree(&self) -> bool {
        self.linked
    }

    /// The repository's name: that of its origin, else that of its directory.
    pub fn name(&self) -> String {
        name_of(&self.sanitized, &self.root)
    }

    /// The commit that is checked out; `None` before the first one.
    pub fn head(&self) -> Option<String> {
        let args = ["rev-parse", "--verify", "--quiet", "HEAD"];
        let answer = self
            .git
            .query()
            .run(&self.root, args.map(OsStr::new))
            .ok()?;
        let commit = String::from_utf8_lossy(answer.stdout.trim_ascii()).into_owned();
        answer.succeeded().then_some(commit)
    }

    /// The URL of the remote `origin`, as the repository's own configuration has it.
    pub fn origin(&self) -> Option<String> {
        origin(&self.sanitized)
    }

    /// Every tracked path with its mode and stage, and every untracked one that is not ignored: handed out as it comes,
    /// cut anywhere. Gives back what git complained about.
    pub(crate) fn ls_files(&self, out: &mut dyn FnMut(&[u8])) -> Result<Vec<String>, Failure> {
        // `--format` would read better, but cannot be combined with `--others`.
        let args = [
            "ls-files",
            "-z",
            "-t",
            "--stage",
            "--cached",
            "--others",
            "--exclude-standard",
        ];
        let call = self.git.scan();
        let answer = call.stream(&self.root, args.map(OsStr::new), out)?;
        if !answer.succeeded() {
            return Err(answer.failure(Code::Sync, "build sync file list"));
        }
        Ok(answer.stderr.lines().map(str::to_owned).collect())
    }

    /// What differs from HEAD among tracked paths, as `status` prints it. Two git processes.
    ///
    /// Comparing contents runs clean filters. Those of the repository's configuration do not exist for git, and the
    /// user's own are not for a hostile checkout to feed: a filtered file that was touched counts as changed.
    pub(crate) fn status(&self) -> Result<Vec<u8>, Failure> {
        let mut args = Vec::new();
        for driver in self.filter_drivers()? {
            for key in ["clean", "smudge", "process", "required"] {
                // A driver's name may hold `=`: with `-c` git would take what follows for the value.
                let mut option = OsString::from("--config-env=filter.");
                option.push(OsStr::from_bytes(&driver));
                option.push(format!(".{key}={}", child::EMPTY_VARIABLE));
                args.push(option);
            }
        }
        let status = [
            "status",
            "-z",
            "--porcelain=v2",
            "--no-renames",
            "--untracked-files=no",
            // Below a submodule git would read that one's configuration, without our settings.
            "--ignore-submodules=all",
        ];
        args.extend(status.map(OsString::from));
        let answer = self.git.scan().run(&self.root, &args)?;
        if !answer.succeeded() {
            return Err(answer.failure(Code::Sync, "cannot compare the work tree with HEAD"));
        }
        Ok(answer.stdout)
    }

    fn filter_drivers(&self) -> Result<BTreeSet<Vec<u8>>, Failure> {
        let keys = self.config(&["--name-only", "--get-regexp", r"^filter\..*\."])?;
        let driver = |key: &[u8]| {
            let rest = key.get("filter.".len()..)?;
            let dot = rest.iter().rposition(|&byte| byte == b'.')?;
            rest.get(..dot).map(<[u8]>::to_vec)
        };
        Ok(keys.iter().filter_map(|key| driver(key)).collect())
    }

    /// What the user's own configuration says: of the repository's only what is harmless is left.
    fn config(&self, question: &[&str]) -> Result<Vec<Vec<u8>>, Failure> {
        let args = ["config", "-z"].into_iter().chain(question.iter().copied());
        let answer = self.git.query().run(&self.root, args.map(OsStr::new))?;
        if answer.succeeded() {
            let values = answer.stdout.split(|&byte| byte == 0);
            return Ok(values
                .filter(|v| !v.is_empty())
                .map(<[u8]>::to_vec)
                .collect());
        }
        if answer.code() == Some(1) {
            return Ok(Vec::new());
        }
        Err(answer.failure(Code::Local, "cannot read the git configuration"))
    }
}

/// Refuses a work tree that the repository chose for itself.
///
/// With `core.worktree` a checkout can name any directory around itself, the home directory say, whose files would
/// then count as untracked and be sent.
fn check_work_tree(
    root: &Path,
    git_dir: &Path,
    sanitized: &SanitizedGitDir,
) -> Result<(), Failure> {
    let Some(named) = sanitized.work_tree(git_dir) else {
        return Ok(());
    };
    if named.canonicalize().is_ok_and(|named| named == root) {
        return Ok(());
    }
    let message = format!(
        "repository `{}` sets core.worktree to `{}`, which is not its own work tree",
        git_dir.display(),
        named.display()
    );
    Err(Failure::new(Code::Untrusted, message)
        .hint("unset `core.worktree`, or set GIT_DIR and GIT_WORK_TREE yourself"))
}

/// The name that a directory gives to what is in it.
pub fn directory_name(dir: &Path) -> String {
    let name = dir.file_name().unwrap_or(OsStr::new("root"));
    name.to_string_lossy().into_owned()
}

/// The last part of a URL or path of a repository, without `.git`.
fn name_in_url(url: &str) -> Option<&str> {
    let url = url.trim().trim_end_matches('/');
    let last = url.rsplit(['/', ':']).next()?;
    let name = last.strip_suffix(".git").unwrap_or(last);
    (!matches!(name, "" | "." | "..")).then_some(name)
}

fn two_paths(stdout: &[u8]) -> Option<[PathBuf; 2]> {
    let mark = format!("\n{MARK}\n");
    let body = stdout.strip_suffix(b"\n")?;
    let at = body
        .windows(mark.len())
        .position(|w| w == mark.as_bytes())?;
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    Some([path(body.get(..at)?), path(body.get(at + mark.len()..)?)])
}

/// The child speaks English (`LC_ALL=C`), and a sentence that is not known here is an error: only what git calls no
/// repository is taken for none.
fn origin(sanitized: &SanitizedGitDir) -> Option<String> {
    let url = sanitized.first("remote.origin.url")?;
    Some(String::from_utf8_lossy(url).into_owned())
}

fn name_of(sanitized: &SanitizedGitDir, root: &Path) -> String {
    let origin = origin(sanitized);
    let from_origin = origin.as_deref().and_then(name_in_url);
    from_origin.map_or_else(|| directory_name(root), str::to_owned)
}

fn no_work_tree(dir: &Path, answer: &Answer) -> Result<Option<Repository>, Failure> {
    let says = |text| answer.stderr.contains(text);
    if says("not a git repository") || says("must be run in a work tree") {
        return Ok(None);
    }
    let what = format!("git cannot read the repository at `{}`", dir.display());
    let failure = answer.failure(Code::Local, &what);
    if says("safe.directory") {
        let command = answer.stderr.lines().find(|l| l.contains("git config"));
        return Err(match command {
            Some(command) => failure.hint(command.trim()),
            None => failure,
        });
    }
    Err(failure)
}
