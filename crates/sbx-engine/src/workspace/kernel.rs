//! File systems in which the kernel shows or takes settings: they are the host's wherever they are mounted.
//!
//! A new mount of proc or sysfs shows the namespaces of its mounter, but a bind mount shows those of the original. So a
//! workspace may neither lie on such a file system nor have one mounted below it. Both `statfs` magic numbers and the
//! types of mountinfo are checked, since either may be missing for a kind.

use std::path::{Path, PathBuf};

use sbx_sys::mountinfo::Entry;

use super::WorkspaceError;
use super::aliases::mount_of;

/// By the name that mounts have for them, and by what `statfs` says. One has no number of its own.
const KINDS: &[(&str, Option<u32>)] = &[
    ("binfmt_misc", Some(0x4249_4e4d)),
    ("bpf", Some(0xcafe_4a11)),
    ("cgroup", Some(0x0027_e0eb)),
    ("cgroup2", Some(0x6367_7270)),
    ("configfs", Some(0x6265_6570)),
    ("debugfs", Some(0x6462_6720)),
    ("devpts", Some(0x0000_1cd1)),
    ("devtmpfs", None),
    ("efivarfs", Some(0xde5e_81e4)),
    ("fusectl", Some(0x6573_5543)),
    ("mqueue", Some(0x1980_0202)),
    ("nsfs", Some(0x6e73_6673)),
    ("proc", Some(0x0000_9fa0)),
    ("pstore", Some(0x6165_676c)),
    ("securityfs", Some(0x7363_6673)),
    ("selinuxfs", Some(0xf97c_ff8c)),
    ("smackfs", Some(0x4341_5d53)),
    ("sysfs", Some(0x6265_6572)),
    ("tracefs", Some(0x7472_6163)),
];

/// That neither the workspace lies on such a file system nor one is mounted in it.
pub(super) fn check(path: &Path, mounts: &[Entry]) -> Result<(), WorkspaceError> {
    if is_on_one(path) || mount_of(mounts, path).is_some_and(is_one) {
        return Err(WorkspaceError::Kernel(path.to_path_buf()));
    }
    match mounted_below(path, mounts) {
        Some((point, kind)) => Err(WorkspaceError::KernelMount {
            path: path.to_path_buf(),
            point,
            kind,
        }),
        None => Ok(()),
    }
}

fn mounted_below(path: &Path, mounts: &[Entry]) -> Option<(PathBuf, String)> {
    let mut below = mounts
        .iter()
        .filter(|mount| mount.point != path && mount.point.starts_with(path));
    let found = below.find(|mount| is_one(mount))?;
    Some((found.point.clone(), found.kind.clone()))
}

fn is_one(mount: &Entry) -> bool {
    KINDS.iter().any(|(kind, _)| *kind == mount.kind)
}

/// The list of mounts may not be there to be read.
fn is_on_one(path: &Path) -> bool {
    let number = rustix::fs::statfs(path).map(|found| found.f_type);
    // The number is 32 bits wide, whatever the field is on this machine.
    let number = number.map(|number| number & i64::from(u32::MAX));
    number.is_ok_and(|number| {
        KINDS
            .iter()
            .any(|(_, known)| known.map(i64::from) == Some(number))
    })
}

#[cfg(test)]
mod tests {
    use sbx_sys::mountinfo::parse;

    use super::*;

    const TABLE: &[u8] = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
        30 22 0:4 / /w/tree/proc rw - proc proc rw\n\
        31 22 0:5 / /w/memory rw - tmpfs t rw\n\
        32 22 0:6 / /w/dev rw - devtmpfs udev rw\n";

    #[test]
    fn what_is_mounted_decides() {
        let mounts = parse(TABLE);
        let below = |path: &str| mounted_below(Path::new(path), &mounts);
        let found = |point: &str, kind: &str| Some((point.into(), kind.to_owned()));
        assert_eq!(below("/w/tree"), found("/w/tree/proc", "proc"));
        assert_eq!(below("/w/memory"), None);
        assert_eq!(below("/w/tree/proc"), None);
        assert_eq!(below("/x"), None);
        for (path, expected) in [
            ("/w/dev/shm", true),
            ("/w/tree/proc", true),
            ("/w/memory/proc", false),
            ("/w/proc", false),
        ] {
            let on = mount_of(&mounts, Path::new(path)).unwrap();
            assert_eq!(is_one(on), expected, "{path}");
        }
    }

    #[test]
    fn the_kernel_says_what_a_path_lies_on() {
        assert!(is_on_one(Path::new("/proc/self")));
        assert!(!is_on_one(&std::env::temp_dir()));
        let shown = check(Path::new("/proc/self"), &[]);
        assert!(matches!(shown, Err(WorkspaceError::Kernel(_))));
    }
}
