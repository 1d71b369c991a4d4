//! C's `main` instead of the one that std wraps, for programs that run for a millisecond or two.
//!
//! Before `main`, std looks up where the stack ends (glibc reads `/proc/self/maps`) and installs a SIGSEGV handler that
//! reports a stack overflow. That takes as long as everything that `sbx exec` does by itself; without it an overflow
//! still ends the program. What matters of std's start is done by [`begin`] too.

use crate::heap;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};

/// Makes `$main`, a `fn() -> u8`, the program. Its crate needs
/// `#![cfg_attr(all(target_env = "gnu", not(test)), no_main)]`: other C libraries do not tell std the arguments before
/// `main`.
#[macro_export]
macro_rules! program {
    ($main:path) => {
        #[cfg(all(target_env = "gnu", not(test)))]
        #[unsafe(no_mangle)]
        extern "C" fn main() -> std::ffi::c_int {
            $crate::start::begin();
            std::ffi::c_int::from($main())
        }

        #[cfg(any(test, not(target_env = "gnu")))]
        fn main() -> std::process::ExitCode {
            std::process::ExitCode::from($main())
        }
    };
}

/// As std does: opens `/dev/null` for a closed stdin, stdout or stderr, so that no file that the program opens later gets
/// that number, and ignores SIGPIPE, so that a write to a closed pipe fails with EPIPE. Also [`heap::use_one_arena`].
pub fn begin() {
    if !has_standard_streams() {
        for _ in 0..3 {
            // The kernel gives the lowest free number.
            let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty());
            match null {
                Ok(null) if std::os::fd::AsRawFd::as_raw_fd(&null) < 3 => std::mem::forget(null),
                Ok(_) => break,
                Err(_) => std::process::abort(),
            }
        }
    }
    // SAFETY: no handler is installed that could run; nothing else is running yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    heap::use_one_arena();
}

fn has_standard_streams() -> bool {
    let (stdin, stdout, stderr) = (
        rustix::stdio::stdin(),
        rustix::stdio::stdout(),
        rustix::stdio::stderr(),
    );
    let nothing = PollFlags::empty();
    let mut streams = [
        PollFd::new(&stdin, nothing),
        PollFd::new(&stdout, nothing),
        PollFd::new(&stderr, nothing),
    ];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match rustix::event::poll(&mut streams, Some(&at_once)) {
        Ok(_) => !streams
            .iter()
            .any(|stream| stream.revents().contains(PollFlags::NVAL)),
        // Then [`begin`] finds out by opening one.
        Err(_) => false,
    }
}
