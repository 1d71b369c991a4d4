//! One command in a sandbox: the way to its init, with a start of the sandbox where that is needed. What happens then is
//! a session ([`session`]).

mod ended;
mod session;

use std::time::Duration;

use rustix::process::Signal;
use sbx_api::Started;
use sbx_engine::state::socket::is_unserved;
use sbx_proto::exec::{Exec, FramedStderr, FramedStdin, Request, Stdio};
use sbx_sys::signals::SignalFd;

use crate::client::Client;
use crate::commands::ports::start_with_other_ports;
use crate::context::Context;
use crate::detach_keys::DetachKeys;
use crate::env::Transport;
use crate::failure::{Failure, Kind, engine};
use crate::init::{self, Init, Terminal};
use crate::lookup;
use crate::plumbing::{Plumbing, Stdin, same_file};
use crate::terminal;
use session::Session;

/// Before each start of a sandbox that does not run, or whose init was gone before it could be asked.
const START_DELAYS: [Duration; 7] = [
    Duration::ZERO,
    Duration::ZERO,
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];

/// How the command's streams are connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Streams {
    Pipes(Stdin),
    Terminal {
        stdin: Stdin,
        detach_keys: Option<DetachKeys>,
    },
    /// Output goes to the sandbox's log, and the end is not waited for.
    Log(Logged),
}

/// What a command has whose output is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logged {
    Pipes,
    Terminal,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// By the command's own exit code.
    Exited(u8),
    /// With the sandbox, by the signal that the code tells, and why.
    Stopped(u8, &'static str),
    /// It was left running.
    Detached,
    /// By a signal to this client.
    Interrupted(u8),
}

impl Streams {
    /// Programs with a terminal need to know its kind.
    pub(crate) fn have_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. } | Self::Log(Logged::Terminal))
    }
}

impl Outcome {
    /// The exit code, when that has been said which no code tells.
    pub(crate) fn told(self, context: &Context) -> u8 {
        if let Self::Stopped(_, why) = self {
            context.ui.note(why);
        }
        self.code()
    }

    fn code(self) -> u8 {
        match self {
            Self::Exited(code) | Self::Stopped(code, _) | Self::Interrupted(code) => code,
            Self::Detached => 0,
        }
    }
}

/// Runs a command in the sandbox, which is started when it is not running.
pub(crate) fn run(
    context: &Context,
    client: &Client<'_>,
    name: &str,
    mut exec: Exec,
    streams: &Streams,
) -> Result<Outcome, Failure> {
    let transport = context.env.exec_transport()?;
    if transport == Transport::Frames {
        exec.stdio = framed(exec.stdio, streams);
    }
    let request = Request::Exec(Box::new(exec));
    up(context, client, name, |socket| {
        attempt(client, socket, &request, streams, transport)
    })
}

/// Does something with the exec socket of a sandbox, which is started when it is not running.
pub(crate) fn up<T>(
    context: &Context,
    client: &Client<'_>,
    name: &str,
    attempt: impl Fn(&str) -> Result<T, Broken>,
) -> Result<T, Failure> {
    // A sandbox that runs is reached without asking: its init listens, or it does not run.
    if let Some(socket) = client.socket_of_running(name)? {
        match attempt(&socket) {
            Err(Broken::BeforeStart) => {}
            Err(Broken::Failed(failure)) => return Err(failure),
            Ok(outcome) => return Ok(outcome),
        }
    } else {
        // No daemon is started for one that is not there.
        lookup::ensure_exists(context, client, name)?;
    }
    // The daemon hears of a killed init when the kernel has ended everything in its pid namespace; until then it says that
    // the sandbox runs, and its socket refuses. A second try at once may be in that time as well.
    for delay in START_DELAYS {
        std::thread::sleep(delay);
        let started = start(context, client, name)?;
        match attempt(&started.exec_socket) {
            Err(Broken::BeforeStart) => {}
            Err(Broken::Failed(failure)) => return Err(failure),
            Ok(outcome) => return Ok(outcome),
        }
        context
            .ui
            .debug(|| "the sandbox's init is gone; starting it again".to_owned());
    }
    Err(
        Failure::new(Kind::Engine, format!("sandbox `{name}` does not stay up"))
            .hint(format!("sbx inspect {name}")),
    )
}

