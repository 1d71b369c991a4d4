//! One command in a sandbox, from the lease to its release.
//!
//! The order is that of `docs/architecture.md`: what can be refused is refused first, then the lease is taken (or reused),
//! the tree is sent, the command runs, and the lease is kept or released. A sync needs the lease exclusively; the lock
//! is downgraded to a shared one for the command, so that others may run beside it. After the lease is taken no way out
//! skips the release, and a run whose sandbox could not be removed has failed, whatever its command said.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::Context;
use super::lease::{self, Lease, Origin, Reuse, Sharing, Terms};
use super::outcome::{Facts, Outcome, PREPARE, SYNC, session, summary};
use super::settle::{Settled, settle};
use super::sync::{Destination, Step, Sync};
use crate::claims::{Claim, Reclaim};
use crate::command::display;
use crate::env::Forwarded;
use crate::process::{Output, Reason, Stdin};
use crate::provider::{Demand, Execution, Use, Workspace, WorkspaceKind};
use crate::timing::{Report, Timing, millis};
use crate::{Code, Failure, printable};

/// Where to run.
#[derive(Debug)]
pub enum Target {
    Fresh(Terms),
    Reuse {
        identifier: String,
        reclaim: Reclaim,
        idle_timeout: Duration,
    },
}

/// When a fresh lease stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    No,
    OnFailure,
    /// Others may use it until the command ends (`-d`).
    UntilEnd,
    Yes,
}

#[derive(Debug)]
pub struct Streams {
    pub stdin: Stdin,
    /// Whether the user asked for stdin.
    pub interactive: bool,
    pub terminal: bool,
    pub stdout: Output,
    pub stderr: Output,
}

/// What to do in the sandbox.
#[derive(Debug)]
pub enum Job {
    /// What the sandbox executes.
    Command(Vec<String>),
    /// `--sync-only`.
    SyncOnly,
}

/// A run that was checked as far as it can be without a sandbox.
pub struct RunRequest<'a> {
    pub run_id: String,
    pub workspace: &'a Workspace,
    pub target: Target,
    pub keep: Keep,
    pub sync: Sync<'a>,
    pub job: Job,
    /// What the user typed, for hints: the command, and the flags that make it what it is.
    pub shown: String,
    pub flags: Vec<String>,
    pub workdir: Option<String>,
    pub label: Option<String>,
    /// The variables for a lease, once it is known which one that is.
    pub env: &'a dyn Fn(&Claim) -> Result<Forwarded, Failure>,
    /// Whether to say which ones.
    pub say_env: bool,
    pub streams: Streams,
}

pub fn run(context: Context<'_>, request: RunRequest<'_>) -> Outcome {
    let _cleanup = context.cancel.guard_cleanup();
    let (mut timing, began) = (Timing::new(Instant::now()), Timestamp::now());
    let facts = Facts {
        run_id: request.run_id.clone(),
        label: request.label.clone(),
        workdir: workdir(context, &request),
    };
    let mut step = match prepare(context, &request, &mut timing) {
        Ok(step) => step,
        Err(failure) => return without_lease(context, &facts, None, &timing, failure),
    };
    timing.start("lease", Instant::now());
    let lease = obtain(context, &request, &step);
    timing.stop(Instant::now());
    let mut lease = match lease {
        Ok(lease) => lease,
        Err(failure) => return without_lease(context, &facts, Some(&step), &timing, failure),
    };
    announce(context, &lease, &facts);
    let keep = request.keep;
    let workspace = request.workspace;
    let rerun = rerun(context, &lease.claim, &request);
    let sync_only = matches!(request.job, Job::SyncOnly);
    let ended = sync(context, &mut lease, &request, &mut step, &mut timing)
        .and_then(|()| execute(context, &lease, &facts, request, &mut timing));
    // Without a command that ran, nothing was denied.
    if !sync_only && ended.is_ok() {
        tell_denials(context, &lease.claim, workspace, began);
    }
    summary(context, &timing, &ended);
    let before_release = Instant::now();
    timing.start("release", before_release);
    let expired = lease::has_expired(context, &lease.claim);
    let settled = settle(context, &mut lease, keep, &ended, &rerun);
    timing.stop(Instant::now());
    let kept = !matches!(settled, Settled::Gone);
    let ended = match expired {
        true => unless_expired(&lease.claim, kept, ended),
        false => ended,
    };
    let (ended, hints) = match settled {
        Settled::Unremoved(failure) => unremoved(context, failure, ended),
        Settled::Gone | Settled::Kept => (ended, Vec::new()),
    };
    let ended = unless_canceled_since(context, &lease, kept, ended);
    let ended = match kept {
        true => ended.map_err(|failure| with_way_out(context, &lease, failure)),
        false => ended,
    };
    Outcome {
        session: Some(session(context, &lease, &facts, kept)),
        timing: Report {
            total_ms: millis(timing.total(before_release)),
            ..facts.report(context, Some(&lease.claim), Some(&step), &timing, &ended)
        },
        synced: (sync_only && ended.is_ok()).then(|| tree_root(context, workspace)),
        ended,
        hints,
    }
}

