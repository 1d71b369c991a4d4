//! A daemon and an init that say what a test wants them to: the client must not believe either.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use rustix::fs::{FileType, fstat};
use sbx_engine::StateDir;
use sbx_engine::state::SOCKET;
use sbx_engine::state::daemon_lock::DaemonLock;
use sbx_engine::state::socket::bind_unix;
use sbx_proto::PROTOCOL;
use sbx_proto::exec::{Cause, Exec, ExitStatus, Reply, Request};
use sbx_proto::frame::{Decoder, MAX_REQUEST, encode};
use sbx_sys::fdpass::{recv_with_fds, send_with_fds};

use super::Home;

pub(super) const TESTS: &[(&str, fn())] = &[
    (
        "an_init_that_follows_the_protocol",
        an_init_that_follows_the_protocol,
    ),
    ("an_init_that_talks_garbage", an_init_that_talks_garbage),
    (
        "an_init_that_sends_a_descriptor_that_is_not_a_terminal",
        an_init_that_sends_a_descriptor_that_is_not_a_terminal,
    ),
    (
        "an_init_that_goes_away_is_asked_again",
        an_init_that_goes_away_is_asked_again,
    ),
    (
        "nothing_of_the_host_is_handed_over",
        nothing_of_the_host_is_handed_over,
    ),
    (
        "output_that_comes_before_the_end_is_delivered",
        output_that_comes_before_the_end_is_delivered,
    ),
    ("a_daemon_of_another_version", a_daemon_of_another_version),
    ("a_daemon_that_talks_garbage", a_daemon_that_talks_garbage),
    (
        "a_daemon_that_dies_is_asked_again",
        a_daemon_that_dies_is_asked_again,
    ),
    ("a_daemon_that_hangs_is_told", a_daemon_that_hangs_is_told),
    (
        "a_daemon_whose_socket_is_gone_is_told",
        a_daemon_whose_socket_is_gone_is_told,
    ),
    (
        "a_daemon_that_is_busy_is_waited_for",
        a_daemon_that_is_busy_is_waited_for,
    ),
];

const STARTED: &str = r#"{"exec_socket":"vm/box/exec.sock","started":false,"warnings":[]}"#;

/// Serves both sockets until the test ends.
struct Fake {
    home: Home,
    asked: Arc<AtomicUsize>,
    /// What tells clients that a daemon serves.
    _lock: DaemonLock,
}

impl Fake {
    /// `init` is called for every connection to the init socket, `answer` gives the daemon's raw answers.
    fn new(
        init: impl Fn(&UnixStream) + Send + 'static,
        answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let home = Home::new();
        let state = StateDir::locate(home.path(), None).unwrap();
        state.claim().unwrap();
        let lock = state.lock_daemon().unwrap();
        let dir = state.sandboxes().join("box");
        std::fs::create_dir(&dir).unwrap();
        let daemon = bind_unix(state.root(), SOCKET).unwrap();
        let exec = bind_unix(&dir, "exec.sock").unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let (count, answer) = (Arc::clone(&asked), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in daemon.incoming() {
                let mut stream = stream.unwrap();
                let (count, answer) = (Arc::clone(&count), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let mut head = [0; 65536];
                    let read = stream.read(&mut head).unwrap();
                    let line = String::from_utf8_lossy(&head[..read]).into_owned();
                    if line.contains("/start ") {
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                    let _ = stream.write_all(&answer(&line));
                });
            }
        });
        std::thread::spawn(move || {
            for stream in exec.incoming() {
                init(&stream.unwrap());
            }
        });
        Self {
            home,
            asked,
            _lock: lock,
        }
    }

    fn with_init(init: impl Fn(&UnixStream) + Send + 'static) -> Self {
        Self::new(init, |_| http(200, STARTED))
    }
}