/// Starts a sandbox that may be running already, and says what there is to say about it.
pub(crate) fn start(
    context: &Context,
    client: &Client<'_>,
    name: &str,
) -> Result<Started, Failure> {
    let started = start_with_other_ports(context, client, name)?;
    for notice in &started.notices {
        context.ui.note(notice);
    }
    for warning in &started.warnings {
        context.ui.warning(warning);
    }
    Ok(started)
}

/// The wire form of [`Streams`].
pub(crate) fn stdio(streams: &Streams) -> Stdio {
    match streams {
        Streams::Pipes(_) => Stdio::Pipes,
        Streams::Log(Logged::Pipes) => Stdio::Log,
        Streams::Log(Logged::Terminal) => {
            let (rows, cols) = terminal::size();
            Stdio::LogTty { rows, cols }
        }
        Streams::Terminal { .. } => {
            let (rows, cols) = terminal::size();
            Stdio::Tty { rows, cols }
        }
    }
}

/// The same streams as frames. Output to the log has no stream to the client.
fn framed(stdio: Stdio, streams: &Streams) -> Stdio {
    match (stdio, streams) {
        (Stdio::Pipes, Streams::Pipes(stdin)) => Stdio::Framed {
            stdin: match stdin {
                Stdin::Empty => FramedStdin::Empty,
                Stdin::Attached => FramedStdin::Stream,
            },
            stderr: if same_file(rustix::stdio::stdout(), rustix::stdio::stderr()) {
                FramedStderr::Stdout
            } else {
                FramedStderr::Stream
            },
        },
        (Stdio::Tty { rows, cols }, _) => Stdio::FramedTty { rows, cols },
        (other, _) => other,
    }
}

/// Why an attempt to reach init came to nothing.
pub(crate) enum Broken {
    /// Init went away before the command ran: nothing of the input is lost, so one may try again.
    BeforeStart,
    Failed(Failure),
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

fn attempt(
    client: &Client<'_>,
    socket: &str,
    request: &Request,
    streams: &Streams,
    transport: Transport,
) -> Result<Outcome, Broken> {
    let wanted = match streams {
        Streams::Terminal { .. } => Terminal::Wanted,
        Streams::Pipes(_) | Streams::Log(_) => Terminal::None,
    };
    // All of it before the connection wakes init: what it is to do then comes at once.
    let opening = init::opening(request).map_err(engine("cannot write the request"))?;
    let plumbing = match streams {
        Streams::Pipes(stdin) if transport == Transport::Descriptors => {
            Some(Plumbing::lay(*stdin).map_err(|e| engine("cannot make pipes")(e.into()))?)
        }
        Streams::Pipes(_) | Streams::Terminal { .. } | Streams::Log(_) => None,
    };
    // Descriptors under way are counted per user; with a higher limit than commands inside have, none of them can
    // use up what this message needs.
    let _ = sbx_sys::process::raise_nofile_limit();
    let init = match Init::connect(client.state(), socket, wanted, transport) {
        Ok(init) => init,
        Err(error) if is_unserved(&error) => return Err(Broken::BeforeStart),
        Err(error) => return Err(engine("cannot reach the sandbox's init")(error).into()),
    };
    // Before anything can run: from here on a signal is the command's, and must not end us instead.
    let signals = watch_signals(streams)?;
    let sent = match &plumbing {
        Some(plumbing) => init.open(&opening, &plumbing.remote()),
        None => init.open(&opening, &[]),
    };
    match sent {
        Ok(()) => {}
        Err(error) if gone(&error) => return Err(Broken::BeforeStart),
        Err(error) => return Err(engine("cannot ask the sandbox's init")(error).into()),
    }
    Session::new(init, signals, plumbing, streams.clone(), transport).run()
}

fn watch_signals(streams: &Streams) -> Result<SignalFd, Failure> {
    let mut wanted = vec![
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR1,
        Signal::USR2,
    ];
    if matches!(streams, Streams::Terminal { .. }) {
        wanted.push(Signal::WINCH);
    }
    let wanted: Vec<i32> = wanted.into_iter().map(Signal::as_raw).collect();
    SignalFd::new(&wanted).map_err(engine("cannot watch signals"))
}

pub(crate) fn gone(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset
    )
}
