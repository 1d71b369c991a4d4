//! Against real children. Times are bounds for hanging, not measurements.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::*;
use crate::Code;
use crate::redact::Redactor;

/// Far more than any of these takes, far less than what it would wait for.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

fn sh(script: &str) -> Tool {
    Tool::new("/bin/sh").args(["-c", script])
}

fn capture(tool: Tool) -> Result<Captured, ProcessError> {
    tool.capture(&Limits::default(), &Cancel::new())
}

fn quick() -> Limits {
    Limits {
        timeout: Some(Duration::from_millis(200)),
        grace: Duration::from_millis(200),
        ..Limits::default()
    }
}

/// A writer whose bytes can be looked at.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn output_and_end_are_captured() {
    let captured = capture(sh("echo out; echo err >&2; exit 7")).unwrap();
    assert_eq!(captured.end, End::Exited(7));
    assert_eq!(captured.stdout, b"out\n");
    assert_eq!(captured.stderr, b"err\n");
    let captured = capture(sh("kill -9 $$")).unwrap();
    assert_eq!(captured.end, End::Signaled(9));
    assert_eq!(captured.end.code(), 137);
}

#[test]
fn stdin_environment_and_directory_are_given() {
    let directory = tempfile::tempdir().unwrap();
    let tool = sh("cat; echo \"$GIVEN ${TAKEN-gone}\"; pwd -P")
        .stdin(Stdin::Bytes(vec![b'x'; 200_000]))
        .env("GIVEN", "yes")
        .env("TAKEN", "no")
        .env_remove("TAKEN")
        .cwd(directory.path());
    let captured = capture(tool).unwrap();
    let expected = format!(
        "{}yes gone\n{}\n",
        "x".repeat(200_000),
        directory.path().canonicalize().unwrap().display()
    );
    assert_eq!(String::from_utf8(captured.stdout).unwrap(), expected);

    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"from a file").unwrap();
    io::Seek::rewind(&mut file).unwrap();
    let captured = capture(sh("cat").stdin(Stdin::File(file))).unwrap();
    assert_eq!(captured.stdout, b"from a file");
    assert_eq!(capture(sh("cat")).unwrap().stdout, b"");
}

/// A stream is carried from its first byte on, or not at all.
#[test]
fn streams_may_close_early_speak_late_or_say_nothing() {
    for (script, out, err, code) in [
        ("exit 3", "", "", 3),
        ("exec >&- 2>&-; exit 4", "", "", 4),
        ("exec >&-; echo late >&2", "", "late\n", 0),
        ("exec 2>&-; read line; echo out", "out\n", "", 0),
        (
            "echo first; exec >&-; echo then >&2; exit 5",
            "first\n",
            "then\n",
            5,
        ),
    ] {
        let said = capture(sh(script)).unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), out, "{script}");
        assert_eq!(String::from_utf8_lossy(&said.stderr), err, "{script}");
        assert_eq!(said.end, End::Exited(code), "{script}");
    }
}

#[test]
fn a_child_that_reads_nothing_is_not_waited_for() {
    let tool = sh("exit 3").stdin(Stdin::Bytes(vec![0; 1 << 20]));
    assert_eq!(capture(tool).unwrap().end, End::Exited(3));
    // The reader never ends, and the child does not care.
    let (reader, _writer) = io::pipe().unwrap();
    let tool = sh("exit 4").stdin(Stdin::Reader(Box::new(reader)));
    assert_eq!(capture(tool).unwrap().end, End::Exited(4));
}

#[test]
fn bug_11_and_14_a_missing_program_is_a_kind_of_its_own() {
    let missing = |tool: Tool| match capture(tool) {
        Err(ProcessError::Start { kind, .. }) => kind,
        other => panic!("{other:?}"),
    };
    // Looked up in PATH, by path, and below a file.
    assert_eq!(
        missing(Tool::new("crabbox-no-such-program")),
        StartKind::Missing
    );
    assert_eq!(missing(Tool::new("/nowhere/program")), StartKind::Missing);
    assert_eq!(missing(Tool::new("/bin/sh/program")), StartKind::Missing);

    let failure = capture(Tool::new("crabbox-no-such-program").args(["rm", "x"]))
        .unwrap_err()
        .into_failure(Whose::Provider);
    assert_eq!(failure.code, Code::ProviderMissing);
    assert_eq!(
        failure.to_string(),
        "cannot start `crabbox-no-such-program`: no such program"
    );
    // A program that says so itself did start.
    let said = capture(sh(
        "echo 'executable file not found in $PATH' >&2; exit 127",
    ))
    .unwrap();
    assert_eq!(said.failure(&Redactor::default()).code, Code::Provider);
}

