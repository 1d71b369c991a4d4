//! `sbx exec`

use std::ffi::OsString;
use std::path::PathBuf;

use sbx_engine::SandboxName;
use sbx_proto::OsBytes;
use sbx_proto::exec::Exec;
use sbx_proxy::audit::Part;

use crate::attach::{self, Logged, Outcome, Streams};
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::detach_keys::DetachKeys;
use crate::envfile::{EnvArgs, Variables};
use crate::failure::{Failure, Kind};
use crate::netlog::{Cursor, NetworkLog};
use crate::plumbing::Stdin;
use crate::statusfile::{By, StatusFile};

/// Run a command in a sandbox
///
/// Starts the sandbox when it is stopped. The exit code is the command's own; 125 means that the engine failed,
/// 126 that the command cannot be executed, 127 that it was not found.
///
/// The command ends when this client does, also when it is killed (SIGTERM, SIGKILL half a second later), unless it was
/// started with `-d`. With `-it`, ctrl-p followed by ctrl-q leaves it running; what it prints from then on is in `sbx logs`.
#[derive(Debug, Default, clap::Args)]
#[command(override_usage = "sbx exec [OPTIONS] SANDBOX COMMAND [ARG...]")]
pub(crate) struct Args {
    /// Run in the background; `sbx logs` shows the output
    #[arg(short = 'd', long)]
    detach: bool,
    /// Keys that leave a terminal session without ending its command, or `none` [default: ctrl-p,ctrl-q]
    #[arg(long, value_name = "KEYS")]
    detach_keys: Option<String>,
    #[command(flatten)]
    env: EnvArgs,
    /// Pass stdin on to the command
    #[arg(short = 'i', long)]
    interactive: bool,
    #[arg(long, hide = true)]
    privileged: bool,
    /// Give the command a terminal
    #[arg(short = 't', long)]
    tty: bool,
    /// User to run as [default: agent]
    #[arg(short = 'u', long, value_name = "NAME|UID[:GROUP|GID]")]
    user: Option<String>,
    /// Working directory, from the primary workspace when it is relative [default: the primary workspace]
    #[arg(short = 'w', long, value_name = "DIR")]
    workdir: Option<OsString>,
    /// Write how the command ended to a file, as JSON
    #[arg(long, value_name = "FILE")]
    status_file: Option<PathBuf>,
    /// The sandbox, then the command with its arguments
    #[arg(
        value_name = "SANDBOX COMMAND [ARG]",
        required = true,
        trailing_var_arg = true
    )]
    words: Vec<OsString>,
}

impl Args {
    /// Without a flag.
    pub(crate) fn plain(words: &[OsString]) -> Self {
        Self {
            words: words.to_vec(),
            ..Self::default()
        }
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<u8, Failure> {
    let status = match &args.status_file {
        Some(path) => Some(StatusFile::prepare(path)?),
        None => None,
    };
    let denials = status.as_ref().and_then(|_| Denials::begin(context, args));
    let result = session(context, args);
    if let Some(status) = status {
        let (by, code) = match &result {
            Ok(Outcome::Exited(code)) => (By::Command, *code),
            Ok(Outcome::Stopped(code, why)) => (By::Engine(why), *code),
            Ok(Outcome::Detached) => (By::Engine("detached"), 0),
            Ok(Outcome::Interrupted(code)) => (By::Engine("interrupted"), *code),
            Err(failure) => (
                By::Engine(&failure.message),
                failure.kind.session_exit_code(),
            ),
        };
        let denied = denials.map(|denials| denials.has_more());
        status.write(by, code, denied)?;
    }
    result.map(|outcome| outcome.told(context))
}

/// How far the log of denials was when the command began. A denial is in it before the program inside knows of it.
struct Denials<'a> {
    log: NetworkLog,
    sandbox: &'a str,
    before: Cursor,
}

impl<'a> Denials<'a> {
    /// `None` where that cannot be known.
    fn begin(context: &Context, args: &'a Args) -> Option<Self> {
        let (sandbox, _) = split(&args.words).ok()?;
        // It becomes a file's name.
        SandboxName::parse(sandbox).ok()?;
        let log = NetworkLog::of(&context.state().ok()?).ok()?;
        let before = log.end(sandbox);
        Some(Self {
            log,
            sandbox,
            before,
        })
    }

