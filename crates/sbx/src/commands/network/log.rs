//! `sbx network log`

use sbx_proxy::audit::{Entrance, Line, Outcome, time_text};
use serde_json::{Value, json};

use crate::commands::policy::log::{Shown, check_name, read};
use crate::context::Context;
use crate::failure::Failure;
use crate::netlog::{Filter, NetworkLog, place};
use crate::text;

/// Show what sandboxes requested, one line per request
#[derive(Debug, clap::Args)]
#[command(override_usage = "sbx network log [SANDBOX] [OPTIONS]")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) shown: Shown,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let log = NetworkLog::of(&context.state()?)?;
    if let Some(sandbox) = &args.shown.sandbox {
        check_name(context, &log, sandbox)?;
    }
    let mut lines = read(
        context,
        &log,
        args.shown.sandbox.as_deref(),
        &Filter::default(),
    )?;
    if args.shown.limit > 0 {
        let skipped = lines.len().saturating_sub(args.shown.limit);
        lines.drain(..skipped);
    }
    if args.shown.json {
        let entries: Vec<Value> = lines.iter().map(entry).collect();
        return context.ui.json(&json!({"entries": entries}));
    }
    context.ui.data(to_text(&lines, args.shown.quiet))
}

fn entry(line: &Line) -> Value {
    json!({
        "timestamp": time_text(line.time),
        "sandbox": line.sandbox,
        "type": kind(line),
        "method": method(line),
        "url": url(line),
        "action": action(line),
    })
}

fn to_text(lines: &[Line], quiet: bool) -> String {
    if lines.is_empty() {
        return if quiet { "" } else { "No requests found.\n" }.to_owned();
    }
    let header = ["TIMESTAMP", "SANDBOX", "TYPE", "METHOD", "URL", "ACTION"];
    let mut rows = Vec::new();
    if !quiet {
        rows.push(header.map(str::to_owned).to_vec());
    }
    for line in lines {
        rows.push(vec![
            time_text(line.time),
            text::one_line(&line.sandbox),
            kind(line).to_owned(),
            method(line).to_owned(),
            text::one_line(&url(line)),
            action(line).to_owned(),
        ]);
    }
    text::table(&rows).join("\n") + "\n"
}

fn kind(line: &Line) -> &'static str {
    match (line.entrance, line.port) {
        (Entrance::Dns, _) => "dns",
        (Entrance::Http, _) | (Entrance::Transparent, Some(80)) => "http",
        (Entrance::Connect, _) | (Entrance::Transparent, Some(443)) => "https",
        (Entrance::Transparent | Entrance::Socks5, _) => "tcp",
    }
}

/// Only CONNECT is known: the content of requests is not logged.
fn method(line: &Line) -> &'static str {
    match line.entrance {
        Entrance::Connect => "CONNECT",
        Entrance::Http | Entrance::Transparent | Entrance::Socks5 | Entrance::Dns => "",
    }
}

/// Empty if the request had no valid host.
fn url(line: &Line) -> String {
    if line.host.is_empty() {
        return String::new();
    }
    match kind(line) {
        "http" => format!("http://{}/", place(line)),
        "https" => format!("https://{}/", place(line)),
        _ => place(line),
    }
}

fn action(line: &Line) -> &'static str {
    match line.verdict {
        Outcome::Allow => "allow",
        Outcome::Deny => "deny",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlog::tests::line;

    #[test]
    fn the_shape_of_an_entry() {
        let line = line("dev", "a.test", Outcome::Deny);
        let expected = json!({
            "timestamp": "2026-01-29T10:15:25.000000000Z",
            "sandbox": "dev",
            "type": "https",
            "method": "CONNECT",
            "url": "https://a.test:443/",
            "action": "deny",
        });
        assert_eq!(entry(&line), expected);
        let text = "\
TIMESTAMP                       SANDBOX  TYPE   METHOD   URL                  ACTION
2026-01-29T10:15:25.000000000Z  dev      https  CONNECT  https://a.test:443/  deny
";
        assert_eq!(to_text(std::slice::from_ref(&line), false), text);
        assert_eq!(to_text(&[line], true).lines().count(), 1);
        assert_eq!(to_text(&[], true), "");
    }

    #[test]
    fn other_traffic_has_no_url() {
        let mut ssh = line("dev", "git.test", Outcome::Allow);
        ssh.entrance = Entrance::Transparent;
        ssh.port = Some(22);
        assert_eq!((kind(&ssh), url(&ssh).as_str()), ("tcp", "git.test:22"));
        let mut nonsense = line("dev", "", Outcome::Deny);
        nonsense.entrance = Entrance::Http;
        nonsense.port = None;
        assert_eq!((kind(&nonsense), url(&nonsense).as_str()), ("http", ""));
        ssh.entrance = Entrance::Dns;
        ssh.port = None;
        assert_eq!((kind(&ssh), url(&ssh).as_str()), ("dns", "git.test"));
    }
}
