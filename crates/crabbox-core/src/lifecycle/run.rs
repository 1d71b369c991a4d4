//! One command in a sandbox, from the lease to its release.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Context;
use super::lease::{self, Lease, Origin, Terms};
use crate::claims::{Claim, Reclaim};
use crate::command::display;
use crate::env::Forwarded;
use crate::process::{Output, Reason, Stdin};
use crate::provider::{Execution, Workspace, WorkspaceKind};
use crate::timing::{Report, SyncPhase, Timing, format_ms, judge, millis};
use crate::{Code, Failure};

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
    Yes,
}

#[derive(Debug)]
pub struct Streams {
    pub stdin: Stdin,
    pub terminal: bool,
    pub stdout: Output,
    pub stderr: Output,
}

/// A command that was checked as far as it can be without a sandbox.
pub struct RunRequest<'a> {
    pub run_id: String,
    pub workspace: &'a Workspace,
    pub target: Target,
    pub keep: Keep,
    /// What the sandbox executes.
    pub argv: Vec<String>,
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

/// How a run ended, in all its parts.
#[derive(Debug)]
pub struct Outcome {
    /// The command's own exit code, or why there is none.
    pub ended: Result<i32, Failure>,
    pub session: Option<Session>,
    pub timing: Report,
    /// What to do about what the run left, where the command's own exit code is all there is to say.
    pub hints: Vec<String>,
}

/// The lease that a run used, for `--lease-output`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    pub provider: String,
    pub lease_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slug: Option<String>,
    pub reused: bool,
    pub kept: bool,
    pub run_id: String,
    pub cleanup_command: String,
}

pub fn run(context: Context<'_>, request: RunRequest<'_>) -> Outcome {
    let mut timing = Timing::new(Instant::now());
    let facts = Facts {
        run_id: request.run_id.clone(),
        label: request.label.clone(),
        workdir: workdir(context, &request),
    };
    timing.start("lease", Instant::now());
    let lease = match &request.target {
        Target::Fresh(terms) => lease::take(context, request.workspace, terms, "crabbox run"),
        Target::Reuse {
            identifier,
            reclaim,
            idle_timeout,
        } => lease::reuse(
            context,
            identifier,
            request.workspace,
            *reclaim,
            *idle_timeout,
            "crabbox run",
        ),
    };
    timing.stop(Instant::now());
    let lease = match lease {
        Ok(lease) => lease,
        Err(failure) => {
            return Outcome {
                timing: facts.report(context, None, &timing, &Err(failure.clone())),
                ended: Err(failure),
                session: None,
                hints: Vec::new(),
            };
        }
    };
    announce(context, &lease, &facts);
    let keep = request.keep;
    let rerun = rerun(context, &lease.claim, &request);
    let ended = execute(context, &lease, &facts, request, &mut timing);
    summary(context, &timing, &ended);
    timing.start("release", Instant::now());
    let settled = settle(context, &lease, keep, &ended, &rerun);
    timing.stop(Instant::now());
    let kept = settled != Settled::Gone;
    let mut ended = unless_canceled_since(context, &lease, kept, ended);
    let hints = match settled {
        Settled::Unremoved => hint_at(context, &lease, &mut ended),
        Settled::Gone | Settled::Kept => Vec::new(),
    };
    Outcome {
        session: Some(session(context, &lease, &facts, kept)),
        timing: facts.report(context, Some(&lease.claim), &timing, &ended),
        ended,
        hints,
    }
}

/// How to remove what could not be removed: with the last words, where there are any. Those of the command come back.
fn hint_at(context: Context<'_>, lease: &Lease, ended: &mut Result<i32, Failure>) -> Vec<String> {
    let stop = context.provider.stop_command(&lease.claim);
    match ended {
        Ok(0) => context.report.line(&format!("hint: {stop}")),
        Ok(_) => return vec![stop],
        Err(failure) if failure.hints.contains(&stop) => {}
        Err(failure) => failure.hints.push(stop),
    }
    Vec::new()
}

/// What the report says whatever happens.
struct Facts {
    run_id: String,
    label: Option<String>,
    workdir: String,
}

