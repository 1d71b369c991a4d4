//! The disk of a sandbox: an image of an ext4 file system as a detached mount.
//!
//! The kernel keeps a file system that is mounted twice from two loop devices apart from itself, and both write: an image
//! is attached only after the device of the sandbox's last run is gone. That one goes a moment after its last process.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};
use sbx_sys::loopdev;

use crate::error::{ErrorContext, SetupError, SetupResult};

/// How long the last device of an image may take to go: what was written last is on its way to the disk.
const DETACH_TIMEOUT: Duration = Duration::from_secs(40);
const DETACH_INTERVAL: Duration = Duration::from_millis(5);
/// Other processes may take each device that is found free.
const ATTEMPTS: u32 = 64;

/// Needs the host's root.
pub(super) fn open(image: &Path) -> SetupResult<OwnedFd> {
    let doing = |what: &str| format!("{what} `{}`", image.display());
    let file = rustix::fs::openat2(
        rustix::fs::CWD,
        image,
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
    .doing(|| doing("open the disk"))?;
    await_detached(&file, image)?;
    let (path, device) = attach(&file).doing(|| doing("attach the disk"))?;
    let mount = mount(&path).doing(|| doing("mount the disk"))?;
    drop(device);
    Ok(mount)
}

fn await_detached(file: &OwnedFd, image: &Path) -> SetupResult<()> {
    let doing = || format!("wait for the disk `{}`", image.display());
    let stat = rustix::fs::fstat(file).doing(doing)?;
    let own = (stat.st_dev, stat.st_ino);
    let until = Instant::now() + DETACH_TIMEOUT;
    while is_attached(own) {
        if Instant::now() > until {
            return Err(SetupError::new(doing(), "it is still in use"));
        }
        sleep(DETACH_INTERVAL);
    }
    Ok(())
}

fn is_attached(file: (u64, u64)) -> bool {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut attached = devices.filter(|device| device.path().join("loop").exists());
    attached.any(|device| {
        let device = File::open(Path::new("/dev").join(device.file_name()));
        device.is_ok_and(|device| loopdev::attached(&device).is_ok_and(|it| it == file))
    })
}

/// The device detaches itself when it is neither open nor mounted.
fn attach(file: &OwnedFd) -> io::Result<(PathBuf, File)> {
    let mut last = io::Error::from(Errno::BUSY);
    for _ in 0..ATTEMPTS {
        let path = loopdev::free_device()?;
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        match loopdev::attach(&device, file.as_fd()) {
            Ok(()) => return Ok((path, device)),
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn mount(device: &Path) -> rustix::io::Result<OwnedFd> {
    let context = fsopen(c"ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), c"source", device)?;
    // What is deleted inside takes no room outside.
    fsconfig_set_flag(context.as_fd(), c"discard")?;
    fsconfig_create(context.as_fd())?;
    fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NODEV,
    )
}
