//! Loop devices: a file as a block device (`loop(4)`).

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;

use crate::checked;

// From `linux/loop.h`, which `libc` lacks.
const LOOP_CTL_GET_FREE: u64 = 0x4C82;
const LOOP_CONFIGURE: u64 = 0x4C0A;
const LOOP_GET_STATUS64: u64 = 0x4C05;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const NAME_SIZE: usize = 64;
const KEY_SIZE: usize = 32;

/// `struct loop_info64`
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_SIZE],
    crypt_name: [u8; NAME_SIZE],
    encrypt_key: [u8; KEY_SIZE],
    init: [u64; 2],
}

/// `struct loop_config`
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A device that is free until another process takes it.
pub fn free_device() -> io::Result<PathBuf> {
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control")?;
    // SAFETY: this request takes no argument and returns a number.
    let number = checked(unsafe {
        libc::c_long::from(libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _))
    })?;
    Ok(PathBuf::from(format!("/dev/loop{number}")))
}

/// Attaches a file to a device; EBUSY when another process was first. The kernel detaches it when the device is neither
/// open nor mounted any more (`LO_FLAGS_AUTOCLEAR`).
pub fn attach(device: &File, file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the structure is of integers alone, for which zeroes are valid.
    let mut config: Config = unsafe { zeroed() };
    config.fd = u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?;
    config.info.flags = LO_FLAGS_AUTOCLEAR;
    // SAFETY: the kernel reads one `struct loop_config`, which lives across the call.
    checked(unsafe {
        libc::c_long::from(libc::ioctl(
            device.as_raw_fd(),
            LOOP_CONFIGURE as _,
            &raw const config,
        ))
    })?;
    Ok(())
}

/// Device and inode number of the attached file; ENXIO when there is none.
pub fn attached(device: &File) -> io::Result<(u64, u64)> {
    // SAFETY: the structure is of integers alone, for which zeroes are valid.
    let mut info: Info = unsafe { zeroed() };
    // SAFETY: the kernel writes one `struct loop_info64`, which lives across the call.
    checked(unsafe {
        libc::c_long::from(libc::ioctl(
            device.as_raw_fd(),
            LOOP_GET_STATUS64 as _,
            &raw mut info,
        ))
    })?;
    Ok((info.device, info.inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_are_the_kernels() {
        assert_eq!(size_of::<Info>(), 232);
        assert_eq!(size_of::<Config>(), 304);
    }
}
