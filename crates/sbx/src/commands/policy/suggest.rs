//! `sbx policy suggest`

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use jiff::Timestamp;
use sbx_engine::SandboxName;
use sbx_engine::policy::own_addresses::own_addresses;
use sbx_engine::sandbox::record::Record;
use sbx_policy::{Denied, Host, Kind, Protocol, Scope, Suggestion, Target, suggest};
use sbx_proto::shell::quoted;
use sbx_proxy::audit::{Line, Outcome, Via};
use serde_json::{Value, json};

use super::log::{check_name, read};
use super::{book, repo};
use crate::context::Context;
use crate::failure::Failure;
use crate::netlog::{Filter, NetworkLog, is_unanswerable_query};
use crate::time_args;

/// Suggest rules that would allow what a sandbox was denied
///
/// Prints the smallest set of rules, as commands to review and run. Requests that are allowed by now are left out;
/// those that a rule denies explicitly or that lead to sensitive addresses are listed separately.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// Suggest rules for this repository, which also hold for later sandboxes
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::DirPath)]
    repo: Option<PathBuf>,
    /// Only requests since this time: a duration (10m, 2d) or a timestamp (2026-01-31T12:00:00Z) [default: creation]
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let log = NetworkLog::of(&context.state()?)?;
    check_name(context, &log, &args.sandbox)?;
    let name = SandboxName::parse(&args.sandbox)?;
    let now = Timestamp::now();
    let since = match &args.since {
        Some(text) => Some(time_args::timestamp(text, now)?),
        // Not older requests of another sandbox with the same name. A removed sandbox has only its log.
        None => Record::read(&context.state()?.sandbox(&name))
            .ok()
            .map(|record| record.created_at),
    };
    let filter = Filter {
        verdict: Some(Outcome::Deny),
        since,
        ..Filter::default()
    };
    let lines = read(context, &log, Some(name.as_str()), &filter)?;
    let denied = denied(&lines);
    let asked: Vec<IpAddr> = (denied.iter())
        .flat_map(|denied| [denied.address, denied.target.host.as_ip()])
        .flatten()
        .collect();
    // By the current rules: what was denied may be allowed by now.
    let whose = Scope::Sandbox(name.to_string());
    let scope = match &args.repo {
        Some(path) => repo::existing(path)?,
        None => whose.clone(),
    };
    let exists = context.state()?.sandbox(&name).record().exists();
    let asked_of = if exists { &whose } else { &scope };
    let policy = book(context)?.policy_for(asked_of)?;
    let policy = policy.with_local_addresses(own_addresses(&asked));
    let suggestion = suggest(denied, &policy, &scope, now);
    if args.json {
        return context
            .ui
            .json(&to_json(name.as_str(), &scope, &suggestion));
    }
    if !suggestion.rules.is_empty() && !exists && args.repo.is_none() {
        context.ui.note(format!(
            "Sandbox `{name}` no longer exists: create it again, or use `--repo PATH` for rules that hold for every \
             sandbox of its repository."
        ));
    }
    for unsolved in &suggestion.unsolved {
        let target = &unsolved.target;
        context.ui.note(match &unsolved.resource {
            Some(resource) => format!(
                "not suggested: {target} {}; to allow it anyway: {}",
                unsolved.reason,
                command(&scope, &resource.to_string())
            ),
            None => format!("not suggested: {target} {}", unsolved.reason),
        });
    }
    if suggestion.rules.is_empty() {
        context
            .ui
            .note("Nothing to suggest: no denied request needs a rule.");
    }
    context.ui.data(to_text(&scope, &suggestion))
}

/// The denied targets. A name that was only resolved counts as port 443, unless a port is known.
fn denied(lines: &[Line]) -> BTreeSet<Denied> {
    let denied = |line: &Line, port| {
        let host = Host::parse(&line.host).ok()?;
        let address = line.address.map(|address| address.ip());
        Some(Denied {
            // For a literal address the target says it all.
            address: address.filter(|_| host.as_ip().is_none()),
            target: Target { host, port },
            protocol: protocol(line),
        })
    };
    let lines = || lines.iter().filter(|line| can_be_allowed(line));
    let mut all: BTreeSet<Denied> = lines()
        .filter_map(|line| denied(line, line.port?))
        .collect();
    let looked_up: Vec<_> = lines()
        .filter(|line| line.port.is_none())
        .filter_map(|line| denied(line, 443))
        .filter(|wanted| !(all.iter()).any(|known| known.target.host == wanted.target.host))
        .collect();
    all.extend(looked_up);
    all
}

