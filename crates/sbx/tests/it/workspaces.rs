//! Workspaces: what is shared, how, whose the files are, and what is refused.

mod groups;
mod handover;
mod masks;
mod mounted;
mod places;
mod refused;
mod worktrees;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::ModeTest;
use crate::harness::{Mode, Ran, Sandbox, World, blocked, tester_is_root};

pub const TESTS: &[ModeTest] = &[
    ("workspaces::extra_ones_are_there_too", extra),
    ("workspaces::read_only_holds_against_root", read_only),
    ("workspaces::a_single_file_is_read_only", single_file),
    ("workspaces::odd_paths", odd_paths),
    ("workspaces::a_path_of_a_thousand_characters", long_path),
    ("workspaces::links_that_leave_resolve_inside", links),
    ("workspaces::dangerous_places_are_refused", refused::refused),
    ("workspaces::closed_ones_are_refused", refused::closed),
    (
        "workspaces::a_home_that_holds_the_state_is_refused",
        refused::whole_home,
    ),
    (
        "workspaces::files_of_root_are_handed_over",
        handover::handed_over,
    ),
    (
        "workspaces::files_of_root_are_handed_over_when_init_was_killed",
        handover::handed_over_after_a_crash,
    ),
    (
        "workspaces::files_of_root_are_handed_over_by_rm_at_last",
        handover::handed_over_at_last,
    ),
    (
        "workspaces::rm_says_that_files_of_root_were_not_handed_over",
        handover::not_handed_over,
    ),
    ("workspaces::other_places_inside", places::places),
    (
        "workspaces::a_read_only_primary_one",
        places::read_only_primary,
    ),
    ("workspaces::none_at_all", places::none),
    ("workspaces::ignored_files_are_masked", masks::masked),
    (
        "workspaces::what_is_closed_is_not_left_unmasked",
        masks::closed,
    ),
    (
        "workspaces::what_one_masks_no_other_shows",
        masks::elsewhere,
    ),
    (
        "workspaces::a_mask_that_is_not_understood_is_refused",
        masks::not_understood,
    ),
    ("workspaces::mounted_while_it_runs", mounted::while_it_runs),
    ("workspaces::unmounted_while_it_runs", mounted::taken_away),
    (
        "workspaces::mounted_again_after_it_was_taken_away",
        mounted::mounted_again,
    ),
    (
        "workspaces::mounted_and_the_daemon_was_killed",
        mounted::after_a_crash,
    ),
    (
        "workspaces::mounted_from_the_next_start_on",
        mounted::from_the_next_start,
    ),
    ("workspaces::what_is_not_mounted_later", mounted::refused),
    ("workspaces::nested", nested),
    (
        "workspaces::a_directory_around_a_nested_one_can_be_renamed",
        renamed_around,
    ),
    ("workspaces::modes_and_times_survive", modes_and_times),
    ("workspaces::team_directories", team),
    (
        "workspaces::everything_below_a_directory_of_another_group",
        groups::everything_below_a_closed_one,
    ),
    ("workspaces::one_that_is_gone_is_told", gone),
    ("workspaces::one_of_two_sandboxes", shared),
    (
        "workspaces::a_repository_stays_as_it_is",
        worktrees::untouched,
    ),
    (
        "workspaces::a_linked_worktree_shows_its_repository_read_only",
        worktrees::read_only,
    ),
    (
        "workspaces::commits_in_a_linked_worktree_with_git_write",
        worktrees::commits,
    ),
    (
        "workspaces::a_hostile_git_file_shares_no_repository",
        worktrees::hostile,
    ),
];
/// Elsewhere no group is without an id inside, or the files have the caller's.
pub const SUBORDINATE: &[ModeTest] = &[
    (
        "workspaces::files_of_root_are_handed_over_in_a_team_directory",
        handover::handed_over_in_a_team_directory,
    ),
    (
        "workspaces::files_of_root_are_handed_over_beside_a_closed_directory",
        handover::handed_over_beside_a_closed_one,
    ),
    ("workspaces::one_of_a_foreign_group", foreign_group),
    ("workspaces::a_caller_after_newgrp", groups::newgrp),
];
/// Ordinary users have files of their own only.
pub const ROOT: &[ModeTest] = &[(
    "workspaces::files_are_handed_over_to_the_owner_of_their_workspace",
    handover::handed_over_to_its_owner,
)];

