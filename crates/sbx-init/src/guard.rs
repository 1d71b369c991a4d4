//! Answers the calls that the filter asks about, by doing them in the caller's place.
//!
//! Letting a call go on after a look at its arguments would be unsound: another thread can change the memory
//! behind a pointer, or the file behind a descriptor, in between. So a child of init copies the arguments,
//! takes on the caller's namespaces, root, directory, ids and capabilities, opens the object itself, decides
//! on that descriptor and acts on that descriptor. It can do nothing that the caller could not do.

mod caller;
mod judge;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{AtFlags, FileType, Mode as FileMode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsOpenFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
};
use sbx_sys::mounts;
use sbx_sys::process::{self, SingleThreaded};
use sbx_sys::seccomp::{self, Notification};

use crate::setup::Own;
use caller::{Caller, Joined, MountList};
use judge::Judge;
use sbx_sys::mountinfo::Entry;

/// File systems that may be mounted inside. None of them can show or change a file of the host. Not here:
/// overlay (its upper layer could be a workspace, and copy-up writes setuid files there), cgroup and cgroup2
/// (an ordinary user's delegated group holds more than the sandbox), fuse.
const MOUNTABLE: &[&str] = &["tmpfs", "ramfs", "proc", "sysfs", "mqueue"];
/// Options of a new proc that name nothing. `pidns=` names a file, which the kernel would open as the process that
/// answers: `/proc/self` is that one, and it would wait for the other end of a FIFO.
const PROC_OPTIONS: &[&str] = &["gid", "hidepid", "subset"];
/// Mountable too, but never anew: the machine has a few thousand terminals for everybody, and each new file system of
/// them would have a count of its own. What is mounted is the sandbox's, once more.
const DEVPTS: &CStr = c"devpts";
/// Where it is, as init sees it.
const TERMINALS: &CStr = c"/dev/pts";
const DEVPTS_MAGIC: rustix::fs::FsWord = 0x1cd1;
/// Read-only and no setuid programs, devices or programs: the same bits as flags of mount(2) and as attributes.
const SHARED_ATTRIBUTES: u64 = mounts::RDONLY | mounts::NOSUID | mounts::NODEV | mounts::NOEXEC;
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
/// `MS_MGC_VAL`: the kernel ignores this upper half if it is exactly this.
const OLD_MAGIC: u64 = 0xc0ed_0000;
const PROPAGATION: MountPropagationFlags = MountPropagationFlags::SHARED
    .union(MountPropagationFlags::PRIVATE)
    .union(MountPropagationFlags::DOWNSTREAM)
    .union(MountPropagationFlags::UNBINDABLE);
const MAX_XATTR: usize = 64 << 10;
/// Every flag of open(2) that this code was written for.
const KNOWN_FLAGS: u32 = (libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_DSYNC
    | libc::O_SYNC
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_CLOEXEC
    | libc::O_TMPFILE) as u32;

/// What is known about the sandbox's file systems.
#[derive(Debug)]
pub(crate) struct Guard {
    proc: OwnedFd,
    /// The sandbox's layers and memory file systems.
    own: Own,
    /// All others that were mounted when it started, which belong to the host.
    foreign: BTreeSet<String>,
}

/// What tells whose a file is.
struct Evidence {
    mounts: MountList,
    judge: Judge,
}

impl Guard {
    /// `mounts` is init's own view, right after the tree was built.
    pub(crate) fn new(proc: OwnedFd, mounts: &[Entry], own: Own) -> Self {
        let foreign = mounts
            .iter()
            .map(|mount| mount.device.clone())
            .filter(|device| !own.contains_key(device))
            .collect();
        Self { proc, own, foreign }
    }

