//! `sbx run`

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::Path;

use sbx_api::{CreateRequest, KeepRequest, Sandbox, Status, WorkspaceRequest};
use sbx_proto::exec::Exec;
use sbx_proto::shell::quoted;

use super::create::{self, CreateFlags};
use super::exec::add_term;
use crate::agents::{self, Agent};
use crate::attach::{self, Logged, Outcome, Streams};
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::envfile::Variables;
use crate::failure::{Failure, Kind};
use crate::netlog::{Cursor, NetworkLog, denied_hosts};
use crate::plumbing::Stdin;
use crate::{lookup, workspace};

/// Run an agent in a sandbox, creating it if necessary
///
/// The sandbox is found again by `--name`, or else by agent and directory: the same command in the same place
/// reconnects. PATH is the current directory when it is not given. Arguments after `--` go to the agent.
///
/// A sandbox stops by itself 30 seconds after its last command. `auto_stop_seconds` in the `settings.json` of the
/// state directory changes that for all of them, `"off"` switches it off; `--idle-timeout` changes it for a new one,
/// and `--detached` keeps this one up.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "sbx run [OPTIONS] [AGENT] [PATH...] [-- AGENT_ARGS...]",
    after_help = "Examples:\n  sbx run shell\n  sbx run shell . ../lib:ro\n  sbx run --name dev\n  \
                  sbx run shell -- -c 'make test'"
)]
pub(crate) struct Args {
    /// The agent (`shell`); not needed for a sandbox that exists
    #[arg(value_name = "AGENT")]
    agent: Option<OsString>,
    /// Directories to share, as SRC[:DST][:ro]; `:ro` makes one read-only [default: .]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Arguments for the agent
    #[arg(value_name = "AGENT_ARGS", last = true)]
    agent_args: Vec<OsString>,
    #[command(flatten)]
    flags: CreateFlags,
    /// Leave it running in the background and print its id; output goes to `sbx logs`
    #[arg(short = 'd', long, alias = "detach")]
    detached: bool,
    /// Remove the sandbox when the session ends, even if it existed before
    #[arg(long, conflicts_with = "detached")]
    rm: bool,
    /// Print only essentials: no summary of a new sandbox, nothing about denied hosts
    #[arg(short = 'q', long)]
    quiet: bool,
    /// `run SANDBOX` is how it is spelt, as in `docker sandbox run`.
    #[arg(skip)]
    by_name: bool,
}

impl Args {
    /// As the plugin of Docker's command line wants it.
    pub(crate) fn by_name(self) -> Self {
        Self {
            by_name: true,
            ..self
        }
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<u8, Failure> {
    args.flags.unsupported.check()?;
    let call = Call {
        context,
        client: &Client::new(context, Absent::Start)?,
        args,
        // A mistake in these leaves everything as it is.
        variables: args.flags.env.resolve(&context.env)?,
    };
    let can_create = args.agent.as_deref().is_some_and(is_agent);
    for _ in 0..MAX_RETRIES {
        let (sandbox, origin) = call.find_or_create()?;
        match call.in_sandbox(&sandbox, origin) {
            // Another client has removed it before anything ran in it: one that was found, or one that this client has
            // created and another `run --rm` has used. The next one may be about to be removed as well.
            Err(failure) if failure.kind == Kind::NotFound && can_create => {}
            other => return other,
        }
    }
    let (sandbox, origin) = call.find_or_create()?;
    call.in_sandbox(&sandbox, origin)
}

/// How often a sandbox is looked for again that was removed before anything ran in it.
const MAX_RETRIES: usize = 10;

fn is_agent(word: &OsStr) -> bool {
    word.to_str().is_some_and(agents::is_agent)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Created,
    Existing,
}

/// What one `sbx run` was asked for.
struct Call<'a> {
    context: &'a Context,
    client: &'a Client<'a>,
    args: &'a Args,
    variables: Variables,
}

impl Call<'_> {
    fn find_or_create(&self) -> Result<(Sandbox, Origin), Failure> {
        let Self {
            context,
            client,
            args,
            variables,
        } = self;
        let (agent, name, workspaces) = match Target::find(context, client, args)? {
            Target::Existing(sandbox) => return Ok((*sandbox, Origin::Existing)),
            Target::New {
                agent,
                name,
                workspaces,
            } => (agent, name, workspaces),
        };
        let request = CreateRequest {
            temporary: args.rm,
            ..create::request(context, agent, &name, workspaces, &args.flags, variables)?
        };
        let created = if args.quiet {
            create::create(context, client, &request)
        } else {
            create::create_watched(context, client, &request)
        };
        match created {
            Ok(sandbox) => Ok((sandbox, Origin::Created)),
            // Another client created it first. Check it like any other existing sandbox.
            Err(failure) if failure.kind == Kind::Conflict => {
                match Target::find(context, client, args)? {
                    Target::Existing(sandbox) => Ok((*sandbox, Origin::Existing)),
                    Target::New { .. } => Err(failure),
                }
            }
            Err(failure) => Err(failure),
        }
    }

