//! Linked git worktrees: the repository beside them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};

use super::text;
use crate::harness::{Ran, Sandbox, World, host_has, tester_is_root};

/// No account has it.
const OTHER_USER: u32 = 61_234;

/// A repository with a second worktree, both with a commit.
struct Repository {
    common: PathBuf,
    worktree: PathBuf,
    admin: PathBuf,
}

fn git(world: &World, directory: &Path, words: &[&str]) -> Ran {
    let mut command = world.command("git");
    command.args(["-c", "user.name=Host", "-c", "user.email=host@example.test"]);
    command.args([
        "-c",
        "commit.gpgSign=false",
        "-c",
        "init.defaultBranch=main",
    ]);
    command.arg("-C").arg(directory).args(words);
    Ran::from(command.output().unwrap())
}

fn repository(world: &World) -> Option<Repository> {
    if !host_has("git") {
        return None;
    }
    let base = world.workspace();
    let (main, worktree) = (base.join("main"), base.join("linked"));
    world.make_dir(&main);
    git(world, &main, &["init", "-q"]).ok();
    world.write(&main.join("file"), "one\n");
    git(world, &main, &["add", "file"]).ok();
    git(world, &main, &["commit", "-q", "-m", "first"]).ok();
    git(
        world,
        &main,
        &["worktree", "add", "-q", "-b", "topic", text(&worktree)],
    )
    .ok();
    git(
        world,
        &main,
        &[
            "worktree",
            "add",
            "-q",
            "-b",
            "beside",
            text(&base.join("beside")),
        ],
    )
    .ok();
    let common = main.join(".git");
    Some(Repository {
        admin: common.join("worktrees/linked"),
        common,
        worktree,
    })
}

fn create<'a>(world: &'a World, repository: &Repository, flags: &[&str]) -> Sandbox<'a> {
    let name = world.name("linked");
    let words = ["create", "--name", &name]
        .into_iter()
        .chain(flags.iter().copied());
    let ran = world.run(words.chain(["shell", text(&repository.worktree)]));
    assert!(!ran.err.contains("not shared"), "{}", ran.err);
    ran.ok();
    Sandbox {
        world,
        name,
        workspace: repository.worktree.clone(),
    }
}

/// Every file of a repository's own directory but the index, which `git status` may write.
fn contents(common: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![common.to_owned()]);
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.file_name().is_some_and(|name| name != "index") {
                found.insert(path.clone(), fs::read(path).unwrap());
            }
        }
    }
    found
}

/// Whatever the engine does with a sandbox, the repository of its workspace has no remote, reference or identity of it
/// afterwards (Appendix B 15), also where the identity comes from a file that the caller's configuration includes.
pub fn untouched(world: &'static World) {
    let Some(repository) = repository(world) else {
        return;
    };
    let main = repository.common.parent().unwrap();
    let [included, global] = ["included", "global"].map(|name| world.home().join(world.name(name)));
    world.write(
        &included,
        "[user]\n\tname = Included\n\temail = in@example.test\n",
    );
    world.write(
        &global,
        format!("[include]\n\tpath = {}\n", text(&included)),
    );
    git(
        world,
        main,
        &["remote", "add", "origin", "https://git.example.test/x"],
    )
    .ok();
    let before = contents(&repository.common);
    let name = world.name("untouched");
    let run = |words: &[&str]| {
        let mut command = world.sbx(words);
        Ran::from(command.env("GIT_CONFIG_GLOBAL", &global).output().unwrap()).ok()
    };
    run(&["create", "--name", &name, "-p", "9418", "shell", text(main)]);
    let identity = "git config user.name; git config user.email; git status --porcelain";
    assert_eq!(
        run(&["exec", &name, "sh", "-c", identity]),
        "Included\nin@example.test"
    );
    assert_eq!(contents(&repository.common), before);
    run(&["stop", &name]);
    run(&["exec", &name, "git", "log"]);
    assert_eq!(contents(&repository.common), before);
    run(&["rm", "--force", &name]);
    assert_eq!(contents(&repository.common), before);
    // A copy of the repository is not made yet, and not silently left out.
    let refused = world.run(["create", "--clone", "--name", &name, "shell", text(main)]);
    assert!(
        refused.code != 0 && refused.err.contains("--clone"),
        "{refused:?}"
    );
    assert!(!world.names().contains(&name));
    assert_eq!(contents(&repository.common), before);
}

