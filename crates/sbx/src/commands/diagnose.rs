//! `sbx diagnose`

use sbx_api::VERSION;
use serde_json::json;

use crate::context::Context;
use crate::diagnose::{self, Check, Group, Status};
use crate::failure::Failure;

/// Check whether this machine can run sandboxes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Output format
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
    /// Print JSON
    #[arg(long, conflicts_with = "output")]
    json: bool,
    #[arg(long, hide = true)]
    upload: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Json,
    GithubIssue,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        self.json || self.output == Some(Format::Json)
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    if args.upload {
        return Err(
            Failure::failed("`--upload` is not supported: nothing is ever uploaded")
                .hint("sbx diagnose -o github-issue"),
        );
    }
    let facts = diagnose::gather(context);
    let checks = diagnose::check(&facts);
    let counts = counts(&checks);
    if args.json() {
        let [pass, warn, fail, skip] = counts;
        context.ui.json(&json!({
            "version": "1.0",
            "checks": checks,
            "summary": {"pass": pass, "warn": warn, "fail": fail, "skip": skip},
        }))?;
    } else if args.output == Some(Format::GithubIssue) {
        context.ui.data(issue(&checks))?;
    } else {
        context.ui.data(text(context, &checks, counts))?;
    }
    let [_, _, failed, _] = counts;
    if failed > 0 {
        return Err(Failure::quiet(1));
    }
    Ok(())
}

fn counts(checks: &[Check]) -> [usize; 4] {
    [Status::Pass, Status::Warn, Status::Fail, Status::Skip]
        .map(|status| checks.iter().filter(|c| c.status == status).count())
}

fn text(context: &Context, checks: &[Check], counts: [usize; 4]) -> String {
    let mut text = String::new();
    for group in Group::ALL {
        text.push_str(&format!("{}\n", context.ui.heading(group.title())));
        for check in checks.iter().filter(|check| check.group == group) {
            text.push_str(&format!(
                "  {} {}: {}\n",
                check.status.mark(),
                check.name,
                check.message
            ));
            for (label, line) in [("", &check.detail), ("hint: ", &check.hint)] {
                if !line.is_empty() {
                    text.push_str(&format!("      {label}{line}\n"));
                }
            }
        }
        text.push('\n');
    }
    let [pass, warn, fail, skip] = counts;
    let warnings = if warn == 1 { "warning" } else { "warnings" };
    text.push_str(&format!(
        "{pass} passed, {warn} {warnings}, {fail} failed, {skip} skipped\n"
    ));
    text
}

fn issue(checks: &[Check]) -> String {
    let mut text = format!("### sbx {VERSION}\n\n| check | status | message |\n|---|---|---|\n");
    for check in checks {
        let message = check.message.replace('|', "\\|");
        text.push_str(&format!(
            "| {} | {} | {message} |\n",
            check.name,
            check.status.word()
        ));
    }
    text
}