    pub(crate) fn proc(&self) -> BorrowedFd<'_> {
        self.proc.as_fd()
    }

    /// May the object behind `fd` carry setuid bits and file capabilities? Only what cannot be seen from the
    /// host: the sandbox's own layers, and memory file systems that were mounted inside.
    fn is_own(&self, fd: BorrowedFd<'_>, evidence: &Evidence) -> bool {
        let Some(id) = caller::mount_id(&self.proc, fd) else {
            return false;
        };
        // Read while the object is open: a number is given to another mount as soon as nothing holds it.
        let mounts = evidence.mounts.read();
        // A mount that is attached nowhere is not listed, and so not the sandbox's own.
        mounts
            .iter()
            .find(|mount| mount.id == id)
            .is_some_and(|mount| {
                self.own.contains_key(&mount.device)
                    || (matches!(mount.kind.as_str(), "tmpfs" | "ramfs")
                        && !self.foreign.contains(&mount.device)
                        && evidence.judge.is_from_inside(fd))
            })
    }
}

/// Answers one call. Runs in a child of init, which ends afterwards.
pub(crate) fn answer(
    proof: &SingleThreaded,
    guard: &Guard,
    listener: BorrowedFd<'_>,
    call: &Notification,
) {
    // Nothing of init's may be within reach of a path that the caller made up.
    let closed = process::close_all_but(&[guard.proc.as_fd(), listener]).map_err(|_| Errno::IO);
    let result = closed
        .and_then(|()| Caller::find(&guard.proc, call.pid))
        .and_then(|caller| perform(proof, guard, listener, call, caller));
    let given = match result {
        Ok(Answer::Value(value)) => seccomp::respond(listener, call.id, Ok(value)),
        Ok(Answer::Descriptor { fd, close_on_exec }) => {
            seccomp::respond_with_fd(listener, call.id, fd.as_fd(), close_on_exec)
        }
        Ok(Answer::GoOn) => seccomp::respond_continue(listener, call.id),
        Err(error) => seccomp::respond(listener, call.id, Err(error.raw_os_error())),
    };
    if let Err(error) = given {
        // The caller's table of descriptors may be full, for one.
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        let _ = seccomp::respond(listener, call.id, Err(errno));
    }
}

enum Answer {
    Value(i64),
    /// The kernel does it.
    GoOn,
    Descriptor {
        fd: OwnedFd,
        close_on_exec: bool,
    },
}

const DONE: Answer = Answer::Value(0);

/// The arguments as numbers of the width that the kernel gives them.
fn low(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}

