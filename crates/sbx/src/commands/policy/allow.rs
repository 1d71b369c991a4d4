//! `sbx policy allow`

use sbx_api::policy::RuleDecision;

use super::add;
use crate::context::Context;
use crate::failure::Failure;

/// Add allow rules
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    kind: PolicyKind,
}

#[derive(Debug, clap::Subcommand)]
enum PolicyKind {
    /// Allow hosts for all sandboxes, for those of a repository or for one
    ///
    /// RESOURCES is a comma-separated list. `example.com` means every port of that host, `example.com:443` one port;
    /// `*.example.com` matches one label, `**.example.com` any number of labels; addresses and networks
    /// (`192.0.2.1`, `10.0.0.0/8`) and `**` for everything are possible. `localhost:PORT` is a service of this
    /// machine, which is `host.docker.internal:PORT` inside. A host that resolves to a private, loopback, link-local or
    /// metadata address also needs a rule for that address, or --allow-private.
    #[command(after_help = "Examples:\n  sbx policy allow network example.com\n  \
                            sbx policy allow network --sandbox dev 'a.test:443,*.b.test'\n  \
                            sbx policy allow network --repo . api.example.com\n  \
                            sbx policy allow network --for 10m '**.example.com'\n  \
                            sbx policy allow network --allow-private db.corp.example:5432")]
    Network(Network),
}

#[derive(Debug, clap::Args)]
struct Network {
    #[command(flatten)]
    add: add::Args,
    /// Let these hosts resolve to private, loopback, link-local and metadata addresses (exact hosts only)
    #[arg(long)]
    allow_private: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let PolicyKind::Network(args) = &args.kind;
    add::run(context, &args.add, RuleDecision::Allow, args.allow_private)
}
