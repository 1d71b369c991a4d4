//! `sbx create`

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

use sbx_api::{Backend, CacheState, Caller, CreateRequest, Sandbox, WorkspaceRequest};
use sbx_engine::SandboxName;
use sbx_engine::state::SAVED;
use sbx_policy::Pattern;

use super::ports::{check_publish, warn_if_open, with_other_ports};
use crate::agents::Agent;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::envfile::{self, EnvArgs, Variables};
use crate::failure::{Failure, Kind};
use crate::limit_args::LimitFlags;
use crate::unsupported::UnsupportedFlags;
use crate::{text, time_args, workspace};

const FIRST: &str =
    "Preparing the template from this machine's system; the next sandbox starts at once...";
const PROGRESS: &str = "Creating the sandbox (the first one also prepares the template)...";

/// Limit of a request to the daemon, in bytes.
const MAX_ENVIRONMENT: usize = 1 << 20;

/// Create a sandbox without attaching to it
///
/// The first PATH is the primary workspace, in which commands start. Workspaces are mounted at the same absolute
/// path as on the host, or at DST. Without a PATH nothing is shared: commands start in /home/agent/workspace, and the
/// name is AGENT and a number. The sandbox stays running and stops itself 30 seconds after its last command, or as
/// `--idle-timeout` says; see `sbx run --help`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "sbx create [OPTIONS] AGENT [PATH...]")]
pub(crate) struct Args {
    /// Agent to create the sandbox for (`shell`)
    #[arg(value_name = "AGENT", required = true)]
    agent: Option<String>,
    /// Directories to share, as SRC[:DST][:ro]; `:ro` makes one read-only
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) flags: CreateFlags,
    /// Remove it when it stops; nothing of its own is synced to the disk
    #[arg(long)]
    rm: bool,
    /// Print only the name
    #[arg(short = 'q', long)]
    quiet: bool,
}

/// Flags of both `create` and `run`.
#[derive(Debug, Default, Clone, clap::Args)]
pub(crate) struct CreateFlags {
    /// Name of the sandbox [default: AGENT-DIRECTORY]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) env: EnvArgs,
    /// Template to create it from: `host`, this machine's own system, or one of `sbx template ls` [default: host]
    #[arg(short = 't', long, value_name = "TEMPLATE")]
    pub(crate) template: Option<String>,
    /// Fail unless this machine has the given platform, such as linux/amd64
    #[arg(long, value_name = "OS/ARCH")]
    pub(crate) platform: Option<String>,
    /// Deny these hosts, whatever the network policy allows (can be repeated)
    #[arg(long, value_name = "RESOURCES")]
    pub(crate) deny_network: Vec<String>,
    /// Stop it this long after its last command, such as 10m or 2h; 0 means never [default: 30s, or as in settings.json]
    #[arg(long, value_name = "DURATION")]
    pub(crate) idle_timeout: Option<String>,
    /// Publish a port, as `sbx ports --publish` does (can be repeated)
    #[arg(short = 'p', long, value_name = "PORT")]
    pub(crate) publish: Vec<String>,
    /// Keep the caches of tools for the next sandbox of this repository that has --cache
    ///
    /// What one sandbox writes there, the next one may execute. The host never uses it; see `sbx cache`.
    #[arg(long)]
    pub(crate) cache: bool,
    /// Allow commits in a linked git worktree: opens objects, refs and reflogs of its repository, and its own index and HEAD
    ///
    /// Without it the repository is shared read-only. Programs inside can then also change every branch and object.
    #[arg(long)]
    pub(crate) git_write: bool,
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
    #[command(flatten)]
    pub(crate) unsupported: UnsupportedFlags,
    /// Print progress also if stderr is not a terminal
    #[arg(long, hide = true)]
    pub(crate) progress: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    args.flags.unsupported.check()?;
    let agent = Agent::parse(args.agent.as_deref().unwrap_or_default())?;
    let workspaces = workspace::parse_all(&args.paths, &workspace::here(&context.env))?;
    let name = name(agent, args.flags.name.as_deref(), &workspaces)?;
    let client = Client::new(context, Absent::Start)?;
    let variables = args.flags.env.resolve(&context.env)?;
    let request = CreateRequest {
        temporary: args.rm,
        ..request(context, agent, &name, workspaces, &args.flags, &variables)?
    };
    if args.flags.progress && is_first(context)? {
        context.ui.note(FIRST);
    }
    let sandbox = if args.quiet {
        create(context, &client, &request)?
    } else {
        create_watched(context, &client, &request)?
    };
    context.ui.data(format!("{}\n", sandbox.name))
}

