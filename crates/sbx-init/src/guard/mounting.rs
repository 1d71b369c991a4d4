//! New mounts, which the guard makes on behalf of the caller: mount(2) without a source that exists already.
//!
//! A mount point is opened once and mounted on by that descriptor. It changes the caller's view only: the kernel refuses
//! one that is not in the caller's mount namespace.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FsWord, Mode as FileMode, OFlags, PROC_SUPER_MAGIC, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsOpenFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
};
use sbx_sys::mounts;
use sbx_sys::process;

use super::caller::{self, Caller, io};
use super::{Answer, DONE, Guard, Target, Work, base_of, low32};
use crate::setup::Namespaces;

/// File systems that may be mounted inside. None of them can show or change a file of the host. Not allowed: overlay
/// (its upper layer could be a workspace, and copy-up writes setuid files there), cgroup and cgroup2 (an ordinary user's
/// delegated cgroup contains more than the sandbox), fuse.
const MOUNTABLE: &[&str] = &["tmpfs", "ramfs", "proc", "sysfs", "mqueue"];
const PROC: &CStr = c"proc";
/// Options of a new proc that do not name a file. `pidns=` does, and the kernel would open it as the guard's process:
/// `/proc/self` would be that process, and a FIFO would block it.
const PROC_OPTIONS: &[&str] = &["gid", "hidepid", "subset"];
/// Its mount point in the sandbox's mount namespaces.
const PROC_PATH: &CStr = c"/proc";
/// Mountable too, but never as a new instance: `kernel.pty.max` holds for the whole machine, and each instance has a limit
/// of its own. The guard attaches another mount of the sandbox's one instance.
const DEVPTS: &CStr = c"devpts";
/// Its mount point in init's mount namespace.
const DEVPTS_PATH: &CStr = c"/dev/pts";
const DEVPTS_MAGIC: FsWord = 0x1cd1;
/// Flags of mount(2) that have the same bits as `MOUNT_ATTR_*`.
const SHARED_ATTRIBUTES: u64 = mounts::RDONLY | mounts::NOSUID | mounts::NODEV | mounts::NOEXEC;
/// `MS_MGC_VAL`: the kernel ignores the upper 16 bits of the flags if they are exactly this.
const MS_MGC_VAL_HIGH: u64 = 0xc0ed_0000;
const PROPAGATION: MountPropagationFlags = MountPropagationFlags::SHARED
    .union(MountPropagationFlags::PRIVATE)
    .union(MountPropagationFlags::DOWNSTREAM)
    .union(MountPropagationFlags::UNBINDABLE);

/// The arguments of mount(2).
pub(super) struct Mount {
    pub(super) source: CString,
    pub(super) target: Target,
    pub(super) kind: CString,
    pub(super) flags: u64,
    pub(super) data: CString,
}

/// What mount(2) with these arguments comes to.
pub(super) fn mount(
    guard: &Guard,
    namespaces: &Namespaces,
    caller: &Caller,
    mount: Mount,
) -> Result<Work, Errno> {
    let tree = if mount.makes(DEVPTS) {
        clone_devpts()?
    } else if mount.makes(PROC) && mount.data.is_empty() && shares_proc(guard, namespaces, caller)?
    {
        clone_proc(namespaces)?
    } else {
        return Ok(Work::Mount(Box::new(mount)));
    };
    Ok(Work::Attach(Box::new(mount), tree))
}

/// What `fsopen` of this type comes to. ENOSYS, as from an old kernel, where the guard attaches another mount instead:
/// programs fall back to mount(2).
pub(super) fn open_file_system(
    guard: &Guard,
    namespaces: &Namespaces,
    caller: &Caller,
    kind: CString,
    flags: u32,
) -> Result<Work, Errno> {
    let is_attached = kind.as_c_str() == DEVPTS
        || (kind.as_c_str() == PROC && shares_proc(guard, namespaces, caller)?);
    if is_attached {
        return Err(Errno::NOSYS);
    }
    Ok(Work::OpenFileSystem(kind, flags))
}

/// Does what [`Work::OpenFileSystem`] says.
pub(super) fn make_context(kind: &CStr, flags: u32) -> Result<Answer, Errno> {
    check_fs_type(kind)?;
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    Ok(Answer::Descriptor {
        fd: context,
        close_on_exec: flags & 1 != 0,
    })
}

