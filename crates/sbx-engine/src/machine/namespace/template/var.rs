//! `/var` of the template: the package database and what package scripts keep, nothing of the host's services.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use rustix::process::geteuid;

use super::copy::{Take, copy_tree, make_dir, make_link, present, write_file};
use super::error::At as _;
use super::{TemplateError, accounts};

/// Copied whole, as far as others may read it.
const COPIED: &[&str] = &[
    "cache/debconf",
    "lib/apt",
    "lib/dnf",
    "lib/dpkg",
    "lib/emacsen-common",
    "lib/pacman",
    "lib/pam",
    "lib/rpm",
    "lib/sgml-base",
    "lib/shells.state",
    "lib/systemd/deb-systemd-helper-enabled",
    "lib/systemd/deb-systemd-helper-masked",
    "lib/texmf",
    "lib/ucf",
    "lib/vim",
    "lib/xml-core",
];
const DIRS: &[(&str, u32)] = &[
    ("backups", 0o755),
    ("cache", 0o755),
    ("lib/misc", 0o755),
    ("lib/systemd", 0o755),
    ("local", 0o755),
    ("log/apt", 0o755),
    ("mail", 0o755),
    ("opt", 0o755),
    ("spool", 0o755),
    ("tmp", 0o1777),
];
/// The host's own are its locks, or not for others.
const LOCKS: &[&str] = &[
    "lib/dpkg/lock",
    "lib/dpkg/lock-frontend",
    "lib/dpkg/triggers/Lock",
];

pub(super) fn fill(host: &Path, to: &Path) -> Result<(), TemplateError> {
    make_dir(to, 0o755)?;
    let from = host.join("var");
    for rel in COPIED {
        if let Some(parent) = Path::new(rel).parent() {
            make_dir(&to.join(parent), 0o755)?;
        }
        copy_tree(&from.join(rel), &to.join(rel), Path::new(rel), &rule)?;
    }
    for (rel, mode) in DIRS {
        make_dir(&to.join(rel), *mode)?;
    }
    make_link(&to.join("lock"), Path::new("/run/lock"))?;
    make_link(&to.join("run"), Path::new("/run"))?;
    make_link(&to.join("spool/mail"), Path::new("../mail"))?;
    if to.join("lib/dpkg").is_dir() {
        for dir in ["info", "parts", "triggers", "updates", "alternatives"] {
            make_dir(&to.join("lib/dpkg").join(dir), 0o755)?;
        }
        for lock in LOCKS {
            write_file(&to.join(lock), "", 0o640)?;
        }
        apt_dirs(host, to)?;
    }
    Ok(())
}

/// Where apt downloads to, as the user that downloads.
fn apt_dirs(host: &Path, to: &Path) -> Result<(), TemplateError> {
    let passwd = host.join("etc/passwd");
    let text = present(fs::read_to_string(&passwd))
        .at("read", &passwd)?
        .unwrap_or_default();
    let owner = accounts::uid_of(&text, "_apt").filter(|_| geteuid().is_root());
    for partial in ["lib/apt/lists/partial", "cache/apt/archives/partial"] {
        let path = to.join(partial);
        make_dir(&path, 0o700)?;
        if owner.is_some() {
            chown(&path, owner, None).at("set the owner of", &path)?;
        }
    }
    Ok(())
}

fn rule(rel: &Path) -> Take {
    let left_out = [
        "passwords.dat",
        "lock",
        "lock-frontend",
        "Lock",
        "partial",
        "private",
    ];
    match rel.file_name().and_then(|name| name.to_str()) {
        Some(name) if left_out.contains(&name) => Take::Leave,
        Some(_) | None => Take::AsIs,
    }
}
