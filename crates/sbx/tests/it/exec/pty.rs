//! `sbx exec -t` and `sbx run` on a real terminal of the host.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Gid, Uid};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize, tcgetattr};

use crate::ModeTest;
use crate::harness::{Ran, Sandbox, World, eventually, eventually_or, programs};

pub const TESTS: &[ModeTest] = &[
    ("exec::a_terminal_has_the_callers_size_and_follows_it", size),
    ("exec::control_c_interrupts_the_command", control_c),
    ("exec::job_control_works", job_control),
    ("exec::a_terminal_session_has_the_commands_code", code),
    ("exec::a_terminal_that_hangs_up", hangup),
    ("exec::a_terminal_that_is_closed_and_opened_again", closed),
    ("exec::a_slow_terminal_gets_all_of_it", slow),
    ("exec::an_orphan_on_the_terminal_is_left", orphan),
    ("exec::detach_keys_leave_the_command", detach_keys),
    ("exec::dockers_detach_keys_are_the_usual_ones", usual_keys),
    ("exec::no_terminal_is_dockers_error", no_terminal),
    ("exec::run_on_a_terminal_is_a_shell", run_is_a_shell),
];

const ROWS: u16 = 31;
const COLS: u16 = 117;

/// `sbx` on a terminal of its own, and all that it has shown so far.
pub struct Session {
    master: Option<File>,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    child: Child,
}

impl Session {
    pub fn start(world: &World, args: &[&str]) -> Self {
        let mut session = Self::unread(world, args);
        session.read();
        session
    }

    fn unread(world: &World, args: &[&str]) -> Self {
        Self::unread_program(world, programs().join("sbx").as_os_str(), args)
    }

    /// Another program than `sbx`.
    pub fn start_program(world: &World, program: &str, args: &[&str]) -> Self {
        let mut session = Self::unread_program(world, program.as_ref(), args);
        session.read();
        session
    }

