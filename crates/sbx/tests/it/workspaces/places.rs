//! Workspaces at another place inside, a read-only primary one, and none at all.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::json;

use crate::harness::{Sandbox, World};

pub(super) fn places(world: &'static World) {
    let (lib, data) = (world.workspace(), world.workspace());
    world.write(&lib.join("file"), "kept\n");
    let more = [
        format!("{}:/mnt/lib:ro", lib.display()),
        format!("{}:/home/agent/data", data.display()),
    ];
    let sandbox = world.sandbox_with("places", &[&more[0], &more[1]]);
    let shown = world.inspect(&sandbox.name);
    assert_eq!(shown["workspaces"][1]["target"], "/mnt/lib");
    let mounts = shown["mounts"].as_array().unwrap();
    let at = |target: &str| mounts.iter().find(|it| it["target"] == target).unwrap();
    assert_eq!(at("/mnt/lib")["source"], json!(lib));
    assert_eq!(at("/mnt/lib")["readonly"], true);
    assert_eq!(at("/home/agent/data")["source"], json!(data));
    for _ in 0..2 {
        assert_eq!(sandbox.sh("cat /mnt/lib/file").ok(), "kept");
        let tried = sandbox.root_sh(
            "echo x > /mnt/lib/file; umount /mnt/lib; mount -o remount,rw,bind /mnt/lib; echo x > /mnt/lib/file",
        );
        assert_ne!(tried.code, 0, "{tried:?}");
        sandbox.sh("echo made > ~/data/made").ok();
        sandbox.root_sh("echo x > /home/agent/data/roots").ok();
        // The host's path leads nowhere inside.
        sandbox.exec(["test", "-e", lib.to_str().unwrap()]).fails(1);
        // No file of a workspace becomes setuid, wherever it is.
        sandbox.sh("chmod 4755 ~/data/made");
        let mode = fs::metadata(data.join("made")).unwrap().mode();
        assert_eq!(mode & 0o6000, 0, "{mode:o}");
        world.run(["stop", &sandbox.name]).ok();
    }
    assert_eq!(fs::read_to_string(lib.join("file")).unwrap(), "kept\n");
    for name in ["made", "roots"] {
        let meta = fs::metadata(data.join(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (world.uid, world.gid), "{name}");
    }
}

pub(super) fn read_only_primary(world: &'static World) {
    let dir = world.workspace();
    world.write(&dir.join("file"), "kept\n");
    let name = world.name("read-only");
    let shared = format!("{}:ro", dir.display());
    world
        .run(["create", "--name", &name, "shell", &shared])
        .ok();
    let sandbox = Sandbox {
        world,
        name,
        workspace: dir.clone(),
    };
    assert_eq!(
        sandbox.sh("pwd; cat file").ok(),
        format!("{}\nkept", dir.display())
    );
    sandbox.sh("touch new").fails(1);
    let remount = format!("mount -o remount,rw,bind {0}; touch {0}/new", dir.display());
    assert_ne!(sandbox.root_sh(&remount).code, 0);
    assert!(!dir.join("new").exists());
}

pub(super) fn none(world: &'static World) {
    let name = world.run(["create", "shell"]).ok();
    let hex = name.strip_prefix("shell-").unwrap();
    assert!(
        hex.len() == 8 && hex.bytes().all(|it| it.is_ascii_hexdigit()),
        "{name}"
    );
    let sandbox = Sandbox {
        world,
        name,
        workspace: world.workspace(),
    };
    assert_eq!(world.inspect(&sandbox.name)["workspaces"], json!([]));
    let script = "pwd; [ -f kept ] || echo kept > kept; cat kept; ls -A";
    for _ in 0..2 {
        let said = sandbox.sh(script).ok();
        assert_eq!(said, "/home/agent/workspace\nkept\nkept");
        world.run(["stop", &sandbox.name]).ok();
    }
    assert!(world.names().contains(&sandbox.name));
    let refused = world.run(["create", "--cache", "shell"]).fails(1).err;
    assert!(refused.contains("no workspace was given"), "{refused}");
}
