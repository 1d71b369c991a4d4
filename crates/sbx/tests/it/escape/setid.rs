//! Setuid, setgid and file capabilities in a workspace: on the host such a file runs as its owner.

use super::{assert_no_set_id, attack, on_host};
use crate::ModeTest;
use crate::harness::{Mode, World};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "no_call_gives_a_workspace_file_setuid_or_capabilities",
        every_call,
    ),
    (
        "no_call_in_a_nested_user_namespace_gives_a_workspace_file_setuid",
        every_call_nested,
    ),
    (
        "no_race_against_the_guard_gives_a_workspace_file_setuid",
        races,
    ),
    ("setuid_is_allowed_in_the_sandboxs_layers", own_layer),
];

const CALLS: &str = include_str!("attack/set_id.py");

#[track_caller]
fn try_all(world: &'static World, tries: &[(&str, &str, &str)]) {
    let sandbox = world.sandbox("setid");
    for (user, how, uid) in tries {
        let who = format!("{user}-{how}-{uid}");
        let settings = [
            ("WHO", who.as_str()),
            ("HOW", how),
            ("UID", uid),
            ("SCRATCH", "/tmp"),
        ];
        let said = attack(&sandbox, user, CALLS, &settings);
        assert_no_set_id(&sandbox.workspace);
        said.all_refused(220);
        // The call was made, reached the one who decides, and was refused for what it is.
        for name in [
            "chmod_4755",
            "fchmod_2755",
            "fchmodat_4755",
            "fchmodat2_6777",
            "directory_4777",
            "directory_6777",
            "in_directory_2755",
        ] {
            said.refused(&[(name, &["EPERM"])]);
        }
        // Links of proc are not followed in the caller's place.
        said.refused(&[("proc_root_4755", &["ELOOP", "EPERM"])]);
        for name in [
            "openat2_4755",
            "ring_4755",
            "x32_4755",
            "int80_4755",
            "number_wide_4755",
            "xattr_setxattrat2",
        ] {
            said.refused(&[(name, &["ENOSYS", "EPERM"])]);
        }
        said.refused(&[
            ("mount_overlay_plain", &["EPERM"]),
            ("mount_overlay_magic_shared", &["EPERM", "EINVAL"]),
            ("fsopen_overlay", &["EPERM"]),
        ]);
        said.refused(&[
            ("mkdir_4755", &["without"]),
            ("xattr_setxattr2", &["EPERM"]),
            ("xattr_fsetxattr3", &["EPERM"]),
        ]);
        said.refused(&[
            ("open_4755", &["without", "EPERM"]),
            ("tmpfile_4755", &["without", "EPERM"]),
            ("creat_4755", &["without", "EPERM"]),
        ]);
    }
}

fn every_call(world: &'static World) {
    try_all(world, &[("root", "here", "0"), ("agent", "here", "1000")]);
    // The same calls on the host do plant them: the probe is real.
    let (dir, scratch) = (world.workspace(), world.workspace());
    let program = format!("import os\nos.chdir({:?})\n{CALLS}", dir.to_str().unwrap());
    let control = on_host(
        world,
        &program,
        &[
            ("WHO", "host"),
            ("HOW", "host"),
            ("UID", "0"),
            ("SCRATCH", scratch.to_str().unwrap()),
        ],
    );
    for name in [
        "chmod_4755",
        "fchmod_4755",
        "fchmodat_4755",
        "fchmodat2_4755",
        "open_4755",
        "openat_4755",
        "creat_4755",
        "mknod_4755",
        "openat2_4755",
        "tmpfile_4755",
        "directory_6777",
        "in_directory_2755",
    ] {
        assert_eq!(
            control.result(name),
            "ok",
            "{name} on the host: {}",
            control.all
        );
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

fn every_call_nested(world: &'static World) {
    // Where the workspace's owner is called root, an unnamed file capability is valid for a namespace's root.
    try_all(
        world,
        &[
            ("root", "all", "0"),
            ("agent", "nested", "0"),
            ("agent", "nested", "1000"),
        ],
    );
}

fn races(world: &'static World) {
    let sandbox = world.sandbox("races");
    for (user, how) in [("agent", "here"), ("root", "here"), ("agent", "nested")] {
        let settings = [("WHO", user), ("HOW", how), ("COUNT", "300")];
        let said = attack(
            &sandbox,
            user,
            include_str!("attack/set_id_races.py"),
            &settings,
        );
        let won: Vec<_> = said
            .results
            .iter()
            .filter(|(_, result)| result.starts_with("ok"))
            .collect();
        assert!(won.is_empty(), "as {user}, {how}: {won:?}\n{}", said.all);
        assert!(said.results.len() >= 12, "{}", said.all);
        // Both sides of the race were met.
        for name in ["race_fchmod", "race_directory_fchmod"] {
            let result = said.result(name);
            let both = result.contains("done") && result.contains("EPERM");
            assert!(both, "{}", said.all);
        }
        if how == "nested" || (user == "root" && world.mode != Mode::Single) {
            assert!(
                said.result("race_mount_chmod").starts_with("lost"),
                "{}",
                said.all
            );
        }
        assert_no_set_id(&sandbox.workspace);
    }
}

/// What the guard allows: without it `apt-get install` of a setuid program would fail.
fn own_layer(world: &'static World) {
    let sandbox = world.sandbox("own-setid");
    let said = attack(
        &sandbox,
        "agent",
        "
path = '/tmp/escape-own'
open(path, 'w').close()
attempt('chmod', lambda: os.chmod(path, 0o4755))
print('mode', oct(os.stat(path).st_mode & 0o7777))
attempt('user_xattr', lambda: os.setxattr(os.getcwd(), 'user.note', b'1'))
attempt('openat', lambda: os.close(os.open('plain', os.O_CREAT | os.O_WRONLY, 0o4644)))
",
        &[],
    );
    assert_eq!(
        (said.result("chmod"), said.result("mode")),
        ("ok", "0o4755"),
        "{}",
        said.all
    );
    assert_no_set_id(&sandbox.workspace);
}
