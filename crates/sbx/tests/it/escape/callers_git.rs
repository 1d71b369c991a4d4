//! `sbx create` asks git for the caller's name: not one that the workspace brings along, and not for ever.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{run, sbx};
use crate::ModeTest;
use crate::harness::{World, host_has};

pub(crate) const TESTS: &[ModeTest] = &[
    ("a_git_in_a_workspace_is_not_run_on_the_host", planted_git),
    (
        "a_repository_cannot_hold_up_or_redirect_create",
        hostile_repository,
    ),
];

fn plant(world: &World, git: &Path, marker: &Path) {
    world.write(
        git,
        format!(
            "#!/bin/sh\necho ran >> '{}'\nexec /usr/bin/git \"$@\"\n",
            marker.display()
        ),
    );
    fs::set_permissions(git, fs::Permissions::from_mode(0o755)).unwrap();
}

fn create(world: &World, name: &str, dir: &Path, path: &str) -> crate::harness::Ran {
    let mut command = world.sbx(["create", "--name", name, "shell", "."]);
    run(command.current_dir(dir).env("PATH", path), b"")
}

fn planted_git(world: &'static World) {
    let marker = world.home().join(world.name("git-ran"));
    let other = world.sandbox("git-other");
    let workspace = world.workspace();
    for dir in [&workspace, &other.workspace] {
        world.make_dir(&dir.join("bin"));
        plant(world, &dir.join("bin/git"), &marker);
        plant(world, &dir.join("git"), &marker);
    }
    let links = world.home().join(world.name("git-links"));
    world.make_dir(&links);
    std::os::unix::fs::symlink(workspace.join("git"), links.join("git")).unwrap();
    let path = format!(
        ":.:bin:{}:{}:{}:/usr/bin:/bin",
        workspace.join("bin").display(),
        other.path("bin").display(),
        links.display()
    );
    let name = world.name("git");
    create(world, &name, &workspace, &path).ok();
    assert!(
        !marker.exists(),
        "a program of the workspace was run on the host"
    );
    sbx(world, &["rm", "--force", &name]).ok();
}

fn hostile_repository(world: &'static World) {
    if !host_has("git") {
        return;
    }
    let workspace = world.workspace();
    let git = workspace.join(".git");
    world.make_dir(&git);
    let config = git.join("config");
    let marker = world.home().join(world.name("config-ran"));
    let identity = |name: &str| {
        let mut command = world.sbx(["exec", "-w", "/", name, "git", "config", "user.name"]);
        run(&mut command, b"").out.trim().to_owned()
    };
    // A repository's own name is the one to commit with.
    world.write(
        &config,
        format!(
            "[user]\n name = Repo Name\n[core]\n pager = touch '{0}'\n fsmonitor = touch '{0}'\n[include]\n path = /dev/tty\n",
            marker.display()
        ),
    );
    let name = world.name("repo");
    create(world, &name, &workspace, "/usr/bin:/bin").ok();
    assert_eq!(identity(&name), "Repo Name");
    sbx(world, &["rm", "--force", &name]).ok();
    assert!(!marker.exists());
    // A FIFO without a writer is not read.
    fs::remove_file(&config).unwrap();
    let mut fifo = world.command("mkfifo");
    run(fifo.arg(&config), b"").ok();
    let before = Instant::now();
    create(world, &name, &workspace, "/usr/bin:/bin").ok();
    assert!(before.elapsed() < Duration::from_secs(30), "it waited");
    assert_eq!(identity(&name), "");
    sbx(world, &["rm", "--force", &name]).ok();
}
