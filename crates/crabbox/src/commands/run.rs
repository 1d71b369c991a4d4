//! `crabbox run`

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use crabbox_core::bench::Ledger;
use crabbox_core::claims::{Claim, Reclaim, Slug, SlugChoice, run_id};
use crabbox_core::command::{RemoteCommand, Shell, display};
use crabbox_core::git::Repository;
use crabbox_core::history::{ActiveRun, Begin, Bounds, Finish, RunStore};
use crabbox_core::lifecycle::{
    self, Context, Job, Keep, Outcome, RunRequest, Session, Sync, Target, Terms,
};
use crabbox_core::provider::{Provider, Spec, Workspace, WorkspaceKind};
use crabbox_core::redact::Redactor;
use crabbox_core::settings::Settings;
use crabbox_core::sync::{Options, Source, Tree};
use crabbox_core::{Code, Failure, search_path};
use jiff::Timestamp;

use super::attachment::{self, Attachment};
use super::forwarding::{EnvArgs, Forwarding};
use super::preset::{Chosen, PresetArgs};
use super::warmup::creating;
use super::{detach, ending, routing, timing_record};
use crate::app::App;
use crate::cli::parsed;
use crate::ui::SlowNotice;
use crate::unsupported::{self, CommandKind};

/// Run a command in a sandbox
///
/// Creates a sandbox with the repository in it, runs the command, and removes the sandbox. The exit code is the command's own.
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
    /// Run COMMAND as a script in a login shell (--no-shell: never)
    #[arg(long, overrides_with = "no_shell")]
    shell: bool,
    /// Run COMMAND as it is, also where a word of it looks like a shell operator
    #[arg(long, overrides_with = "shell", hide = true)]
    no_shell: bool,
    /// Pass stdin to the command [default: on the bundled engine, except a terminal]
    #[arg(short = 'i', long)]
    interactive: bool,
    /// Give the command a terminal [default: on the bundled engine, if you have one]
    #[arg(short = 't', long, conflicts_with = "no_tty")]
    tty: bool,
    /// Give the command no terminal
    #[arg(long)]
    no_tty: bool,
    /// Print nothing unless crabbox itself fails
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    quiet: bool,
    /// Print `key=value` lines, also on a terminal
    #[arg(long)]
    verbose: bool,
    /// Run in the background; the lease ends with the command
    #[arg(short = 'd', long, conflicts_with_all = ["tty", "interactive", "timing_json", "keep_on_failure"])]
    detach: bool,
    /// The process that goes on in the background.
    #[arg(long, hide = true, requires = "detach")]
    supervise: bool,
    /// Directory to run in, relative to the repository root [default: the root]
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// Run in the current directory instead of the repository root
    #[arg(long, conflicts_with = "workdir")]
    here: bool,
    #[command(flatten)]
    env: EnvArgs,
    /// Label for this run, shown in history and timing
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Group of leases that this one belongs to
    #[arg(long, value_name = "NAME")]
    pond: Option<String>,
    /// Write the lease that was used to a file, as JSON
    #[arg(long, value_name = "FILE")]
    lease_output: Option<PathBuf>,
    #[command(flatten)]
    preset: PresetArgs,
    /// Append the timing to `default` or a file, for `crabbox bench report`; `off` overrides
    #[arg(long, value_name = "FILE")]
    timing_record: Option<String>,
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

impl Args {
    /// The preset that was asked for. Its command stands for the words from now on.
    fn take_preset(&mut self, settings: &Settings) -> Result<Option<Chosen>, Failure> {
        let preset = self.preset.choose(settings, &self.words)?;
        if let Some(preset) = &preset {
            self.words = preset.command.words();
            self.preflight |= preset.preflight;
        }
        Ok(preset)
    }
}

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let mut args: Args = parsed(matches)?;
    if args.supervise {
        detach::leave_terminal()?;
    } else if args.detach {
        return detach::start(app, args.json);
    }
    let plan = Plan::new(app, matches, &mut args)?;
    plan.carry_out(app, &args)
}

/// Everything that was decided before anything is made.
struct Plan {
    settings: Settings,
    provider: Box<dyn Provider>,
    slug: SlugChoice,
    job: Job,
    timings: Option<Ledger>,
    lease_output: Option<LeaseOutput>,
    forwarding: Forwarding,
    workspace: Workspace,
    options: Options,
    archive: Option<Archive>,
    workdir: Option<String>,
    attachment: Attachment,
}