/// Creates with these paths, the first of which must exist.
fn create<'a>(world: &'a World, hint: &str, paths: &[&str]) -> Sandbox<'a> {
    let name = world.name(hint);
    let workspace = PathBuf::from(paths[0]);
    world
        .run(["create", "--name", &name, "shell"].iter().chain(paths))
        .ok();
    Sandbox {
        world,
        name,
        workspace,
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A path as a word of the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", text(path).replace('\'', "'\\''"))
}

fn extra(world: &'static World) {
    let (first, second, third) = (world.workspace(), world.workspace(), world.workspace());
    world.write(&second.join("seen"), "second\n");
    let sandbox = create(world, "extra", &[text(&first), text(&second), text(&third)]);
    assert_eq!(sandbox.exec(["pwd"]).ok(), text(&first));
    assert_eq!(
        sandbox.exec(["cat", text(&second.join("seen"))]).ok(),
        "second"
    );
    sandbox
        .sh(&format!("echo made > {}/made", text(&third)))
        .ok();
    let meta = fs::metadata(third.join("made")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (world.uid, world.gid));
    // Its neighbours are not there.
    let neighbours = sandbox
        .sh(&format!("ls -A {}", text(first.parent().unwrap())))
        .ok();
    assert_eq!(neighbours.lines().count(), 3, "{neighbours}");
    // Relative paths are the caller's.
    let name = world.name("relative");
    let create = world
        .sbx(["create", "--name", &name, "shell", ".", "../x/../"])
        .current_dir(&first)
        .output();
    assert!(
        Ran::from(create.unwrap())
            .refused()
            .err
            .contains("does not exist")
    );
    let sibling = format!("../{}:ro", second.file_name().unwrap().to_str().unwrap());
    let create = world
        .sbx(["create", "--name", &name, "shell", ".", &sibling])
        .current_dir(&first)
        .output();
    Ran::from(create.unwrap()).ok();
    let relative = Sandbox {
        world,
        name,
        workspace: first,
    };
    assert_eq!(relative.exec(["pwd"]).ok(), text(&relative.workspace));
    assert_eq!(
        relative.exec(["cat", text(&second.join("seen"))]).ok(),
        "second"
    );
}

fn read_only(world: &'static World) {
    let (first, locked) = (world.workspace(), world.workspace());
    world.write(&locked.join("file"), "original\n");
    let readable = format!("{}:ro", text(&locked));
    let sandbox = create(world, "ro", &[text(&first), &readable]);
    let dir = quoted(&locked);
    assert_eq!(
        sandbox.exec(["cat", text(&locked.join("file"))]).ok(),
        "original"
    );
    let attempts = [
        format!("touch {dir}/new"),
        format!("echo x > {dir}/file"),
        format!("echo x >> {dir}/file"),
        format!("rm {dir}/file"),
        format!("mkdir {dir}/new"),
        format!("mv {dir}/file {dir}/moved"),
        format!("chmod 777 {dir}/file"),
        format!("touch -d '2001-01-01' {dir}/file"),
        format!("ln {dir}/file {dir}/link"),
        format!("ln -s x {dir}/link"),
    ];
    for attempt in &attempts {
        sandbox.sh(attempt).refused();
        sandbox.root_sh(attempt).refused();
    }
    // Remounting, unmounting, binding and moving do not make it writable.
    for attempt in [
        format!("mount -o remount,rw {dir} && touch {dir}/new"),
        format!("mount -o remount,bind,rw {dir} && touch {dir}/new"),
        format!("mount -n -o remount,rw,bind {dir} {dir}; touch {dir}/new"),
        format!("umount {dir}; touch {dir}/new && test -e {dir}/file"),
        format!("umount -l {dir}; touch {dir}/new && test -e {dir}/file"),
        format!(
            "mkdir -p /mnt/x; mount --bind {dir} /mnt/x; mount -o remount,rw,bind /mnt/x; touch /mnt/x/new && test -e /mnt/x/file"
        ),
        format!(
            "mkdir -p /mnt/y; mount --move {dir} /mnt/y; touch /mnt/y/new && test -e /mnt/y/file"
        ),
        format!(
            "unshare -rm sh -c 'mount -o remount,bind,rw {0} && touch {0}/new'",
            text(&locked)
        ),
    ] {
        sandbox.root_sh(&attempt).refused();
    }
    assert_eq!(
        fs::read_to_string(locked.join("file")).unwrap(),
        "original\n"
    );
    assert_eq!(fs::read_dir(&locked).unwrap().count(), 1);
    // The caller still writes, and it is seen.
    world.write(&locked.join("file"), "changed\n");
    assert_eq!(
        sandbox.exec(["cat", text(&locked.join("file"))]).ok(),
        "changed"
    );
}

