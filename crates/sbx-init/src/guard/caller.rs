//! The caller of a reported system call: its memory, its descriptors, and how the guard takes on its identity.
//!
//! Everything is opened once, by the thread id of the notification, and used through these descriptors only. After
//! `SECCOMP_IOCTL_NOTIF_ID_VALID` they are known to belong to the caller, whatever happens to the thread id later.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::inotify::WatchFlags;
use rustix::fs::{Mode as FileMode, OFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Signal, WaitId, WaitIdOptions, waitid};
use sbx_sys::credentials::{self, Credentials};
use sbx_sys::process::{self, Fork, SingleThreaded};

use super::mounting::Mount;
use super::{MAX_XATTR, Target, Work, Xattr};
use crate::handover::identity;
use sbx_sys::mountinfo::{self, Entry};

/// 30,000 mounts or so.
const MAX_MOUNT_LIST: u64 = 4 << 20;

/// The caller's `/proc/TID/status`. Ids are as init's user namespace sees them.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    credentials: Credentials,
    capabilities: u64,
    umask: u32,
    tgid: i32,
    /// Programs that confine themselves, for example with Landlock, set it first.
    no_new_privs: bool,
}

#[derive(Debug)]
pub(super) struct Caller {
    status: Status,
    pidfd: OwnedFd,
    memory: File,
    mounts: File,
    root: OwnedFd,
    cwd: OwnedFd,
    user: OwnedFd,
    mount: OwnedFd,
    net: OwnedFd,
    ipc: OwnedFd,
    pid: OwnedFd,
}

