//! Streams as frames on the exec connection: everything that is true of descriptors once more, and what only frames can
//! get wrong. In one privilege mode: who may do what inside does not depend on how bytes travel.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sbx_proto::exec::{
    Exec, FramedStderr, FramedStdin, Reply, Request, Role, Stdio as WantedStdio,
};
use sbx_proto::frame::{Decoder, MAX_REPLY, encode};
use sbx_proto::stream::{
    Frame, MAX_DATA, Stream, push_close, push_credit, push_data, push_end, window,
};

use crate::harness::{MODES, Sandbox, World, eventually, kill, trial};
use crate::{ModeTest, run};

const TESTS: &[ModeTest] = &[
    (
        "exec::an_unread_stdout_is_kept_within_its_window",
        bounded_client,
    ),
    (
        "exec::processes_that_are_left_hold_nothing_up",
        left_processes,
    ),
    ("exec::a_client_that_disconnects", disconnects),
    ("exec::an_init_survives_a_hostile_client", hostile_client),
    (
        "exec::a_client_that_never_reads_costs_init_nothing",
        unread_client,
    ),
];

/// All tests of streams, terminals, signals and exit codes, in the strongest mode that there is here.
pub fn trials() -> Vec<Trial> {
    let mode = MODES.into_iter().find(|mode| mode.blocked().is_none());
    let (mode, blocked) = mode.map_or((MODES[0], true), |mode| (mode, false));
    let areas = [
        super::TESTS,
        super::STATUS,
        super::STREAMS,
        super::TERMINALS,
        run::TESTS,
        TESTS,
    ];
    let tests = areas.into_iter().flatten();
    let in_mode = |(name, test): &'static ModeTest| {
        let name = format!("{}::frames::{name}", mode.name());
        trial(name, move || test(World::shared_over_frames(mode))).with_ignored_flag(blocked)
    };
    tests.map(in_mode).collect()
}

/// In KiB, from `/proc/PID/status`.
fn memory(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let text = line.unwrap().trim_start_matches(':').trim_end_matches("kB");
    text.trim().parse().unwrap()
}

/// User and system time, in clock ticks of which there are 100 in a second.
fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    let mut fields = rest
        .split(' ')
        .skip(11)
        .map(|it| it.parse::<u64>().unwrap());
    fields.next().unwrap() + fields.next().unwrap()
}

/// The command writes far more than any window, and has not written all of it while it is not read.
fn bounded_client(world: &'static World) {
    let sandbox = world.sandbox("bounded");
    let script = "head -c 67108864 /dev/zero; echo x > written; exit 5";
    let mut client = world
        .sbx(["exec", &sandbox.name, "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = client.stdout.take().unwrap();
    let mut first = [0; 1];
    stdout.read_exact(&mut first).unwrap();
    // Everything is full when nothing moves any more: in the client's memory there is a window and no more.
    let resident = || memory(client.id(), "VmRSS");
    let mut last = resident();
    eventually("the client stands still", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = resident();
        (std::mem::replace(&mut last, now) == now).then_some(())
    });
    assert!(memory(client.id(), "VmHWM") < 32 << 10, "{last} KiB");
    assert!(!sandbox.path("written").exists());
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len() + 1, 67_108_864);
    assert_eq!(client.wait().unwrap().code(), Some(5));
    assert!(sandbox.path("written").exists());
}

/// Output that the command wrote is all there; what its children write later is not waited for.
fn left_processes(world: &'static World) {
    let sandbox = world.sandbox("left");
    let quiet = sandbox.sh("sleep 1000 & echo out; echo err >&2; exit 3");
    assert_eq!(
        (quiet.code, quiet.out.as_str(), quiet.err.as_str()),
        (3, "out\n", "err\n")
    );
    let loud = sandbox.sh("yes & seq 1000; exit 4").fails(4);
    let lines = loud.out.lines().filter(|line| *line != "y");
    let expected: Vec<_> = (1..=1000).map(|n| n.to_string()).collect();
    assert!(lines.eq(expected.iter()), "{} bytes", loud.out.len());
}

/// Its command goes on without streams: stdin ends, and output has no reader.
fn disconnects(world: &'static World) {
    let sandbox = world.sandbox("gone");
    // Between SIGTERM and SIGKILL lies half a second, in which a starved shell may not run at all: then the next one is
    // asked. Without a SIGTERM none would be told. Whether told or not, every session ends.
    let mut tries = 0..10;
    assert!(
        tries.any(|_| abandoned_command_is_told(&sandbox)),
        "no command was told before it was killed"
    );
}

