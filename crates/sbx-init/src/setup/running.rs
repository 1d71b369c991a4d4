//! Mounting a workspace into a sandbox that runs, and unmounting it, by a helper that joins the sandbox's namespaces.
//!
//! A mount in the inner mount namespace has locked flags only if a less privileged user namespace copied it
//! (mount_namespaces(7)), as it does with all mounts at the start. So the workspace is first attached in a private copy of
//! the outer mount namespace; the inner user namespace copies that one, and what is then taken out of the second copy
//! (`open_tree`) and attached in the inner mount namespace has its flags locked: `:ro` holds for root inside. The top of the
//! new mount itself is not locked in place (`MNT_LOCKED`): root inside can unmount it, which shows nothing but the sandbox's
//! own directory below it. That is why such a mount may lie in no other workspace, and have no mount below it.
//!
//! Mount points are made in the outer mount namespace, where programs inside can mount nothing, and only in file systems of
//! the sandbox's own. The capabilities that this takes are those of the sandbox's user namespaces, never the host's.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode as FileMode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, UnmountFlags};
use sbx_proto::plan::{Access, Attach, Detach, Ids, Mode, Node, Outcome, RUNNING_DESCRIPTORS};
use sbx_sys::mountinfo::{self, Entry};
use sbx_sys::process::{self, SingleThreaded};
use sbx_sys::{mounts, nsfs};

use super::mount_table::{look, mount_id};
use super::{become_root, sources, tree};
use crate::error::{ErrorContext, SetupError, SetupResult};
use crate::handover::identity;

/// Any file is without it, since nothing sets it.
const PROBE_XATTR: &str = "security.sbx-probe";
/// `linux/magic.h`
const OVERLAYFS_MAGIC: i64 = 0x794c_7630;

/// Why something was not done.
#[derive(Debug)]
pub(super) enum Stop {
    /// It cannot be done while the sandbox runs, and nothing has changed.
    NotNow(String),
    Failed(SetupError),
}

impl From<SetupError> for Stop {
    fn from(error: SetupError) -> Self {
        Self::Failed(error)
    }
}

type Running<T> = Result<T, Stop>;

/// The outcome, and a mount of a writable workspace that is attached nowhere.
pub(super) fn attach(
    proof: &SingleThreaded,
    ids: &Ids,
    job: &Attach,
    fds: Vec<OwnedFd>,
) -> SetupResult<(Outcome, Option<OwnedFd>)> {
    match try_attach(proof, ids, job, fds) {
        Ok(kept) => Ok((Outcome::Attached, kept)),
        Err(Stop::NotNow(why)) => Ok((Outcome::NotNow { why }, None)),
        Err(Stop::Failed(error)) => Err(error),
    }
}

pub(super) fn detach(ids: &Ids, job: &Detach, fds: Vec<OwnedFd>) -> SetupResult<Outcome> {
    match try_detach(ids, job, fds) {
        Ok(()) => Ok(Outcome::Done),
        Err(Stop::NotNow(why)) => Ok(Outcome::NotNow { why }),
        Err(Stop::Failed(error)) => Err(error),
    }
}

fn try_attach(
    proof: &SingleThreaded,
    ids: &Ids,
    job: &Attach,
    fds: Vec<OwnedFd>,
) -> Running<Option<OwnedFd>> {
    let target = job.target.as_path();
    let namespaces = Namespaces::check(fds, ids.mode, job.init)?;
    let proc = tree::open_path(Path::new("/proc"))?;
    let Opened { tree, kept } = open(proof, ids, job, &namespaces)?;
    become_root(ids.mode)?;
    let is_directory = kind_of(&tree)? == FileType::Directory;
    if job.again {
        namespaces.join(&namespaces.mount, process::NEW_MOUNT)?;
        if is_mounted(&proc, target, is_directory, node_of(&tree)?)? {
            return Ok(None);
        }
    }
    namespaces.join(&namespaces.outer_mount, process::NEW_MOUNT)?;
    process::unshare(proof, process::NEW_MOUNT)
        .doing(|| "copy the outer mount namespace".into())?;
    let outer = walk(target, is_directory, Missing::Make)?;
    tree::move_to(tree.as_fd(), outer.as_fd()).doing(|| at("mount", target))?;
    drop(tree);
    has_none_below(&proc, target)?;
    let locked = copy_locked(proof, &namespaces, target)?;
    namespaces.join(&namespaces.mount, process::NEW_MOUNT)?;
    for mount in mounts_of_this_process(&proc)? {
        if mount.point.starts_with(target) {
            let what = format!("something is mounted at `{}`", mount.point.display());
            return Err(Stop::NotNow(what));
        }
    }
    let inner = walk(target, is_directory, Missing::Leave)?;
    if node_of(&inner)? != node_of(&outer)? {
        let what = format!("something is mounted on the way to `{}`", target.display());
        return Err(Stop::NotNow(what));
    }
    tree::move_to(locked.as_fd(), inner.as_fd()).doing(|| at("mount", target))?;
    Ok(kept)
}