/// What the network policy denied this run, and how to allow it.
fn tell_denials(context: Context<'_>, claim: &Claim, workspace: &Workspace, since: Timestamp) {
    if context.canceled() {
        return;
    }
    let denials = context
        .provider
        .denials(claim, workspace, since, context.cancel);
    match denials {
        Ok(denials) if denials.targets.is_empty() => {}
        Ok(denials) => {
            let targets = denials.targets.join(", ");
            let line = format!("warning: the network policy denied {targets}");
            context.report.line(&line);
            if let Some(allow) = denials.allow {
                context.report.line(&format!("hint: {allow}"));
            }
        }
        Err(failure) => {
            let line = format!("warning: what the network policy denied is not known: {failure}");
            context.report.line(&line);
        }
    }
}

/// The outcome of a run that got no lease.
fn without_lease(
    context: Context<'_>,
    facts: &Facts,
    step: Option<&Step<'_>>,
    timing: &Timing,
    failure: Failure,
) -> Outcome {
    let ended = Err(failure);
    Outcome {
        timing: facts.report(context, None, step, timing, &ended),
        ended,
        session: None,
        hints: Vec::new(),
        synced: None,
    }
}

/// Everything about the repository that can be refused, before there is a sandbox.
fn prepare<'a>(
    context: Context<'a>,
    request: &RunRequest<'a>,
    timing: &mut Timing,
) -> Result<Step<'a>, Failure> {
    if context.provider.spec().workspace == WorkspaceKind::Mounted {
        return Ok(Step::Mounted);
    }
    timing.start(PREPARE, Instant::now());
    let known = match &request.target {
        Target::Fresh(_) => None,
        Target::Reuse { identifier, .. } => Some(context.find(identifier)?),
    };
    let step = Step::prepare(context, request.sync, known.as_ref());
    timing.stop(Instant::now());
    step
}

fn obtain(
    context: Context<'_>,
    request: &RunRequest<'_>,
    step: &Step<'_>,
) -> Result<Lease, Failure> {
    let command = "crabbox run";
    let demand = match request.job {
        Job::SyncOnly => Demand::SyncOnly,
        Job::Command(_) => Demand::Run {
            sync: step.is_exclusive(),
        },
    };
    match &request.target {
        Target::Fresh(terms) => {
            let mut lease = lease::take(context, request.workspace, terms, demand, command)?;
            // A sync needs the lease for itself; it is opened afterwards.
            if !step.is_exclusive() {
                lease::share(context, &mut lease)?;
            }
            Ok(lease)
        }
        Target::Reuse {
            identifier,
            reclaim,
            idle_timeout,
        } => {
            let reuse = Reuse {
                identifier,
                reclaim: *reclaim,
                idle_timeout: *idle_timeout,
                sharing: match step.is_exclusive() {
                    true => Sharing::Exclusive,
                    false => Sharing::Shared,
                },
                demand,
            };
            lease::reuse(context, request.workspace, reuse, command)
        }
    }
}

