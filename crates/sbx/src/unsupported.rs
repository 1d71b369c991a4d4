//! Commands and flags of Docker's `sbx` that this version does not have. They are recognised, so that the error can say
//! "not yet supported" instead of "unknown".

use std::ffi::OsString;

use crate::failure::{Failure, Kind};

/// Commands of Docker's `sbx` without an implementation here.
const COMMANDS: [&str; 7] = ["env", "kit", "logout", "mcp", "secret", "skills", "tui"];

pub(crate) fn is_unsupported_command(name: &str) -> bool {
    COMMANDS.contains(&name)
}

/// When the image of a template is pulled; `host` has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Pull {
    Always,
    Missing,
    Never,
}

/// Flags of `create` and `run` that are parsed and then refused by [`Self::check`].
#[derive(Debug, Default, Clone, clap::Args)]
pub(crate) struct UnsupportedFlags {
    #[arg(long, hide = true)]
    clone: bool,
    #[arg(long, hide = true)]
    kit: Vec<String>,
    #[arg(long, hide = true)]
    profile: Option<String>,
    #[arg(long, hide = true)]
    static_mcp: Vec<String>,
    #[arg(long, hide = true)]
    mcp: Vec<String>,
    #[arg(long, hide = true)]
    no_share_skills: bool,
    #[arg(
        long,
        hide = true,
        alias = "pull-template",
        value_name = "always|missing|never"
    )]
    pull: Option<Pull>,
    #[arg(long, hide = true)]
    load_local_template: bool,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    gpu: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    usb: Option<Option<String>>,
    #[arg(long, hide = true)]
    nested: bool,
    #[arg(long, hide = true)]
    model: Option<String>,
    #[arg(long, hide = true)]
    provider: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1)]
    branch: Option<Option<OsString>>,
}

impl UnsupportedFlags {
    /// Values that ask for the default behaviour (`-t host`, `--pull missing`) are accepted. `--load-local-template` is
    /// about the template of `-t`: there is nothing to load for `host`.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.branch.is_some() {
            return Err(
                Failure::new(Kind::BadRequest, "`--branch` is no longer supported")
                    .hint("use `--clone`, which a later version of sbx will support"),
            );
        }
        let given = [
            ("--clone", self.clone),
            ("--kit", !self.kit.is_empty()),
            ("--profile", self.profile.is_some()),
            ("--static-mcp", !self.static_mcp.is_empty()),
            ("--mcp", !self.mcp.is_empty()),
            ("--pull always", self.pull == Some(Pull::Always)),
            ("--gpu", self.gpu.is_some()),
            ("--usb", self.usb.is_some()),
            ("--nested", self.nested),
            ("--model", self.model.is_some()),
            ("--provider", self.provider.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Failure::not_yet(flag)),
            None => Ok(()),
        }
    }
}
