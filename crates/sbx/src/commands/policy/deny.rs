//! `sbx policy deny`

use sbx_api::policy::RuleDecision;

use super::add;
use crate::context::Context;
use crate::failure::Failure;

/// Add deny rules
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    kind: PolicyKind,
}

#[derive(Debug, clap::Subcommand)]
enum PolicyKind {
    /// Deny hosts for all sandboxes, for those of a repository or for one, whatever other rules allow
    ///
    /// See `sbx policy allow network --help` for the form of RESOURCES.
    #[command(after_help = "Examples:\n  sbx policy deny network example.com\n  \
                            sbx policy deny network --sandbox dev '**'")]
    Network(add::Args),
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let PolicyKind::Network(args) = &args.kind;
    add::run(context, args, RuleDecision::Deny, false)
}
