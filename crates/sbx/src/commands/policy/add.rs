//! The part that `sbx policy allow` and `sbx policy deny` share.

use jiff::Timestamp;
use sbx_api::policy::{PolicyRule, RuleDecision, RuleRequest};
use sbx_engine::SandboxName;
use sbx_policy::{Pattern, PatternError, Target};
use sbx_proto::shell::quoted;

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
    /// Let the rule expire after this time, such as 10m or 2h
    #[arg(long = "for", value_name = "DURATION")]
    for_: Option<String>,
}

pub(crate) fn run(context: &Context, args: &Args, decision: RuleDecision) -> Result<(), Failure> {
    let request = request(args, decision)?;
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
    let text = match args.resources.as_slice() {
        [one] => one,
        several => return Err(several_words(verb, args.sandbox.as_deref(), several)),
    };
    let patterns = Pattern::parse_typed_list(text).map_err(|error| {
        let failure = Failure::new(Kind::BadRequest, error.to_string());
        let other = matches!(error, PatternError::Url(_)) || text.contains('@');
        match Target::meant_by(text).filter(|_| other) {
            Some(target) => failure.hint(format!(
                "sbx policy {verb} network{} {}",
                flag(args.sandbox.as_deref()),
                quoted(&target.to_string())
            )),
            None => failure,
        }
    })?;
    let for_seconds = args.for_.as_deref().map(time_args::duration).transpose()?;
    if let Some(name) = &args.sandbox {
        SandboxName::parse(name)?;
    }
    Ok(RuleRequest {
        decision,
        sandbox: args.sandbox.clone(),
        resources: patterns.iter().map(Pattern::to_string).collect(),
        for_seconds,
    })
}

/// The old form `NAME RESOURCES`, or a list with spaces: the hint is the corrected command.
fn several_words(verb: &str, sandbox: Option<&str>, words: &[String]) -> Failure {
    let looks_like_host = |word: &String| word.contains(['.', '*', ':', '/', ',']);
    let base = format!("sbx policy {verb} network");
    match words {
        [name, rest @ ..]
            if sandbox.is_none() && !looks_like_host(name) && SandboxName::parse(name).is_ok() =>
        {
            Failure::usage("unexpected sandbox name: use `--sandbox`").hint(format!(
                "{base} --sandbox {name} {}",
                quoted(&rest.join(","))
            ))
        }
        _ => {
            let scope = flag(sandbox);
            Failure::usage("too many arguments: separate resources with commas")
                .hint(format!("{base}{scope} {}", quoted(&words.join(","))))
        }
    }
}

fn flag(sandbox: Option<&str>) -> String {
    sandbox.map_or(String::new(), |name| format!(" --sandbox {name}"))
}

/// `Rule added to policy local (scope: sandbox:dev): ID (a.test)`
pub(crate) fn line(done: &str, rule: &PolicyRule) -> String {
    format!(
        "Rule {done} policy {} (scope: {}): {} ({}){}\n",
        rule.policy_id,
        rule.scope,
        rule.id,
        rule.resources.join(","),
        until(rule.expires_at)
    )
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
