//! `sbx policy allow`

use sbx_api::policy::RuleDecision;

use super::add;
use crate::context::Context;
use crate::failure::Failure;

/// Allow sandboxes to reach something
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Allow hosts, for all sandboxes or for one
    ///
    /// RESOURCES is a list with commas. `example.com` is that host on every port, `example.com:443` on one;
    /// `*.example.com` is one label before it, `**.example.com` any number; addresses and networks
    /// (`192.0.2.1`, `10.0.0.0/8`) and `**` for everything. `localhost:PORT` is a service of this machine, which
    /// is `host.docker.internal:PORT` inside.
    #[command(after_help = "Examples:\n  sbx policy allow network example.com\n  \
                            sbx policy allow network --sandbox dev 'a.test:443,*.b.test'\n  \
                            sbx policy allow network --for 10m '**.example.com'")]
    Network(add::Args),
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let What::Network(args) = &args.what;
    add::run(context, args, RuleDecision::Allow)
}
