//! Which files are read, and whose word each of them is.
//!
//! Nothing here touches the file system: the caller resolves links and reads.

use std::path::{Component, Path, PathBuf};

/// Whose word a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    User,
    Repository,
}

/// A path as it was given (made absolute), and as the file system resolves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedPath {
    pub given: PathBuf,
    pub canonical: PathBuf,
}

/// The files of a repository, weakest first. They lie at its root, wherever below it the command is given.
pub fn repository_files(root: &Path) -> [PathBuf; 2] {
    [root.join("crabbox.yaml"), root.join(".crabbox.yaml")]
}

/// The user's file in the directory for configuration (`$XDG_CONFIG_HOME`, or the system's usual one).
pub fn user_file(config_home: &Path) -> PathBuf {
    config_home.join("crabbox").join("config.yaml")
}

/// Whose word the file of `CRABBOX_CONFIG` is. It replaces all others, so a checkout must not become trusted by it:
/// whatever lies in the active repository, by name or through a link, is the repository's. Only the user's own
/// file is the user's wherever it lies.
pub fn owner_of(
    file: &ResolvedPath,
    user_file: Option<&ResolvedPath>,
    repository: Option<&ResolvedPath>,
) -> Owner {
    if user_file.is_some_and(|user| user.canonical == file.canonical) {
        return Owner::User;
    }
    let inside = repository.is_some_and(|root| {
        let paths = [
            normalize_lexically(&file.given),
            normalize_lexically(&file.canonical),
        ];
        let roots = [
            normalize_lexically(&root.given),
            normalize_lexically(&root.canonical),
        ];
        paths
            .iter()
            .any(|path| roots.iter().any(|root| path.starts_with(root)))
    });
    match inside {
        true => Owner::Repository,
        false => Owner::User,
    }
}

/// Without `.`, `..` and repeated slashes. The file system is not asked: `..` after a symlink is not where the kernel would go.
pub fn normalize_lexically(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => clean.push(part),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(given: &str, canonical: &str) -> ResolvedPath {
        ResolvedPath {
            given: given.into(),
            canonical: canonical.into(),
        }
    }

    #[test]
    fn bug_5_repository_files_lie_at_the_root() {
        assert_eq!(
            repository_files(Path::new("/src/app")),
            [
                PathBuf::from("/src/app/crabbox.yaml"),
                PathBuf::from("/src/app/.crabbox.yaml")
            ]
        );
        assert_eq!(
            user_file(Path::new("/home/u/.config")),
            PathBuf::from("/home/u/.config/crabbox/config.yaml")
        );
    }

    #[test]
    fn a_file_in_the_repository_is_the_repositorys_by_name_or_through_a_link() {
        let user = place(
            "/home/u/.config/crabbox/config.yaml",
            "/home/u/.config/crabbox/config.yaml",
        );
        let root = place("/home/u/app", "/data/app");
        let owner = |given, canonical| owner_of(&place(given, canonical), Some(&user), Some(&root));
        assert_eq!(owner("/etc/ci.yaml", "/etc/ci.yaml"), Owner::User);
        assert_eq!(
            owner("/home/u/app2/c.yaml", "/data/app2/c.yaml"),
            Owner::User
        );
        assert_eq!(
            owner("/home/u/app/c.yaml", "/data/app/c.yaml"),
            Owner::Repository
        );
        assert_eq!(
            owner("/home/u/x/../app/c.yaml", "/data/app/c.yaml"),
            Owner::Repository
        );
        // A link that leads in, and one in it that leads out.
        assert_eq!(owner("/tmp/c.yaml", "/data/app/c.yaml"), Owner::Repository);
        assert_eq!(
            owner("/home/u/app/c.yaml", "/etc/c.yaml"),
            Owner::Repository
        );
        assert_eq!(
            owner("/data/app/c.yaml", "/foreign_sections"),
            Owner::Repository
        );
        assert_eq!(
            owner_of(&place("/r/c", "/r/c"), Some(&user), None),
            Owner::User
        );
    }

    #[test]
    fn the_users_own_file_is_the_users_even_in_a_repository() {
        let user = place(
            "/home/u/.config/crabbox/config.yaml",
            "/home/u/dots/config.yaml",
        );
        let root = place("/home/u/dots", "/home/u/dots");
        assert_eq!(owner_of(&user, Some(&user), Some(&root)), Owner::User);
        // Who has no home has no file of their own.
        assert_eq!(owner_of(&user, None, Some(&root)), Owner::Repository);
    }
}
