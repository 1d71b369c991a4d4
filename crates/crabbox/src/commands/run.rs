//! `crabbox run`

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use crabbox_core::claims::{Claim, Reclaim, Slug, SlugChoice, run_id};
use crabbox_core::command::{RemoteCommand, Shell, display};
use crabbox_core::git::Repository;
use crabbox_core::history::{ActiveRun, Begin, Bounds, Finish, RunStore};
use crabbox_core::lifecycle::{
    self, Job, Keep, Outcome, RunRequest, Session, Streams, Sync, Target, Terms,
};
use crabbox_core::process::{Output, Stdin, Stream};
use crabbox_core::provider::{Spec, WorkspaceKind};
use crabbox_core::redact::Redactor;
use crabbox_core::settings::Settings;
use crabbox_core::sync::{Options, Source, Tree};
use crabbox_core::{Code, Failure};
use jiff::Timestamp;

use super::forwarding::Forwarding;
use super::routing;
use crate::app::App;
use crate::cli::parsed;
use crate::unsupported::{self, CommandKind};

/// Run a command in a sandbox
///
/// Creates a sandbox with the repository in it, runs the command, mirrors its exit code, and removes the sandbox.
#[derive(Debug, clap::Args)]
#[command(override_usage = "crabbox run [OPTIONS] -- COMMAND [ARG...]")]
pub(crate) struct Args {
    /// Run in an existing lease: its slug, id or sandbox name
    #[arg(long, value_name = "LEASE")]
    id: Option<String>,
    /// Name of the new lease
    #[arg(long, value_name = "NAME")]
    slug: Option<String>,
    /// Keep the new sandbox
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true)]
    keep: Option<bool>,
    /// Keep the new sandbox if anything fails
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true)]
    keep_on_failure: Option<bool>,
    /// Take over a lease of another repository
    #[arg(long)]
    reclaim: bool,
    /// Run COMMAND as a script in a login shell
    #[arg(long)]
    shell: bool,
    /// Give the command a terminal
    #[arg(short = 't', long)]
    tty: bool,
    /// Directory to run in, relative to the repository root [default: the root]
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// Variables to pass on; `NAME*` matches a prefix (can be repeated)
    #[arg(long, value_name = "NAME,...")]
    allow_env: Vec<String>,
    /// File with variables; those that are allowed are passed on (can be repeated)
    #[arg(long, value_name = "FILE")]
    env_from_profile: Vec<String>,
    /// Label for this run, shown in history and timing
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Group of leases that this one belongs to
    #[arg(long, value_name = "NAME")]
    pond: Option<String>,
    /// Write which lease was used to a file, as JSON
    #[arg(long, value_name = "FILE")]
    lease_output: Option<PathBuf>,
    /// Print how long everything took, as one line of JSON
    #[arg(long)]
    timing_json: bool,
    /// Output failures as JSON
    #[arg(long)]
    json: bool,
    #[arg(long, hide = true)]
    no_sync: bool,
    #[arg(long, hide = true)]
    no_hydrate: bool,
    #[arg(long, hide = true)]
    debug: bool,
    #[arg(long, hide = true)]
    preflight: bool,
    /// Command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    words: Vec<String>,
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    let slug = slug(&args, matches)?;
    let settings = match &args.id {
        Some(id) => routing::settings_for(app, matches, id)?,
        None => app.settings(matches)?,
    };
    let provider = app.provider(&settings)?;
    let spec = provider.spec();
    // A refused flag may be the very reason why there is no command: `--script`, `--sync-only`.
    unsupported::check(matches, CommandKind::Run, spec)?;
    let sync_only = has_sync_only(matches);
    usage(app, &args, sync_only)?;
    unsupported::check_profile(&settings, spec)?;
    provider.validate()?;
    let job = job(&args, sync_only, spec)?;
    let lease_output = match &args.lease_output {
        Some(path) => Some(LeaseOutput::prepare(&app.host.cwd.join(path))?),
        None => None,
    };
    let forwarding = Forwarding::new(
        app,
        &settings,
        &args.allow_env,
        &args.env_from_profile,
        spec.credentials,
    )?;
    let workspace = match args.id {
        Some(_) => app.workspace()?,
        None => app.named_workspace()?,
    };
    let options = Options::from(&settings);
    let archive = Archive::of(app, &args, spec)?;
    app.warn_no_effect(&settings, spec);
    prelude(app, &args, spec.name)?;

    // From here on something may be made.
    let redactor = Redactor::new(forwarding.secrets(app));
    app.ui.hide(redactor.clone());
    let run_id = run_id()?;
    let shown = display(&args.words);
    let record = record(app, &settings, &args, &run_id, &shown);
    let ledger = RunStore::new(&app.host.state()?, Bounds::default());
    let history = RefCell::new(begin(app, &ledger, record, redactor));
    let env = |claim: &Claim| {
        if let Some(run) = history.borrow_mut().as_mut() {
            let slug = claim.slug_str().unwrap_or("");
            let _ = run.leased(claim.lease_id.as_str(), slug); // told at the end
        }
        forwarding.for_lease(app, &run_id, claim)
    };
    let streams = streams(app, &args, history.borrow().as_ref())?;
    let request = RunRequest {
        run_id: run_id.clone(),
        workspace: &workspace,
        target: target(&args, &settings, slug),
        keep: keep(&args),
        sync: match &archive {
            Some(archive) => archive.sync(&workspace.root, &options),
            None => Sync::Skip,
        },
        job,
        shown,
        flags: same_flags(&args),
        workdir: args.workdir.clone(),
        label: args.label.clone(),
        env: &env,
        say_env: forwarding.asked,
        streams,
    };
    let store = app.store()?;
    let outcome = lifecycle::run(app.context(&*provider, &store), request);
    if let Some(run) = history.into_inner() {
        end(app, &ledger, run, &outcome);
    }
    finish(app, &args, lease_output, &outcome)?;
    exit(app, spec, outcome)
}

