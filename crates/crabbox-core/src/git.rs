//! What is asked of git, and how it is asked.
//!
//! git reads a checkout that may be hostile, and parts of its configuration name programs. Every call therefore goes
//! through [`Git`], which gives the child an environment of its own and shuts what the repository's configuration
//! could start: the file system monitor, hooks, a pager, and the transports behind a lazy fetch. What is the user's
//! own, `safe.directory` above all, stays in force.
//!
//! Needs git 2.18 or later; naming what differs from HEAD needs 2.31 where filters are configured.

mod child;
mod worktree;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use child::{Env, Git};

use crate::{Code, Failure};
use child::Answer;

/// Stands between two answers of `rev-parse`, which echoes what it does not know: paths may hold newlines.
const MARK: &str = "--crabbox-mark";

/// A work tree and the repository behind it.
#[derive(Debug)]
pub struct Repository {
    git: Git,
    root: PathBuf,
    git_dir: PathBuf,
    linked: bool,
    origin: OnceLock<Option<String>>,
}

impl Repository {
    /// Finds the work tree around `dir` with one git process. None when there is none: no repository, a bare one, or
    /// the inside of a `.git` directory.
    pub fn discover(dir: &Path, env: &Env) -> Result<Option<Self>, Failure> {
        let git = Git::find(env)?;
        let questions = [
            "rev-parse",
            "--show-toplevel",
            MARK,
            "--git-dir",
            MARK,
            "--git-common-dir",
        ];
        let answer = git.ask(dir, questions.map(OsStr::new))?;
        if !answer.succeeded() {
            return no_work_tree(dir, &answer);
        }
        let Some([root, git_dir, common_dir]) = three_paths(&answer.stdout) else {
            return Err(Failure::new(
                Code::Local,
                format!(
                    "git's answer about {} is not understood: {:?}",
                    dir.display(),
                    String::from_utf8_lossy(&answer.stdout)
                ),
            ));
        };
        let git_dir = worktree::absolute(dir, &git_dir)?;
        let common_dir = worktree::absolute(dir, &common_dir)?;
        let git = if git.names_its_repository() {
            // Those variables may be relative to `dir`; the next call starts in the root.
            git.pinned(&git_dir, &root)
        } else {
            worktree::points_back(&root, &git_dir)?;
            git
        };
        Ok(Some(Self {
            git,
            linked: git_dir != common_dir,
            root,
            git_dir,
            origin: OnceLock::new(),
        }))
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

    /// The repository's name: that of its origin, else that of its directory. Asks git once, the first time.
    pub fn name(&self) -> Result<String, Failure> {
        let from_origin = self.origin()?.and_then(name_in_url);
        Ok(from_origin.map_or_else(|| directory_name(&self.root), str::to_owned))
    }

    /// The URL of the remote `origin`. Asks git once, the first time.
    pub fn origin(&self) -> Result<Option<&str>, Failure> {
        if let Some(known) = self.origin.get() {
            return Ok(known.as_deref());
        }
        let values = self.config(&["--get-all", "remote.origin.url"])?;
        let first = values.into_iter().next();
        let url = first.map(|url| String::from_utf8_lossy(&url).into_owned());
        Ok(self.origin.get_or_init(|| url).as_deref())
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
        let answer = self.git.stream(&self.root, args.map(OsStr::new), out)?;
        if !answer.succeeded() {
            return Err(answer.failure(Code::Sync, "build sync file list"));
        }
        Ok(answer.stderr.lines().map(str::to_owned).collect())
    }

    /// What differs from HEAD among tracked paths, as `status` prints it. Two git processes.
    ///
    /// Comparing contents runs the clean filters that the repository may configure, so none of them, the user's own
    /// neither, is left: a filtered file that was touched counts as changed.
    pub(crate) fn status(&self) -> Result<Vec<u8>, Failure> {
        let mut args = Vec::new();
        for driver in self.filter_drivers()? {
            for key in ["clean", "smudge", "process", "required"] {
                // A driver's name may hold `=`: with `-c` git would take what follows for the value.
                let mut option = OsString::from("--config-env=filter.");
                option.push(OsStr::from_bytes(&driver));
                option.push(format!(".{key}={}", child::EMPTY));
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
        let answer = self.git.ask(&self.root, &args)?;
        if !answer.succeeded() {
            return Err(answer.failure(Code::Sync, "ask git what differs from HEAD"));
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

    fn config(&self, question: &[&str]) -> Result<Vec<Vec<u8>>, Failure> {
        let args = ["config", "-z"].into_iter().chain(question.iter().copied());
        let answer = self.git.ask(&self.root, args.map(OsStr::new))?;
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
        Err(answer.failure(Code::Local, "read git's configuration"))
    }
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

fn three_paths(stdout: &[u8]) -> Option<[PathBuf; 3]> {
    let mark = format!("\n{MARK}\n");
    let body = stdout.strip_suffix(b"\n")?;
    let mut parts = Vec::new();
    let mut rest = body;
    while let Some(at) = rest.windows(mark.len()).position(|w| w == mark.as_bytes()) {
        let (part, behind) = rest.split_at_checked(at)?;
        parts.push(PathBuf::from(OsString::from_vec(part.to_vec())));
        rest = behind.get(mark.len()..)?;
    }
    parts.push(PathBuf::from(OsString::from_vec(rest.to_vec())));
    parts.try_into().ok()
}

/// The child speaks English (`LC_ALL=C`), and a sentence that is not known here is an error: only what git calls no
/// repository is taken for none.
fn no_work_tree(dir: &Path, answer: &Answer) -> Result<Option<Repository>, Failure> {
    let says = |text| answer.stderr.contains(text);
    if says("not a git repository") || says("must be run in a work tree") {
        return Ok(None);
    }
    let what = format!("git cannot read the repository at {}", dir.display());
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