const COMMIT: &str = "git -c user.name=In -c user.email=in@example.test commit -q -a -m inside";

pub fn read_only(world: &'static World) {
    let Some(repository) = repository(world) else {
        return;
    };
    let sandbox = create(world, &repository, &[]);
    world.write(&repository.worktree.join("file"), "two\n");
    assert_eq!(sandbox.sh("git status --porcelain").ok(), " M file");
    assert!(sandbox.sh("git diff").ok().contains("+two"));
    assert!(sandbox.sh("git log --oneline").ok().contains("first"));
    let refused = sandbox.sh(COMMIT).refused();
    assert!(refused.err.contains("index.lock"), "{}", refused.err);
    assert!(
        refused.err.contains("Read-only file system"),
        "{}",
        refused.err
    );
    for place in ["objects", "refs/heads", "worktrees/linked", "hooks"] {
        let place = repository.common.join(place);
        sandbox
            .root_sh(&format!("touch {}/x", text(&place)))
            .refused();
    }
    let mounts = world.inspect(&sandbox.name)["mounts"].clone();
    let git: Vec<_> = (mounts.as_array().unwrap().iter())
        .filter(|mount| mount["kind"] == "git")
        .collect();
    assert_eq!(git.len(), 1, "{mounts}");
    assert_eq!(git[0]["source"], text(&repository.common));
    assert_eq!(git[0]["readonly"], true);
    // The main worktree is not shared with it.
    sandbox
        .exec(["cat", text(&repository.common.with_file_name("file"))])
        .refused();
}

pub fn commits(world: &'static World) {
    let Some(repository) = repository(world) else {
        return;
    };
    let Repository {
        common,
        worktree,
        admin,
    } = &repository;
    let sandbox = create(world, &repository, &["--git-write"]);
    sandbox.sh(&format!("echo two >file && {COMMIT}")).ok();
    let host = |words: &[&str]| git(world, worktree, words).ok();
    assert_eq!(
        host(&["log", "-1", "--format=%s %an", "topic"]),
        "inside In"
    );
    assert_eq!(host(&["status", "--porcelain"]), "");
    for log in ["HEAD", "topic"] {
        let reflog = host(&["reflog", "show", "-1", log]);
        assert!(reflog.ends_with("commit: inside"), "{log}: {reflog}");
    }
    // And the other way round.
    world.write(&worktree.join("file"), "three\n");
    host(&["commit", "-q", "-a", "-m", "outside"]);
    assert_eq!(
        sandbox
            .sh("git status --porcelain && git log -1 --format=%s")
            .ok(),
        "outside"
    );
    // Another branch, which the host is on then; and files of root become the caller's.
    sandbox
        .sh("git switch -q -c deep/er && echo four >file")
        .ok();
    sandbox
        .root_sh(&format!(
            "git config --global safe.directory '*' && {COMMIT}"
        ))
        .ok();
    assert_eq!(host(&["symbolic-ref", "HEAD"]), "refs/heads/deep/er");
    assert_eq!(host(&["status", "--porcelain"]), "");
    host(&["fsck", "--strict"]);
    for entry in [
        common.join("refs/heads/deep/er"),
        admin.join("index"),
        admin.join("HEAD"),
    ] {
        let meta = fs::symlink_metadata(&entry).unwrap();
        assert!(meta.is_file(), "{}", entry.display());
        assert_eq!(
            (meta.uid(), meta.gid()),
            (world.uid, world.gid),
            "{}",
            entry.display()
        );
    }
    // A start finds what the host has.
    world.run(["stop", &sandbox.name]).ok();
    host(&["switch", "-q", "topic"]);
    assert_eq!(
        sandbox
            .sh("git symbolic-ref HEAD && git status --porcelain")
            .ok(),
        "refs/heads/topic"
    );
    protected(&sandbox, &repository);
}

