//! Opening host directories and files as detached mounts (`open_tree` with `OPEN_TREE_CLONE`).
//!
//! A detached mount is in no mount namespace yet. Its attributes, and in root mode its id map (`MOUNT_ATTR_IDMAP`), are
//! set before `move_mount` attaches it: it is never visible without them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{Mode as FileMode, OFlags, ResolveFlags};
use rustix::mount::OpenTreeFlags;
use rustix::process::Signal;
use sbx_proto::inside::AGENT;
use sbx_proto::plan::{Access, IdRange, Ids, Mode, Source, SourceIds};
use sbx_sys::process::{self, Fork, SingleThreaded};
use sbx_sys::{fdpass, mounts};

use super::{disk, idmaps};
use crate::error::{ErrorContext, SetupError, SetupResult};
use crate::handover;

/// Opens a source as a detached mount with the attributes of its access.
pub(super) fn open(source: &Source) -> SetupResult<OwnedFd> {
    let tree = open_tree(source)?;
    set_attributes(source, tree.as_fd(), None)?;
    Ok(tree)
}

/// Opens sources in root mode, where mounts can be idmapped.
pub(super) struct RootOpener<'a> {
    proof: &'a SingleThreaded,
    ids: &'a Ids,
    /// The sandbox's user namespace.
    user: BorrowedFd<'a>,
    /// A user namespace as id map for each owner of a workspace.
    owners: BTreeMap<(u32, u32), OwnedFd>,
    /// And for each sandbox that a saved template was made from.
    ranges: BTreeMap<u32, OwnedFd>,
}

impl<'a> RootOpener<'a> {
    pub(super) fn new(proof: &'a SingleThreaded, ids: &'a Ids, user: BorrowedFd<'a>) -> Self {
        Self {
            proof,
            ids,
            user,
            owners: BTreeMap::new(),
            ranges: BTreeMap::new(),
        }
    }

    pub(super) fn open(&mut self, source: &Source) -> SetupResult<OwnedFd> {
        let tree = match source.access {
            Access::Disk => disk::open(source.path.as_path())?,
            _ => open_tree(source)?,
        };
        match source.ids {
            SourceIds::Plain => set_attributes(source, tree.as_fd(), None)?,
            SourceIds::Shifted => set_attributes(source, tree.as_fd(), Some(self.user))?,
            SourceIds::Owner { uid, gid } => {
                let map = match self.owners.entry((uid, gid)) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        new.insert(owner_namespace(self.proof, self.ids, uid, gid)?)
                    }
                };
                set_attributes(source, tree.as_fd(), Some(map.as_fd()))?;
            }
            SourceIds::Range { base } => {
                let map = match self.ranges.entry(base) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        let ids = Ids {
                            mode: Mode::Root,
                            uid: range_map(&self.ids.uid, base),
                            gid: range_map(&self.ids.gid, base),
                        };
                        new.insert(map_namespace(self.proof, &ids)?)
                    }
                };
                set_attributes(source, tree.as_fd(), Some(map.as_fd()))?;
            }
        }
        Ok(tree)
    }
}

/// Opens a workspace with the sandbox's id map, for a hand-over by the helper. Only host root may idmap a mount.
pub(super) fn open_workspace(
    proof: &SingleThreaded,
    ids: &Ids,
    source: &Source,
) -> SetupResult<OwnedFd> {
    match source.ids {
        SourceIds::Owner { uid, gid } => {
            let tree = open_tree(source)?;
            let map = owner_namespace(proof, ids, uid, gid)?;
            set_attributes(source, tree.as_fd(), Some(map.as_fd()))?;
            Ok(tree)
        }
        SourceIds::Plain | SourceIds::Shifted | SourceIds::Range { .. } => open(source),
    }
}

/// Receives the mounts that the helper sends, in the plan's order.
pub(super) fn receive(helper: &UnixStream, count: usize) -> SetupResult<Vec<OwnedFd>> {
    let mut trees = Vec::with_capacity(count);
    while trees.len() < count {
        let before = trees.len();
        let mut byte = [0];
        fdpass::recv_with_fds(helper, &mut byte, &mut trees).doing(|| "receive a mount".into())?;
        if trees.len() == before {
            return Err(SetupError::new(
                "receive a mount",
                "the helper closed the connection",
            ));
        }
    }
    Ok(trees)
}

