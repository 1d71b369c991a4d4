//! `sbx cp`: Appendix B 19 and more.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;

use sbx_copy::{Pipe, Writer};

use crate::ModeTest;
use crate::escape::hostile_copy::{PLAIN, StandIn};
use crate::exec::pty::Session;
use crate::harness::{Mode, Ran, Sandbox, World, blocked};

pub const TESTS: &[ModeTest] = &[
    ("cp::files_and_directories_both_ways", both_ways),
    ("cp::nothing_leaves_the_destination", hostile),
];

/// The same client does the same in every mode.
pub const INDEPENDENT: &[ModeTest] = &[
    ("cp::archives_on_stdin_and_stdout", archives),
    ("cp::what_cannot_be_copied_is_refused", refused),
    ("cp::large_and_sparse_files", large),
    ("cp::over_frames", over_frames),
    ("cp::progress_on_a_terminal", progress),
    ("cp::devices_and_sockets_are_left_out", special),
];

impl Sandbox<'_> {
    /// `cp` in a directory of the user's; `:` at the beginning stands for the sandbox.
    fn cp(&self, dir: &Path, words: &[&str]) -> Ran {
        let mut command = self.world.sbx(["cp"]);
        for word in words {
            match word.strip_prefix(':') {
                Some(path) => command.arg(format!("{}:{path}", self.name)),
                None => command.arg(word),
            };
        }
        Ran::from(command.current_dir(dir).output().unwrap())
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

fn both_ways(world: &'static World) {
    let sandbox = world.sandbox("cp");
    let here = world.workspace();
    world.make_dir(&here.join("tree"));
    world.make_dir(&here.join("tree/sub"));
    world.write(&here.join("tree/sub/file"), "text\n");
    world.write(&here.join("tree/run"), "#!/bin/sh\necho ran\n");
    fs::set_permissions(here.join("tree/run"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("sub/file", here.join("tree/link")).unwrap();
    // To a new name, then into a directory that is there.
    sandbox.cp(&here, &["tree", ":/tmp/new"]).ok();
    sandbox.cp(&here, &["tree", ":/tmp/new"]).ok();
    let script =
        "cd /tmp/new; cat sub/file link tree/sub/file; ./run; readlink link; stat -c %a run";
    assert_eq!(
        sandbox.sh(script).ok(),
        "text\ntext\ntext\nran\nsub/file\n755"
    );
    if world.mode != Mode::Single {
        // The number, whatever it means inside.
        let owner = sandbox.sh("stat -c %u /tmp/new/sub/file").ok();
        assert_eq!(owner, world.uid.to_string());
    }
    // Contents only, a single file, and a path from the primary workspace on.
    sandbox.cp(&here, &["tree/.", ":/tmp/new/sub"]).ok();
    sandbox.cp(&here, &["tree/run", ":copied"]).ok();
    assert_eq!(
        sandbox.sh("cat /tmp/new/sub/sub/file; ./copied").ok(),
        "text\nran"
    );
    let copied = fs::metadata(sandbox.path("copied")).unwrap();
    assert_eq!(copied.uid(), world.uid, "a workspace is its owner's");
    // Back: the caller's own, without special bits.
    sandbox
        .root_sh("chmod 4777 /tmp/new/run; mkfifo /tmp/new/pipe; chmod 600 /tmp/new/sub/file")
        .ok();
    let out = sandbox.cp(&here, &[":/tmp/new", "back"]);
    assert!(out.err.contains("skipped `new/pipe`"), "{}", out.err);
    out.ok();
    assert_eq!(read(here.join("back/sub/file")), "text\n");
    let run = fs::metadata(here.join("back/run")).unwrap();
    assert_eq!((run.uid(), run.mode() & 0o7000), (world.uid, 0));
    assert!(run.mode() & 0o111 != 0);
    assert_eq!(
        fs::read_link(here.join("back/link")).unwrap(),
        Path::new("sub/file")
    );
    sandbox.cp(&here, &["-L", ":/tmp/new/link", "."]).ok();
    assert!(fs::symlink_metadata(here.join("link")).unwrap().is_file());
    // A stopped one is started.
    world.run(["stop", &sandbox.name]).ok();
    sandbox.cp(&here, &[":copied", "again"]).ok();
    assert!(read(here.join("again")).contains("ran"));
}

fn hostile(world: &'static World) {
    let sandbox = world.sandbox("hostile");
    let outside = world.workspace();
    world.write(&outside.join("secret"), "secret\n");
    let secret = outside.join("secret");
    // Links in what is copied out.
    let script = format!(
        "mkdir -p /tmp/t/d; cd /tmp/t; echo x >ok; ln -s {} abs; ln -s ../../x up; ln -s ../ok d/in; ln -s d/../../x odd",
        secret.display()
    );
    sandbox.sh(&script).ok();
    let out = sandbox.cp(&outside, &[":/tmp/t", "out"]).fails(1);
    for name in ["abs", "up", "odd"] {
        assert!(
            out.err.contains(&format!("`out/{name}` was not copied")),
            "{}",
            out.err
        );
        assert!(fs::symlink_metadata(outside.join("out").join(name)).is_err());
    }
    assert!(outside.join("out/d/in").exists() && outside.join("out/ok").exists());
    // Links that a program inside has planted where the user copies to and from.
    sandbox
        .sh(&format!(
            "ln -s {} planted; mkdir dir; ln -s {} dir/t",
            outside.display(),
            outside.display()
        ))
        .ok();
    let planted = sandbox.path("planted");
    let planted = planted.to_str().unwrap();
    let out = sandbox.cp(&outside, &[":/tmp/t/ok", planted]).fails(1);
    assert!(out.err.contains("error: "), "{}", out.err);
    sandbox
        .cp(&outside, &[":/tmp/t/ok", &format!("{planted}/ok")])
        .fails(1);
    let from = format!("{planted}/secret");
    let out = sandbox.cp(&outside, &[&from, ":/tmp/stolen"]).fails(1);
    assert!(out.err.contains("leads out of it"), "{}", out.err);
    sandbox
        .cp(&outside, &["-L", planted, ":/tmp/stolen"])
        .fails(1);
    let dir = sandbox.path("dir");
    sandbox
        .cp(&outside, &[":/tmp/t", dir.to_str().unwrap()])
        .fails(1);
    assert_eq!(sandbox.sh("ls /tmp/stolen 2>/dev/null | wc -l").ok(), "0");
    let mut names: Vec<_> = fs::read_dir(&outside)
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["out", "secret"]);
    assert_eq!(read(&secret), "secret\n");
}

fn archives(world: &'static World) {
    let sandbox = world.sandbox("archives");
    let here = world.workspace();
    world.write(&here.join("file"), "text\n");
    let made = world
        .command("tar")
        .args(["-cf", "-", "file"])
        .current_dir(&here)
        .output()
        .unwrap();
    let target = format!("{}:/tmp", sandbox.name);
    world
        .run_with_stdin(["cp", "-", &target], &made.stdout)
        .ok();
    assert_eq!(sandbox.sh("cat /tmp/file").ok(), "text");
    world
        .run_with_stdin(["cp", "-", &format!("{target}/none")], &made.stdout)
        .fails(1);
    // Half an archive, and one that wants to be elsewhere.
    let half = made.stdout.get(..700).unwrap();
    let out = world.run_with_stdin(["cp", "-", &target], half).fails(1);
    assert!(out.err.contains("ended before its end"), "{}", out.err);
    let evil = world
        .command("tar")
        .args(["-Pcf", "-", "../../etc/hostname"])
        .current_dir("/usr/bin")
        .output()
        .unwrap();
    let out = world
        .run_with_stdin(["cp", "-", &target], &evil.stdout)
        .fails(1);
    assert!(out.err.contains("a name with `..`"), "{}", out.err);
    let back = world
        .sbx(["cp", &format!("{target}/file"), "-"])
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    world.write(&here.join("back.tar"), &back.stdout);
    let listed = Ran::from(
        world
            .command("tar")
            .args(["-tf", "back.tar"])
            .current_dir(&here)
            .output()
            .unwrap(),
    );
    assert_eq!(listed.ok(), "file");
}

fn refused(world: &'static World) {
    let sandbox = world.sandbox("refused");
    let here = world.workspace();
    world.write(&here.join("file"), "text");
    world.make_dir(&here.join("dir"));
    let fails = |words: &[&str], reason: &str| {
        let out = sandbox.cp(&here, words).fails(1);
        assert!(out.err.contains(reason), "{words:?}: {}", out.err);
    };
    fails(&[":/a", ":/b"], "copying between sandboxes");
    fails(&["none", ":/tmp"], "cannot open `none`");
    fails(&[":/none", "."], "in the sandbox: cannot open `/none`");
    fails(
        &["file", ":/tmp/no/such/file"],
        "cannot open `/tmp/no/such`",
    );
    fails(&[":/etc/hostname", "no/such/file"], "cannot open `no/such`");
    fails(&["dir", ":/etc/hostname"], "not a directory");
    fails(&["..", ":/tmp"], "has no file name");
    let usage = sandbox.cp(&here, &["a", "b"]).fails(2);
    assert!(usage.err.contains("SANDBOX:PATH"), "{}", usage.err);
    let none = world.run(["cp", "file", "no-such:/tmp"]).fails(1);
    assert!(none.err.contains("no sandbox named"), "{}", none.err);
}

fn large(world: &'static World) {
    let sandbox = world.sandbox("large");
    let here = world.workspace();
    // 5 GiB, of which a few blocks are there.
    world.write(&here.join("sparse"), "");
    let file = fs::File::options()
        .write(true)
        .open(here.join("sparse"))
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", 5 << 30).unwrap();
    sandbox.cp(&here, &["sparse", ":/tmp/sparse"]).ok();
    let said = sandbox.sh("stat -c '%s' /tmp/sparse; tail -c 3 /tmp/sparse; test $(stat -c %b /tmp/sparse) -lt 1000").ok();
    assert_eq!(said, format!("{}\nend", (5u64 << 30) + 3));
    sandbox.cp(&here, &[":/tmp/sparse", "back"]).ok();
    let back = fs::metadata(here.join("back")).unwrap();
    assert_eq!(back.len(), (5 << 30) + 3);
    assert!(back.blocks() < 1000, "{}", back.blocks());
    // Many bytes, none of them a hole, each in its place.
    let script = "head -c 67108864 /dev/urandom >/tmp/many; sha256sum </tmp/many";
    let sum = sandbox.sh(script).ok();
    sandbox.cp(&here, &[":/tmp/many", "many"]).ok();
    sandbox.cp(&here, &["many", ":/tmp/again"]).ok();
    assert_eq!(sandbox.sh("sha256sum </tmp/again").ok(), sum);
}

/// The other end writes half, and the rest when the terminal has shown how far the copy is.
fn progress(world: &'static World) {
    let sandbox = world.sandbox("progress");
    let here = world.workspace();
    let (go, told) = mpsc::channel();
    let stand_in = StandIn::new(&sandbox, move |streams| {
        let mut tar = Writer::new(Pipe(streams.stdout));
        tar.directory(b"slow", PLAIN).unwrap();
        tar.bytes(b"slow/first", &[b'x'; 1536], PLAIN).unwrap();
        told.recv().unwrap();
        tar.bytes(b"slow/second", b"y", PLAIN).unwrap();
        tar.finish().unwrap();
    });
    let source = format!("{}:/tmp/slow", sandbox.name);
    let session = Session::start(world, &["cp", &source, here.to_str().unwrap()]);
    // The second time it is the same line, written over.
    session.expect_times("\rCopying: 1 file, 1.5 KiB\u{1b}[K", 2);
    go.send(()).unwrap();
    let (code, shown) = session.end();
    drop(stand_in);
    assert_eq!(code, Some(0), "{shown}");
    let last = format!("\r\x1b[KCopied 2 files, 1.5 KiB to {}\r\n", here.display());
    assert!(shown.ends_with(&last), "{shown:?}");
    assert_eq!(read(here.join("slow/second")), "y");
    // A copy that takes no time shows the end alone.
    sandbox.sh("echo quick > /tmp/quick").ok();
    let source = format!("{}:/tmp/quick", sandbox.name);
    let session = Session::start(world, &["cp", &source, here.to_str().unwrap()]);
    let (code, shown) = session.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.starts_with("Copied 1 file, 6 B to "), "{shown:?}");
}

/// In a tree and by themselves, in and out.
fn special(world: &'static World) {
    let sandbox = world.sandbox("special");
    let here = world.workspace();
    let tree = here.join("tree");
    world.make_dir(&tree);
    world.write(&tree.join("file"), "text\n");
    let listener = UnixListener::bind(tree.join("socket")).unwrap();
    world.own(&tree.join("socket"));
    let made = world.command("mkfifo").arg(tree.join("pipe")).status();
    assert!(made.unwrap().success());
    let mut left_out = vec!["pipe", "socket"];
    let device = std::process::Command::new("mknod")
        .arg(tree.join("device"))
        .args(["c", "1", "3"])
        .output();
    match device.is_ok_and(|said| said.status.success()) {
        true => left_out.push("device"),
        false => blocked("no device can be made here"),
    }
    let said = sandbox.cp(&here, &["tree", ":/tmp/in"]).fails(0);
    for name in &left_out {
        let warning = format!("warning: skipped `tree/{name}`: ");
        assert!(said.err.contains(&warning), "{}", said.err);
    }
    assert_eq!(sandbox.sh("ls /tmp/in").ok(), "file");
    drop(listener);
    let script = "
import os, socket
os.makedirs('/tmp/out/sub')
open('/tmp/out/file', 'w').write('text')
socket.socket(socket.AF_UNIX).bind('/tmp/out/sub/socket')
os.mkfifo('/tmp/out/sub/pipe')";
    sandbox.exec(["/usr/bin/python3", "-c", script]).ok();
    let said = sandbox.cp(&here, &[":/tmp/out", "out"]).fails(0);
    for name in ["sub/socket", "sub/pipe"] {
        let warning = format!("skipped `out/{name}`: ");
        assert!(said.err.contains(&warning), "{}", said.err);
        assert!(fs::symlink_metadata(here.join("out").join(name)).is_err());
    }
    assert_eq!(read(here.join("out/file")), "text");
    // Nothing of `/dev` becomes a file of the host, or is read to its end.
    let said = sandbox.cp(&here, &[":/dev/.", "out"]);
    for name in ["null", "zero", "tty"] {
        assert!(
            said.err.contains(&format!("/{name}`: ")) || said.err.contains(&format!("`{name}`: ")),
            "{said:?}"
        );
        assert!(fs::symlink_metadata(here.join("out").join(name)).is_err());
    }
}

fn over_frames(world: &'static World) {
    let world = World::shared_over_frames(world.mode);
    let sandbox = world.sandbox("frames");
    let here = world.workspace();
    world.write(&here.join("file"), vec![b'x'; 1 << 20]);
    sandbox.cp(&here, &["file", ":/tmp/file"]).ok();
    sandbox.cp(&here, &[":/tmp/file", "back"]).ok();
    assert_eq!(read(here.join("back")).len(), 1 << 20);
}
