//! What a user should know about a workspace although it is allowed.

use std::fs::{self, FileType};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sbx_sys::mountinfo::{self, points_below};

use crate::sandbox::record::{WorkspaceKind, WorkspaceRecord};
use crate::state::is_state;
use crate::workspace::aliases::mount_of;

const NETWORK: &[&str] = &[
    "9p",
    "afs",
    "ceph",
    "cifs",
    "fuse.rclone",
    "fuse.sshfs",
    "nfs",
    "nfs4",
    "smb3",
    "smbfs",
];
/// Beginnings of directory names that sync programs use.
const SYNCED: &[&str] = &[
    "Dropbox",
    "Google Drive",
    "GoogleDrive",
    "Mobile Documents",
    "Nextcloud",
    "OneDrive",
    "iCloud",
];
const SCAN_DEPTH: usize = 2;
const SCAN_ENTRIES: usize = 2000;

/// What is mounted where, of mountinfo, which is read without touching (and so waking) any file system.
#[derive(Debug)]
pub(crate) struct Mounts(Vec<mountinfo::Entry>);

impl Mounts {
    pub(crate) fn now() -> Self {
        Self::parse(&mountinfo::own().unwrap_or_default())
    }

    fn parse(mountinfo: &[u8]) -> Self {
        Self(mountinfo::parse(mountinfo))
    }

    /// Whether it is up to another machine or program that an answer comes.
    pub(crate) fn may_hang(&self, path: &Path) -> bool {
        self.file_system(path).is_some_and(|kind| {
            kind.starts_with("fuse") || kind == "autofs" || NETWORK.contains(&kind)
        })
    }

    /// The type of the file system that `path` lies on.
    fn file_system(&self, path: &Path) -> Option<&str> {
        mount_of(&self.0, path).map(|mount| mount.kind.as_str())
    }
}

/// Warnings for `create`, in the order of the workspaces; `of_backend` has those that depend on the backend.
pub(crate) fn warnings(
    workspaces: &[WorkspaceRecord],
    of_backend: &dyn Fn(&WorkspaceRecord) -> Vec<String>,
) -> Vec<String> {
    let mountinfo = mountinfo::own().unwrap_or_default();
    let mounts = Mounts::parse(&mountinfo);
    let mut warnings = Vec::new();
    for workspace in workspaces {
        let path = workspace.path.as_path();
        let shown = path.display();
        if let Some(kind) = mounts.file_system(path).filter(|k| NETWORK.contains(k)) {
            warnings.push(format!(
                "`{shown}` is on a network file system ({kind}): slow, and locks may not work"
            ));
        }
        if let Some(folder) = synced(path) {
            warnings.push(format!(
                "`{shown}` is in a synchronised folder ({folder}): what the sandbox writes is uploaded"
            ));
        }
        warnings.extend(of_backend(workspace));
        if let Some((first, more)) = points_below(&mountinfo, path).split_first() {
            let others = match more.len() {
                0 => String::new(),
                count => format!(" (and {count} more)"),
            };
            warnings.push(format!(
                "`{}`{others} is mounted inside the workspace `{shown}`, and shared with it",
                first.display()
            ));
        }
        if workspace.kind == WorkspaceKind::Directory
            && let Some((endpoint, kind)) = find_endpoint(path)
        {
            warnings.push(format!(
                "`{}` is a {kind}, which can be reached from inside the sandbox, read-only or not",
                endpoint.display()
            ));
        }
        let lies_in_writable = |outer: &WorkspaceRecord| {
            !outer.readonly
                && path != outer.path.as_path()
                && path.starts_with(outer.path.as_path())
        };
        if workspace.readonly
            && workspace.kind == WorkspaceKind::File
            && workspaces.iter().any(lies_in_writable)
            && fs::symlink_metadata(path).is_ok_and(|meta| meta.nlink() > 1)
        {
            warnings.push(format!(
                "`{shown}` has other names (hard links): where one of them can be written, so can its content"
            ));
        }
    }
    warnings
}

fn synced(path: &Path) -> Option<&'static str> {
    path.components().find_map(|component| {
        let name = component.as_os_str().as_bytes();
        SYNCED
            .iter()
            .copied()
            .find(|folder| name.starts_with(folder.as_bytes()))
    })
}

/// A socket or named pipe near the top; a bounded look, not a promise.
fn find_endpoint(root: &Path) -> Option<(PathBuf, &'static str)> {
    near_the_top(root, |path, kind| {
        let label = if kind.is_socket() {
            "Unix socket"
        } else if kind.is_fifo() {
            "named pipe"
        } else {
            return None;
        };
        Some((path.to_path_buf(), label))
    })
}

/// A state directory near the top, of whichever `SBX_HOME`; a bounded look as well.
pub(crate) fn find_state(root: &Path) -> Option<PathBuf> {
    near_the_top(root, |path, kind| {
        (kind.is_dir() && is_state(path)).then(|| path.to_path_buf())
    })
}

