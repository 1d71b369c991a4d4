//! `sbx policy inspect`

use jiff::Timestamp;
use sbx_api::policy::PolicyRule;
use sbx_engine::policy::shown;
use sbx_policy::Scope;
use serde_json::json;

use super::add::{private, word};
use super::ls::{groups, source};
use super::{book, note_default_preset};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::{similar, text};

/// Show a policy or a rule, with its resources and how to remove it
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of a policy, or name or id of a rule
    #[arg(value_name = "POLICY_OR_RULE")]
    name: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let book = book(context)?;
    let now = Timestamp::now();
    let rules: Vec<PolicyRule> = book
        .all_rules()?
        .0
        .iter()
        .map(|rule| shown(rule, now))
        .collect();
    let found = find(&rules, &args.name)?;
    if args.json {
        return context.ui.json(&json!({"rules": found}));
    }
    note_default_preset(context, &book)?;
    context.ui.data(to_text(&found))
}

/// A policy's rules, or the rules with that id or name.
fn find<'a>(rules: &'a [PolicyRule], name: &str) -> Result<Vec<&'a PolicyRule>, Failure> {
    let by = |what: fn(&PolicyRule) -> &str| -> Vec<&PolicyRule> {
        rules.iter().filter(|rule| what(rule) == name).collect()
    };
    let ways: [fn(&PolicyRule) -> &str; 3] =
        [|rule| &rule.policy_id, |rule| &rule.id, |rule| &rule.name];
    if let Some(found) = ways.into_iter().map(by).find(|found| !found.is_empty()) {
        return Ok(found);
    }
    let mut known: Vec<&str> = rules
        .iter()
        .flat_map(|rule| [rule.policy_id.as_str(), rule.name.as_str()])
        .collect();
    known.sort_unstable();
    known.dedup();
    let mut message = format!("no policy or rule named `{}`", name.escape_debug());
    let close = similar::similar_names(name, known);
    if !close.is_empty() {
        message.push_str(&format!("; did you mean `{}`?", close.join("` or `")));
    }
    Err(Failure::new(Kind::NotFound, message).hint("sbx policy ls --wide"))
}

fn to_text(rules: &[&PolicyRule]) -> String {
    let groups = groups(rules.iter().copied(), false);
    let texts: Vec<String> = groups.iter().map(|rules| policy_text(rules)).collect();
    texts.join("\n")
}

fn policy_text(rules: &[&PolicyRule]) -> String {
    let Some(first) = rules.first() else {
        return String::new();
    };
    let owned = |cells: [&str; 4]| cells.map(text::one_line).to_vec();
    let mut resources = vec![owned(["RESOURCE", "DECISION", "RULE", "STATUS"])];
    let mut table = vec![owned(["RULE", "RULE_ID", "EDITABLE", "REMOVE"])];
    for rule in rules {
        for resource in &rule.resources {
            let status = status(rule);
            resources.push(owned([resource, word(rule.decision), &rule.name, &status]));
        }
        let editable = if rule.editable { "yes" } else { "no" };
        table.push(owned([&rule.name, &rule.id, editable, &removal(rule)]));
    }
    let reasons = rules.iter().filter_map(|rule| {
        let reason = rule.reason.as_ref()?;
        Some(text::one_line(&format!("{}: {reason}", rule.name)) + "\n")
    });
    let mut reasons: String = reasons.collect();
    if !reasons.is_empty() {
        reasons.insert(0, '\n');
    }
    format!(
        "Policy:      {}\nSource:      {}\nApplies to:  {}\n\n{}\n\n{}\n{reasons}",
        text::one_line(&first.policy_id),
        source(first),
        text::one_line(&first.applies_to),
        text::table(&resources).join("\n"),
        text::table(&table).join("\n"),
    )
}

fn status(rule: &PolicyRule) -> String {
    let mut status = rule.status.clone();
    if let Some(expires) = rule.expires_at {
        status.push_str(&format!(" until {expires:.0}"));
    }
    status.push_str(private(rule));
    if rule.traffic.is_some() {
        status.push_str(", HTTP and HTTPS only");
    }
    status
}

/// The command that removes the rule, or why there is none.
fn removal(rule: &PolicyRule) -> String {
    let scope: Result<Scope, _> = rule.scope.parse();
    let sandbox = rule.scope.strip_prefix("sandbox:");
    match (rule.editable, rule.origin.as_str(), sandbox) {
        (true, _, _) => {
            let option = scope.map_or(String::new(), |scope| scope.option());
            format!("sbx policy rm network{option} --id {}", rule.id)
        }
        (false, "proxy-config", Some(name)) => {
            format!("from proxy-config.json: see sbx network proxy {name}")
        }
        (false, "kit", _) => "part of a kit".to_owned(),
        (false, "preset", _) => "part of the preset: see sbx policy reset".to_owned(),
        (false, _, _) => "read-only".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use sbx_api::policy::RuleDecision;

    use super::*;
    use crate::commands::policy::ls::tests::rule;

    fn some() -> Vec<PolicyRule> {
        let mut preset = rule("default-x", RuleDecision::Allow, &["a.test", "b.test"]);
        preset.editable = false;
        preset.origin = "preset".into();
        preset.reason = Some("It is needed.".into());
        let mut scoped = rule("mine", RuleDecision::Deny, &["c.test"]);
        scoped.policy_id = "local".into();
        scoped.scope = "sandbox:dev".into();
        scoped.applies_to = "sandbox:dev".into();
        scoped.expires_at = "2026-01-29T10:15:25Z".parse().ok();
        vec![preset, scoped]
    }

    #[test]
    fn policies_and_rules_are_found() {
        let rules = some();
        for (name, found) in [
            ("local-policy", "default-x"),
            ("default-x", "default-x"),
            ("id-of-mine", "mine"),
            ("mine", "mine"),
        ] {
            assert_eq!(find(&rules, name).unwrap()[0].name, found);
        }
        let failure = find(&rules, "default-y").unwrap_err();
        assert_eq!(failure.kind, Kind::NotFound);
        assert!(failure.message.contains("default-x"), "{}", failure.message);
    }

    #[test]
    fn resources_and_the_way_to_remove_them() {
        let rules = some();
        let all: Vec<&PolicyRule> = rules.iter().collect();
        let expected = "\
Policy:      local-policy
Source:      local
Applies to:  all

RESOURCE  DECISION  RULE       STATUS
a.test    allow     default-x  active
b.test    allow     default-x  active

RULE       RULE_ID          EDITABLE  REMOVE
default-x  id-of-default-x  no        part of the preset: see sbx policy reset

default-x: It is needed.

Policy:      local
Source:      local
Applies to:  sandbox:dev

RESOURCE  DECISION  RULE  STATUS
c.test    deny      mine  active until 2026-01-29T10:15:25Z

RULE  RULE_ID     EDITABLE  REMOVE
mine  id-of-mine  yes       sbx policy rm network --sandbox dev --id id-of-mine
";
        assert_eq!(to_text(&all), expected);
    }
}