fn try_detach(ids: &Ids, job: &Detach, fds: Vec<OwnedFd>) -> Running<()> {
    let target = job.target.as_path();
    let namespaces = Namespaces::check(fds, ids.mode, job.init)?;
    let proc = tree::open_path(Path::new("/proc"))?;
    namespaces.join(&namespaces.user, process::NEW_USER)?;
    become_root(ids.mode)?;
    namespaces.join(&namespaces.mount, process::NEW_MOUNT)?;
    let gone = || Stop::NotNow(format!("it is not mounted at `{}` now", target.display()));
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(SetupError::new(at("unmount", target), "invalid path").into());
    };
    let parent = walk(parent, true, Missing::Leave)?;
    let (place, _) = look(&parent, Path::new(name)).map_err(|_| gone())?;
    let id = mount_id(place.as_fd()).doing(|| at("look at", target))?;
    let mounts = mounts_of_this_process(&proc)?;
    let is_it = mounts
        .iter()
        .any(|mount| mount.id == id && mount.point == target);
    if !is_it || job.node.is_some_and(|node| !is_node(&place, node)) {
        return Err(gone());
    }
    // It would keep the mount busy.
    drop(place);
    rustix::process::fchdir(&parent).doing(|| at("enter the parent of", target))?;
    match rustix::mount::unmount(name, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        // MNT_LOCKED, or a mount below it that is.
        Err(Errno::INVAL) => Err(Stop::NotNow(
            "what was mounted when the sandbox started is locked while it runs".into(),
        )),
        Err(error) => Err(error).doing(|| at("unmount", target))?,
    }
}

/// Those of the sandbox.
struct Namespaces {
    outer_user: OwnedFd,
    outer_mount: OwnedFd,
    user: OwnedFd,
    mount: OwnedFd,
}

impl Namespaces {
    /// They come from an init, which is not trusted: they must belong to each other, and be below this process's.
    fn check(fds: Vec<OwnedFd>, mode: Mode, init: i32) -> SetupResult<Self> {
        let doing = "look at the namespaces of the sandbox";
        let fds: [OwnedFd; RUNNING_DESCRIPTORS] = fds
            .try_into()
            .map_err(|_| SetupError::new(doing, "wrong number of descriptors"))?;
        let [outer_user, outer_mount, user, mount] = fds;
        let is = |one: io::Result<OwnedFd>, other: BorrowedFd<'_>| -> io::Result<bool> {
            let (one, other) = (rustix::fs::fstat(one?)?, rustix::fs::fstat(other)?);
            Ok(identity(&one) == identity(&other))
        };
        let open = |path: String| File::open(path).map(OwnedFd::from);
        let own = open("/proc/self/ns/user".into()).doing(|| doing.into())?;
        let mut checks = vec![
            is(nsfs::parent(outer_user.as_fd()), own.as_fd()),
            is(nsfs::owner(outer_mount.as_fd()), outer_user.as_fd()),
            is(nsfs::parent(user.as_fd()), outer_user.as_fd()),
            is(nsfs::owner(mount.as_fd()), user.as_fd()),
        ];
        // Init is not dumpable: others than host root cannot look there.
        if mode == Mode::Root {
            let of_init = |name| open(format!("/proc/{init}/ns/{name}"));
            checks.push(is(of_init("user"), outer_user.as_fd()));
            checks.push(is(of_init("mnt"), outer_mount.as_fd()));
        }
        for check in checks {
            if !check.doing(|| doing.into())? {
                return Err(SetupError::new(doing, "they are not those of its init"));
            }
        }
        Ok(Self {
            outer_user,
            outer_mount,
            user,
            mount,
        })
    }

    fn join(&self, namespace: &OwnedFd, kind: process::NamespaceFlags) -> SetupResult<()> {
        process::setns(namespace.as_fd(), kind).doing(|| "join the sandbox's namespaces".into())
    }
}