/// Brings the repository into the sandbox, where the provider does not mount it.
fn sync(
    context: Context<'_>,
    lease: &mut Lease,
    request: &RunRequest<'_>,
    step: &mut Step<'_>,
    timing: &mut Timing,
) -> Result<(), Failure> {
    if !step.has_sync() {
        return Ok(());
    }
    timing.start(SYNC, Instant::now());
    // `--workdir` and `--here` say where the command runs, never which directory is replaced.
    let workdir = tree_root(context, request.workspace);
    let to = Destination {
        workspace: request.workspace,
        workdir: &workdir,
    };
    let sent = step.transfer(context, lease, to);
    timing.stop(Instant::now());
    lease.synced = None;
    if let Some(reason) = context.cancel.reason() {
        return Err(canceled(reason));
    }
    sent?;
    lease.listed = step.listed().or(lease.listed);
    match request.job {
        Job::SyncOnly => {
            lease.synced = step.synced(&workdir);
            Ok(())
        }
        Job::Command(_) => {
            still_alive(&lease.claim)?;
            match step.is_exclusive() {
                true => lease::share(context, lease),
                false => Ok(()),
            }
        }
    }
}

/// A sync may have taken the rest of a lease's life.
fn still_alive(claim: &Claim) -> Result<(), Failure> {
    if !claim.is_expired(Timestamp::now()) {
        return Ok(());
    }
    let lease = &claim.lease_id;
    let message = format!("lease {lease} reached its TTL expiry during the sync; command not run");
    Err(Failure::new(Code::Expired, message))
}

/// A lease that ended under its command may have ended the command's own processes too: the run has failed.
fn unless_expired(claim: &Claim, kept: bool, ended: Result<i32, Failure>) -> Result<i32, Failure> {
    if !matches!(ended, Ok(0)) {
        return ended;
    }
    let lease = &claim.lease_id;
    let became = if kept { "" } else { "; it was released" };
    let message = format!("lease {lease} reached its TTL expiry during the run{became}");
    Err(Failure::new(Code::Expired, message))
}

/// A run whose sandbox could not be removed has failed, also where its command succeeded. Another end stays, with the hints
/// that its failure or its exit code is told with.
fn unremoved(
    context: Context<'_>,
    failure: Failure,
    ended: Result<i32, Failure>,
) -> (Result<i32, Failure>, Vec<String>) {
    if matches!(ended, Ok(0)) {
        return (Err(failure), Vec::new());
    }
    context.report.line(&format!("warning: {failure}"));
    match ended {
        Ok(code) => (Ok(code), failure.hints),
        Err(mut first) => {
            for hint in failure.hints {
                if !first.hints.contains(&hint) {
                    first.hints.push(hint);
                }
            }
            (Err(first), Vec::new())
        }
    }
}

/// A relative one is below the provider's default.
fn workdir(context: Context<'_>, request: &RunRequest<'_>) -> String {
    let usual = context.provider.workdir(request.workspace);
    normal(&match &request.workdir {
        Some(wanted) => usual.join(wanted),
        None => usual,
    })
}

/// Where the repository is in the sandbox.
fn tree_root(context: Context<'_>, workspace: &Workspace) -> String {
    normal(&context.provider.workdir(workspace))
}

/// Without a `.` in it.
fn normal(path: &Path) -> String {
    let path: PathBuf = path.components().collect();
    path.to_string_lossy().into_owned()
}

