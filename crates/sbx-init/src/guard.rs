//! The guard: answers system calls that the seccomp filter reports (`SECCOMP_RET_USER_NOTIF`) by doing them on behalf
//! of the caller.
//!
//! To look at the arguments and then let the call run (`SECCOMP_USER_NOTIF_FLAG_CONTINUE`) would be a race between check
//! and use: another thread of the caller can change the memory behind a pointer, or the file behind a descriptor or path,
//! in between. Instead, a forked child of init does the call, in this order:
//!
//! 1. it copies the arguments once, through `/proc/TID/mem`, and descriptors through `pidfd_getfd` ([`caller`]);
//! 2. it asks the kernel whether the notification is still pending (`SECCOMP_IOCTL_NOTIF_ID_VALID`): if so, all that was
//!    read by thread id was read from the caller, and not from a process that got its number later;
//! 3. it takes on the caller's namespaces, root, directory, ids, capabilities and umask, so that it can do nothing that
//!    the caller could not;
//! 4. it opens the object itself, decides on that descriptor, and acts on that same descriptor.

mod caller;
mod mounting;
mod origin;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{AtFlags, FileType, Mode as FileMode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;
use sbx_sys::fdpass;
use sbx_sys::process::{self, SingleThreaded};
use sbx_sys::seccomp::{self, Notification};

use crate::setup::{Namespaces, OwnFileSystems};
use caller::{Caller, Joined, MountList, io};
use mounting::Mount;
use origin::OriginProbe;
use sbx_sys::mountinfo::Entry;

const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
const MAX_XATTR: usize = 64 << 10;
/// Every flag of open(2) that [`create`] handles.
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

/// Which file systems belong to the sandbox.
#[derive(Debug)]
pub(crate) struct Guard {
    proc: OwnedFd,
    /// Made for this sandbox: layers and memory file systems.
    own: OwnFileSystems,
    /// All others that were mounted at the start: the host's.
    foreign: BTreeSet<String>,
}

/// What is needed to decide whether a file is the sandbox's own.
struct Evidence {
    mounts: MountList,
    origin: OriginProbe,
}

impl Guard {
    /// `mounts` is init's own view, right after the tree was built.
    pub(crate) fn new(proc: OwnedFd, mounts: &[Entry], own: OwnFileSystems) -> Self {
        let foreign = mounts
            .iter()
            .map(|mount| mount.device.clone())
            .filter(|device| !own.contains_key(device))
            .collect();
        Self { proc, own, foreign }
    }

    /// The device of a workspace that was mounted later.
    pub(crate) fn add_foreign(&mut self, device: u64) {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let device = format!("{major}:{minor}");
        if !self.own.contains_key(&device) {
            self.foreign.insert(device);
        }
    }

    pub(crate) fn proc(&self) -> BorrowedFd<'_> {
        self.proc.as_fd()
    }

    /// Whether the object behind `fd` may carry setuid bits and file capabilities: only on file systems that the host does
    /// not see, which are the sandbox's layers and memory file systems that were mounted inside.
    fn is_sandbox_file(&self, fd: BorrowedFd<'_>, evidence: &Evidence) -> bool {
        let Some(id) = caller::mount_id(&self.proc, fd) else {
            return false;
        };
        // Read while `fd` is open: the kernel reuses a mount id as soon as the mount is gone.
        let mounts = evidence.mounts.read();
        // A detached mount is not listed, and so not accepted.
        mounts
            .iter()
            .find(|mount| mount.id == id)
            .is_some_and(|mount| {
                self.own.contains_key(&mount.device)
                    || (matches!(mount.kind.as_str(), "tmpfs" | "ramfs")
                        && !self.foreign.contains(&mount.device)
                        && evidence.origin.is_mounted_inside(fd))
            })
    }
}

/// Answers one call. Runs in a forked child of init, which exits afterwards.
pub(crate) fn answer(
    proof: &SingleThreaded,
    guard: &Guard,
    namespaces: &Namespaces,
    listener: BorrowedFd<'_>,
    call: &Notification,
) {
    // A path such as `/proc/self/fd/N` from the caller must not reach a descriptor of init.
    let kept = [
        guard.proc.as_fd(),
        namespaces.user.as_fd(),
        namespaces.mount.as_fd(),
        listener,
    ];
    let closed = process::close_all_but(&kept).map_err(|_| Errno::IO);
    let result = closed
        .and_then(|()| Caller::find(&guard.proc, call.pid))
        .and_then(|caller| perform(proof, guard, namespaces, listener, call, caller));
    let given = match result {
        Ok(Answer::Value(value)) => seccomp::respond(listener, call.id, Ok(value)),
        Ok(Answer::Descriptor { fd, close_on_exec }) => {
            seccomp::respond_with_fd(listener, call.id, fd.as_fd(), close_on_exec)
        }
        Ok(Answer::Continue) => seccomp::respond_continue(listener, call.id),
        Err(error) => seccomp::respond(listener, call.id, Err(error.raw_os_error())),
    };
    if let Err(error) = given {
        // For example EMFILE: the caller's descriptor table is full.
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        let _ = seccomp::respond(listener, call.id, Err(errno));
    }
}