fn http(status: u16, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} Word\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Reads the greeting and the command with its descriptors.
fn hear(stream: &UnixStream) -> (Box<Exec>, Vec<OwnedFd>) {
    let (mut decoder, mut fds) = (Decoder::new(MAX_REQUEST), Vec::new());
    let mut buffer = [0; 65536];
    loop {
        let count = recv_with_fds(stream, &mut buffer, &mut fds).unwrap();
        assert_ne!(count, 0, "the client went away");
        decoder.push(&buffer[..count]);
        while let Some(request) = decoder.take::<Request>().unwrap() {
            if let Request::Exec(exec) = request {
                // The first one is for the greeting.
                drop(fds.remove(0));
                return (exec, fds);
            }
        }
    }
}

fn say(stream: &UnixStream, reply: &Reply, fds: &[BorrowedFd<'_>]) {
    // The client may have had enough already.
    let _ = send_with_fds(stream, &encode(reply).unwrap(), fds);
}

fn hello() -> Reply {
    Reply::Hello {
        protocol: PROTOCOL,
        sandbox: "id".to_owned(),
    }
}

fn exited(code: i32) -> Reply {
    Reply::Exited {
        status: ExitStatus::Code(code),
        by: Cause::Itself,
    }
}

fn an_init_that_follows_the_protocol() {
    let fake = Fake::with_init(|stream| {
        let (exec, fds) = hear(stream);
        assert_eq!(fds.len(), 3);
        let argv: Vec<_> = exec
            .argv
            .iter()
            .map(|arg| arg.as_bytes().to_vec())
            .collect();
        assert_eq!(argv, [&b"cat"[..], b"-", b"--json"]);
        assert_eq!(exec.user.as_deref(), Some("root"));
        say(stream, &hello(), &[]);
        say(stream, &Reply::Started { id: 1 }, &[]);
        let mut fds = fds.into_iter().map(std::fs::File::from);
        let (mut stdin, mut stdout, mut stderr) = (
            fds.next().unwrap(),
            fds.next().unwrap(),
            fds.next().unwrap(),
        );
        let mut input = Vec::new();
        stdin.read_to_end(&mut input).unwrap();
        stdout.write_all(&input).unwrap();
        stderr.write_all(b"to stderr").unwrap();
        say(stream, &exited(42), &[]);
    });
    let input = fake.home.path().join("input");
    let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::File::create(&input)
        .unwrap()
        .write_all(&bytes)
        .unwrap();
    let output = fake
        .home
        .command(["exec", "-i", "-u", "root", "box", "cat", "-", "--json"])
        .stdin(std::fs::File::open(&input).unwrap())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(42));
    assert!(output.stdout == bytes, "stdin did not arrive as it was");
    assert_eq!(output.stderr, b"to stderr");
}