/// A workspace, as two mounts that are attached nowhere.
struct Opened {
    tree: OwnedFd,
    /// For init, which hands files over in it.
    kept: Option<OwnedFd>,
}

/// Opens it as the start does: in root mode with host root's capabilities, else with those that the caller has in a mount
/// namespace of the sandbox's outer user namespace. Then this process is in that user namespace.
fn open(
    proof: &SingleThreaded,
    ids: &Ids,
    job: &Attach,
    namespaces: &Namespaces,
) -> SetupResult<Opened> {
    let writable = job.source.access == Access::ReadWrite;
    if ids.mode == Mode::Root {
        let mut root = sources::RootOpener::new(proof, ids, namespaces.outer_user.as_fd());
        let tree = root.open(&job.source)?;
        let kept = writable.then(|| root.open(&job.source)).transpose()?;
        namespaces.join(&namespaces.outer_user, process::NEW_USER)?;
        return Ok(Opened { tree, kept });
    }
    namespaces.join(&namespaces.outer_user, process::NEW_USER)?;
    process::unshare(proof, process::NEW_MOUNT).doing(|| "make a mount namespace".into())?;
    tree::make_private()?;
    let tree = sources::open(&job.source)?;
    let kept = writable.then(|| sources::open(&job.source)).transpose()?;
    Ok(Opened { tree, kept })
}

/// Whether that very directory or file is mounted there, in this process's mount namespace.
fn is_mounted(proc: &OwnedFd, target: &Path, is_directory: bool, node: Node) -> SetupResult<bool> {
    let Ok(place) = walk(target, is_directory, Missing::Leave) else {
        return Ok(false);
    };
    let id = mount_id(place.as_fd()).doing(|| at("look at", target))?;
    let mut mounts = mounts_of_this_process(proc)?.into_iter();
    Ok(is_node(&place, node) && mounts.any(|mount| mount.id == id && mount.point == target))
}

/// What is at `target` in this process's mount namespace, as the inner user namespace may have it: with locked flags.
/// Then this process is in that user namespace.
fn copy_locked(
    proof: &SingleThreaded,
    namespaces: &Namespaces,
    target: &Path,
) -> SetupResult<OwnedFd> {
    namespaces.join(&namespaces.user, process::NEW_USER)?;
    process::unshare(proof, process::NEW_MOUNT)
        .doing(|| "copy the mounts for the inner user namespace".into())?;
    let place = rustix::fs::openat2(
        rustix::fs::CWD,
        target,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        FileMode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
    .doing(|| at("find the mount of", target))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    rustix::mount::open_tree(&place, c"", flags).doing(|| at("copy the mount of", target))
}

/// What the host has mounted below a workspace is held in place by rules that commands get when they start.
fn has_none_below(proc: &OwnedFd, target: &Path) -> Running<()> {
    let mounts = mounts_of_this_process(proc)?;
    let top = mounts.iter().rev().find(|mount| mount.point == target);
    let top = top.map(|mount| mount.id);
    let below = mounts.iter().find(|mount| Some(mount.parent) == top);
    match below {
        None => Ok(()),
        Some(mount) => {
            let below = mount.point.strip_prefix(target).unwrap_or(&mount.point);
            let what = format!(
                "the host has something mounted in it, at `{}`",
                below.display()
            );
            Err(Stop::NotNow(what))
        }
    }
}

/// By a `/proc` of the host: that of the sandbox does not have this process.
fn mounts_of_this_process(proc: &OwnedFd) -> SetupResult<Vec<Entry>> {
    let doing = || "read the list of mounts".into();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let list = rustix::fs::openat(proc, "self/mountinfo", flags, FileMode::empty()).doing(doing)?;
    let mut text = Vec::new();
    File::from(list).read_to_end(&mut text).doing(doing)?;
    Ok(mountinfo::parse(&text))
}

/// What to do about a name that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Make,
    Leave,
}