fn job(args: &Args, sync_only: bool, spec: &Spec) -> Result<Job, Failure> {
    let shell = if args.shell {
        Shell::Asked
    } else {
        Shell::Auto
    };
    Ok(match sync_only {
        true => Job::SyncOnly,
        false => Job::Command(RemoteCommand::build(&args.words, shell, spec.command)?.argv()),
    })
}

/// A command's own exit code is ours.
fn exit(app: &App<'_>, spec: &Spec, outcome: Outcome) -> Result<u8, Failure> {
    match outcome.ended {
        Ok(0) => Ok(0),
        Ok(code) => {
            let exit = u8::try_from(code).unwrap_or(1);
            let line = format!("{} run exited {code}", spec.name);
            app.ui.command_exit(&line, exit, outcome.hints);
            Ok(exit)
        }
        Err(failure) => Err(failure),
    }
}

/// What can be wrong with names alone is known before anything is read.
fn slug(args: &Args, matches: &ArgMatches) -> Result<SlugChoice, Failure> {
    let slug = requested_slug(args.slug.as_deref())?;
    if args.id.is_some() {
        unsupported::check_reuse(matches)?;
    }
    Ok(slug)
}

/// Whether there is a command, and a terminal for one that wants it.
fn usage(app: &App<'_>, args: &Args, sync_only: bool) -> Result<(), Failure> {
    if sync_only && args.no_sync {
        return Err(Failure::usage(
            "use either --sync-only or --no-sync, not both",
        ));
    }
    if sync_only && !args.words.is_empty() {
        let message = "--sync-only runs no command; leave the command out";
        return Err(Failure::usage(message));
    }
    if args.words.is_empty() && !sync_only {
        return Err(Failure::usage("usage: crabbox run [flags] -- <command...>"));
    }
    if args.tty && !app.host.stdin_is_terminal {
        return Err(Failure::usage("--tty needs a terminal on stdin").hint("leave out `-t`"));
    }
    Ok(())
}

/// The refused flags are parsed by hand; this one is accepted where the repository is sent.
fn has_sync_only(matches: &ArgMatches) -> bool {
    let values = matches.get_many::<String>("sync-only");
    values
        .and_then(|mut values| values.next_back().cloned())
        .is_some_and(|value| value != "false")
}

/// What a provider is sent that does not mount the workspace.
struct Archive {
    repository: Option<Repository>,
    temp: PathBuf,
}

impl Archive {
    /// `None` where nothing is sent.
    fn of(app: &App<'_>, args: &Args, spec: &Spec) -> Result<Option<Self>, Failure> {
        if spec.workspace == WorkspaceKind::Mounted || args.no_sync {
            return Ok(None);
        }
        Ok(Some(Self {
            repository: Repository::discover(&app.root(), &app.host.env)?,
            temp: app.host.get("TMPDIR").map_or("/tmp".into(), PathBuf::from),
        }))
    }