fn announce(context: Context<'_>, lease: &Lease, facts: &Facts) {
    let provider = context.name();
    let claim = &lease.claim;
    let id = &claim.lease_id;
    let slug = claim.slug_str().unwrap_or("-");
    if lease.origin == Origin::Fresh {
        let names = context.provider.names_when_leased(claim);
        context.report.fact(&format!(
            "leased {id} slug={slug} provider={provider} {names}"
        ));
    }
    let delegated = match context.provider.spec().workspace {
        WorkspaceKind::Mounted => " sync_delegated=true",
        WorkspaceKind::Archive => "",
    };
    context.report.fact(&format!(
        "provider={provider} lease={id} {} workdir={}{delegated}",
        context.provider.names(claim),
        // The name of a directory must not add lines to those that programs parse.
        printable(&facts.workdir)
    ));
}

fn execute(
    context: Context<'_>,
    lease: &Lease,
    facts: &Facts,
    request: RunRequest<'_>,
    timing: &mut Timing,
) -> Result<i32, Failure> {
    let Job::Command(argv) = request.job else {
        return Ok(0);
    };
    let env = (request.env)(&lease.claim)?;
    if request.say_env {
        context.report.fact(&env.summary(context.name()));
    }
    if let Some(reason) = context.cancel.reason() {
        return Err(canceled(reason));
    }
    let exec = Execution {
        argv,
        env: env.vars(),
        workdir: request.workdir.as_ref().map(|_| facts.workdir.as_str()),
        workspace: request.workspace,
        stdin: request.streams.stdin,
        interactive: request.streams.interactive,
        terminal: request.streams.terminal,
        stdout: request.streams.stdout,
        stderr: request.streams.stderr,
    };
    timing.start("command", Instant::now());
    let ended = context
        .verify(&lease.claim, Use::Exec)
        .and_then(|sandbox| context.provider.exec(&sandbox, exec, context.cancel));
    timing.stop(Instant::now());
    // A command that ends because it was told to did not end by itself.
    match (context.cancel.reason(), ended) {
        // It also left something that the user has to know of.
        (Some(reason), Err(failure)) if failure.code == Code::Provider => {
            Err(canceled(reason).and(&failure))
        }
        (Some(reason), _) => Err(canceled(reason)),
        (None, ended) => ended,
    }
}

/// A lease that stays although its sandbox is gone serves nothing any more.
fn with_way_out(context: Context<'_>, lease: &Lease, failure: Failure) -> Failure {
    match failure.code == Code::NotFound && failure.hints.is_empty() {
        true => failure.hint(context.provider.stop_command(&lease.claim)),
        false => failure,
    }
}

pub(super) fn canceled(reason: Reason) -> Failure {
    reason.canceled(format!("canceled: {reason}"))
}

/// After a cancellation while the lease was settled, the failure says what became of it.
fn unless_canceled_since(
    context: Context<'_>,
    lease: &Lease,
    kept: bool,
    ended: Result<i32, Failure>,
) -> Result<i32, Failure> {
    let id = &lease.claim.lease_id;
    let became = match kept {
        true => format!("lease {id} stays"),
        false => format!("lease {id} was released"),
    };
    let canceled = |reason: Reason| {
        let failure = reason.canceled(format!("canceled: {reason}; {became}"));
        match kept && lease.origin == Origin::Fresh {
            true => failure.hint(context.provider.stop_command(&lease.claim)),
            false => failure,
        }
    };
    match (context.cancel.reason(), ended) {
        (Some(reason), Ok(_)) => Err(canceled(reason)),
        (Some(reason), Err(failure)) if failure.code != Code::Canceled => {
            Err(canceled(reason).and(&failure))
        }
        (_, ended) => ended,
    }
}

/// The same command, in this lease.
fn rerun(context: Context<'_>, claim: &Claim, request: &RunRequest<'_>) -> String {
    let id = context.provider.spec().shown_id(claim).to_owned();
    let mut words = vec!["--id".to_owned(), id];
    words.extend(request.flags.iter().cloned());
    let run = context.provider.command("run");
    match request.job {
        Job::Command(_) => format!("{run} {} -- {}", display(&words), request.shown),
        Job::SyncOnly => format!("{run} {} --sync-only", display(&words)),
    }
}
