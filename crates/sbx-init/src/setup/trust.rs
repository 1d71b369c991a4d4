//! Adds the certificate of the sandbox's authority to the trust store inside.
//!
//! The files are in the sandbox's layer, and a program that was root inside before may have replaced them by anything:
//! only a regular file of a limited size is changed, and the sandbox starts even if that fails.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode as FileMode, OFlags, ResolveFlags};
use rustix::io::Errno;
use sbx_proto::OsBytes;

use super::tree::Builder;
use crate::error::{ErrorContext, SetupResult};

/// Ten times what distributions ship.
const MAX_BUNDLE: u64 = 16 << 20;

pub(super) fn add(
    builder: &Builder<'_>,
    certificate: &str,
    file: &Path,
    bundles: &[OsBytes],
) -> SetupResult<()> {
    ignore_existing_files(replace(builder, file, certificate))?;
    let mut found = false;
    for bundle in bundles {
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
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let small = u64::try_from(stat.st_size).is_ok_and(|size| size <= MAX_BUNDLE);
    Ok((regular && small).then_some(file))
}

fn append(bundle: OwnedFd, certificate: &str) -> std::io::Result<()> {
    let mut bundle = File::from(bundle);
    let mut text = Vec::new();
    bundle.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    if text.contains(certificate.trim()) {
        return Ok(());
    }
    // The offset is at the end now: what follows is appended.
    let gap = if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    bundle.write_all(format!("{gap}{certificate}").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

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
