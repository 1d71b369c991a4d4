//! The certificate of the sandbox's authority among those that programs inside trust.
//!
//! The files are the sandbox's own, and whoever was root inside before may have put anything in their place: only
//! a regular file of a sensible size is touched, and a sandbox without trust still starts.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode as FileMode, OFlags, ResolveFlags};
use rustix::io::Errno;
use sbx_proto::OsBytes;

use super::tree::Builder;
use crate::error::{SetupResult, While};

/// Ten times what distributions ship.
const MAX_BUNDLE: u64 = 16 << 20;

pub(super) fn add(
    builder: &Builder<'_>,
    certificate: &str,
    file: &Path,
    bundles: &[OsBytes],
) -> SetupResult<()> {
    match replace(builder, file, certificate) {
        Err(error) if error.is_refusal() => {}
        other => other?,
    }
    let mut found = false;
    for bundle in bundles {
        match open(builder, bundle.as_path()) {
            Ok(Some(bundle)) => {
                found = true;
                append(bundle, certificate).doing(|| "trust the sandbox's authority".into())?;
            }
            Ok(None) => {}
            Err(error) if error.is_refusal() => {}
            Err(error) => return Err(error),
        }
    }
    match bundles.first() {
        Some(first) if !found => replace(builder, first.as_path(), certificate),
        Some(_) | None => Ok(()),
    }
}

fn replace(builder: &Builder<'_>, path: &Path, text: &str) -> SetupResult<()> {
    let doing = || format!("write `{}`", path.display());
    let (parent, name) = builder.parent(path)?;
    match rustix::fs::unlinkat(&parent, &name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        // A directory: root inside wants it so.
        Err(Errno::ISDIR) => return Ok(()),
        Err(error) => return Err(error).doing(doing),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&parent, &name, flags, FileMode::from_bits_truncate(0o644))
        .doing(doing)?;
    File::from(file).write_all(text.as_bytes()).doing(doing)
}

/// An existing bundle, if it is one.
fn open(builder: &Builder<'_>, path: &Path) -> SetupResult<Option<OwnedFd>> {
    let doing = || format!("open `{}`", path.display());
    let opened = rustix::fs::openat2(
        builder.root()?,
        path,
        // Nothing that is put there in place of a file makes this wait.
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
    let facts = rustix::fs::fstat(&file).doing(doing)?;
    let regular = FileType::from_raw_mode(facts.st_mode) == FileType::RegularFile;
    let small = u64::try_from(facts.st_size).is_ok_and(|size| size <= MAX_BUNDLE);
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
    // Read to its end: what is written now comes after it.
    let gap = if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    bundle.write_all(format!("{gap}{certificate}").as_bytes())
}