    fn in_sandbox(&self, sandbox: &Sandbox, origin: Origin) -> Result<u8, Failure> {
        let (context, args) = (self.context, self.args);
        if args.detached {
            return self.detached(sandbox);
        }
        let log = NetworkLog::of(self.client.state())?;
        let before = log.end(&sandbox.name);
        let result = self.session(sandbox);
        if !args.quiet
            && let Some(denials) = denials(&log, &sandbox.name, before)
        {
            context.ui.note(denials);
        }
        if args.rm {
            // What was there before is kept when no command could be started in it.
            match origin {
                Origin::Existing if result.is_err() => {}
                Origin::Existing => remove(context, self.client, sandbox),
                Origin::Created => self.remove_created(sandbox),
            }
        }
        result.map(|outcome| outcome.told(context))
    }

    /// Unless another client has decided since to keep it.
    fn remove_created(&self, sandbox: &Sandbox) {
        match self.client.find(&sandbox.name) {
            // It has been removed, and what has its name is another.
            Ok(Some(found)) if found.id != sandbox.id => {}
            Ok(Some(found)) if !found.temporary => {
                if !self.args.quiet {
                    self.context.ui.note(format!(
                        "sandbox {} is kept: another client asked for that",
                        sandbox.name
                    ));
                }
            }
            // One that cannot be looked at: the removal says why.
            Ok(_) | Err(_) => remove(self.context, self.client, sandbox),
        }
    }

    fn session(&self, sandbox: &Sandbox) -> Result<Outcome, Failure> {
        let terminal = |fd: BorrowedFd<'_>| rustix::termios::isatty(fd);
        let streams = if terminal(rustix::stdio::stdin()) && terminal(rustix::stdio::stdout()) {
            Streams::Terminal {
                stdin: Stdin::Attached,
                detach_keys: None,
            }
        } else {
            Streams::Pipes(Stdin::Attached)
        };
        let exec = self.exec(sandbox, &streams)?;
        attach::run(self.context, self.client, &sandbox.name, exec, &streams)
    }

    fn detached(&self, sandbox: &Sandbox) -> Result<u8, Failure> {
        let (context, client) = (self.context, self.client);
        attach::start(context, client, &sandbox.name)?;
        client.keep(&sandbox.name, &up(sandbox))?;
        if !self.args.agent_args.is_empty() {
            let streams = Streams::Log(Logged::Pipes);
            let exec = self.exec(sandbox, &streams)?;
            attach::run(context, client, &sandbox.name, exec, &streams)?;
        }
        context.ui.data(format!("{}\n", sandbox.id))?;
        Ok(0)
    }

    fn exec(&self, sandbox: &Sandbox, streams: &Streams) -> Result<Exec, Failure> {
        let mut variables = self.variables.clone();
        if streams.have_terminal() {
            add_term(self.context, &mut variables);
        }
        Ok(Exec {
            argv: agent_of(sandbox)?.argv(&self.args.agent_args),
            own_program: false,
            env: variables.into_iter().collect(),
            user: None,
            workdir: None,
            stdio: attach::stdio(streams),
        })
    }
}

/// A sandbox of `/vm` may be for an agent of any name, of which nothing more is known.
fn agent_of(sandbox: &Sandbox) -> Result<Agent, Failure> {
    Agent::parse(&sandbox.agent)
        .map_err(|failure| failure.hint(format!("sbx exec -it {} bash", sandbox.name)))
}

