//! `sbx ls`

use std::collections::BTreeMap;

use jiff::Timestamp;
use sbx_api::{Limits, PortMapping, Status, Summary, Usage};
use serde::Serialize;

use super::create::backend;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::{lookup, text};

/// What is not known, or not limited.
const NONE: &str = "-";

/// List sandboxes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print names only
    #[arg(short = 'q', long, conflicts_with = "json")]
    quiet: bool,
    /// Show what each sandbox uses, how much its own files take on disk, and its limits
    #[arg(short = 's', long, conflicts_with = "quiet")]
    size: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let sandboxes = lookup::summaries(context)?;
    let usages = match args.size {
        true => usages(context, &sandboxes)?,
        false => BTreeMap::new(),
    };
    if args.json {
        let listed = |sandbox| Listed::new(sandbox, usages.get(&sandbox.name));
        return context.ui.json(&Listing {
            sandboxes: sandboxes.iter().map(listed).collect(),
        });
    }
    if args.quiet {
        let names: String = sandboxes.iter().map(|s| format!("{}\n", s.name)).collect();
        return context.ui.data(names);
    }
    if sandboxes.is_empty() {
        context.ui.data("No sandboxes found.\n")?;
        context.ui.note("hint: sbx run shell");
        return Ok(());
    }
    let mut rows = vec![header(args.size)];
    for sandbox in &sandboxes {
        let mut row = row(context, sandbox);
        if args.size {
            row.splice(
                SIZES_AT..SIZES_AT,
                sizes(sandbox, usages.get(&sandbox.name)),
            );
        }
        rows.push(row);
    }
    let mut lines = text::table(&rows);
    if let Some(header) = lines.first_mut() {
        *header = context.ui.heading(header);
    }
    context.ui.data(lines.join("\n") + "\n")
}

/// Those that can be used now.
fn ports(sandbox: &Summary) -> String {
    let running = sandbox.status == Status::Running;
    let ports = sandbox.ports.iter().filter(|_| running);
    let ports: Vec<String> = ports.map(PortMapping::to_string).collect();
    ports.join(", ")
}

/// Before which column those of `--size` are.
const SIZES_AT: usize = 3;

fn header(with_sizes: bool) -> Vec<String> {
    let mut header = vec!["SANDBOX", "AGENT", "STATUS", "PORTS", "WORKSPACE"];
    if with_sizes {
        header.splice(SIZES_AT..SIZES_AT, ["SIZE", "MEMORY", "CPUS"]);
    }
    header.into_iter().map(str::to_owned).collect()
}

fn row(context: &Context, sandbox: &Summary) -> Vec<String> {
    let home = context.env.home();
    let workspaces: Vec<String> = sandbox
        .workspaces
        .iter()
        .map(|workspace| text::path(&workspace.path, home.as_deref()))
        .collect();
    vec![
        sandbox.name.clone(),
        text::one_line(&sandbox.agent),
        text::status(sandbox.status).to_owned(),
        ports(sandbox),
        workspaces.join(", "),
    ]
}

/// Use and limit: of its disk and its memory, and the CPUs that it may use.
fn sizes(sandbox: &Summary, usage: Option<&Usage>) -> [String; 3] {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| NONE.to_owned(), text::bytes);
    let of = |used: Option<u64>, limit: Option<u64>| match (used, limit) {
        (used, None) => bytes(used),
        (used, limit) => format!("{} / {}", bytes(used), bytes(limit)),
    };
    let running = usage.filter(|_| sandbox.status == Status::Running);
    let limits = &sandbox.limits;
    [
        of(usage.and_then(|it| it.disk_bytes), limits.disk_bytes),
        of(running.map(|it| it.memory_bytes), limits.memory_bytes),
        limits
            .cpu_millis
            .map_or_else(|| NONE.to_owned(), text::cpus),
    ]
}

/// By name; without those that cannot be measured. Looking does not start a daemon, and only a daemon can measure: files
/// of a sandbox may belong to ids that nothing else here may read as.
fn usages(context: &Context, sandboxes: &[Summary]) -> Result<BTreeMap<String, Usage>, Failure> {
    let mut usages = BTreeMap::new();
    let client = Client::new(context, Absent::Report)?;
    for sandbox in sandboxes {
        match client.usage(&sandbox.name, true) {
            Ok(usage) => drop(usages.insert(sandbox.name.clone(), usage)),
            Err(failure) if failure.kind == Kind::NoDaemon => {
                context
                    .ui
                    .note("note: no daemon is running, so sizes are not known");
                context.ui.note("hint: sbx daemon start --detach");
                break;
            }
            // Removed meanwhile.
            Err(failure) if failure.kind == Kind::NotFound => {}
            Err(failure) => context.ui.warning(&failure.message),
        }
    }
    Ok(usages)
}

#[derive(Debug, Serialize)]
struct Listing<'a> {
    sandboxes: Vec<Listed<'a>>,
}

#[derive(Debug, Serialize)]
struct Listed<'a> {
    name: &'a str,
    id: &'a str,
    agent: &'a str,
    status: &'static str,
    backend: &'static str,
    mode: &'a str,
    workspaces: Vec<&'a str>,
    /// The primary one, for readers of the older spelling.
    workspace: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    workspace_missing: bool,
    ports: &'a [PortMapping],
    created_at: Timestamp,
    last_used_at: Option<Timestamp>,
    sessions: u32,
    limits: &'a Limits,
    /// With `--size`: null for one that does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<&'a Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
}

impl<'a> Listed<'a> {
    fn new(sandbox: &'a Summary, usage: Option<&'a Usage>) -> Self {
        let workspaces = sandbox.workspaces.iter();
        let paths: Vec<&str> = workspaces.map(|it| it.path.as_str()).collect();
        let is_running = sandbox.status == Status::Running;
        Self {
            name: &sandbox.name,
            id: &sandbox.id,
            agent: &sandbox.agent,
            status: text::status(sandbox.status),
            backend: backend(sandbox.backend),
            mode: &sandbox.mode,
            workspace: paths.first().copied(),
            workspaces: paths,
            workspace_missing: sandbox.workspaces.iter().any(|it| it.missing),
            ports: &sandbox.ports,
            created_at: sandbox.created_at,
            last_used_at: sandbox.last_used_at,
            sessions: sandbox.sessions,
            limits: &sandbox.limits,
            usage: usage.map(|usage| is_running.then_some(usage)),
            size_bytes: usage.and_then(|usage| usage.disk_bytes),
        }
    }
}
