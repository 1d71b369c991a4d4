//! Installing a seccomp filter and answering its user notifications (`seccomp_unotify(2)`).
//!
//! Where the filter returns `SECCOMP_RET_USER_NOTIF`, the kernel suspends the calling thread and queues a notification on
//! the filter's listener descriptor. The process that holds the listener receives it (`SECCOMP_IOCTL_NOTIF_RECV`) and
//! responds with a return value or an error number (`SECCOMP_IOCTL_NOTIF_SEND`), with a descriptor that is installed in
//! the caller (`SECCOMP_IOCTL_NOTIF_ADDFD`), or by letting the kernel run the call (`SECCOMP_USER_NOTIF_FLAG_CONTINUE`).
//! The caller can die at any moment, and its pid be reused: facts that were read by pid count only if
//! `SECCOMP_IOCTL_NOTIF_ID_VALID` says afterwards that the notification is still pending.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::checked;

/// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`, since Linux 5.19.
const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;

/// One instruction of a classic BPF program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub operand: u32,
}

/// Installs the filter for this process and its descendants, without `no_new_privs` (the caller has
/// CAP_SYS_ADMIN in its user namespace): setuid programs inside keep working. Returns the listener.
pub fn install(filter: &[Instruction]) -> io::Result<OwnedFd> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        // `Instruction` has the layout of `sock_filter`; the kernel only reads.
        filter: filter.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    let install = |flags: libc::c_ulong| {
        // SAFETY: the program points to `len` instructions that outlive the call.
        checked(unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            )
        })
    };
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // Once a notification was received, only a fatal signal interrupts the caller. Without this, any signal would abort the
    // call with EINTR, which programs do not expect of chmod or mount, or restart it after it was done.
    let fd = match install(listener | WAIT_KILLABLE_RECV) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => install(listener),
        other => other,
    }?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A suspended system call. `pid` is the caller's thread id in the receiver's pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    pub id: u64,
    pub pid: u32,
    pub syscall: i32,
    pub args: [u64; 6],
}

/// Receives the next notification; `None` if the caller died meanwhile.
pub fn receive(listener: BorrowedFd<'_>) -> io::Result<Option<Notification>> {
    // SAFETY: all-zero bytes are valid, and the kernel demands zeroes.
    let mut raw: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    match ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &raw mut raw) {
        Ok(_) => Ok(Some(Notification {
            id: raw.id,
            pid: raw.pid,
            syscall: raw.data.nr,
            args: raw.data.args,
        })),
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN)
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Whether the notification is still pending. Only then is what was read by the caller's pid before about that process, and
/// not about another one that got the same pid.
pub fn is_valid(listener: BorrowedFd<'_>, id: u64) -> bool {
    let mut id = id;
    ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &raw mut id).is_ok()
}

/// Ends a call with a return value or an error number. Success also if the caller died meanwhile (ENOENT).
pub fn respond(listener: BorrowedFd<'_>, id: u64, result: Result<i64, i32>) -> io::Result<()> {
    let mut response = libc::seccomp_notif_resp {
        id,
        val: result.unwrap_or(0),
        error: result.err().map_or(0, |errno| -errno),
        flags: 0,
    };
    match ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other.map(drop),
    }
}

/// Lets the kernel run the call (`SECCOMP_USER_NOTIF_FLAG_CONTINUE`). The kernel reads the arguments anew, so this is
/// sound only for a decision that does not depend on memory, descriptors or paths of the caller.
pub fn respond_continue(listener: BorrowedFd<'_>, id: u64) -> io::Result<()> {
    let mut response = libc::seccomp_notif_resp {
        id,
        val: 0,
        error: 0,
        flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
    };
    match ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other.map(drop),
    }
}

/// Installs a descriptor in the caller and ends the call with its number. In two steps: `SECCOMP_ADDFD_FLAG_SEND` does both
/// at once, but ends the call with 0 if the responding process is killed before the descriptor is installed.
pub fn respond_with_fd(
    listener: BorrowedFd<'_>,
    id: u64,
    fd: BorrowedFd<'_>,
    close_on_exec: bool,
) -> io::Result<()> {
    let mut request = libc::seccomp_notif_addfd {
        id,
        flags: 0,
        srcfd: u32::try_from(fd.as_raw_fd()).map_err(io::Error::other)?,
        newfd: 0,
        newfd_flags: if close_on_exec {
            libc::O_CLOEXEC.cast_unsigned()
        } else {
            0
        },
    };
    match ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut request) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(error) => Err(error),
        Ok(number) => respond(listener, id, Ok(number)),
    }
}

/// `_IOC` with the type `!`, as `<linux/seccomp.h>` defines these requests.
const fn request(direction: libc::c_ulong, number: libc::c_ulong, size: usize) -> libc::c_ulong {
    (direction << 30) | ((size as libc::c_ulong) << 16) | ((b'!' as libc::c_ulong) << 8) | number
}
const WRITE: libc::c_ulong = 1;
const READ_WRITE: libc::c_ulong = 3;
const SECCOMP_IOCTL_NOTIF_RECV: libc::c_ulong =
    request(READ_WRITE, 0, size_of::<libc::seccomp_notif>());
const SECCOMP_IOCTL_NOTIF_SEND: libc::c_ulong =
    request(READ_WRITE, 1, size_of::<libc::seccomp_notif_resp>());
const SECCOMP_IOCTL_NOTIF_ID_VALID: libc::c_ulong = request(WRITE, 2, size_of::<u64>());
const SECCOMP_IOCTL_NOTIF_ADDFD: libc::c_ulong =
    request(WRITE, 3, size_of::<libc::seccomp_notif_addfd>());

fn ioctl<T>(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: *mut T) -> io::Result<i64> {
    // SAFETY: each request above is paired with the structure whose size it encodes, and the pointer is to a
    // live value of that type.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) }.into())
}
