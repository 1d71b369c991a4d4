//! Links in a workspace, where a PATH entry, a tool's home or the user leads through it: the daemon follows those paths at every
//! start, and must not share what a program inside made them lead to.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use super::{run, sbx};
use crate::ModeTest;
use crate::harness::World;

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "a_search_path_in_a_workspace_works_and_shows_nothing_else",
        own_workspace,
    ),
    (
        "a_search_path_in_the_workspace_of_another_sandbox_shows_nothing",
        another_workspace,
    ),
    ("secret_directories_are_not_tool_chains", secrets),
    ("a_link_in_a_workspace_does_not_choose_a_workspace", lured),
];

const SYSTEM: &str = "/usr/bin:/bin";

/// A home with a secret in it that the mode's user may read, and in root mode everybody.
fn home(world: &World) -> std::path::PathBuf {
    let home = world.home().join(world.name("planted"));
    world.make_dir(&home);
    for dir in [".ssh", "private"] {
        world.make_dir(&home.join(dir));
        world.write(&home.join(dir).join("work"), "host secret\n");
    }
    home
}

fn create(
    world: &World,
    name: &str,
    home: &Path,
    env: &[(&str, String)],
    dirs: &[&Path],
) -> Command {
    let mut command = world.sbx(["create", "--name", name, "shell"]);
    command.args(dirs).env("HOME", home);
    for (key, value) in env {
        command.env(key, value);
    }
    command
}

/// Everything of the kind that is visible inside, whatever it is called there.
fn hunt(world: &World, name: &str, home: &Path) -> String {
    let script = format!(
        "cat '{0}/.ssh/work' '{0}/private/work' 2>/dev/null; find / -xdev -name work -path '*s*' 2>/dev/null; \
         grep -rs 'host secret' /home /mnt /srv '{0}' '{1}' 2>/dev/null; cat /proc/self/mountinfo; :",
        home.display(),
        world.home().display()
    );
    let mut command = world.sbx(["exec", "-u", "root", name, "sh", "-c", &script]);
    let ran = run(&mut command, b"");
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.out
}

fn own_workspace(world: &'static World) {
    let home = home(world);
    let workspace = world.workspace();
    for dir in [".venv", ".venv/bin", "jdk", "cargo", "cargo/registry", "go"] {
        world.make_dir(&workspace.join(dir));
    }
    let hello = workspace.join(".venv/bin/hello");
    world.write(&hello, "#!/bin/sh\necho hello from the venv\n");
    fs::set_permissions(&hello, fs::Permissions::from_mode(0o755)).unwrap();
    // A way around, which is the caller's own.
    symlink(workspace.join(".venv"), home.join("around")).unwrap();
    let at = |path: &str| workspace.join(path).to_str().unwrap().to_owned();
    let env = [
        (
            "PATH",
            format!("{}:{}/around/bin:{SYSTEM}", at(".venv/bin"), home.display()),
        ),
        ("JAVA_HOME", at("jdk")),
        ("CARGO_HOME", at("cargo")),
        ("GOROOT", at("go")),
        ("PYENV_ROOT", at("pyenv")),
        ("PIP_CACHE_DIR", at("pip")),
    ];
    let name = world.name("venv");
    run(&mut create(world, &name, &home, &env, &[&workspace]), b"").ok();
    let inside = |script: &str| {
        let mut command = world.sbx(["exec", &name, "sh", "-c", script]);
        run(&mut command, b"")
    };
    assert_eq!(inside("hello").ok(), "hello from the venv");
    assert_eq!(inside("echo $JAVA_HOME").ok(), at("jdk"));
    for secret in [".ssh", "private"] {
        let secret = home.join(secret);
        inside(&format!(
            "for d in .venv/bin jdk cargo/registry go pyenv pip; do rm -rf $d; ln -s '{}' $d; done",
            secret.display()
        ))
        .ok();
        sbx(world, &["stop", &name]).ok();
        let seen = hunt(world, &name, &home);
        assert!(!seen.contains("host secret"), "{seen}");
        assert!(!seen.contains(secret.to_str().unwrap()), "{seen}");
    }
    sbx(world, &["rm", "--force", &name]).ok();
}

fn another_workspace(world: &'static World) {
    let home = home(world);
    let (theirs, ours) = (world.sandbox("planter"), world.workspace());
    theirs.sh("mkdir -p bin cargo/registry").ok();
    let env = [
        ("PATH", format!("{}:{SYSTEM}", theirs.path("bin").display())),
        ("CARGO_HOME", theirs.path("cargo").display().to_string()),
    ];
    let name = world.name("victim");
    let created = run(&mut create(world, &name, &home, &env, &[&ours]), b"");
    assert!(
        created.err.contains("workspace of another sandbox"),
        "{created:?}"
    );
    created.ok();
    theirs
        .sh(&format!(
            "rm -r bin cargo/registry; ln -s '{0}' bin; ln -s '{0}' cargo/registry",
            home.join("private").display()
        ))
        .ok();
    sbx(world, &["stop", &name]).ok();
    let seen = hunt(world, &name, &home);
    assert!(!seen.contains("host secret"), "{seen}");
    sbx(world, &["rm", "--force", &name]).ok();
}

