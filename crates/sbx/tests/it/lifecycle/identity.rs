//! What makes a sandbox the same one: its name, and what it keeps.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::ModeTest;
use crate::harness::{Mode, Ran, World};

pub const TESTS: &[ModeTest] = &[
    ("lifecycle::what_survives_a_stop", survives_stop),
    ("lifecycle::hostname_is_the_name", hostname),
    ("lifecycle::a_name_is_taken_once", name_taken),
    ("lifecycle::a_directory_in_the_way_is_named", in_the_way),
    (
        "lifecycle::stored_variables_are_stronger_than_the_account",
        stored_home,
    ),
];

fn survives_stop(world: &'static World) {
    let sandbox = world.sandbox_with("persist", &["-e", "STORED=kept"]);
    sandbox
        .sh("mkdir -p ~/.config/app && echo mine > ~/.config/app/rc && chmod 640 ~/.config/app/rc && touch -d @1111111111 ~/.config/app/rc")
        .ok();
    let can_install = world.mode != Mode::Single;
    if can_install {
        sandbox
            .root_sh(
                "echo etc > /etc/made; echo changed >> /etc/profile; printf '#!/bin/sh\\necho tool\\n' > /usr/local/bin/tool; \
                 chmod 755 /usr/local/bin/tool; mkdir -p /opt/app /var/lib/app; echo opt > /opt/app/f; echo var > /var/lib/app/f; \
                 rm -f /usr/bin/yes; touch -d @1222222222 /etc/made; chown daemon /opt/app/f",
            )
            .ok();
    }
    for round in ["stop", "daemon restart and stop"] {
        if round != "stop" {
            world.run(["exec", &sandbox.name, "true"]).ok();
        }
        world.run(["stop", &sandbox.name]).ok();
        let shown = world.inspect(&sandbox.name);
        assert_eq!(
            (&shown["status"], &shown["stop_reason"]),
            (&json!("stopped"), &json!("user")),
            "{round}"
        );
        assert_eq!(
            sandbox
                .sh("cat ~/.config/app/rc; stat -c '%a %Y %U' ~/.config/app/rc; echo $STORED")
                .ok(),
            "mine\n640 1111111111 agent\nkept"
        );
        if can_install {
            assert_eq!(sandbox.sh("cat /etc/made; tool; cat /opt/app/f /var/lib/app/f; stat -c '%Y %U' /etc/made; stat -c %U /opt/app/f").ok(), "etc\ntool\nopt\nvar\n1222222222 root\ndaemon");
            assert_eq!(
                sandbox
                    .sh("tail -n1 /etc/profile; test -e /usr/bin/yes || echo no yes")
                    .ok(),
                "changed\nno yes"
            );
        }
    }
    assert!(
        Path::new("/usr/bin/yes").exists()
            && !Path::new("/etc/made").exists()
            && !Path::new("/usr/local/bin/tool").exists()
    );
    // Gone with the sandbox.
    world.run(["rm", "--force", &sandbox.name]).ok();
    world.create(&sandbox.name, &sandbox.workspace).ok();
    assert_eq!(
        sandbox
            .sh("test -e ~/.config/app || test -e /etc/made || echo new; echo \"$STORED\"")
            .ok(),
        "new"
    );
}

fn hostname(world: &'static World) {
    let sandbox = world.sandbox("Host.name");
    assert_eq!(
        sandbox
            .sh("hostname 2>/dev/null || cat /proc/sys/kernel/hostname; cat /etc/hostname")
            .ok(),
        format!("{0}\n{0}", sandbox.name)
    );
    // It resolves, and changing it concerns no other sandbox.
    sandbox
        .sh("grep -qw \"$(cat /etc/hostname)\" /etc/hosts")
        .ok();
    let before = rustix::system::uname().nodename().to_owned();
    let changed = sandbox.root_sh(
        "echo changed > /proc/sys/kernel/hostname; hostname changed; cat /proc/sys/kernel/hostname",
    );
    if world.mode != Mode::Single {
        assert!(changed.out.ends_with("changed\n"), "{changed:?}");
    }
    assert_eq!(rustix::system::uname().nodename(), before.as_c_str());
}

fn name_taken(world: &'static World) {
    let sandbox = world.sandbox("taken");
    let other = world.workspace();
    let again = world.create(&sandbox.name, &other).fails(1);
    // Not the advice to use or to remove what belongs to another project.
    let place = sandbox.workspace.display();
    assert!(again.err.contains("hint: choose another name with"));
    let told = format!("already exists, for workspace `{place}`\n");
    assert!(again.err.contains(&told), "{}", again.err);
    let same = world.create(&sandbox.name, &sandbox.workspace).fails(1).err;
    assert!(
        same.contains("hint: sbx run --name") && same.ends_with("already exists\n"),
        "{same}"
    );
    assert_eq!(
        sandbox.exec(["pwd"]).ok(),
        sandbox.workspace.to_str().unwrap()
    );
    // Many at once: one is made.
    let name = world.name("race");
    let clients: Vec<_> = (0..6).map(|_| world.begin_create(&name, &other)).collect();
    let ended: Vec<Ran> = clients
        .into_iter()
        .map(|client| Ran::from(client.wait_with_output().unwrap()))
        .collect();
    assert_eq!(
        ended.iter().filter(|ran| ran.code == 0).count(),
        1,
        "{ended:?}"
    );
    assert!(
        ended
            .iter()
            .all(|ran| ran.code == 0 || ran.err.contains("already exists")),
        "{ended:?}"
    );
    world.run(["exec", &name, "true"]).ok();
    world.run(["rm", "--force", &name]).ok();
    for bad in [
        "a",
        "default",
        "a_b",
        "-a",
        ".a",
        "a/b",
        "..",
        "",
        "a b",
        "ü",
        &"x".repeat(64),
        "end-",
        "end.",
    ] {
        world
            .run([
                "create",
                &format!("--name={bad}"),
                "shell",
                other.to_str().unwrap(),
            ])
            .fails(1);
    }
}

fn in_the_way(world: &'static World) {
    let (name, dir) = (world.name("ghost"), world.workspace());
    world.run(["daemon", "start", "-d"]).ok();
    let ghost = world.state().join("vm").join(&name);
    world.make_dir(&ghost);
    world.write(&ghost.join("file"), "unrelated");
    let told = world.create(&name, &dir).fails(1).err;
    assert!(told.contains("exists and is not a sandbox"), "{told}");
    assert!(ghost.join("file").exists());
    fs::remove_dir_all(&ghost).unwrap();
    world.create(&name, &dir).ok();
    world.run(["rm", "--force", &name]).ok();
}

fn stored_home(world: &'static World) {
    let sandbox = world.sandbox_with("stored", &["-e", "HOME=/var/tmp", "-e", "USER=me"]);
    let show = "echo $HOME $USER $LOGNAME $SHELL";
    assert_eq!(sandbox.sh(show).ok(), "/var/tmp me agent /bin/bash");
    let asked = sandbox.exec_with(&["-e", "HOME=/opt"], ["sh", "-c", show]);
    assert_eq!(asked.ok(), "/opt me agent /bin/bash");
}
