//! Programs inside that confine themselves with Landlock: the process that answers calls is not confined.

use std::fs;

use super::{Said, attack, on_host};
use crate::ModeTest;
use crate::harness::{World, blocked};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "landlock_holds_for_calls_that_are_answered",
        without_new_privileges,
    ),
    (
        "landlock_holds_with_capabilities_in_a_user_namespace",
        with_privileges,
    ),
];

const PROGRAM: &str = include_str!("attack/landlock.py");
const WAYS: &[&str] = &[
    "plain", "open", "openat", "creat", "mknod", "mknodat", "fifo",
];

/// The way that every program may take.
fn without_new_privileges(world: &'static World) {
    for user in ["agent", "root"] {
        let Some(said) = confined(world, user, "privileges") else {
            return;
        };
        assert_eq!(said.result("confine"), "ok", "as {user}:\n{}", said.all);
        nothing_was_made(user, &said);
    }
}

/// Root of a user namespace confines itself without giving up anything else. It may be refused that, which
/// it is told; it may not be told that it is confined when it is not.
fn with_privileges(world: &'static World) {
    for user in ["agent", "root"] {
        let Some(said) = confined(world, user, "namespace") else {
            return;
        };
        match said.result("confine") {
            "ok" => nothing_was_made(user, &said),
            refused => assert_eq!(refused, "EPERM", "as {user}:\n{}", said.all),
        }
    }
}

/// What a program could make before and after; nothing where the kernel has no Landlock.
fn confined(world: &'static World, user: &str, how: &str) -> Option<Said> {
    let sandbox = world.sandbox("landlock");
    let settings = [("WHO", user), ("CONFINE", how)];
    let said = attack(&sandbox, user, PROGRAM, &settings);
    if said.result("version").parse::<u32>().is_err() {
        // That the sandbox hides it would be another finding.
        let probe = "print('version', libc.syscall(ctypes.c_long(444), 0, 0, 1))";
        assert_eq!(on_host(world, probe, &[]).result("version"), "-1");
        blocked("this kernel has no Landlock");
        return None;
    }
    // The same calls do make something: the probe is real.
    for place in ["shared", "own"] {
        for way in WAYS {
            let name = format!("free_{place}_{way}");
            assert_eq!(said.result(&name), "ok", "as {user}:\n{}", said.all);
        }
    }
    let made = fs::read_dir(&sandbox.workspace).unwrap().flatten();
    let through: Vec<_> = made
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("confined-"))
        .collect();
    assert!(through.is_empty(), "as {user}: {through:?}\n{}", said.all);
    Some(said)
}

#[track_caller]
fn nothing_was_made(user: &str, said: &Said) {
    for place in ["shared", "own"] {
        for way in WAYS {
            let name = format!("confined_{place}_{way}");
            said.refused(&[(&name, &["EPERM", "EACCES"])]);
            assert_eq!(
                said.result(&format!("{name}_made")),
                "False",
                "as {user}:\n{}",
                said.all
            );
        }
        said.refused(&[(&format!("confined_{place}_write"), &["EPERM", "EACCES"])]);
        // The kernel's own error, for a call that is not reported to the guard.
        said.refused(&[(&format!("confined_{place}_plain"), &["EACCES"])]);
    }
}