/// Whether a command whose client is killed gets to run its trap for SIGTERM.
fn abandoned_command_is_told(sandbox: &Sandbox<'_>) -> bool {
    // `cat` ends with stdin, which is closed before the signal comes; the shell waits for something that goes on.
    let script = "trap 'echo x > told; exit' TERM; cat > read & sleep 1000 & echo ready; wait $!";
    let mut client = sandbox
        .world
        .sbx(["exec", "-i", &sandbox.name, "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    client.kill().unwrap();
    client.wait().unwrap();
    eventually("its session ends", || {
        (sandbox.world.inspect(&sandbox.name)["sessions"] == 0).then_some(())
    });
    sandbox.path("told").exists()
}

/// A connection of our own to a sandbox's init.
struct Raw {
    stream: UnixStream,
    decoder: Decoder,
}

impl Raw {
    fn greet(sandbox: &Sandbox<'_>) -> Self {
        let dir = sandbox.world.state().join("vm").join(&sandbox.name);
        let stream = UnixStream::connect(dir.join("exec.sock")).unwrap();
        let hello = Request::Hello {
            protocol: sbx_proto::PROTOCOL,
            role: Role::Client,
        };
        let own = sbx_sys::peer::pid_namespace().unwrap();
        let greeting = encode(&hello).unwrap();
        sbx_sys::fdpass::send_with_fds(&stream, &greeting, &[own.as_fd()]).unwrap();
        Self {
            stream,
            decoder: Decoder::new(MAX_REPLY),
        }
    }

    /// With the command that was asked for running.
    fn start(sandbox: &Sandbox<'_>, argv: &[&str]) -> Self {
        let mut raw = Self::greet(sandbox);
        let stdio = WantedStdio::Framed {
            stdin: FramedStdin::Stream,
            stderr: FramedStderr::Stream,
        };
        let exec = Exec {
            own_program: false,
            argv: argv.iter().map(|arg| (*arg).into()).collect(),
            env: vec![],
            user: None,
            workdir: None,
            stdio,
        };
        raw.send(&encode(&Request::Exec(Box::new(exec))).unwrap());
        assert!(matches!(
            raw.next(),
            Some(Frame::Message(Reply::Hello { .. }))
        ));
        assert!(matches!(
            raw.next(),
            Some(Frame::Message(Reply::Started { .. }))
        ));
        raw
    }

    /// Init may have cut us off before it has read everything.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    fn next(&mut self) -> Option<Frame<Reply>> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.decoder.take_frame().unwrap() {
                return Some(frame);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.decoder.push(&buffer[..count]),
            }
        }
    }

    /// Reads until init closes the connection; false when it does not.
    fn is_cut_off(&mut self) -> bool {
        let limit = Some(Duration::from_secs(60));
        self.stream.set_read_timeout(limit).unwrap();
        while self.next().is_some() {}
        // A socket that was reset has no more to say either.
        let last = self.stream.read(&mut [0; 1]);
        !last.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

fn frames(build: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    build(&mut bytes);
    bytes
}

/// Each breaks one rule, and is cut off for it. Init, its other commands and the next ones go on.
fn hostile_client(world: &'static World) {
    let sandbox = world.sandbox("hostile");
    let init = world.init_pid(&sandbox.name);
    let mut bystander = sandbox.begin("echo ready; exec sleep 1000");
    // What the pipe of a command that does not read takes earns credit: more than that and all the windows.
    let beyond = 4 * window(Stream::Stdin) as usize;
    let header = |kind: u8, size: u32| (u32::from(kind) << 24 | size).to_le_bytes().to_vec();
    let attacks = [
        (
            "more data than there is credit for",
            frames(|out| push_data(out, Stream::Stdin, &vec![0; beyond])),
        ),
        (
            "data for an output",
            frames(|out| push_data(out, Stream::Stdout, b"x")),
        ),
        (
            "the end of an output",
            frames(|out| push_end(out, Stream::Stderr)),
        ),
        (
            "two ends",
            frames(|out| {
                push_end(out, Stream::Stdin);
                push_end(out, Stream::Stdin);
            }),
        ),
        (
            "data after the end",
            frames(|out| {
                push_end(out, Stream::Stdin);
                push_data(out, Stream::Stdin, b"x");
            }),
        ),
        (
            "credit that was not used",
            frames(|out| push_credit(out, Stream::Stdout, 1)),
        ),
        (
            "credit beyond all bounds",
            frames(|out| push_credit(out, Stream::Stdout, u32::MAX)),
        ),
        (
            "credit for the input",
            frames(|out| push_credit(out, Stream::Stdin, 1)),
        ),
        (
            "a closed input",
            frames(|out| push_close(out, Stream::Stdin)),
        ),
        (
            "a frame that is too large",
            header(0x10, u32::try_from(MAX_DATA).unwrap() + 1),
        ),
        ("a frame without data", header(0x10, 0)),
        ("an unknown stream", header(0x13, 1)),
        ("an unknown kind", header(0x77, 0)),
        ("a large message", header(0, 1 << 20)),
        ("what is not JSON", [header(0, 2), b"{]".to_vec()].concat()),
        ("noise", vec![0xa5; 5000]),
    ];
    for (what, bytes) in attacks {
        let mut raw = Raw::start(&sandbox, &["sleep", "1000"]);
        raw.send(&bytes);
        assert!(raw.is_cut_off(), "{what}");
        assert_eq!(world.init_pid(&sandbox.name), init, "{what}");
    }
    // Before there is a command, there are no streams.
    let mut raw = Raw::greet(&sandbox);
    raw.send(&frames(|out| push_data(out, Stream::Stdin, b"x")));
    assert!(raw.is_cut_off());
    // Half a frame and the end.
    for size in [1, 4, 100] {
        let mut raw = Raw::start(&sandbox, &["cat"]);
        let whole = frames(|out| push_data(out, Stream::Stdin, &[0; 200]));
        raw.send(&whole[..size]);
    }
    assert!(bystander.try_wait().unwrap().is_none(), "it still runs");
    sandbox.exec(["echo", "alive"]).ok();
    assert_eq!(world.init_pid(&sandbox.name), init);
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

/// Commands that write and are not read, and input that is not read either: init waits, and keeps little.
fn unread_client(world: &'static World) {
    let sandbox = world.sandbox("unread");
    sandbox.exec(["true"]).ok();
    let init = world.init_pid(&sandbox.name);
    let resident = || memory(u32::try_from(init).unwrap(), "VmRSS");
    let before = resident();
    let full = vec![0; window(Stream::Stdin) as usize];
    let mut stuck = Vec::new();
    for _ in 0..8 {
        let mut raw = Raw::start(&sandbox, &["sh", "-c", "yes >&2 & exec yes"]);
        raw.send(&frames(|out| push_data(out, Stream::Stdin, &full)));
        stuck.push(raw);
    }
    // All of it has arrived when nothing happens any more.
    let mut last = ticks(init);
    eventually("init stands still", || {
        std::thread::sleep(Duration::from_millis(500));
        let now = ticks(init);
        // One look a moment is no busy loop, which would be some 50.
        (now - std::mem::replace(&mut last, now) <= 5).then_some(())
    });
    let grown = resident().saturating_sub(before);
    assert!(grown < 8 * 128, "{grown} KiB for 8 clients");
    // Neither signals nor other commands wait for them.
    assert_eq!(sandbox.exec(["echo", "alive"]).ok(), "alive");
    let signal = Signal::TERM.as_raw();
    for raw in &mut stuck {
        raw.send(&encode(&Request::Signal { signal }).unwrap());
    }
    eventually("the commands end", || {
        (world.inspect(&sandbox.name)["sessions"] == 0).then_some(())
    });
    for mut raw in stuck {
        // Output within the windows, then the status.
        let mut sizes = [0; 2];
        let status = loop {
            match raw.next().unwrap() {
                Frame::Data(stream, bytes) => {
                    sizes[usize::from(stream == Stream::Stderr)] += bytes.len()
                }
                Frame::Message(Reply::Exited { status, .. }) => break status,
                // As much as the pipe has taken.
                Frame::Credit(Stream::Stdin, _) | Frame::Close(Stream::Stdin) => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(status.code(), 143);
        assert!(
            sizes
                .iter()
                .all(|size| *size <= window(Stream::Stdout) as usize)
        );
    }
    assert!(kill(init, Signal::CONT), "it is there");
}
