//! Signals by the names of RFC 4254 section 6.10, which have no numbers of their own.

use rustix::process::Signal;

const NAMES: [(&str, Signal); 13] = [
    ("ABRT", Signal::ABORT),
    ("ALRM", Signal::ALARM),
    ("FPE", Signal::FPE),
    ("HUP", Signal::HUP),
    ("ILL", Signal::ILL),
    ("INT", Signal::INT),
    ("KILL", Signal::KILL),
    ("PIPE", Signal::PIPE),
    ("QUIT", Signal::QUIT),
    ("SEGV", Signal::SEGV),
    ("TERM", Signal::TERM),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
];

pub(super) fn number(name: &str) -> Option<i32> {
    let mut known = NAMES.iter();
    known
        .find(|(known, _)| *known == name)
        .map(|(_, signal)| signal.as_raw())
}

pub(super) fn name(number: i32) -> Option<&'static str> {
    let mut known = NAMES.iter();
    known
        .find(|(_, signal)| signal.as_raw() == number)
        .map(|(name, _)| *name)
}