/// A relative one is below the usual place.
fn workdir(context: Context<'_>, request: &RunRequest<'_>) -> String {
    let usual = context.provider.workdir(request.workspace);
    let path = match &request.workdir {
        Some(wanted) => usual.join(wanted),
        None => usual,
    };
    // Without a `.` in it.
    let path: PathBuf = path.components().collect();
    path.to_string_lossy().into_owned()
}

fn announce(context: Context<'_>, lease: &Lease, facts: &Facts) {
    let provider = context.name();
    let claim = &lease.claim;
    let id = &claim.lease_id;
    let sandbox = claim.sandbox().unwrap_or("-");
    let slug = claim.slug_str().unwrap_or("-");
    if lease.origin == Origin::Fresh {
        context.report.line(&format!(
            "leased {id} slug={slug} provider={provider} sandbox={sandbox}"
        ));
    }
    let delegated = match context.provider.spec().workspace {
        WorkspaceKind::Shared => " sync_delegated=true",
        WorkspaceKind::Archive => "",
    };
    context.report.line(&format!(
        "provider={provider} lease={id} sandbox={sandbox} workdir={}{delegated}",
        facts.workdir
    ));
}

fn execute(
    context: Context<'_>,
    lease: &Lease,
    facts: &Facts,
    request: RunRequest<'_>,
    timing: &mut Timing,
) -> Result<i32, Failure> {
    let env = (request.env)(&lease.claim)?;
    if request.say_env {
        context.report.line(&env.summary(context.name()));
    }
    if let Some(reason) = context.cancel.reason() {
        return Err(canceled(reason));
    }
    let exec = Execution {
        argv: request.argv,
        env: env.vars(),
        workdir: request.workdir.as_ref().map(|_| facts.workdir.as_str()),
        workspace: request.workspace,
        stdin: request.streams.stdin,
        terminal: request.streams.terminal,
        stdout: request.streams.stdout,
        stderr: request.streams.stderr,
    };
    timing.start("command", Instant::now());
    let ended = context.provider.exec(&lease.claim, exec, context.cancel);
    timing.stop(Instant::now());
    // A command that ends because it was told to did not end by itself.
    match (context.cancel.reason(), ended) {
        (Some(reason), _) => Err(canceled(reason)),
        (None, ended) => ended,
    }
}

fn canceled(reason: Reason) -> Failure {
    Failure::new(Code::Canceled, format!("canceled: {reason}"))
}

/// Whoever cancels while the lease is settled is told what became of it.
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
    let canceled = |reason| {
        let failure = Failure::new(Code::Canceled, format!("canceled: {reason}; {became}"));
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

fn exit_of(ended: &Result<i32, Failure>) -> i32 {
    match ended {
        Ok(code) => *code,
        Err(failure) => failure.code.exit_code().into(),
    }
}

fn summary(context: Context<'_>, timing: &Timing, ended: &Result<i32, Failure>) {
    let now = Instant::now();
    let sync = match context.provider.spec().workspace {
        WorkspaceKind::Shared => "sync_delegated=true".to_owned(),
        WorkspaceKind::Archive => format!("sync={}", format_ms(timing.of("sync", now))),
    };
    context.report.line(&format!(
        "{} run summary {sync} command={} total={} exit={}",
        context.name(),
        format_ms(timing.of("command", now)),
        format_ms(timing.total(now)),
        exit_of(ended)
    ));
}

/// What became of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settled {
    Gone,
    /// As it should be.
    Kept,
    /// It is still there, or nobody knows.
    Unremoved,
}

/// Keeps the lease or gives it back.
fn settle(
    context: Context<'_>,
    lease: &Lease,
    keep: Keep,
    ended: &Result<i32, Failure>,
    rerun: &str,
) -> Settled {
    if lease.origin == Origin::Reused {
        renew(context, lease);
        return Settled::Kept;
    }
    let succeeded = matches!(ended, Ok(0));
    let stop = context.provider.stop_command(&lease.claim);
    match keep {
        Keep::Yes => {
            renew(context, lease);
            return Settled::Kept;
        }
        Keep::OnFailure if !succeeded => {
            keep_after_all(context, lease);
            for line in kept_on_failure(&lease.claim, rerun, &stop) {
                context.report.line(&line);
            }
            return Settled::Kept;
        }
        Keep::OnFailure | Keep::No => {}
    }
    if succeeded && let Some(line) = context.provider.keep_after_success(&lease.claim, &stop) {
        keep_after_all(context, lease);
        context.report.line(&line);
        return Settled::Kept;
    }
    match lease::give_back(context, lease) {
        Ok(()) => Settled::Gone,
        // The command's own end counts, not what became of its sandbox.
        Err(failure) => {
            let claim = &lease.claim;
            let name = claim.sandbox().unwrap_or(claim.lease_id.as_str());
            let line = format!(
                "warning: {} rm failed for {name}: {failure}",
                context.name()
            );
            context.report.line(&line);
            Settled::Unremoved
        }
    }
}

