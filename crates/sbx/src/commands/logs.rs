//! `sbx logs`: the output of detached commands, read from the log files, so that no daemon is needed. The files are
//! written by the sandbox's init and therefore untrusted.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use sbx_engine::SandboxName;
use sbx_proto::OsBytes;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::failure::Failure;
use crate::lookup;

/// Upper bound for reading a log file.
const MAX_FILE: u64 = 256 << 20;

/// Show the output of detached commands
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the sandbox
    #[arg(value_name = "SANDBOX")]
    name: String,
    /// Print the records as JSON, one per line
    #[arg(long)]
    pub(crate) json: bool,
    #[arg(short = 'f', long, hide = true)]
    follow: bool,
}

/// One line of a log file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    t: String,
    #[serde(rename = "gen")]
    generation: u64,
    id: u64,
    s: Source,
    #[serde(default)]
    d: OsBytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    Out,
    Err,
    Start,
    Exit,
    /// Older output was rotated away.
    Dropped,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    if args.follow {
        return Err(Failure::not_yet("logs --follow"));
    }
    let state = context.state()?;
    state.check_own()?;
    let directory = SandboxName::parse(&args.name)
        .ok()
        .map(|name| state.sandbox(&name))
        .filter(|directory| directory.record().exists());
    let Some(directory) = directory else {
        return Err(crate::client::unknown(&args.name, &lookup::list(context)?));
    };
    let mut records = Vec::new();
    for path in directory.outputs() {
        read(&path, &mut records).map_err(|error| {
            Failure::failed(format!("cannot read `{}`: {error}", path.display()))
        })?;
    }
    records.sort_by_key(|record| record.generation);
    if !args.json && records.iter().any(|record| record.s == Source::Dropped) {
        context
            .ui
            .note("note: older output was dropped; the newest 8 to 16 MiB are kept");
    }
    for record in &records {
        print(context, args, record)?;
    }
    Ok(())
}

fn print(context: &Context, args: &Args, record: &Record) -> Result<(), Failure> {
    if args.json {
        let line = serde_json::to_string(record)
            .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
        return context.ui.data(line + "\n");
    }
    match record.s {
        Source::Out => context.ui.data(record.d.as_bytes()),
        Source::Err => {
            context.ui.stderr(record.d.as_bytes());
            Ok(())
        }
        Source::Start | Source::Exit | Source::Dropped => Ok(()),
    }
}

/// Adds the records of a file that may not exist. Invalid lines are skipped; the last one may be half-written.
fn read(path: &Path, records: &mut Vec<Record>) -> io::Result<()> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let lines = BufReader::new(file.take(MAX_FILE)).split(b'\n');
    for line in lines {
        records.extend(serde_json::from_slice::<Record>(&line?).ok());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn broken_lines_are_skipped_and_bytes_survive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output.0.log");
        let text = concat!(
            "{\"t\":\"2026-01-01T00:00:00Z\",\"gen\":1,\"id\":1,\"s\":\"start\"}\n",
            "garbage\n",
            "{\"t\":\"2026-01-01T00:00:00Z\",\"gen\":1,\"id\":1,\"s\":\"out\",\"d\":[255,10]}\n",
            "{\"t\":\"2026-01-",
        );
        File::create(&path)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let mut records = Vec::new();
        read(&path, &mut records).unwrap();
        let seen: Vec<_> = records.iter().map(|r| (r.s, r.d.as_bytes())).collect();
        assert_eq!(seen, [(Source::Start, &b""[..]), (Source::Out, b"\xff\n")]);
        read(&dir.path().join("missing"), &mut records).unwrap();
    }
}
