//! Standard streams of `sbx exec`: every byte, in order, and an end.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use rustix::fs::OFlags;
use rustix::process::Signal;

use crate::ModeTest;
use crate::harness::{Ran, World, eventually, kill, programs};

pub const TESTS: &[ModeTest] = &[
    ("exec::stdin_arrives_byte_for_byte_and_ends", stdin),
    ("exec::stdin_is_a_conversation", conversation),
    (
        "exec::stdin_that_others_take_from_is_not_waited_for",
        shared,
    ),
    ("exec::stdout_and_stderr_are_apart", apart),
    ("exec::a_fast_writer_loses_nothing", fast_writer),
    ("exec::output_to_files_and_devices", files_and_devices),
    (
        "exec::a_reader_that_goes_away_ends_the_writer",
        reader_goes_away,
    ),
    ("exec::standard_streams_can_be_opened_again", reopened),
    ("exec::an_unread_stdout_holds_up_nothing_else", unread),
    ("exec::a_stop_loses_no_output", stopped),
];

/// Pseudo-random bytes, the same every time.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn stdin(world: &'static World) {
    let sandbox = world.sandbox("stdin");
    let sent = noise(8 << 20);
    let cat = |args: &[&str]| {
        let mut client = world
            .sbx(["exec"])
            .args(args)
            .args([&sandbox.name, "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = client.stdin.take().unwrap();
        let bytes = sent.clone();
        // Without -i it is not read.
        let writer = std::thread::spawn(move || drop(stdin.write_all(&bytes)));
        let output = client.wait_with_output().unwrap();
        writer.join().unwrap();
        assert_eq!(output.status.code(), Some(0));
        output.stdout
    };
    let received = cat(&["-i"]);
    assert_eq!(received.len(), sent.len());
    assert!(received == sent, "bytes were changed");
    assert_eq!(cat(&[]).len(), 0, "without -i stdin is empty");

    // From a file, and from nothing.
    let path = world.home().join(world.name("input"));
    world.write(&path, &sent);
    let from = |stdin: Stdio| {
        world
            .sbx(["exec", "-i", &sandbox.name, "sha256sum"])
            .stdin(stdin)
            .output()
            .unwrap()
    };
    let inside = Ran::from(from(File::open(&path).unwrap().into())).ok();
    let outside = Ran::from(
        world
            .command("sha256sum")
            .stdin(File::open(&path).unwrap())
            .output()
            .unwrap(),
    )
    .ok();
    assert_eq!(inside, outside);
    assert!(
        Ran::from(from(Stdio::null()))
            .ok()
            .starts_with("e3b0c44298fc1c14")
    );
    std::fs::remove_file(path).unwrap();
    // A command that reads nothing ends all the same.
    world
        .run_with_stdin(["exec", "-i", &sandbox.name, "sh", "-c", "exit 4"], &sent)
        .fails(4);
    let head = world.run_with_stdin(["exec", "-i", &sandbox.name, "head", "-c", "3"], b"abcdef");
    assert_eq!(head.ok(), "abc");
}

fn conversation(world: &'static World) {
    let sandbox = world.sandbox("duplex");
    let mut client = world
        .sbx([
            "exec",
            "-i",
            &sandbox.name,
            "sh",
            "-c",
            "while read -r line; do echo \"got $line\"; done; echo end",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = client.stdin.take().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    for turn in 0..100 {
        writeln!(stdin, "{turn}").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), format!("got {turn}"));
    }
    drop(stdin);
    assert_eq!(lines.next().unwrap().unwrap(), "end");
    assert!(lines.next().is_none());
    assert_eq!(client.wait().unwrap().code(), Some(0));
}

/// Another reader is faster, again and again: bytes are gone between the client's look at its input and its reading.
fn shared(world: &'static World) {
    let sandbox = world.sandbox("shared");
    let fifo = sandbox.path("fifo");
    assert!(
        world
            .command("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let (both, never) = (OFlags::RDWR, rustix::fs::Mode::empty());
    let mut feed = File::from(rustix::fs::open(&fifo, both, never).unwrap());
    let thief = rustix::fs::open(&fifo, both | OFlags::NONBLOCK, never).unwrap();
    let mut client = world
        .sbx(["exec", "-i", &sandbox.name, "sh", "-c"])
        .arg("echo ready; exec cat >/dev/null")
        .stdin(File::open(&fifo).unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let number = i32::try_from(client.id()).unwrap();
    // Where it waits: in a read of the input it would hear nothing else.
    let call = format!("/proc/{number}/syscall");
    let is_deaf = || std::fs::read_to_string(&call).is_ok_and(|text| text.starts_with("0 0x0 "));
    for _ in 0..20_000 {
        feed.write_all(b"x").unwrap();
        let _ = rustix::io::read(&thief, &mut [0; 1]);
        if is_deaf() {
            break;
        }
    }
    assert!(kill(number, Signal::TERM));
    let ended = || client.try_wait().unwrap();
    let status = eventually("the client hears the signal", ended);
    assert_eq!(status.code(), Some(143));
}

fn apart(world: &'static World) {
    let sandbox = world.sandbox("apart");
    let script = "i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
    let ran = sandbox.sh(script).fails(0);
    let lines = |word: &str| {
        (0..500)
            .map(|i| format!("{word} {i}\n"))
            .collect::<String>()
    };
    assert_eq!(ran.out, lines("out"));
    assert_eq!(ran.err, lines("err"));
    // Where the caller has one stream for both, their order is the command's.
    let both = |stdout: Stdio, stderr: Stdio| {
        let status = world
            .sbx(["exec", &sandbox.name, "sh", "-c", script])
            .stdout(stdout)
            .stderr(stderr)
            .status();
        assert_eq!(status.unwrap().code(), Some(0));
    };
    let expected: String = (0..500).map(|i| format!("out {i}\nerr {i}\n")).collect();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    });
    both(writer.try_clone().unwrap().into(), writer.into());
    assert_eq!(reading.join().unwrap(), expected);
    let path = world.home().join(world.name("both"));
    let file = File::create(&path).unwrap();
    both(file.try_clone().unwrap().into(), file.into());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    std::fs::remove_file(path).unwrap();
}

const FAST: u64 = 64 << 20;

fn fast_writer(world: &'static World) {
    let sandbox = world.sandbox("fast");
    // Numbered lines: what is lost, doubled or out of order shows.
    let script = format!("seq -f '%015.0f' {} ; exit 6", FAST / 16);
    let check = |text: &[u8], what: &str| {
        assert_eq!(text.len() as u64, FAST, "{what}");
        for (index, line) in text.chunks(16).enumerate() {
            let expected = format!("{:015}\n", index + 1);
            assert!(line == expected.as_bytes(), "{what}: line {index}");
        }
    };
    let piped = world
        .sbx(["exec", &sandbox.name, "sh", "-c", &script])
        .output()
        .unwrap();
    assert_eq!(piped.status.code(), Some(6));
    check(&piped.stdout, "pipe");

    let path = world.home().join(world.name("fast"));
    let to_file = |file: File| {
        let status = world
            .sbx(["exec", &sandbox.name, "sh", "-c", &script])
            .stdout(file)
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(6));
    };
    to_file(File::create(&path).unwrap());
    check(&std::fs::read(&path).unwrap(), "file");
    std::fs::remove_file(path).unwrap();

    // A reader that takes its time.
    let mut slow = world
        .sbx(["exec", &sandbox.name, "sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = Vec::new();
    let mut stdout = slow.stdout.take().unwrap();
    let mut piece = [0; 1000];
    for turn in 0_usize.. {
        // Not at every turn: beside busy processes each takes milliseconds.
        if turn % 16 == 0 {
            std::thread::yield_now();
        }
        match stdout.read(&mut piece).unwrap() {
            0 => break,
            count => text.extend_from_slice(&piece[..count]),
        }
    }
    assert_eq!(slow.wait().unwrap().code(), Some(6));
    check(&text, "slow pipe");
}

fn files_and_devices(world: &'static World) {
    let sandbox = world.sandbox("sinks");
    let run = |stdout: Stdio| {
        world
            .sbx(["exec", &sandbox.name, "sh", "-c", "echo said; exit 8"])
            .stdout(stdout)
            .status()
            .unwrap()
            .code()
    };
    let path = world.home().join(world.name("out"));
    world.write(&path, "before\n");
    let append = || {
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
    };
    assert_eq!(run(append().into()), Some(8));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "before\nsaid\n");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(run(Stdio::null()), Some(8));
    // A full device is lost output, and that is told.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let ran = Ran::from(
        world
            .sbx(["exec", &sandbox.name, "echo", "said"])
            .stdout(full)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap(),
    );
    assert!(
        ran.fails(125)
            .err
            .contains("cannot write the command's output")
    );
    // A socket.
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(run(std::os::fd::OwnedFd::from(theirs).into()), Some(8));
    let mut text = String::new();
    ours.read_to_string(&mut text).unwrap();
    assert_eq!(text, "said\n");
    // No stdout at all.
    let closed = world
        .command("sh")
        .args(["-c", "exec \"$@\" >&- 2>&-", "sh"])
        .arg(programs().join("sbx"))
        .args([
            "exec",
            &sandbox.name,
            "sh",
            "-c",
            "echo said; echo more >&2; exit 8",
        ])
        .status()
        .unwrap();
    assert_eq!(closed.code(), Some(8));
}

fn reader_goes_away(world: &'static World) {
    let sandbox = world.sandbox("yes");
    for to_pipe in [true, false] {
        let mut client = world.sbx(["exec", &sandbox.name, "yes"]);
        let mut first = [0; 2];
        let status = if to_pipe {
            let mut client = client.stdout(Stdio::piped()).spawn().unwrap();
            let mut stdout = client.stdout.take().unwrap();
            stdout.read_exact(&mut first).unwrap();
            drop(stdout);
            client.wait().unwrap()
        } else {
            let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let mut client = client
                .stdout(std::os::fd::OwnedFd::from(theirs))
                .spawn()
                .unwrap();
            ours.read_exact(&mut first).unwrap();
            drop(ours);
            client.wait().unwrap()
        };
        assert_eq!(&first, b"y\n");
        // 128 + SIGPIPE, as a shell would say it.
        assert_eq!(status.code(), Some(141), "pipe: {to_pipe}");
    }
}

fn reopened(world: &'static World) {
    let sandbox = world.sandbox("reopen");
    let script = "echo one >/dev/stdout; echo two >/dev/stderr; echo three >>/dev/fd/1; echo four >/proc/self/fd/2";
    // The pipes are the user's own, as in a shell: outside too, no user can reopen another's pipe.
    let piped = "{ \"$@\" 2>&3 | cat; } 3>&1 >out | cat >err; cat out; echo --; cat err";
    let dir = world.workspace();
    for user in ["agent", "root"] {
        let mut shell = world.command("sh");
        shell
            .current_dir(&dir)
            .args(["-c", piped, "sh"])
            .arg(programs().join("sbx"));
        let ran = shell
            .args(["exec", "-u", user, &sandbox.name, "sh", "-c", script])
            .output()
            .unwrap();
        assert_eq!(Ran::from(ran).ok(), "one\nthree\n--\ntwo\nfour", "{user}");
        // A file is opened again as a pipe, so that nothing is overwritten.
        let path = dir.join("file");
        let status = world
            .sbx(["exec", "-u", user, &sandbox.name, "sh", "-c", script])
            .stdout(File::create(&path).unwrap())
            .stderr(Stdio::null())
            .status();
        assert_eq!(status.unwrap().code(), Some(0), "{user}");
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "one\nthree\n",
            "{user}"
        );
    }
    let input = world.run_with_stdin(
        ["exec", "-i", &sandbox.name, "sh", "-c", "cat /dev/stdin"],
        b"in\n",
    );
    assert_eq!(input.ok(), "in");
}