/// Otherwise the next run would take it for one that this process left behind.
fn keep_after_all(context: Context<'_>, lease: &Lease) {
    if let Err(failure) = lease::keep(context, lease) {
        let id = &lease.claim.lease_id;
        let line = format!("warning: that lease {id} stays is not recorded: {failure}");
        context.report.line(&line);
    }
}

/// The idle time begins when the command ends.
fn renew(context: Context<'_>, lease: &Lease) {
    if let Err(failure) = lease::used(context, lease) {
        let id = &lease.claim.lease_id;
        let line = format!("warning: the use of lease {id} is not recorded: {failure}");
        context.report.line(&line);
    }
}

fn terms_of(claim: &Claim) -> String {
    let shown = |seconds| format_ms(Duration::from_secs(seconds));
    format!(
        "idle_timeout={} ttl={}",
        shown(claim.idle_timeout_seconds),
        shown(claim.ttl_seconds)
    )
}

/// The same command, in this lease.
fn rerun(context: Context<'_>, claim: &Claim, request: &RunRequest<'_>) -> String {
    let id = context.provider.spec().shown_id(claim).to_owned();
    let mut words = vec!["--id".to_owned(), id];
    words.extend(request.flags.iter().cloned());
    let run = context.provider.command("run");
    format!("{run} {} -- {}", display(&words), request.shown)
}

fn kept_on_failure(claim: &Claim, rerun: &str, stop: &str) -> [String; 3] {
    let lease = &claim.lease_id;
    let slug = claim.slug_str().unwrap_or("-");
    let terms = terms_of(claim);
    [
        format!("keep-on-failure: kept lease={lease} slug={slug} expires=idle/ttl {terms}"),
        format!("rerun: {rerun}"),
        format!("stop: {stop}"),
    ]
}

fn session(context: Context<'_>, lease: &Lease, facts: &Facts, kept: bool) -> Session {
    let claim = &lease.claim;
    Session {
        provider: context.name().to_owned(),
        lease_id: claim.lease_id.as_str().to_owned(),
        slug: claim.slug_str().map(str::to_owned),
        reused: lease.origin == Origin::Reused,
        kept,
        run_id: facts.run_id.clone(),
        cleanup_command: context.provider.stop_command(claim),
    }
}

impl Facts {
    fn report(
        &self,
        context: Context<'_>,
        claim: Option<&Claim>,
        timing: &Timing,
        ended: &Result<i32, Failure>,
    ) -> Report {
        let now = Instant::now();
        let spec = context.provider.spec();
        let (run_status, error_kind) = judge(ended);
        let delegated = spec.workspace == WorkspaceKind::Shared;
        let skipped = SyncPhase {
            name: "sync".to_owned(),
            ms: None,
            skipped: Some(true),
            reason: Some("provider-delegated workspace".to_owned()),
        };
        Report {
            provider: spec.name.to_owned(),
            lease_id: claim.map_or_else(String::new, |claim| claim.lease_id.as_str().to_owned()),
            slug: claim.and_then(Claim::slug_str).unwrap_or("").to_owned(),
            run_id: self.run_id.clone(),
            sync_ms: millis(timing.of("sync", now)),
            sync_phases: if delegated { vec![skipped] } else { Vec::new() },
            sync_skipped: delegated,
            sync_delegated: delegated,
            command_ms: millis(timing.of("command", now)),
            total_ms: millis(timing.total(now)),
            end_to_end_ms: millis(timing.total(now)),
            exit_code: exit_of(ended),
            run_status,
            error_kind,
            label: self.label.clone(),
            phases: timing.phases(now),
            workdir: Some(self.workdir.clone()),
            stop_command: claim.map(|claim| context.provider.stop_command(claim)),
        }
    }
}
