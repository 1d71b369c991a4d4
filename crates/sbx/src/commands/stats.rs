//! `sbx stats`

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::thread::sleep;
use std::time::{Duration, Instant};

use sbx_api::{Limits, Sandbox, Status, Usage};
use serde_json::{Value, json};

use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::{lookup, text};

/// How often the table is drawn again, and over which time CPU use is taken.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
/// The same for a single look.
const SINGLE_LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The cursor to the top, and everything below it erased.
const REDRAW: &str = "\x1b[H\x1b[J";

/// Show what running sandboxes use
///
/// CPU is in percent of one CPU. Memory is without cached files. What is not limited has `-` as its limit.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of sandboxes [default: all that run]
    #[arg(value_name = "SANDBOX")]
    names: Vec<String>,
    /// Print once, not until interrupted
    #[arg(long)]
    no_stream: bool,
    /// Print JSON, once
    #[arg(long)]
    pub(crate) json: bool,
}

/// One look at a sandbox.
#[derive(Debug)]
struct Row {
    name: String,
    usage: Usage,
    limits: Limits,
    /// Thousandths of one CPU, once it is known.
    cpu_millis: Option<u64>,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let client = Client::new(context, Absent::Report)?;
    let once = args.no_stream || args.json || !std::io::stdout().is_terminal();
    let mut meter = Meter::default();
    look(context, &client, args, &mut meter)?;
    sleep(SINGLE_LOOK_INTERVAL);
    loop {
        let rows = look(context, &client, args, &mut meter)?;
        if args.json {
            let rows: Vec<Value> = rows.iter().map(to_json).collect();
            return context.ui.json(&json!({"sandboxes": rows}));
        }
        let shown = table(context, &rows);
        if once {
            return context.ui.data(shown);
        }
        context.ui.data(format!("{REDRAW}{shown}"))?;
        sleep(REDRAW_INTERVAL);
    }
}

fn look(
    context: &Context,
    client: &Client<'_>,
    args: &Args,
    meter: &mut Meter,
) -> Result<Vec<Row>, Failure> {
    let sandboxes = lookup::list(context)?;
    let wanted: Vec<&Sandbox> = if args.names.is_empty() {
        let running = |sandbox: &&Sandbox| sandbox.status == Status::Running;
        sandboxes.iter().filter(running).collect()
    } else {
        let named = args.names.iter();
        let found = named.map(|name| lookup::find(&sandboxes, name));
        found.collect::<Result<_, _>>()?
    };
    let mut rows = Vec::new();
    for sandbox in wanted {
        let usage = match client.usage(&sandbox.name, false) {
            Ok(usage) => usage,
            // Without a daemon nothing runs for long; and one may be removed meanwhile.
            Err(failure) if matches!(failure.kind, Kind::NoDaemon | Kind::NotFound) => {
                Usage::default()
            }
            Err(failure) => return Err(failure),
        };
        rows.push(Row {
            name: sandbox.name.clone(),
            usage,
            limits: sandbox.limits,
            cpu_millis: meter.measure(&sandbox.id, usage.cpu_micros, Instant::now()),
        });
    }
    Ok(rows)
}

/// Turns CPU time into CPU use.
#[derive(Debug, Default)]
struct Meter {
    last: BTreeMap<String, (Instant, u64)>,
}

impl Meter {
    fn measure(&mut self, id: &str, cpu_micros: u64, now: Instant) -> Option<u64> {
        let (then, before) = self.last.insert(id.to_owned(), (now, cpu_micros))?;
        let micros = now.saturating_duration_since(then).as_micros();
        let used = u128::from(cpu_micros.saturating_sub(before)) * 1000;
        u64::try_from(used.checked_div(micros)?).ok()
    }
}

fn table(context: &Context, rows: &[Row]) -> String {
    let header = ["SANDBOX", "CPU", "MEMORY", "LIMIT", "PIDS", "LIMIT"].map(str::to_owned);
    let mut cells = vec![header.to_vec()];
    for row in rows {
        cells.push(vec![
            row.name.clone(),
            row.cpu_millis.map_or_else(|| "-".to_owned(), percent),
            text::bytes(row.usage.memory_bytes),
            row.limits
                .memory_bytes
                .map_or_else(|| "-".to_owned(), text::bytes),
            row.usage.processes.to_string(),
            row.limits
                .processes
                .map_or_else(|| "-".to_owned(), |count| count.to_string()),
        ]);
    }
    let mut lines = text::table(&cells);
    if let Some(header) = lines.first_mut() {
        *header = context.ui.heading(header);
    }
    lines.join("\n") + "\n"
}

fn percent(millis: u64) -> String {
    format!("{}.{}%", millis / 10, millis % 10)
}

fn to_json(row: &Row) -> Value {
    json!({
        "name": row.name,
        "cpu_millis": row.cpu_millis,
        "cpu_micros": row.usage.cpu_micros,
        "memory_bytes": row.usage.memory_bytes,
        "processes": row.usage.processes,
        "limits": row.limits,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_time_over_time() {
        let mut meter = Meter::default();
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        assert_eq!(meter.measure("a", 100, start), None);
        assert_eq!(meter.measure("a", 100_100, after(200)), Some(500));
        assert_eq!(meter.measure("b", 7, after(200)), None);
        // Restarted: its time begins anew.
        assert_eq!(meter.measure("a", 0, after(300)), Some(0));
        assert_eq!(meter.measure("a", 0, after(300)), None);
        assert_eq!(percent(1505), "150.5%");
    }
}
