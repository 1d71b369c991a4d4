//! Where the state is: far away, or in another product's directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use crate::ModeTest;
use crate::harness::{Ran, World};

pub const TESTS: &[ModeTest] = &[
    ("daemon::a_home_of_two_hundred_characters", long_home),
    ("daemon::a_home_behind_a_symbolic_link", linked_home),
    ("daemon::another_products_directory", foreign),
    (
        "daemon::another_products_usual_directory_is_left_to_it",
        beside_another_product,
    ),
    (
        "daemon::needs_no_home_besides_its_own_directory",
        without_home,
    ),
];

/// The same user and sandboxes of its own, in another place.
struct Elsewhere<'a> {
    world: &'a World,
    variable: &'static str,
    state: PathBuf,
}

impl Elsewhere<'_> {
    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.world.sbx(args);
        command
            .env_remove("SBX_HOME")
            .env(self.variable, &self.state);
        Ran::from(command.output().unwrap())
    }
}

impl Drop for Elsewhere<'_> {
    fn drop(&mut self) {
        self.run(&["rm", "--all", "--force"]);
        self.run(&["daemon", "stop"]);
    }
}

fn long_home(world: &'static World) {
    let mut home = world.workspace();
    while home.as_os_str().len() < 220 {
        home = home.join("long-directory-name-of-a-home");
        world.make_dir(&home);
    }
    let dir = world.workspace();
    let settings = world.state().join("settings.json");
    for variable in ["HOME", "SBX_HOME"] {
        // One each: what a daemon leaves there may belong to ids that the tester cannot remove.
        let home = home.join(variable);
        world.make_dir(&home);
        let elsewhere = Elsewhere {
            world,
            variable,
            state: home.clone(),
        };
        if let Ok(settings) = fs::read(&settings) {
            let state = if variable == "HOME" {
                home.join(".docker/sandboxes")
            } else {
                home.clone()
            };
            if variable == "HOME" {
                world.make_dir(&home.join(".docker"));
                world.make_dir(&state);
            }
            world.write(&state.join(".sbx-owner"), "sbx\n");
            world.write(&state.join("settings.json"), settings);
        }
        elsewhere
            .run(&["create", "--name", "far", "shell", dir.to_str().unwrap()])
            .ok();
        assert_eq!(
            elsewhere.run(&["exec", "far", "echo", variable]).ok(),
            variable
        );
        elsewhere.run(&["daemon", "restart"]).ok();
        assert_eq!(
            elsewhere.run(&["exec", "far", "echo", "again"]).ok(),
            "again"
        );
        elsewhere.run(&["stop", "far"]).ok();
        assert_eq!(elsewhere.run(&["ls", "-q"]).ok(), "far");
        elsewhere.run(&["rm", "--force", "far"]).ok();
        elsewhere.run(&["daemon", "stop"]).ok();
    }
}

/// As `/home` is a link on many systems.
fn linked_home(world: &'static World) {
    let place = world.workspace();
    let real = place.join("real");
    world.make_dir(&real);
    let link = place.join("link");
    symlink(&real, &link).unwrap();
    let settings = fs::read(world.state().join("settings.json"));
    for variable in ["HOME", "SBX_HOME"] {
        let home = link.join(variable);
        let state = match variable {
            "HOME" => home.join(".docker/sandboxes"),
            _ => home.clone(),
        };
        world.make_dir(&home);
        if variable == "HOME" {
            world.make_dir(&home.join(".docker"));
            world.make_dir(&state);
        }
        if let Ok(settings) = &settings {
            world.write(&state.join("settings.json"), settings);
        }
        let elsewhere = Elsewhere {
            world,
            variable,
            state: home.clone(),
        };
        let project = world.workspace();
        elsewhere
            .run(&[
                "create",
                "--name",
                "box",
                "shell",
                project.to_str().unwrap(),
            ])
            .ok();
        let echo = ["exec", "box", "echo", "works"];
        assert_eq!(elsewhere.run(&echo).ok(), "works");
        elsewhere.run(&["daemon", "restart"]).ok();
        elsewhere.run(&["stop", "box"]).ok();
        assert_eq!(elsewhere.run(&echo).ok(), "works");
        elsewhere.run(&["rm", "--force", "box"]).ok();
    }
}

