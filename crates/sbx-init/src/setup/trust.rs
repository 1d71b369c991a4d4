//! Adds the certificate of the sandbox's authority to the trust store inside.
//!
//! The files are in the sandbox's layer, and a program that was root inside before may have replaced them by anything:
//! only a regular file of a limited size is changed, and the sandbox starts even if that fails.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode as FileMode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use sbx_proto::OsBytes;

use super::tree::Builder;
use crate::error::{ErrorContext, SetupResult};

/// Ten times what distributions ship.
const MAX_BUNDLE: u64 = 16 << 20;
/// Of a file that is about to replace another.
const NEW_SUFFIX: &str = ".sbx-new";

pub(super) fn add(
    builder: &Builder<'_>,
    certificate: &str,
    file: &Path,
    bundles: &[OsBytes],
) -> SetupResult<()> {
    ignore_existing_files(replace(builder, file, certificate))?;
    let mut found = false;
    for bundle in bundles {
        let replaced =
            ignore_existing_files(replace_bundle(builder, bundle.as_path(), certificate))?;
        if replaced == Some(Replaced::Yes) {
            found = true;
            continue;
        }
        let opened = ignore_existing_files(open(builder, bundle.as_path()))?;
        if let Some(bundle) = opened.flatten() {
            found = true;
            let appended = append(bundle, certificate);
            ignore_existing_files(appended.doing(|| "trust the sandbox's authority".into()))?;
        }
    }
    if let Some(first) = bundles.first()
        && !found
    {
        ignore_existing_files(replace(builder, first.as_path(), certificate))?;
    }
    Ok(())
}

/// Ignores errors that existing files cause: with one id most system files belong to another user, and any path may be a
/// dangling link.
fn ignore_existing_files<T>(done: SetupResult<T>) -> SetupResult<Option<T>> {
    match done {
        Err(error) if error.is_about_existing_files() => Ok(None),
        other => other.map(Some),
    }
}

fn replace(builder: &Builder<'_>, path: &Path, text: &str) -> SetupResult<()> {
    let doing = || format!("write `{}`", path.display());
    let (parent, name) = builder.parent(path)?;
    match rustix::fs::unlinkat(&parent, &name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        // A directory that root inside made: left alone.
        Err(Errno::ISDIR) => return Ok(()),
        Err(error) => return Err(error).doing(doing),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&parent, &name, flags, FileMode::from_bits_truncate(0o644))
        .doing(doing)?;
    File::from(file).write_all(text.as_bytes()).doing(doing)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replaced {
    /// Or it has the certificate already.
    Yes,
    /// What is there is left as it is.
    No,
}

/// The usual case: a file of init's own user, found without a link. To open a file of the template for writing has the kernel copy it
/// up and sync the copy, which takes longer than most of a start; a new file in its place takes neither.
fn replace_bundle(builder: &Builder<'_>, path: &Path, certificate: &str) -> SetupResult<Replaced> {
    let doing = || format!("replace `{}`", path.display());
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Replaced::No);
    };
    let parent = rustix::fs::openat2(
        builder.root()?,
        parent,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        FileMode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )
    .doing(doing)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let old = rustix::fs::openat(&parent, name, flags, FileMode::empty()).doing(doing)?;
    let stat = rustix::fs::fstat(&old).doing(doing)?;
    if !is_bundle(&stat) || !is_own(&stat) || stat.st_nlink != 1 {
        return Ok(Replaced::No);
    }
    let mut text = Vec::new();
    File::from(old).read_to_end(&mut text).doing(doing)?;
    let Some(addition) = addition(&text, certificate) else {
        return Ok(Replaced::Yes);
    };
    text.extend_from_slice(addition.as_bytes());
    let mut new_name = name.to_owned();
    new_name.push(NEW_SUFFIX);
    match rustix::fs::unlinkat(&parent, &new_name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error).doing(doing),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = FileMode::from_raw_mode(stat.st_mode);
    let new = rustix::fs::openat(&parent, &new_name, flags, mode).doing(doing)?;
    let mut new = File::from(new);
    let written = new.write_all(&text).and_then(|()| {
        // Some modes are not given at creation.
        rustix::fs::fchmod(&new, mode)?;
        Ok(rustix::fs::renameat(&parent, &new_name, &parent, name)?)
    });
    if written.is_err() {
        let _ = rustix::fs::unlinkat(&parent, &new_name, AtFlags::empty());
    }
    written.doing(doing).map(|()| Replaced::Yes)
}

/// What is to be appended to a bundle, if anything.
fn addition(text: &[u8], certificate: &str) -> Option<String> {
    if String::from_utf8_lossy(text).contains(certificate.trim()) {
        return None;
    }
    let gap = match text.last() {
        None | Some(b'\n') => "",
        Some(_) => "\n",
    };
    Some(format!("{gap}{certificate}"))
}

fn is_own(stat: &Stat) -> bool {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (stat.st_uid, stat.st_gid) == (uid.as_raw(), gid.as_raw())
}

fn is_bundle(stat: &Stat) -> bool {
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    regular && u64::try_from(stat.st_size).is_ok_and(|size| size <= MAX_BUNDLE)
}