    fn sync<'a>(&'a self, root: &'a Path, options: &'a Options) -> Sync<'a> {
        let tree = Tree {
            root,
            repository: self.repository.as_ref(),
            source: Source::Git,
            temp: &self.temp,
        };
        Sync::Send { tree, options }
    }
}

/// What earlier runs left, and what is only said.
fn prelude(app: &App<'_>, args: &Args, provider: &str) -> Result<(), Failure> {
    app.sweep_env_files()?;
    if args.preflight {
        app.ui.say(&format!(
            "remote preflight provider={provider} delegated unsupported; provider owns workspace and command transport"
        ));
    }
    Ok(())
}

pub(super) fn requested_slug(slug: Option<&str>) -> Result<SlugChoice, Failure> {
    Ok(match slug {
        Some(text) => SlugChoice::Requested(Slug::request(text)?),
        None => SlugChoice::Generated,
    })
}

pub(super) fn terms(
    settings: &Settings,
    slug: SlugChoice,
    keep: bool,
    pond: Option<&str>,
) -> Terms {
    let pond = pond.map(|pond| ("pond".to_owned(), pond.to_owned()));
    Terms {
        slug,
        lease_id: None,
        ttl: settings.duration(None, "ttl"),
        idle_timeout: settings.duration(None, "idleTimeout"),
        keep,
        labels: pond.into_iter().collect::<BTreeMap<_, _>>(),
    }
}

fn target(args: &Args, settings: &Settings, slug: SlugChoice) -> Target {
    match &args.id {
        Some(id) => Target::Reuse {
            identifier: id.clone(),
            reclaim: if args.reclaim {
                Reclaim::Yes
            } else {
                Reclaim::No
            },
            idle_timeout: settings.duration(None, "idleTimeout"),
        },
        None => Target::Fresh(terms(
            settings,
            slug,
            keep(args) == Keep::Yes,
            args.pond.as_deref(),
        )),
    }
}

/// The flags that make a command what it is, for the same one again.
fn same_flags(args: &Args) -> Vec<String> {
    let mut flags = Vec::new();
    for (given, flag) in [(args.shell, "--shell"), (args.tty, "--tty")] {
        flags.extend(given.then(|| flag.to_owned()));
    }
    let workdir = args.workdir.iter().map(|dir| ("--workdir", dir));
    let names = args.allow_env.iter().map(|name| ("--allow-env", name));
    let files = args.env_from_profile.iter();
    let files = files.map(|file| ("--env-from-profile", file));
    for (flag, value) in workdir.chain(names).chain(files) {
        flags.extend([flag.to_owned(), value.clone()]);
    }
    flags
}

fn keep(args: &Args) -> Keep {
    match (args.keep, args.keep_on_failure) {
        (Some(true), _) => Keep::Yes,
        (_, Some(true)) => Keep::OnFailure,
        _ => Keep::No,
    }
}

/// A record of the run. Without one the run goes on.
fn begin(app: &App<'_>, ledger: &RunStore, record: Begin, redactor: Redactor) -> Option<ActiveRun> {
    match ledger.begin(record, redactor) {
        Ok(run) => Some(run),
        Err(failure) => {
            app.ui
                .say(&format!("warning: this run is not recorded: {failure}"));
            None
        }
    }
}

fn record(app: &App<'_>, settings: &Settings, args: &Args, run_id: &str, shown: &str) -> Begin {
    Begin {
        run_id: run_id.to_owned(),
        provider: settings.provider().to_owned(),
        lease_id: String::new(),
        // What the user calls it, until it is known what it is.
        slug: args.id.clone().unwrap_or_default(),
        repo_root: app.root().display().to_string(),
        command: shown.to_owned(),
        label: args.label.clone(),
        terminal: args.tty,
        started_at: Timestamp::now(),
    }
}

