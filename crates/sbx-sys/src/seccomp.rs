//! Installing a filter and answering its notifications.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::checked;

/// Since Linux 5.19.
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
/// CAP_SYS_ADMIN in its user namespace). The descriptor receives what the filter asks about.
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
    // A signal to a caller whose question was taken waits until it is answered: else the call would be aborted, which
    // programs do not expect of it, or done twice.
    let fd = match install(listener | WAIT_KILLABLE_RECV) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => install(listener),
        other => other,
    }?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A system call that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    pub id: u64,
    pub pid: u32,
    pub syscall: i32,
    pub args: [u64; 6],
}

/// The next waiting call; `None` when it went away meanwhile.
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

/// Is the caller still waiting? What was read about its process before is only then about that process.
pub fn still_waiting(listener: BorrowedFd<'_>, id: u64) -> bool {
    let mut id = id;
    ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &raw mut id).is_ok()
}

/// Answers a call: its return value, or an error number. A caller that is gone is no error.
pub fn answer(listener: BorrowedFd<'_>, id: u64, result: Result<i64, i32>) -> io::Result<()> {
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

/// Lets the kernel do the call after all. Only for a decision that no memory, descriptor or path of the caller
/// can change afterwards.
pub fn let_go_on(listener: BorrowedFd<'_>, id: u64) -> io::Result<()> {
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

/// Puts a descriptor into the caller's process and answers the call with its number. In two steps: the kernel has one call
/// for both, which answers "0" when whoever makes it is killed before the descriptor is there.
pub fn answer_with_fd(
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
        Ok(number) => answer(listener, id, Ok(number)),
    }
}

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