/// Follows no symbolic link anywhere in the path (`RESOLVE_NO_SYMLINKS`): a program inside could have replaced a nested
/// workspace by one, and the daemon passes canonical paths only.
fn open_tree(source: &Source) -> SetupResult<OwnedFd> {
    let path = source.path.as_path();
    let place = rustix::fs::openat2(
        rustix::fs::CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        FileMode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
    .doing(|| format!("open `{}`", path.display()))?;
    // Compared on the open descriptor: a later change of the path does not matter.
    if let Some(node) = source.node {
        let doing = || format!("stat `{}`", path.display());
        let stat = rustix::fs::fstat(&place).doing(doing)?;
        if handover::identity(&stat) != node {
            return Err(SetupError::new(doing(), "it was replaced by another one"));
        }
    }
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if source.recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(&place, c"", flags)
        .doing(|| format!("take a mount of `{}`", path.display()))
}

fn set_attributes(
    source: &Source,
    tree: BorrowedFd<'_>,
    idmap: Option<BorrowedFd<'_>>,
) -> SetupResult<()> {
    let attributes = match source.access {
        Access::ReadOnly => mounts::RDONLY | mounts::NOSUID | mounts::NODEV,
        Access::ReadWrite => mounts::NOSUID | mounts::NODEV,
        // Writing to a device node does not need a writable mount; its times, mode and owner must not change.
        Access::Device => mounts::RDONLY | mounts::NOSUID | mounts::NOEXEC,
        Access::Layer | Access::Disk => mounts::NODEV,
    };
    mounts::set_attributes(tree, source.recursive, attributes, idmap).doing(|| {
        let what = if idmap.is_some() {
            "map the ids of"
        } else {
            "set the attributes of"
        };
        format!("{what} `{}`", source.path.as_path().display())
    })
}

/// For [`SourceIds::Owner`]: the workspace's owner becomes the agent, every other id of the sandbox's
/// range stays itself. With a map of the one id alone, root inside would get EOVERFLOW when it creates a file.
fn owner_namespace(proof: &SingleThreaded, ids: &Ids, uid: u32, gid: u32) -> SetupResult<OwnedFd> {
    let ids = Ids {
        mode: Mode::Root,
        uid: owner_map(&ids.uid, uid),
        gid: owner_map(&ids.gid, gid),
    };
    map_namespace(proof, &ids)
}

/// A user namespace that serves only as an id map.
fn map_namespace(proof: &SingleThreaded, ids: &Ids) -> SetupResult<OwnedFd> {
    let (ours, theirs) = UnixStream::pair().doing(|| "make a socket pair".into())?;
    match process::fork(proof, process::NEW_USER).doing(|| "make a user namespace".into())? {
        Fork::Child => process::exit_now(i32::from(wait_for_end_of(&theirs).is_err())),
        Fork::Parent { pid, pidfd } => {
            // Open until this process has the namespace, or ends.
            let _ours = ours;
            drop(theirs);
            let namespace = idmaps::write(pid, ids, None).and_then(|()| {
                File::open(format!("/proc/{pid}/ns/user")).doing(|| "open a user namespace".into())
            });
            let _ = process::pidfd_kill(&pidfd, Signal::KILL);
            process::wait_pidfd(&pidfd).doing(|| "wait for a child".into())?;
            Ok(namespace?.into())
        }
    }
}

/// Lives as long as the parent, which has the other end, and keeps nothing else open: a helper that is killed would else
/// leave this process, and with it the other end of the socket on which a new init waits for its mounts.
fn wait_for_end_of(mut parent: &UnixStream) -> io::Result<()> {
    process::close_all_but(&[parent.as_fd()])?;
    // Killed as soon as the parent has a descriptor of the namespace.
    parent.read_exact(&mut [0])
}

/// In the id map of a mount, `inside` is the id on disk and `outside` the kernel id that the mount shows.
fn owner_map(sandbox: &[IdRange], owner: u32) -> Vec<IdRange> {
    let mut map = BTreeMap::new();
    for range in sandbox {
        let identity = |first: u32, count: u32| IdRange {
            inside: first,
            outside: first,
            count,
        };
        let end = range.inside + range.count;
        if !(range.inside..end).contains(&AGENT) {
            map.insert(range.outside, identity(range.outside, range.count));
            continue;
        }
        let below = AGENT - range.inside;
        let agent = range.outside + below;
        if below > 0 {
            map.insert(range.outside, identity(range.outside, below));
        }
        map.insert(
            owner,
            IdRange {
                inside: owner,
                outside: agent,
                count: 1,
            },
        );
        if AGENT + 1 < end {
            map.insert(agent + 1, identity(agent + 1, end - AGENT - 1));
        }
    }
    map.into_values().collect()
}

/// The same for [`SourceIds::Range`]: what root inside owned in that sandbox, root inside owns in this one.
fn range_map(sandbox: &[IdRange], base: u32) -> Vec<IdRange> {
    let there = |range: &IdRange| IdRange {
        inside: base.saturating_add(range.inside),
        ..*range
    };
    sandbox.iter().map(there).collect()
}

#[cfg(test)]
mod tests {
    use sbx_proto::plan::Node;

    use super::*;

    #[test]
    fn another_directory_at_the_path_is_not_taken() {
        let temp = tempfile::tempdir().unwrap();
        let source = Source {
            path: temp.path().into(),
            ids: SourceIds::Plain,
            access: Access::ReadOnly,
            recursive: true,
            node: Some(Node {
                device: 0,
                inode: 0,
            }),
        };
        let error = open_tree(&source).unwrap_err();
        assert!(error.to_string().contains("another one"), "{error}");
    }

    #[test]
    fn the_owner_becomes_the_agent_and_other_ids_stay() {
        let sandbox = [IdRange {
            inside: 0,
            outside: 500_000,
            count: 65_536,
        }];
        let range = |inside, outside, count| IdRange {
            inside,
            outside,
            count,
        };
        assert_eq!(
            owner_map(&sandbox, 0),
            [
                range(0, 501_000, 1),
                range(500_000, 500_000, 1000),
                range(501_001, 501_001, 64_535),
            ]
        );
    }

    #[test]
    fn ids_of_a_saved_template_are_those_of_the_new_sandbox() {
        let sandbox = [IdRange {
            inside: 0,
            outside: 500_000,
            count: 65_536,
        }];
        let mapped = IdRange {
            inside: 300_000,
            outside: 500_000,
            count: 65_536,
        };
        assert_eq!(range_map(&sandbox, 300_000), [mapped]);
    }
}
