//! `sbx policy ls`

use std::path::PathBuf;

use jiff::Timestamp;
use sbx_api::policy::{PolicyRule, RuleDecision};
use sbx_engine::policy::{PolicyBook, shown};
use sbx_policy::{Rule, Scope};
use serde_json::json;

use super::add::word;
use super::{RuleType, book, note_default_preset, repo, sandbox_scope};
use crate::context::Context;
use crate::failure::Failure;
use crate::text;

/// List network rules
///
/// Lists the rules of all sandboxes and repositories, or those that apply to SANDBOX or to a repository.
#[derive(Debug, clap::Args)]
#[command(override_usage = "sbx policy ls [SANDBOX] [OPTIONS]")]
pub(crate) struct Args {
    /// Only rules that apply to this sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: Option<String>,
    /// Only rules that apply to sandboxes of this repository
    #[arg(long, value_name = "PATH", conflicts_with = "sandbox", value_hint = clap::ValueHint::DirPath)]
    repo: Option<PathBuf>,
    /// Show one line per rule, with ids and resources
    #[arg(long)]
    wide: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Type of the rules (there are no filesystem rules)
    #[arg(long = "type", value_enum, default_value_t = RuleType::All)]
    kind: RuleType,
    /// Only rules from this source
    #[arg(long, value_enum)]
    source: Option<Source>,
    /// Only allow rules, or only deny rules
    #[arg(long, value_enum)]
    decision: Option<Decision>,
    /// Also show expired rules
    #[arg(long)]
    include_inactive: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Source {
    Local,
    Org,
    Kit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Decision {
    Allow,
    Deny,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let book = book(context)?;
    let scope = match (&args.sandbox, &args.repo) {
        (Some(name), _) => Some(sandbox_scope(context, name)?),
        (None, Some(path)) => Some(repo::known(context, path)?),
        (None, None) => None,
    };
    let (rules, broken) = match &scope {
        Some(scope) => (book.rules_for(scope)?, None),
        None => book.all_rules()?,
    };
    show(context, args, &book, (scope.as_ref(), &rules))?;
    // Show the readable rules first, then fail.
    broken.map_or(Ok(()), |error| Err(error.into()))
}

fn show(
    context: &Context,
    args: &Args,
    book: &PolicyBook,
    (scope, rules): (Option<&Scope>, &[Rule]),
) -> Result<(), Failure> {
    let now = Timestamp::now();
    let mut rules: Vec<PolicyRule> = rules
        .iter()
        .map(|rule| shown(rule, now))
        .filter(|rule| args.takes(rule))
        .collect();
    // Global rules first.
    rules.sort_by(|a, b| a.scope.cmp(&b.scope));
    if args.json {
        return context.ui.json(&json!({"rules": rules}));
    }
    let mut lines = if args.wide {
        wide(&rules, args.include_inactive)
    } else {
        overview(&rules, args.include_inactive)
    };
    if let Some(header) = lines.first_mut() {
        *header = context.ui.heading(header);
    }
    note_default_preset(context, book)?;
    if let Some(scope) = scope
        && let Some(narrowed) = book.narrowed(scope, now)?
    {
        context.ui.note(format!("Note: {narrowed}"));
    }
    if rules.is_empty() {
        return context.ui.data("No rules found.\n");
    }
    context.ui.data(lines.join("\n") + "\n")
}

impl Args {
    fn takes(&self, rule: &PolicyRule) -> bool {
        let source = match self.source {
            None => true,
            Some(Source::Local) => source(rule) == "local",
            Some(Source::Org) => source(rule) == "org",
            Some(Source::Kit) => source(rule) == "kit",
        };
        let decision = match self.decision {
            None => true,
            Some(Decision::Allow) => rule.decision == RuleDecision::Allow,
            Some(Decision::Deny) => rule.decision == RuleDecision::Deny,
        };
        source
            && decision
            && self.kind != RuleType::Filesystem
            && (self.include_inactive || rule.status == "active")
    }
}

/// The `SOURCE` column: everything that this user added or chose is local.
pub(crate) fn source(rule: &PolicyRule) -> &str {
    match rule.origin.as_str() {
        "kit" => "kit",
        "org" => "org",
        _ => "local",
    }
}

/// One line per policy.
fn overview(rules: &[PolicyRule], inactive: bool) -> Vec<String> {
    let mut header = vec!["POLICY", "SOURCE", "APPLIES TO", "SUMMARY"];
    if inactive {
        header.push("STATUS");
    }
    let mut rows = vec![header.into_iter().map(str::to_owned).collect()];
    for group in groups(rules, inactive) {
        let Some(first) = group.first() else { continue };
        let mut row = vec![
            text::one_line(&first.policy_id),
            source(first).to_owned(),
            text::one_line(&first.applies_to),
            summary(&group),
        ];
        if inactive {
            row.push(first.status.clone());
        }
        rows.push(row);
    }
    text::table(&rows)
}

/// Groups rules by policy and scope (and status), in their order.
pub(crate) fn groups<'a>(
    rules: impl IntoIterator<Item = &'a PolicyRule>,
    by_status: bool,
) -> Vec<Vec<&'a PolicyRule>> {
    let mut groups: Vec<Vec<&PolicyRule>> = Vec::new();
    for rule in rules {
        let same = |group: &&mut Vec<&PolicyRule>| {
            group.first().is_some_and(|first| {
                (&first.policy_id, &first.scope) == (&rule.policy_id, &rule.scope)
                    && (!by_status || first.status == rule.status)
            })
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(rule),
            None => groups.push(vec![rule]),
        }
    }
    groups
}