/// A caller that does not read its stdout still has stderr, signals and, when it reads again, the exit status.
fn unread(world: &'static World) {
    let sandbox = world.sandbox("unread");
    let script = "trap 'echo caught >&2; exit 9' TERM; (trap - TERM; exec head -c 4194304 /dev/zero) & \
                  echo ready >&2; while :; do sleep 0.05; done";
    let mut client = world
        .sbx(["exec", &sandbox.name, "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(client.stderr.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    // It is full when the writer waits.
    let find =
        "for p in /proc/[0-9]*; do case $(cat $p/comm) in head) cat $p/wchan $p/stat;; esac; done";
    eventually("stdout is full", || {
        let found = sandbox.root_sh(find).out;
        let waits = found.contains("pipe_write") || found.contains("(head) S");
        waits.then_some(())
    });
    kill(i32::try_from(client.id()).unwrap(), Signal::TERM);
    // A shell may tell of the `sleep` that the signal has ended as well.
    assert!(lines.any(|line| line.unwrap() == "caught"));
    eventually("the command ends", || {
        (world.inspect(&sandbox.name)["sessions"] == 0).then_some(())
    });
    let mut stdout = client.stdout.take().unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    assert_eq!(client.wait().unwrap().code(), Some(9));
    assert!(reader.join().unwrap().unwrap() >= 4096);
}

/// What a command writes when it is told to end reaches the caller, although init ends right after it.
fn stopped(world: &'static World) {
    let sandbox = world.sandbox("stop-output");
    let script = "trap 'seq 100000; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let client = sandbox.begin(script);
    let reader = std::thread::spawn(move || client.wait_with_output().unwrap());
    world.run(["stop", &sandbox.name]).ok();
    let output = reader.join().unwrap();
    let expected: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(output.status.code(), Some(5));
    let lengths = (output.stdout.len(), expected.len());
    assert!(output.stdout == expected.as_bytes(), "{lengths:?}");
}
