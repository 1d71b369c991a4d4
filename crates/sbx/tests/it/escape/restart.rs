//! What a hostile root leaves behind in its own layer or a workspace, met by the next start, stop or removal.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{create, fingerprint, run, sbx};
use crate::ModeTest;
use crate::harness::{Mode, Ran, World, eventually};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "links_in_the_own_layer_do_not_lead_the_next_start_out",
        planted_links,
    ),
    (
        "a_workspace_replaced_by_a_link_is_not_followed",
        replaced_workspace,
    ),
    (
        "a_read_only_workspace_moved_away_is_not_writable_after_a_restart",
        moved_workspace,
    ),
    (
        "fifos_where_the_next_start_mounts_do_not_hang_it",
        planted_fifos,
    ),
    (
        "planted_certificate_files_do_not_stop_a_start",
        planted_trust,
    ),
    (
        "a_hostile_tree_does_not_stop_hand_over_or_removal",
        hostile_tree,
    ),
    (
        "a_directory_that_another_sandbox_closes_again_and_again_is_removed",
        closed_again,
    ),
    ("users_in_a_hostile_passwd_stay_inside", hostile_passwd),
];

/// Everything below a directory, by name.
fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Puts links in the place of directories, whichever way that can be done, and says which. One process, because there
/// may be no other program left. What is a mount point in this view gets a link in it.
const LINKS: &str = "
import errno, os, shutil, sys
target, *places = sys.argv[1:]
for place in places:
    try:
        os.rename(place, place + '.old')
    except OSError as error:
        if error.errno == errno.EXDEV:
            shutil.rmtree(place, ignore_errors=True)
    for name, end in (place, target), (place + '/link', '/../../../../..' + target):
        try:
            os.symlink(end, name)
            print(name)
        except OSError:
            pass
";

fn planted_links(world: &'static World) {
    let outside = world.home().join(world.name("outside"));
    world.make_dir(&outside);
    world.write(&outside.join("file"), "untouched\n");
    let before = fingerprint(&outside.join("file"));
    let target = outside.to_str().unwrap();
    for places in [
        &["/home", "/run", "/mnt", "/srv", "/opt"][..],
        &["/dev", "/proc", "/sys", "/tmp"],
        &[
            "/usr/local",
            "/usr/bin/sudo",
            "/etc/hostname",
            "/etc/hosts",
            "/etc/resolv.conf",
            "/etc/profile.d",
            "/etc/passwd",
            "/etc/group",
        ],
        &["/usr", "/etc", "/var", "/bin", "/lib"],
    ] {
        let sandbox = world.sandbox("links");
        // The parents of a workspace are directories of the own layer.
        let parent = sandbox.workspace.parent().unwrap().to_str().unwrap();
        let attack = [&[super::PYTHON, "-c", LINKS, target, parent], places].concat();
        let said = sandbox.exec_with(&["-u", "root"], attack).ok();
        let planted = |place: &str| said.lines().any(|line| line.starts_with(place));
        assert!(planted(parent), "{places:?}: {said}");
        let any = places.iter().any(|place| planted(place));
        assert!(any, "{places:?}: {said}");
        sbx(world, &["stop", &sandbox.name]).ok();
        // It may fail to start, inside is broken; it may not do anything outside.
        let ran = sbx(
            world,
            &[
                "exec",
                "-u",
                "root",
                &sandbox.name,
                "/bin/sh",
                "-c",
                "cat file; ls -la; touch made-inside; cat /home/file /run/file /usr/local/file; :",
            ],
        );
        assert!(!ran.out.contains("untouched"), "{places:?}: {ran:?}");
        sbx(world, &["stop", &sandbox.name]).ok();
        assert_eq!(listing(&outside), ["file"], "{places:?}");
        assert_eq!(fingerprint(&outside.join("file")), before, "{places:?}");
        for name in ["sudo", "hostname", "hosts", "null", "shm", "pts"] {
            assert!(!outside.join(name).exists());
        }
    }
    fs::remove_dir_all(outside).unwrap();
}

