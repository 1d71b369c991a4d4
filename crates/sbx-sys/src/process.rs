//! Processes: fork (`clone3`) of a single-threaded one, namespaces (`unshare`, `setns`), pidfds.
//!
//! After a fork of a multi-threaded process the child may only make async-signal-safe calls: another thread may have held
//! the allocator's lock. Everything between clone and exec of a sandbox allocates, opens and formats, so these functions
//! ask for a [`SingleThreaded`] proof. A pidfd names one process for ever, where a pid can be reused.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{Pid, PidfdFlags, Signal, WaitIdOptions};

use crate::checked;

/// Proof that this process has one thread, so that a forked child may do more than async-signal-safe work.
#[derive(Debug)]
pub struct SingleThreaded(());

impl SingleThreaded {
    /// Fails when the process has more than one thread.
    pub fn check() -> io::Result<Self> {
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads == 1 {
            Ok(Self(()))
        } else {
            Err(io::Error::other(format!("process has {threads} threads")))
        }
    }
}

/// Namespaces as `CLONE_NEW*` bits.
pub type NamespaceFlags = u64;
pub const NEW_USER: NamespaceFlags = libc::CLONE_NEWUSER as u64;
pub const NEW_MOUNT: NamespaceFlags = libc::CLONE_NEWNS as u64;
pub const NEW_PID: NamespaceFlags = libc::CLONE_NEWPID as u64;
pub const NEW_NET: NamespaceFlags = libc::CLONE_NEWNET as u64;
pub const NEW_IPC: NamespaceFlags = libc::CLONE_NEWIPC as u64;
pub const NEW_UTS: NamespaceFlags = libc::CLONE_NEWUTS as u64;
pub const NEW_CGROUP: NamespaceFlags = libc::CLONE_NEWCGROUP as u64;

#[derive(Debug)]
pub enum Fork {
    Parent { pid: i32, pidfd: OwnedFd },
    Child,
}

/// Forks, with new namespaces where asked for. The parent gets a pidfd of the child.
pub fn fork(_proof: &SingleThreaded, namespaces: NamespaceFlags) -> io::Result<Fork> {
    #[repr(C)]
    #[derive(Default)]
    struct CloneArgs {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
    }
    let mut pidfd: RawFd = -1;
    let args = CloneArgs {
        flags: namespaces | libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    // SAFETY: the process has one thread (the proof), no stack is given, so this is fork(2): the child gets a
    // copy of everything. `args` and `pidfd` live across the call.
    let pid = checked(unsafe {
        libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>())
    })?;
    if pid == 0 {
        return Ok(Fork::Child);
    }
    // SAFETY: the kernel has just stored a new descriptor there, and nothing else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Fork::Parent {
        pid: i32::try_from(pid).map_err(io::Error::other)?,
        pidfd,
    })
}

/// Ends the process at once, without unwinding or destructors: what a forked child does when it is done.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Moves this process into new namespaces.
pub fn unshare(_proof: &SingleThreaded, namespaces: NamespaceFlags) -> io::Result<()> {
    let flags = i32::try_from(namespaces).map_err(io::Error::other)?;
    // SAFETY: no pointers; with one thread nothing else can be surprised by changed namespaces.
    checked(unsafe { libc::unshare(flags) }.into())?;
    Ok(())
}

/// Joins the namespace behind `fd`.
pub fn setns(fd: BorrowedFd<'_>, namespace: NamespaceFlags) -> io::Result<()> {
    let flags = i32::try_from(namespace).map_err(io::Error::other)?;
    // SAFETY: no pointers; the descriptor is open.
    checked(unsafe { libc::setns(fd.as_raw_fd(), flags) }.into())?;
    Ok(())
}

/// Marks every descriptor from `first` on close-on-exec.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: no pointers; with CLOEXEC nothing is closed now, so no owned descriptor is invalidated.
    checked(unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    })?;
    Ok(())
}

/// Closes every descriptor of this process except the given ones and the standard three. For a forked child that
/// ends with [`exit_now`]: the values that own the other descriptors are never dropped.
pub fn close_all_but(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut numbers: Vec<u32> = keep
        .iter()
        .map(|fd| fd.as_raw_fd().cast_unsigned())
        .collect();
    numbers.sort_unstable();
    // `close_range` on each gap between the descriptors to keep.
    let mut first = 3;
    for number in numbers.into_iter().chain([u32::MAX]) {
        if number > first {
            // SAFETY: no pointers. The caller promises that nothing uses the closed descriptors again.
            checked(unsafe { libc::syscall(libc::SYS_close_range, first, number - 1, 0) })?;
        }
        first = first.max(number.saturating_add(1));
    }
    Ok(())
}