/// The first thing that is found in a directory or in those right below it.
fn near_the_top<T>(root: &Path, find: impl Fn(&Path, FileType) -> Option<T>) -> Option<T> {
    let mut left = SCAN_ENTRIES;
    let mut queue = vec![(root.to_path_buf(), 1)];
    while let Some((dir, depth)) = queue.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            left = left.checked_sub(1)?;
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            let path = entry.path();
            if let Some(found) = find(&path, kind) {
                return Some(found);
            }
            if kind.is_dir() && depth < SCAN_DEPTH {
                queue.push((path, depth + 1));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_innermost_mount_decides_the_file_system() {
        let text = b"22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n\
            30 22 0:40 / /mnt/a\\040b rw - nfs4 server:/x rw\n\
            31 30 0:41 / /mnt/a\\040b/in rw master:1 - tmpfs t rw\n";
        let mounts = Mounts::parse(text);
        let kind = |path: &str| mounts.file_system(Path::new(path)).unwrap();
        assert_eq!(kind("/mnt"), "ext4");
        assert_eq!(kind("/mnt/a b/p"), "nfs4");
        assert_eq!(kind("/mnt/a b/in/p"), "tmpfs");
        assert_eq!(kind("/mnt/a bc"), "ext4");
    }

    #[test]
    fn servers_may_be_out_of_reach() {
        let text = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            30 22 0:40 / /n rw - nfs4 server:/x rw\n31 30 0:41 / /n/t rw - tmpfs t rw\n\
            32 22 0:42 / /f rw - fuse.sshfs s rw\n33 22 0:43 / /g rw - fuseblk g rw\n";
        let mounts = Mounts::parse(text);
        for (path, expected) in [
            ("/", false),
            ("/n/x", true),
            ("/n/t/x", false),
            ("/f", true),
            ("/g/x", true),
        ] {
            assert_eq!(mounts.may_hang(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn mounts_in_a_workspace_are_seen() {
        let text = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            30 22 0:40 / /w rw - tmpfs t rw\n31 30 0:41 / /w/a\\040b rw - tmpfs t rw\n\
            32 22 0:42 / /work rw - tmpfs t rw\n";
        let below = |path| points_below(text, Path::new(path));
        assert_eq!(below("/w"), [PathBuf::from("/w/a b")]);
        assert_eq!(below("/work"), [] as [PathBuf; 0]);
    }

    #[test]
    fn sync_folders_by_component() {
        assert_eq!(
            synced(Path::new("/home/u/OneDrive - Firm/p")),
            Some("OneDrive")
        );
        assert_eq!(synced(Path::new("/home/u/Dropbox")), Some("Dropbox"));
        assert_eq!(synced(Path::new("/home/u/my-Dropbox/p")), None);
    }

    #[test]
    fn sockets_and_pipes_on_the_first_two_levels_are_seen() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        let _deep = UnixListener::bind(at("a/b/s")).unwrap();
        assert_eq!(find_endpoint(temp.path()), None);
        let _near = UnixListener::bind(at("a/s")).unwrap();
        assert_eq!(find_endpoint(temp.path()), Some((at("a/s"), "Unix socket")));
        fs::remove_file(at("a/s")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, at("p"), mode).unwrap();
        assert_eq!(find_endpoint(temp.path()), Some((at("p"), "named pipe")));
    }

    #[test]
    fn state_directories_on_the_first_two_levels_are_seen() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        let claim = |path: &Path| {
            let state = crate::StateDir::locate(temp.path(), Some(path)).unwrap();
            state.claim().unwrap();
        };
        claim(&at("a/b/deep"));
        // Whatever else is found on the way.
        let _door = UnixListener::bind(at("a/s")).unwrap();
        fs::create_dir(at("named")).unwrap();
        fs::File::create(crate::state::marker(&at("named"))).unwrap();
        assert_eq!(find_state(temp.path()), None);
        claim(&at("a/c"));
        assert_eq!(find_state(temp.path()), Some(at("a/c")));
    }

    #[test]
    fn a_read_only_file_with_another_name_is_told() {
        let temp = tempfile::tempdir().unwrap();
        let conf = temp.path().join("conf");
        fs::File::create(&conf).unwrap();
        let record = |path: &Path, readonly, kind| WorkspaceRecord {
            path: path.into(),
            given: None,
            target: None,
            masked: Vec::new(),
            masked_absent: Vec::new(),
            readonly,
            added: false,
            pending: None,
            kind,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            identity: None,
        };
        let workspaces = [
            record(temp.path(), false, WorkspaceKind::Directory),
            record(&conf, true, WorkspaceKind::File),
        ];
        let told = || {
            let warnings = warnings(&workspaces, &|_| Vec::new());
            warnings
                .iter()
                .any(|warning| warning.contains("other names"))
        };
        assert!(!told());
        fs::hard_link(&conf, temp.path().join("x")).unwrap();
        assert!(told());
    }
}