#[test]
fn what_cannot_be_executed_is_not_missing() {
    let directory = tempfile::tempdir().unwrap();
    // Made by a child: a file that we had open for writing may be busy, because other tests start children meanwhile.
    let make = "echo x > plain; echo '#!/nowhere/interpreter' > orphan; chmod 755 orphan";
    capture(sh(make).cwd(directory.path())).unwrap();
    let kind = |tool: Tool| match capture(tool) {
        Err(ProcessError::Start { kind, .. }) => kind,
        other => panic!("{other:?}"),
    };
    for name in ["plain", "orphan", "."] {
        let tool = Tool::new(directory.path().join(name));
        assert_eq!(kind(tool), StartKind::NotExecutable, "{name}");
    }
    // The program is fine; where it should start is not.
    let nowhere = sh("true").cwd(directory.path().join("gone"));
    assert_eq!(kind(nowhere), StartKind::Other);
}

#[test]
fn bug_12_errors_show_the_verb_and_never_the_arguments() {
    let tool = || Tool::new("/opt/bin/tool").args(["exec", "--env", "PASSWORD=hunter2", "kvm"]);
    assert_eq!(tool().label(), "tool exec");
    assert_eq!(format!("{:?}", tool()), r#"Tool("tool exec")"#);
    assert_eq!(
        tool().show_args().label(),
        "tool exec --env PASSWORD=hunter2 kvm"
    );
    assert_eq!(
        Tool::new("tool").args(["--token=hunter2", "ls"]).label(),
        "tool"
    );
    assert_eq!(Tool::new("tool").arg("a\u{1b}b").label(), "tool");

    let tool = sh("echo 'no room' >&2; exit 5")
        .arg("timeout")
        .arg("hunter2");
    let captured = capture(tool).unwrap();
    let failure = captured.failure(&Redactor::default());
    assert_eq!(failure.to_string(), "`sh` exited 5: no room");
    // What rules for guidance look at has no argument in it.
    assert_eq!(
        captured.said(&Redactor::default()).as_deref(),
        Some("no room")
    );
}

#[test]
fn what_a_failed_program_said_is_clean_and_short() {
    let captured = capture(sh("echo pw hunter2; yes | head -c 9000; exit 1")).unwrap();
    let said = captured.said(&Redactor::new(["hunter2"])).unwrap();
    assert!(said.starts_with("pw [redacted]\ny\n"), "{said}");
    assert!(said.len() <= 4096);
    assert_eq!(
        capture(sh("exit 1")).unwrap().said(&Redactor::default()),
        None
    );
}

#[test]
fn bug_16_captured_output_is_bounded() {
    let limits = Limits {
        output: 100_000,
        ..Limits::default()
    };
    let started = Instant::now();
    // It goes on after its pipe is closed: it has to be ended.
    let endless = sh("trap '' PIPE; yes 2>/dev/null; exec sleep 1000");
    match endless.capture(&limits, &Cancel::new()) {
        Err(ProcessError::TooMuchOutput { stream, limit, .. }) => {
            assert_eq!((stream, limit), (Stream::Stdout, 100_000));
        }
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() < TEST_TIMEOUT);
    let exact = sh("yes | head -c 100000").capture(&limits, &Cancel::new());
    assert_eq!(exact.unwrap().stdout.len(), 100_000);
}

#[test]
fn a_child_that_takes_too_long_is_ended_with_its_group() {
    let started = Instant::now();
    // The grandchild holds the pipe and would keep us; the trap would keep the child.
    let stubborn = sh("trap '' TERM; sleep 1000 & sleep 1000; sleep 1000");
    match stubborn.capture(&quick(), &Cancel::new()) {
        Err(ProcessError::TimedOut { what, after }) => {
            assert_eq!((what.as_str(), after), ("sh", Duration::from_millis(200)));
        }
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() < TEST_TIMEOUT);
}

#[test]
fn a_child_may_clean_up_when_it_is_ended() {
    // A shell that has not come to its trap when the time is over cannot clean up: then it gets more time.
    let cleans_up = |millis| {
        let directory = tempfile::tempdir().unwrap();
        let limits = Limits {
            timeout: Some(Duration::from_millis(millis)),
            grace: TEST_TIMEOUT,
            ..Limits::default()
        };
        let tool = sh("trap 'echo clean > done; exit 0' TERM; while :; do sleep 0.01; done");
        let ended = tool.cwd(directory.path()).capture(&limits, &Cancel::new());
        assert!(
            matches!(ended, Err(ProcessError::TimedOut { .. })),
            "{ended:?}"
        );
        std::fs::read_to_string(directory.path().join("done")).is_ok_and(|said| said == "clean\n")
    };
    assert!([200, 2000, 20_000].into_iter().any(cleans_up));
}

#[test]
fn canceling_ends_the_child_at_once() {
    let cancel = Cancel::new();
    let started = Instant::now();
    let out = Shared::default();
    let watched = out.clone();
    let canceler = {
        let cancel = cancel.clone();
        std::thread::spawn(move || {
            while watched.text().is_empty() {
                std::thread::yield_now();
            }
            cancel.set(Reason::Interrupt);
            cancel.set(Reason::Hangup);
        })
    };
    let tool = sh("echo ready; exec sleep 1000");
    let ended = tool.stream(
        Output::To(Box::new(out)),
        Output::Null,
        &Limits::default(),
        &cancel,
    );
    canceler.join().unwrap();
    match ended {
        Err(error @ ProcessError::Canceled { reason, .. }) => {
            assert_eq!(reason, Reason::Interrupt);
            let failure = error.into_failure(Whose::Provider);
            assert_eq!(failure.code, Code::Canceled);
        }
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() < TEST_TIMEOUT);
    // Nothing is started any more.
    let later = sh("echo late > /nowhere/file").capture(&Limits::default(), &cancel);
    assert!(matches!(later, Err(ProcessError::Canceled { .. })));
}

#[test]
fn unread_output_does_not_delay_a_canceled_run() {
    let (reader, writer) = io::pipe().unwrap();
    let cancel = Cancel::new();
    let canceler = {
        let cancel = cancel.clone();
        std::thread::spawn(move || cancel.set(Reason::Terminate))
    };
    let started = Instant::now();
    let ended = sh("yes").stream(
        Output::To(Box::new(writer)),
        Output::Null,
        &Limits::default(),
        &cancel,
    );
    canceler.join().unwrap();
    assert!(matches!(ended, Err(ProcessError::Canceled { .. })));
    assert!(started.elapsed() < TEST_TIMEOUT);
    drop(reader);
}

#[test]
fn grandchildren_that_hold_the_pipes_do_not_hold_us() {
    let started = Instant::now();
    let captured = capture(sh(
        "echo before; (sleep 0.2; echo after; exec sleep 30) & exit 3",
    ));
    let captured = captured.unwrap();
    assert_eq!(captured.end, End::Exited(3));
    assert_eq!(captured.stdout, b"before\nafter\n");
    // Nor when they are never silent.
    let talkative = sh("(while echo x; do sleep 0.1; done) & exit 0");
    let captured = capture(talkative).unwrap();
    assert!(captured.stdout.starts_with(b"x\n"));
    assert!(started.elapsed() < TEST_TIMEOUT);
    // Our side of the pipe is closed now: the talkative one ends by itself.
}

#[test]
fn both_streams_are_passed_on() {
    let (out, err) = (Shared::default(), Shared::default());
    let streamed =
        sh("i=0; while [ $i -lt 2000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; exit 9")
            .stream(
                Output::To(Box::new(out.clone())),
                Output::To(Box::new(err.clone())),
                &Limits::default(),
                &Cancel::new(),
            )
            .unwrap();
    assert_eq!(streamed.end, End::Exited(9));
    assert!(streamed.broken.is_empty());
    let expected = |name: &str| {
        (0..2000)
            .map(|i| format!("{name} {i}\n"))
            .collect::<String>()
    };
    assert_eq!(out.text(), expected("out"));
    assert_eq!(err.text(), expected("err"));
}

#[test]
fn a_writer_that_fails_closes_the_pipe() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let streamed = Tool::new("yes")
        .stream(
            Output::To(Box::new(Broken)),
            Output::Null,
            &Limits::default(),
            &Cancel::new(),
        )
        .unwrap();
    assert_eq!(streamed.end, End::Signaled(13));
    assert!(matches!(
        streamed.broken.as_slice(),
        [(Stream::Stdout, error)] if error.kind() == io::ErrorKind::BrokenPipe
    ));
}