fn foreign(world: &'static World) {
    let state = world.workspace();
    let dir = world.workspace();
    world.write(&state.join("their.db"), "theirs\n");
    world.make_dir(&state.join("vm"));
    let theirs = Elsewhere {
        world,
        variable: "SBX_HOME",
        state: state.clone(),
    };
    for args in [
        &["create", "--name", "box", "shell", dir.to_str().unwrap()][..],
        &["run", "--name", "box", "shell", dir.to_str().unwrap()],
        &["daemon", "start", "-d"],
        &["daemon", "restart"],
    ] {
        let ran = theirs.run(args).refused();
        assert!(
            ran.err.contains("did not make") && ran.err.contains("SBX_HOME"),
            "{args:?}: {}",
            ran.err
        );
    }
    assert_eq!(
        theirs.run(&["ls", "--json"]).ok(),
        "{\n  \"sandboxes\": []\n}"
    );
    let mut left: Vec<_> = fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["their.db", "vm"]);
    assert_eq!(
        fs::read_to_string(state.join("their.db")).unwrap(),
        "theirs\n"
    );
    assert_eq!(
        fs::metadata(&state).unwrap().permissions().mode() & 0o777,
        0o755
    );
    assert_eq!(fs::read_dir(state.join("vm")).unwrap().count(), 0);
}

/// The first run works, and later ones find the same sandboxes.
fn beside_another_product(world: &'static World) {
    let home = world.workspace();
    let dir = world.workspace();
    for made in [".docker", ".docker/sandboxes", ".docker/sandboxes/vm"] {
        world.make_dir(&home.join(made));
    }
    let theirs = home.join(".docker/sandboxes/their.db");
    world.write(&theirs, "theirs\n");
    let ours = Elsewhere {
        world,
        variable: "HOME",
        state: home.clone(),
    };
    let state = home.join(".local/state/sbx");
    let shown = |ran: Ran| {
        let said = ran.out;
        assert!(said.contains(state.to_str().unwrap()), "{said}");
        assert!(said.contains("belongs to another product"), "{said}");
    };
    shown(ours.run(&["diagnose"]));
    ours.run(&["create", "--name", "box", "shell", dir.to_str().unwrap()])
        .ok();
    shown(ours.run(&["diagnose"]));
    assert_eq!(ours.run(&["exec", "box", "echo", "works"]).ok(), "works");
    assert!(state.join("vm/box/sandbox.json").exists());
    let left = fs::read_dir(home.join(".docker/sandboxes")).unwrap();
    assert_eq!(left.count(), 2);
    // It stays so when the other product is gone.
    fs::remove_dir_all(home.join(".docker")).unwrap();
    assert_eq!(ours.run(&["ls", "-q"]).ok(), "box");
    ours.run(&["rm", "--force", "box"]).ok();
}

/// As services are started.
fn without_home(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.workspace();
    let run = |args: &[&str]| Ran::from(world.sbx(args).env_remove("HOME").output().unwrap());
    run(&["create", "--name", "box", "shell", dir.to_str().unwrap()]).ok();
    assert_eq!(
        run(&["exec", "box", "sh", "-c", "echo $HOME"]).ok(),
        "/home/agent"
    );
    run(&["rm", "--force", "box"]).ok();
    world.stop_daemon();
    let neither = world
        .sbx(["ls"])
        .env_remove("HOME")
        .env_remove("SBX_HOME")
        .output();
    let told = Ran::from(neither.unwrap()).fails(1).err;
    assert!(told.contains("HOME is not set"), "{told}");
}
