//! `sbx policy allow`

use sbx_api::policy::RuleDecision;

use super::add;
use crate::context::Context;
use crate::failure::Failure;

/// Add allow rules
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Allow hosts for all sandboxes or for one
    ///
    /// RESOURCES is a comma-separated list. `example.com` means every port of that host, `example.com:443` one port;
    /// `*.example.com` matches one label, `**.example.com` any number of labels; addresses and networks
    /// (`192.0.2.1`, `10.0.0.0/8`) and `**` for everything are possible. `localhost:PORT` is a service of this
    /// machine, which is `host.docker.internal:PORT` inside.
    #[command(after_help = "Examples:\n  sbx policy allow network example.com\n  \
                            sbx policy allow network --sandbox dev 'a.test:443,*.b.test'\n  \
                            sbx policy allow network --for 10m '**.example.com'")]
    Network(add::Args),
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let What::Network(args) = &args.what;
    add::run(context, args, RuleDecision::Allow)
}
