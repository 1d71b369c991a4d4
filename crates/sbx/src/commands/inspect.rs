//! `sbx inspect`

use jiff::Timestamp;
use sbx_api::{
    DaemonInfo, Limits, Mount, MountKind, PendingMount, PortMapping, Sandbox, Status, Usage,
    Workspace,
};
use sbx_policy::{Preset, Scope};
use sbx_proto::net::{GATEWAY, PROXY_PORT};
use serde_json::{Value, json};

use super::create::{backend, cache_state};
use super::policy::book;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::Failure;
use crate::{lookup, text};

/// There are no accounts.
const AUTH_MODE: &str = "none";
const NONE: &str = "none";

/// Show details of sandboxes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of sandboxes
    #[arg(value_name = "SANDBOX", required = true)]
    names: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Args {
    pub(crate) fn printing_json(self) -> Self {
        Self { json: true, ..self }
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let sandboxes = lookup::list(context)?;
    let daemon = lookup::daemon(context)?;
    let now = Timestamp::now();
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for name in &args.names {
        match lookup::find(&sandboxes, name) {
            Ok(sandbox) => found.push(Found {
                sandbox,
                rules: rules(context, sandbox),
                usage: usage(context, sandbox),
            }),
            Err(failure) => missing.push(failure),
        }
    }
    let found = found.iter();
    if found.len() > 0 && args.json {
        let all = found.map(|found| to_json(found, daemon.as_ref(), now));
        context.ui.json(&all.collect::<Vec<Value>>())?;
    } else if found.len() > 0 {
        let all = found.map(|found| to_text(found, daemon.as_ref(), now));
        context.ui.data(all.collect::<Vec<String>>().join("\n"))?;
    }
    for failure in &missing {
        context.ui.failure(failure);
    }
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Failure::quiet(1))
    }
}

#[derive(Debug)]
struct Found<'a> {
    sandbox: &'a Sandbox,
    rules: Rules,
    /// Of one that runs.
    usage: Option<Usage>,
}

/// What it uses, if it runs and a daemon can say so.
fn usage(context: &Context, sandbox: &Sandbox) -> Option<Usage> {
    if sandbox.status != Status::Running {
        return None;
    }
    let client = Client::new(context, Absent::Report).ok()?;
    client.usage(&sandbox.name, false).ok()
}

/// The network rules of a sandbox, or why they cannot be read.
type Rules = Result<OwnRules, Failure>;

#[derive(Debug)]
struct OwnRules {
    preset: Option<Preset>,
    /// The number of rules for this sandbox only.
    own: usize,
    /// The number of rules for all sandboxes of its repository.
    repo: usize,
}

fn rules(context: &Context, sandbox: &Sandbox) -> Rules {
    let book = book(context)?;
    let rules = book.rules_for(&Scope::Sandbox(sandbox.name.clone()))?;
    let count =
        |is_meant: fn(&Scope) -> bool| rules.iter().filter(|rule| is_meant(&rule.scope)).count();
    Ok(OwnRules {
        preset: book.load()?.map(|file| file.preset),
        own: count(|scope| matches!(scope, Scope::Sandbox(_))),
        repo: count(|scope| matches!(scope, Scope::Repo(_))),
    })
}

fn policy_json(rules: &Rules) -> Value {
    match rules {
        Ok(rules) => json!({
            "scope": if rules.own == 0 { "global" } else { "sandbox" },
            "preset": rules.preset.map(Preset::as_str),
            "rules": rules.own,
            "repo_rules": rules.repo,
            "organization": null,
            "organization_unavailable": false,
        }),
        Err(failure) => json!({"error": failure.message}),
    }
}

fn policy_text(rules: &Rules) -> String {
    match rules {
        Ok(OwnRules { preset, own, repo }) => {
            let mut text = preset.map_or("not chosen yet", Preset::as_str).to_owned();
            for (count, whose) in [(own, "of its own"), (repo, "of its repository")] {
                match count {
                    0 => {}
                    1 => text.push_str(&format!(", and 1 rule {whose}")),
                    more => text.push_str(&format!(", and {more} rules {whose}")),
                }
            }
            text
        }
        Err(failure) => format!("unreadable, so everything is denied: {}", failure.message),
    }
}

fn to_json(found: &Found<'_>, daemon: Option<&DaemonInfo>, now: Timestamp) -> Value {
    let Found {
        sandbox,
        rules,
        usage,
    } = found;
    let primary = sandbox.workspaces.first().filter(|w| !w.added);
    let primary = primary.map(|w| w.path.as_str());
    let mut value = json!({
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
        "idle_seconds": sandbox.idle_seconds,
        "cache": sandbox.cache,
        "temporary": sandbox.temporary,
        "sessions": sandbox.sessions,
        "limits": sandbox.limits,
        "workspace": primary,
        "workspaces": sandbox.workspaces,
        "mounts": sandbox.mounts,
        "env": sandbox.env,
        "backend": backend(sandbox.backend),
        "mode": sandbox.mode,
        "isolation": sandbox.isolation,
        "network": sandbox.network,
        "network_policy": policy_json(rules),
        "proxy": proxy(),
        "image": sandbox.template,
        "image_digest": null,
        "auth_mode": AUTH_MODE,
        "mount_policy_denied": false,
        "mcp_gateway": null,
        "kits": [],
        "ports": ports(sandbox),
        "secrets": [],
        "daemon_version": daemon.map(|daemon| &daemon.version),
        "daemon_uptime": daemon.map(|daemon| seconds(daemon.started_at, now)),
        "warnings": sandbox.warnings,
    });
    if let Some(object) = value.as_object_mut() {
        object.insert("usage".to_owned(), json!(usage));
    }
    value
}