fn an_init_that_talks_garbage() {
    let pipes = || rustix::pipe::pipe().unwrap();
    let conversations: [fn(&UnixStream, &[BorrowedFd<'_>]); 7] = [
        |stream, _| drop((&mut &*stream).write_all(&[0xff; 100])),
        |stream, _| drop((&mut &*stream).write_all(b"\x05\0\0\0hello")),
        |stream, _| say(stream, &exited(0), &[]),
        |stream, _| say(stream, &Reply::Commands { running: 1 }, &[]),
        |stream, fds| say(stream, &hello(), fds),
        |stream, fds| {
            say(stream, &hello(), &[]);
            say(stream, &Reply::Started { id: 1 }, &fds[..1]);
        },
        |stream, _| {
            say(stream, &hello(), &[]);
            say(stream, &exited(0), &[]);
        },
    ];
    for conversation in conversations {
        let fake = Fake::with_init(move |stream| {
            let (_, _fds) = hear(stream);
            let (read, write) = pipes();
            conversation(stream, &[read.as_fd(), write.as_fd()]);
        });
        let status = fake.home.path().join("status");
        let said = fake.home.sbx([
            "exec",
            "--status-file",
            status.to_str().unwrap(),
            "box",
            "true",
        ]);
        assert_eq!(said.code, 125, "{}", said.err);
        assert!(said.err.contains("protocol error"), "{}", said.err);
        let status = std::fs::read_to_string(status).unwrap();
        let told: serde_json::Value = serde_json::from_str(&status).unwrap();
        assert_eq!(told["by"], "engine");
        assert_eq!(told["code"], 125);
        assert!(told["message"].is_string(), "{status}");
    }
}

fn an_init_that_sends_a_descriptor_that_is_not_a_terminal() {
    let fake = Fake::with_init(|stream| {
        let _ = hear(stream);
        let file = std::fs::File::open("/dev/null").unwrap();
        say(stream, &hello(), &[]);
        say(stream, &Reply::Started { id: 1 }, &[file.as_fd()]);
    });
    let said = fake.home.sbx(["exec", "-t", "box", "true"]);
    assert_eq!(said.code, 125);
    assert!(said.err.contains("protocol error"), "{}", said.err);
}

fn an_init_that_goes_away_is_asked_again() {
    let fake = Fake::with_init(|stream| drop(hear(stream)));
    let said = fake.home.sbx(["exec", "box", "true"]);
    assert_eq!(said.code, 125);
    assert!(said.err.contains("does not stay up"), "{}", said.err);
    // A bounded number of times.
    assert_eq!(fake.asked.load(Ordering::SeqCst), 7);

    let tries = AtomicUsize::new(0);
    let fake = Fake::with_init(move |stream| {
        let _kept = hear(stream);
        if tries.fetch_add(1, Ordering::SeqCst) == 1 {
            for reply in [hello(), Reply::Started { id: 1 }, exited(3)] {
                say(stream, &reply, &[]);
            }
        }
    });
    assert_eq!(fake.home.sbx(["exec", "box", "true"]).code, 3);

    let fake = Fake::with_init(|stream| {
        let _kept = hear(stream);
        say(stream, &hello(), &[]);
        say(stream, &Reply::Started { id: 1 }, &[]);
    });
    let said = fake.home.sbx(["exec", "box", "true"]);
    assert_eq!(
        (said.code, fake.asked.load(Ordering::SeqCst)),
        (125, 0),
        "a command that ran is not run again"
    );
}

fn nothing_of_the_host_is_handed_over() {
    let fake = Fake::with_init(|stream| {
        let (_, fds) = hear(stream);
        let fifos = fds
            .iter()
            .all(|fd| FileType::from_raw_mode(fstat(fd).unwrap().st_mode) == FileType::Fifo);
        say(stream, &hello(), &[]);
        say(stream, &Reply::Started { id: 1 }, &[]);
        rustix::io::write(&fds[1], b"out ").unwrap();
        rustix::io::write(&fds[2], b"err").unwrap();
        say(stream, &exited(if fifos { 0 } else { 1 }), &[]);
    });
    let home = &fake.home;
    let path = home.path().join("out");
    let file = std::fs::File::create(&path).unwrap();
    let directory = std::fs::File::open(home.path()).unwrap();
    let status = home
        .command(["exec", "-i", "box", "true"])
        .stdin(directory)
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "out err");

    let (ours, theirs) = UnixStream::pair().unwrap();
    let status = home
        .command(["exec", "box", "true"])
        .stdout(OwnedFd::from(theirs))
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
    let mut said = String::new();
    (&ours).read_to_string(&mut said).unwrap();
    assert_eq!(said, "out ");
}

fn output_that_comes_before_the_end_is_delivered() {
    let fake = Fake::with_init(|stream| {
        let (_, fds) = hear(stream);
        say(stream, &hello(), &[]);
        say(stream, &Reply::Started { id: 1 }, &[]);
        // As much as the pipe holds, and its end stays open: a background process has it.
        let mut wrote = 0;
        while wrote < 65536 {
            wrote += rustix::io::write(&fds[1], &[b'x'; 4096]).unwrap();
        }
        say(stream, &exited(0), &[]);
        std::mem::forget(fds);
    });
    let path = fake.home.path().join("out");
    let file = std::fs::File::create(&path).unwrap();
    let status = fake
        .home
        .command(["exec", "box", "true"])
        .stdout(file)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 65536);
}