fn replaced_workspace(world: &'static World) {
    let outside = world.home().join(world.name("secret"));
    world.make_dir(&outside);
    world.write(&outside.join("file"), "host secret\n");
    for deep in [false, true] {
        let outer = world.workspace();
        let inner = if deep {
            outer.join("a/b")
        } else {
            outer.join("inner")
        };
        for dir in inner
            .ancestors()
            .take_while(|dir| *dir != outer)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            world.make_dir(dir);
        }
        let workspaces = [outer.to_str().unwrap(), inner.to_str().unwrap()];
        let name = create(world, "replaced", &workspaces);
        world.run(["exec", &name, "true"]).ok();
        sbx(world, &["stop", &name]).ok();
        // From inside a mount point cannot be replaced while it is one, but its parent can, and so can a
        // nested workspace by another sandbox that has the outer one only. That is done here in its place.
        let victim = if deep { outer.join("a") } else { inner.clone() };
        fs::rename(&victim, outer.join("moved")).unwrap();
        if deep {
            symlink(outside.parent().unwrap(), &victim).unwrap();
            // `outer/a/b` is now `home/b`.
            let _ = fs::remove_dir_all(world.home().join("b"));
            world.make_dir(&world.home().join("b"));
            world.write(&world.home().join("b/file"), "host secret\n");
        } else {
            symlink(&outside, &victim).unwrap();
        }
        let shown = inner.to_str().unwrap();
        let ran = sbx(
            world,
            &[
                "exec",
                "-u",
                "root",
                &name,
                "sh",
                "-c",
                &format!("cat '{shown}/file'; echo breach > '{shown}/made'; :"),
            ],
        );
        assert!(!ran.out.contains("host secret"), "{ran:?}");
        assert_eq!(listing(&outside), ["file"]);
        let _ = fs::remove_dir_all(world.home().join("b"));
        sbx(world, &["rm", "--force", &name]).ok();
    }
    assert_eq!(
        fs::read_to_string(outside.join("file")).unwrap(),
        "host secret\n"
    );
    fs::remove_dir_all(outside).unwrap();
}

/// A read-only workspace inside a writable one: its parent can be renamed from inside. After a restart the
/// name is another one, and the protected directory lies open under its new name.
fn moved_workspace(world: &'static World) {
    let outer = world.workspace();
    let parent = outer.join("a");
    world.make_dir(&parent);
    let inner = parent.join("protected");
    world.make_dir(&inner);
    world.write(&inner.join("file"), "untouched\n");
    let option = format!("{}:ro", inner.to_str().unwrap());
    let name = create(world, "moved", &[outer.to_str().unwrap(), &option]);
    let write = "echo breach >> a/protected/file; echo breach >> b/protected/file; echo breach > b/protected/new; :";
    sbx(
        world,
        &[
            "exec",
            &name,
            "sh",
            "-c",
            &format!("mv a b && mkdir -p a/protected; {write}"),
        ],
    );
    sbx(world, &["stop", &name]).ok();
    sbx(world, &["exec", &name, "sh", "-c", write]);
    let found = if parent.join("protected/file").exists() {
        parent.join("protected")
    } else {
        outer.join("b/protected")
    };
    assert_eq!(
        fs::read_to_string(found.join("file")).unwrap(),
        "untouched\n",
        "the protected file was changed"
    );
    assert_eq!(listing(&found), ["file"]);
    sbx(world, &["rm", "--force", &name]).ok();
}

