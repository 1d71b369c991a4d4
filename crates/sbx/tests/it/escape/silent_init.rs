//! An init that does not answer any more: the caller's word to the client is the last.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use rustix::process::Signal;

use super::Guarded;
use crate::ModeTest;
use crate::harness::{Sandbox, World, eventually, kill, state};

pub(crate) const TESTS: &[ModeTest] = &[(
    "the_third_signal_ends_the_client_of_a_silent_init",
    third_signal,
)];

/// An init that stands still, until this is dropped: whatever happens to the test, it must be able to stop.
struct Silenced(i32);

impl Silenced {
    fn new(sandbox: &Sandbox<'_>) -> Self {
        let init = sandbox.world.init_pid(&sandbox.name);
        assert!(kill(init, Signal::STOP));
        let silenced = Self(init);
        eventually("init stands still", || {
            (state(init) == Some('T')).then_some(())
        });
        silenced
    }
}

impl Drop for Silenced {
    fn drop(&mut self) {
        kill(self.0, Signal::CONT);
    }
}

/// A set of signals in `/proc/PID/status`; nothing when the process is gone.
fn signals(client: &Child, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", client.id())).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// Sends them one after the other, each when the client has taken the one before: two of a kind that wait
/// are one.
fn send_each(client: &Child, all: &[Signal]) {
    eventually("the client takes signals itself", || {
        (signals(client, "SigBlk")? & bit(Signal::INT) != 0).then_some(())
    });
    let pid = i32::try_from(client.id()).unwrap();
    for signal in all {
        assert!(kill(pid, *signal));
        eventually("the client has taken the signal", || {
            let waiting = signals(client, "ShdPnd").unwrap_or(0);
            (waiting & bit(*signal) == 0).then_some(())
        });
    }
}

/// It ends by itself, with that code; not by the signal.
#[track_caller]
fn ends_with(client: &mut Child, code: i32) {
    let status = eventually("the client ends", || client.try_wait().unwrap());
    assert_eq!((status.code(), status.signal()), (Some(code), None));
}

fn third_signal(shared: &'static World) {
    // An init that stands still is not to be in the way of other tests.
    let world = World::fresh(shared.mode);
    let sandbox = world.sandbox("silent");
    let (int, term, hup, quit, usr1) = (
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR1,
    );
    // The last one of three that mean the end says with which code; others do not count.
    for (sent, code) in [
        (&[int, int, int][..], 130),
        (&[int, term, hup], 129),
        (&[quit, usr1, usr1, usr1, quit, term], 143),
    ] {
        // In the middle of a command, and before one has begun.
        for begun in [true, false] {
            let script = "echo ready; exec sleep 1000";
            let (mut client, silenced);
            if begun {
                client = Guarded(sandbox.begin(script));
                silenced = Silenced::new(&sandbox);
            } else {
                silenced = Silenced::new(&sandbox);
                let mut exec = world.sbx(["exec", &sandbox.name, "sh", "-c", script]);
                client = Guarded(exec.stdout(Stdio::null()).spawn().unwrap());
            }
            send_each(&client.0, sent);
            ends_with(&mut client.0, code);
            drop(silenced);
        }
    }
    // Nothing is broken for the next one.
    assert_eq!(sandbox.exec(["echo", "awake"]).ok(), "awake");
}
