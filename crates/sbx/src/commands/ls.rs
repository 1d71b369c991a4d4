//! `sbx ls`

use std::collections::BTreeMap;

use sbx_api::{PortMapping, Sandbox, Status, Usage};
use serde_json::{Value, json};

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
    let sandboxes = lookup::list(context)?;
    let usages = match args.size {
        true => usages(context, &sandboxes)?,
        false => BTreeMap::new(),
    };
    if args.json {
        let sandboxes: Vec<Value> = sandboxes
            .iter()
            .map(|sandbox| to_json(sandbox, usages.get(&sandbox.name)))
            .collect();
        return context.ui.json(&json!({"sandboxes": sandboxes}));
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
fn ports(sandbox: &Sandbox) -> String {
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

fn row(context: &Context, sandbox: &Sandbox) -> Vec<String> {
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
fn sizes(sandbox: &Sandbox, usage: Option<&Usage>) -> [String; 3] {
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
fn usages(context: &Context, sandboxes: &[Sandbox]) -> Result<BTreeMap<String, Usage>, Failure> {
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

fn to_json(sandbox: &Sandbox, usage: Option<&Usage>) -> Value {
    let paths: Vec<&str> = sandbox.workspaces.iter().map(|w| w.path.as_str()).collect();
    let mut value = json!({
        "name": sandbox.name,
        "id": sandbox.id,
        "agent": sandbox.agent,
        "status": text::status(sandbox.status),
        "backend": backend(sandbox.backend),
        "mode": sandbox.mode,
        "workspaces": paths,
        "workspace": paths.first(),
        "ports": sandbox.ports,
        "created_at": sandbox.created_at,
        "last_used_at": sandbox.last_used_at,
        "sessions": sandbox.sessions,
        "limits": sandbox.limits,
    });
    if let Some(usage) = usage
        && let Some(object) = value.as_object_mut()
    {
        let running = (sandbox.status == Status::Running).then_some(usage);
        object.insert("usage".to_owned(), json!(running));
        if let Some(bytes) = usage.disk_bytes {
            object.insert("size_bytes".to_owned(), bytes.into());
        }
    }
    if sandbox.workspaces.iter().any(|workspace| workspace.missing)
        && let Some(object) = value.as_object_mut()
    {
        object.insert("workspace_missing".to_owned(), true.into());
    }
    value
}