    fn has_more(&self) -> bool {
        let now = self.log.end(self.sandbox);
        now.has_moved(&self.before, Part::Denied)
    }
}

fn session(context: &Context, args: &Args) -> Result<Outcome, Failure> {
    let (name, command) = split(&args.words)?;
    if args.privileged {
        return Err(Failure::new(
            Kind::BadRequest,
            "`--privileged` is not offered: a sandbox has no privileges on the host",
        )
        .hint("use `-u root` to be root inside"));
    }
    if args.detach && args.status_file.is_some() {
        return Err(Failure::usage(
            "`--status-file` cannot be used with `--detach`: sbx does not wait for the command to end",
        )
        .hint("leave out one of them"));
    }
    let streams = streams(args)?;
    let mut variables = args.env.resolve(&context.env)?;
    if streams.have_terminal() {
        add_term(context, &mut variables);
    }
    let client = Client::new(context, Absent::Start)?;
    let exec = Exec {
        argv: command
            .iter()
            .map(|arg| OsBytes::from(arg.as_os_str()))
            .collect(),
        own_program: false,
        env: variables.into_iter().collect(),
        user: args.user.clone(),
        workdir: args.workdir.clone().map(OsBytes::from),
        stdio: attach::stdio(&streams),
    };
    attach::run(context, &client, name, exec, &streams)
}

/// Programs with a terminal need to know its kind.
pub(crate) fn add_term(context: &Context, variables: &mut Variables) {
    let term = context.env.text("TERM").unwrap_or("xterm-256color");
    variables
        .entry("TERM".into())
        .or_insert_with(|| term.into());
}

/// Everything after the sandbox is the command, hyphens and all.
fn split(words: &[OsString]) -> Result<(&str, &[OsString]), Failure> {
    let (name, command) = words
        .split_first()
        .ok_or_else(|| Failure::usage("a SANDBOX is needed"))?;
    let name = name
        .to_str()
        .ok_or_else(|| Failure::new(Kind::NotFound, "the sandbox name is not valid UTF-8"))?;
    let command = match command.split_first() {
        Some((dashes, rest)) if dashes == "--" => rest,
        _ => command,
    };
    if command.is_empty() {
        return Err(Failure::usage(format!("no COMMAND to run in `{name}`"))
            .hint(format!("sbx exec -it {name} bash")));
    }
    Ok((name, command))
}

fn streams(args: &Args) -> Result<Streams, Failure> {
    // Empty is docker's way to say the usual ones.
    let detach_keys = match args.detach_keys.as_deref() {
        None | Some("") => Some(DetachKeys::usual()),
        Some("none") => None,
        Some(keys) => Some(DetachKeys::parse(keys)?),
    };
    if args.detach {
        let logged = if args.tty {
            Logged::Terminal
        } else {
            Logged::Pipes
        };
        return Ok(Streams::Log(logged));
    }
    let stdin = if args.interactive {
        Stdin::Attached
    } else {
        Stdin::Empty
    };
    if !args.tty {
        return Ok(Streams::Pipes(stdin));
    }
    if stdin == Stdin::Attached && !rustix::termios::isatty(rustix::stdio::stdin()) {
        return Err(
            Failure::new(Kind::BadRequest, "the input device is not a TTY").hint("leave out `-t`"),
        );
    }
    Ok(Streams::Terminal { stdin, detach_keys })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_after_the_sandbox_are_the_command() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let all = words("box ls -la --json");
        assert_eq!(split(&all).unwrap(), ("box", &words("ls -la --json")[..]));
        let dashes = words("box -- ls --");
        assert_eq!(split(&dashes).unwrap().1, &words("ls --")[..]);
        assert_eq!(split(&words("box")).unwrap_err().kind, Kind::Usage);
    }
}
