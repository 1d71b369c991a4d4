//! Where inside a workspace may be, if not at its path on the host.
//!
//! Such a place is outside of every other workspace: mounts in one another have to be held in place, and a read-only one
//! must not be reachable through a writable one. Only a path that is the same inside and on the host can be covered.

use std::path::{Component, Path, PathBuf};

use sbx_proto::OsBytes;

use super::{KERNEL, OWN, WorkspaceError};
use crate::sandbox::record::WorkspaceRecord;

/// What the engine itself, or the system inside, puts files into: nothing in them can be covered.
const CLOSED: &[&str] = &[
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/run",
    "/sbin",
    "/usr",
    "/var/lock",
    "/var/run",
];

/// The place, if it is not the path on the host.
pub(super) fn check(target: &str, path: &Path) -> Result<Option<OsBytes>, WorkspaceError> {
    let place = Path::new(target);
    let refused = |why| {
        Err(WorkspaceError::Target {
            target: place.to_path_buf(),
            why,
        })
    };
    if !place.is_absolute() {
        return refused("it is not an absolute path");
    }
    let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    if !place.components().all(plain) {
        return refused("it leads upwards");
    }
    if target.contains([':', '\0', '\n']) {
        return refused("it contains a character that a place inside cannot have");
    }
    // Without slashes at the end or in a row.
    let place: PathBuf = place.components().collect();
    if place == path {
        return Ok(None);
    }
    if place == Path::new("/") || OWN.iter().any(|own| place == Path::new(own)) {
        return refused("it would hide the sandbox's own files");
    }
    if KERNEL.iter().any(|kernel| place.starts_with(kernel)) {
        return refused("it belongs to the kernel");
    }
    if CLOSED.iter().any(|closed| place.starts_with(closed)) {
        return refused("it is a part of the system inside");
    }
    Ok(Some(place.as_path().into()))
}

/// That those with a place of their own are apart from all others.
pub(super) fn check_apart(workspaces: &[WorkspaceRecord]) -> Result<(), WorkspaceError> {
    for (index, workspace) in workspaces.iter().enumerate() {
        if workspace.target.is_none() {
            continue;
        }
        let mut others = workspaces.iter().enumerate();
        let others = others.by_ref().filter(|(other, _)| *other != index);
        for (_, other) in others {
            if overlap(workspace.place(), other.place()) {
                return Err(WorkspaceError::TargetOverlap {
                    path: workspace.path.to_path_buf(),
                    target: workspace.place().to_path_buf(),
                    other: other.path.to_path_buf(),
                });
            }
            check_read_only(workspace, other)?;
            check_read_only(other, workspace)?;
        }
    }
    Ok(())
}

/// A mount covers what is read-only where the writable one shows it, but only at the same path.
fn check_read_only(inner: &WorkspaceRecord, outer: &WorkspaceRecord) -> Result<(), WorkspaceError> {
    let lies_in = inner.path.as_path().starts_with(outer.path.as_path());
    if inner.readonly && !outer.readonly && lies_in {
        return Err(WorkspaceError::WritableElsewhere {
            path: inner.path.to_path_buf(),
            writable: outer.path.to_path_buf(),
        });
    }
    Ok(())
}

fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::record::tests::any_example;

    #[test]
    fn places_that_are_refused() {
        let check = |target: &str| check(target, Path::new("/w/lib"));
        for target in [
            "",
            "lib",
            "./lib",
            "/",
            "//",
            "/../x",
            "/mnt/../etc",
            "/proc",
            "/proc/self",
            "/sys/x",
            "/dev/shm/x",
            "/run/x",
            "/run/.visible",
            "/etc",
            "/etc/passwd",
            "/usr",
            "/usr/bin/sudo",
            "/bin",
            "/lib64/x",
            "/home",
            "/home/agent",
            "/home/agent/",
            "/tmp",
            "/var",
            "/var/run/x",
            "/mnt/a:b",
            "/mnt/a:rw",
            "/mnt/a\0b",
        ] {
            assert!(check(target).is_err(), "{target:?}");
        }
        for (target, place) in [
            ("/mnt/lib", Some("/mnt/lib")),
            ("/mnt//lib/./", Some("/mnt/lib")),
            ("/home/agent/lib", Some("/home/agent/lib")),
            ("/w/lib/", None),
        ] {
            assert_eq!(check(target).unwrap(), place.map(OsBytes::from), "{target}");
        }
    }

    #[test]
    fn places_are_apart_and_read_only_is_read_only() {
        let of = |path: &str, target: Option<&str>, readonly| WorkspaceRecord {
            path: path.into(),
            target: target.map(OsBytes::from),
            readonly,
            ..any_example("ab").workspaces[0].clone()
        };
        let apart = |all: &[WorkspaceRecord]| check_apart(all).is_ok();
        let primary = of("/w/p", None, false);
        assert!(apart(&[
            primary.clone(),
            of("/w/lib", Some("/mnt/lib"), true)
        ]));
        // Nested without a place of its own: the usual way.
        assert!(apart(&[primary.clone(), of("/w/p/ro", None, true)]));
        for other in [
            of("/w/lib", Some("/w/p"), false),
            of("/w/lib", Some("/w/p/vendor"), false),
            of("/w/lib", Some("/w"), false),
            of("/w/p/ro", Some("/mnt/ro"), true),
        ] {
            assert!(!apart(&[primary.clone(), other.clone()]), "{other:?}");
            assert!(!apart(&[other, primary.clone()]));
        }
        // The writable one has the place of its own.
        let elsewhere = of("/w/p", Some("/mnt/p"), false);
        assert!(!apart(&[of("/w/p/ro", None, true), elsewhere]));
    }
}