fn planted_fifos(shared: &'static World) {
    // A start that hangs is not to be in the way of other tests.
    let world = World::fresh(shared.mode);
    let world = &world;
    let dir = world.workspace();
    let file = dir.join("single");
    world.write(&file, "content\n");
    let option = format!("{}:ro", file.to_str().unwrap());
    let sandbox = world.sandbox_with("fifos", &[&option]);
    let place = dir.to_str().unwrap();
    // Below the mount is a file of the own layer, whose directory can be exchanged.
    let plant = format!(
        "mv '{place}' '{place}.old' && mkdir -p '{place}' && mkfifo '{place}/single'; mv /etc /etc.old && cp -a /etc.old /etc && for f in hostname hosts resolv.conf passwd group; do rm -f /etc/$f && mkfifo /etc/$f; done; [ -p '{place}/single' ] && echo planted"
    );
    assert_eq!(sandbox.root_sh(&plant).ok(), "planted");
    sbx(world, &["stop", &sandbox.name]).ok();
    let ran = sbx(
        world,
        &[
            "exec",
            "-u",
            "root",
            &sandbox.name,
            "cat",
            file.to_str().unwrap(),
        ],
    );
    assert!(
        ran.code == 0 && ran.out == "content\n" || ran.code == 125,
        "{ran:?}"
    );
    // Others are not disturbed.
    assert_eq!(world.sandbox("fifo-other").exec(["echo", "1"]).ok(), "1");
    assert_eq!(fs::read_to_string(&file).unwrap(), "content\n");
}

fn planted_trust(world: &'static World) {
    let sandbox = world.sandbox("trust");
    for plant in ["ln -s /nowhere", "ln -s ca-certificates", "touch", "mkfifo"] {
        let planted = sandbox.root_sh(&format!(
            "cd /usr/local/share && rm -rf ca-certificates && {plant} ca-certificates"
        ));
        // With one id the directory is the host's.
        if world.mode != Mode::Single {
            planted.ok();
        }
        sbx(world, &["stop", &sandbox.name]).ok();
        assert_eq!(sandbox.exec(["echo", "started"]).ok(), "started", "{plant}");
    }
}

fn hostile_tree(world: &'static World) {
    let workspace = world.workspace();
    let name = create(world, "tree", &[workspace.to_str().unwrap()]);
    let program = format!(
        "{}\n{}",
        super::LIBRARY,
        "
def deep(start, count):
    os.chdir(start)
    for _ in range(count):
        os.mkdir('d' * 100)
        os.chdir('d' * 100)
    os.close(os.open('bottom', os.O_CREAT | os.O_WRONLY))
where = os.getcwd()
os.makedirs('/tmp/deep')
in_child(lambda: deep(where, 3000))
in_child(lambda: deep('/tmp/deep', 3000))
os.chdir(where)
os.mkfifo('fifo')
os.symlink('/', 'root')
os.symlink('loop', 'loop')
os.symlink('..', 'up')
s = socket.socket(socket.AF_UNIX); s.bind('socket')
os.mkdir('closed', 0o000)
for base in ('/tmp/closed', '/var/tmp/closed'):
    os.makedirs(base + '/a/b')
    open(base + '/a/file', 'w').close()
    os.chmod(base + '/a', 0o000)
    os.chmod(base, 0o000)
for name in (b'new\\nline', b'-rf', b'\\xff\\xfe', b' ', b'*', b'a' * 255):
    os.mkdir(name)
    os.close(os.open(b'/tmp/' + name, os.O_CREAT | os.O_WRONLY))
print('planted', True)
"
    );
    for user in ["root", "agent"] {
        let mut exec = world.sbx(["exec", "-i", "-u", user, &name, super::PYTHON, "-"]);
        let ran = if user == "root" {
            run(&mut exec, program.as_bytes())
        } else {
            Ran {
                code: 0,
                out: "planted True".into(),
                err: String::new(),
            }
        };
        assert!(ran.code == 0 && ran.out.contains("planted True"), "{ran:?}");
    }
    // Root's files were handed over, to the bottom.
    let down = "import os, sys\nos.chdir(sys.argv[1])\nwhile not os.path.exists('bottom'): os.chdir('d' * 100)\nprint(os.stat('bottom').st_uid)";
    let mut owner = world.command(super::PYTHON);
    owner.args(["-c", down]).arg(&workspace);
    assert_eq!(run(&mut owner, b"").ok(), world.uid.to_string());
    let escaped = fs::symlink_metadata("/")
        .map(|meta| std::os::unix::fs::MetadataExt::uid(&meta))
        .unwrap();
    assert_eq!(escaped, 0, "the hand-over followed a link");
    sbx(world, &["rm", "--force", &name]).ok();
    assert!(
        !world.state().join("vm").join(&name).exists(),
        "the sandbox is not gone"
    );
    let mut remove = world.command("rm");
    remove.arg("-rf").arg(&workspace);
    run(&mut remove, b"").ok();
    assert!(
        !workspace.exists(),
        "the caller cannot remove what root inside made"
    );
}