/// Seconds since a running sandbox was started.
fn uptime(sandbox: &Sandbox, now: Timestamp) -> Option<i64> {
    match (sandbox.status, sandbox.started_at) {
        (Status::Running, Some(started)) => Some(seconds(started, now)),
        _ => None,
    }
}

fn seconds(since: Timestamp, now: Timestamp) -> i64 {
    now.as_second() - since.as_second()
}

fn limits(limits: &Limits) -> String {
    let cpu = limits.cpu_millis;
    let cpu = cpu.map(|millis| format!("{} CPUs", text::cpus(millis)));
    let memory = limits.memory_bytes;
    let memory = memory.map(|bytes| format!("{} MiB of memory", bytes >> 20));
    let processes = limits.processes.map(|count| format!("{count} processes"));
    let disk = limits.disk_bytes;
    let disk = disk.map(|bytes| format!("{} MiB of disk", bytes >> 20));
    let parts = [cpu, memory, processes, disk].into_iter().flatten();
    let parts: Vec<_> = parts.collect();
    match parts.is_empty() {
        true => NONE.to_owned(),
        false => parts.join(", "),
    }
}

fn used(usage: &Usage) -> String {
    let seconds = usage.cpu_micros / 1_000_000;
    let cpu = text::duration(i64::try_from(seconds).unwrap_or(i64::MAX));
    let memory = text::bytes(usage.memory_bytes);
    let processes = usage.processes;
    format!("{cpu} of CPU time, {memory} of memory, {processes} processes")
}

fn workspace_text(workspace: &Workspace) -> String {
    let access = if workspace.readonly { "ro" } else { "rw" };
    let missing = if workspace.missing { ", missing" } else { "" };
    let pending = match workspace.pending {
        Some(PendingMount::Mount) => ", from the next start on",
        Some(PendingMount::Unmount) => ", until the next start",
        None => "",
    };
    let shown = text::workspace(workspace);
    format!("{shown} ({access}{missing}{pending})")
}

fn to_text(found: &Found<'_>, daemon: Option<&DaemonInfo>, now: Timestamp) -> String {
    let Found {
        sandbox,
        rules,
        usage,
    } = found;
    let mut lines = Lines::default();
    lines.add("Name", &sandbox.name);
    lines.add("ID", &sandbox.id);
    lines.add("Agent", &sandbox.agent);
    lines.add("Kits", NONE);
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
    if sandbox.temporary {
        lines.add("Temporary", "removed when stopped");
    }
    if let Some(cache) = sandbox.cache {
        lines.add("Build cache", cache_state(cache));
    }
    lines.add("Limits", &limits(&sandbox.limits));
    if let Some(usage) = usage {
        lines.add("Use", &used(usage));
    }
    lines.add("Sessions", &sandbox.sessions.to_string());
    lines.add("Created", &sandbox.created_at.to_string());
    lines.add("Image", &sandbox.template);
    lines.add("Image digest", "-");
    lines.add("Auth mode", AUTH_MODE);
    lines.add(
        "Backend",
        &format!("{} ({})", backend(sandbox.backend), sandbox.mode),
    );
    for line in &sandbox.isolation {
        lines.add("Isolation", line);
    }
    for workspace in &sandbox.workspaces {
        lines.add("Workspace", &workspace_text(workspace));
    }
    for mount in &sandbox.mounts {
        let (source, target) = (&mount.source, &mount.target);
        let how = access(mount);
        lines.add("Mount", &format!("{source} -> {target} ({how})"));
    }
    lines.add("Mount Policy", "nothing denied");
    lines.add("Network Policy", &policy_text(rules));
    lines.add("Proxy", &proxy());
    lines.add("Ports", &list(&ports(sandbox)));
    lines.add("Secrets", NONE);
    lines.add("MCP gateway", NONE);
    lines.add("Environment", &list(&sandbox.env));
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

/// As `ip:port->port/protocol`.
fn ports(sandbox: &Sandbox) -> Vec<String> {
    sandbox.ports.iter().map(PortMapping::to_string).collect()
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return NONE.to_owned();
    }
    names.join(", ")
}

/// Access and purpose of a mount.
fn access(mount: &Mount) -> String {
    let kind = match mount.kind {
        MountKind::Workspace => "workspace",
        MountKind::Mask => "mask",
        MountKind::Template => "template",
        MountKind::Toolchain => "tool chain",
        MountKind::Cache => "cache",
        MountKind::Git => "git repository",
    };
    let access = match (mount.readonly, mount.kind) {
        (true, _) => "ro",
        (false, MountKind::Workspace | MountKind::Git | MountKind::Mask) => "rw",
        // The host's files are the lower layer of an overlay.
        (false, MountKind::Template | MountKind::Toolchain | MountKind::Cache) => {
            "changes stay inside"
        }
    };
    format!("{access}, {kind}")
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
            .push_str(&format!("{shown:<16}{}\n", text::one_line(value)));
    }
}
/// The proxy's address inside a sandbox.
fn proxy() -> String {
    format!("{GATEWAY}:{PROXY_PORT}")
}