fn single_file(world: &'static World) {
    let (first, second) = (world.workspace(), world.workspace());
    let file = second.join("notes.txt");
    world.write(&file, "notes\n");
    world.write(&second.join("secret"), "secret\n");
    let sandbox = create(
        world,
        "file",
        &[text(&first), &format!("{}:ro", text(&file))],
    );
    assert_eq!(sandbox.exec(["cat", text(&file)]).ok(), "notes");
    let path = quoted(&file);
    for attempt in [
        format!("echo x > {path}"),
        format!("rm {path}"),
        format!("mount -o remount,bind,rw {path} && echo x > {path}"),
    ] {
        sandbox.sh(&attempt).refused();
        sandbox.root_sh(&attempt).refused();
    }
    sandbox
        .exec(["cat", text(&second.join("secret"))])
        .refused();
    assert_eq!(fs::read_to_string(&file).unwrap(), "notes\n");
    let writable = world.run([
        "create",
        "--name",
        &world.name("file"),
        "shell",
        text(&first),
        text(&file),
    ]);
    assert!(
        writable
            .refused()
            .err
            .contains("can only be shared read-only")
    );
    let primary = world.run([
        "create",
        "--name",
        &world.name("file"),
        "shell",
        text(&file),
    ]);
    assert!(primary.refused().err.contains("is not a directory"));
}

fn odd_paths(world: &'static World) {
    let base = world.workspace();
    for odd in [
        "with space",
        "ünïcödé-日本",
        "new\nline",
        "-dash",
        "quote'\"$(x)`",
        "tab\there",
        "colon:ro:x",
        "back\\slash",
        "100%",
        "trailing ",
    ] {
        let dir = base.join(odd);
        world.make_dir(&dir);
        world.write(&dir.join("in"), odd);
        let sandbox = create(world, "odd", &[text(&dir)]);
        let pwd = world.sbx(["exec", &sandbox.name, "pwd"]).output().unwrap();
        assert_eq!(
            String::from_utf8(pwd.stdout).unwrap(),
            format!("{}\n", text(&dir)),
            "{odd:?}"
        );
        assert_eq!(sandbox.exec(["cat", "in"]).ok(), odd);
        sandbox.sh("echo x > out").ok();
        assert_eq!(fs::read_to_string(dir.join("out")).unwrap(), "x\n");
        let shown = world.inspect(&sandbox.name);
        assert_eq!(shown["workspace"], text(&dir));
        assert_eq!(shown["workspaces"][0]["missing"], false);
        // One line per sandbox for people.
        let listed = world.run(["ls"]).ok();
        assert_eq!(
            listed
                .lines()
                .filter(|line| line.starts_with(&format!("{} ", sandbox.name)))
                .count(),
            1
        );
        // A stop and a start find it again.
        world.run(["stop", &sandbox.name]).ok();
        assert_eq!(sandbox.exec(["cat", "out"]).ok(), "x");
    }
}

