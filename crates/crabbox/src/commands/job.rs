//! `crabbox job list|run`

use clap::{Arg, ArgMatches, Command};
use crabbox_core::command::{display, run_words};
use crabbox_core::lifecycle;
use crabbox_core::settings::{JobSpec, Settings, StopPolicy};
use crabbox_core::{Code, Failure};
use serde::Serialize;
use std::time::Duration;

use super::warmup;
use crate::app::App;
use crate::cli;

/// What is left of a job after Ctrl-C has this long.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// What stands for a lease that does not exist yet.
const LEASE: &str = "<lease>";

pub(crate) fn command(name: &'static str) -> Command {
    let run = Command::new("run")
        .about("Run a job: create a sandbox, run the command, stop the sandbox")
        .arg(
            Arg::new("name")
                .value_name("NAME")
                .required(true)
                .help("Job, as `crabbox job list` shows it"),
        )
        .arg(
            Arg::new("id")
                .long("id")
                .value_name("LEASE")
                .help("Run in an existing lease: its slug, id or sandbox name"),
        )
        .arg(
            Arg::new("stop")
                .long("stop")
                .value_name("POLICY")
                .help("When to stop the lease: auto, always, success, failure or never"),
        )
        .arg(cli::switch(
            "dry-run",
            "Print the commands without running them",
        ))
        .arg(cli::switch("json", "Output failures as JSON"))
        .arg(cli::switch("no-hydrate", "").hide(true))
        .arg(cli::switch("github-runner", "").hide(true));
    Command::new(name)
        .about("List and run the jobs of the configuration")
        .long_about(
            "List and run the jobs of the configuration\n\n\
             A job is a command with a name, under `jobs` in .crabbox.yaml or in your own file; `crabbox init --detect` \
             writes one that fits the repository.",
        )
        .subcommand_required(true)
        .subcommand(
            Command::new("list")
                .about("List the jobs")
                .arg(cli::switch("json", "Output as JSON")),
        )
        .subcommand(run)
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    match matches.subcommand() {
        Some(("run", matches)) => run(app, matches),
        Some((_, matches)) => list(app, matches),
        None => Err(Failure::usage("usage: crabbox job list|run")),
    }
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    name: &'a str,
    command: &'a str,
    shell: bool,
    stop: &'static str,
    file: String,
    line: u64,
}

fn list(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let settings = app.lenient_settings(matches)?;
    let jobs = settings.jobs.iter().map(|(name, job)| Shown {
        name,
        command: &job.command,
        shell: job.shell,
        stop: job.stop.as_str(),
        file: job.file.display().to_string(),
        line: job.line,
    });
    if matches.get_flag("json") {
        app.ui.json(&jobs.collect::<Vec<_>>())?;
        return Ok(0);
    }
    let lines = jobs.map(|job| {
        let command = crabbox_core::printable(job.command.trim());
        format!("{:<20} stop={:<8} {command}\n", job.name, job.stop)
    });
    let lines = lines.collect::<String>();
    if lines.is_empty() && app.ui.data_is_for_people(false) {
        let nothing = "No jobs. `crabbox init --detect` writes one that fits the repository.\n";
        app.ui.data(nothing)?;
    } else {
        app.ui.data(&lines)?;
    }
    Ok(0)
}

/// The commands that a job comes to.
#[derive(Debug)]
struct Plan {
    /// `None` in a lease that exists.
    warmup: Option<Vec<String>>,
    /// Without the lease.
    run: Vec<String>,
    command: Vec<String>,
    policy: StopPolicy,
}

impl Plan {
    fn new(job: &JobSpec, id: Option<&String>, policy: StopPolicy) -> Result<Self, Failure> {
        let flags = || {
            let flags = job.flags.iter();
            flags.flat_map(|(flag, value)| [format!("--{flag}"), value.clone()])
        };
        let warmup = match id {
            Some(_) => None,
            None => Some(["warmup".to_owned()].into_iter().chain(flags()).collect()),
        };
        // What only matters to a new sandbox is refused for one that exists.
        let mut run = vec!["run".to_owned()];
        for (flag, value) in &job.flags {
            if matches!(*flag, "provider" | "profile" | "target") {
                run.extend([format!("--{flag}"), value.clone()]);
            }
        }
        for (asked, flag) in [
            (job.shell, "--shell"),
            (job.no_sync, "--no-sync"),
            (job.sync_only, "--sync-only"),
            (job.force_sync_large, "--force-sync-large"),
        ] {
            run.extend(asked.then(|| flag.to_owned()));
        }
        if let Some(label) = &job.label {
            run.extend(["--label".to_owned(), label.clone()]);
        }
        let command = match (job.sync_only, job.shell) {
            (true, _) => Vec::new(),
            (false, true) => vec![job.command.trim().to_owned()],
            (false, false) => {
                let (flag, words) = run_words(&job.command)?;
                run.extend(flag.map(str::to_owned));
                words
            }
        };
        Ok(Self {
            warmup,
            run,
            command,
            policy,
        })
    }

    fn run_in(&self, lease: &str) -> Vec<String> {
        let mut words = self.run.clone();
        words.extend(["--id".to_owned(), lease.to_owned()]);
        if !self.command.is_empty() {
            words.push("--".to_owned());
            words.extend(self.command.iter().cloned());
        }
        words
    }

