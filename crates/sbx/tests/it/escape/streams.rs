//! Stdin, stdout and stderr that are a file, a directory, a terminal, a socket or a named pipe of the host.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use super::{PYTHON, finish, run, script};
use crate::ModeTest;
use crate::harness::{Sandbox, World};

pub(crate) const TESTS: &[ModeTest] = &[
    ("a_file_as_a_stream_cannot_be_reopened", files),
    ("a_directory_as_a_stream_cannot_be_walked", directory),
    (
        "a_socket_or_named_pipe_as_a_stream_is_not_handed_over",
        sockets_and_fifos,
    ),
    ("a_pipe_that_can_be_read_is_not_shared", pipes),
    ("the_callers_terminal_is_not_the_one_inside", terminal),
    ("nothing_can_be_typed_into_the_callers_terminal", injection),
];

const PROGRAM: &str = include_str!("attack/streams.py");

/// The attack as a file inside: stdin is what the test is about.
fn install(sandbox: &Sandbox<'_>, text: &[u8]) {
    sandbox
        .world
        .run_with_stdin(
            [
                "exec",
                "-i",
                &sandbox.name,
                "sh",
                "-c",
                "cat > /tmp/attack.py",
            ],
            text,
        )
        .ok();
}

fn settings(path: &Path) -> [(&'static str, String); 3] {
    let meta = fs::metadata(path).unwrap();
    [
        ("DEVICE", meta.dev().to_string()),
        ("INODE", meta.ino().to_string()),
        ("MARKER", "escape-marker".to_owned()),
    ]
}

fn prepared(sandbox: &Sandbox<'_>, path: &Path) {
    let settings = settings(path);
    let borrowed: Vec<_> = settings
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    install(sandbox, &script(PROGRAM, &borrowed));
}

#[track_caller]
fn harmless(said: &str) {
    assert!(said.contains("done"), "the attack did not run: {said}");
    assert!(!said.contains("BREACH"), "{said}");
    assert!(
        !said.contains(" True"),
        "the very same file is inside: {said}"
    );
    for kind in ["file", "directory", "socket"] {
        assert!(
            !said.contains(&format!("kind_0 {kind}")) && !said.contains(&format!("kind_1 {kind}")),
            "{said}"
        );
    }
}

fn files(world: &'static World) {
    let sandbox = world.sandbox("stream-file");
    let path = world.home().join(world.name("stream"));
    for (input, output, errors) in [
        (true, false, false),
        (false, true, false),
        (true, true, false),
        (false, false, true),
    ] {
        world.write(&path, "host content\n");
        prepared(&sandbox, &path);
        let read_write = || File::options().read(true).append(true).open(&path).unwrap();
        for user in ["root", "agent"] {
            let mut command = world.sbx([
                "exec",
                "-i",
                "-u",
                user,
                &sandbox.name,
                PYTHON,
                "/tmp/attack.py",
            ]);
            command.stdin(if input {
                Stdio::from(read_write())
            } else {
                Stdio::null()
            });
            command.stdout(if output {
                Stdio::from(read_write())
            } else {
                Stdio::piped()
            });
            command.stderr(if errors {
                Stdio::from(read_write())
            } else {
                Stdio::piped()
            });
            let ran = finish(command.spawn().unwrap(), b"");
            let content = fs::read_to_string(&path).unwrap();
            assert!(
                content.starts_with("host content\n"),
                "the file was changed: {content:?}"
            );
            harmless(if errors { &content } else { &ran.err });
        }
    }
    fs::remove_file(path).unwrap();
}

fn directory(world: &'static World) {
    let sandbox = world.sandbox("stream-dir");
    let dir = world.home().join(world.name("stream-dir"));
    world.make_dir(&dir);
    world.write(&dir.join("escape-marker"), "host");
    world.write(&world.home().join("escape-marker"), "host");
    prepared(&sandbox, &dir);
    for flags in [&["-i"][..], &[]] {
        for user in ["root", "agent"] {
            let mut command = world.sbx(["exec"]);
            command
                .args(flags)
                .args(["-u", user, &sandbox.name, PYTHON, "/tmp/attack.py"]);
            command
                .stdin(File::open(&dir).unwrap())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let ran = finish(command.spawn().unwrap(), b"");
            // Refusing such a stdin altogether is as good.
            if ran.code != 125 {
                harmless(&ran.err);
            }
        }
    }
    let mut command = world.sbx(["exec", &sandbox.name, PYTHON, "/tmp/attack.py"]);
    command
        .stdout(File::open(&dir).unwrap())
        .stderr(Stdio::piped());
    let ran = finish(command.spawn().unwrap(), b"");
    if ran.code != 125 {
        harmless(&ran.err);
    }
    // As stderr, where the attack speaks: what it finds is in a file inside.
    for user in ["root", "agent"] {
        let said = format!("/tmp/said-{user}");
        let attack = format!(
            "import sys; sys.stderr = open('{said}', 'w'); exec(open('/tmp/attack.py').read())"
        );
        let mut command = world.sbx(["exec", "-u", user, &sandbox.name, PYTHON, "-c", &attack]);
        command
            .stdout(Stdio::null())
            .stderr(File::open(&dir).unwrap());
        let ran = finish(command.spawn().unwrap(), b"");
        if ran.code != 125 {
            let found = sandbox.root_sh(&format!("cat {said}")).ok();
            harmless(&found);
            assert!(!found.contains("kind_2 directory"), "{found}");
        }
    }
    fs::remove_dir_all(dir).unwrap();
    fs::remove_file(world.home().join("escape-marker")).unwrap();
}

fn sockets_and_fifos(world: &'static World) {
    let sandbox = world.sandbox("stream-socket");
    let fifo = world.home().join(world.name("fifo"));
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_bits_truncate(0o600),
        0,
    )
    .unwrap();
    world.own(&fifo);
    prepared(&sandbox, &fifo);
    let both = || File::options().read(true).write(true).open(&fifo).unwrap();
    let _reader = both();
    let write_only = File::options().write(true).open(&fifo).unwrap();
    for output in [write_only, both()] {
        let mut command = world.sbx([
            "exec",
            "-u",
            "root",
            &sandbox.name,
            PYTHON,
            "/tmp/attack.py",
        ]);
        command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::piped());
        harmless(&finish(command.spawn().unwrap(), b"").err);
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    let theirs = OwnedFd::from(theirs);
    let mut command = world.sbx([
        "exec",
        "-i",
        "-u",
        "root",
        &sandbox.name,
        PYTHON,
        "/tmp/attack.py",
    ]);
    command
        .stdin(theirs.try_clone().unwrap())
        .stdout(theirs)
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    drop(command);
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    harmless(&finish(child, b"").err);
    fs::remove_file(fifo).unwrap();
}