impl Plan {
    fn new(app: &App<'_>, matches: &ArgMatches, args: &mut Args) -> Result<Self, Failure> {
        let slug = slug(args, matches)?;
        let settings = match &args.id {
            Some(id) => routing::settings_for(app, matches, id)?,
            None => app.settings(matches)?,
        };
        let provider = app.provider(&settings)?;
        let spec = provider.spec();
        // A refused flag may be the very reason why there is no command: `--script`, `--sync-only`.
        unsupported::check(matches, CommandKind::Run, spec)?;
        let sync_only = is_given(matches, "sync-only");
        let preset = args.take_preset(&settings)?;
        usage(app, args, sync_only)?;
        unsupported::check_profile(&settings, spec)?;
        provider.validate()?;
        let workdir = workdir(app, args)?;
        let directory = app.root().join(workdir.as_deref().unwrap_or_default());
        let job = job(app, args, sync_only, preset.as_ref(), spec, &directory)?;
        let timings = timing_record::open(app, args.timing_record.as_deref())?;
        let lease_output = match &args.lease_output {
            Some(path) => Some(LeaseOutput::prepare(&app.host.cwd.join(path))?),
            None => None,
        };
        let forwarding = Forwarding::new(
            app,
            &settings,
            &args.env,
            preset.as_ref().map(|preset| &preset.env),
            spec.credentials,
        )?;
        let workspace = match args.id {
            Some(_) => app.workspace()?,
            None => app.named_workspace()?,
        };
        let options = Options {
            full: is_given(matches, "full-resync") || is_given(matches, "fresh-sync"),
            ..Options::from(&settings)
        };
        let archive = Archive::of(app, args, spec)?;
        app.warn_no_effect(&settings, spec);
        prelude(app, args, preset.as_ref(), spec.name)?;
        note_repository_root(app, args);
        let attachment = attachment(app, args, &*provider);
        Ok(Self {
            settings,
            provider,
            slug,
            job,
            timings,
            lease_output,
            forwarding,
            workspace,
            options,
            archive,
            workdir,
            attachment,
        })
    }

    /// From here on something may be made.
    fn carry_out(self, app: &App<'_>, args: &Args) -> Result<u8, Failure> {
        let (provider, forwarding) = (&*self.provider, &self.forwarding);
        let redactor = Redactor::new(forwarding.secrets(app));
        app.ui.hide(redactor.clone());
        let run_id = run_id()?;
        let shown = display(&args.words);
        let record = record(app, &self.settings, args, &run_id, &shown, self.attachment);
        let ledger = RunStore::new(&app.host.state()?, Bounds::default());
        let history = RefCell::new(begin(app, &ledger, record, redactor));
        let slow = RefCell::new(app.ui.notice_if_slow(waiting(args, provider)));
        let env = |claim: &Claim| {
            slow.replace(SlowNotice::none());
            if let Some(run) = history.borrow_mut().as_mut() {
                let slug = claim.slug_str().unwrap_or("");
                let _ = run.leased(claim.lease_id.as_str(), slug); // told at the end
            }
            if let (true, Some(run)) = (args.supervise, history.borrow().as_ref()) {
                detach::announce(app, run, claim)?;
            }
            forwarding.for_lease(app, &run_id, claim)
        };
        let streams = self.attachment.streams(app, history.borrow().as_ref())?;
        let request = RunRequest {
            run_id: run_id.clone(),
            workspace: &self.workspace,
            target: target(args, &self.settings, self.slug),
            keep: keep(args),
            sync: match &self.archive {
                Some(archive) => archive.sync(&self.workspace.root, &self.options),
                None => Sync::Skip,
            },
            job: self.job,
            shown,
            flags: same_flags(args),
            workdir: self.workdir,
            label: args.label.clone(),
            env: &env,
            say_env: forwarding.asked,
            streams,
        };
        let store = app.store()?;
        let cancel = match args.supervise {
            true => detach::until_ttl(app, &self.settings, args.id.as_deref())?,
            false => app.cancel.clone(),
        };
        let context = Context {
            cancel: &cancel,
            ..app.context(provider, &store)
        };
        let outcome = lifecycle::run(context, request);
        drop(slow);
        if let Some(run) = history.into_inner() {
            end(app, &ledger, run, &outcome);
        }
        let spec = provider.spec();
        timing_record::append(app, self.timings, &args.words, spec, &outcome);
        finish(app, args, self.lease_output, &outcome)?;
        ending::exit(app, provider, outcome)
    }
}

/// What a person is told who waits.
fn waiting(args: &Args, provider: &dyn Provider) -> String {
    match &args.id {
        Some(id) => format!("Waiting for lease {id} ({})...", provider.runner()),
        None => creating(provider),
    }
}

fn attachment(app: &App<'_>, args: &Args, provider: &dyn Provider) -> Attachment {
    let wanted = attachment::Wanted {
        interactive: args.interactive,
        tty: args.tty,
        detach: args.detach,
        plain: args.no_tty || args.quiet || args.json || args.timing_json,
    };
    let caller = attachment::Caller {
        all_are_terminals: app.host.all_are_terminals,
        is_ci: app.host.get("CI").is_some_and(|value| !value.is_empty()),
    };
    Attachment::choose(wanted, caller, || provider.gives_terminal(&app.cancel))
}

