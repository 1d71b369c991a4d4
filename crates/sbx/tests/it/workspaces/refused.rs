//! What cannot be shared, and why: places of the machine, of the engine, and what the caller may not enter.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::text;
use crate::harness::{Mode, Ran, World, blocked, tester_is_root};

pub(super) fn refused(world: &'static World) {
    // The daemon runs, and there is something in the state directory.
    let _other = world.sandbox("other");
    let fine = world.workspace();
    let below = world.state().join("vm");
    let above = world.state().parent().unwrap().to_path_buf();
    let link = world.home().join(world.name("to-state"));
    symlink(world.state(), &link).unwrap();
    let socket_dir = world.workspace();
    let socket = socket_dir.join("sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let bad = world.name("refused");
    let cases: &[(&Path, &str)] = &[
        (Path::new("/no/such/dir"), "does not exist"),
        (Path::new("/"), "whole machine"),
        (&world.state(), "state directory"),
        (&below, "state directory"),
        (&above, "state directory"),
        (&link, "state directory"),
        (Path::new("/proc"), "kernel"),
        (Path::new("/sys/kernel"), "kernel"),
        (Path::new("/dev"), "kernel"),
        (Path::new("/etc"), "sandbox's own"),
        (Path::new("/usr"), "sandbox's own"),
        (Path::new("/tmp"), "sandbox's own"),
        (&socket, "neither a directory nor a file"),
    ];
    for (path, reason) in cases {
        let own = format!("{}:ro", text(path));
        let attempts: [&[&str]; 3] = [
            &[text(path)],
            &[text(&fine), text(path)],
            &[text(&fine), &own],
        ];
        for paths in attempts {
            let ran = world
                .run(["create", "--name", &bad, "shell"].iter().chain(paths))
                .fails(1);
            let told = ran.err.contains(reason)
                || (ran.err.contains("is not a directory") && *path == socket);
            assert!(told, "{paths:?}: {}", ran.err);
            assert!(!world.names().contains(&bad));
            assert!(!world.state().join("vm").join(&bad).exists());
        }
    }
    let twice = world.run([
        "create",
        "--name",
        &bad,
        "shell",
        text(&fine),
        &format!("{}:ro", text(&fine)),
    ]);
    assert!(twice.refused().err.contains("given twice"));
    let lib = world.workspace();
    for place in [
        "/etc/lib",
        "/proc/lib",
        "/run/lib",
        "/mnt/../etc",
        text(&fine),
    ] {
        let shared = format!("{}:{place}", text(&lib));
        let ran = world.run(["create", "--name", &bad, "shell", text(&fine), &shared]);
        let err = ran.refused().err;
        assert!(
            err.contains("mount target") && err.contains("hint: choose"),
            "{err}"
        );
    }
    assert!(!world.names().contains(&bad));
    fs::remove_file(link).unwrap();
}

/// What the caller may not enter or read is of no use inside.
pub(super) fn closed(world: &'static World) {
    let hint = world.run(["create", "shell", "/proc/sys"]).fails(1).err;
    assert!(
        hint.contains("hint: share a directory of your own"),
        "{hint}"
    );
    let (fine, dir) = (world.workspace(), world.workspace());
    let file = fine.join("file");
    world.write(&file, "");
    for path in [&dir, &file] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
    }
    let name = world.name("closed");
    let create =
        |paths: &[&str]| world.run(["create", "--name", &name, "shell"].iter().chain(paths));
    let file_ro = format!("{}:ro", text(&file));
    let mut cases = vec![
        (
            vec![text(&dir)],
            format!(
                "hint: chmod u+rwX {0}\nerror: you have no permission to enter workspace `{0}`\n",
                text(&dir)
            ),
        ),
        (
            vec![text(&fine), text(&dir)],
            "to enter workspace".to_owned(),
        ),
        (vec![text(&fine), &file_ro], "to read workspace".to_owned()),
    ];
    if tester_is_root() {
        cases.push((
            vec!["/root"],
            "hint: share a directory of your own instead\n\
             error: you have no permission to enter workspace `/root`\n"
                .to_owned(),
        ));
    } else {
        blocked("only root is sure that `/root` is closed to others");
    }
    if world.mode == Mode::Root {
        // To root nothing is closed.
        create(&[text(&dir)]).ok();
        world.run(["rm", "--force", &name]).ok();
        return;
    }
    for (paths, reason) in cases {
        let ran = create(&paths).fails(1);
        assert!(ran.err.contains(&reason), "{paths:?}: {}", ran.err);
        assert!(!world.names().contains(&name));
    }
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    create(&[text(&dir)]).ok();
    world.run(["rm", "--force", &name]).ok();
}

/// Where the state directory is by default.
pub(super) fn whole_home(world: &'static World) {
    let home = world.workspace();
    let by_default = |args: &[&str]| {
        Ran::from(
            world
                .sbx(args)
                .env_remove("SBX_HOME")
                .env("HOME", &home)
                .current_dir(&home)
                .output()
                .unwrap(),
        )
    };
    let ran = by_default(&["create", "--name", "home", "shell", "."]).fails(1);
    assert!(ran.err.contains("state directory"), "{}", ran.err);
    assert_eq!(by_default(&["ls", "-q"]).ok(), "");
    assert_eq!(
        fs::read_dir(home.join(".docker/sandboxes/vm"))
            .unwrap()
            .count(),
        0
    );
    by_default(&["daemon", "stop"]).ok();
}