pub(super) fn io(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Mountinfo, read when it is needed. Both files are of the caller's mount namespace.
#[derive(Debug)]
pub(super) struct MountList {
    /// What lies below the caller's root. After chroot, the mount that the root is in is not among it.
    below_root: File,
    /// What lies below the namespace's root.
    all: Option<File>,
}

impl MountList {
    /// Empty when it cannot be read: then no file counts as the sandbox's own.
    pub(super) fn read(&self) -> Vec<Entry> {
        let mut mounts = Vec::new();
        for file in [Some(&self.below_root), self.all.as_ref()]
            .into_iter()
            .flatten()
        {
            let mut list = Vec::new();
            if file.take(MAX_MOUNT_LIST).read_to_end(&mut list).is_ok() {
                mounts.append(&mut mountinfo::parse(&list));
            }
        }
        mounts
    }
}

impl Caller {
    /// Opens everything about the thread `tid` of init's pid namespace.
    pub(super) fn find(proc: &OwnedFd, tid: u32) -> Result<Self, Errno> {
        let open = |name: &str, flags: OFlags| {
            rustix::fs::openat(
                proc,
                format!("{tid}/{name}"),
                flags | OFlags::CLOEXEC,
                FileMode::empty(),
            )
        };
        let mut text = String::new();
        File::from(open("status", OFlags::RDONLY)?)
            .read_to_string(&mut text)
            .map_err(io)?;
        let status = parse_status(&text).ok_or(Errno::SRCH)?;
        Ok(Self {
            pidfd: pidfd_of(tid, status.tgid)?,
            memory: open("mem", OFlags::RDONLY)?.into(),
            mounts: open("mountinfo", OFlags::RDONLY)?.into(),
            root: open("root", OFlags::PATH)?,
            cwd: open("cwd", OFlags::PATH)?,
            user: open("ns/user", OFlags::RDONLY)?,
            mount: open("ns/mnt", OFlags::RDONLY)?,
            net: open("ns/net", OFlags::RDONLY)?,
            ipc: open("ns/ipc", OFlags::RDONLY)?,
            pid: open("ns/pid", OFlags::RDONLY)?,
            status,
        })
    }

    /// The list of the caller's mounts, to be read later.
    pub(super) fn mounts(&self) -> Result<MountList, Errno> {
        Ok(MountList {
            below_root: self.mounts.try_clone().map_err(io)?,
            all: None,
        })
    }

    /// Whether these are its pid and user namespace.
    pub(super) fn is_in(&self, pid: BorrowedFd<'_>, user: BorrowedFd<'_>) -> Result<bool, Errno> {
        let same = |one: &OwnedFd, other| -> Result<bool, Errno> {
            Ok(identity(&rustix::fs::fstat(one)?) == identity(&rustix::fs::fstat(other)?))
        };
        Ok(same(&self.pid, pid)? && same(&self.user, user)?)
    }

    /// A copy of the caller's descriptor (`pidfd_getfd`): the same open file, even if the caller reuses the number.
    pub(super) fn descriptor(&self, number: u32) -> Result<OwnedFd, Errno> {
        let number = i32::try_from(number).map_err(|_| Errno::BADF)?;
        rustix::process::pidfd_getfd(&self.pidfd, number, PidfdGetfdFlags::empty())
    }

    pub(super) fn bytes(&self, address: u64, size: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; size];
        self.memory
            .read_exact_at(&mut bytes, address)
            .map_err(|_| Errno::FAULT)?;
        Ok(bytes)
    }

    /// A NUL-terminated string of at most `max` bytes, NUL included.
    pub(super) fn string(&self, address: u64, max: usize) -> Result<CString, Errno> {
        const PAGE: u64 = 4096;
        let mut text = Vec::new();
        let mut at = address;
        while text.len() < max {
            // Never across a page boundary: the next page may be unmapped.
            let step = usize::try_from(PAGE - at % PAGE)
                .unwrap_or(1)
                .min(max - text.len());
            let chunk = self.bytes(at, step)?;
            if let Some(end) = chunk.iter().position(|byte| *byte == 0) {
                text.extend_from_slice(chunk.get(..end).unwrap_or_default());
                return CString::new(text).map_err(|_| Errno::INVAL);
            }
            text.extend_from_slice(&chunk);
            at = at.wrapping_add(step as u64);
        }
        Err(Errno::NAMETOOLONG)
    }

    fn path(&self, address: u64) -> Result<CString, Errno> {
        self.string(address, libc::PATH_MAX as usize)
    }

    fn optional_string(&self, address: u64, max: usize) -> Result<CString, Errno> {
        if address == 0 {
            Ok(CString::default())
        } else {
            self.string(address, max)
        }
    }

    /// The file that `dirfd` and the path at `address` name.
    pub(super) fn target(&self, dirfd: u64, address: u64, flags: u32) -> Result<Target, Errno> {
        let flags = flags.cast_signed();
        let dirfd = super::low32(dirfd);
        let is_here = dirfd.cast_signed() == libc::AT_FDCWD;
        let path = self.path(address)?;
        if path.is_empty() {
            return match flags & libc::AT_EMPTY_PATH {
                0 => Err(Errno::NOENT),
                _ if is_here => Err(Errno::NOENT),
                _ => Ok(Target::Open(self.descriptor(dirfd)?)),
            };
        }
        if let Some(number) = descriptor_of(&path, self.status.tgid) {
            return Ok(Target::Open(self.descriptor(number)?));
        }
        // With an absolute path the kernel ignores `dirfd`, which may be invalid.
        let base = match self.here(&path)? {
            Some(_) if !is_here => Some(self.descriptor(dirfd)?),
            here => here,
        };
        Ok(Target::Path {
            base,
            path,
            follow: flags & libc::AT_SYMLINK_NOFOLLOW == 0,
        })
    }

    /// The base of a relative path; none for an absolute one. It is not entered with `fchdir`: the caller may be in a
    /// directory that it could not enter again, and a lookup that starts there must still work.
    fn here(&self, path: &CStr) -> Result<Option<OwnedFd>, Errno> {
        if path.to_bytes().starts_with(b"/") {
            return Ok(None);
        }
        self.cwd.try_clone().map(Some).map_err(io)
    }

    pub(super) fn change_mode(
        &self,
        dirfd: u64,
        address: u64,
        mode: u32,
        flags: u32,
    ) -> Result<Work, Errno> {
        Ok(Work::ChangeModeAt(
            self.target(dirfd, address, flags)?,
            mode,
        ))
    }

    /// Required before `landlock_restrict_self`: with CAP_SYS_ADMIN the kernel would not demand it, and
    /// [`Self::require_no_landlock`] could not tell such a caller.
    pub(super) fn has_no_new_privs(&self) -> bool {
        self.status.no_new_privs
    }

    /// The guard makes no file for a caller that may be confined by Landlock: the rules cannot be read from outside, and the
    /// guard's process is not bound by them. Such a caller has no use for setuid bits either (no_new_privs).
    fn require_no_landlock(&self) -> Result<(), Errno> {
        if self.has_no_new_privs() {
            Err(Errno::PERM)
        } else {
            Ok(())
        }
    }

    pub(super) fn create(
        &self,
        dirfd: u64,
        address: u64,
        flags: u32,
        mode: u32,
    ) -> Result<Work, Errno> {
        self.require_no_landlock()?;
        Ok(Work::Create {
            target: self.target(dirfd, address, 0)?,
            flags: OFlags::from_bits_retain(flags),
            mode,
        })
    }

    pub(super) fn make_node(
        &self,
        dirfd: u64,
        address: u64,
        mode: u32,
        device: u64,
    ) -> Result<Work, Errno> {
        self.require_no_landlock()?;
        Ok(Work::MakeNode {
            target: self.target(dirfd, address, 0)?,
            mode,
            device,
        })
    }

    pub(super) fn xattr(
        &self,
        name: u64,
        value: u64,
        size: u64,
        flags: u64,
    ) -> Result<Xattr, Errno> {
        let size = usize::try_from(size).map_err(|_| Errno::TOOBIG)?;
        if size > MAX_XATTR {
            return Err(Errno::TOOBIG);
        }
        Ok(Xattr {
            name: self.string(name, 256).map_err(|_| Errno::RANGE)?,
            value: self.bytes(value, size)?,
            flags: super::low32(flags),
        })
    }

    pub(super) fn watch(&self, inotify: u64, address: u64, events: u32) -> Result<Work, Errno> {
        let events = WatchFlags::from_bits_retain(events);
        let mut flags = 0;
        if events.contains(WatchFlags::DONT_FOLLOW) {
            flags = libc::AT_SYMLINK_NOFOLLOW.cast_unsigned();
        }
        let here = libc::AT_FDCWD as u32 as u64;
        Ok(Work::Watch {
            inotify: self.descriptor(super::low32(inotify))?,
            target: self.target(here, address, flags)?,
            events,
        })
    }

    pub(super) fn mount(&self, args: [u64; 6]) -> Result<Mount, Errno> {
        let [source, target, kind, flags, data, _] = args;
        let here = libc::AT_FDCWD as u32 as u64;
        Ok(Mount {
            source: self.optional_string(source, 4096)?,
            target: self.target(here, target, 0)?,
            kind: self.optional_string(kind, 64)?,
            flags,
            data: self.optional_string(data, 4096)?,
        })
    }

    /// A new proc, sysfs or mqueue shows the namespaces of the process that mounts it. `setns` to a pid namespace takes effect
    /// for children only, hence the fork.
    pub(super) fn join_namespaces(&self, proof: &SingleThreaded) -> Result<Joined, Errno> {
        let parent = Parent(rustix::process::pidfd_open(
            rustix::process::getpid(),
            PidfdFlags::empty(),
        )?);
        process::setns(self.net.as_fd(), process::NEW_NET).map_err(io)?;
        process::setns(self.ipc.as_fd(), process::NEW_IPC).map_err(io)?;
        process::setns(self.pid.as_fd(), process::NEW_PID).map_err(io)?;
        match process::fork(proof, 0).map_err(io)? {
            Fork::Child => {
                // PR_SET_PDEATHSIG now, and again after the change of ids, which clears it.
                parent.die_with()?;
                Ok(Joined::Child(parent))
            }
            Fork::Parent { pidfd, .. } => Ok(Joined::Parent(Child(pidfd))),
        }
    }

    /// Takes on the caller's root, umask, ids, namespaces and capabilities. The mount namespace comes before the user
    /// namespace: it may belong to a parent of that, and joining it needs CAP_SYS_ADMIN there. Between the two, `mounts` gets
    /// the list of all mounts of the namespace.
    pub(super) fn assume_identity(
        self,
        proc: &OwnedFd,
        mounts: Option<&mut MountList>,
    ) -> Result<(), Errno> {
        let stays_owner = self.status.credentials.uid == rustix::process::geteuid().as_raw();
        if !stays_owner && suid_dumpable_is_open(proc)? {
            return Err(Errno::PERM);
        }
        process::setns(self.mount.as_fd(), process::NEW_MOUNT).map_err(io)?;
        if let Some(mounts) = mounts {
            // The kernel lists what lies below the root that the process has when it opens the file.
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let list = rustix::fs::openat(proc, c"self/mountinfo", flags, FileMode::empty())?;
            mounts.all = Some(list.into());
        }
        rustix::process::fchdir(&self.root)?;
        rustix::process::chroot(".")?;
        rustix::process::umask(FileMode::from_bits_truncate(self.status.umask));
        credentials::keep_capabilities().map_err(io)?;
        // Where the user namespace denies setgroups the caller has no groups to take on.
        let with_groups = credentials::become_user(&self.status.credentials, true);
        with_groups
            .or_else(|_| credentials::become_user(&self.status.credentials, false))
            .map_err(io)?;
        credentials::raise_capabilities().map_err(io)?;
        // A change of ids sets the dumpable flag to `fs.suid_dumpable`. No process inside can use that before this one joins
        // the caller's user namespace; joining sets it once more.
        process::set_not_dumpable().map_err(io)?;
        process::setns(self.user.as_fd(), process::NEW_USER).map_err(io)?;
        credentials::set_capabilities(self.status.capabilities).map_err(io)?;
        process::set_not_dumpable().map_err(io)
    }
}