    fn stop(&self, lease: &str) -> Vec<String> {
        vec!["stop".to_owned(), lease.to_owned()]
    }

    /// What would be run, for people to read and to paste.
    fn text(&self, name: &str, id: Option<&String>) -> String {
        let lease = id.map_or(LEASE, String::as_str);
        let shown = |words: &[String]| {
            let shown = display(words).replace("'<lease>'", LEASE);
            format!("crabbox {shown}\n")
        };
        let mut text = format!("# job {name}\n");
        text.extend(self.warmup.as_deref().map(shown));
        text.push_str(&shown(&self.run_in(lease)));
        let stop = shown(&self.stop(lease));
        let own = self.warmup.is_some();
        match (self.policy.stops(own, true), self.policy.stops(own, false)) {
            (true, true) => text.push_str(&stop),
            (true, false) => text.push_str(&format!("# if it succeeds\n{stop}")),
            (false, true) => text.push_str(&format!("# if it fails\n{stop}")),
            (false, false) => {}
        }
        text
    }
}

fn run(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let name = matches.get_one::<String>("name").map_or("", String::as_str);
    let id = matches.get_one::<String>("id");
    if matches.get_flag("github-runner") {
        let message = "--github-runner requires an SSH lease provider";
        return Err(Failure::new(Code::Unsupported, message));
    }
    let settings = app.settings(matches)?;
    let job = find(&settings, name)?;
    let policy = match matches.get_one::<String>("stop") {
        None => job.stop,
        Some(word) => StopPolicy::parse(word).ok_or_else(|| {
            let all = StopPolicy::all();
            Failure::usage(format!(
                "invalid --stop `{}`, expected one of {all}",
                crabbox_core::printable(word)
            ))
        })?,
    };
    let plan = Plan::new(job, id, policy)?;
    if matches.get_flag("dry-run") {
        app.ui.data(&plan.text(name, id))?;
        return Ok(0);
    }
    let _cleanup = app.cancel.guard_cleanup();
    let lease = match (&plan.warmup, id) {
        (Some(words), _) => {
            let claim = warmup::lease(app, &cli::matches_of(words)?)?;
            claim.lease_id.as_str().to_owned()
        }
        (None, id) => id.cloned().unwrap_or_default(),
    };
    let ended = cli::dispatch(app, &plan.run_in(&lease));
    let succeeded = matches!(ended, Ok(0));
    if !plan.policy.stops(plan.warmup.is_some(), succeeded) {
        if plan.warmup.is_some() {
            app.ui
                .say(&format!("stop: crabbox {}", display(&plan.stop(&lease))));
        }
        return settled(app, name, ended, Ok(0));
    }
    let stopped = stop(app, &plan.stop(&lease));
    settled(app, name, ended, stopped)
}

/// Also after Ctrl-C, which ended the command and not the lease.
fn stop(app: &App<'_>, words: &[String]) -> Result<u8, Failure> {
    if !app.cancel.is_set() {
        return cli::dispatch(app, words);
    }
    lifecycle::within(STOP_TIMEOUT, |cancel| {
        let app = App {
            host: app.host,
            ui: app.ui,
            cancel: cancel.clone(),
        };
        cli::dispatch(&app, words)
    })
}

/// The command's end counts; then what became of the lease. The cause is the last line.
fn settled(
    app: &App<'_>,
    name: &str,
    ended: Result<u8, Failure>,
    stopped: Result<u8, Failure>,
) -> Result<u8, Failure> {
    match (ended, stopped) {
        (Ok(0), stopped) => stopped,
        (Ok(code), Ok(_)) => {
            let line = format!("job `{name}` exited {code}");
            app.ui.command_exit(&line, code, Vec::new());
            Ok(code)
        }
        (Ok(code), Err(failure)) => {
            let line =
                format!("job `{name}` exited {code}, and its lease was not stopped: {failure}");
            app.ui.command_exit(&line, code, failure.hints);
            Ok(code)
        }
        (Err(failure), Ok(_)) => Err(failure),
        (Err(failure), Err(other)) => Err(failure.and(&other)),
    }
}

/// A job that may be run.
fn find<'s>(settings: &'s Settings, name: &str) -> Result<&'s JobSpec, Failure> {
    let job = settings.jobs.get(name).ok_or_else(|| {
        let failure = Failure::usage(format!("unknown job `{}`", crabbox_core::printable(name)));
        let known: Vec<_> = settings.jobs.keys().map(String::as_str).collect();
        match known.as_slice() {
            [] => failure.hint("crabbox init --detect"),
            known => failure.hint(format!("jobs: {}", known.join(", "))),
        }
    })?;
    if let Some((first, rest)) = job.refused.split_first() {
        let mut failure = Failure::new(Code::Untrusted, first.clone())
            .hint("review the file, then accept it with `crabbox trust`");
        failure.also = rest.to_vec();
        return Err(failure);
    }
    if let Some(key) = job.unsupported.first() {
        let message = format!("job `{name}` sets `{key}`, which no provider here supports");
        return Err(Failure::new(Code::Unsupported, message));
    }
    Ok(job)
}