/// Whether a new proc would show the sandbox's own pid namespace, for a caller that has the sandbox's user namespace. The
/// kernel refuses that mount, because the pid namespace belongs to the outer user namespace. In a nested user namespace
/// the refusal stays, as it is on a host.
fn shares_proc(guard: &Guard, namespaces: &Namespaces, caller: &Caller) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let own = rustix::fs::openat(&guard.proc, c"self/ns/pid", flags, FileMode::empty())?;
    caller.is_in(own.as_fd(), namespaces.user.as_fd())
}

/// A detached copy of the sandbox's proc and of what masks files of it. Copied from the mount namespace of the commands,
/// where the masks are locked (`MNT_LOCKED`), and so they are in the copy: one from init's could be unmasked.
fn clone_proc(namespaces: &Namespaces) -> Result<OwnedFd, Errno> {
    process::setns(namespaces.mount.as_fd(), process::NEW_MOUNT).map_err(io)?;
    clone_mount(PROC_PATH, PROC_SUPER_MAGIC, OpenTreeFlags::AT_RECURSIVE)
}

/// A detached mount of the sandbox's devpts.
fn clone_devpts() -> Result<OwnedFd, Errno> {
    clone_mount(DEVPTS_PATH, DEVPTS_MAGIC, OpenTreeFlags::empty())
}

/// `open_tree` clones only mounts of the current mount namespace, so this comes before the guard joins the caller's.
fn clone_mount(path: &CStr, magic: FsWord, how: OpenTreeFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, FileMode::empty())?;
    // Root inside may have mounted something else there.
    if rustix::fs::fstatfs(&dir)?.f_type != magic {
        return Err(Errno::PERM);
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(&dir, c"", flags | how)
}

/// Whether all options of a new proc are on the list.
fn proc_options_allowed(options: &CStr) -> bool {
    let is_known = |option: &[u8]| {
        let key = option.split(|byte| *byte == b'=').next();
        option.is_empty()
            || PROC_OPTIONS
                .iter()
                .any(|known| key == Some(known.as_bytes()))
    };
    options.to_bytes().split(|byte| *byte == b',').all(is_known)
}

fn check_fs_type(kind: &CStr) -> Result<(), Errno> {
    if kind.to_str().is_ok_and(|kind| MOUNTABLE.contains(&kind)) {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

impl Mount {
    fn flags(&self) -> u32 {
        match self.flags & 0xffff_0000 {
            MS_MGC_VAL_HIGH => low32(self.flags) & 0xffff,
            _ => low32(self.flags),
        }
    }

    /// Whether it mounts a new file system of this type.
    fn makes(&self, kind: &CStr) -> bool {
        self.flags() & PROPAGATION.bits() == 0 && self.kind.as_c_str() == kind
    }

    /// The mount point. It may be in proc: a mount over it changes the caller's view only. A descriptor of the caller is one
    /// as it is (`/proc/self/fd/N`): the kernel asks for no permission to mount on what is open.
    fn point(&self) -> Result<OwnedFd, Errno> {
        match &self.target {
            Target::Open(fd) => fd.try_clone().map_err(io),
            Target::Path { base, path, .. } => {
                let flags = OFlags::PATH | OFlags::CLOEXEC;
                let resolve = ResolveFlags::NO_MAGICLINKS;
                let base = base_of(base.as_ref());
                rustix::fs::openat2(base, path, flags, FileMode::empty(), resolve)
            }
        }
    }

    pub(super) fn attach(&self, tree: &OwnedFd) -> Result<Answer, Errno> {
        let point = self.point()?;
        let attributes = u64::from(self.flags()) & SHARED_ATTRIBUTES;
        mounts::set_attributes(tree.as_fd(), false, attributes, None).map_err(io)?;
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(tree, c"", &point, c"", flags)?;
        Ok(DONE)
    }

    pub(super) fn perform(&self, guard: &Guard) -> Result<Answer, Errno> {
        let flags = self.flags();
        // Looked up once; mount(2) then gets its magic link, which cannot be swapped. `.` would do for directories only.
        let point = self.point()?;
        rustix::process::fchdir(&guard.proc)?;
        let here = caller::self_path(point.as_fd());
        if flags & PROPAGATION.bits() != 0 {
            let propagation = MountPropagationFlags::from_bits_retain(flags);
            rustix::mount::mount_change(here.as_str(), propagation)?;
            return Ok(DONE);
        }
        check_fs_type(&self.kind)?;
        if self.kind.as_c_str() == PROC && !proc_options_allowed(&self.data) {
            return Err(Errno::INVAL);
        }
        rustix::mount::mount(
            &self.source,
            here.as_str(),
            &self.kind,
            MountFlags::from_bits_retain(flags),
            Some(self.data.as_c_str()),
        )?;
        Ok(DONE)
    }
}