/// Whether no template was built yet, which takes longer than everything else.
fn is_first(context: &Context) -> Result<bool, Failure> {
    let templates = context.state()?.templates();
    let mut entries = std::fs::read_dir(templates).into_iter().flatten().flatten();
    // Saved ones are beside it.
    Ok(entries.all(|entry| entry.file_name() == SAVED))
}

/// The requested name, or one derived from the agent and the primary workspace.
pub(crate) fn name(
    agent: Agent,
    asked: Option<&str>,
    workspaces: &[WorkspaceRequest],
) -> Result<SandboxName, Failure> {
    if let Some(asked) = asked {
        return Ok(SandboxName::parse(asked)?);
    }
    let Some(primary) = workspaces.first() else {
        let unique = RandomState::new().build_hasher().finish();
        return Ok(SandboxName::without_workspace(
            agent.name(),
            &unique.to_string(),
        )?);
    };
    Ok(SandboxName::derive(agent.name(), Path::new(&primary.path))?)
}

/// `variables` are the resolved `--env` and `--env-file` of `flags`.
pub(crate) fn request(
    context: &Context,
    agent: Agent,
    name: &SandboxName,
    workspaces: Vec<WorkspaceRequest>,
    flags: &CreateFlags,
    variables: &Variables,
) -> Result<CreateRequest, Failure> {
    check_publish(&flags.publish)?;
    let env = envfile::as_text(variables)?;
    check_size(&env)?;
    Ok(CreateRequest {
        name: Some(name.as_str().to_owned()),
        agent: agent.name().to_owned(),
        workspaces,
        env,
        caller: caller(context)?,
        platform: flags.platform.clone(),
        deny_network: denied(flags)?,
        idle_seconds: idle_seconds(flags)?,
        publish: flags.publish.clone(),
        cache: flags.cache,
        git_write: flags.git_write,
        temporary: false,
        limits: flags.limits.limits()?,
        limits_preferred: flags.limits.preferred()?,
        template: flags.template.clone(),
    })
}

pub(crate) fn create(
    context: &Context,
    client: &Client<'_>,
    request: &CreateRequest,
) -> Result<Sandbox, Failure> {
    let created = with_other_ports(context, &request.publish, |publish| {
        client.create(&CreateRequest {
            publish: publish.to_vec(),
            ..request.clone()
        })
    })?;
    for notice in &created.notices {
        context.ui.note(notice);
    }
    for warning in &created.sandbox.warnings {
        context.ui.warning(warning);
    }
    for port in &created.sandbox.ports {
        warn_if_open(context, port);
    }
    Ok(created.sandbox)
}

/// A clearer error than the daemon's, which only sees a request that is too large.
fn check_size(env: &BTreeMap<String, String>) -> Result<(), Failure> {
    let size: usize = env.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size < MAX_ENVIRONMENT {
        return Ok(());
    }
    let message = format!("environment too large: {size} bytes, the limit is 1 MiB");
    Err(Failure::new(Kind::BadRequest, message)
        .hint("put large values into a file in the workspace"))
}

/// [`create`] with progress and a summary on a terminal.
pub(crate) fn create_watched(
    context: &Context,
    client: &Client<'_>,
    request: &CreateRequest,
) -> Result<Sandbox, Failure> {
    let sandbox = context
        .ui
        .with_progress(PROGRESS, || create(context, client, request))?;
    summary(context, &sandbox);
    Ok(sandbox)
}

fn idle_seconds(flags: &CreateFlags) -> Result<Option<u64>, Failure> {
    match flags.idle_timeout.as_deref() {
        None => Ok(None),
        Some("0") => Ok(Some(0)),
        Some(text) => time_args::duration(text).map(Some),
    }
}

