//! Who makes a sandbox, so that a later process can tell that it is dead and will not finish.
//!
//! A process id alone proves nothing: it is given out again, and means another process in another container or on
//! another machine. Whatever cannot be told for sure is [`Liveness::Unknown`], which is not dead.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

/// One process of one boot of one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Creator {
    pub pid: u32,
    /// In clock ticks since the boot, as the kernel counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    Alive,
    Dead,
    Unknown,
}

/// What the kernel says about a process id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProcState {
    Running {
        start_time: u64,
    },
    /// Over, and not yet reaped: nothing can run in it.
    Ended,
    Absent,
    Hidden,
}

impl Creator {
    /// This process.
    pub fn current() -> Self {
        static CURRENT: OnceLock<Creator> = OnceLock::new();
        CURRENT.get_or_init(Self::detect).clone()
    }

    fn detect() -> Self {
        let pid = std::process::id();
        let start_time = match proc_state(pid) {
            ProcState::Running { start_time } => Some(start_time),
            ProcState::Ended | ProcState::Absent | ProcState::Hidden => None,
        };
        let uname = rustix::system::uname();
        Self {
            pid,
            start_time,
            boot_id: boot_id(),
            pid_namespace: fs::read_link("/proc/self/ns/pid")
                .ok()
                .map(|link| link.to_string_lossy().into_owned()),
            host: uname.nodename().to_str().ok().map(str::to_owned),
        }
    }

    /// What became of it, seen from here and now.
    pub fn liveness(&self) -> Liveness {
        liveness_of(self, &Self::current(), proc_state(self.pid))
    }
}

fn liveness_of(creator: &Creator, here: &Creator, seen: ProcState) -> Liveness {
    let (Some(boot), Some(boot_here)) = (&creator.boot_id, &here.boot_id) else {
        return Liveness::Unknown;
    };
    if boot != boot_here {
        // This machine was started again, or it is another one that shares the state directory.
        let rebooted = creator.host.is_some() && creator.host == here.host;
        return if rebooted {
            Liveness::Dead
        } else {
            Liveness::Unknown
        };
    }
    if creator.pid_namespace.is_none() || creator.pid_namespace != here.pid_namespace {
        return Liveness::Unknown;
    }
    match (seen, creator.start_time) {
        (ProcState::Absent | ProcState::Ended, _) => Liveness::Dead,
        (ProcState::Running { start_time }, Some(expected)) if start_time == expected => {
            Liveness::Alive
        }
        (ProcState::Running { .. }, Some(_)) => Liveness::Dead,
        (ProcState::Running { .. }, None) | (ProcState::Hidden, _) => Liveness::Unknown,
    }
}

fn proc_state(pid: u32) -> ProcState {
    match read_proc_file(&format!("/proc/{pid}/stat")) {
        Ok(stat) => parse_proc_stat(&stat).unwrap_or(ProcState::Hidden),
        // Where processes of others are hidden, or there is no `/proc`, the signal still knows.
        Err(e) if e.kind() == io::ErrorKind::NotFound && is_absent(pid) => ProcState::Absent,
        Err(_) => ProcState::Hidden,
    }
}

fn is_absent(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // A number that cannot be a process id.
    pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// The third field is the state, the 22nd the start. The second is the program's name, which may hold anything.
fn parse_proc_stat(stat: &[u8]) -> Option<ProcState> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    match fields.next()? {
        "Z" | "X" | "x" => Some(ProcState::Ended),
        _ => {
            let start_time = fields.nth(18)?.parse().ok()?;
            Some(ProcState::Running { start_time })
        }
    }
}

fn boot_id() -> Option<String> {
    let text = String::from_utf8(read_proc_file("/proc/sys/kernel/random/boot_id").ok()?).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// A file whose size the kernel does not tell, in as few reads as most of them take.
fn read_proc_file(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(1024);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn creator() -> Creator {
        Creator {
            pid: 7,
            start_time: Some(100),
            boot_id: Some("boot".to_owned()),
            pid_namespace: Some("pid:[1]".to_owned()),
            host: Some("host".to_owned()),
        }
    }

    const SAME: ProcState = ProcState::Running { start_time: 100 };
    const REUSED: ProcState = ProcState::Running { start_time: 101 };

    #[test]
    fn only_certainty_is_death() {
        let here = creator();
        for (seen, fate) in [
            (SAME, Liveness::Alive),
            (REUSED, Liveness::Dead),
            (ProcState::Absent, Liveness::Dead),
            (ProcState::Ended, Liveness::Dead),
            (ProcState::Hidden, Liveness::Unknown),
        ] {
            assert_eq!(liveness_of(&creator(), &here, seen), fate, "{seen:?}");
        }
    }

    #[test]
    fn elsewhere_nothing_is_known() {
        let here = creator();
        let with = |change: fn(&mut Creator)| {
            let mut creator = creator();
            change(&mut creator);
            liveness_of(&creator, &here, ProcState::Absent)
        };
        assert_eq!(with(|c| c.boot_id = None), Liveness::Unknown);
        assert_eq!(with(|c| c.pid_namespace = None), Liveness::Unknown);
        assert_eq!(
            with(|c| c.pid_namespace = Some("pid:[2]".to_owned())),
            Liveness::Unknown
        );
        let other_boot = |c: &mut Creator| c.boot_id = Some("earlier".to_owned());
        assert_eq!(with(other_boot), Liveness::Dead);
        assert_eq!(
            with(|c| {
                c.boot_id = Some("other".to_owned());
                c.host = Some("other".to_owned());
            }),
            Liveness::Unknown
        );
        let mut unknown_start = creator();
        unknown_start.start_time = None;
        assert_eq!(liveness_of(&unknown_start, &here, SAME), Liveness::Unknown);
    }

    #[test]
    fn names_of_programs_do_not_confuse() {
        let after_state = " 1".repeat(18);
        for name in ["sh", "a) Z 1 (b", "\u{fffd})"] {
            let stat = format!("12 ({name}) S{after_state} 4242 1 2\n");
            let expected = ProcState::Running { start_time: 4242 };
            assert_eq!(parse_proc_stat(stat.as_bytes()), Some(expected), "{name}");
        }
        assert_eq!(parse_proc_stat(b"12 (sh) Z 1"), Some(ProcState::Ended));
        for bad in ["", "12 (sh", "12 (sh)", "12 (sh) S 1 2"] {
            assert_eq!(parse_proc_stat(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn this_process_lives_and_an_ended_one_does_not() {
        let here = Creator::current();
        if here.boot_id.is_none() {
            return;
        }
        assert_eq!(here.liveness(), Liveness::Alive);

        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let ProcState::Running { start_time } = proc_state(child.id()) else {
            panic!("the child is not visible");
        };
        let creator = Creator {
            pid: child.id(),
            start_time: Some(start_time),
            ..here
        };
        assert_eq!(creator.liveness(), Liveness::Alive);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(creator.liveness(), Liveness::Dead);
    }
}