/// `6 allow rules (193 resources), 1 deny rule (2 resources)`
fn summary(rules: &[&PolicyRule]) -> String {
    let counted = |count: usize, what: &str| {
        let plural = if count == 1 { "" } else { "s" };
        format!("{count} {what}{plural}")
    };
    let mut parts = Vec::new();
    for decision in [RuleDecision::Allow, RuleDecision::Deny] {
        let of_decision = || rules.iter().filter(|rule| rule.decision == decision);
        let count = of_decision().count();
        if count > 0 {
            let resources: usize = of_decision().map(|rule| rule.resources.len()).sum();
            parts.push(format!(
                "{} ({})",
                counted(count, &format!("{} rule", word(decision))),
                counted(resources, "resource")
            ));
        }
    }
    let private = rules.iter().filter(|rule| rule.allow_private).count();
    if private > 0 {
        parts.push(format!(
            "{} with private addresses",
            counted(private, "rule")
        ));
    }
    if let Some(first) = rules.iter().filter_map(|rule| rule.expires_at).min() {
        parts.push(format!("first expires at {}", moment(first)));
    }
    parts.join(", ")
}

/// Without fractions of a second.
fn moment(time: Timestamp) -> String {
    format!("{time:.0}")
}

/// One line per rule. The resources come last, because the list may be long.
fn wide(rules: &[PolicyRule], inactive: bool) -> Vec<String> {
    let mut header = vec![
        "SOURCE",
        "APPLIES TO",
        "POLICY",
        "POLICY_ID",
        "RULE",
        "RULE_ID",
        "TYPE",
        "DECISION",
    ];
    if inactive {
        header.push("STATUS");
    }
    header.push("RESOURCES");
    let mut rows = vec![header.into_iter().map(str::to_owned).collect()];
    for rule in rules {
        let mut row = vec![
            source(rule).to_owned(),
            rule.applies_to.clone(),
            rule.policy_id.clone(),
            rule.policy_id.clone(),
            rule.name.clone(),
            rule.id.clone(),
            rule.resource_type.clone(),
            word(rule.decision).to_owned(),
        ];
        if inactive {
            row.push(rule.status.clone());
        }
        row.push(resources(rule));
        rows.push(row.iter().map(|cell| text::one_line(cell)).collect());
    }
    text::table(&rows)
}