fn perform(
    proof: &SingleThreaded,
    guard: &Guard,
    listener: BorrowedFd<'_>,
    call: &Notification,
    caller: Caller,
) -> Result<Answer, Errno> {
    let [a, b, c, d, e, _] = call.args;
    let here = libc::AT_FDCWD as u32 as u64;
    let work = match libc::c_long::from(call.syscall) {
        libc::SYS_fchmod => Work::ChangeMode(caller.descriptor(low(a))?, low(b)),
        libc::SYS_fchmodat => caller.change_mode(a, b, low(c), 0)?,
        libc::SYS_fchmodat2 => caller.change_mode(a, b, low(c), low(d))?,
        libc::SYS_openat => caller.create(a, b, low(c), low(d))?,
        libc::SYS_mknodat => caller.make_node(a, b, low(c), d)?,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod => caller.change_mode(here, a, low(b), 0)?,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => caller.create(here, a, low(b), low(c))?,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat => {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            caller.create(here, a, flags.cast_unsigned(), low(b))?
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mknod => caller.make_node(here, a, low(b), c)?,
        libc::SYS_setxattr => Work::SetXattr(caller.place(here, a, 0)?, caller.xattr(b, c, d, e)?),
        libc::SYS_lsetxattr => {
            let flags = libc::AT_SYMLINK_NOFOLLOW.cast_unsigned();
            Work::SetXattr(caller.place(here, a, flags)?, caller.xattr(b, c, d, e)?)
        }
        libc::SYS_fsetxattr => {
            let fd = caller.descriptor(low(a))?;
            if names_a_place_only(&fd)? {
                return Err(Errno::BADF);
            }
            Work::SetXattr(Place::Open(fd), caller.xattr(b, c, d, e)?)
        }
        libc::SYS_mount => {
            let mount = caller.mount(call.args)?;
            if mount.makes(DEVPTS) {
                Work::ShowTerminals(Box::new(mount), terminals()?)
            } else {
                Work::Mount(Box::new(mount))
            }
        }
        libc::SYS_landlock_restrict_self => {
            // A thread that cannot gain privileges never can again: nothing about this goes stale.
            return match caller.is_marked_confined() && seccomp::is_valid(listener, call.id) {
                true => Ok(Answer::GoOn),
                false => Err(Errno::PERM),
            };
        }
        libc::SYS_inotify_add_watch => caller.watch(a, b, low(c))?,
        libc::SYS_fsopen => Work::OpenFileSystem(caller.string(a, 64)?, low(b)),
        _ => return Err(Errno::NOSYS),
    };
    let evidence = match work {
        Work::ChangeMode(..) | Work::ChangeModeAt(..) | Work::SetXattr(..) => Some(Evidence {
            mounts: caller.mounts()?,
            judge: Judge::summon(proof, &guard.proc)?,
        }),
        Work::Create { .. }
        | Work::MakeNode { .. }
        | Work::Mount(_)
        | Work::ShowTerminals(..)
        | Work::OpenFileSystem(..)
        | Work::Watch { .. } => None,
    };
    // Only now is everything above known to be about the process that asked.
    if !seccomp::is_valid(listener, call.id) {
        return Err(Errno::SRCH);
    }
    match work {
        Work::Mount(_) | Work::OpenFileSystem(..) => work.run_where_it_shows(proof, guard, caller),
        _ => {
            caller.take_on(&guard.proc)?;
            work.run(guard, evidence.as_ref())
        }
    }
}

/// A call with its arguments copied.
enum Work {
    ChangeMode(OwnedFd, u32),
    ChangeModeAt(Place, u32),
    Create {
        place: Place,
        flags: OFlags,
        mode: u32,
    },
    MakeNode {
        place: Place,
        mode: u32,
        device: u64,
    },
    SetXattr(Place, Xattr),
    Mount(Box<Mount>),
    /// With a mount of the sandbox's terminals that is attached nowhere yet.
    ShowTerminals(Box<Mount>, OwnedFd),
    OpenFileSystem(CString, u32),
    Watch {
        inotify: OwnedFd,
        place: Place,
        events: WatchFlags,
    },
}

/// A file, as the caller names it.
enum Place {
    Open(OwnedFd),
    Path {
        base: Option<OwnedFd>,
        path: CString,
        follow: bool,
    },
}

struct Xattr {
    name: CString,
    value: Vec<u8>,
    flags: u32,
}

struct Mount {
    source: CString,
    /// Where a relative target begins.
    base: Option<OwnedFd>,
    target: CString,
    kind: CString,
    flags: u64,
    data: CString,
}

impl Place {
    /// The object itself. Runs as the caller: the kernel checks every directory on the way.
    fn open(self) -> Result<OwnedFd, Errno> {
        match self {
            Self::Open(fd) => Ok(fd),
            Self::Path { base, path, follow } => {
                let mut flags = OFlags::PATH | OFlags::CLOEXEC;
                flags.set(OFlags::NOFOLLOW, !follow);
                open(base_of(base.as_ref()), &path, flags, FileMode::empty())
            }
        }
    }
}

/// Opens as the caller would, except below `/proc`: `self` there is this process, and its links lead to what
/// this process has open.
fn open(
    base: BorrowedFd<'_>,
    path: &CStr,
    flags: OFlags,
    mode: FileMode,
) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::openat2(base, path, flags, mode, ResolveFlags::NO_MAGICLINKS)?;
    if rustix::fs::fstatfs(&fd)?.f_type == rustix::fs::PROC_SUPER_MAGIC {
        return Err(Errno::PERM);
    }
    Ok(fd)
}

