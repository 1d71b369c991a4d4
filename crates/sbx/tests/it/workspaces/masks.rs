//! `.sbxignore`: what it names cannot be read inside, whatever programs inside do.

use std::fs;

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