fn resources(rule: &PolicyRule) -> String {
    let mut list = rule.resources.join(",");
    if let Some(end) = rule.expires_at {
        list = format!("{list} (until {})", moment(end));
    }
    if rule.allow_private {
        list.push_str(" (private addresses allowed)");
    }
    match rule.traffic {
        Some(_) => format!("{list} (HTTP and HTTPS only)"),
        None => list,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn rule(name: &str, decision: RuleDecision, resources: &[&str]) -> PolicyRule {
        PolicyRule {
            id: format!("id-of-{name}"),
            name: name.into(),
            policy_id: "local-policy".into(),
            scope: "global".into(),
            applies_to: "all".into(),
            resource_type: "network".into(),
            decision,
            resources: resources.iter().map(|text| (*text).to_owned()).collect(),
            origin: "local".into(),
            layer: "local".into(),
            status: "active".into(),
            editable: true,
            sandbox_id: None,
            traffic: None,
            allow_private: false,
            expires_at: None,
            reason: None,
        }
    }

    #[test]
    fn rules_that_end_say_when() {
        let mut short = rule("short", RuleDecision::Allow, &["a.test"]);
        short.expires_at = "2026-01-29T10:15:25.5Z".parse().ok();
        let rules = [short, rule("long", RuleDecision::Allow, &["b.test"])];
        let shown = overview(&rules, false).join("\n");
        assert!(
            shown.contains("first expires at 2026-01-29T10:15:25Z"),
            "{shown}"
        );
        let shown = wide(&rules, false).join("\n");
        assert!(
            shown.contains("a.test (until 2026-01-29T10:15:25Z)"),
            "{shown}"
        );
    }

    #[test]
    fn rules_that_allow_private_addresses_say_so() {
        let mut private = rule("db", RuleDecision::Allow, &["db.test:5432"]);
        private.allow_private = true;
        let rules = [private, rule("plain", RuleDecision::Allow, &["b.test"])];
        let shown = overview(&rules, false).join("\n");
        assert!(shown.contains("1 rule with private addresses"), "{shown}");
        let shown = wide(&rules, false);
        assert!(
            shown[1].ends_with("db.test:5432 (private addresses allowed)"),
            "{shown:#?}"
        );
        assert!(shown[2].ends_with("b.test"), "{shown:#?}");
        let json = serde_json::to_value(&rules).unwrap();
        assert_eq!(json[0]["allow_private"], true);
        assert!(json[1].get("allow_private").is_none());
    }

    fn some() -> Vec<PolicyRule> {
        let mut scoped = rule("mine", RuleDecision::Deny, &["**"]);
        scoped.policy_id = "local".into();
        scoped.scope = "sandbox:dev".into();
        scoped.applies_to = "sandbox:dev".into();
        scoped.origin = "scoped".into();
        let mut over = rule("old", RuleDecision::Allow, &["c.test"]);
        over.status = "inactive".into();
        vec![
            rule("one", RuleDecision::Allow, &["a.test:443", "*.b.test"]),
            scoped,
            rule("two", RuleDecision::Deny, &["x.test"]),
            over,
        ]
    }

    #[test]
    fn a_line_per_policy() {
        let rules = &some()[..3];
        assert_eq!(
            overview(rules, false),
            [
                "POLICY        SOURCE  APPLIES TO   SUMMARY",
                "local-policy  local   all          1 allow rule (2 resources), 1 deny rule (1 resource)",
                "local         local   sandbox:dev  1 deny rule (1 resource)",
            ]
        );
        let with_status = overview(&some(), true);
        assert!(with_status[0].ends_with("STATUS"), "{with_status:#?}");
        assert_eq!(with_status.len(), 4);
        assert!(with_status[3].ends_with("inactive"), "{with_status:#?}");
    }

    #[test]
    fn a_line_per_rule() {
        let mut rules = some();
        rules.truncate(2);
        let mut web = rule("web", RuleDecision::Allow, &["**"]);
        web.traffic = Some("web".into());
        rules.push(web);
        assert_eq!(
            wide(&rules, false),
            [
                "SOURCE  APPLIES TO   POLICY        POLICY_ID     RULE  RULE_ID     TYPE     DECISION  RESOURCES",
                "local   all          local-policy  local-policy  one   id-of-one   network  allow     a.test:443,*.b.test",
                "local   sandbox:dev  local         local         mine  id-of-mine  network  deny      **",
                "local   all          local-policy  local-policy  web   id-of-web   network  allow     ** (HTTP and HTTPS only)",
            ]
        );
    }

    #[test]
    fn a_long_list_moves_nothing_away() {
        let long: Vec<String> = (0..200).map(|n| format!("host-{n}.test")).collect();
        let long: Vec<&str> = long.iter().map(String::as_str).collect();
        let mut rules = some();
        rules.push(rule("long", RuleDecision::Allow, &long));
        for inactive in [false, true] {
            let lines = wide(&rules, inactive);
            let (long, short): (Vec<_>, Vec<_>) = lines.iter().partition(|l| l.contains("host-0"));
            assert_eq!((long.len(), short.len()), (1, 5));
            assert!(short.iter().all(|line| line.len() < 150), "{short:#?}");
        }
        let lines = wide(&rules, true);
        assert!(
            lines[0].ends_with("DECISION  STATUS    RESOURCES"),
            "{}",
            lines[0]
        );
        assert!(
            lines[4].ends_with("allow     inactive  c.test"),
            "{}",
            lines[4]
        );
    }

    #[test]
    fn the_shape_of_the_json() {
        let expected = json!({
            "id": "id-of-one", "name": "one", "policy_id": "local-policy", "scope": "global",
            "applies_to": "all", "resource_type": "network", "decision": "allow",
            "resources": ["a.test"], "origin": "local", "layer": "local", "status": "active",
            "editable": true,
        });
        let rule = rule("one", RuleDecision::Allow, &["a.test"]);
        assert_eq!(serde_json::to_value(rule).unwrap(), expected);
    }
}
