//! The start of a program that runs for a millisecond or two: C's `main` instead of the one that std wraps.
//!
//! Before `main`, std looks up where the stack ends (by reading `/proc/self/maps`) and installs a handler that tells
//! an overflow of it from other faults. That takes as long as everything that `sbx exec` does by itself, and without
//! it such a fault still ends the program. The two things that do matter happen here too: see [`begin`].

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

/// What std does as well: a missing stdin, stdout or stderr is `/dev/null`, so that no file that the program opens
/// takes its place, and a reader that has gone is an error of the write. And what it does not: see [`heap::share`].
pub fn begin() {
    if !has_standard_streams() {
        for _ in 0..3 {
            // The lowest number that is free.
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
    heap::share();
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
        // Opening one tells the same, at the price of a system call or two.
        Err(_) => false,
    }
}