/// Even where the caller's own PATH leads there.
fn secrets(world: &'static World) {
    let home = home(world);
    let tools = home.join("tools");
    world.make_dir(&tools);
    world.write(&tools.join("marker"), "a tool\n");
    for dir in ["registry", "git"] {
        world.make_dir(&home.join(".ssh").join(dir));
    }
    symlink(home.join(".ssh"), home.join("keys")).unwrap();
    let at = |path: &str| home.join(path).to_str().unwrap().to_owned();
    let env = [
        (
            "PATH",
            [&at(".ssh"), &at("keys"), &at("tools"), SYSTEM]
                .map(|s| s.to_owned())
                .join(":"),
        ),
        ("JAVA_HOME", at("keys")),
        ("CARGO_HOME", at("keys")),
        ("PIP_CACHE_DIR", at(".ssh")),
    ];
    let (name, workspace) = (world.name("keys"), world.workspace());
    run(&mut create(world, &name, &home, &env, &[&workspace]), b"").ok();
    let seen = hunt(world, &name, &home);
    assert!(
        !seen.contains("host secret") && !seen.contains(".ssh ro"),
        "{seen}"
    );
    // The probe is real: what is a tool chain is there.
    let mut command = world.sbx(["exec", &name, "cat", &at("tools/marker")]);
    assert_eq!(run(&mut command, b"").ok(), "a tool");
    // It has to be what it was: the caller's own link leads elsewhere now.
    fs::rename(&tools, home.join("elsewhere")).unwrap();
    symlink(home.join("private"), &tools).unwrap();
    sbx(world, &["stop", &name]).ok();
    let seen = hunt(world, &name, &home);
    assert!(!seen.contains("host secret"), "{seen}");
    let warnings = world.inspect(&name)["warnings"].to_string();
    assert!(warnings.contains("resolves to another path"), "{warnings}");
    sbx(world, &["rm", "--force", &name]).ok();
}

/// The user is in a directory of a project, or names one, that an agent has replaced by a link.
fn lured(world: &'static World) {
    let home = home(world);
    let (theirs, ours) = (world.sandbox("planter"), world.workspace());
    let plant = format!(
        "mkdir real; ln -s real in; ln -s '{}' out; ln -s out chain; ln -s '{}' keys",
        home.join("private").display(),
        home.join(".ssh").display()
    );
    theirs.sh(&plant).ok();
    let outside = home.join("to-them");
    symlink(theirs.path("out"), &outside).unwrap();
    let name = world.name("victim");
    let tried = |here: &Path, paths: &[&str]| {
        let mut command = world.sbx(["create", "--name", &name, "shell"]);
        // What a shell says after `cd`.
        command.args(paths).current_dir(here).env("PWD", here);
        command.env("HOME", &home);
        run(&mut command, b"")
    };
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let read_only = format!("{}:ro", text(&theirs.path("keys")));
    for (here, paths) in [
        (theirs.path("out"), vec![".".to_owned()]),
        (theirs.path("chain"), vec![".".into()]),
        (theirs.workspace.clone(), vec!["out".into()]),
        (home.clone(), vec![text(&theirs.path("out"))]),
        (home.clone(), vec![text(&outside)]),
        (home.clone(), vec![text(&ours), read_only]),
    ] {
        let paths: Vec<_> = paths.iter().map(String::as_str).collect();
        let ran = tried(&here, &paths).fails(1);
        for said in ["through the link", &theirs.name, "give the real path"] {
            assert!(ran.err.contains(said), "{here:?} {paths:?}: {ran:?}");
        }
        assert!(!world.names().contains(&name));
    }
    // A link that stays is a name like any other, and a link of the user's own leads anywhere.
    symlink(home.join("private"), home.join("own")).unwrap();
    for (path, real) in [
        (theirs.path("in"), theirs.path("real")),
        (home.join("own"), home.join("private")),
    ] {
        tried(&home, &[&text(&path)]).ok();
        assert_eq!(world.inspect(&name)["workspace"], text(&real));
        sbx(world, &["rm", "--force", &name]).ok();
    }
    // However one came to a directory of secrets: it is shared by its real path only.
    let keys = home.join(".ssh");
    symlink(&keys, home.join("my-keys")).unwrap();
    for (here, path) in [
        (&keys, "."),
        (&home.join("my-keys"), "."),
        (&home, "my-keys"),
    ] {
        let ran = tried(here, &[path]).fails(1);
        assert!(ran.err.contains("holds secrets"), "{here:?}: {ran:?}");
    }
    tried(&home, &[&text(&keys)]).ok();
    sbx(world, &["rm", "--force", &name]).ok();
}