/// Nothing else of the repository changes, whatever is tried inside.
fn protected(sandbox: &Sandbox<'_>, repository: &Repository) {
    let common = text(&repository.common);
    let before = listing(&repository.common);
    let own = "worktrees/linked";
    for place in [
        "config",
        "config.worktree",
        "hooks/post-checkout",
        "info/attributes",
        "objects/info/alternates",
        "modules/x/config",
        "packed-refs",
        "worktrees/beside/HEAD",
        "worktrees/beside/index",
        "worktrees/other/gitdir",
    ] {
        let script = format!("mkdir -p $(dirname {common}/{place}); echo x >{common}/{place}");
        sandbox.sh(&script).refused();
        sandbox.root_sh(&script).refused();
    }
    for script in [
        format!("mv {common}/objects/info {common}/objects/other"),
        format!("rm -rf {common}/objects/info"),
        format!("umount {common}/objects/info"),
        format!("mount -o remount,bind,rw {common}"),
        format!("ln -s /etc/passwd {common}/HEAD"),
    ] {
        sandbox.root_sh(&script).refused();
    }
    // What is the sandbox's own does not reach the host.
    for script in [
        format!(
            "mkdir {common}/{own}/rebase-merge && echo 'exec id' >{common}/{own}/rebase-merge/git-rebase-todo"
        ),
        format!(
            "mkdir -p {common}/{own}/sequencer {common}/{own}/rebase-apply {common}/{own}/info {common}/{own}/modules/x"
        ),
        format!("echo '[core] fsmonitor = id' >{common}/{own}/config.worktree"),
        format!("echo /tmp >{common}/{own}/commondir"),
        format!("ln -sf /etc/passwd {common}/{own}/COMMIT_EDITMSG"),
        format!("ln -sf /etc/passwd {common}/{own}/logs/HEAD"),
        format!("ln -sf /etc/passwd {common}/logs/refs/heads/topic"),
        format!("echo '#!/bin/sh' >{common}/{own}/index"),
        format!("echo 'ref: ../../config' >{common}/{own}/HEAD"),
    ] {
        sandbox.sh(&script).ok();
    }
    assert_eq!(listing(&repository.common), before);
}

/// Every file with its kind and content, but for objects.
fn listing(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                left.push(path.clone());
            }
            let content = fs::read(&path).unwrap_or_default();
            found.push((path, format!("{:?} {content:?}", meta.file_type())));
        }
    }
    found.sort();
    found
}

pub fn hostile(world: &'static World) {
    let Some(repository) = repository(world) else {
        return;
    };
    let foreign = self::repository(world).unwrap();
    let not_shared = |what: &str, pointer: &str| {
        let workspace = world.workspace();
        world.write(&workspace.join(".git"), format!("gitdir: {pointer}\n"));
        let name = world.name("hostile");
        let ran = world.run(["create", "--name", &name, "shell", text(&workspace)]);
        assert!(ran.err.contains("is not shared"), "{what}: {}", ran.err);
        ran.ok();
        let shown = world.inspect(&name).to_string();
        assert!(!shown.contains("\"git\""), "{what}: {shown}");
        world
            .run(["exec", &name, "ls", text(&foreign.common.join("HEAD"))])
            .refused();
        let asked = [
            "create",
            "--git-write",
            "--name",
            &world.name("hostile"),
            "shell",
        ];
        world
            .run(asked.into_iter().chain([text(&workspace)]))
            .refused();
        world.run(["rm", "--force", &name]).ok();
    };
    not_shared("another worktree's directory", text(&foreign.admin));
    not_shared("the repository itself", text(&foreign.common));
    let link = world.workspace().join("link");
    symlink(&foreign.common, &link).unwrap();
    if tester_is_root() {
        // Right in every way, but for its owner.
        let other = self::repository(world).unwrap();
        chown(&other.admin, Some(OTHER_USER), None).unwrap();
        let ran = world.run([
            "create",
            "--name",
            &world.name("owner"),
            "shell",
            text(&other.worktree),
        ]);
        assert!(ran.err.contains("does not belong to you"), "{ran:?}");
        ran.ok();
    }
    not_shared("by a link", &format!("{}/worktrees/linked", text(&link)));
    // A good one that is changed from inside does not lead elsewhere at the next start.
    let sandbox = create(world, &repository, &["--git-write"]);
    sandbox.sh("git status").ok();
    sandbox
        .sh(&format!("echo 'gitdir: {}' >.git", text(&foreign.admin)))
        .ok();
    world.write(
        &foreign.admin.join("gitdir"),
        format!("{}/.git\n", text(&repository.worktree)),
    );
    world.run(["stop", &sandbox.name]).ok();
    sandbox.sh("git status").refused();
    sandbox
        .exec(["ls", text(&foreign.common.join("HEAD"))])
        .refused();
    sandbox
        .exec(["ls", text(&repository.common.join("HEAD"))])
        .refused();
    let shown = world.inspect(&sandbox.name).to_string();
    assert!(shown.contains("is not shared"), "{shown}");
}