/// Where something is to be mounted, which may be proc itself: to cover it in the caller's view is harmless.
fn open_mount_point(mount: &Mount) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_MAGICLINKS;
    let base = base_of(mount.base.as_ref());
    rustix::fs::openat2(base, &mount.target, flags, FileMode::empty(), resolve)
}

fn base_of(base: Option<&OwnedFd>) -> BorrowedFd<'_> {
    base.map_or(rustix::fs::CWD, AsFd::as_fd)
}

impl Work {
    /// In the caller's namespaces, which the result shows.
    fn run_where_it_shows(
        self,
        proof: &SingleThreaded,
        guard: &Guard,
        caller: Caller,
    ) -> Result<Answer, Errno> {
        let makes_descriptor = matches!(self, Self::OpenFileSystem(..));
        match caller.join_what_mounts_show(proof)? {
            Joined::Parent(child) => match child.outcome() {
                // Whoever has the descriptor has given it.
                Ok(()) if makes_descriptor => process::exit_now(0),
                // Only now: before, the caller could see the child in its pid namespace.
                outcome => outcome.map(|()| DONE),
            },
            Joined::Child(parent) => {
                let ready = caller.take_on(&guard.proc);
                let ready = ready.and_then(|()| parent.end_with());
                match ready.and_then(|()| self.run(guard, None)) {
                    Ok(answer) if makes_descriptor => Ok(answer),
                    done => caller::tell_outcome(done.map(drop)),
                }
            }
        }
    }

    fn run(self, guard: &Guard, evidence: Option<&Evidence>) -> Result<Answer, Errno> {
        match self {
            Self::ChangeMode(fd, mode) => {
                allow_mode(guard, fd.as_fd(), evidence, mode)?;
                rustix::fs::fchmod(&fd, FileMode::from_bits_truncate(mode))?;
                Ok(DONE)
            }
            Self::ChangeModeAt(place, mode) => {
                let fd = place.open()?;
                let kind = rustix::fs::fstat(&fd)?.st_mode;
                if FileType::from_raw_mode(kind) == FileType::Symlink {
                    return Err(Errno::OPNOTSUPP);
                }
                allow_mode(guard, fd.as_fd(), evidence, mode)?;
                let path = caller::self_path(fd.as_fd());
                rustix::fs::chmodat(
                    &guard.proc,
                    path,
                    FileMode::from_bits_truncate(mode),
                    AtFlags::empty(),
                )?;
                Ok(DONE)
            }
            Self::Create { place, flags, mode } => create(place, flags, mode),
            Self::MakeNode {
                place,
                mode,
                device,
            } => make_node(place, mode, device),
            Self::SetXattr(place, xattr) => set_xattr(guard, evidence, place, &xattr),
            Self::Mount(mount) => mount.perform(),
            Self::ShowTerminals(mount, terminals) => mount.show(&terminals),
            Self::Watch {
                inotify,
                place,
                events,
            } => watch(guard, &inotify, place, events),
            // As from a kernel without the call: programs fall back to mount(2).
            Self::OpenFileSystem(kind, _) if kind.as_c_str() == DEVPTS => Err(Errno::NOSYS),
            Self::OpenFileSystem(kind, flags) => {
                allow_kind(&kind)?;
                let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
                Ok(Answer::Descriptor {
                    fd: context,
                    close_on_exec: flags & 1 != 0,
                })
            }
        }
    }
}

