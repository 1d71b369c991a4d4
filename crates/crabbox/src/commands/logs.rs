//! `crabbox logs`

use std::io::{Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use clap::ArgMatches;
use crabbox_core::history::{Bounds, Record, RunStore, Status};
use crabbox_core::process::Stream;
use crabbox_core::{Code, Failure};

use crate::app::App;
use crate::cli::parsed;

/// How often a run that goes on is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Print the output of a run
///
/// What the command wrote to stdout goes to stdout, and what it wrote to stderr goes to stderr.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print only what the command wrote to stdout
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,
    /// Print only what the command wrote to stderr, to stdout
    #[arg(long)]
    stderr: bool,
    /// Print new output until the command ends
    #[arg(short = 'f', long)]
    follow: bool,
    /// Print only the last N lines of each stream
    #[arg(short = 'n', long, value_name = "N")]
    tail: Option<usize>,
    /// Output failures as JSON
    #[arg(long)]
    json: bool,
    /// Run id or unique prefix, slug, or `latest`
    #[arg(value_name = "RUN", default_value = "latest")]
    run: String,
}

/// One stream of the run, and how much of it was printed.
struct Printed {
    stream: Stream,
    /// Where it is printed.
    to: Stream,
    offset: u64,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let ledger = RunStore::new(&app.host.state()?, Bounds::default());
    let record = ledger.find(&args.run)?;
    tell_of_terminal(app, &record);
    let all = match (args.stdout, args.stderr) {
        (false, true) => vec![(Stream::Stderr, Stream::Stdout)],
        (true, _) => vec![(Stream::Stdout, Stream::Stdout)],
        (false, false) => vec![
            (Stream::Stdout, Stream::Stdout),
            (Stream::Stderr, Stream::Stderr),
        ],
    };
    let mut all: Vec<_> = all
        .into_iter()
        .map(|(stream, to)| Printed {
            stream,
            to,
            offset: 0,
        })
        .collect();
    for printed in &mut all {
        let text = printed.rest(&ledger, &record.run_id)?;
        printed.print(app, last_lines(&text, args.tail))?;
    }
    if args.follow {
        follow(app, &ledger, &record.run_id, &mut all)?;
    }
    Ok(0)
}

fn follow(
    app: &App<'_>,
    ledger: &RunStore,
    run_id: &str,
    all: &mut [Printed],
) -> Result<(), Failure> {
    loop {
        // Before the logs are read: what was written before the end is printed.
        let over = ledger.find(run_id)?.run_status != Status::Running;
        for printed in &mut *all {
            let text = printed.rest(ledger, run_id)?;
            printed.print(app, &text)?;
        }
        if over {
            return Ok(());
        }
        if app
            .cancel
            .sleep_until(Instant::now() + POLL_INTERVAL)
            .is_some()
        {
            return Ok(());
        }
    }
}

fn tell_of_terminal(app: &App<'_>, record: &Record) {
    let id = &record.run_id;
    if record.merged {
        app.ui.say(&format!(
            "note: run {id} had a terminal: stdout and stderr are one stream"
        ));
    } else if record.terminal {
        app.ui.say(&format!(
            "run {id} used a terminal (`run -t`); its output was not recorded"
        ));
    }
}

impl Printed {
    /// What was written since the last look.
    fn rest(&mut self, ledger: &RunStore, run_id: &str) -> Result<Vec<u8>, Failure> {
        let mut text = Vec::new();
        let Some(mut log) = ledger.read_log(run_id, self.stream)? else {
            return Ok(text);
        };
        let mut read = || -> std::io::Result<()> {
            // The middle of a long log is replaced when the run ends: what follows is printed from there on.
            self.offset = self.offset.min(log.metadata()?.len());
            log.seek(SeekFrom::Start(self.offset))?;
            log.read_to_end(&mut text).map(drop)
        };
        read().map_err(|error| {
            Failure::new(Code::State, "cannot read the run log").because(&error)
        })?;
        self.offset += text.len() as u64;
        Ok(text)
    }

    fn print(&self, app: &App<'_>, text: &[u8]) -> Result<(), Failure> {
        match self.to {
            Stream::Stdout => app.ui.bytes(text),
            // Like our own lines, it is not missed by a reader that has gone away.
            Stream::Stderr => {
                drop(std::io::stderr().lock().write_all(text));
                Ok(())
            }
        }
    }
}

fn last_lines(text: &[u8], tail: Option<usize>) -> &[u8] {
    let Some(count) = tail else {
        return text;
    };
    let whole = text.strip_suffix(b"\n").unwrap_or(text);
    let breaks = whole.iter().enumerate().rev();
    let mut breaks = breaks.filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    match count {
        0 => &[],
        _ => match breaks.nth(count - 1) {
            Some(at) => text.get(at + 1..).unwrap_or_default(),
            None => text,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole() {
        let text = b"one\ntwo\nthree\n";
        assert_eq!(last_lines(text, None), text);
        assert_eq!(last_lines(text, Some(0)), b"");
        assert_eq!(last_lines(text, Some(1)), b"three\n");
        assert_eq!(last_lines(text, Some(3)), text);
        assert_eq!(last_lines(text, Some(9)), text);
        assert_eq!(last_lines(b"one\ntwo", Some(1)), b"two");
        assert_eq!(last_lines(b"", Some(1)), b"");
    }
}