/// Opens an existing bundle if it is a regular file of limited size.
fn open(builder: &Builder<'_>, path: &Path) -> SetupResult<Option<OwnedFd>> {
    let doing = || format!("open `{}`", path.display());
    let opened = rustix::fs::openat2(
        builder.root()?,
        path,
        // O_NONBLOCK: a FIFO in its place must not block.
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
        FileMode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    );
    let file = match opened {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ISDIR | Errno::LOOP | Errno::NXIO) => {
            return Ok(None);
        }
        Err(error) => return Err(error).doing(doing),
    };
    let stat = rustix::fs::fstat(&file).doing(doing)?;
    Ok(is_bundle(&stat).then_some(file))
}

fn append(bundle: OwnedFd, certificate: &str) -> std::io::Result<()> {
    let mut bundle = File::from(bundle);
    let mut text = Vec::new();
    bundle.read_to_end(&mut text)?;
    // The offset is at the end now: what follows is appended.
    match addition(&text, certificate) {
        None => Ok(()),
        Some(addition) => bundle.write_all(addition.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;
    use crate::error::SetupError;

    const CERTIFICATE: &str = "a certificate\n";
    const FILE: &str = "/share/ca/proxy.crt";
    const BUNDLE: &str = "/etc/bundle.crt";

    fn add_below(root: &Path) -> SetupResult<()> {
        let program = File::open("/dev/null").unwrap().into();
        let builder = Builder::at(root, &program);
        add(&builder, CERTIFICATE, Path::new(FILE), &[BUNDLE.into()])
    }

    fn write(path: &Path, text: &str) {
        let mut file = File::create(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn its_file_and_the_first_bundle_are_made() {
        let root = tempfile::tempdir().unwrap();
        add_below(root.path()).unwrap();
        for path in ["share/ca/proxy.crt", "etc/bundle.crt"] {
            assert_eq!(
                fs::read_to_string(root.path().join(path)).unwrap(),
                CERTIFICATE
            );
        }
    }

    /// Another inode: what is opened for writing is copied up by overlayfs, with fsync(2).
    #[test]
    fn a_bundle_is_replaced_once_and_keeps_its_mode() {
        let root = tempfile::tempdir().unwrap();
        let bundle = root.path().join("etc/bundle.crt");
        fs::create_dir(root.path().join("etc")).unwrap();
        write(&bundle, "others");
        fs::set_permissions(&bundle, Permissions::from_mode(0o640)).unwrap();
        let mut inodes = vec![fs::metadata(&bundle).unwrap().ino()];
        for _ in 0..2 {
            add_below(root.path()).unwrap();
            let metadata = fs::metadata(&bundle).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
            let text = fs::read_to_string(&bundle).unwrap();
            assert_eq!(text, format!("others\n{CERTIFICATE}"));
            inodes.push(metadata.ino());
        }
        assert_ne!(inodes[0], inodes[1]);
        assert_eq!(inodes[1], inodes[2]);
        assert_eq!(fs::read_dir(root.path().join("etc")).unwrap().count(), 1);
    }

    #[test]
    fn a_bundle_with_other_names_keeps_them() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        fs::create_dir(&etc).unwrap();
        write(&etc.join("real"), "others\n");
        symlink("real", etc.join("bundle.crt")).unwrap();
        fs::hard_link(etc.join("real"), etc.join("second")).unwrap();
        add_below(root.path()).unwrap();
        assert!(
            fs::symlink_metadata(etc.join("bundle.crt"))
                .unwrap()
                .is_symlink()
        );
        for name in ["real", "second"] {
            let text = fs::read_to_string(etc.join(name)).unwrap();
            assert_eq!(text, format!("others\n{CERTIFICATE}"), "{name}");
        }
    }

    #[test]
    fn obstacles_at_its_paths_do_not_fail_the_start() {
        let nowhere = |place: &Path| symlink("/nowhere/at/all", place).unwrap();
        let itself = |place: &Path| symlink(place.file_name().unwrap(), place).unwrap();
        let file = |place: &Path| drop(File::create(place).unwrap());
        for (what, plant) in [
            ("nowhere", &nowhere as &dyn Fn(&Path)),
            ("itself", &itself),
            ("file", &file),
        ] {
            for paths in [["share", "etc"], ["share/ca", "etc"]] {
                let root = tempfile::tempdir().unwrap();
                for place in paths {
                    let place = root.path().join(place);
                    fs::create_dir_all(place.parent().unwrap()).unwrap();
                    plant(&place);
                }
                let added = add_below(root.path());
                assert!(added.is_ok(), "{what} at {paths:?}: {added:?}");
            }
        }
    }

    #[test]
    fn a_full_disk_fails_the_start() {
        let failed = |errno| {
            let error = std::io::Error::from_raw_os_error(errno);
            ignore_existing_files(Err::<(), _>(error).doing(|| "write".into())).is_err()
        };
        let fatal = [libc::ENOSPC, libc::EDQUOT, libc::EIO, libc::ENOMEM];
        assert_eq!(fatal.map(failed), [true; 4]);
        let usual = [libc::EEXIST, libc::ENOTDIR, libc::ELOOP, libc::EROFS];
        assert_eq!(usual.map(failed), [false; 4]);
        let plan = SetupError::new("build the root", "the plan has no root");
        assert!(ignore_existing_files::<()>(Err(plan)).is_err());
    }
}