/// Whether a rule could allow it: not a malformed request.
fn can_be_allowed(line: &Line) -> bool {
    !is_unanswerable_query(line) && line.deny_kind != Some(Kind::Malformed)
}

/// The protocol, as far as it was known when the request was denied.
fn protocol(line: &Line) -> Protocol {
    match line.proxy {
        Via::Network => Protocol::Other,
        Via::Forward | Via::ForwardBypass | Via::Transparent | Via::Dns => Protocol::Web,
    }
}

/// A command per rule, each with its reason as a comment that a shell skips.
fn to_text(scope: &Scope, suggestion: &Suggestion) -> String {
    let mut text = String::new();
    for rule in &suggestion.rules {
        let command = command(scope, &rule.resource.to_string());
        text.push_str(&format!("{command}  # {}\n", rule.why));
    }
    text
}

fn to_json(sandbox: &str, scope: &Scope, suggestion: &Suggestion) -> Value {
    let shown =
        |targets: &[Target]| -> Vec<String> { targets.iter().map(Target::to_string).collect() };
    let rules: Vec<Value> = suggestion
        .rules
        .iter()
        .map(|rule| {
            let resource = rule.resource.to_string();
            json!({
                "command": command(scope, &resource),
                "resource": resource,
                "covers": shown(&rule.covers),
                "why": rule.why,
            })
        })
        .collect();
    let unsolved: Vec<Value> = suggestion
        .unsolved
        .iter()
        .map(|unsolved| {
            json!({
                "target": unsolved.target.to_string(),
                "resource": unsolved.resource.as_ref().map(ToString::to_string),
                "reason": unsolved.reason,
            })
        })
        .collect();
    json!({"sandbox": sandbox, "rules": rules, "unsolved": unsolved})
}

fn command(scope: &Scope, resource: &str) -> String {
    format!(
        "sbx policy allow network{} {}",
        scope.option(),
        quoted(resource)
    )
}

#[cfg(test)]
mod tests {
    use sbx_policy::Policy;

    use super::*;
    use crate::netlog::tests::line;

    #[test]
    fn commands_with_reasons() {
        let hosts = ["a.x.test", "b.x.test", "c.x.test", "other.test"];
        let lines: Vec<Line> = hosts.map(|host| line("dev", host, Outcome::Deny)).to_vec();
        let nothing = Policy::compile([]);
        let dev = Scope::Sandbox("dev".to_owned());
        let suggestion = suggest(denied(&lines), &nothing, &dev, Timestamp::now());
        assert_eq!(
            to_text(&dev, &suggestion),
            "sbx policy allow network --sandbox dev other.test:443  # denied on port 443\n\
             sbx policy allow network --sandbox dev '*.x.test:443'  # 3 siblings denied on port 443\n"
        );
        let json = to_json("dev", &dev, &suggestion);
        assert_eq!(json["rules"][0]["covers"], json!(["other.test:443"]));
        assert_eq!(json["unsolved"], json!([]));
    }

    #[test]
    fn names_that_were_only_looked_up() {
        let mut lookup = line("dev", "a.test", Outcome::Deny);
        lookup.port = None;
        let mut ssh = line("dev", "b.test", Outcome::Deny);
        ssh.port = Some(22);
        ssh.proxy = Via::Network;
        let mut both = ssh.clone();
        both.port = None;
        let bad = line("dev", "not a host", Outcome::Deny);
        // A type of record that is never answered: no rule would help.
        let mut odd = line("dev", "_http._tcp.c.test", Outcome::Deny);
        odd.proxy = Via::Dns;
        odd.port = None;
        odd.deny_kind = Some(Kind::RecordType);
        // What could not be read, though there is a host to it.
        let mut nonsense = line("dev", "d.test", Outcome::Deny);
        nonsense.deny_kind = Some(Kind::Malformed);
        let shown: Vec<String> = denied(&[lookup, ssh, both, bad, odd, nonsense])
            .iter()
            .map(|denied| format!("{} {:?}", denied.target, denied.protocol))
            .collect();
        assert_eq!(shown, ["a.test:443 Web", "b.test:22 Other"]);
    }
}
