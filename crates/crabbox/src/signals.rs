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
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
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
