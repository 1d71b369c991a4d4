//! Ctrl-C and its kin: the first asks everything to stop. The next one ends the process, unless it has to put in order what
//! it made: then it only hurries. A terminal that is closed sends several.

use std::thread;

use crabbox_core::process::{Cancel, Reason};
use crabbox_core::{Code, Failure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::ui;

pub(crate) fn watch() -> Result<Cancel, Failure> {
    let cancel = Cancel::new();
    let told = cancel.clone();
    let failed = |error: std::io::Error| {
        Failure::new(Code::Local, "cannot install signal handlers").because(&error)
    };
    let hangup = (!hangup_is_ignored()).then_some(SIGHUP);
    let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup)).map_err(failed)?;
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                receive(&told, signal);
            }
        })
        .map_err(failed)?;
    Ok(cancel)
}

/// `nohup` starts a program with SIGHUP ignored, and that is to stay so: the run outlives the terminal.
fn hangup_is_ignored() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, SIGHUP))
}

/// Whether `SigIgn` of proc_pid_status(5) has the signal. Where there is no proc, no signal counts as ignored.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

fn receive(cancel: &Cancel, signal: i32) {
    let reason = match signal {
        SIGINT => Reason::Interrupt,
        SIGHUP => Reason::Hangup,
        _ => Reason::Terminate,
    };
    match (cancel.is_set(), cancel.has_cleanup()) {
        (false, true) => {
            cancel.set(reason);
            ui::notice(&format!(
                "{reason}: ending the command and cleaning up, which takes 30s at most"
            ));
        }
        (false, false) => cancel.set(reason),
        (true, true) => {
            // Those of a terminal that is closed come in any number, without any hurry.
            if reason != Reason::Hangup {
                cancel.hurry();
            }
            ui::notice("still cleaning up");
        }
        (true, false) => {
            // It fails only for signals that have no default.
            let _ = emulate_default_handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let status = "Name:\tcrabbox\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004002\n";
        assert!(ignores(status, SIGHUP));
        assert!(!ignores(status, SIGINT) && !ignores(status, SIGTERM));
        assert!(!ignores("", SIGHUP));
        assert!(!ignores("SigIgn:\tmany\n", SIGHUP));
    }
}
