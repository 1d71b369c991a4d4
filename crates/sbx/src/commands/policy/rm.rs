//! `sbx policy rm`

use std::path::PathBuf;

use sbx_api::policy::{PolicyRule, RuleList, RuleRemoval};
use sbx_policy::Pattern;

use super::add::line;
use super::repo;
use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind};

/// Remove rules
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    kind: PolicyKind,
}

#[derive(Debug, clap::Subcommand)]
enum PolicyKind {
    /// Remove network rules
    ///
    /// With both `--id` and `--resource`, only what matches both is removed. A resource is removed from every rule
    /// that names it; a rule without resources is removed.
    #[command(
        after_help = "Examples:\n  sbx policy rm network --resource a.test\n  \
                            sbx policy rm network --sandbox dev --id 0b4f..."
    )]
    Network(Network),
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true))]
struct Network {
    /// Remove a rule of this sandbox instead of a global one
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<String>,
    /// Remove a rule of this repository instead of a global one
    #[arg(long, value_name = "PATH", conflicts_with = "sandbox", value_hint = clap::ValueHint::DirPath)]
    repo: Option<PathBuf>,
    /// Id of the rule; see `sbx policy ls --wide`
    #[arg(long, value_name = "ID", group = "which")]
    id: Option<String>,
    /// Comma-separated resources, exactly as in the rules
    #[arg(long = "resource", value_name = "RESOURCES", group = "which")]
    resources: Option<String>,
    #[arg(short = 'f', long, hide = true)]
    force: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let PolicyKind::Network(args) = &args.kind;
    let resources = match &args.resources {
        None => Vec::new(),
        Some(text) => Pattern::parse_list(text)
            .map_err(|error| Failure::new(Kind::BadRequest, error.to_string()))?,
    };
    let repo = match &args.repo {
        None => None,
        Some(path) => repo::path(repo::known(context, path)?),
    };
    let client = Client::new(context, Absent::Start)?;
    let removed = client.remove_rules(&RuleRemoval {
        sandbox: args.sandbox.clone(),
        repo,
        id: args.id.clone(),
        resources: resources.iter().map(Pattern::to_string).collect(),
    })?;
    context.ui.data(to_text(&removed))
}

fn to_text(removed: &RuleList) -> String {
    let text = |rule: &PolicyRule| {
        let mut remaining = removed.remaining.iter();
        match remaining.find(|left| left.id == rule.id) {
            None => line("removed from", rule),
            Some(left) => part(rule, left),
        }
    };
    removed.rules.iter().map(text).collect()
}

/// `Resource a.test removed from rule ID of policy local (scope: sandbox:dev), which keeps 2: b.test,c.test`
fn part(taken: &PolicyRule, left: &PolicyRule) -> String {
    let plural = if taken.resources.len() == 1 { "" } else { "s" };
    format!(
        "Resource{plural} {} removed from rule {} of policy {} (scope: {}), which keeps {}: {}\n",
        taken.resources.join(","),
        left.id,
        left.policy_id,
        left.scope,
        left.resources.len(),
        left.resources.join(",")
    )
}