/// A terminal is handed over; anything else is passed on and written down on the way.
fn streams(app: &App<'_>, args: &Args, run: Option<&ActiveRun>) -> Result<Streams, Failure> {
    if args.tty {
        return Ok(Streams {
            stdin: Stdin::Inherit,
            terminal: true,
            stdout: Output::Inherit,
            stderr: Output::Inherit,
        });
    }
    // A child that reads a terminal from the background would be stopped by SIGTTIN.
    let stdin = if app.host.stdin_is_terminal {
        Stdin::Null
    } else {
        Stdin::Inherit
    };
    let tee = |stream| -> Result<Output, Failure> {
        let Some(run) = run else {
            return Ok(Output::Inherit);
        };
        // A copy that no child inherits: a daemon that one of them starts would hold our caller's pipe open.
        let own = match stream {
            Stream::Stdout => std::io::stdout().as_fd().try_clone_to_owned(),
            Stream::Stderr => std::io::stderr().as_fd().try_clone_to_owned(),
        }
        .map_err(|error| Failure::new(Code::Local, "cannot pass output on").because(&error))?;
        Ok(Output::Pass(File::from(own), Box::new(run.log(stream))))
    };
    Ok(Streams {
        stdin,
        terminal: false,
        stdout: tee(Stream::Stdout)?,
        stderr: tee(Stream::Stderr)?,
    })
}

/// The end of the record. Without it the run is what it was.
fn end(app: &App<'_>, ledger: &RunStore, run: ActiveRun, outcome: &Outcome) {
    let timing = &outcome.timing;
    let finish = Finish {
        ended_at: Timestamp::now(),
        exit_code: Some(timing.exit_code),
        status: timing.run_status,
        error_kind: timing.error_kind,
        timing: Some(timing.clone()),
    };
    if let Err(failure) = run.finish(finish) {
        app.ui.say(&format!("warning: {failure}"));
    }
    // To look at every recorded run takes longer than a short command: one run in sixteen does it for all.
    if timing.run_id.ends_with('0')
        && let Err(failure) = ledger.prune(Timestamp::now())
    {
        app.ui.say(&format!("warning: {failure}"));
    }
}

/// What is left to write after the run: the session and the timing.
fn finish(
    app: &App<'_>,
    args: &Args,
    lease_output: Option<LeaseOutput>,
    outcome: &Outcome,
) -> Result<(), Failure> {
    if let Some(workdir) = &outcome.synced {
        app.ui.data(&format!("synced {workdir}\n"))?;
    }
    let mut unwritten = None;
    if let (Some(output), Some(session)) = (lease_output, &outcome.session)
        && let Err(failure) = output.write(session)
    {
        match outcome.ended {
            Ok(0) => unwritten = Some(failure),
            _ => app.ui.say(&format!("warning: {failure}")),
        }
    }
    if args.timing_json {
        app.ui.timing(&outcome.timing)?;
    }
    match unwritten {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// Where `--lease-output` goes, proved to be writable before anything is created.
struct LeaseOutput(PathBuf);

impl LeaseOutput {
    fn prepare(path: &Path) -> Result<Self, Failure> {
        let refused = |error: &std::io::Error| {
            let message = format!("cannot write --lease-output `{}`", path.display());
            Failure::new(Code::Usage, message).because(error)
        };
        // A file takes its place: a device, a pipe or a link would be gone.
        match path.symlink_metadata() {
            Ok(meta) if meta.is_file() => {}
            Ok(meta) => {
                let what = match meta.file_type() {
                    kind if kind.is_dir() => "is a directory",
                    kind if kind.is_symlink() => "is a symbolic link",
                    _ => "not a regular file",
                };
                return Err(refused(&std::io::Error::other(what))
                    .hint("name a regular file, or one that does not exist"));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(refused(&error)),
        }
        let dir = path.parent().unwrap_or(Path::new("/"));
        tempfile::tempfile_in(dir).map_err(|error| refused(&error))?;
        Ok(Self(path.to_path_buf()))
    }

    fn write(self, session: &Session) -> Result<(), Failure> {
        let failed = |error: &dyn std::error::Error| {
            let message = format!("cannot write --lease-output `{}`", self.0.display());
            Failure::new(Code::State, message).because(error)
        };
        let mut bytes = serde_json::to_vec_pretty(session).map_err(|error| failed(&error))?;
        bytes.push(b'\n');
        let dir = self.0.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(dir)
            .map_err(|error| failed(&error))?;
        file.write_all(&bytes).map_err(|error| failed(&error))?;
        file.persist(&self.0)
            .map_err(|error| failed(&error.error))?;
        Ok(())
    }
}
