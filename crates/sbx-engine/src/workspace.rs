//! Which directories of the host a sandbox may see, and what is recorded about them.
//!
//! A workspace that shows the daemon's socket is an escape, so the state directory, everything in it and
//! everything that contains it are refused, by canonical path and by identity of the directories.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use sbx_api::WorkspaceRequest;
use sbx_proto::shell::quoted;
use thiserror::Error;

use crate::record::{WorkspaceKind, WorkspaceRecord};

/// Directories of the sandbox's own that a workspace would hide. Directories below them are fine.
const OWN: &[&str] = &[
    "/bin",
    "/boot",
    "/etc",
    "/home",
    "/home/agent",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/run",
    "/sbin",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/sbin",
    "/var",
];
/// Views of the kernel: nothing below them can be shared either.
const KERNEL: &[&str] = &["/dev", "/proc", "/sys"];

#[derive(Debug, Error)]
pub enum WorkspaceError {
    #[error("no workspace was given")]
    None,
    #[error("workspace `{}` is not an absolute path", .0.display())]
    Relative(PathBuf),
    #[error("workspace `{}` does not exist", .0.display())]
    Missing(PathBuf),
    #[error("workspace `{}` leads to another place than when the sandbox was made", .0.display())]
    Moved(PathBuf),
    #[error("workspace `{}` has another owner than when the sandbox was made", .0.display())]
    OtherOwner(PathBuf),
    #[error("cannot look at workspace `{}`", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("primary workspace must be read/write (remove ':ro' or ':readonly')")]
    PrimaryReadOnly,
    #[error("primary workspace `{}` is not a directory", .0.display())]
    PrimaryNotDirectory(PathBuf),
    #[error("workspace `{}` is a file, which can only be shared read-only", .0.display())]
    WritableFile(PathBuf),
    #[error("workspace `{}` is neither a directory nor a file", .0.display())]
    Special(PathBuf),
    #[error("you have no permission to {what} workspace `{}`", .path.display())]
    Closed {
        path: PathBuf,
        what: &'static str,
        /// It is the caller's, who can open it.
        own: bool,
    },
    #[error("workspace `{}` is given twice", .0.display())]
    Twice(PathBuf),
    #[error("workspace `/` would hand the whole machine to the sandbox")]
    Root,
    #[error("workspace `{}` would hide the sandbox's own {}", .0.display(), .0.display())]
    System(PathBuf),
    #[error("workspace `{}` shows the host's kernel", .0.display())]
    Kernel(PathBuf),
    #[error(
        "workspace `{}` shows the state directory `{}`, and with it the daemon's socket",
        .path.display(), .state.display()
    )]
    State { path: PathBuf, state: PathBuf },
}

impl WorkspaceError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::None
            | Self::Io { .. }
            | Self::Special(_)
            | Self::Twice(_)
            | Self::Moved(_)
            | Self::OtherOwner(_) => None,
            Self::Relative(_) => Some("give the absolute path".into()),
            Self::Missing(path) => Some(format!("mkdir -p {}", word(path))),
            Self::PrimaryReadOnly => {
                Some("put a writable directory first and the read-only one after it".into())
            }
            Self::PrimaryNotDirectory(_) => {
                Some("put a directory first; a file can follow it as `FILE:ro`".into())
            }
            Self::WritableFile(path) => Some(quoted(&format!("{}:ro", path.display()))),
            Self::Root | Self::System(_) => Some("share a directory below it instead".into()),
            Self::Kernel(_) | Self::Closed { own: false, .. } => {
                Some("share a directory of your own instead".into())
            }
            Self::Closed { path, .. } => Some(format!("chmod u+rwX {}", word(path))),
            Self::State { .. } => {
                Some("share a project directory instead, or move the state with SBX_HOME".into())
            }
        }
    }
}