fn long_path(world: &'static World) {
    let mut dir = world.workspace();
    while text(&dir).len() < 1000 {
        let left = 1001 - text(&dir).len();
        dir = dir.join("d".repeat(left.clamp(2, 100) - 1));
        world.make_dir(&dir);
    }
    assert!(text(&dir).len() >= 1000);
    let sandbox = create(world, "long", &[text(&dir)]);
    assert_eq!(sandbox.exec(["pwd", "-P"]).ok(), text(&dir));
    sandbox.sh("echo x > out").ok();
    assert_eq!(fs::read_to_string(dir.join("out")).unwrap(), "x\n");
}

fn links(world: &'static World) {
    let sandbox = world.sandbox("links");
    let outside = world.workspace();
    world.write(&outside.join("secret"), "secret\n");
    for (name, target) in [
        ("hostname", PathBuf::from("/etc/hostname")),
        ("secret", outside.join("secret")),
        ("dir", outside.clone()),
        ("up", PathBuf::from("../../../../../../../..")),
        ("state", world.state()),
        ("root", PathBuf::from("/")),
    ] {
        symlink(target, sandbox.path(name)).unwrap();
    }
    // The sandbox's own, which is not the host's.
    assert_eq!(sandbox.exec(["cat", "hostname"]).ok(), sandbox.name);
    let files = "cat secret; ls dir; cat dir/secret; cat up$PWD/../../home/x; ls state; cat state/settings.json; ls up/proc/1/cwd/";
    for ran in [sandbox.sh(files), sandbox.root_sh(files)] {
        assert!(!ran.out.contains("secret"), "{}", ran.out);
        assert!(!ran.out.contains("sandboxd"), "{}", ran.out);
    }
    sandbox
        .root_sh("echo changed > hostname; mkdir -p dir; echo x > dir/new; echo x > secret; true")
        .ok();
    assert_eq!(
        fs::read_to_string(outside.join("secret")).unwrap(),
        "secret\n"
    );
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_ne!(
        fs::read_to_string("/etc/hostname").unwrap_or_default(),
        "changed\n"
    );
    // A primary workspace through a link is the directory itself.
    let link = world.home().join(world.name("link"));
    symlink(&outside, &link).unwrap();
    let through = create(world, "through", &[text(&link)]);
    assert_eq!(through.exec(["pwd"]).ok(), text(&outside));
    assert_eq!(through.exec(["cat", "secret"]).ok(), "secret");
    // And is reachable by the link's name; what lies beside the link is not.
    let name = format!("{}/secret", text(&link));
    for _ in 0..2 {
        assert_eq!(through.exec(["cat", &name]).ok(), "secret");
        let inside = ["sh", "-c", "echo x > new; pwd -P"];
        let real = through.exec_with(&["-w", text(&link)], inside).ok();
        assert_eq!(real, text(&outside));
        let beside = through.exec(["ls", "-A", text(&world.home())]).ok();
        assert!(!beside.contains(".docker"), "{beside}");
        world.run(["stop", &through.name]).ok();
    }
    assert!(outside.join("new").exists());
    fs::remove_file(link).unwrap();
}

/// From inside: the nested one goes along, and nothing lies open that did not before.
fn renamed_around(world: &'static World) {
    let outer = world.workspace();
    let between = outer.join("between");
    let inner = between.join("inner");
    world.make_dir(&between);
    world.make_dir(&inner);
    let sandbox = create(world, "around", &[text(&outer), text(&inner)]);
    let mut session = sandbox.open_session();
    sandbox
        .sh("mv between moved; echo x >moved/inner/file")
        .ok();
    // Init has looked at its mounts since.
    sandbox.sh("cat moved/inner/file").ok();
    assert_eq!(world.status(&sandbox.name), "running");
    assert!(session.try_wait().unwrap().is_none(), "it goes on");
    sandbox.sh("mv moved between").ok();
    assert_eq!(fs::read_to_string(inner.join("file")).unwrap(), "x\n");
    world.run(["rm", "--force", &sandbox.name]).ok();
    session.wait().unwrap();
}

