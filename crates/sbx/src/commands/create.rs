//! `sbx create`

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use sbx_api::{Backend, Caller, CreateRequest, Sandbox, WorkspaceRequest};
use sbx_engine::SandboxName;
use sbx_policy::Pattern;

use crate::agents::Agent;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::envfile::{self, EnvArgs, Variables};
use crate::failure::{Failure, Kind};
use crate::unsupported::UnsupportedFlags;
use crate::{text, workspace};

const PROGRESS: &str = "Creating the sandbox (the first one also prepares the template)...";

/// Limit of a request to the daemon, in bytes.
const MAX_ENVIRONMENT: usize = 1 << 20;

/// Create a sandbox without attaching to it
///
/// The first PATH is the primary workspace, in which commands start. Workspaces are mounted at the same absolute
/// path as on the host. The sandbox stays running and stops itself 30 seconds after its last command; see
/// `sbx run --help`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "sbx create [OPTIONS] AGENT PATH [PATH...]")]
pub(crate) struct Args {
    /// Agent to create the sandbox for (`shell`)
    #[arg(value_name = "AGENT", required = true)]
    agent: Option<String>,
    /// Directories to share; add `:ro` to make one read-only
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) flags: CreateFlags,
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
    /// Fail unless this machine has the given platform, such as linux/amd64
    #[arg(long, value_name = "OS/ARCH")]
    pub(crate) platform: Option<String>,
    /// Deny these hosts, whatever the network policy allows (can be repeated)
    #[arg(long, value_name = "RESOURCES")]
    pub(crate) deny_network: Vec<String>,
    #[command(flatten)]
    pub(crate) unsupported: UnsupportedFlags,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    args.flags.unsupported.check()?;
    let agent = Agent::parse(args.agent.as_deref().unwrap_or_default())?;
    let workspaces = workspace::parse_all(&args.paths, &workspace::here(&context.env))?;
    let name = name(agent, args.flags.name.as_deref(), &workspaces)?;
    let client = Client::new(context, Absent::Start)?;
    let variables = args.flags.env.resolve(&context.env)?;
    let request = request(context, agent, &name, workspaces, &args.flags, &variables)?;
    let sandbox = if args.quiet {
        create(context, &client, &request)?
    } else {
        create_watched(context, &client, &request)?
    };
    context.ui.data(format!("{}\n", sandbox.name))
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
    let primary = workspaces
        .first()
        .ok_or_else(|| Failure::usage("missing workspace PATH"))?;
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
        temporary: false,
    })
}

pub(crate) fn create(
    context: &Context,
    client: &Client<'_>,
    request: &CreateRequest,
) -> Result<Sandbox, Failure> {
    let created = client.create(request)?;
    for notice in &created.notices {
        context.ui.note(notice);
    }
    for warning in &created.sandbox.warnings {
        context.ui.warning(warning);
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
        let path = text::one_line(&workspace.path);
        ui.note(format!("workspace  {path} ({access})"));
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