/// Walks from the root to a mount point, one name at a time, and follows no link: programs inside can have made it.
fn walk(target: &Path, is_directory: bool, missing: Missing) -> Running<OwnedFd> {
    let names: Vec<PathBuf> = target
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(PathBuf::from(name)),
            _ => None,
        })
        .collect();
    let mut place = tree::open_path(Path::new("/"))?;
    let mut way = PathBuf::from("/");
    for (index, name) in names.iter().enumerate() {
        way.push(name);
        let as_directory = is_directory || index + 1 < names.len();
        let found = match look(&place, name) {
            Err(Errno::NOENT) if missing == Missing::Make => {
                make(&place, name, as_directory, &way)?;
                look(&place, name)
            }
            other => other,
        };
        let (next, kind) = found.map_err(|error| in_the_way(&way, error))?;
        match (kind, as_directory) {
            (FileType::Directory, true) => {}
            (FileType::Directory | FileType::Symlink, _) | (_, true) => {
                return Err(Stop::NotNow(format!(
                    "`{}` exists and is of another type",
                    way.display()
                )));
            }
            (_, false) => {}
        }
        place = next;
    }
    Ok(place)
}

fn in_the_way(way: &Path, error: Errno) -> Stop {
    let error = io::Error::from(error);
    Stop::NotNow(format!("`{}` cannot be reached: {error}", way.display()))
}

/// Makes a mount point, in a file system of the sandbox's own only.
fn make(dir: &OwnedFd, name: &Path, as_directory: bool, way: &Path) -> Running<()> {
    let unreachable = |error| in_the_way(way, error);
    let place = open_directory(dir).map_err(unreachable)?;
    let place = match origin(&place).map_err(unreachable)? {
        Origin::Own | Origin::Layer => place,
        // Directories around tool chains are closed when the tree is finished. A copy of the mount is not.
        Origin::Closed => {
            let copy = writable_copy(dir).map_err(unreachable)?;
            let place = open_directory(&copy).map_err(unreachable)?;
            if origin(&place).map_err(unreachable)? != Origin::Own {
                return Err(not_own(way));
            }
            place
        }
        Origin::Host => return Err(not_own(way)),
    };
    make_in(place.as_fd(), name, as_directory).map_err(unreachable)
}

fn not_own(way: &Path) -> Stop {
    Stop::NotNow(format!(
        "`{}` does not exist, and is not below the sandbox's own files",
        way.display()
    ))
}

fn open_directory(dir: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, ".", flags, FileMode::empty())
}

/// Whose file system a directory is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Mounted by this sandbox.
    Own,
    /// A writable overlay. Those of the host can be written in workspaces only, in which no mount point is made.
    Layer,
    /// Not to be told, because it is read-only.
    Closed,
    Host,
}

/// To remove a `security.*` attribute takes CAP_SYS_ADMIN in the user namespace that mounted the file system; the kernel
/// checks that before it looks for the attribute. An overlay passes the call on to the host's file system below it where the
/// directory has been copied up, and there it takes more.
fn origin(dir: &OwnedFd) -> Result<Origin, Errno> {
    match rustix::fs::fremovexattr(dir, PROBE_XATTR) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(Origin::Own),
        Err(Errno::ROFS) => Ok(Origin::Closed),
        Ok(()) | Err(_) if rustix::fs::fstatfs(dir)?.f_type == OVERLAYFS_MAGIC => Ok(Origin::Layer),
        Ok(()) | Err(_) => Ok(Origin::Host),
    }
}

fn make_in(dir: BorrowedFd<'_>, name: &Path, as_directory: bool) -> Result<(), Errno> {
    if as_directory {
        return rustix::fs::mkdirat(dir, name, FileMode::from_bits_truncate(0o755));
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, FileMode::from_bits_truncate(0o644)).map(drop)
}

/// A mount of the directory that is attached nowhere and can be written.
fn writable_copy(dir: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let copy = rustix::mount::open_tree(dir, c"", flags)?;
    mounts::make_writable(copy.as_fd())
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(copy)
}

fn kind_of(fd: &OwnedFd) -> SetupResult<FileType> {
    let stat = rustix::fs::fstat(fd).doing(|| "look at the workspace".into())?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

fn node_of(fd: &OwnedFd) -> SetupResult<Node> {
    let stat = rustix::fs::fstat(fd).doing(|| "look at a mount point".into())?;
    Ok(identity(&stat))
}

fn is_node(fd: &OwnedFd, node: Node) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| identity(&stat) == node)
}

fn at(what: &str, target: &Path) -> String {
    format!("{what} `{}`", target.display())
}
