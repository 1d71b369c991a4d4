//! `docker sandbox ls`

use sbx_api::Sandbox;
use sbx_engine::{SandboxName, StateDir};
use serde_json::{Value, json};

use crate::context::Context;
use crate::failure::Failure;
use crate::{lookup, text};

/// Of a workspace in the table, in characters.
const MAX_WIDTH: usize = 50;

/// List sandboxes
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Do not shorten paths
    #[arg(long)]
    no_trunc: bool,
    /// Print names only
    #[arg(short = 'q', long, conflicts_with = "json")]
    quiet: bool,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let sandboxes = lookup::list(context)?;
    if args.json {
        let state = context.state()?;
        let vms: Vec<Value> = sandboxes.iter().map(|it| to_json(it, &state)).collect();
        return context.ui.json(&json!({"vms": vms}));
    }
    if args.quiet {
        let names: String = sandboxes.iter().map(|s| format!("{}\n", s.name)).collect();
        return context.ui.data(names);
    }
    let header = ["SANDBOX", "AGENT", "STATUS", "WORKSPACE"].map(str::to_owned);
    let mut rows = vec![header.to_vec()];
    let home = context.env.home().filter(|_| !args.no_trunc);
    for sandbox in &sandboxes {
        let workspaces = sandbox.workspaces.iter();
        let paths: Vec<String> = workspaces
            .map(|workspace| text::path(&workspace.path, home.as_deref()))
            .map(|path| {
                if args.no_trunc {
                    path
                } else {
                    shortened(&path)
                }
            })
            .collect();
        rows.push(vec![
            sandbox.name.clone(),
            text::one_line(&sandbox.agent),
            text::status(sandbox.status).to_owned(),
            paths.join(", "),
        ]);
    }
    let mut lines = text::table(&rows);
    if let Some(header) = lines.first_mut() {
        *header = context.ui.heading(header);
    }
    context.ui.data(lines.join("\n") + "\n")
}

/// The end says more than the beginning.
fn shortened(path: &str) -> String {
    let length = path.chars().count();
    if length <= MAX_WIDTH {
        return path.to_owned();
    }
    let end: String = path.chars().skip(length + 1 - MAX_WIDTH).collect();
    format!("…{end}")
}

fn to_json(sandbox: &Sandbox, state: &StateDir) -> Value {
    let paths: Vec<&str> = sandbox.workspaces.iter().map(|w| w.path.as_str()).collect();
    let name = SandboxName::parse(&sandbox.name).ok();
    json!({
        "name": sandbox.name,
        "agent": sandbox.agent,
        "status": text::status(sandbox.status),
        "socket_path": name.map(|name| state.sandbox(&name).docker_socket()),
        // A machine had several once.
        "sandbox_count": 1,
        "workspaces": paths,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_lose_their_beginning() {
        assert_eq!(shortened("/short"), "/short");
        let long = shortened(&format!("/{}/end", "ü".repeat(100)));
        assert_eq!(long.chars().count(), MAX_WIDTH);
        assert!(long.starts_with('…') && long.ends_with("ü/end"));
    }
}