/// Replaces the process. Returns only with the error.
pub fn execve(path: &CStr, argv: &[CString], env: &[CString]) -> io::Error {
    fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
        strings
            .iter()
            .map(|s| s.as_ptr())
            .chain(std::iter::once(std::ptr::null()))
            .collect()
    }
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: all three are NUL-terminated; the arrays end with a null pointer and outlive the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// `PR_SET_CHILD_SUBREAPER`: orphaned descendants become children of this process, which can then reap them.
pub fn set_child_subreaper() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// `PR_SET_DUMPABLE` 0: without CAP_SYS_PTRACE in the user namespace that the program was executed in, no process can
/// trace this one, read its memory or list its descriptors. A change of ids, and `execve`, set the flag anew.
pub fn set_not_dumpable() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// The opposite, while a parent has to write this process's id maps: `/proc/PID/uid_map` of a process that is not dumpable
/// belongs to root.
pub fn set_dumpable() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)?;
    Ok(())
}

/// Raises the soft limit `RLIMIT_NOFILE` to the hard one. It also bounds the descriptors in flight (`SCM_RIGHTS`) of a user.
pub fn raise_nofile_limit() -> io::Result<()> {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
    Ok(())
}

/// The same, and raises the hard limit to `least` before that, if this process may and it is lower.
pub fn raise_nofile_limits(least: u64) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < least) {
        let raised = rustix::process::Rlimit {
            current: Some(least),
            maximum: Some(least),
        };
        if rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).is_ok() {
            return Ok(());
        }
    }
    raise_nofile_limit()
}

/// Replaces the caller's session keyring by a new, empty one.
pub fn new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for a new anonymous keyring.
    checked(unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            KEYCTL_JOIN_SESSION_KEYRING,
            std::ptr::null::<libc::c_char>(),
        )
    })?;
    Ok(())
}

pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Sends a signal; success if the process has ended already.
pub fn pidfd_kill(pidfd: &OwnedFd, signal: Signal) -> io::Result<()> {
    match rustix::process::pidfd_send_signal(pidfd, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits until the process has ended, and reaps it if it is a child.
pub fn wait_pidfd(pidfd: &OwnedFd) -> io::Result<()> {
    loop {
        let mut fds = [rustix::event::PollFd::new(
            pidfd,
            rustix::event::PollFlags::IN,
        )];
        match rustix::event::poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        break;
    }
    match rustix::process::waitid(
        rustix::process::WaitId::PidFd(pidfd.as_fd()),
        WaitIdOptions::EXITED,
    ) {
        Ok(_) | Err(rustix::io::Errno::CHILD) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reaps until no child is left in the process group, also children that were adopted as subreaper.
pub fn reap_group(group: Pid) -> io::Result<()> {
    loop {
        let group = rustix::process::WaitId::Pgid(Some(group));
        match rustix::process::waitid(group, WaitIdOptions::EXITED) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits for a child and returns its exit code; -1 if a signal ended it.
pub fn exit_code(pidfd: &OwnedFd) -> io::Result<i32> {
    let status = rustix::process::waitid(
        rustix::process::WaitId::PidFd(pidfd.as_fd()),
        WaitIdOptions::EXITED,
    )?;
    Ok(status.and_then(|status| status.exit_status()).unwrap_or(-1))
}

/// The start time in clock ticks since boot: together with the pid it identifies one process.
pub fn start_time(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command name may contain parentheses and spaces: count fields from the last parenthesis.
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19))
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Starts a program in a session of its own, so that it outlives the terminal.
pub fn spawn_detached(command: &mut Command) -> io::Result<Child> {
    // SAFETY: setsid is async-signal-safe and touches no memory.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        })
    };
    command.spawn()
}

/// Sends the signal to every other process of this pid namespace (`kill(-1)`).
pub fn kill_all(signal: Signal) -> io::Result<()> {
    // SAFETY: no pointers.
    match checked(unsafe { libc::kill(-1, signal.as_raw()) }.into()) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error),
        _ => Ok(()),
    }
}

/// A child that has ended and is not reaped yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedChild {
    pub pid: i32,
    pub by: EndedBy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedBy {
    Exit,
    Signal,
}

/// The next child that has ended, not reaped (`WNOWAIT`): its pid stays taken and its `/proc` entry readable.
pub fn ended_child() -> Option<EndedChild> {
    // SAFETY: all-zero bytes are a valid `siginfo_t`.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is a live value that the kernel writes.
    checked(unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) }.into()).ok()?;
    // SAFETY: for `waitid` the kernel fills in the fields of SIGCHLD, or leaves all zero.
    let pid = unsafe { info.si_pid() };
    let by = if info.si_code == libc::CLD_EXITED {
        EndedBy::Exit
    } else {
        EndedBy::Signal
    };
    (pid != 0).then_some(EndedChild { pid, by })
}

/// Whether a child is left, running or not yet reaped.
pub fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(
        rustix::process::waitid(rustix::process::WaitId::All, options),
        Err(rustix::io::Errno::CHILD)
    )
}