enum Answer {
    Value(i64),
    /// The kernel runs the call.
    Continue,
    Descriptor {
        fd: OwnedFd,
        close_on_exec: bool,
    },
}

const DONE: Answer = Answer::Value(0);

/// The lower half of an argument: the kernel ignores the upper half of an `int`.
fn low32(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}

fn perform(
    proof: &SingleThreaded,
    guard: &Guard,
    namespaces: &Namespaces,
    listener: BorrowedFd<'_>,
    call: &Notification,
    caller: Caller,
) -> Result<Answer, Errno> {
    let [a, b, c, d, e, _] = call.args;
    let here = libc::AT_FDCWD as u32 as u64;
    let work = match libc::c_long::from(call.syscall) {
        libc::SYS_fchmod => Work::ChangeMode(caller.descriptor(low32(a))?, low32(b)),
        libc::SYS_fchmodat => caller.change_mode(a, b, low32(c), 0)?,
        libc::SYS_fchmodat2 => caller.change_mode(a, b, low32(c), low32(d))?,
        libc::SYS_openat => caller.create(a, b, low32(c), low32(d))?,
        libc::SYS_mknodat => caller.make_node(a, b, low32(c), d)?,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod => caller.change_mode(here, a, low32(b), 0)?,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => caller.create(here, a, low32(b), low32(c))?,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat => {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            caller.create(here, a, flags.cast_unsigned(), low32(b))?
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mknod => caller.make_node(here, a, low32(b), c)?,
        libc::SYS_setxattr => Work::SetXattr(caller.target(here, a, 0)?, caller.xattr(b, c, d, e)?),
        libc::SYS_lsetxattr => {
            let flags = libc::AT_SYMLINK_NOFOLLOW.cast_unsigned();
            Work::SetXattr(caller.target(here, a, flags)?, caller.xattr(b, c, d, e)?)
        }
        libc::SYS_fsetxattr => {
            let fd = caller.descriptor(low32(a))?;
            if is_path_only(&fd)? {
                return Err(Errno::BADF);
            }
            Work::SetXattr(Target::Open(fd), caller.xattr(b, c, d, e)?)
        }
        libc::SYS_mount => {
            let mount = caller.mount(call.args)?;
            mounting::mount(guard, namespaces, &caller, mount)?
        }
        libc::SYS_landlock_restrict_self => {
            // Continuing is sound here: no_new_privs is never cleared, and the decision depends on nothing else.
            return match caller.has_no_new_privs() && seccomp::is_valid(listener, call.id) {
                true => Ok(Answer::Continue),
                false => Err(Errno::PERM),
            };
        }
        libc::SYS_inotify_add_watch => caller.watch(a, b, low32(c))?,
        libc::SYS_fsopen => {
            let kind = caller.string(a, 64)?;
            mounting::open_file_system(guard, namespaces, &caller, kind, low32(b))?
        }
        _ => return Err(Errno::NOSYS),
    };
    let mut evidence = match work {
        Work::ChangeMode(..) | Work::ChangeModeAt(..) | Work::SetXattr(..) => Some(Evidence {
            mounts: caller.mounts()?,
            origin: OriginProbe::start(proof, &guard.proc)?,
        }),
        Work::Create { .. }
        | Work::MakeNode { .. }
        | Work::Mount(_)
        | Work::Attach(..)
        | Work::OpenFileSystem(..)
        | Work::Watch { .. } => None,
    };
    // SECCOMP_IOCTL_NOTIF_ID_VALID, after everything was read and before anything is done: only now is it certain that all
    // of it is about the caller, and not about a process that reused its thread id.
    if !seccomp::is_valid(listener, call.id) {
        return Err(Errno::SRCH);
    }
    match work {
        Work::Mount(_) | Work::OpenFileSystem(..) => work.run_in_namespaces(proof, guard, caller),
        _ => {
            let mounts = evidence.as_mut().map(|evidence| &mut evidence.mounts);
            caller.assume_identity(&guard.proc, mounts)?;
            work.run(guard, evidence.as_ref())
        }
    }
}

/// A system call with its arguments copied.
enum Work {
    ChangeMode(OwnedFd, u32),
    ChangeModeAt(Target, u32),
    Create {
        target: Target,
        flags: OFlags,
        mode: u32,
    },
    MakeNode {
        target: Target,
        mode: u32,
        device: u64,
    },
    SetXattr(Target, Xattr),
    Mount(Box<Mount>),
    /// With a detached tree of mounts of the sandbox's own.
    Attach(Box<Mount>, OwnedFd),
    OpenFileSystem(CString, u32),
    Watch {
        inotify: OwnedFd,
        target: Target,
        events: WatchFlags,
    },
}

/// A file as the caller names it: by descriptor or by path.
enum Target {
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

impl Target {
    /// Opens the object, after [`Caller::assume_identity`]: the kernel checks every directory on the way as for the caller.
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

/// Opens as the caller would, but nothing in proc (`RESOLVE_NO_MAGICLINKS`): `/proc/self` is the guard's process here, and
/// its magic links lead to the guard's descriptors.
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

fn base_of(base: Option<&OwnedFd>) -> BorrowedFd<'_> {
    base.map_or(rustix::fs::CWD, AsFd::as_fd)
}

impl Work {
    /// Does the work in the caller's network, ipc and pid namespaces too: a new sysfs, mqueue or proc shows those of the
    /// process that mounts it.
    fn run_in_namespaces(
        self,
        proof: &SingleThreaded,
        guard: &Guard,
        caller: Caller,
    ) -> Result<Answer, Errno> {
        let (receiver, sender) = UnixStream::pair().map_err(io)?;
        match caller.join_namespaces(proof)? {
            Joined::Parent(child) => {
                drop(sender);
                // After the child was reaped: the caller must not see it in its pid namespace when the call returns.
                child.outcome()?;
                receive_answer(&receiver)
            }
            Joined::Child(parent) => {
                let ready = caller.assume_identity(&guard.proc, None);
                let ready = ready.and_then(|()| parent.die_with());
                let done = ready.and_then(|()| self.run(guard, None));
                caller::exit_with(done.and_then(|answer| send_descriptor(&sender, &answer)))
            }
        }
    }

    fn run(self, guard: &Guard, evidence: Option<&Evidence>) -> Result<Answer, Errno> {
        match self {
            Self::ChangeMode(fd, mode) => {
                check_mode(guard, fd.as_fd(), evidence, mode)?;
                rustix::fs::fchmod(&fd, FileMode::from_bits_truncate(mode))?;
                Ok(DONE)
            }
            Self::ChangeModeAt(target, mode) => {
                let fd = target.open()?;
                let kind = rustix::fs::fstat(&fd)?.st_mode;
                if FileType::from_raw_mode(kind) == FileType::Symlink {
                    return Err(Errno::OPNOTSUPP);
                }
                check_mode(guard, fd.as_fd(), evidence, mode)?;
                let path = caller::self_path(fd.as_fd());
                rustix::fs::chmodat(
                    &guard.proc,
                    path,
                    FileMode::from_bits_truncate(mode),
                    AtFlags::empty(),
                )?;
                Ok(DONE)
            }
            Self::Create {
                target,
                flags,
                mode,
            } => create(target, flags, mode),
            Self::MakeNode {
                target,
                mode,
                device,
            } => make_node(target, mode, device),
            Self::SetXattr(target, xattr) => set_xattr(guard, evidence, target, &xattr),
            Self::Mount(mount) => mount.perform(guard),
            Self::Attach(mount, tree) => mount.attach(&tree),
            Self::Watch {
                inotify,
                target,
                events,
            } => watch(guard, &inotify, target, events),
            Self::OpenFileSystem(kind, flags) => mounting::make_context(&kind, flags),
        }
    }
}

/// From the process in the caller's namespaces to its parent, which gives the descriptor to the caller.
fn send_descriptor(sender: &UnixStream, answer: &Answer) -> Result<(), Errno> {
    match answer {
        Answer::Descriptor { fd, close_on_exec } => {
            fdpass::send_with_fds(sender, &[(*close_on_exec).into()], &[fd.as_fd()]).map_err(io)
        }
        Answer::Value(_) | Answer::Continue => Ok(()),
    }
}

fn receive_answer(receiver: &UnixStream) -> Result<Answer, Errno> {
    let (mut flag, mut fds) = ([0], Vec::new());
    let count = fdpass::recv_with_fds(receiver, &mut flag, &mut fds).map_err(io)?;
    match (count, fds.pop()) {
        (0, None) => Ok(DONE),
        (1, Some(fd)) => Ok(Answer::Descriptor {
            fd,
            close_on_exec: flag != [0],
        }),
        _ => Err(Errno::IO),
    }
}

fn check_set_id(
    guard: &Guard,
    fd: BorrowedFd<'_>,
    evidence: Option<&Evidence>,
) -> Result<(), Errno> {
    if evidence.is_some_and(|evidence| guard.is_sandbox_file(fd, evidence)) {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

/// Checks a mode with setuid or setgid. Setgid on a directory is harmless: new files in it inherit its group, no more.
/// Team directories have it, and tools that copy them fail without.
fn check_mode(
    guard: &Guard,
    fd: BorrowedFd<'_>,
    evidence: Option<&Evidence>,
    mode: u32,
) -> Result<(), Errno> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
    if kind == FileType::Directory && mode & libc::S_ISUID == 0 {
        return Ok(());
    }
    check_set_id(guard, fd, evidence)
}

/// Creates a file without setuid and setgid; a program that wants them calls chmod afterwards, which the guard sees too.
/// Regular files and directories only: a FIFO or a device could block, or be the host's.
fn create(target: Target, flags: OFlags, mode: u32) -> Result<Answer, Errno> {
    let Target::Path { base, path, .. } = target else {
        return Err(Errno::BADF);
    };
    let close_on_exec = flags.contains(OFlags::CLOEXEC);
    let mode = FileMode::from_bits_truncate(mode & !SET_ID & 0o7777);
    // openat ignores unknown flags, openat2 refuses them.
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

fn make_node(target: Target, mode: u32, device: u64) -> Result<Answer, Errno> {
    let Target::Path { base, path, .. } = target else {
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

/// Attributes that do not affect modes or capabilities on any file system. Some file systems keep a file's mode in a
/// `user.` attribute.
fn is_harmless_xattr(name: &[u8]) -> bool {
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

/// Replaces the umask for new files in a directory, also for files that the host's user makes in a workspace.
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

/// Whether it was opened with `O_PATH`.
fn is_path_only(fd: &OwnedFd) -> Result<bool, Errno> {
    Ok(rustix::fs::fcntl_getfl(fd)?.contains(OFlags::PATH))
}

fn set_xattr(
    guard: &Guard,
    evidence: Option<&Evidence>,
    target: Target,
    xattr: &Xattr,
) -> Result<Answer, Errno> {
    let fd = target.open()?;
    if !is_harmless_xattr(xattr.name.as_bytes()) {
        check_set_id(guard, fd.as_fd(), evidence).map_err(|error| {
            if xattr.name.as_bytes() == DEFAULT_ACL {
                // EOPNOTSUPP, as on a file system without ACLs: programs that copy directories go on.
                Errno::OPNOTSUPP
            } else {
                error
            }
        })?;
    }
    let flags = XattrFlags::from_bits_retain(xattr.flags);
    if !is_path_only(&fd)? {
        rustix::fs::fsetxattr(&fd, &xattr.name, &xattr.value, flags)?;
        return Ok(DONE);
    }
    // fsetxattr refuses an `O_PATH` descriptor; its magic link in proc leads to the same object, without a path lookup.
    rustix::process::fchdir(&guard.proc)?;
    rustix::fs::setxattr(
        caller::self_path(fd.as_fd()),
        &xattr.name,
        &xattr.value,
        flags,
    )?;
    Ok(DONE)
}

/// Refuses devices: the nodes inside are the host's inodes, and every use on the host would be an event here.
fn watch(
    guard: &Guard,
    inotify: &OwnedFd,
    target: Target,
    events: WatchFlags,
) -> Result<Answer, Errno> {
    let fd = target.open()?;
    match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
        FileType::CharacterDevice | FileType::BlockDevice => return Err(Errno::PERM),
        _ => {}
    }
    // The magic link in proc leads to the opened object, and has to be followed.
    rustix::process::fchdir(&guard.proc)?;
    let events = events.difference(WatchFlags::DONT_FOLLOW);
    let watch = inotify::add_watch(inotify, caller::self_path(fd.as_fd()), events)?;
    Ok(Answer::Value(watch.into()))
}
