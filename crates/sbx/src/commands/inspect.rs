//! `sbx inspect`

use jiff::Timestamp;
use sbx_api::{DaemonInfo, MountKind, Sandbox, Status};
use sbx_policy::{Preset, Scope};
use serde_json::{Value, json};

use super::create::backend;
use super::policy::book;
use crate::context::Context;
use crate::failure::Failure;
use crate::{reading, text};

/// Where programs inside find it.
const PROXY: &str = "gateway.docker.internal:3128";

/// Show what is known about sandboxes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of sandboxes
    #[arg(value_name = "SANDBOX", required = true)]
    names: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let sandboxes = reading::list(context)?;
    let daemon = reading::daemon(context)?;
    let now = Timestamp::now();
    let wanted = args
        .names
        .iter()
        .map(|name| reading::pick(&sandboxes, name))
        .collect::<Result<Vec<_>, _>>()?;
    if args.json {
        let all: Vec<Value> = wanted
            .into_iter()
            .map(|sandbox| to_json(sandbox, &rules(context, sandbox), daemon.as_ref(), now))
            .collect();
        return context.ui.json(&all);
    }
    let texts: Vec<String> = wanted
        .into_iter()
        .map(|sandbox| to_text(sandbox, &rules(context, sandbox), daemon.as_ref(), now))
        .collect();
    context.ui.data(texts.join("\n"))
}

/// Which rules a sandbox's network has, or why that cannot be told.
type Rules = Result<OwnRules, Failure>;

#[derive(Debug)]
struct OwnRules {
    preset: Option<Preset>,
    /// Besides those that all sandboxes have.
    own: usize,
}

fn rules(context: &Context, sandbox: &Sandbox) -> Rules {
    let book = book(context)?;
    let rules = book.rules_for(Some(&sandbox.name))?;
    Ok(OwnRules {
        preset: book.load()?.map(|file| file.preset),
        own: rules.iter().filter(|r| r.scope != Scope::Global).count(),
    })
}

fn policy_json(rules: &Rules) -> Value {
    match rules {
        Ok(rules) => json!({
            "scope": if rules.own == 0 { "global" } else { "sandbox" },
            "preset": rules.preset.map(Preset::as_str),
            "rules": rules.own,
            "organization": null,
            "organization_unavailable": false,
        }),
        Err(failure) => json!({"error": failure.message}),
    }
}

fn policy_text(rules: &Rules) -> String {
    match rules {
        Ok(OwnRules { preset, own }) => {
            let preset = preset.map_or("not chosen yet", Preset::as_str);
            match own {
                0 => preset.to_owned(),
                1 => format!("{preset}, and 1 rule of its own"),
                more => format!("{preset}, and {more} rules of its own"),
            }
        }
        Err(failure) => format!("cannot be read, and allows nothing: {}", failure.message),
    }
}

fn to_json(sandbox: &Sandbox, rules: &Rules, daemon: Option<&DaemonInfo>, now: Timestamp) -> Value {
    let primary = sandbox.workspaces.first().map(|w| w.path.as_str());
    json!({
        "id": sandbox.id,
        "name": sandbox.name,
        "created_at": sandbox.created_at,
        "status": text::status(sandbox.status),
        "template": sandbox.template,
        "labels": {
            "com.docker.sandbox.agent": sandbox.agent,
            "com.docker.sandbox.workingDirectory": primary,
            "com.docker.sandboxes.flavor": backend(sandbox.backend),
        },
        "agent": sandbox.agent,
        "state": text::status(sandbox.status),
        "uptime": uptime(sandbox, now),
        "started_at": sandbox.started_at,
        "stopped_at": sandbox.stopped_at,
        "last_used_at": sandbox.last_used_at,
        "stop_reason": sandbox.stop_reason,
        "stop_at": sandbox.stop_at,
        "keep_alive": sandbox.keep_alive,
        "sessions": sandbox.sessions,
        "workspace": primary,
        "workspaces": sandbox.workspaces,
        "mounts": sandbox.mounts,
        "env": sandbox.env,
        "backend": backend(sandbox.backend),
        "mode": sandbox.mode,
        "isolation": sandbox.isolation,
        "network": sandbox.network,
        "network_policy": policy_json(rules),
        "proxy": PROXY,
        "image": sandbox.template,
        "image_digest": null,
        "auth_mode": "none",
        "mount_policy_denied": false,
        "mcp_gateway": null,
        "kits": [],
        "ports": [],
        "secrets": [],
        "daemon_version": daemon.map(|daemon| &daemon.version),
        "daemon_uptime": daemon.map(|daemon| seconds(daemon.started_at, now)),
        "warnings": sandbox.warnings,
    })
}