#[test]
fn a_lot_of_output_is_passed_on_whole() {
    struct Counter(Arc<Mutex<u64>>);
    impl Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            *self.0.lock().unwrap() += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let count = Arc::new(Mutex::new(0));
    sh("head -c 200000000 /dev/zero")
        .stream(
            Output::To(Box::new(Counter(count.clone()))),
            Output::Inherit,
            &Limits::default(),
            &Cancel::new(),
        )
        .unwrap();
    assert_eq!(*count.lock().unwrap(), 200_000_000);
}

#[test]
fn a_child_has_a_group_of_its_own() {
    let captured = capture(sh("ps -o pgid= -p $$ || echo $$; echo $$")).unwrap();
    let text = String::from_utf8(captured.stdout).unwrap();
    let numbers: Vec<&str> = text.split_ascii_whitespace().collect();
    assert_eq!(numbers.len(), 2);
    assert_eq!(numbers.first(), numbers.get(1));
}

#[test]
fn sleeping_is_cut_short() {
    let cancel = Cancel::new();
    assert_eq!(cancel.sleep_until(Instant::now()), None);
    let setter = {
        let cancel = cancel.clone();
        std::thread::spawn(move || cancel.set(Reason::Terminate))
    };
    let reason = cancel.sleep_until(Instant::now() + Duration::from_secs(1000));
    setter.join().unwrap();
    assert_eq!(reason, Some(Reason::Terminate));
}