fn allow_set_id(
    guard: &Guard,
    fd: BorrowedFd<'_>,
    evidence: Option<&Evidence>,
) -> Result<(), Errno> {
    if evidence.is_some_and(|evidence| guard.is_own(fd, evidence)) {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

/// May the object behind `fd` have this mode, which has one of the bits? Setgid on a directory gives no power: what is
/// made in it gets its group, no more. Team directories have it, and tools that copy them fail without. What is open
/// as a directory stays one.
fn allow_mode(
    guard: &Guard,
    fd: BorrowedFd<'_>,
    evidence: Option<&Evidence>,
    mode: u32,
) -> Result<(), Errno> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
    if kind == FileType::Directory && mode & libc::S_ISUID == 0 {
        return Ok(());
    }
    allow_set_id(guard, fd, evidence)
}

/// Whether the options of a new proc are among those that are known.
fn names_nothing(options: &CStr) -> bool {
    let is_known = |option: &[u8]| {
        let key = option.split(|byte| *byte == b'=').next();
        option.is_empty()
            || PROC_OPTIONS
                .iter()
                .any(|known| key == Some(known.as_bytes()))
    };
    options.to_bytes().split(|byte| *byte == b',').all(is_known)
}

fn allow_kind(kind: &CStr) -> Result<(), Errno> {
    if kind.to_str().is_ok_and(|kind| MOUNTABLE.contains(&kind)) {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

/// A new file begins without the bits; a program that wants them changes the mode afterwards and is asked
/// about that. Only files: what would wait for another process (a FIFO) or for a device is refused.
fn create(place: Place, flags: OFlags, mode: u32) -> Result<Answer, Errno> {
    let Place::Path { base, path, .. } = place else {
        return Err(Errno::BADF);
    };
    let close_on_exec = flags.contains(OFlags::CLOEXEC);
    let mode = FileMode::from_bits_truncate(mode & !SET_ID & 0o7777);
    // The kernel ignores what it does not know in openat, and refuses it in openat2.
    let known = OFlags::from_bits_retain(flags.bits() & KNOWN_FLAGS);
    let ours = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = open(base_of(base.as_ref()), &path, known | ours, mode)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Err(Errno::PERM);
    }
    if !flags.contains(OFlags::NONBLOCK) {
        let status = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, status.difference(OFlags::NONBLOCK))?;
    }
    Ok(Answer::Descriptor { fd, close_on_exec })
}

fn make_node(place: Place, mode: u32, device: u64) -> Result<Answer, Errno> {
    let Place::Path { base, path, .. } = place else {
        return Err(Errno::BADF);
    };
    let kind = FileType::from_raw_mode(mode);
    let mode = FileMode::from_bits_truncate(mode & !SET_ID);
    let (parent, name) = split(&path)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = open(base_of(base.as_ref()), &parent, flags, FileMode::empty())?;
    rustix::fs::mknodat(&parent, name, kind, mode, device)?;
    Ok(DONE)
}

/// Attributes that say nothing about modes and capabilities, on any file system: some keep a file's mode in an
/// attribute with a name of their own.
fn is_plain(name: &[u8]) -> bool {
    let private = [
        &b"user.containers."[..],
        b"user.overlay.",
        b"user.fuseoverlayfs.",
        b"user.virtfs.",
        b"user.rsync.",
    ];
    let user = name.starts_with(b"user.") && !private.iter().any(|prefix| name.starts_with(prefix));
    user || name == b"system.posix_acl_access"
}

/// What new files of a directory get in place of a umask, whoever makes them: the host's user in a workspace too.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The directory of a path and the name in it.
fn split(path: &CStr) -> Result<(CString, CString), Errno> {
    let bytes = path.to_bytes();
    let (parent, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (&b"/"[..], bytes.get(1..)),
        Some(at) => (bytes.get(..at).unwrap_or_default(), bytes.get(at + 1..)),
        None => (&b"."[..], Some(bytes)),
    };
    let name = name.filter(|name| !name.is_empty()).ok_or(Errno::NOENT)?;
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::INVAL);
    Ok((text(parent)?, text(name)?))
}

/// Was it opened with `O_PATH`?
fn names_a_place_only(fd: &OwnedFd) -> Result<bool, Errno> {
    Ok(rustix::fs::fcntl_getfl(fd)?.contains(OFlags::PATH))
}