/// The command's own result is what the caller waits for.
fn remove(context: &Context, client: &Client<'_>, sandbox: &Sandbox) {
    let busy = match client.remove_idle(sandbox) {
        Ok(removed) => {
            for warning in &removed.warnings {
                context.ui.warning(warning);
            }
            return;
        }
        Err(failure) => failure,
    };
    let left = match busy.kind {
        Kind::Conflict => client.keep(&sandbox.name, &temporary(sandbox)),
        _ => Err(busy),
    };
    match left {
        Ok(()) => context.ui.note(format!(
            "other commands run in sandbox {}; it is removed when it stops",
            sandbox.name
        )),
        // It stopped, and the daemon was first; what has its name by now is another.
        Err(failure) if failure.kind == Kind::NotFound => {}
        Err(failure) => context.ui.warning(&failure.message),
    }
}

/// Removed by the daemon when it stops.
fn temporary(sandbox: &Sandbox) -> KeepRequest {
    KeepRequest {
        keep_alive: false,
        temporary: true,
        id: Some(sandbox.id.clone()),
    }
}

fn up(sandbox: &Sandbox) -> KeepRequest {
    KeepRequest {
        keep_alive: true,
        temporary: false,
        id: Some(sandbox.id.clone()),
    }
}

/// Which sandbox is meant.
#[derive(Debug)]
enum Target {
    Existing(Box<Sandbox>),
    New {
        agent: Agent,
        name: sbx_engine::SandboxName,
        workspaces: Vec<WorkspaceRequest>,
    },
}

impl Target {
    fn find(context: &Context, client: &Client<'_>, args: &Args) -> Result<Self, Failure> {
        let here = workspace::here(&context.env);
        let word = match &args.agent {
            Some(word) => Some(
                word.to_str()
                    .ok_or_else(|| Failure::new(Kind::BadRequest, "the AGENT is not UTF-8"))?,
            ),
            None => None,
        };
        if let (Some(word), None) = (word, &args.flags.name)
            && !agents::is_agent(word)
            && let Some(sandbox) = lookup::list(context)?.into_iter().find(|s| s.name == word)
        {
            if !args.by_name {
                context.ui.warning(format!(
                    "`sbx run {word}` is deprecated; use `sbx run --name {word}`"
                ));
            }
            check_existing(
                args,
                &sandbox,
                None,
                &workspace::parse_all(&args.paths, &here)?,
            )?;
            return Ok(Self::Existing(Box::new(sandbox)));
        }
        let agent = word.map(Agent::parse).transpose()?;
        match (&args.flags.name, agent) {
            (Some(name), agent) => {
                let given = workspace::parse_all(&args.paths, &here)?;
                if let Some(sandbox) = find(client, name)? {
                    check_existing(args, &sandbox, agent, &given)?;
                    return Ok(Self::Existing(Box::new(sandbox)));
                }
                match agent {
                    Some(agent) => Self::new(agent, args, &here),
                    None => Err(Failure::new(
                        Kind::NotFound,
                        format!("no sandbox named `{}`", name.escape_debug()),
                    )
                    .hint(format!(
                        "name an agent to create it: sbx run --name {name} shell"
                    ))),
                }
            }
            (None, Some(agent)) => {
                let target = Self::new(agent, args, &here)?;
                if let Self::New {
                    name, workspaces, ..
                } = &target
                    && let Some(sandbox) = find(client, name.as_str())?
                {
                    check_existing(args, &sandbox, Some(agent), workspaces)?;
                    return Ok(Self::Existing(Box::new(sandbox)));
                }
                Ok(target)
            }
            (None, None) => {
                Err(Failure::usage("an AGENT or `--name` is needed").hint("sbx run shell"))
            }
        }
    }

    fn new(agent: Agent, args: &Args, here: &Path) -> Result<Self, Failure> {
        let workspaces = if args.paths.is_empty() {
            workspace::parse_all(&[OsStr::new(".")], here)?
        } else {
            workspace::parse_all(&args.paths, here)?
        };
        let name = create::name(agent, args.flags.name.as_deref(), &workspaces)?;
        Ok(Self::New {
            agent,
            name,
            workspaces,
        })
    }
}