fn word(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// Checks the request against the file system; `state` is the root of the state directory.
pub fn resolve(
    requests: &[WorkspaceRequest],
    state: &Path,
) -> Result<Vec<WorkspaceRecord>, WorkspaceError> {
    let first = requests.first().ok_or(WorkspaceError::None)?;
    if first.readonly {
        return Err(WorkspaceError::PrimaryReadOnly);
    }
    let guard = StateGuard::new(state)?;
    let mut workspaces: Vec<WorkspaceRecord> = Vec::with_capacity(requests.len());
    for request in requests {
        let workspace = resolve_one(request, &guard)?;
        if workspaces.is_empty() && workspace.kind == WorkspaceKind::File {
            return Err(WorkspaceError::PrimaryNotDirectory(
                workspace.path.to_path_buf(),
            ));
        }
        if workspaces.iter().any(|other| other.path == workspace.path) {
            return Err(WorkspaceError::Twice(workspace.path.to_path_buf()));
        }
        workspaces.push(workspace);
    }
    Ok(workspaces)
}

/// Checks again what was recorded, before a start: a path can be something else by now.
pub fn resolve_again(
    workspaces: &[WorkspaceRecord],
    state: &Path,
) -> Result<Vec<WorkspaceRecord>, WorkspaceError> {
    let guard = StateGuard::new(state)?;
    workspaces
        .iter()
        .map(|workspace| {
            let path = workspace.path.to_path_buf();
            let canonical = fs::canonicalize(&path).map_err(|e| look_error(&path, e))?;
            if canonical != path {
                return Err(WorkspaceError::Moved(path));
            }
            let now = inspect(&path, workspace.readonly, &guard)?;
            // The owner decides how ids look through the mount: what is inside must not choose another one.
            if (now.uid, now.gid) != (workspace.uid, workspace.gid) {
                return Err(WorkspaceError::OtherOwner(path));
            }
            Ok(now)
        })
        .collect()
}

/// Mount order: what contains another comes first.
pub fn in_mount_order(workspaces: &[WorkspaceRecord]) -> Vec<&WorkspaceRecord> {
    let mut ordered: Vec<_> = workspaces.iter().collect();
    ordered.sort_by_key(|workspace| workspace.path.as_path().components().count());
    ordered
}

fn resolve_one(
    request: &WorkspaceRequest,
    guard: &StateGuard,
) -> Result<WorkspaceRecord, WorkspaceError> {
    let given = Path::new(&request.path);
    if !given.is_absolute() {
        return Err(WorkspaceError::Relative(given.to_path_buf()));
    }
    let path = fs::canonicalize(given).map_err(|e| look_error(given, e))?;
    let workspace = inspect(&path, request.readonly, guard)?;
    check_open(&workspace)?;
    Ok(workspace)
}

/// What the caller may not enter or read, nobody inside may either: every command would fail.
fn check_open(workspace: &WorkspaceRecord) -> Result<(), WorkspaceError> {
    let (access, what) = match workspace.kind {
        WorkspaceKind::Directory => (Access::EXEC_OK, "enter"),
        WorkspaceKind::File => (Access::READ_OK, "read"),
    };
    let path = workspace.path.as_path();
    match accessat(CWD, path, access, AtFlags::EACCESS) {
        Err(Errno::ACCESS) => Err(WorkspaceError::Closed {
            path: path.to_path_buf(),
            what,
            own: workspace.uid == rustix::process::geteuid().as_raw(),
        }),
        // Whatever else is wrong with it has been seen, or will be when it is mounted.
        Ok(()) | Err(_) => Ok(()),
    }
}

fn inspect(
    path: &Path,
    readonly: bool,
    guard: &StateGuard,
) -> Result<WorkspaceRecord, WorkspaceError> {
    check_place(path)?;
    guard.check(path)?;
    let meta = fs::metadata(path).map_err(|e| look_error(path, e))?;
    let kind = kind_of(path, &meta)?;
    if kind == WorkspaceKind::File && !readonly {
        return Err(WorkspaceError::WritableFile(path.to_path_buf()));
    }
    Ok(WorkspaceRecord {
        path: path.into(),
        readonly,
        kind,
        uid: meta.uid(),
        gid: meta.gid(),
    })
}

/// The rules about a canonical path that need no file system.
fn check_place(path: &Path) -> Result<(), WorkspaceError> {
    if path == Path::new("/") {
        return Err(WorkspaceError::Root);
    }
    if OWN.iter().any(|own| path == Path::new(own)) {
        return Err(WorkspaceError::System(path.to_path_buf()));
    }
    if KERNEL.iter().any(|kernel| path.starts_with(kernel)) {
        return Err(WorkspaceError::Kernel(path.to_path_buf()));
    }
    Ok(())
}

fn kind_of(path: &Path, meta: &Metadata) -> Result<WorkspaceKind, WorkspaceError> {
    if meta.is_dir() {
        Ok(WorkspaceKind::Directory)
    } else if meta.is_file() {
        Ok(WorkspaceKind::File)
    } else {
        Err(WorkspaceError::Special(path.to_path_buf()))
    }
}

/// Device and inode: the same for every path (bind mounts too) that leads to a directory.
type Identity = (u64, u64);

struct StateGuard {
    root: PathBuf,
    /// The state directory and everything above it.
    above: Vec<Identity>,
}

impl StateGuard {
    fn new(state: &Path) -> Result<Self, WorkspaceError> {
        let root = fs::canonicalize(state).map_err(|e| look_error(state, e))?;
        let above = identities(&root)?;
        Ok(Self { root, above })
    }

    fn check(&self, path: &Path) -> Result<(), WorkspaceError> {
        let by_path = path.starts_with(&self.root) || self.root.starts_with(path);
        let own = identities(path)?;
        let contains = own.first().is_some_and(|this| self.above.contains(this));
        let inside = self.above.first().is_some_and(|state| own.contains(state));
        if by_path || contains || inside {
            return Err(WorkspaceError::State {
                path: path.to_path_buf(),
                state: self.root.clone(),
            });
        }
        Ok(())
    }
}

/// Of the path itself, its parent, and so on up to the root.
fn identities(path: &Path) -> Result<Vec<Identity>, WorkspaceError> {
    path.ancestors()
        .map(|path| {
            let meta = fs::metadata(path).map_err(|e| look_error(path, e))?;
            Ok((meta.dev(), meta.ino()))
        })
        .collect()
}

fn look_error(path: &Path, source: io::Error) -> WorkspaceError {
    let path = path.to_path_buf();
    if source.kind() == io::ErrorKind::NotFound {
        return WorkspaceError::Missing(path);
    }
    WorkspaceError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A temporary directory in which `state` is a state directory and `project` a project.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(temp.path()).unwrap();
        fs::create_dir_all(root.join("home/state/vm")).unwrap();
        fs::create_dir_all(root.join("home/project/sub")).unwrap();
        fs::create_dir_all(root.join("home/state-of-art")).unwrap();
        (temp, root)
    }

    fn resolved(root: &Path, paths: &[&str]) -> Result<Vec<String>, String> {
        let requests: Vec<_> = paths
            .iter()
            .map(|path| {
                let (path, readonly) = match path.strip_suffix(":ro") {
                    Some(path) => (path, true),
                    None => (*path, false),
                };
                let path = root.join(path).to_string_lossy().into_owned();
                WorkspaceRequest { path, readonly }
            })
            .collect();
        let shown = |path: &Path| {
            path.strip_prefix(root)
                .unwrap_or(path)
                .display()
                .to_string()
        };
        match resolve(&requests, &root.join("home/state")) {
            Ok(found) => Ok(found.iter().map(|w| shown(w.path.as_path())).collect()),
            Err(e) => Err(format!("{e:?}")
                .split(['(', ' '])
                .next()
                .unwrap()
                .to_owned()),
        }
    }

    #[test]
    fn ordinary_workspaces() {
        let (_temp, root) = place();
        File::create(&root, "home/notes");
        symlink(root.join("home/project"), root.join("link")).unwrap();
        for (given, expected) in [
            (vec!["home/project"], vec!["home/project"]),
            (vec!["link"], vec!["home/project"]),
            (vec!["home/state-of-art"], vec!["home/state-of-art"]),
            (
                vec!["home/project/sub", "home/project:ro", "home/notes:ro"],
                vec!["home/project/sub", "home/project", "home/notes"],
            ),
        ] {
            let expected: Vec<_> = expected.into_iter().map(str::to_owned).collect();
            assert_eq!(resolved(&root, &given), Ok(expected));
        }
    }

    #[test]
    fn refused_workspaces() {
        let (_temp, root) = place();
        File::create(&root, "home/notes");
        symlink(root.join("home/state"), root.join("link")).unwrap();
        let _socket = UnixListener::bind(root.join("home/sock")).unwrap();
        for (given, expected) in [
            (vec![], "None"),
            (vec!["home/project:ro"], "PrimaryReadOnly"),
            (vec!["home/gone"], "Missing"),
            (vec!["home/notes"], "WritableFile"),
            (vec!["home/project", "home/notes"], "WritableFile"),
            (vec!["home/project", "home/sock:ro"], "Special"),
            (vec!["home/project", "home/project/../project:ro"], "Twice"),
            (vec!["home/state"], "State"),
            (vec!["home/state/vm"], "State"),
            (vec!["home"], "State"),
            (vec!["link"], "State"),
            (vec!["/"], "Root"),
            (vec!["/usr"], "System"),
            (vec!["/tmp"], "System"),
            (vec!["/proc/self"], "Kernel"),
            (vec!["home/project", "/dev/null:ro"], "Kernel"),
        ] {
            assert_eq!(
                resolved(&root, &given),
                Err(expected.to_owned()),
                "{given:?}"
            );
        }
    }

    /// They are typed as they stand.
    #[test]
    fn hints_are_for_a_shell() {
        let path = PathBuf::from("/it's");
        let closed = WorkspaceError::Closed {
            path: path.clone(),
            what: "enter",
            own: true,
        };
        for (error, hint) in [
            (
                WorkspaceError::Missing(path.clone()),
                r"mkdir -p '/it'\''s'",
            ),
            (WorkspaceError::WritableFile(path), r"'/it'\''s:ro'"),
            (closed, r"chmod u+rwX '/it'\''s'"),
        ] {
            assert_eq!(error.hint().as_deref(), Some(hint));
        }
    }

    #[test]
    fn a_state_directory_behind_a_symlink_is_still_the_state_directory() {
        let (_temp, root) = place();
        symlink(root.join("home/state"), root.join("alias")).unwrap();
        let request = WorkspaceRequest {
            path: root.join("home").to_string_lossy().into_owned(),
            readonly: false,
        };
        assert!(matches!(
            resolve(&[request], &root.join("alias")),
            Err(WorkspaceError::State { .. })
        ));
    }

    #[test]
    fn parents_are_mounted_before_children() {
        let workspace = |path: &str| WorkspaceRecord {
            path: path.into(),
            readonly: false,
            kind: WorkspaceKind::Directory,
            uid: 0,
            gid: 0,
        };
        let all = [workspace("/a/b/c"), workspace("/z"), workspace("/a/b")];
        let order: Vec<_> = in_mount_order(&all)
            .into_iter()
            .map(|w| w.path.as_path())
            .collect();
        assert_eq!(
            order,
            [Path::new("/z"), Path::new("/a/b"), Path::new("/a/b/c")]
        );
    }

    struct File;

    impl File {
        fn create(root: &Path, path: &str) {
            fs::File::create(root.join(path)).unwrap();
        }
    }
}
