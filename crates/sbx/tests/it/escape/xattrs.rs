//! Extended attributes of workspace files: on the host some of them are modes, owners or capabilities.

use std::fs;
use std::path::Path;

use super::{attack, on_host};
use crate::ModeTest;
use crate::harness::{World, blocked};

pub(crate) const TESTS: &[ModeTest] = &[(
    "only_plain_attributes_reach_a_workspace",
    only_plain_attributes,
)];

const PROGRAM: &str = include_str!("attack/xattrs.py");
const WAYS: &[&str] = &["setxattr", "lsetxattr", "fsetxattr", "link"];
/// Names that the kernel itself gives to any owner of a file: only the guard refuses them.
const PRIVATE: &[&str] = &[
    "user.overlay.opaque",
    "user.overlay.redirect",
    "user.overlay.metacopy",
    "user.containers.override_stat",
    "user.fuseoverlayfs.opaque",
    "user.fuseoverlayfs.override_stat",
];
const FOREIGN: &[&str] = &[
    "trusted.overlay.opaque",
    "trusted.any",
    "security.capability",
    "security.selinux",
    "security.ima",
    "security.apparmor",
    "system.nfs4_acl",
    "system.other",
];

fn only_plain_attributes(world: &'static World) {
    let place = world.workspace();
    let settings = [
        ("WHO", "tester"),
        ("HOW", "host"),
        ("WHERE", place.to_str().unwrap()),
    ];
    // On the host the same calls work: the probe is real.
    let control = on_host(world, PROGRAM, &settings);
    if control.result("note/file/setxattr") == "EOPNOTSUPP" {
        return blocked("no user attributes on this file system");
    }
    for name in PRIVATE {
        assert_eq!(control.result(&format!("{name}/file/setxattr")), "ok");
    }
    assert_eq!(control.result("default-acl/setxattr"), "ok");
    let sandbox = world.sandbox("xattrs");
    for (user, how) in [("agent", "here"), ("root", "here"), ("agent", "nested")] {
        let settings = [("WHO", user), ("HOW", how), ("WHERE", "")];
        let said = attack(&sandbox, user, PROGRAM, &settings);
        for kind in ["file", "directory"] {
            for way in WAYS {
                for name in PRIVATE.iter().chain(FOREIGN) {
                    let attempt = format!("{name}/{kind}/{way}");
                    said.refused(&[(&attempt, &["EPERM"])]);
                }
                // What programs do need goes on working.
                let note = format!("note/{kind}/{way}");
                assert_eq!(said.result(&note), "ok", "as {user}, {how}:\n{}", said.all);
            }
            assert_eq!(said.result(&format!("acl/{kind}")), "ok", "{}", said.all);
        }
        for way in WAYS {
            said.refused(&[(&format!("default-acl/{way}"), &["ENOTSUP"])]);
        }
        // The own layer is not the host's.
        for own in ["own", "own-default-acl"] {
            assert_eq!(said.result(own), "ok", "as {user}, {how}:\n{}", said.all);
        }
    }
    // Whatever was answered: this is what there is.
    let mut seen = 0;
    for entry in fs::read_dir(&sandbox.workspace).unwrap().flatten() {
        let names = attributes(&entry.path());
        assert!(names.iter().any(|name| name == "user.note"), "{names:?}");
        for name in &names {
            assert!(
                ["user.note", "system.posix_acl_access"].contains(&name.as_str()),
                "{}: {names:?}",
                entry.path().display()
            );
        }
        seen += 1;
    }
    assert_eq!(seen, 6);
}

fn attributes(path: &Path) -> Vec<String> {
    let mut buffer = [0_u8; 4096];
    let size = rustix::fs::llistxattr(path, &mut buffer[..]).unwrap();
    buffer[..size]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}