fn a_daemon_of_another_version() {
    let fake = Fake::new(
        |_| {},
        |_| {
            http(
                409,
                r#"{"message":"this is sbx 0.1.0, the daemon is 9.9","code":"version_mismatch","hint":"sbx daemon restart"}"#,
            )
        },
    );
    for (args, code) in [
        (&["exec", "box", "true"][..], 125),
        (&["ls"], 1),
        (&["stop", "box"], 1),
    ] {
        let said = fake.home.sbx(args);
        assert_eq!(said.code, code);
        assert_eq!(
            said.err,
            "hint: sbx daemon restart\nerror: this is sbx 0.1.0, the daemon is 9.9\n"
        );
    }
    let version = fake.home.line("version");
    assert_eq!(version.code, 0);
    assert!(version.out.contains("server: unavailable"));
}

fn a_daemon_that_talks_garbage() {
    let answers: [fn() -> Vec<u8>; 5] = [
        || b"garbage\r\n\r\n".to_vec(),
        || http(200, "not json"),
        || http(500, "not json"),
        || b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort".to_vec(),
        || [b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b' '; 17 << 20]].concat(),
    ];
    for answer in answers {
        let fake = Fake::new(|_| {}, move |_| answer());
        let said = fake.home.line("ls --json");
        assert_eq!((said.code, said.out.as_str()), (1, ""));
        let error: serde_json::Value = serde_json::from_str(&said.err).unwrap();
        assert_eq!(error["error"]["code"], "engine", "{error}");
    }
}

/// It takes connections until the kernel is done with it. What does no harm twice is asked again until there is an answer.
fn a_daemon_that_dies_is_asked_again() {
    const DEATHS: usize = 3;
    const GONE: &str = r#"{"message":"it is gone","code":"not_found"}"#;
    const KNOWN: &str = r#"{"sandboxes":[{"name":"box","id":"x","agent":"shell","status":"stopped","template":"host",
        "backend":"namespace","mode":"single","workspaces":[],"env":[],"created_at":"2026-01-01T00:00:00Z","keep_alive":false,
        "sessions":0,"mounts":[],"isolation":[],"warnings":[]}]}"#;
    let dying = |deaths: usize, line: &str| {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let fake = Fake::new(
            |_| {},
            move |request| {
                if request.starts_with("GET") {
                    return http(200, KNOWN);
                }
                match count.fetch_add(1, Ordering::SeqCst) {
                    asked if asked < deaths => Vec::new(),
                    _ => http(404, GONE),
                }
            },
        );
        let said = fake.home.line(line);
        (said.code, said.err, asked.load(Ordering::SeqCst))
    };
    // The one that died had removed it.
    let (code, said, asked) = dying(DEATHS, "rm --force box");
    assert_eq!((code, asked), (0, DEATHS + 1), "{said}");
    let (code, said, asked) = dying(DEATHS, "stop box");
    assert_eq!((code, asked), (1, DEATHS + 1), "{said}");
    assert!(said.contains("no sandbox named `box`"), "{said}");
    // A rule might be there twice.
    let (code, said, asked) = dying(DEATHS, "policy deny network example.org");
    assert_eq!((code, asked), (1, 1), "{said}");
    assert!(
        said.contains("hint: the daemon has exited; try again"),
        "{said}"
    );
}