/// What a listener heard before and after what it missed.
#[derive(Default)]
struct Heard {
    parts: Mutex<Vec<Vec<u8>>>,
    missed: Mutex<u64>,
}

impl Listener for Arc<Heard> {
    fn hear(&self, bytes: &[u8]) {
        let mut parts = self.parts.lock().unwrap();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        parts.last_mut().unwrap().extend_from_slice(bytes);
    }

    fn miss(&self, bytes: u64) {
        *self.missed.lock().unwrap() += bytes;
        self.parts.lock().unwrap().push(Vec::new());
    }
}

#[test]
fn what_is_passed_on_is_whole_and_its_beginning_and_end_are_heard() {
    for (last, long) in [(1000, false), (5_000_000, true)] {
        let expected: Vec<u8> = (1..=last)
            .flat_map(|n: u32| format!("{n}\n").into_bytes())
            .collect();
        let (mut reader, writer) = io::pipe().unwrap();
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            Read::read_to_end(&mut reader, &mut all).unwrap();
            all
        });
        let heard = Arc::new(Heard::default());
        let to = File::from(std::os::fd::OwnedFd::from(writer));
        let output = Output::Pass(to, Box::new(Arc::clone(&heard)));
        let tool = Tool::new("seq").arg(last.to_string());
        let done = tool
            .stream(output, Output::Null, &Limits::default(), &Cancel::new())
            .unwrap();
        assert!(done.end.success() && done.broken.is_empty(), "{done:?}");
        let got = reading.join().unwrap();
        assert!(got == expected, "{} of {} bytes", got.len(), expected.len());
        let parts = heard.parts.lock().unwrap();
        let missed = *heard.missed.lock().unwrap();
        let all: usize = parts.iter().map(Vec::len).sum();
        assert_eq!(all as u64 + missed, expected.len() as u64);
        assert!(expected.starts_with(&parts[0]));
        assert!(expected.ends_with(parts.last().unwrap()));
        assert_eq!(missed > 0, long);
        assert!(
            !long || parts.last().unwrap().len() > 100_000,
            "{}",
            parts.last().unwrap().len()
        );
    }
}

#[test]
fn what_cannot_be_spliced_to_is_copied() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let to = std::fs::OpenOptions::new()
        .append(true)
        .open(file.path())
        .unwrap();
    let heard = Arc::new(Heard::default());
    let output = Output::Pass(to, Box::new(Arc::clone(&heard)));
    let tool = Tool::new("seq").arg("3000000");
    tool.stream(output, Output::Null, &Limits::default(), &Cancel::new())
        .unwrap();
    let expected: Vec<u8> = (1..=3_000_000)
        .flat_map(|n: u32| format!("{n}\n").into_bytes())
        .collect();
    assert!(std::fs::read(file.path()).unwrap() == expected);
    assert_eq!(*heard.missed.lock().unwrap(), 0);
}