/// Where the user is, from the root of the repository; empty there and outside of it.
fn below_root(app: &App<'_>) -> PathBuf {
    let below = app.host.cwd.strip_prefix(app.root());
    below.unwrap_or(Path::new("")).to_path_buf()
}

/// Where the command runs, from the root of the repository.
fn workdir(app: &App<'_>, args: &Args) -> Result<Option<String>, Failure> {
    let below = below_root(app);
    if !args.here || below.as_os_str().is_empty() {
        return Ok(args.workdir.clone());
    }
    match below.to_str() {
        Some(below) => Ok(Some(below.to_owned())),
        None => Err(Failure::usage("--here: the current directory is not UTF-8")),
    }
}

/// A user who is in a subdirectory is told once that the command runs in the root.
fn note_repository_root(app: &App<'_>, args: &Args) {
    let chosen = args.here || args.workdir.is_some();
    if !chosen && !below_root(app).as_os_str().is_empty() {
        app.ui.say(&format!(
            "note: running in the repository root, {}; --here runs in the current directory",
            app.root().display()
        ));
    }
}

/// `directory`: where the command runs.
fn job(
    app: &App<'_>,
    args: &Args,
    sync_only: bool,
    preset: Option<&Chosen>,
    spec: &Spec,
    directory: &Path,
) -> Result<Job, Failure> {
    if let Some(preset) = preset {
        return Ok(Job::Command(preset.command.argv(spec.command.shell)));
    }
    if sync_only {
        return Ok(Job::SyncOnly);
    }
    let shell = match (args.shell, args.no_shell) {
        (true, _) => Shell::Asked,
        (false, true) => Shell::Refused,
        (false, false) => Shell::Auto,
    };
    let is_program = |path: &str| search_path::is_program(&directory.join(path));
    let command = RemoteCommand::build(&args.words, shell, spec.command, &is_program)?;
    if let Some(notice) = command.notice(&args.words) {
        app.ui.say(&notice);
    }
    Ok(Job::Command(command.argv()))
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
fn is_given(matches: &ArgMatches, flag: &str) -> bool {
    let values = matches.get_many::<String>(flag);
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
fn prelude(
    app: &App<'_>,
    args: &Args,
    preset: Option<&Chosen>,
    provider: &str,
) -> Result<(), Failure> {
    app.sweep_env_files()?;
    if let Some(preset) = preset {
        args.preset.tell(app, preset);
    }
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
    keep: Keep,
    pond: Option<&str>,
) -> Terms {
    let pond = pond.map(|pond| ("pond".to_owned(), pond.to_owned()));
    Terms {
        slug,
        lease_id: None,
        ttl: settings.duration(None, "ttl"),
        idle_timeout: settings.duration(None, "idleTimeout"),
        keep: matches!(keep, Keep::Yes | Keep::UntilEnd),
        one_shot: keep == Keep::No,
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
        None => Target::Fresh(terms(settings, slug, keep(args), args.pond.as_deref())),
    }
}

/// The flags that make a command what it is, for the same one again.
fn same_flags(args: &Args) -> Vec<String> {
    let mut flags = Vec::new();
    for (given, flag) in [
        (args.shell, "--shell"),
        (args.no_shell, "--no-shell"),
        (args.interactive, "-i"),
        (args.tty, "--tty"),
        (args.no_tty, "--no-tty"),
        (args.here, "--here"),
    ] {
        flags.extend(given.then(|| flag.to_owned()));
    }
    if let Some(dir) = &args.workdir {
        flags.extend(["--workdir".to_owned(), dir.clone()]);
    }
    flags.extend(args.env.flags());
    flags
}

fn keep(args: &Args) -> Keep {
    match (args.keep, args.keep_on_failure) {
        (Some(true), _) => Keep::Yes,
        _ if args.detach => Keep::UntilEnd,
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

fn record(
    app: &App<'_>,
    settings: &Settings,
    args: &Args,
    run_id: &str,
    shown: &str,
    attachment: Attachment,
) -> Begin {
    Begin {
        run_id: run_id.to_owned(),
        provider: settings.provider().to_owned(),
        lease_id: String::new(),
        // What the user calls it, until it is known what it is.
        slug: args.id.clone().unwrap_or_default(),
        repo_root: app.root().display().to_string(),
        command: shown.to_owned(),
        label: args.label.clone(),
        terminal: attachment.is_terminal(),
        merged: attachment.is_merged(),
        started_at: Timestamp::now(),
    }
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