/// Which side of the fork this is.
#[derive(Debug)]
pub(super) enum Joined {
    /// In the caller's namespaces: does the work.
    Child(Parent),
    /// Waits for the child.
    Parent(Child),
}

/// How long a mount may take: less than init waits for the whole answer.
const WORK_TIMEOUT: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// A pidfd of the process that does the work.
#[derive(Debug)]
pub(super) struct Child(OwnedFd);

impl Child {
    /// Reaps the child and returns its result. A child that the caller stopped (SIGSTOP) is killed after the timeout.
    pub(super) fn outcome(&self) -> Result<(), Errno> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        // An interrupted poll counts as a timeout: only a process inside sends signals here.
        if rustix::event::poll(&mut fds, Some(&WORK_TIMEOUT)) != Ok(1) {
            rustix::process::pidfd_send_signal(&self.0, Signal::KILL)?;
        }
        let ended = loop {
            let waited = waitid(WaitId::PidFd(self.0.as_fd()), WaitIdOptions::EXITED);
            match waited {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        match ended.and_then(|status| status.exit_status()) {
            Some(0) => Ok(()),
            Some(errno) => Err(Errno::from_raw_os_error(errno)),
            // A process inside has killed it.
            None => Err(Errno::IO),
        }
    }
}

/// Exits with what [`Child::outcome`] returns. Every error number fits into an exit code.
pub(super) fn exit_with(outcome: Result<(), Errno>) -> ! {
    process::exit_now(outcome.err().map_or(0, Errno::raw_os_error))
}

/// A pidfd of the process that waits for the child, and that reports an error if the child is killed.
#[derive(Debug)]
pub(super) struct Parent(OwnedFd);

impl Parent {
    /// Arranges that this process is killed when its parent dies (`PR_SET_PDEATHSIG`), and fails if the parent is dead
    /// already. A change of ids clears the setting.
    pub(super) fn die_with(&self) -> Result<(), Errno> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&Timespec::default()))? {
            0 => Ok(()),
            _ => Err(Errno::INTR),
        }
    }
}

