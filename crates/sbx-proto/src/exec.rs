//! What a client or the daemon says to a running init, and what init answers.
//!
//! Where client and init share a kernel, the bytes of a command's stdin, stdout and stderr do not travel here: the
//! client hands over pipe ends (`SCM_RIGHTS`) with the [`Request::Exec`] message, or receives a pty master with
//! [`Reply::Started`], and init is in the control path only. Where they do not, the command is asked for with
//! [`Stdio::Framed`] or [`Stdio::FramedTty`], and its streams are frames of the same connection: see [`crate::stream`].

use serde::{Deserialize, Serialize};

use crate::OsBytes;
use crate::plan::Node;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Request {
    /// First message of every connection. The first descriptor of the connection comes with it: the pid namespace of the
    /// client, which tells the host from another sandbox. Both have the same uid in the modes of an ordinary user.
    Hello { protocol: u32, role: Role },
    /// Start a command. With [`Stdio::Pipes`] the message carries exactly three descriptors.
    Exec(Box<Exec>),
    /// Send a signal to the process group of this connection's command.
    Signal { signal: i32 },
    /// The terminal of this connection's command has a new size.
    Resize { rows: u16, cols: u16 },
    /// The client leaves its command: what its terminal shows from now on goes to the sandbox's log.
    Detach,
    /// Daemon only: end every process (SIGTERM, after `grace_ms` SIGKILL), hand files over, exit. With `if_idle` the
    /// answer is [`Reply::Busy`] and nothing ends, when a command was given meanwhile.
    Shutdown { grace_ms: u64, if_idle: bool },
    /// Daemon only: the sockets that the sandbox's network ends at. A client gets no answer.
    Listeners,
    /// New sockets of the sandbox's network, neither bound nor connected, by which its servers can be reached from
    /// outside. At most [`MAX_SOCKETS`].
    Sockets { kind: SocketKind, count: u8 },
    /// Daemon only: the namespaces that a plan for a running sandbox names, as
    /// [`RUNNING_DESCRIPTORS`](crate::plan::RUNNING_DESCRIPTORS) has them.
    Namespaces,
    /// Daemon only: programs inside have a writable workspace that they did not have before. A mount of it comes with the
    /// message; files that root makes there are handed over.
    Share,
    /// Daemon only: they have this one no more.
    Unshare { node: Node },
}

/// More than one message has reason to carry.
pub const MAX_SOCKETS: u8 = 16;

/// The address family and transport of a new socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketKind {
    Tcp4,
    Tcp6,
    Udp4,
    Udp6,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Runs one command.
    Client,
    /// Is told how many commands run; may shut the sandbox down.
    Daemon,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    pub argv: Vec<OsBytes>,
    /// Execute init's own program, whatever the first of them says: the others tell it what to do ([`crate::tool`]).
    #[serde(default)]
    pub own_program: bool,
    /// Added to (and stronger than) the sandbox's own environment.
    pub env: Vec<(OsBytes, OsBytes)>,
    /// `name|uid[:group|gid]` as docker takes it; the agent user when absent.
    pub user: Option<String>,
    /// The primary workspace when absent.
    pub workdir: Option<OsBytes>,
    pub stdio: Stdio,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Stdio {
    /// Three pipe ends come with the message: stdin, stdout, stderr.
    Pipes,
    /// Init makes a pty in the sandbox and sends its master with [`Reply::Started`].
    Tty { rows: u16, cols: u16 },
    /// Detached: stdin is empty, output goes to the sandbox's log. The command outlives the connection.
    Log,
    /// As [`Stdio::Log`], with a pty: what it shows goes to the log, and it has no input.
    LogTty { rows: u16, cols: u16 },
    /// Init makes the pipes and relays them as frames.
    Framed {
        stdin: FramedStdin,
        stderr: FramedStderr,
    },
    /// Init makes a pty and relays it as frames: stdin is what is typed, stdout what is shown.
    FramedTty { rows: u16, cols: u16 },
}

/// What a framed command reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FramedStdin {
    /// End of file from the beginning.
    Empty,
    /// What the client sends.
    Stream,
}

/// Where a framed command's stderr goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FramedStderr {
    Stream,
    /// To the same pipe as stdout: the caller's two streams are one file, and the order of what is written matters.
    Stdout,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Reply {
    Hello {
        protocol: u32,
        sandbox: String,
    },
    /// The command runs. `id` names it in the log.
    Started {
        id: u64,
    },
    /// The command ended; last message of a client's connection. Frames of its output may follow.
    Exited {
        status: ExitStatus,
        #[serde(default)]
        by: Cause,
    },
    /// The command could not be started; last message of a client's connection.
    Failed {
        kind: FailKind,
        message: String,
    },
    /// Daemon only: sent after the hello and whenever the number changes.
    Commands {
        running: u32,
    },
    /// Daemon only: it goes on, since it is not idle.
    Busy,
    /// Daemon only: it ends, since the host took a mount in a writable workspace away.
    MountLost,
    /// Daemon only: the last message of an init that has ended everything and handed all files over.
    HandedOver,
    /// The answer to [`Request::Listeners`]; the sockets come with it, in the order of the list.
    Listeners(Listeners),
    /// The answer to [`Request::Sockets`]; the sockets come with it.
    Sockets {
        kind: SocketKind,
    },
    /// The answer to [`Request::Namespaces`]; they come with it.
    Namespaces,
    /// The answer to [`Request::Share`] and [`Request::Unshare`].
    Done,
}

/// What ended a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    #[default]
    Itself,
    /// The sandbox was stopped.
    Stop,
    /// The sandbox ended, for the reason of [`Reply::MountLost`].
    MountLost,
}

/// Where the traffic ends up that programs send to other hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listeners {
    pub redirect: Redirect,
    pub sockets: Vec<ListenerKind>,
}

/// How packets to any address get to the listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Redirect {
    /// By rules of nf_tables, from every port: the sandbox's ports are its own.
    Nft,
    /// By listening on a few well-known ports, which programs inside then cannot have.
    Ports,
}

/// What a listener of the sandbox's network is: its protocol and address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListenerKind {
    Tcp4,
    Tcp6,
    DnsUdp4,
    DnsUdp6,
    DnsTcp4,
    DnsTcp6,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
}

impl ExitStatus {
    /// The shell's convention: 128 + the signal's number.
    pub fn code(self) -> u8 {
        match self {
            Self::Code(code) => u8::try_from(code & 0xff).unwrap_or(255),
            Self::Signal(signal) => u8::try_from((128 + signal) & 0xff).unwrap_or(255),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailKind {
    /// The program was not found: exit code 127.
    NotFound,
    /// The program is there but cannot be executed: exit code 126.
    NotExecutable,
    /// The request itself is wrong (unknown user, missing working directory): exit code 125.
    BadRequest,
    /// The sandbox is stopping: the daemon starts it again when asked.
    Stopping,
    /// The engine failed: exit code 125.
    Engine,
}

impl FailKind {
    /// docker's exit codes.
    pub fn code(self) -> u8 {
        match self {
            Self::NotFound => 127,
            Self::NotExecutable => 126,
            Self::BadRequest | Self::Stopping | Self::Engine => 125,
        }
    }
}