fn denied(flags: &CreateFlags) -> Result<Vec<String>, Failure> {
    let mut denied = Vec::new();
    for text in &flags.deny_network {
        let patterns = Pattern::parse_typed_list(text)
            .map_err(|error| Failure::new(Kind::BadRequest, error.to_string()))?;
        denied.extend(patterns.iter().map(Pattern::to_string));
    }
    Ok(denied)
}

/// A summary of the new sandbox, on a terminal only.
fn summary(context: &Context, sandbox: &Sandbox) {
    let ui = &context.ui;
    if !ui.watched() {
        return;
    }
    ui.note(format!("sandbox    {}", sandbox.name));
    ui.note(format!("agent      {}", sandbox.agent));
    for workspace in &sandbox.workspaces {
        let access = if workspace.readonly { "ro" } else { "rw" };
        let place = text::one_line(&text::workspace(workspace));
        ui.note(format!("workspace  {place} ({access})"));
    }
    for port in &sandbox.ports {
        ui.note(format!("port       {port}"));
    }
    if let Some(cache) = sandbox.cache {
        ui.note(format!("cache      {}", cache_state(cache)));
    }
    ui.note(format!("template   {}", sandbox.template));
    ui.note(format!(
        "backend    {} ({})",
        backend(sandbox.backend),
        sandbox.mode
    ));
    ui.note(format!("✓ Created sandbox {}", sandbox.name));
    ui.note(format!("  to connect: sbx run --name {}", sandbox.name));
}

pub(crate) fn cache_state(cache: CacheState) -> &'static str {
    match cache {
        CacheState::Kept => "kept for the next sandbox of this repository",
        CacheState::Busy => "not kept: another sandbox of this repository uses it",
    }
}

pub(crate) fn backend(backend: Backend) -> &'static str {
    match backend {
        Backend::Namespace => "namespace",
        Backend::Microvm => "microvm",
    }
}

/// What a sandbox takes over from the caller.
fn caller(context: &Context) -> Result<Caller, Failure> {
    let env = &context.env;
    let text = |key: &str| match env.get(key) {
        None => Ok(String::new()),
        Some(value) => value.to_str().map(str::to_owned).ok_or_else(|| {
            Failure::new(
                Kind::BadRequest,
                format!("variable {key} is not valid UTF-8"),
            )
        }),
    };
    Ok(Caller {
        home: text("HOME")?,
        path: text("PATH")?,
        env: env.for_sandbox(),
        // The daemon asks git.
        ..Caller::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_that_is_too_large_is_refused() {
        let env = |size| BTreeMap::from([("K".to_owned(), "v".repeat(size))]);
        assert_eq!(check_size(&env(1 << 19)), Ok(()));
        let failure = check_size(&env(1 << 20)).unwrap_err();
        assert_eq!(failure.kind, Kind::BadRequest);
        assert!(failure.message.contains("environment"), "{failure:?}");
    }

    #[test]
    fn idle_timeouts() {
        let of = |text: Option<&str>| {
            idle_seconds(&CreateFlags {
                idle_timeout: text.map(str::to_owned),
                ..CreateFlags::default()
            })
        };
        assert_eq!(of(None), Ok(None));
        assert_eq!(of(Some("0")), Ok(Some(0)));
        assert_eq!(of(Some("1h30m")), Ok(Some(5400)));
        for bad in ["", "30", "-1s", "0s", "soon"] {
            assert_eq!(of(Some(bad)).unwrap_err().kind, Kind::BadRequest, "{bad}");
        }
    }

    #[test]
    fn denied_hosts_are_normalised() {
        let of = |texts: &[&str]| {
            denied(&CreateFlags {
                deny_network: texts.iter().map(|text| (*text).to_owned()).collect(),
                ..CreateFlags::default()
            })
        };
        let all = of(&["A.test, *.b.test", "[::1]:443"]).unwrap();
        assert_eq!(all, ["a.test", "*.b.test", "[::1]:443"]);
        assert_eq!(of(&["::1:443"]).unwrap_err().kind, Kind::BadRequest);
    }
}