/// Whether `fs.suid_dumpable` lets processes of the same id trace one that has just changed its ids. The guard's process
/// holds the filter's listener, with which a tracer could let any call through.
fn suid_dumpable_is_open(proc: &OwnedFd) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let setting = rustix::fs::openat(proc, c"sys/fs/suid_dumpable", flags, FileMode::empty())?;
    let mut text = String::new();
    File::from(setting).read_to_string(&mut text).map_err(io)?;
    Ok(is_open(&text))
}

/// `fs.suid_dumpable`: 0 is not dumpable, 2 is root only.
fn is_open(setting: &str) -> bool {
    !matches!(setting.trim(), "0" | "2")
}

/// A pidfd of the thread, which may have its own descriptor table (`unshare(CLONE_FILES)`); of its process before Linux 6.9.
fn pidfd_of(tid: u32, leader: i32) -> Result<OwnedFd, Errno> {
    /// `PIDFD_THREAD`, since Linux 6.9.
    const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());
    let open = |pid: i32, flags| {
        let pid = rustix::process::Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        rustix::process::pidfd_open(pid, flags)
    };
    match open(i32::try_from(tid).map_err(|_| Errno::SRCH)?, THREAD) {
        Err(Errno::INVAL) => open(leader, PidfdFlags::empty()),
        other => other,
    }
}

