//! A command on the caller's terminal, the end of that terminal, and what is said there.

use std::process::Command;

use super::Own;
use crate::world::{Terminal, python, signal};

#[test]
fn a_command_has_the_terminal_of_its_caller_and_is_recorded() {
    let Some(own) = Own::new() else { return };
    let script = "test -t 0 && test -t 1 && test -t 2 && echo three; echo oops >&2";
    let (code, shown) = own.on_terminal(&["run", "--", "sh", "-c", script]);
    assert_eq!(code, 0, "{shown}");
    // With one more `\r` if the terminal is no longer raw when the last of it is written.
    assert!(shown.contains("three\r"), "{shown}");
    assert!(shown.trim_end().ends_with("s  exit 0"), "{shown}");
    let log = own.crabbox(&["logs"]).exits(0);
    assert_eq!(log.out.replace('\r', ""), "three\noops\n");
    log.says("had a terminal: stdout and stderr are one stream");
    let (_, shown) = own.on_terminal(&["run", "--no-tty", "--", "sh", "-c", script]);
    assert!(!shown.contains("three"), "{shown}");
    own.is_clean();
}

/// Whether a process has this word in its command line, in a sandbox or not.
fn is_running(mark: &str) -> bool {
    let all = std::fs::read_dir("/proc").unwrap();
    let lines = all.filter_map(|entry| std::fs::read(entry.unwrap().path().join("cmdline")).ok());
    let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    lines.any(|line| line.split('\0').any(|word| word == mark))
}

#[test]
fn signals_and_a_closed_terminal_end_the_command_the_lease_and_the_env_file() {
    use rustix::process::Signal;
    use std::io::Read as _;
    use std::process::Stdio;
    let Some(own) = Own::new() else { return };
    let lead = "import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])";
    for (number, (sent, code)) in [
        (Some(Signal::HUP), 129),
        (Some(Signal::TERM), 143),
        (None, 129),
    ]
    .into_iter()
    .enumerate()
    {
        let mark = format!("{}.{}", 5000 + number, std::process::id());
        let script = format!("echo begun; exec sleep {mark}");
        let command = own.command(&["run", "-e", "MARK=x", "--", "sh", "-c", &script]);
        let (mut child, mut shown) = match sent {
            Some(_) => {
                let mut command = command;
                command.stdin(Stdio::null()).stdout(Stdio::piped());
                let mut child = command.stderr(Stdio::null()).spawn().unwrap();
                let stdout = std::os::fd::OwnedFd::from(child.stdout.take().unwrap());
                (child, std::fs::File::from(stdout))
            }
            // As a terminal emulator starts a shell: what leads the session of a terminal is told that it is closed.
            None => {
                let Terminal { ours, theirs } = Terminal::open();
                let mut leader = Command::new(python());
                leader.args(["-c", lead]).arg(command.get_program());
                leader.args(command.get_args());
                own.prepare(&mut leader);
                leader
                    .stdin(theirs.try_clone().unwrap())
                    .stdout(theirs.try_clone().unwrap());
                let child = leader.stderr(theirs).spawn().unwrap();
                (child, std::fs::File::from(ours))
            }
        };
        let (mut said, mut bytes) = (String::new(), [0; 4096]);
        while !said.contains("begun") {
            let count = shown.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "{said}");
            said.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        assert_eq!(own.world.env_dir().len(), 1);
        match sent {
            Some(sent) => signal(&child, sent),
            None => drop(shown),
        }
        assert_eq!(child.wait().unwrap().code(), Some(code), "{sent:?}");
        own.is_clean();
        assert!(!is_running(&mark), "{sent:?}");
    }
}

/// Programs read the provider's name; people have not chosen one.
#[test]
fn failures_on_a_terminal_name_the_engine() {
    let Some(own) = Own::new() else { return };
    let (code, shown) = own.on_terminal(&["run", "--", "no-such-program"]);
    assert_eq!(code, 127, "{shown}");
    assert!(
        shown.contains("error: bundled engine: run exited 127: "),
        "{shown}"
    );
    assert!(!shown.contains("docker-sandbox"), "{shown}");
    own.crabbox(&["warmup", "--slug", "gone"]).exits(0);
    let lease = own.world.claim_names().remove(0);
    let sandbox = lease.trim_start_matches("dsbx_");
    own.sbx(&["rm", "--force", sandbox]).exits(0);
    let run = ["run", "--id", "gone", "--", "true"];
    let (_, shown) = own.on_terminal(&run);
    let told = format!("error: bundled engine: sandbox {sandbox:?} is not present");
    assert!(shown.contains(&told), "{shown}");
    own.crabbox(&run)
        .exits(4)
        .says("error: docker-sandbox sandbox ");
    own.crabbox(&["stop", "gone"]).exits(0);
    for (args, told) in [
        (
            &["stop", "nope"][..],
            "error: bundled engine: sandbox \"nope\" is not claimed",
        ),
        (
            &["status", "nope"],
            "error: bundled engine: sandbox \"nope\" is not claimed",
        ),
        (
            &["run", "--docker-sandbox-workdir", "/", "--", "true"],
            "error: bundled engine: workdir `/` is too broad",
        ),
        (&["cleanup"], "bundled engine: cleanup removed=0 checked=0"),
    ] {
        let (_, shown) = own.on_terminal(args);
        assert!(shown.contains(told), "{args:?}: {shown}");
        let piped = own.crabbox(args);
        let piped = piped.out + &piped.err;
        let told = told.replace("bundled engine:", "docker-sandbox");
        assert!(piped.contains(&told), "{args:?}: {piped}");
    }
    let help = own.crabbox(&["run", "--help"]).exits(0).out;
    assert!(help.contains("\nBundled engine:\n"), "{help}");
    assert!(!help.contains("docker-sandbox:"), "{help}");
    own.is_clean();
}
