//! `sbx policy check`

use std::path::PathBuf;

use sbx_api::ErrorBody;
use sbx_api::policy::{CheckAnswer, CheckRequest};
use sbx_policy::{Scope, Target, TargetError};

use super::{existing, repo};
use crate::autostart;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::text;

/// Check whether a target is allowed, and why
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    kind: PolicyKind,
}

#[derive(Debug, clap::Subcommand)]
enum PolicyKind {
    /// Check whether a host is allowed; the exit code is 1 if it is denied
    ///
    /// TARGET is a host, `host:port`, an address or a URL. The default port is 443; a URL with another scheme than
    /// HTTP or HTTPS needs a port. Names are resolved, because addresses are checked too. Without a URL the
    /// protocol is unknown; if that matters, the answer is for HTTP and HTTPS, and a line for other TCP follows.
    #[command(after_help = "Examples:\n  sbx policy check network example.com\n  \
                            sbx policy check network --sandbox dev --json https://a.test/v1")]
    Network(Network),
}

#[derive(Debug, clap::Args)]
struct Network {
    /// Host, `host:port`, address or URL
    #[arg(value_name = "TARGET")]
    target: String,
    /// Check for this sandbox instead of by the global rules only
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<String>,
    /// Check for a sandbox of this repository
    #[arg(long, value_name = "PATH", conflicts_with = "sandbox", value_hint = clap::ValueHint::DirPath)]
    repo: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also print the rule, the addresses and the command that would change the answer
    #[arg(long)]
    verbose: bool,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        let PolicyKind::Network(args) = &self.kind;
        args.json
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<u8, Failure> {
    let PolicyKind::Network(args) = &args.kind;
    let scope = match (&args.sandbox, &args.repo) {
        (Some(name), _) => Scope::Sandbox(name.clone()),
        (None, Some(path)) => repo::known(context, path)?,
        (None, None) => Scope::Global,
    };
    Target::parse_loose(&args.target).map_err(|error| unreadable(args, &scope, &error))?;
    let answer = ask(context, args, scope)?;
    if args.json {
        context.ui.json(&answer)?;
    } else {
        context.ui.data(to_text(&answer, args.verbose))?;
    }
    Ok(u8::from(!answer.allowed))
}

/// The hint for a git URL with a user is the target without it.
fn unreadable(args: &Network, scope: &Scope, error: &TargetError) -> Failure {
    let failure = Failure::new(Kind::BadRequest, error.to_string());
    let user = matches!(error, TargetError::UserInfo(_));
    match Target::meant_by(&args.target).filter(|_| user) {
        Some(target) => failure.hint(format!(
            "sbx policy check network{} {target}",
            scope.option()
        )),
        None => failure,
    }
}

/// Asks a running daemon, which knows its resolver's answers; otherwise runs `sandboxd` once, because a statically
/// linked program such as this one cannot resolve names by the host's NSS modules.
fn ask(context: &Context, args: &Network, scope: Scope) -> Result<CheckAnswer, Failure> {
    let client = Client::new(context, Absent::Report)?;
    let request = CheckRequest {
        sandbox: args.sandbox.clone(),
        repo: repo::path(scope),
        target: args.target.clone(),
    };
    match client.check_policy(&request) {
        Err(failure) if failure.kind == Kind::NoDaemon => {}
        other => return other,
    }
    if let Some(name) = &args.sandbox {
        existing(context, name)?;
    }
    let answered: Result<CheckAnswer, ErrorBody> =
        autostart::ask(context, autostart::CHECK_NETWORK, &request)?;
    Ok(answered?)
}

fn to_text(answer: &CheckAnswer, verbose: bool) -> String {
    let word = |allowed| if allowed { "Allowed" } else { "Denied" };
    let other = answer.other_tcp.as_ref();
    let about = other.map_or("", |_| " (HTTP and HTTPS)");
    let mut lines = vec![
        format!("{}: {}{about}", word(answer.allowed), asked(answer)),
        "Governance: not managed, local rules decide".to_owned(),
        format!("Context: {}", answer.context),
    ];
    let mut add = |label: &str, value: &Option<String>| {
        if let Some(value) = value {
            lines.push(format!("{label}: {value}"));
        }
    };
    add("Reason", &answer.reason);
    if verbose {
        add("Rule", &answer.rule);
        add("Rule id", &answer.rule_id);
        add("Origin", &answer.origin);
        add("Kind", &answer.deny_kind);
        let addresses = (!answer.addresses.is_empty()).then(|| answer.addresses.join(", "));
        add("Addresses", &addresses);
        add("To change it", &answer.hint);
    }
    if let Some(other) = other {
        let verdict = word(other.allowed);
        add("Other TCP", &Some(format!("{verdict}. {}", other.reason)));
        if verbose {
            add("To change that", &other.hint);
        }
    }
    lines
        .iter()
        .map(|line| text::one_line(line) + "\n")
        .collect()
}

/// The target, and its name in rules if that differs.
fn asked(answer: &CheckAnswer) -> String {
    let called = &answer.resource_value;
    let asked = Target::parse_loose(&answer.target).map(|target| target.to_string());
    match asked {
        Ok(asked) if asked != *called => format!("{asked} ({called} in rules)"),
        Ok(_) | Err(_) => called.clone(),
    }
}

#[cfg(test)]
mod tests {
    use sbx_api::policy::{Governance, OtherTcp};

    use super::*;

    #[test]
    fn answers_in_words() {
        let answer = CheckAnswer {
            action: "net:connect:tcp".into(),
            allowed: false,
            context: "sandbox:dev".into(),
            deny_kind: Some("implicit".into()),
            governance: Governance { active: false },
            origin: None,
            reason: Some("No matching allow rule (default deny)".into()),
            resource_type: "net:domain".into(),
            resource_value: "a.test:443".into(),
            rule: None,
            rule_id: None,
            target: "a.test".into(),
            kind: "network".into(),
            addresses: vec![],
            hint: Some("sbx policy allow network --sandbox dev a.test:443".into()),
            other_tcp: None,
        };
        let short = "Denied: a.test:443\nGovernance: not managed, local rules decide\n\
                     Context: sandbox:dev\nReason: No matching allow rule (default deny)\n";
        assert_eq!(to_text(&answer, false), short);
        let long = format!(
            "{short}Kind: implicit\nTo change it: sbx policy allow network --sandbox dev a.test:443\n"
        );
        assert_eq!(to_text(&answer, true), long);
        let host = CheckAnswer {
            resource_value: "localhost:8000".into(),
            target: "host.docker.internal:8000".into(),
            ..answer.clone()
        };
        let first = "Denied: host.docker.internal:8000 (localhost:8000 in rules)\n";
        assert!(to_text(&host, false).starts_with(first));
        let mixed = CheckAnswer {
            allowed: true,
            reason: None,
            other_tcp: Some(OtherTcp {
                allowed: false,
                deny_kind: Some("implicit".into()),
                reason: "No matching allow rule (default deny)".into(),
                hint: None,
            }),
            ..answer
        };
        assert_eq!(
            to_text(&mixed, false),
            "Allowed: a.test:443 (HTTP and HTTPS)\nGovernance: not managed, local rules decide\n\
             Context: sandbox:dev\nOther TCP: Denied. No matching allow rule (default deny)\n"
        );
    }
}
