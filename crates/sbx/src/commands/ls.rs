//! `sbx ls`

use sbx_api::{PortMapping, Sandbox, Status};
use serde_json::{Value, json};

use super::create::backend;
use crate::context::Context;
use crate::failure::Failure;
use crate::{lookup, text};

/// List sandboxes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print names only
    #[arg(short = 'q', long, conflicts_with = "json")]
    quiet: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let sandboxes = lookup::list(context)?;
    if args.json {
        let sandboxes: Vec<Value> = sandboxes.iter().map(to_json).collect();
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
    let home = context.env.home();
    let header = ["SANDBOX", "AGENT", "STATUS", "PORTS", "WORKSPACE"].map(str::to_owned);
    let mut rows = vec![header.to_vec()];
    for sandbox in &sandboxes {
        let workspaces: Vec<String> = sandbox
            .workspaces
            .iter()
            .map(|workspace| text::path(&workspace.path, home.as_deref()))
            .collect();
        rows.push(vec![
            sandbox.name.clone(),
            sandbox.agent.clone(),
            text::status(sandbox.status).to_owned(),
            ports(sandbox),
            workspaces.join(", "),
        ]);
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

fn to_json(sandbox: &Sandbox) -> Value {
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
    });
    if sandbox.workspaces.iter().any(|workspace| workspace.missing)
        && let Some(object) = value.as_object_mut()
    {
        object.insert("workspace_missing".to_owned(), true.into());
    }
    value
}