fn a_daemon_that_hangs_is_told() {
    let fake = Fake::new(
        |stream| drop(hear(stream)),
        |_| {
            loop {
                std::thread::park();
            }
        },
    );
    let told = "sandboxd does not answer: no version within 5 s";
    let error = format!("hint: sbx daemon restart\nerror: {told}\n");
    let json = format!(
        r#"{{"error":{{"code":"unreachable","hint":"sbx daemon restart","message":"{told}"}}}}"#
    );
    // All at once: each of them waits for some seconds, and none for its whole half minute or ten.
    std::thread::scope(|scope| {
        for (line, code, err) in [
            ("exec box true", 125, error.clone()),
            ("run shell", 125, error.clone()),
            ("stop box", 1, error.clone()),
            ("inspect box", 1, error.clone()),
            ("ls --json", 1, json + "\n"),
        ] {
            let home = &fake.home;
            scope.spawn(move || home.fails(line, code, &err));
        }
        let version = fake.home.line("version");
        let server = format!("server: unavailable ({told})\n");
        assert!(version.out.contains(&server), "{}", version.out);
        assert_eq!(
            (version.code, version.err.as_str()),
            (0, "hint: sbx daemon restart\n")
        );
    });
}

fn a_daemon_whose_socket_is_gone_is_told() {
    let home = Home::new();
    let state = StateDir::locate(home.path(), None).unwrap();
    state.claim().unwrap();
    let lock = state.lock_daemon().unwrap();
    // A process that has the lock and does not serve is no daemon, or not yet: it is neither reported nor ended.
    let status = |code, word: &str| {
        let ran = home.line("daemon status --json");
        let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(
            (ran.code, told["status"].as_str()),
            (code, Some(word)),
            "{told}"
        );
        told
    };
    status(0, "stopped");
    home.fails("daemon stop", 0, "sandboxd is not running\n");
    assert_eq!(home.line("ls").code, 0);
    lock.serve().unwrap();
    let pid = std::process::id();
    assert_eq!(status(1, "unreachable")["pid"], pid);
    let socket = state.socket();
    let told = format!(
        "hint: sbx daemon restart\nerror: cannot reach sandboxd (pid {pid}): it is running but does not listen on `{}`\n",
        socket.display()
    );
    let work = home.path().join("work");
    std::fs::create_dir(&work).unwrap();
    for (line, code) in [
        (format!("create -q --name box shell {}", work.display()), 1),
        ("exec box true".to_owned(), 125),
        ("stop box".to_owned(), 1),
        ("rm --force box".to_owned(), 1),
        ("ls".to_owned(), 1),
        ("daemon start -d".to_owned(), 1),
    ] {
        home.fails(&line, code, &told);
    }
    assert!(!state.log().exists(), "a second one was tried");
    // A socket without a listener leads no further.
    drop(bind_unix(state.root(), SOCKET).unwrap());
    status(1, "unreachable");
    let diagnosis = home.line("diagnose");
    assert_eq!(diagnosis.code, 1);
    assert!(
        diagnosis
            .out
            .contains("Daemon: does not answer\n      cannot reach sandboxd (pid "),
        "{}",
        diagnosis.out
    );
    lock.stop_serving().unwrap();
    status(0, "stopped");
}

fn a_daemon_that_is_busy_is_waited_for() {
    let tries = AtomicUsize::new(0);
    let init = move |stream: &UnixStream| {
        let _kept = hear(stream);
        if tries.fetch_add(1, Ordering::SeqCst) == 1 {
            for reply in [hello(), Reply::Started { id: 1 }, exited(3)] {
                say(stream, &reply, &[]);
            }
        }
    };
    // The start takes until a client has asked whether the daemon is still there.
    let asked = Barrier::new(2);
    let fake = Fake::new(init, move |line| {
        asked.wait();
        http(
            200,
            if line.contains("/start ") {
                STARTED
            } else {
                "{}"
            },
        )
    });
    let said = fake.home.line("exec box true");
    assert_eq!((said.code, said.err.as_str()), (3, ""));
    assert_eq!(fake.asked.load(Ordering::SeqCst), 1);
}