/// The descriptor number in a path such as `/proc/self/fd/N`. Programs and C libraries use such paths for `fchmodat` with
/// flags. In the guard's process `self` would be the guard, so the number is taken instead.
fn descriptor_of(path: &CStr, leader: i32) -> Option<u32> {
    let path = path.to_str().ok()?;
    let number = match path.strip_prefix("/dev/fd/") {
        Some(number) => number,
        None => {
            let (process, number) = path.strip_prefix("/proc/")?.split_once("/fd/")?;
            let own = matches!(process, "self" | "thread-self") || process == leader.to_string();
            own.then_some(number)?
        }
    };
    number
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| number.parse().ok())?
}

/// The mount id of a descriptor of this process.
pub(super) fn mount_id(proc: &OwnedFd, fd: BorrowedFd<'_>) -> Option<u64> {
    let path = format!("self/fdinfo/{}", fd.as_raw_fd());
    let file = rustix::fs::openat(
        proc,
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        FileMode::empty(),
    )
    .ok()?;
    let mut text = String::new();
    File::from(file).read_to_string(&mut text).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    line.trim().parse().ok()
}

/// The magic link of a descriptor, relative to a mount of proc.
pub(super) fn self_path(fd: BorrowedFd<'_>) -> String {
    format!("self/fd/{}", fd.as_raw_fd())
}

fn parse_status(text: &str) -> Option<Status> {
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    // Real, effective, saved, file system: the kernel checks file access with the last.
    let last = |name: &str| field(name)?.split_whitespace().nth(3)?.parse().ok();
    Some(Status {
        credentials: Credentials {
            uid: last("Uid")?,
            gid: last("Gid")?,
            groups: field("Groups")?
                .split_whitespace()
                .filter_map(|group| group.parse().ok())
                .collect(),
        },
        capabilities: u64::from_str_radix(field("CapEff")?, 16).ok()?,
        umask: u32::from_str_radix(field("Umask")?, 8).ok()?,
        tgid: field("Tgid")?.parse().ok()?,
        no_new_privs: field("NoNewPrivs")? != "0",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suid_dumpable_values_are_classified() {
        assert!(!is_open("0\n") && !is_open("2\n"));
        assert!(is_open("1\n") && is_open("3\n") && is_open(""));
    }

    #[test]
    fn proc_fd_paths_name_the_callers_descriptors() {
        for (path, number) in [
            (c"/proc/self/fd/7", Some(7)),
            (c"/proc/thread-self/fd/0", Some(0)),
            (c"/proc/42/fd/3", Some(3)),
            (c"/dev/fd/12", Some(12)),
            (c"/proc/43/fd/3", None),
            (c"/proc/self/fd/7/x", None),
            (c"/proc/self/fd/", None),
            (c"/proc/self/fd/+7", None),
            (c"proc/self/fd/7", None),
        ] {
            assert_eq!(descriptor_of(path, 42), number, "{path:?}");
        }
    }

    #[test]
    fn status_is_parsed_with_the_file_system_ids() {
        let text = "Name:\ta: b\nUmask:\t0027\nTgid:\t12\nNoNewPrivs:\t1\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nCapEff:\t00000000000001ff\n";
        assert_eq!(
            parse_status(text),
            Some(Status {
                credentials: Credentials {
                    uid: 4,
                    gid: 8,
                    groups: vec![9, 10]
                },
                capabilities: 0x1ff,
                umask: 0o027,
                tgid: 12,
                no_new_privs: true,
            })
        );
        assert_eq!(parse_status("Uid:\t0\n"), None);
    }
}
