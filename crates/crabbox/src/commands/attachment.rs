//! What a command's stdin, stdout and stderr are.

use std::fs::{File, OpenOptions};
use std::io::IsTerminal;
use std::os::fd::AsFd;

use crabbox_core::history::{ActiveRun, RunLog};
use crabbox_core::lifecycle::Streams;
use crabbox_core::process::{Listener, Output, Stdin, Stream};
use crabbox_core::{Code, Failure};

use crate::app::App;
use crate::ui::Cursor;

/// How a command is attached to its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attachment {
    /// Pipes, which are recorded on the way.
    Pipes { interactive: bool },
    /// A terminal that is handed over; what is written to it is not recorded.
    Terminal,
    /// A terminal of our own engine: what is written to it is recorded, as one stream.
    RecordedTerminal,
    /// Nothing: the output is only recorded.
    Detached,
}

/// What decides it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wanted {
    pub(super) interactive: bool,
    pub(super) tty: bool,
    pub(super) detach: bool,
    /// `--no-tty`, `-q`, or output for programs.
    pub(super) plain: bool,
}

/// What there is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Caller {
    pub(super) all_are_terminals: bool,
    /// The variable CI is set: a terminal there is for show.
    pub(super) is_ci: bool,
}

impl Attachment {
    /// `gives_terminal` asks the provider, which may take a process.
    pub(super) fn choose(
        wanted: Wanted,
        caller: Caller,
        gives_terminal: impl Fn() -> bool,
    ) -> Self {
        let Wanted {
            interactive,
            tty,
            detach,
            plain,
        } = wanted;
        let has_reader = caller.all_are_terminals && !caller.is_ci && !plain;
        match (detach, tty) {
            (true, _) => Self::Detached,
            (false, true) if gives_terminal() => Self::RecordedTerminal,
            (false, true) => Self::Terminal,
            (false, false) if has_reader && !interactive && gives_terminal() => {
                Self::RecordedTerminal
            }
            (false, false) => Self::Pipes { interactive },
        }
    }

    pub(super) fn is_terminal(self) -> bool {
        matches!(self, Self::Terminal | Self::RecordedTerminal)
    }

    pub(super) fn is_merged(self) -> bool {
        self == Self::RecordedTerminal
    }

    pub(super) fn streams(
        self,
        app: &App<'_>,
        run: Option<&ActiveRun>,
    ) -> Result<Streams, Failure> {
        let interactive = matches!(self, Self::Pipes { interactive: true });
        let (stdin, stdout, stderr) = match self {
            Self::Terminal => (Stdin::Inherit, Output::Inherit, Output::Inherit),
            Self::Detached => (
                Stdin::Null,
                unread(run, Stream::Stdout)?,
                unread(run, Stream::Stderr)?,
            ),
            Self::RecordedTerminal | Self::Pipes { .. } => (
                self.stdin(app),
                passed(app, run, Stream::Stdout)?,
                passed(app, run, Stream::Stderr)?,
            ),
        };
        Ok(Streams {
            stdin,
            interactive: interactive || self.is_terminal(),
            terminal: self.is_terminal(),
            stdout,
            stderr,
        })
    }

    fn stdin(self, app: &App<'_>) -> Stdin {
        // A child that reads a terminal from the background would be stopped by SIGTTIN.
        let reads = self.is_terminal() || self == Self::Pipes { interactive: true };
        match app.host.stdin_is_terminal && !reads {
            true => Stdin::Null,
            false => Stdin::Inherit,
        }
    }
}

/// A stream that is written down, and followed where our own lines come after it.
struct Followed {
    log: RunLog,
    cursor: Option<Cursor>,
}

impl Listener for Followed {
    fn hear(&self, bytes: &[u8]) {
        self.log.hear(bytes);
        if let Some(cursor) = &self.cursor {
            cursor.follow(bytes);
        }
    }

    fn miss(&self, bytes: u64) {
        self.log.miss(bytes);
    }
}

/// Passed on to our own stream, and written down on the way.
fn passed(app: &App<'_>, run: Option<&ActiveRun>, stream: Stream) -> Result<Output, Failure> {
    let Some(run) = run else {
        return Ok(Output::Inherit);
    };
    // A copy that no child inherits: a daemon that one of them starts would hold our caller's pipe open.
    let own = match stream {
        Stream::Stdout => std::io::stdout().as_fd().try_clone_to_owned(),
        Stream::Stderr => std::io::stderr().as_fd().try_clone_to_owned(),
    };
    let own = own.map_err(|error| cannot_pass(&error))?;
    let shared = own.is_terminal() && std::io::stderr().is_terminal();
    let followed = Followed {
        log: run.log(stream),
        cursor: shared.then(|| app.ui.cursor()),
    };
    Ok(Output::Pass(File::from(own), Box::new(followed)))
}

/// Only written down.
fn unread(run: Option<&ActiveRun>, stream: Stream) -> Result<Output, Failure> {
    let Some(run) = run else {
        return Ok(Output::Null);
    };
    let nowhere = OpenOptions::new().write(true).open("/dev/null");
    let nowhere = nowhere.map_err(|error| cannot_pass(&error))?;
    Ok(Output::Pass(nowhere, Box::new(run.log(stream))))
}

fn cannot_pass(error: &std::io::Error) -> Failure {
    Failure::new(Code::Local, "cannot pass output on").because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Caller = Caller {
        all_are_terminals: true,
        is_ci: false,
    };

    #[test]
    fn a_terminal_by_itself_only_on_our_own_engine_and_for_people() {
        let plain_pipes = Attachment::Pipes { interactive: false };
        let by_itself = |caller, own| Attachment::choose(Wanted::default(), caller, || own);
        assert_eq!(by_itself(HERE, true), Attachment::RecordedTerminal);
        assert_eq!(by_itself(HERE, false), plain_pipes);
        assert_eq!(by_itself(Caller::default(), true), plain_pipes);
        let ci = Caller {
            is_ci: true,
            ..HERE
        };
        assert_eq!(by_itself(ci, true), plain_pipes);
        let plain = Wanted {
            plain: true,
            ..Wanted::default()
        };
        assert_eq!(Attachment::choose(plain, HERE, || true), plain_pipes);
    }

    #[test]
    fn what_is_asked_for_wins() {
        let wanted = Wanted {
            tty: true,
            plain: true,
            ..Wanted::default()
        };
        let choose = |wanted, own| Attachment::choose(wanted, Caller::default(), || own);
        assert_eq!(choose(wanted, true), Attachment::RecordedTerminal);
        assert_eq!(choose(wanted, false), Attachment::Terminal);
        let interactive = Wanted {
            interactive: true,
            ..Wanted::default()
        };
        let pipes = Attachment::Pipes { interactive: true };
        assert_eq!(Attachment::choose(interactive, HERE, || true), pipes);
        let detach = Wanted {
            detach: true,
            ..Wanted::default()
        };
        assert_eq!(choose(detach, true), Attachment::Detached);
    }
}