/// Seconds since the start of a sandbox that runs.
fn uptime(sandbox: &Sandbox, now: Timestamp) -> Option<i64> {
    match (sandbox.status, sandbox.started_at) {
        (Status::Running, Some(started)) => Some(seconds(started, now)),
        _ => None,
    }
}

fn seconds(since: Timestamp, now: Timestamp) -> i64 {
    now.as_second() - since.as_second()
}

fn to_text(
    sandbox: &Sandbox,
    rules: &Rules,
    daemon: Option<&DaemonInfo>,
    now: Timestamp,
) -> String {
    let mut lines = Lines::default();
    lines.add("Name", &sandbox.name);
    lines.add("ID", &sandbox.id);
    lines.add("Agent", &sandbox.agent);
    lines.add("State", &state(sandbox, now));
    if let Some(stop_at) = sandbox.stop_at {
        lines.add(
            "Stops",
            &format!(
                "in {}",
                text::duration(stop_at.as_second() - now.as_second())
            ),
        );
    }
    if sandbox.keep_alive {
        lines.add("Keep alive", "yes");
    }
    lines.add("Sessions", &sandbox.sessions.to_string());
    lines.add("Created", &sandbox.created_at.to_string());
    lines.add("Image", &sandbox.template);
    lines.add(
        "Backend",
        &format!("{} ({})", backend(sandbox.backend), sandbox.mode),
    );
    for line in &sandbox.isolation {
        lines.add("Isolation", line);
    }
    for workspace in &sandbox.workspaces {
        let access = if workspace.readonly { "ro" } else { "rw" };
        let missing = if workspace.missing { ", missing" } else { "" };
        lines.add(
            "Workspace",
            &format!("{} ({access}{missing})", workspace.path),
        );
    }
    for mount in &sandbox.mounts {
        let access = if mount.readonly { "ro" } else { "rw" };
        let kind = match mount.kind {
            MountKind::Workspace => "workspace",
            MountKind::Template => "template",
            MountKind::Toolchain => "tool chain",
            MountKind::Cache => "cache",
        };
        lines.add(
            "Mount",
            &format!("{} -> {} ({access}, {kind})", mount.source, mount.target),
        );
    }
    lines.add("Network", &policy_text(rules));
    lines.add("Proxy", PROXY);
    if !sandbox.env.is_empty() {
        lines.add("Environment", &sandbox.env.join(", "));
    }
    match daemon {
        Some(daemon) => lines.add(
            "Daemon",
            &format!(
                "{}, up {}",
                daemon.version,
                text::duration(seconds(daemon.started_at, now))
            ),
        ),
        None => lines.add("Daemon", "not running"),
    }
    for warning in &sandbox.warnings {
        lines.add("Warning", warning);
    }
    lines.text
}

fn state(sandbox: &Sandbox, now: Timestamp) -> String {
    let status = text::status(sandbox.status);
    match (uptime(sandbox, now), &sandbox.stop_reason) {
        (Some(seconds), _) => format!("{status} (up {})", text::duration(seconds)),
        (None, Some(reason)) => format!("{status} ({reason})"),
        (None, None) => status.to_owned(),
    }
}

/// Labelled lines; a label is printed once for the lines that share it.
#[derive(Debug, Default)]
struct Lines {
    text: String,
    last: &'static str,
}

impl Lines {
    fn add(&mut self, label: &'static str, value: &str) {
        let shown = if self.last == label {
            String::new()
        } else {
            format!("{label}:")
        };
        self.last = label;
        self.text
            .push_str(&format!("{shown:<13}{}\n", text::one_line(value)));
    }
}