/// One that is being removed is not found: a client that creates it anew waits for the removal. No daemon is started
/// for one that does not exist.
fn find(client: &Client<'_>, name: &str) -> Result<Option<Sandbox>, Failure> {
    if !client.state().has_daemon()? && !lookup::exists(client, name) {
        return Ok(None);
    }
    let found = client.find(name)?;
    Ok(found.filter(|sandbox| sandbox.status != Status::Removing))
}

/// What was asked for must be what the sandbox was created with; `given` is empty when nothing was.
fn check_existing(
    args: &Args,
    sandbox: &Sandbox,
    agent: Option<Agent>,
    given: &[WorkspaceRequest],
) -> Result<(), Failure> {
    let name = &sandbox.name;
    if let Some(agent) = agent
        && agent.name() != sandbox.agent
    {
        return Err(conflict(format!(
            "sandbox `{name}` was created for agent `{}`, not `{}`",
            sandbox.agent,
            agent.name()
        ))
        .hint(format!("sbx run --name {name}")));
    }
    if args.flags.platform.is_some() {
        return Err(only_for_new("--platform", name));
    }
    if args.flags.cache && sandbox.cache.is_none() {
        return Err(only_for_new("--cache", name));
    }
    if args.flags.git_write {
        return Err(only_for_new("--git-write", name));
    }
    if args.flags.idle_timeout.is_some() {
        return Err(only_for_new("--idle-timeout", name));
    }
    if !args.flags.deny_network.is_empty() {
        let resources = quoted(&args.flags.deny_network.join(","));
        return Err(only_for_new("--deny-network", name).hint(format!(
            "sbx policy deny network --sandbox {name} {resources}"
        )));
    }
    // Those of `sbx mount` are not named here.
    let mut stored = sandbox.workspaces.iter().filter(|it| !it.added);
    let mut asked = given.iter();
    if let (Some(stored), Some(asked)) = (stored.next(), asked.next())
        && stored.path != asked.path
    {
        return Err(conflict(format!(
            "sandbox `{name}` has workspace `{}`, not `{}`",
            stored.path, asked.path
        ))
        .hint(format!(
            "choose another name: sbx run --name {name}-2 {} {}",
            sandbox.agent,
            quoted(&asked.path)
        )));
    }
    let place = |target: &Option<String>, path: &str| {
        let target = target.as_deref().filter(|target| *target != path);
        target.map(str::to_owned)
    };
    let primary = given
        .first()
        .zip(sandbox.workspaces.first().filter(|it| !it.added));
    let other_primary = primary.is_some_and(|(asked, stored)| {
        asked.readonly != stored.readonly
            || place(&asked.target, &asked.path) != place(&stored.target, &stored.path)
    });
    let asked: Vec<_> = asked
        .map(|w| (&w.path, place(&w.target, &w.path), w.readonly))
        .collect();
    let stored: Vec<_> = stored
        .map(|w| (&w.path, place(&w.target, &w.path), w.readonly))
        .collect();
    if other_primary || (!asked.is_empty() && asked != stored) {
        return Err(conflict(format!(
            "the workspaces of sandbox `{name}` are fixed when it is created"
        ))
        .hint(format!(
            "sbx mount {name} PATH, sbx rm {name}, or choose another name with --name"
        )));
    }
    Ok(())
}

/// What the network policy refused since the mark, in a line; a log that cannot be read is not an error.
fn denials(log: &NetworkLog, name: &str, mut mark: Cursor) -> Option<String> {
    let entries = log.read_on(name, &mut mark).ok()?;
    let (hosts, them) = match denied_hosts(&entries.lines) {
        0 => return None,
        1 => ("1 host was".to_owned(), "it"),
        several => (format!("{several} hosts were"), "them"),
    };
    Some(format!(
        "{hosts} denied by the network policy; sbx policy log {name} shows {them}"
    ))
}

fn only_for_new(flag: &str, name: &str) -> Failure {
    conflict(format!(
        "{flag} can only be used when creating a new sandbox, and `{name}` exists"
    ))
}

fn conflict(message: String) -> Failure {
    Failure::new(Kind::Conflict, message)
}
