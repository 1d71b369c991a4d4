//! How a run ended, and what is reported about it.

use std::time::Instant;

use serde::Serialize;

use super::Context;
use super::lease::{Lease, Origin};
use super::sync::Step;
use crate::Failure;
use crate::claims::Claim;
use crate::provider::WorkspaceKind;
use crate::timing::{Report, SyncPhase, Timing, classify, format_ms, millis};

/// The phases of the report that belong to a sync.
pub(super) const PREPARE: &str = "prepare";
pub(super) const SYNC: &str = "sync";

/// How a run ended, in all its parts.
#[derive(Debug)]
pub struct Outcome {
    /// The command's own exit code, or why the command has no exit code.
    pub ended: Result<i32, Failure>,
    pub session: Option<Session>,
    pub timing: Report,
    /// What to do about what the run left, where the command's own exit code is all there is to say.
    pub hints: Vec<String>,
    /// The directory that was synced, of a run that did only that.
    pub synced: Option<String>,
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

/// What the report says whatever happens.
pub(super) struct Facts {
    pub(super) run_id: String,
    pub(super) label: Option<String>,
    pub(super) workdir: String,
}

fn exit_of(ended: &Result<i32, Failure>) -> i32 {
    match ended {
        Ok(code) => *code,
        Err(failure) => failure.exit_code().into(),
    }
}

pub(super) fn summary(context: Context<'_>, timing: &Timing, ended: &Result<i32, Failure>) {
    let now = Instant::now();
    let sync = match context.provider.spec().workspace {
        WorkspaceKind::Mounted => "sync_delegated=true".to_owned(),
        WorkspaceKind::Archive => {
            let took = timing.of(PREPARE, now) + timing.of(SYNC, now);
            format!("sync={}", format_ms(took))
        }
    };
    context.report.fact(&format!(
        "{} run summary {sync} command={} total={} exit={}",
        context.name(),
        format_ms(timing.of("command", now)),
        format_ms(timing.total(now)),
        exit_of(ended)
    ));
}

pub(super) fn session(context: Context<'_>, lease: &Lease, facts: &Facts, kept: bool) -> Session {
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
    /// `step` is the sync of the run, as far as it came.
    pub(super) fn report(
        &self,
        context: Context<'_>,
        claim: Option<&Claim>,
        step: Option<&Step<'_>>,
        timing: &Timing,
        ended: &Result<i32, Failure>,
    ) -> Report {
        let now = Instant::now();
        let spec = context.provider.spec();
        let (run_status, error_kind) = classify(ended);
        let sync = timing.of(PREPARE, now) + timing.of(SYNC, now);
        let (sync_phases, sync_skipped) = match (step, spec.workspace) {
            (Some(step), _) => step.phases(spec.name, sync),
            (None, WorkspaceKind::Mounted) => Step::Mounted.phases(spec.name, sync),
            (None, WorkspaceKind::Archive) => (Vec::<SyncPhase>::new(), false),
        };
        Report {
            provider: spec.name.to_owned(),
            lease_id: claim.map_or_else(String::new, |claim| claim.lease_id.as_str().to_owned()),
            slug: claim.and_then(Claim::slug_str).unwrap_or("").to_owned(),
            run_id: self.run_id.clone(),
            sync_ms: millis(sync),
            sync_phases,
            sync_skipped,
            sync_delegated: spec.workspace == WorkspaceKind::Mounted,
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
