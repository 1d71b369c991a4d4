//! `sbx policy log`

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use sbx_policy::Pattern;
use sbx_proxy::audit::{Line, Outcome, Phase, time_text};
use serde_json::{Value, json};

use super::RuleType;
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::netlog::{Cursor, Filter, NetworkLog, Row, place, rows, via};
use crate::{text, time_args};

/// How often `--follow` reads the files.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Show allowed and denied requests of sandboxes
///
/// Requests of a sandbox to the same host by the same way are one row, with the address that was dialled last or that
/// was the reason of a denial. The log is kept when a sandbox is removed.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "sbx policy log [SANDBOX] [OPTIONS]",
    after_help = "Examples:\n  sbx policy log dev --verdict deny\n  sbx policy log dev --since 10m --json\n  \
                  sbx policy log -f"
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) shown: Shown,
    /// Type of the entries (there are no filesystem entries)
    #[arg(long = "type", value_enum, default_value_t = RuleType::All)]
    kind: RuleType,
    /// Print new requests until interrupted, one per line; with --since or --limit also earlier ones
    #[arg(short = 'f', long)]
    follow: bool,
    /// Only requests since this time: a duration (10m, 2d) or a timestamp (2026-01-31T12:00:00Z)
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Only requests before this time
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
    /// Only hosts that match this pattern, written as in rules
    #[arg(long, value_name = "PATTERN")]
    host: Option<String>,
    /// Only allowed, or only denied requests
    #[arg(long, value_enum)]
    verdict: Option<Verdict>,
    /// Also show allowed DNS queries
    #[arg(long)]
    dns: bool,
}

/// Flags of both log commands.
#[derive(Debug, clap::Args)]
pub(crate) struct Shown {
    /// Only this sandbox
    #[arg(value_name = "SANDBOX")]
    pub(crate) sandbox: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show only the latest N entries (0 for all)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) limit: usize,
    /// Print entries without headings
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Verdict {
    Allow,
    Deny,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let filter = filter(args, Timestamp::now())?;
    let log = NetworkLog::of(&context.state()?)?;
    if let Some(sandbox) = &args.shown.sandbox {
        check_name(context, &log, sandbox)?;
    }
    if args.follow {
        return follow(context, args, &log, &filter);
    }
    let mut found = rows(&read(
        context,
        &log,
        args.shown.sandbox.as_deref(),
        &filter,
    )?);
    if args.kind == RuleType::Filesystem {
        found.clear();
    }
    if args.shown.limit > 0 {
        found.truncate(args.shown.limit);
    }
    if args.shown.json {
        return context.ui.json(&to_json(&found));
    }
    context
        .ui
        .data(to_text(&found, args.shown.quiet, &TimeZone::system()))
}

/// The lines that match the filter; unreadable ones are counted in a warning.
pub(crate) fn read(
    context: &Context,
    log: &NetworkLog,
    sandbox: Option<&str>,
    filter: &Filter,
) -> Result<Vec<Line>, Failure> {
    let mut entries = log.read(sandbox)?;
    if entries.damaged > 0 {
        context.ui.warning(format!(
            "skipped {} damaged line(s) of the network log",
            entries.damaged
        ));
    }
    entries.lines.retain(|line| filter.takes(line));
    Ok(entries.lines)
}

/// Fails unless the sandbox exists or has left a log.
pub(crate) fn check_name(context: &Context, log: &NetworkLog, name: &str) -> Result<(), Failure> {
    if log.sandboxes()?.iter().any(|known| known == name) {
        return Ok(());
    }
    super::existing(context, name).map(drop)
}

fn filter(args: &Args, now: Timestamp) -> Result<Filter, Failure> {
    let moment = |text: &Option<String>| {
        text.as_deref()
            .map(|t| time_args::timestamp(t, now))
            .transpose()
    };
    let pattern = |text: &String| {
        text.parse::<Pattern>()
            .map_err(|error| Failure::new(Kind::BadRequest, format!("--host: {error}")))
    };
    Ok(Filter {
        since: moment(&args.since)?,
        until: moment(&args.until)?,
        host: args.host.as_ref().map(pattern).transpose()?,
        verdict: args.verdict.map(|verdict| match verdict {
            Verdict::Allow => Outcome::Allow,
            Verdict::Deny => Outcome::Deny,
        }),
        dns: args.dns,
    })
}

fn to_json(rows: &[Row]) -> Value {
    let hosts = |verdict: Outcome| -> Vec<Value> {
        let rows = rows.iter().filter(|row| row.verdict == verdict);
        rows.map(|row| {
            json!({
                "host": row.host,
                "address": row.address,
                "vm_name": row.sandbox,
                "proxy_type": via(row.proxy),
                "rule": row.rule,
                "last_seen": time_text(row.last_seen),
                "since": time_text(row.since),
                "count_since": row.count,
                "reason": row.outcome(),
            })
        })
        .collect()
    };
    json!({"blocked_hosts": hosts(Outcome::Deny), "allowed_hosts": hosts(Outcome::Allow)})
}

