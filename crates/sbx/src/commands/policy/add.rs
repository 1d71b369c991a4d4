//! The part that `sbx policy allow` and `sbx policy deny` share.

use std::path::PathBuf;

use jiff::Timestamp;
use sbx_api::policy::{PolicyRule, RuleDecision, RuleRequest};
use sbx_engine::SandboxName;
use sbx_policy::{Pattern, PatternError, Scope, Target};
use sbx_proto::shell::quoted;

use super::repo;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::time_args;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Comma-separated hosts, addresses and networks
    #[arg(value_name = "RESOURCES", required = true)]
    resources: Vec<String>,
    /// Only for this sandbox
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<String>,
    /// Only for sandboxes whose primary workspace is this directory, also later ones
    #[arg(long, value_name = "PATH", conflicts_with = "sandbox", value_hint = clap::ValueHint::DirPath)]
    repo: Option<PathBuf>,
    /// Let the rule expire after this time, such as 10m or 2h
    #[arg(long = "for", value_name = "DURATION")]
    for_: Option<String>,
}

/// `allow_private` is for allow rules only.
pub(crate) fn run(
    context: &Context,
    args: &Args,
    decision: RuleDecision,
    allow_private: bool,
) -> Result<(), Failure> {
    let request = RuleRequest {
        allow_private,
        ..request(args, decision)?
    };
    check_private(&request)?;
    let client = Client::new(context, Absent::Start)?;
    let added = client.add_rule(&request)?;
    if let Some(notice) = &added.notice {
        context.ui.note(notice);
    }
    for existing in &added.existing {
        context.ui.note(format!(
            "{} is already covered by rule {}{}",
            existing.resource,
            existing.rule_id,
            until(existing.expires_at)
        ));
    }
    let lines: String = added
        .rules
        .iter()
        .map(|rule| line("added to", rule))
        .collect();
    context.ui.data(lines)
}

/// Checked before a daemon is started.
fn request(args: &Args, decision: RuleDecision) -> Result<RuleRequest, Failure> {
    let verb = word(decision);
    let scope = scope(args)?;
    let text = match args.resources.as_slice() {
        [one] => one,
        several => return Err(several_words(verb, &scope, several)),
    };
    let patterns = Pattern::parse_typed_list(text).map_err(|error| {
        let failure = Failure::new(Kind::BadRequest, error.to_string());
        let other = matches!(error, PatternError::Url(_)) || text.contains('@');
        match Target::meant_by(text).filter(|_| other) {
            Some(target) => failure.hint(format!(
                "sbx policy {verb} network{} {}",
                scope.option(),
                quoted(&target.to_string())
            )),
            None => failure,
        }
    })?;
    let for_seconds = args.for_.as_deref().map(time_args::duration).transpose()?;
    let (sandbox, repo) = match scope {
        Scope::Global => (None, None),
        Scope::Repo(path) => (None, Some(path.into())),
        Scope::Sandbox(name) => (Some(name), None),
    };
    Ok(RuleRequest {
        decision,
        sandbox,
        repo,
        resources: patterns.iter().map(Pattern::to_string).collect(),
        for_seconds,
        allow_private: false,
    })
}

fn scope(args: &Args) -> Result<Scope, Failure> {
    match (&args.sandbox, &args.repo) {
        (Some(name), _) => Ok(Scope::Sandbox(SandboxName::parse(name)?.into())),
        (None, Some(path)) => repo::existing(path),
        (None, None) => Ok(Scope::Global),
    }
}

/// Refused before a daemon is started; the daemon refuses it as well.
fn check_private(request: &RuleRequest) -> Result<(), Failure> {
    let wide = |text: &&String| !text.parse().is_ok_and(|one: Pattern| one.is_exact_host());
    match request.resources.iter().find(wide) {
        Some(wide) if request.allow_private => Err(Failure::new(
            Kind::BadRequest,
            format!("--allow-private: `{wide}` is not exactly one host"),
        )),
        Some(_) | None => Ok(()),
    }
}