fn set_xattr(
    guard: &Guard,
    evidence: Option<&Evidence>,
    place: Place,
    xattr: &Xattr,
) -> Result<Answer, Errno> {
    let fd = place.open()?;
    if !is_plain(xattr.name.as_bytes()) {
        allow_set_id(guard, fd.as_fd(), evidence).map_err(|error| {
            if xattr.name.as_bytes() == DEFAULT_ACL {
                // Programs that copy directories go on without, as on a file system that has none.
                Errno::OPNOTSUPP
            } else {
                error
            }
        })?;
    }
    let flags = XattrFlags::from_bits_retain(xattr.flags);
    if !names_a_place_only(&fd)? {
        rustix::fs::fsetxattr(&fd, &xattr.name, &xattr.value, flags)?;
        return Ok(DONE);
    }
    // There is no such call for a descriptor that names a place only; its link in proc leads to the object.
    rustix::process::fchdir(&guard.proc)?;
    rustix::fs::setxattr(
        caller::self_path(fd.as_fd()),
        &xattr.name,
        &xattr.value,
        flags,
    )?;
    Ok(DONE)
}

/// No device: the nodes inside are the host's, whose every use elsewhere would be an event here.
fn watch(
    guard: &Guard,
    inotify: &OwnedFd,
    place: Place,
    events: WatchFlags,
) -> Result<Answer, Errno> {
    let fd = place.open()?;
    match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
        FileType::CharacterDevice | FileType::BlockDevice => return Err(Errno::PERM),
        _ => {}
    }
    // Its link in proc leads to the object, and has to be followed.
    rustix::process::fchdir(&guard.proc)?;
    let events = events.difference(WatchFlags::DONT_FOLLOW);
    let watch = inotify::add_watch(inotify, caller::self_path(fd.as_fd()), events)?;
    Ok(Answer::Value(watch.into()))
}

/// The sandbox's terminals, mounted nowhere. Only in the namespace that they are mounted in can this be asked for, and so
/// before the caller's is joined.
fn terminals() -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::open(TERMINALS, flags, FileMode::empty())?;
    // Root inside may have put something else there.
    if rustix::fs::fstatfs(&place)?.f_type != DEVPTS_MAGIC {
        return Err(Errno::PERM);
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(&place, c"", flags)
}

impl Mount {
    fn flags(&self) -> u32 {
        match self.flags & 0xffff_0000 {
            OLD_MAGIC => low(self.flags) & 0xffff,
            _ => low(self.flags),
        }
    }

    /// Is it a new file system of this kind?
    fn makes(&self, kind: &CStr) -> bool {
        self.flags() & PROPAGATION.bits() == 0 && self.kind.as_c_str() == kind
    }

    fn show(&self, terminals: &OwnedFd) -> Result<Answer, Errno> {
        let place = open_mount_point(self)?;
        let attributes = u64::from(self.flags()) & SHARED_ATTRIBUTES;
        mounts::set_attributes(terminals.as_fd(), false, attributes, None)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(terminals, c"", &place, c"", flags)?;
        Ok(DONE)
    }

    fn perform(&self) -> Result<Answer, Errno> {
        let flags = self.flags();
        // The place is looked up once, without links through proc; from there on it is the working directory.
        let place = open_mount_point(self)?;
        rustix::process::fchdir(&place)?;
        if flags & PROPAGATION.bits() != 0 {
            rustix::mount::mount_change(".", MountPropagationFlags::from_bits_retain(flags))?;
            return Ok(DONE);
        }
        allow_kind(&self.kind)?;
        if self.kind.as_c_str() == c"proc" && !names_nothing(&self.data) {
            return Err(Errno::INVAL);
        }
        rustix::mount::mount(
            &self.source,
            ".",
            &self.kind,
            MountFlags::from_bits_retain(flags),
            Some(self.data.as_c_str()),
        )?;
        Ok(DONE)
    }
}