    /// `setsid` makes the terminal the controlling one, as a terminal program does. No process reads it yet.
    fn unread_program(world: &World, program: &OsStr, args: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).unwrap();
        let (uid, gid) = (Uid::from_raw(world.uid), Gid::from_raw(world.gid));
        rustix::fs::fchown(&slave, Some(uid), Some(gid)).unwrap();
        rustix::termios::tcsetwinsize(&master, winsize(ROWS, COLS)).unwrap();
        let child = {
            let mut leader = world.command("setsid");
            leader.args(["--ctty", "--wait"]).arg(program).args(args);
            let copy = || Stdio::from(slave.try_clone().unwrap());
            // The last copies of this side are the child's.
            leader
                .stdin(copy())
                .stdout(copy())
                .stderr(copy())
                .spawn()
                .unwrap()
        };
        drop(slave);
        Self {
            master: Some(File::from(master)),
            shown: Arc::default(),
            reader: None,
            child,
        }
    }

    fn read(&mut self) {
        let mut reading = self.master.as_ref().unwrap().try_clone().unwrap();
        let copy = Arc::clone(&self.shown);
        self.reader = Some(std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // An error is how a terminal ends.
            while let Ok(count @ 1..) = reading.read(&mut piece) {
                copy.lock().unwrap().extend_from_slice(&piece[..count]);
            }
        }));
    }

    pub fn type_in(&self, text: &str) {
        self.master
            .as_ref()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }

    /// Waits until what is typed is the command's: before, the terminal itself takes control-c and control-q. A command that
    /// shows something is past that.
    #[track_caller]
    fn until_raw(&self) {
        let master = self.master.as_ref().unwrap();
        eventually("the terminal is in raw mode", || {
            let modes = tcgetattr(master).unwrap().local_modes;
            (!modes.contains(LocalModes::ISIG)).then_some(())
        });
    }

    pub fn resize(&self, rows: u16, cols: u16) {
        rustix::termios::tcsetwinsize(self.master.as_ref().unwrap(), winsize(rows, cols)).unwrap();
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    #[track_caller]
    pub fn expect(&self, text: &str) {
        let seen = || {
            let shown = self.shown();
            assert!(!shown.contains("error: "), "{shown}");
            shown.contains(text).then_some(())
        };
        eventually_or(seen, || {
            format!("the terminal shows `{text}`: {:?}", self.shown())
        });
    }

    /// Waits until the text was shown so many times.
    #[track_caller]
    pub fn expect_times(&self, text: &str, times: usize) {
        let seen = || (self.shown().matches(text).count() >= times).then_some(());
        eventually_or(seen, || {
            format!(
                "the terminal shows `{text}` {times} times: {:?}",
                self.shown()
            )
        });
    }

    /// The exit code, once everything is shown.
    #[track_caller]
    pub fn end(mut self) -> (Option<i32>, String) {
        let shown = Arc::clone(&self.shown);
        let status = eventually_or(
            || self.child.try_wait().unwrap(),
            || {
                let shown = String::from_utf8_lossy(&shown.lock().unwrap()).into_owned();
                format!("the session ends: {shown:?}")
            },
        );
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        (status.code(), self.shown())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Only a test that has failed leaves it running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn winsize(rows: u16, cols: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// A script of bash's on a terminal.
fn script(sandbox: &Sandbox<'_>, script: &str) -> Session {
    Session::start(
        sandbox.world,
        &["exec", "-it", &sandbox.name, "bash", "-c", script],
    )
}

fn size(world: &'static World) {
    let sandbox = world.sandbox("size");
    let session = script(
        &sandbox,
        "trap 'echo now $(stty size)' WINCH; tty; test -t 0 -a -t 1 -a -t 2 && echo three; echo size $(stty size); \
         while [ ! -e go ]; do sleep 0.05; done; read -r word; echo \"got $word\"; exit 3",
    );
    session.expect("/dev/pts/");
    session.expect("three");
    session.expect("size 31 117");
    session.resize(40, 99);
    session.expect("now 40 99");
    session.resize(11, 222);
    session.expect("now 11 222");
    world.write(&sandbox.path("go"), "");
    session.type_in("word\r");
    session.expect("got word");
    assert_eq!(session.end().0, Some(3));
    // As root it is a terminal too, which can be opened by its name.
    for user in ["root", "agent"] {
        let session = Session::start(
            world,
            &[
                "exec",
                "-it",
                "-u",
                user,
                &sandbox.name,
                "sh",
                "-c",
                "echo by name >$(tty); echo tty >/dev/tty; echo $TERM",
            ],
        );
        let (code, shown) = session.end();
        assert_eq!(
            (code, shown.as_str()),
            (Some(0), "by name\r\ntty\r\nxterm-256color\r\n"),
            "{user}"
        );
    }
}

fn control_c(world: &'static World) {
    let sandbox = world.sandbox("ctrl-c");
    let session = script(
        &sandbox,
        "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done",
    );
    session.expect("ready");
    session.type_in("\x03");
    let (code, shown) = session.end();
    assert_eq!(code, Some(9), "{shown}");
    assert!(shown.contains("caught"), "{shown}");
    // Without a trap it is the end, and the client tells.
    let session = script(&sandbox, "echo ready; exec sleep 1000");
    session.expect("ready");
    session.type_in("\x03");
    assert_eq!(session.end().0, Some(130));
    // Control-d is the end of the input.
    let session = Session::start(
        world,
        &[
            "exec",
            "-it",
            &sandbox.name,
            "sh",
            "-c",
            "echo ready; cat; echo over",
        ],
    );
    session.expect("ready");
    session.type_in("typed\r\x04");
    let (code, shown) = session.end();
    assert_eq!(code, Some(0));
    assert!(shown.ends_with("typed\r\nover\r\n"), "{shown}");
}

fn job_control(world: &'static World) {
    let sandbox = world.sandbox("jobs");
    let session = Session::start(
        world,
        &["exec", "-it", &sandbox.name, "bash", "--norc", "-i"],
    );
    // What is typed is echoed: what is waited for must not be in it.
    session.type_in("PS1='$ '; set -m; echo rea''dy\r");
    session.expect("ready");
    assert!(
        !session.shown().contains("no job control"),
        "{}",
        session.shown()
    );
    // Says when it has the terminal, and when it has it again.
    let job = "trap 'echo resum\"\"ed' CONT; echo star\"\"ted; while :; do sleep 0.05; done";
    world.write(&sandbox.path("job"), job);
    session.type_in("bash job\r");
    session.expect("started");
    session.type_in("\x1a");
    session.expect("Stopped");
    session.type_in("fg\r");
    session.expect("resumed");
    session.type_in("\x03");
    session.type_in("echo co''de $?\r");
    session.expect("code 130");
    // A background job that reads is stopped, not given the input.
    session.type_in("cat & while ! jobs -s %1 | grep -q cat; do sleep 0.05; done; echo wai''ts\r");
    session.expect("waits");
    session.type_in("kill -9 %1; exec bash -c 'exit 12'\r");
    assert_eq!(session.end().0, Some(12));
}

fn code(world: &'static World) {
    let sandbox = world.sandbox("tty-code");
    for (text, expected) in [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", 137)] {
        assert_eq!(script(&sandbox, text).end().0, Some(expected));
    }
    // Everything is shown before the end, however much there is.
    let (code, shown) = script(&sandbox, "seq 20000; exit 5").end();
    let expected: String = (1..=20000).map(|n| format!("{n}\r\n")).collect();
    assert_eq!(code, Some(5));
    assert!(
        shown == expected,
        "{} of {} bytes",
        shown.len(),
        expected.len()
    );
    // The caller's terminal is as it was before.
    let session = Session::start(world, &["exec", "-it", &sandbox.name, "true"]);
    let master = session.master.as_ref().unwrap().try_clone().unwrap();
    let before = format!("{:?}", tcgetattr(&master).unwrap().local_modes);
    session.end();
    assert!(before.contains("ECHO"), "{before}");
    let (code, shown) =
        Session::start(world, &["exec", "-it", &sandbox.name, "no-such-program"]).end();
    assert_eq!(code, Some(127), "{shown}");
}

fn hangup(world: &'static World) {
    let sandbox = world.sandbox("hangup");
    // Half a second after SIGHUP comes SIGKILL: a starved shell may not run in between, and then the next one is asked.
    let mut tries = 0..10;
    assert!(
        tries.any(|_| is_told_of_hangup(&sandbox)),
        "no command was told that its terminal is gone"
    );
}

/// Whether a command whose client is killed gets to run its trap for SIGHUP.
fn is_told_of_hangup(sandbox: &Sandbox<'_>) -> bool {
    let mut session = script(
        sandbox,
        "trap 'echo hup > hung-up; exit' HUP; echo ready; while :; do sleep 0.05; done",
    );
    session.expect("ready");
    session.child.kill().unwrap();
    session.child.wait().unwrap();
    eventually("its session ends", || {
        (sandbox.world.inspect(&sandbox.name)["sessions"] == 0).then_some(())
    });
    sandbox.path("hung-up").exists()
}

/// Raw mode stays, and so must everything that is typed and shown.
fn closed(world: &'static World) {
    let sandbox = world.sandbox("closed");
    let close = "exec </dev/null >/dev/null 2>&1; echo x > closed; while [ ! -e go ]; do sleep 0.05; done; ";
    let is_closed = || sandbox.path("closed").exists().then_some(());
    let again = || {
        std::fs::remove_file(sandbox.path("closed")).unwrap();
        let _ = std::fs::remove_file(sandbox.path("go"));
    };
    let open = format!(
        "{close} exec </dev/tty >/dev/tty; echo hi; read -r word; echo \"got $word\"; exit 3"
    );
    let session = script(&sandbox, &open);
    eventually("the command closes its terminal", is_closed);
    world.write(&sandbox.path("go"), "");
    session.expect("hi");
    session.type_in("word\r");
    session.expect("got word");
    assert_eq!(session.end().0, Some(3));
    again();
    // Control-c is the command's in the meantime too.
    let session = script(&sandbox, &format!("trap 'exit 9' INT; {close}"));
    eventually("the command closes its terminal", is_closed);
    session.until_raw();
    session.type_in("\x03");
    assert_eq!(session.end().0, Some(9));
    again();
    // And the keys are ours: what it says later is logged, and it is not told that its terminal is gone.
    let later =
        format!("trap 'echo hup > hung-up' HUP; {close} exec >/dev/tty; echo later; exit 4");
    let session = script(&sandbox, &later);
    eventually("the command closes its terminal", is_closed);
    session.until_raw();
    session.type_in("\x10\x11");
    assert_eq!(session.end().0, Some(0));
    world.write(&sandbox.path("go"), "");
    let logged = |text: &str| {
        eventually("what it says later is logged", || {
            let logs = world.run(["logs", &sandbox.name]).ok();
            logs.contains(text).then_some(())
        });
    };
    logged("later");
    again();
    let detached = sandbox.exec_with(&["-d", "-t"], ["sh", "-c", &later.replace("later", "last")]);
    detached.ok();
    eventually("the command closes its terminal", is_closed);
    world.write(&sandbox.path("go"), "");
    logged("last");
    eventually("the session ends", || {
        (world.inspect(&sandbox.name)["sessions"] == 0).then_some(())
    });
    assert!(!sandbox.path("hung-up").exists());
}

/// The output is read only long after the command has ended.
fn slow(world: &'static World) {
    let sandbox = world.sandbox("slow");
    // More than the caller's terminal holds (some 12 KiB), less than both do.
    let script = "seq 1000 4999; echo x > ended; exit 5";
    let mut session = Session::unread(world, &["exec", "-it", &sandbox.name, "sh", "-c", script]);
    eventually("the session ends inside", || {
        let ended = sandbox.path("ended").exists();
        (ended && world.inspect(&sandbox.name)["sessions"] == 0).then_some(())
    });
    // The client has heard of it too, and longer ago than it listens to others for.
    let heard = Instant::now();
    eventually("a while is over", || {
        (heard.elapsed() > Duration::from_millis(1500)).then_some(())
    });
    session.read();
    let (code, shown) = session.end();
    let expected: String = (1000..5000).map(|n| format!("{n}\r\n")).collect();
    assert_eq!(code, Some(5), "{shown}");
    let lengths = (shown.len(), expected.len());
    assert!(shown == expected, "{lengths:?} bytes");
}

/// What the command has left goes on for ever, fast or slowly: its caller does not wait for that.
fn orphan(world: &'static World) {
    let sandbox = world.sandbox("tty-orphan");
    // By its name: what the command had open hangs up with it.
    for goes_on in ["yes | head -n 5000 >$T", "sleep 0.02; echo y >$T"] {
        let left = format!("trap '' HUP; T=$(tty); (while {goes_on}; do :; done) & exit 6");
        assert_eq!(script(&sandbox, &left).end().0, Some(6), "{goes_on}");
    }
}

fn detach_keys(world: &'static World) {
    let sandbox = world.sandbox("detach");
    let args = [
        "exec",
        "-it",
        "--detach-keys",
        "ctrl-p,ctrl-q",
        &sandbox.name,
        "sh",
        "-c",
    ];
    let script = "echo ready; read -r line; echo \"got $line\"; while [ ! -e go ]; do sleep 0.05; done; seq 5000; echo x > ended";
    let session = Session::start(world, &[&args[..], &[script]].concat());
    session.expect("ready");
    session.type_in("a\r");
    session.expect("got a");
    session.type_in("\x10\x11");
    assert_eq!(session.end().0, Some(0));
    world.write(&sandbox.path("go"), "");
    // Its terminal has no reader any more, and it goes on to its end all the same.
    eventually("the command goes on to its end", || {
        sandbox.path("ended").exists().then_some(())
    });
    // The terminal is read by another process than the one that has written to it: its end comes a little later.
    let logs = || world.run(["logs", &sandbox.name]).ok();
    eventually_or(|| logs().ends_with("4999\r\n5000\r").then_some(()), logs);
    assert!(!logs().contains("got a"), "{}", logs());
    eventually("the session ends", || {
        (world.inspect(&sandbox.name)["sessions"] == 0).then_some(())
    });
}

/// Ctrl-p, ctrl-q without being asked for; a single ctrl-p is the program's.
fn usual_keys(world: &'static World) {
    let sandbox = world.sandbox("usual");
    let script = "stty raw -echo; echo ready; head -c 2 | od -An -tx1; echo then; head -c 1 | od -An -tx1; \
                  echo waits; while [ ! -e go ]; do sleep 0.05; done; echo x > ended";
    let session = self::script(&sandbox, script);
    session.expect("ready");
    session.type_in("\x10a");
    session.expect("10 61");
    session.expect("then");
    // Nothing follows.
    session.type_in("\x10");
    session.expect("waits");
    session.type_in("\x10\x11");
    let (code, shown) = session.end();
    assert_eq!(code, Some(0));
    assert!(shown.contains(" 10\n"), "{shown:?}");
    assert!(!sandbox.path("ended").exists());
    world.write(&sandbox.path("go"), "");
    eventually("the command goes on to its end", || {
        sandbox.path("ended").exists().then_some(())
    });
    // Others can be chosen, and then these are not.
    let session = Session::start(
        world,
        &[
            "exec",
            "-it",
            "--detach-keys",
            "ctrl-x",
            &sandbox.name,
            "sh",
            "-c",
            "stty raw -echo; echo ready; head -c 2 | od -An -tx1; sleep 600",
        ],
    );
    session.expect("ready");
    session.type_in("\x10\x11");
    session.expect("10 11");
    session.type_in("\x18");
    assert_eq!(session.end().0, Some(0));
}

fn no_terminal(world: &'static World) {
    let sandbox = world.sandbox("no-tty");
    let refused = sandbox.exec_with(&["-it"], ["touch", "made"]).fails(125);
    assert!(
        refused.err.contains("the input device is not a TTY"),
        "{}",
        refused.err
    );
    assert!(!sandbox.path("made").exists());
    // Without -i there is no input device: the command has a terminal all the same.
    let ran = sandbox.exec_with(&["-t"], ["sh", "-c", "test -t 1 && echo yes"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "yes\r\n"), "{}", ran.err);
}

fn run_is_a_shell(world: &'static World) {
    let workspace = world.workspace();
    let name = world.name("shell");
    let session = Session::start(
        world,
        &["run", "--name", &name, "shell", workspace.to_str().unwrap()],
    );
    session.type_in("echo $((6*7)) $(stty size) $PWD; exit 21\r");
    let (code, shown) = session.end();
    assert_eq!(code, Some(21), "{shown}");
    assert!(
        shown.contains(&format!("42 31 117 {}", workspace.display())),
        "{shown}"
    );
    let ran: Ran = world.run(["rm", "--force", &name]);
    ran.ok();
}
