//! The only crate with unsafe code: system calls that `rustix` and `std` do not offer, behind safe functions.
//!
//! Nothing here decides anything. Each function is one kernel operation with owned descriptors in and out.

pub mod credentials;
pub mod fdpass;
pub mod heap;
pub mod interfaces;
pub mod loopdev;
pub mod memfd;
pub mod mountinfo;
pub mod mounts;
pub mod netns;
pub mod nft;
pub mod nsfs;
pub mod original_dst;
pub mod peer;
pub mod pktinfo;
pub mod process;
pub mod route;
pub mod seccomp;
pub mod signals;
pub mod terminal;

mod netlink;

use std::io;

/// Turns the usual `-1 and errno` into a result.
fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