fn pipes(world: &'static World) {
    let sandbox = world.sandbox("stream-pipe");
    // Both ends of a pipe that may be read are no output pipe: inside could steal what others write to it.
    let (read, write) = std::io::pipe().unwrap();
    let reopened = File::options()
        .read(true)
        .write(true)
        .open(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&write)
        ))
        .unwrap();
    let inode = reopened.metadata().unwrap().ino().to_string();
    let look = format!(
        "[ \"$(stat -Lc %i /proc/self/fd/1)\" != {inode} ] || echo BREACH >&2; echo done >&2"
    );
    let mut command = world.sbx(["exec", &sandbox.name, "sh", "-c", &look]);
    command
        .stdin(Stdio::null())
        .stdout(reopened)
        .stderr(Stdio::piped());
    harmless(&finish(command.spawn().unwrap(), b"").err);
    // Stdin is never shared, not even a pipe: who re-opens it can write into it.
    let inode = fs::metadata(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&read)
    ))
    .unwrap()
    .ino()
    .to_string();
    let look = format!(
        "[ \"$(stat -Lc %i /proc/self/fd/0)\" != {inode} ] || echo BREACH >&2; echo done >&2"
    );
    let mut command = world.sbx(["exec", "-i", &sandbox.name, "sh", "-c", &look]);
    command
        .stdin(read)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    drop(command);
    drop(write);
    harmless(&finish(child, b"").err);
}

struct Pty {
    out: String,
    typed: String,
    device: String,
}

/// `sbx exec FLAGS` in a terminal of its own on the host.
fn in_terminal(sandbox: &Sandbox<'_>, flags: &[&str], command: &[&str]) -> Pty {
    let world = sandbox.world;
    let sbx = crate::harness::programs().join("sbx");
    let mut host = world.command(PYTHON);
    host.args(["-c", include_str!("attack/pty_host.py")])
        .arg(sbx)
        .arg("exec")
        .args(flags)
        .arg(&sandbox.name)
        .args(command);
    let ran = run(&mut host, b"");
    assert_eq!(ran.code, 0, "{ran:?}");
    let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    Pty {
        out: value["out"].as_str().unwrap().to_owned(),
        typed: value["typed"].as_str().unwrap().to_owned(),
        device: format!("{} {}", value["device"][0], value["device"][1]),
    }
}

fn terminal(world: &'static World) {
    let sandbox = world.sandbox("tty");
    install(&sandbox, &script(include_str!("attack/terminal.py"), &[]));
    // With -t there is a pty of the sandbox's own.
    let seen = in_terminal(
        &sandbox,
        &["-it", "-u", "root"],
        &[PYTHON, "/tmp/attack.py"],
    );
    assert!(seen.out.contains("end of-attack"), "{}", seen.out);
    assert!(seen.out.contains("ttyname /dev/pts/"), "{}", seen.out);
    assert!(
        !seen.out.contains(&format!("device {}", seen.device)),
        "the host's terminal is inside: {}",
        seen.out
    );
    // Without it the streams are pipes although the caller's are a terminal.
    let look = "import os,stat; print('kinds', [stat.S_ISFIFO(os.fstat(n).st_mode) for n in range(3)]); print('tty', os.path.exists('/proc/self/fd/0') and os.isatty(0))\ntry:\n  os.open('/dev/tty', os.O_RDWR); print('BREACH')\nexcept OSError as e:\n  print('no terminal')";
    let seen = in_terminal(&sandbox, &["-i", "-u", "root"], &[PYTHON, "-c", look]);
    assert!(
        seen.out.contains("kinds [True, True, True]") && seen.out.contains("no terminal"),
        "{}",
        seen.out
    );
    assert!(!seen.out.contains("BREACH"), "{}", seen.out);
}

fn injection(world: &'static World) {
    let sandbox = world.sandbox("sti");
    install(&sandbox, &script(include_str!("attack/terminal.py"), &[]));
    for user in ["root", "agent"] {
        let seen = in_terminal(&sandbox, &["-it", "-u", user], &[PYTHON, "/tmp/attack.py"]);
        assert!(seen.out.contains("end of-attack"), "{}", seen.out);
        let worked: Vec<_> = seen
            .out
            .lines()
            .filter(|line| line.trim_end().ends_with(" ok"))
            .collect();
        assert!(worked.is_empty(), "as {user}: {worked:?}");
        for name in [
            "sti_stdin_120 EPERM",
            "sti__dev_tty_120 EPERM",
            "wide_stdin EPERM",
            "linux_stdin EPERM",
        ] {
            assert!(seen.out.contains(name), "no `{name}` in {}", seen.out);
        }
        assert_eq!(
            seen.typed, "",
            "input was injected into the host's terminal"
        );
    }
}
