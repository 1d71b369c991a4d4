//! `--repo PATH`: the rules of all sandboxes whose primary workspace is that directory.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use sbx_policy::Scope;

use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::workspace::here;

/// What `PATH` of an existing directory means to the rules: its canonical path.
pub(super) fn existing(path: &Path) -> Result<Scope, Failure> {
    let shown = path.display();
    let real = std::fs::canonicalize(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => bad(format!("repository `{shown}` does not exist")),
        _ => bad(format!("cannot use repository `{shown}`: {error}")),
    })?;
    if !real.is_dir() {
        return Err(bad(format!("repository `{shown}` is not a directory")));
    }
    scope(real)
}

/// The same for a directory that may be gone, because its rules outlive it.
pub(crate) fn known(context: &Context, path: &Path) -> Result<Scope, Failure> {
    match std::fs::canonicalize(path) {
        Ok(real) => scope(real),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            scope(normalized(&here(&context.env).join(path)))
        }
        Err(error) => Err(bad(format!(
            "cannot use repository `{}`: {error}",
            path.display()
        ))),
    }
}

/// As requests have it.
pub(crate) fn path(scope: Scope) -> Option<String> {
    match scope {
        Scope::Repo(path) => Some(path.into()),
        Scope::Global | Scope::Sandbox(_) => None,
    }
}

/// Without `.` and `..`, by the text alone.
fn normalized(path: &Path) -> PathBuf {
    let mut normalized = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normalized.pop();
            }
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => {
                normalized.push(part);
            }
        }
    }
    normalized
}

fn scope(real: PathBuf) -> Result<Scope, Failure> {
    let text = real.into_os_string().into_string().map_err(|path| {
        let shown = path.display();
        bad(format!("repository path `{shown}` is not valid UTF-8"))
    })?;
    Scope::repo(&text).map_err(|_| bad(format!("`{text}` cannot be a repository")))
}

fn bad(message: impl Into<String>) -> Failure {
    Failure::new(Kind::BadRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_dots_are_resolved() {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().canonicalize().unwrap().join("repo");
        std::fs::create_dir(&real).unwrap();
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let wanted = Scope::Repo(real.to_str().unwrap().into());
        for path in [&real, &link, &real.join("../repo/.")] {
            assert_eq!(existing(path).unwrap(), wanted);
        }
        let file = real.join("file");
        std::fs::File::create(&file).unwrap();
        for path in [&file, &real.join("gone"), Path::new("/")] {
            assert_eq!(existing(path).unwrap_err().kind, Kind::BadRequest);
        }
        assert_eq!(normalized(Path::new("/a/./b/../c")), PathBuf::from("/a/c"));
    }
}
