//! `.sbxignore`: what it names cannot be read inside, whatever programs inside do.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::harness::{Sandbox, World};

const SECRET: &str = "hunter2";

pub(super) fn masked(world: &'static World) {
    let (dir, lib) = (world.workspace(), world.workspace());
    for top in [&dir, &lib] {
        world.make_dir(&top.join("cfg"));
        world.make_dir(&top.join("cfg/keys"));
        world.make_dir(&top.join("secrets"));
        for file in [".env", "cfg/keys/a.key", "secrets/s"] {
            world.write(&top.join(file), SECRET);
        }
        world.write(&top.join("open"), "open");
        world.write(&top.join(".sbxignore"), "/.env\n*.key\nsecrets/\n");
    }
    let name = world.name("masks");
    let elsewhere = format!("{}:/mnt/lib", lib.display());
    let primary = dir.to_str().unwrap();
    world
        .run(["create", "--name", &name, "shell", primary, &elsewhere])
        .ok();
    let sandbox = Sandbox {
        world,
        name,
        workspace: dir.clone(),
    };
    let shown = world.inspect(&sandbox.name);
    let mounts = shown["mounts"].as_array().unwrap();
    let masks = mounts.iter().filter(|it| it["kind"] == "mask");
    assert_eq!(masks.count(), 6, "{mounts:?}");
    world.write(&dir.join("later.key"), SECRET);
    for round in 0..2 {
        for top in [primary, "/mnt/lib"] {
            assert_eq!(sandbox.sh(&format!("cat {top}/open")).ok(), "open");
            // Taken away, moved with what is around them, renamed, replaced, or linked to.
            let tries = format!(
                "cd {top}; umount .env; umount -l secrets; mv cfg cfg2; mv cfg/keys cfg/k2; mv .env e2; rm -f .env; \
                 rm -rf secrets; mv secrets s2; ln .env hard; mount --bind cfg /tmp; mkdir -p /tmp/b; \
                 mount --bind . /tmp/b; true"
            );
            sandbox.root_sh(&tries);
            let all = format!(
                "cat {top}/.env {top}/secrets/s; grep -rs {SECRET} {top} /tmp --exclude=later.key; true"
            );
            for said in [sandbox.sh(&all), sandbox.root_sh(&all)] {
                assert!(!said.out.contains(SECRET), "round {round}: {said:?}");
            }
        }
        for top in [&dir, &lib] {
            for file in [".env", "cfg/keys/a.key", "secrets/s"] {
                assert_eq!(
                    fs::read_to_string(top.join(file)).unwrap(),
                    SECRET,
                    "{file}"
                );
            }
        }
        if round == 0 {
            // Not masked before the next start.
            assert_eq!(sandbox.sh("cat later.key").ok(), SECRET);
            world.run(["stop", &sandbox.name]).ok();
            assert_eq!(sandbox.sh("cat later.key").ok(), "");
            // The patterns can be changed from inside, which takes no mask away.
            sandbox.sh("rm .sbxignore /mnt/lib/.sbxignore").ok();
            world.run(["stop", &sandbox.name]).ok();
        }
    }
}

/// What is not understood hides nothing, so nothing is shared.
pub(super) fn not_understood(world: &'static World) {
    let dir = world.workspace();
    world.write(&dir.join(".sbxignore"), "*.[ko]\n");
    let name = world.name("bad-masks");
    let primary = dir.to_str().unwrap();
    let refused = world
        .run(["create", "--name", &name, "shell", primary])
        .refused()
        .err;
    assert!(
        refused.contains("line 1") && refused.contains("hint: "),
        "{refused}"
    );
    assert!(!world.names().contains(&name));
}

/// A directory that a program inside has closed against its owner, who is also the agent, is not passed over.
pub(super) fn closed(world: &'static World) {
    let sandbox = world.sandbox("closed-mask");
    let dir = sandbox.path("cfg");
    world.make_dir(&dir);
    world.write(&sandbox.path(".sbxignore"), "*.key\n");
    sandbox.sh("chmod 0311 cfg").ok();
    world.run(["stop", &sandbox.name]).ok();
    world.write(&dir.join("a.key"), SECRET);
    let said = sandbox.sh("chmod 0755 cfg; cat cfg/a.key");
    assert!(!said.out.contains(SECRET), "{said:?}");
    if said.code != 0 {
        assert!(said.err.contains("cannot search"), "{said:?}");
        assert!(said.err.contains("cfg"), "{said:?}");
    }
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(sandbox.sh("cat cfg/a.key").ok(), "");
}

/// What one workspace masks, another one does not show.
pub(super) fn elsewhere(world: &'static World) {
    let outer = world.workspace();
    let dir = outer.join("dir");
    world.make_dir(&dir);
    world.make_dir(&dir.join("part"));
    for file in ["top.key", "part/a.key"] {
        world.write(&dir.join(file), SECRET);
    }
    world.write(&dir.join(".sbxignore"), "*.key\n");
    let primary = dir.to_str().unwrap();
    for other in [&outer, &dir.join("part")] {
        let other = format!("{}:/mnt/other", other.display());
        let name = world.name("elsewhere");
        let ran = world.run(["create", "--name", &name, "shell", primary, &other]);
        assert!(ran.code != 0 && ran.err.contains("shows too"), "{ran:?}");
        // Nor is it mounted later.
        world
            .run(["create", "--name", &name, "shell", primary])
            .ok();
        let ran = world.run(["mount", &name, &other]);
        assert!(ran.code != 0 && ran.err.contains("shows too"), "{ran:?}");
        world.run(["rm", "--force", &name]).ok();
    }
    // In the same place, or masked there too, it is hidden.
    let part = format!("{}:ro", dir.join("part").display());
    let name = world.name("elsewhere");
    world
        .run(["create", "--name", &name, "shell", primary, &part])
        .ok();
    let said = world.run(["exec", &name, "grep", "-rs", SECRET, "."]);
    assert!(!said.out.contains(SECRET), "{said:?}");
    world.run(["rm", "--force", &name]).ok();
    world.write(&outer.join(".sbxignore"), "*.key\n");
    let other = format!("{}:/mnt/other", outer.display());
    world
        .run(["create", "--name", &name, "shell", primary, &other])
        .ok();
    let said = world.run(["exec", &name, "grep", "-rs", SECRET, ".", "/mnt/other"]);
    assert!(!said.out.contains(SECRET), "{said:?}");
    world.run(["rm", "--force", &name]).ok();
}