/// The old form `NAME RESOURCES`, or a list with spaces: the hint is the corrected command.
fn several_words(verb: &str, scope: &Scope, words: &[String]) -> Failure {
    let looks_like_host = |word: &String| word.contains(['.', '*', ':', '/', ',']);
    let base = format!("sbx policy {verb} network");
    match words {
        [name, rest @ ..]
            if *scope == Scope::Global
                && !looks_like_host(name)
                && SandboxName::parse(name).is_ok() =>
        {
            Failure::usage("unexpected sandbox name: use `--sandbox`").hint(format!(
                "{base} --sandbox {name} {}",
                quoted(&rest.join(","))
            ))
        }
        _ => {
            let option = scope.option();
            Failure::usage("too many arguments: separate resources with commas")
                .hint(format!("{base}{option} {}", quoted(&words.join(","))))
        }
    }
}

/// `Rule added to policy local (scope: sandbox:dev): ID (a.test)`
pub(crate) fn line(done: &str, rule: &PolicyRule) -> String {
    format!(
        "Rule {done} policy {} (scope: {}): {} ({}){}\n",
        rule.policy_id,
        rule.scope,
        rule.id,
        rule.resources.join(","),
        [until(rule.expires_at), private(rule).to_owned()].concat()
    )
}

/// What `--allow-private` adds to a line about a rule.
pub(crate) fn private(rule: &PolicyRule) -> &'static str {
    if rule.allow_private {
        ", private addresses allowed"
    } else {
        ""
    }
}

fn until(expires: Option<Timestamp>) -> String {
    expires.map_or(String::new(), |expires| format!(", until {expires:.0}"))
}

pub(crate) fn word(decision: RuleDecision) -> &'static str {
    match decision {
        RuleDecision::Allow => "allow",
        RuleDecision::Deny => "deny",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str], sandbox: Option<&str>) -> Result<RuleRequest, Failure> {
        let args = Args {
            resources: words.iter().map(|word| (*word).to_owned()).collect(),
            sandbox: sandbox.map(str::to_owned),
            repo: None,
            for_: Some("10m".into()),
        };
        request(&args, RuleDecision::Allow)
    }

    #[test]
    fn lists_become_one_request() {
        let request = asked(&["a.test:443, *.B.test"], Some("dev")).unwrap();
        assert_eq!(request.resources, ["a.test:443", "*.b.test"]);
        assert_eq!(request.for_seconds, Some(600));
        assert_eq!(request.sandbox.as_deref(), Some("dev"));
    }

    #[test]
    fn wrong_forms_get_the_corrected_command() {
        for (words, sandbox, hint) in [
            (
                &["dev", "*.a.test"][..],
                None,
                "sbx policy allow network --sandbox dev '*.a.test'",
            ),
            (
                &["a.test", "b.test"],
                None,
                "sbx policy allow network a.test,b.test",
            ),
            (
                &["a", "b"],
                Some("dev"),
                "sbx policy allow network --sandbox dev a,b",
            ),
        ] {
            let failure = asked(words, sandbox).unwrap_err();
            assert_eq!(failure.kind, Kind::Usage);
            assert_eq!(failure.hint.as_deref(), Some(hint));
        }
        for (typed, meant) in [
            ("ssh://git@a.test:22/x", "a.test:22"),
            ("https://a.test/x", "a.test:443"),
            ("git@a.test:22", "a.test:22"),
        ] {
            let hint = format!("sbx policy allow network --sandbox dev {meant}");
            let failure = asked(&[typed], Some("dev")).unwrap_err();
            assert_eq!(failure.hint, Some(hint), "{typed}");
        }
        assert_eq!(asked(&["10.0.0.1/8"], None).unwrap_err().hint, None);
        let ambiguous = asked(&["::1:443"], None).unwrap_err();
        assert!(ambiguous.message.contains("`[::1]:443`"), "{ambiguous:?}");
        for bad in ["", "*", "https://a.test/x", "a.test:0", "10.0.0.1/8"] {
            assert_eq!(
                asked(&[bad], None).unwrap_err().kind,
                Kind::BadRequest,
                "{bad}"
            );
        }
        assert!(asked(&["a.test"], Some("a_b")).is_err());
    }
}
