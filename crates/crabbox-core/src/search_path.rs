//! Programs of the user's search path.
//!
//! A checkout may be the work of a program in a sandbox, and directories of it are often on the path: an activated
//! environment, `node_modules/.bin`. Nothing that lies in it is started on the host.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

/// No program was found, or only one that was refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    /// In a checkout.
    pub in_checkout: Option<PathBuf>,
}

/// The first program of this name in an absolute entry of `path` that neither lies in one of `checkouts` nor leads
/// there.
pub fn find(name: &OsStr, path: &OsStr, checkouts: &[PathBuf]) -> Result<PathBuf, Missing> {
    let checkouts = resolved(checkouts);
    let mut missing = Missing::default();
    for dir in absolute(path) {
        let program = dir.join(name);
        if !is_program(&program) {
            continue;
        }
        if !is_within(&dir, &checkouts) && !is_within(&program, &checkouts) {
            return Ok(program);
        }
        missing.in_checkout.get_or_insert(program);
    }
    Err(missing)
}

/// The entries of `path` that [`find`] looks at.
pub fn entries(path: &OsStr, checkouts: &[PathBuf]) -> Vec<PathBuf> {
    let checkouts = resolved(checkouts);
    let entries = absolute(path);
    entries.filter(|dir| !is_within(dir, &checkouts)).collect()
}

/// A way up is taken at once: what is written before it says nothing about where it leads.
fn absolute(path: &OsStr) -> impl Iterator<Item = PathBuf> {
    std::env::split_paths(path)
        .filter(|dir| dir.is_absolute())
        .filter_map(
            |dir| match dir.components().any(|part| part == Component::ParentDir) {
                true => dir.canonicalize().ok(),
                false => Some(dir),
            },
        )
}

pub fn is_program(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn resolved(dirs: &[PathBuf]) -> Vec<PathBuf> {
    let real = |dir: &PathBuf| dir.canonicalize().unwrap_or_else(|_| dir.clone());
    dirs.iter().map(real).collect()
}

/// As it is written and as it is: a link in a checkout leads wherever a program in a sandbox wants.
fn is_within(path: &Path, checkouts: &[PathBuf]) -> bool {
    let real = path.canonicalize();
    let ways = [Some(path), real.as_deref().ok()];
    let within = |way: &Path| checkouts.iter().any(|dir| way.starts_with(dir));
    ways.into_iter().flatten().any(within)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_lies_in_a_checkout_is_passed_over() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        for dir in ["ws/bin", "bin", "linked", "other"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        for program in ["ws/bin/git", "bin/git"] {
            fs::copy("/bin/true", root.join(program)).unwrap();
        }
        symlink(root.join("ws/bin/git"), root.join("linked/git")).unwrap();
        symlink(root.join("ws/bin"), root.join("dir")).unwrap();
        symlink(root.join("bin/git"), root.join("ws/git")).unwrap();
        fs::File::create(root.join("other/git")).unwrap();
        let checkouts = [root.join("ws")];
        let found = |dirs: &[&str]| {
            let dirs = dirs.iter().map(|dir| match *dir {
                "." | "" => PathBuf::from(dir),
                dir => root.join(dir),
            });
            let path = std::env::join_paths(dirs).unwrap();
            find(OsStr::new("git"), &path, &checkouts)
        };
        let in_checkout = |program: &str| {
            Err(Missing {
                in_checkout: Some(root.join(program)),
            })
        };
        assert_eq!(found(&["", ".", "other"]), Err(Missing::default()));
        assert_eq!(found(&["ws/bin"]), in_checkout("ws/bin/git"));
        assert_eq!(found(&["linked"]), in_checkout("linked/git"));
        assert_eq!(found(&["dir"]), in_checkout("dir/git"));
        assert_eq!(found(&["ws"]), in_checkout("ws/git"));
        assert_eq!(found(&["bin/../ws/bin"]), in_checkout("ws/bin/git"));
        assert_eq!(found(&["ws/../bin"]), Ok(root.join("bin/git")));
        let dirs = ["ws/bin", "linked", "dir", "ws", "bin"];
        assert_eq!(found(&dirs), Ok(root.join("bin/git")));
    }
}
