//! Where the repository around a directory is, found without git.
//!
//! git would read the repository's configuration on the way, and a process that can write that decides what git reads next:
//! a pipe, say, that answers each process differently. So the location is found first, and git is only asked about it
//! with a configuration of ours ([`super::sanitized`]).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::Env;
use crate::{Code, Failure, small_file};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// The directory whose `.git` leads to the repository; where we are, when the user names the repository.
    pub(super) top: PathBuf,
    /// Both without links.
    pub(super) git_dir: PathBuf,
    pub(super) common_dir: PathBuf,
}

impl Location {
    /// Whether the checkout and its repository belong to the caller: git reads such a repository without being told.
    pub(super) fn is_own(&self) -> bool {
        let user = rustix::process::geteuid().as_raw();
        let mut places = [&self.top, &self.git_dir, &self.common_dir].into_iter();
        places.all(|path| path.metadata().is_ok_and(|meta| meta.uid() == user))
    }
}

/// None outside of every repository, and in one that has no work tree around `dir`.
pub(super) fn find(dir: &Path, env: &Env) -> Result<Option<Location>, Failure> {
    let dir = resolved(dir)?;
    let given = |name| env.get(OsStr::new(name));
    let common_dir = given("GIT_COMMON_DIR").map(|common| dir.join(common));
    if let Some(git_dir) = given("GIT_DIR") {
        let named = resolve_dot_git(&dir.join(git_dir))?;
        return Ok(named.and_then(|git_dir| location(dir, git_dir, common_dir.as_deref())));
    }
    let ceilings: Vec<PathBuf> = given("GIT_CEILING_DIRECTORIES")
        .into_iter()
        .flat_map(std::env::split_paths)
        .filter_map(|ceiling| ceiling.canonicalize().ok())
        .collect();
    let across = given("GIT_DISCOVERY_ACROSS_FILESYSTEM").is_some_and(|v| is_true(v.as_bytes()));
    let device = |path: &Path| path.metadata().ok().map(|meta| meta.dev());
    for level in dir.ancestors() {
        let dot_git = level.join(".git");
        if let Some(git_dir) = resolve_dot_git(&dot_git)? {
            let found = location(level.to_owned(), git_dir, common_dir.as_deref());
            // What a pointer leads to is that or nothing; a directory of this name may be anything.
            if found.is_some() || dot_git.is_file() {
                return Ok(found);
            }
        }
        if is_repository(level, level) {
            return Ok(None);
        }
        let Some(above) = level.parent() else { break };
        if ceilings.iter().any(|ceiling| ceiling == above)
            || (!across && device(above) != device(level))
        {
            break;
        }
    }
    Ok(None)
}

/// As git reads a truth value; one without a value is true.
pub(super) fn is_true(value: &[u8]) -> bool {
    let value = value.to_ascii_lowercase();
    !matches!(value.as_slice(), b"" | b"false" | b"no" | b"off" | b"0")
}

fn location(top: PathBuf, git_dir: PathBuf, common_dir: Option<&Path>) -> Option<Location> {
    let common_dir = match common_dir {
        Some(named) => named.canonicalize().ok()?,
        None => match small_file::read(&git_dir.join("commondir")) {
            Ok(text) => git_dir.join(line(&text)).canonicalize().ok()?,
            Err(_) => git_dir.clone(),
        },
    };
    is_repository(&git_dir, &common_dir).then_some(Location {
        top,
        git_dir,
        common_dir,
    })
}

fn is_repository(git_dir: &Path, common_dir: &Path) -> bool {
    git_dir.join("HEAD").symlink_metadata().is_ok()
        && ["objects", "refs"]
            .iter()
            .all(|dir| common_dir.join(dir).is_dir())
}

/// Where a `.git` leads, whether directory, link or file with a pointer. None when it is neither.
fn resolve_dot_git(dot_git: &Path) -> Result<Option<PathBuf>, Failure> {
    let Ok(metadata) = dot_git.metadata() else {
        return Ok(None);
    };
    if metadata.is_dir() {
        return resolved(dot_git).map(Some);
    }
    if !metadata.is_file() {
        return Ok(None);
    }
    let what = || {
        format!(
            "cannot read the repository that `{}` points to",
            dot_git.display()
        )
    };
    let text = small_file::read(dot_git)
        .map_err(|error| Failure::new(Code::Local, what()).because(&error))?;
    let Some(target) = text.strip_prefix(b"gitdir: ") else {
        let mut failure = Failure::new(Code::Local, what());
        failure.causes.push("invalid gitfile format".to_owned());
        return Err(failure);
    };
    let around = dot_git.parent().unwrap_or(Path::new("/"));
    let target = around.join(line(target));
    Ok(Some(target.canonicalize().unwrap_or(target)))
}

fn line(text: &[u8]) -> &Path {
    let end = text.iter().rposition(|b| !matches!(b, b'\n' | b'\r'));
    let line = end.and_then(|end| text.get(..=end)).unwrap_or_default();
    Path::new(OsStr::from_bytes(line))
}

pub(super) fn resolved(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| {
        let what = format!("cannot resolve directory `{}`", path.display());
        Failure::new(Code::Local, what).because(&error)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn repository(at: &Path) {
        fs::create_dir_all(at.join("objects")).unwrap();
        fs::create_dir_all(at.join("refs")).unwrap();
        fs::File::create(at.join("HEAD")).unwrap();
    }

    #[test]
    fn the_search_ends_where_git_s_does() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let inner = base.join("repo/a/b");
        fs::create_dir_all(&inner).unwrap();
        let mut env = Env::new();
        let top = |env: &Env| find(&inner, env).unwrap().map(|location| location.top);
        repository(&base.join("repo/.git"));
        assert_eq!(top(&env), Some(base.join("repo")));
        // No repository is in an empty directory of this name.
        fs::create_dir(base.join("repo/a/.git")).unwrap();
        assert_eq!(top(&env), Some(base.join("repo")));
        env.insert("GIT_CEILING_DIRECTORIES".into(), base.clone().into());
        assert_eq!(top(&env), Some(base.join("repo")));
        env.insert("GIT_CEILING_DIRECTORIES".into(), base.join("repo").into());
        assert_eq!(top(&env), None);
        env.clear();
        // A repository without a work tree stands in between.
        repository(&base.join("repo/a"));
        assert_eq!(top(&env), None);
    }

    #[test]
    fn a_pointer_leads_to_a_repository_or_nowhere() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let inner = base.join("outer/inner");
        fs::create_dir_all(&inner).unwrap();
        repository(&base.join("outer/.git"));
        let point = |text: &str| {
            use std::io::Write as _;
            let mut file = fs::File::create(inner.join(".git")).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            find(&inner, &Env::new())
        };
        assert_eq!(point("gitdir: ../gone\n").unwrap(), None);
        assert!(point("nonsense").is_err());
        let found = point("gitdir: ../.git\n").unwrap().unwrap();
        assert_eq!(found.git_dir, base.join("outer/.git"));
        assert_eq!(found.top, inner);
    }
}