/// One that is removed has given it a directory of its own.
const CLOSES: &str = "
import os, socket
door = socket.socket(socket.AF_UNIX)
door.bind('door')
door.listen(1)
open('listens', 'w').close()
_, fds, _, _ = socket.recv_fds(door.accept()[0], 1, 1)
open('closes', 'w').close()
os.fork()
os.fork()
while not os.path.exists('stop'):
    for _ in range(1000):
        os.fchmod(fds[0], 0)
";
const GIVES: &str = "
import os, socket
os.makedirs('/tmp/given/below')
door = socket.socket(socket.AF_UNIX)
door.connect('door')
socket.send_fds(door, [b'x'], [os.open('/tmp/given', os.O_RDONLY)])
";

fn closed_again(world: &'static World) {
    let workspace = world.workspace();
    let place = workspace.to_str().unwrap();
    let (removed, other) = (
        create(world, "removed", &[place]),
        create(world, "other", &[place]),
    );
    world
        .run(["exec", "-d", &other, super::PYTHON, "-c", CLOSES])
        .ok();
    let made = |name: &str| workspace.join(name).exists().then_some(());
    eventually("the other sandbox listens", || made("listens"));
    world
        .run(["exec", &removed, super::PYTHON, "-c", GIVES])
        .ok();
    eventually("the other sandbox has it", || made("closes"));
    world.run(["rm", "--force", &removed]).ok();
    assert!(!world.state().join("vm").join(&removed).exists());
    world.write(&workspace.join("stop"), "");
    sbx(world, &["rm", "--force", &other]).ok();
}

fn hostile_passwd(world: &'static World) {
    let sandbox = world.sandbox("passwd");
    let ws = sandbox.workspace.clone();
    for text in [
        "agent:x:0:0::/root:/bin/sh\\nroot:x:4294967295:4294967295::/:/bin/sh",
        "agent:x:65536:65536::/:/bin/sh\\nroot:x:-1:-1::/:/bin/sh",
        "agent:x:1000:1000::/proc/1/root:/proc/self/exe",
    ] {
        sandbox.root_sh(&format!(
            "printf '{text}\\n' > /etc/passwd; printf 'root:x:4294967295:agent\\n' > /etc/group; :"
        ));
        for user in ["root", "agent", "0", "1000"] {
            let ran = sbx(
                world,
                &[
                    "exec",
                    "-u",
                    user,
                    &sandbox.name,
                    "sh",
                    "-c",
                    "id -u; touch made; stat -c %u made",
                ],
            );
            assert!([0, 1, 125].contains(&ran.code), "{ran:?}");
        }
    }
    // A passwd that is a link to what the helper alone can see, or has no end.
    for target in [
        "/proc/self/environ",
        "/proc/self/fd/5",
        "/proc/self/fd/8",
        "/dev/zero",
        "/proc/self/mem",
        "/dev/tty",
        "/proc/kmsg",
    ] {
        sandbox.root_sh(&format!("ln -sfn {target} /etc/passwd; :"));
        let ran = sbx(
            world,
            &["exec", "-u", "0", &sandbox.name, "sh", "-c", "env"],
        );
        assert!([0, 125].contains(&ran.code), "{target}: {ran:?}");
    }
    sbx(world, &["stop", &sandbox.name]).ok();
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(&ws).unwrap());
    assert_eq!(owner, world.uid);
    if let Ok(meta) = fs::metadata(ws.join("made")) {
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&meta), world.uid);
    }
}