fn to_text(rows: &[Row], quiet: bool, zone: &TimeZone) -> String {
    let mut tables = Vec::new();
    for (title, verdict) in [
        ("Blocked requests:", Outcome::Deny),
        ("Allowed requests:", Outcome::Allow),
    ] {
        let mut cells: Vec<Vec<String>> = rows
            .iter()
            .filter(|row| row.verdict == verdict)
            .map(|row| cells(row, zone))
            .collect();
        if cells.is_empty() {
            continue;
        }
        if quiet {
            tables.push(text::table(&cells).join("\n") + "\n");
            continue;
        }
        let header = [
            "SANDBOX",
            "TYPE",
            "HOST",
            "ADDRESS",
            "PROXY",
            "RULE",
            "REASON",
            "LAST SEEN",
            "COUNT",
        ];
        cells.insert(0, header.map(str::to_owned).to_vec());
        tables.push(format!("{title}\n{}\n", text::table(&cells).join("\n")));
    }
    match (tables.is_empty(), quiet) {
        (true, true) => String::new(),
        (true, false) => "No requests found.\n".to_owned(),
        (false, true) => tables.concat(),
        (false, false) => tables.join("\n"),
    }
}

fn cells(row: &Row, zone: &TimeZone) -> Vec<String> {
    vec![
        text::one_line(&row.sandbox),
        "network".to_owned(),
        text::one_line(&row.host),
        row.address
            .map_or("-".to_owned(), |address| address.to_string()),
        via(row.proxy).to_owned(),
        text::one_line(&row.rule),
        text::one_line(&row.outcome()),
        seen(row.last_seen, zone),
        row.count.to_string(),
    ]
}

/// `10:15:25 29-Jan`
fn seen(time: Timestamp, zone: &TimeZone) -> String {
    let time = time.to_zoned(zone.clone());
    time.strftime("%H:%M:%S %d-%b").to_string()
}

/// Prints lines as they are written, until `--until` or an interrupt.
fn follow(
    context: &Context,
    args: &Args,
    log: &NetworkLog,
    filter: &Filter,
) -> Result<(), Failure> {
    let mut tail = Tail::default();
    let earlier = args.since.is_some() || args.shown.limit > 0;
    let mut lines = tail.look(log, args.shown.sandbox.as_deref())?;
    lines.retain(|line| filter.takes(line));
    if !earlier {
        lines.clear();
    } else if args.shown.limit > 0 {
        let skipped = lines.len().saturating_sub(args.shown.limit);
        lines.drain(..skipped);
    }
    let zone = TimeZone::system();
    // Taken before the files are read, so that no line before `until` is missed.
    let mut now = Timestamp::now();
    loop {
        for line in &lines {
            if let Some(text) = tail.shown(line, args.shown.json, &zone)? {
                context.ui.data(text)?;
            }
        }
        if filter.until.is_some_and(|until| until <= now) {
            return Ok(());
        }
        sleep(POLL_INTERVAL);
        now = Timestamp::now();
        lines = tail.look(log, args.shown.sandbox.as_deref())?;
        lines.retain(|line| filter.takes(line));
    }
}

#[derive(Debug, Default)]
struct Tail {
    cursors: BTreeMap<String, Cursor>,
    /// Connections that were shown while they were open, with their destination.
    open: BTreeMap<(String, Timestamp, u64), String>,
}

impl Tail {
    /// New lines, sorted by time.
    fn look(&mut self, log: &NetworkLog, sandbox: Option<&str>) -> Result<Vec<Line>, Failure> {
        let sandboxes = match sandbox {
            Some(sandbox) => vec![sandbox.to_owned()],
            None => log.sandboxes()?,
        };
        let mut lines = Vec::new();
        for sandbox in sandboxes {
            let cursor = self.cursors.entry(sandbox.clone()).or_default();
            lines.extend(log.read_on(&sandbox, cursor)?.lines);
        }
        lines.sort_by_key(|line| line.time);
        Ok(lines)
    }

    /// The line as JSON or text. In text, the end of a connection that was shown already is left out, unless it was cut.
    fn shown(
        &mut self,
        line: &Line,
        json: bool,
        zone: &TimeZone,
    ) -> Result<Option<String>, Failure> {
        if json {
            let text = serde_json::to_string(line)
                .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
            return Ok(Some(text + "\n"));
        }
        let key = (line.sandbox.clone(), line.time, line.id);
        let known = self.open.remove(&key);
        if line.phase == Phase::Open {
            self.open.insert(key, place(line));
        }
        let known = known.is_some_and(|known| known == place(line));
        let (verdict, reason) = match (line.cut(), line.verdict) {
            (Some(why), _) => ("cut", why),
            (None, _) if known => return Ok(None),
            (None, Outcome::Allow) => ("allow", line.reason.as_str()),
            (None, Outcome::Deny) => ("deny", line.reason.as_str()),
        };
        Ok(Some(format!(
            "{}  {verdict:<5}  {}  {}  {}  {}\n",
            seen(line.time, zone),
            text::one_line(&line.sandbox),
            text::one_line(&place(line)),
            via(line.proxy),
            text::one_line(reason),
        )))
    }
}

#[cfg(test)]
mod tests;