fn nested(world: &'static World) {
    let outer = world.workspace();
    let inner = outer.join("inner");
    world.make_dir(&inner);
    let deep = inner.join("deep");
    world.make_dir(&deep);
    world.write(&inner.join("file"), "inner\n");
    // Read-only within writable within which something is writable again, in an order that is not the mounts'.
    let sandbox = create(
        world,
        "nested",
        &[text(&deep), &format!("{}:ro", text(&inner)), text(&outer)],
    );
    assert_eq!(sandbox.exec(["pwd"]).ok(), text(&deep));
    sandbox.sh(&format!("echo x > {}/made", text(&outer))).ok();
    sandbox
        .sh(&format!("echo x > {}/made", text(&inner)))
        .refused();
    sandbox
        .root_sh(&format!("echo x > {}/made", text(&inner)))
        .refused();
    sandbox.sh("echo x > made").ok();
    assert!(
        outer.join("made").exists() && deep.join("made").exists() && !inner.join("made").exists()
    );
    assert_eq!(
        sandbox.sh(&format!("cat {}/file", text(&inner))).ok(),
        "inner"
    );
}

fn modes_and_times(world: &'static World) {
    let sandbox = world.sandbox("modes");
    for mode in [0o600, 0o644, 0o755, 0o640, 0o400] {
        let name = format!("host-{mode:o}");
        world.write(&sandbox.path(&name), "x");
        fs::set_permissions(sandbox.path(&name), fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(
            sandbox.exec(["stat", "-c", "%a", &name]).ok(),
            format!("{mode:o}")
        );
        let made = format!("inside-{mode:o}");
        sandbox
            .sh(&format!(
                "echo x > {made}; chmod {mode:o} {made}; touch -d @1000000000.123456789 {made}"
            ))
            .ok();
        let meta = fs::metadata(sandbox.path(&made)).unwrap();
        assert_eq!(meta.mode() & 0o7777, mode);
        assert_eq!(
            (meta.mtime(), meta.mtime_nsec()),
            (1_000_000_000, 123_456_789)
        );
    }
    let set = world
        .command("touch")
        .args(["-d", "@1234567890.5", text(&sandbox.path("host-644"))])
        .status();
    assert!(set.unwrap().success());
    world.run(["stop", &sandbox.name]).ok();
    assert_eq!(
        sandbox.exec(["stat", "-c", "%Y %a", "host-644"]).ok(),
        "1234567890 644"
    );
    let meta = fs::metadata(sandbox.path("inside-400")).unwrap();
    assert_eq!((meta.mtime(), meta.mode() & 0o7777), (1_000_000_000, 0o400));
    // Hard links, sparse files, empty directories and long names are what they are.
    sandbox.sh("ln inside-644 linked; truncate -s 1G sparse; mkdir empty; touch $(printf 'n%.0s' $(seq 255))").ok();
    assert_eq!(fs::metadata(sandbox.path("linked")).unwrap().nlink(), 2);
    let sparse = fs::metadata(sandbox.path("sparse")).unwrap();
    assert_eq!((sparse.len(), sparse.blocks()), (1 << 30, 0));
    assert!(sandbox.path(&"n".repeat(255)).exists());
}

/// Closed to others, and of a group that has no id inside: root inside has no power over it, the agent has.
fn foreign_group(world: &'static World) {
    if !tester_is_root() {
        return blocked("a workspace of a foreign group needs root");
    }
    let sandbox = world.sandbox("foreign-group");
    std::os::unix::fs::chown(&sandbox.workspace, Some(world.uid), Some(100)).unwrap();
    fs::set_permissions(&sandbox.workspace, fs::Permissions::from_mode(0o750)).unwrap();
    // Calls that init does for the caller, where the caller is.
    let script = "mkdir dir; touch dir/file; cp -a dir copy; chmod 2755 dir; unshare -Urm true";
    sandbox.sh(&format!("set -e; {script}")).ok();
    // Root cannot go where the agent is, and is asked about what it does elsewhere all the same.
    if world.mode != Mode::Single {
        let script =
            "sudo touch /usr/local/own; sudo chmod 4755 /usr/local/own; stat -c %a /usr/local/own";
        assert_eq!(sandbox.sh(&format!("set -e; {script}")).ok(), "4755");
    }
}

/// Directories with setgid, as teams share them: what is made in them inherits the bit, and tools set it again.
fn team(world: &'static World) {
    let sandbox = world.sandbox("team");
    let shared = fs::Permissions::from_mode(0o2775);
    fs::set_permissions(&sandbox.workspace, shared).unwrap();
    let script = "set -e
        umask 022; mkdir made; chmod 755 made; echo x > made/file; chmod 755 made/file
        cp -a made copied; tar cf - made | (mkdir out; cd out; tar xpf -)
        mkdir -m 2770 given; chmod g-s given; chmod g+s given
        stat -c '%n %a' made made/file copied copied/file out/made given";
    let modes = "made 2755\nmade/file 755\ncopied 2755\ncopied/file 755\nout/made 2755\ngiven 2770";
    assert_eq!(sandbox.sh(script).ok(), modes);
    let copy = "import os, shutil; shutil.copytree('made', 'tree'); print(oct(os.stat('tree').st_mode & 0o7777))";
    assert_eq!(sandbox.exec(["python3", "-c", copy]).ok(), "0o2755");
    // A file has no use for it.
    sandbox.sh("chmod g+s made/file").refused();
    sandbox.sh("chmod 6755 made").refused();
}

fn gone(world: &'static World) {
    let made_anew = world.sandbox("anew");
    fs::remove_dir_all(&made_anew.workspace).unwrap();
    world.make_dir(&made_anew.workspace);
    let refused = made_anew.exec(["true"]).fails(125).err;
    assert!(
        refused.contains("replaced on the host") && refused.contains("sbx stop"),
        "{refused}"
    );
    world.run(["stop", &made_anew.name]).ok();
    made_anew.exec(["touch", "shared"]).ok();
    assert!(made_anew.path("shared").exists());
    // A name given twice is one sandbox.
    world
        .run(["rm", "--force", &made_anew.name, &made_anew.name])
        .ok();
    let sandbox = world.sandbox("gone");
    world.run(["stop", &sandbox.name]).ok();
    fs::remove_dir_all(&sandbox.workspace).unwrap();
    let listed = || {
        let list: serde_json::Value =
            serde_json::from_str(&world.run(["ls", "--json"]).ok()).unwrap();
        let all = list["sandboxes"].as_array().unwrap().clone();
        all.into_iter()
            .find(|one| one["name"] == sandbox.name.as_str())
            .unwrap()
    };
    assert_eq!(listed()["workspace_missing"], true);
    assert_eq!(
        world.inspect(&sandbox.name)["workspaces"][0]["missing"],
        true
    );
    let ran = sandbox.exec(["true"]).fails(125);
    assert!(
        ran.err.contains("does not exist") && ran.err.contains(text(&sandbox.workspace)),
        "{}",
        ran.err
    );
    assert_eq!(world.status(&sandbox.name), "stopped");
    // Something else in its place is not followed.
    symlink("/etc", &sandbox.workspace).unwrap();
    assert!(
        sandbox
            .exec(["true"])
            .fails(125)
            .err
            .contains("another directory")
    );
    fs::remove_file(&sandbox.workspace).unwrap();
    world.make_dir(&sandbox.workspace);
    assert_eq!(sandbox.exec(["pwd"]).ok(), text(&sandbox.workspace));
    assert!(listed().get("workspace_missing").is_none());
}

fn shared(world: &'static World) {
    let workspace = world.workspace();
    let (one, two) = (
        create(world, "one", &[text(&workspace)]),
        create(world, "two", &[text(&workspace)]),
    );
    one.sh("echo from-one > file").ok();
    assert_eq!(two.exec(["cat", "file"]).ok(), "from-one");
    two.sh("echo from-two >> file").ok();
    assert_eq!(one.exec(["cat", "file"]).ok(), "from-one\nfrom-two");
    // Everything else is apart.
    one.sh("echo x > /tmp/private; echo x > /home/agent/private")
        .ok();
    two.sh("test ! -e /tmp/private && test ! -e /home/agent/private")
        .ok();
    world.run(["rm", "--force", &one.name]).ok();
    assert_eq!(two.exec(["cat", "file"]).ok(), "from-one\nfrom-two");
}
