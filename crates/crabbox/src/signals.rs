//! Ctrl-C and its kin: the first asks everything to stop, the second ends the process.

use std::thread;

use crabbox_core::process::{Cancel, Reason};
use crabbox_core::{Code, Failure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

pub(crate) fn watch() -> Result<Cancel, Failure> {
    let cancel = Cancel::new();
    let told = cancel.clone();
    let failed = |error: std::io::Error| {
        Failure::new(Code::Local, "cannot install signal handlers").because(&error)
    };
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                if told.is_set() {
                    let _ = emulate_default_handler(signal);
                }
                told.set(match signal {
                    SIGINT => Reason::Interrupt,
                    SIGHUP => Reason::Hangup,
                    _ => Reason::Terminate,
                });
            }
        })
        .map_err(failed)?;
    Ok(cancel)
}
