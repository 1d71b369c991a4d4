//! `agent-sandbox`: sandboxes of a Kubernetes cluster with Agent Sandbox, through `kubectl`.
//!
//! A lease is a SandboxClaim on a warm pool. The controller gives it a Sandbox and a pod; commands and files go through
//! `kubectl exec`. What is used is proved before by one look at the whole chain ([`chain`]), and a command's exit code
//! by a marker of our own ([`script`]).

mod chain;
mod claim;
mod conversation;
mod doctor;
mod exec;
mod kubectl;
mod labels;
mod marker;
mod objects;
mod script;
mod settings;
mod sync;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crabbox_core::claims::{Claim, LeaseId, OperationLock, random_hex};
use crabbox_core::command::{Assignments, Rules};
use crabbox_core::process::Cancel;
use crabbox_core::provider::{
    ArchiveSync, Check, CreateFailure, Created, Execution, ExpiredLease, HostContext, Labels,
    LeasePlan, MISSING, NewLease, Observed, Provider, Readiness, Removal, RunEnd, Spec, StopBy,
    Use, Verified, Workspace, WorkspaceKind,
};
use crabbox_core::settings::{Origin, Settings};
use crabbox_core::timing::format_ms;
use crabbox_core::{Code, Failure};

use chain::{Chain, Expected, Over, Stage, State};
use exec::{Ended, Pod};
use kubectl::{Kubectl, claim_object, pod_object, sandbox_object};
use objects::Seen;
use settings::Config;

pub(crate) const SPEC: Spec = Spec {
    name: "agent-sandbox",
    family: "agent-sandbox",
    kind: "delegated-run",
    category: "delegated-sandbox",
    targets: &["linux"],
    features: &["archive-sync", "cleanup", "run-session", "fixed-lease-id"],
    runtime: &["delegated-command", "managed-sandbox"],
    evidence: &["session"],
    lifecycle: &["cleanup", "run-session"],
    coordinator: "never",
    table: settings::TABLE,
    lease_prefix: "asbx_",
    fixed_lease_id: true,
    workspace: WorkspaceKind::Archive,
    command: Rules {
        shell: &["bash", "-lc"],
        assignments: Assignments::Loose,
        host_paths: false,
    },
    stop_by: StopBy::LeaseId,
    absence_is_proof: false,
    expired: ExpiredLease::Remove,
    ports: false,
    copy: false,
    instead_of_class: "the resources of the warm pool's SandboxTemplate",
    instead_of_type: "--agent-sandbox-warm-pool",
    credentials: &["KUBECONFIG"],
};

/// How old a proof may be when it is used, from its answer on.
const PROOF_AGE: Duration = Duration::from_millis(300);

/// After so many looks a claim is watched, for so long at a time.
const WATCH_FROM: u32 = 6;
const WATCH_TIMEOUT: Duration = Duration::from_secs(10);

/// The constructor for the registry.
pub(crate) fn open(settings: &Settings, host: &HostContext) -> Box<dyn Provider> {
    Box::new(AgentSandbox::new(settings, host))
}

#[derive(Debug)]
struct AgentSandbox {
    config: Config,
    valid: Result<(), Failure>,
    kubectl: Result<Kubectl, Failure>,
    /// As claims record it, and as Kubernetes sees it.
    scope: String,
    fingerprint: String,
    repeat_flags: Vec<String>,
    /// The last look that proved a whole chain.
    proof: Mutex<Option<Proof>>,
    wait: Mutex<Option<Wait>>,
    /// RBAC does not allow to watch claims.
    unwatchable: Mutex<bool>,
}

#[derive(Debug, Clone)]
struct Proof {
    lease: LeaseId,
    chain: Chain,
    at: Instant,
}

/// How far the readiness of a lease has come.
#[derive(Debug, Clone)]
struct Wait {
    lease: LeaseId,
    stage: Stage,
    since: Instant,
    looks: u32,
    sandbox: Option<String>,
}

impl AgentSandbox {
    fn new(settings: &Settings, host: &HostContext) -> Self {
        let config = Config::from(settings, host);
        let valid = config.validate().map_err(|(key, message)| {
            let failure = Failure::new(Code::Config, message);
            settings.with_location(SPEC.table.section, key, failure)
        });
        let scope = config.scope();
        let mut repeat_flags = Vec::new();
        for setting in SPEC.table.settings {
            if let Some(Origin::Flag { name }) = settings.origin(SPEC.table.section, setting.key)
                && is_route(setting.key)
            {
                let value = settings.text(SPEC.table.section, setting.key).to_owned();
                repeat_flags.extend([format!("--{name}"), value]);
            }
        }
        Self {
            kubectl: Kubectl::find(&config, host),
            config,
            valid,
            fingerprint: claim::fingerprint(&scope),
            scope,
            repeat_flags,
            proof: Mutex::default(),
            wait: Mutex::default(),
            unwatchable: Mutex::default(),
        }
    }

    fn kubectl(&self) -> Result<&Kubectl, Failure> {
        self.valid.clone()?;
        self.kubectl.as_ref().map_err(Clone::clone)
    }

    fn expected<'a>(&'a self, claim: &'a Claim) -> Expected<'a> {
        Expected {
            claim,
            scope: &self.fingerprint,
            warm_pool: &self.config.warm_pool,
            container: &self.config.container,
        }
    }

    fn pod<'a>(&'a self, chain: &'a Chain) -> Result<Pod<'a>, Failure> {
        Ok(Pod {
            kubectl: self.kubectl()?,
            chain,
        })
    }

    /// What the proof before an operation found.
    fn proved(&self, sandbox: &Verified<'_>) -> Result<Chain, Failure> {
        Chain::of(|key| sandbox.fact(key).map(str::to_owned)).ok_or_else(|| {
            let message = format!("lease {} was not proved", sandbox.claim().lease_id);
            Failure::new(Code::NotOwned, message)
        })
    }

    /// After anything that takes long, the next use is proved anew.
    fn forget_proof(&self) {
        *lock(&self.proof) = None;
    }

    fn recent_proof(&self, claim: &Claim) -> Option<Chain> {
        let proof = lock(&self.proof).clone()?;
        let recent = proof.at.elapsed() <= PROOF_AGE && proof.lease == claim.lease_id;
        recent.then_some(proof.chain)
    }

    /// One look at everything that belongs to a lease, and another one where the first shows what else to look at.
    fn look(&self, claim: &Claim, cancel: &Cancel) -> Result<(Seen, Option<State>), Failure> {
        let kubectl = self.kubectl()?;
        let name = labels::claim_name(claim);
        let known = labels::get(claim, labels::SANDBOX).map(str::to_owned);
        let known = known.or_else(|| self.waiting(claim).and_then(|wait| wait.sandbox));
        let mut objects = vec![claim_object(&name)];
        if let Some(sandbox) = &known {
            let pod = labels::get(claim, labels::POD).unwrap_or(sandbox);
            objects.extend([sandbox_object(sandbox), pod_object(pod)]);
        }
        let mut seen = kubectl.get(&objects, cancel)?;
        let expected = self.expected(claim);
        // Two more looks at most: at a Sandbox and pod, and by the selector.
        for _ in 0..3 {
            let Some(object) = seen.claim(&name) else {
                return Ok((seen, None));
            };
            let more = match expected.state(object, &seen)? {
                State::LookAt { sandbox, pod } => {
                    let objects = [
                        claim_object(&name),
                        sandbox_object(&sandbox),
                        pod_object(&pod),
                    ];
                    let again = kubectl.get(&objects, cancel)?;
                    if again.sandbox(&sandbox).is_none() {
                        let why = format!("Sandbox {sandbox}");
                        return Ok((seen, Some(State::Waiting(Stage::Sandbox, why))));
                    }
                    seen = Seen::default();
                    again
                }
                State::Select(selector) if !selector.is_empty() => {
                    kubectl.select_pods(&selector, cancel)?
                }
                State::Select(_) => break,
                state => {
                    self.note(claim, &state);
                    return Ok((seen, Some(state)));
                }
            };
            let before = seen.pods.len();
            seen.merge(more);
            if before > 0 && seen.pods.len() == before {
                break;
            }
        }
        let why = "exactly one pod of the Sandbox".to_owned();
        Ok((seen, Some(State::Waiting(Stage::Pod, why))))
    }

    /// Remembers a whole chain for what follows at once.
    fn note(&self, claim: &Claim, state: &State) {
        *lock(&self.proof) = match state {
            State::Ready(chain) => Some(Proof {
                lease: claim.lease_id.clone(),
                chain: (**chain).clone(),
                at: Instant::now(),
            }),
            _ => None,
        };
    }

    fn waiting(&self, claim: &Claim) -> Option<Wait> {
        let wait = lock(&self.wait).clone()?;
        (wait.lease == claim.lease_id).then_some(wait)
    }

    /// The proof that commands go where they should.
    fn prove(&self, claim: &Claim, cancel: &Cancel) -> Result<Chain, Failure> {
        if let Some(chain) = self.recent_proof(claim) {
            return Ok(chain);
        }
        let (_, state) = self.look(claim, cancel)?;
        match state {
            Some(State::Ready(chain)) => Ok(*chain),
            Some(State::Over(over, why)) => Err(over_failure(claim, over, &why)),
            Some(State::Waiting(_, why)) => {
                let message = format!("lease {} is not ready: waiting for {why}", claim.lease_id);
                Err(Failure::new(Code::NotFound, message))
            }
            Some(State::LookAt { .. } | State::Select(_)) | None => Err(self.missing(claim)),
        }
    }

    fn missing(&self, claim: &Claim) -> Failure {
        let name = labels::claim_name(claim);
        let message = format!(
            "SandboxClaim {name:?} is missing in Kubernetes, or not accessible; local claim retained because forgetMissing=false"
        );
        Failure::new(Code::NotFound, message).hint(
            "confirm that it is gone in the intended cluster, then use --agent-sandbox-forget-missing",
        )
    }

    fn forgets(&self, claim: &Claim) -> bool {
        self.config.forget_missing && !claim.is_fixed()
    }

    /// For what changes or removes only the SandboxClaim.
    fn prove_claim(&self, claim: &Claim, cancel: &Cancel) -> Result<Labels, Failure> {
        let name = labels::claim_name(claim);
        let seen = self.kubectl()?.get(&[claim_object(&name)], cancel)?;
        let Some(object) = seen.claim(&name) else {
            let why = match self.forgets(claim) {
                true => "",
                false => {
                    "missing-or-inaccessible; set agentSandbox forgetMissing after confirming that it is gone"
                }
            };
            return Ok(Labels::from([(MISSING.to_owned(), why.to_owned())]));
        };
        self.expected(claim).check(object)?;
        Ok(Labels::from([(
            labels::CLAIM_UID.to_owned(),
            object.metadata.uid.clone(),
        )]))
    }

    /// The stage's own time limit.
    fn note_wait(
        &self,
        claim: &Claim,
        stage: Stage,
        why: &str,
        seen: &Seen,
    ) -> Result<u32, Failure> {
        let name = labels::claim_name(claim);
        let sandbox = seen
            .claim(&name)
            .map(|object| object.status.sandbox.name.clone());
        let mut wait = self.waiting(claim).unwrap_or_else(|| Wait {
            lease: claim.lease_id.clone(),
            stage,
            since: Instant::now(),
            looks: 0,
            sandbox: None,
        });
        if wait.stage != stage {
            wait.stage = stage;
            wait.since = Instant::now();
        }
        wait.looks += 1;
        wait.sandbox = sandbox.filter(|name| !name.is_empty());
        let (looks, since) = (wait.looks, wait.since);
        *lock(&self.wait) = Some(wait);
        let (limit, what, class) = match stage {
            Stage::Sandbox => (
                self.config.sandbox_timeout,
                "Sandbox",
                "sandbox_ready_timeout",
            ),
            Stage::Pod => (self.config.pod_timeout, "pod", "pod_ready_timeout"),
        };
        match limit {
            Some(limit) if since.elapsed() >= limit => {
                let limit = format_ms(limit);
                let message = format!(
                    "the {what} of lease {} was not ready within {limit} (class={class}): waiting for {why}",
                    claim.lease_id
                );
                Err(Failure::new(Code::Timeout, message))
            }
            Some(_) | None => Ok(looks),
        }
    }

    /// A claim that takes long is watched where that is allowed, and else looked at now and then.
    fn watch(&self, claim: &Claim, stage: Stage, looks: u32, cancel: &Cancel) -> Option<Duration> {
        if looks < WATCH_FROM || stage != Stage::Sandbox || *lock(&self.unwatchable) {
            return None;
        }
        let name = labels::claim_name(claim);
        let watched = self
            .kubectl()
            .ok()?
            .watch_claim(&name, WATCH_TIMEOUT, cancel);
        if !watched {
            *lock(&self.unwatchable) = true;
            return None;
        }
        Some(Duration::ZERO)
    }

    /// Why a command has no proved end.
    fn unproved(
        &self,
        claim: &Claim,
        started: bool,
        said: Option<String>,
        cancel: &Cancel,
    ) -> Failure {
        self.forget_proof();
        let message = match started {
            true => {
                "agent-sandbox run failed: the connection to the pod ended before the command; its exit code is not known"
            }
            false => "agent-sandbox run failed: the command was not started",
        };
        let mut failure = Failure::new(Code::Provider, message);
        if let Some(said) = &said
            && let Ok(kubectl) = self.kubectl()
            && let Some(denied) = kubectl.denied(said)
        {
            failure = Failure::new(Code::Denied, format!("agent-sandbox RBAC denied: {denied}"));
        }
        failure.causes.extend(said);
        match self.prove(claim, cancel) {
            Ok(_) => failure,
            Err(why) if matches!(why.code, Code::NotOwned | Code::Expired | Code::NotFound) => {
                Failure {
                    causes: vec![why.to_string()],
                    code: why.code,
                    ..failure
                }
            }
            Err(other) => failure.and(&other),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Without these another command line finds another cluster or pool.
fn is_route(key: &str) -> bool {
    matches!(
        key,
        "kubectl" | "kubeconfig" | "context" | "namespace" | "warmPool" | "container"
    )
}

fn over_failure(claim: &Claim, over: Over, why: &str) -> Failure {
    let lease = &claim.lease_id;
    match over {
        Over::Expired => {
            let message = format!("lease {lease} has expired: {why}");
            Failure::new(Code::Expired, message)
        }
        Over::Failed => {
            let message = format!("lease {lease} will not be ready: {why}");
            Failure::new(Code::NotFound, message)
        }
    }
}

impl Provider for AgentSandbox {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn validate(&self) -> Result<(), Failure> {
        self.valid.clone()
    }

    fn scope_mismatch(&self, claim: &Claim) -> Option<Failure> {
        (claim.provider_scope != self.scope).then(|| {
            let message = format!(
                "lease {} belongs to a different agent-sandbox scope",
                claim.lease_id
            );
            let was = format!(
                "the same command with the settings of {}",
                claim.provider_scope
            );
            Failure::new(Code::Config, message).hint(was)
        })
    }

    fn plan(&self, request: &NewLease<'_>) -> Result<LeasePlan, Failure> {
        self.kubectl()?;
        let lease_id = match request.lease_id {
            Some(id) => id.clone(),
            None => LeaseId::random(SPEC.lease_prefix)?,
        };
        let mut known = Labels::from([
            (labels::NONCE.to_owned(), random_hex(32)?),
            (labels::NAMESPACE.to_owned(), self.config.namespace.clone()),
            (labels::WARM_POOL.to_owned(), self.config.warm_pool.clone()),
            (
                labels::WORKDIR.to_owned(),
                self.config.workdir.display().to_string(),
            ),
        ]);
        if !self.config.container.is_empty() {
            let container = self.config.container.clone();
            known.insert(labels::CONTAINER.to_owned(), container);
        }
        Ok(LeasePlan {
            lease_id,
            scope: self.scope.clone(),
            labels: known,
        })
    }

    fn create(
        &self,
        claim: &Claim,
        _workspace: &Workspace,
        _lock: &OperationLock,
        cancel: &Cancel,
    ) -> Result<Created, CreateFailure> {
        let kubectl = self.kubectl().map_err(CreateFailure::nothing_created)?;
        claim::create(kubectl, &self.expected(claim), &self.config, cancel)
    }

    fn poll_ready(&self, claim: &Claim, cancel: &Cancel) -> Result<Readiness, Failure> {
        if let Some(chain) = self.recent_proof(claim) {
            return Ok(Readiness::Ready(chain.labels()));
        }
        let (seen, state) = match self.look(claim, cancel) {
            Ok(looked) => looked,
            // The cluster does not answer for a moment.
            Err(failure) if failure.code == Code::Provider => {
                let looks = self.note_wait(
                    claim,
                    Stage::Sandbox,
                    &failure.to_string(),
                    &Seen::default(),
                )?;
                return Ok(Readiness::NotYet {
                    waiting_for: failure.to_string(),
                    retry_after: chain::interval(looks.max(9)),
                });
            }
            Err(failure) => return Err(failure),
        };
        match state {
            Some(State::Ready(chain)) => Ok(Readiness::Ready(chain.labels())),
            Some(State::Over(over, why)) => Err(over_failure(claim, over, &why)),
            Some(State::Waiting(stage, why)) => {
                let looks = self.note_wait(claim, stage, &why, &seen)?;
                let retry_after = self.watch(claim, stage, looks, cancel);
                Ok(Readiness::NotYet {
                    waiting_for: why,
                    retry_after: retry_after.unwrap_or_else(|| chain::interval(looks)),
                })
            }
            Some(State::LookAt { .. } | State::Select(_)) | None => Err(self.missing(claim)),
        }
    }

    fn verify(&self, claim: &Claim, intent: Use, cancel: &Cancel) -> Result<Labels, Failure> {
        self.kubectl()?;
        if let Some(failure) = self.scope_mismatch(claim) {
            return Err(failure);
        }
        match intent {
            Use::Inspect | Use::Remove => self.prove_claim(claim, cancel),
            // Whether it is ready is asked next, and may take a while.
            Use::Reuse => {
                let (_, state) = self.look(claim, cancel)?;
                match state {
                    None => Err(self.missing(claim)),
                    Some(_) => Ok(Labels::new()),
                }
            }
            Use::Upload | Use::Replace | Use::Exec | Use::Attach => {
                Ok(self.prove(claim, cancel)?.labels())
            }
        }
    }

    fn archive(&self) -> Option<&dyn ArchiveSync> {
        Some(self)
    }

    fn workdir(&self, _workspace: &Workspace) -> PathBuf {
        self.config.workdir.clone()
    }

    fn exec(
        &self,
        sandbox: &Verified<'_>,
        exec: Execution<'_>,
        cancel: &Cancel,
    ) -> Result<i32, Failure> {
        self.forget_proof();
        let claim = sandbox.claim();
        let chain = self.proved(sandbox)?;
        let workdir = match exec.workdir {
            Some(workdir) => workdir.to_owned(),
            None => self.config.workdir.display().to_string(),
        };
        let timeout = self.config.exec_timeout;
        let ended = self.pod(&chain)?.run(exec, &workdir, timeout, cancel)?;
        match ended {
            Ended::Code(code) => Ok(code),
            Ended::Unproved { started, said } => Err(self.unproved(claim, started, said, cancel)),
        }
    }

    fn observe(&self, claims: &[Claim], cancel: &Cancel) -> Result<Vec<Observed>, Failure> {
        claim::observe(self, claims, cancel)
    }

    fn absent(&self, claim: &Claim) -> Failure {
        self.missing(claim)
    }

    fn remove(
        &self,
        sandbox: &Verified<'_>,
        begin: &dyn Fn() -> Result<(), Failure>,
        cancel: &Cancel,
    ) -> Result<Removal, Failure> {
        self.forget_proof();
        let claim = sandbox.claim();
        let Some(uid) = sandbox.fact(labels::CLAIM_UID) else {
            return Ok(match self.forgets(claim) {
                true => Removal::Forgotten(format!(
                    "SandboxClaim {:?} is missing; local claim forgotten",
                    labels::claim_name(claim)
                )),
                false => Removal::Missing(self.missing(claim)),
            });
        };
        begin()?;
        claim::delete(self.kubectl()?, claim, uid, cancel)
    }

    fn keep_after_run(&self, claim: &Claim, _end: RunEnd, stop: &str) -> Option<String> {
        (!self.config.delete_on_release).then(|| {
            let name = labels::claim_name(claim);
            format!("agent-sandbox kept claim={name} because deleteOnRelease=false; remove it with: {stop}")
        })
    }

    fn doctor(&self, cancel: &Cancel) -> Vec<Check> {
        match self.kubectl() {
            Ok(kubectl) => doctor::checks(kubectl, &self.config, cancel),
            Err(failure) => doctor::missing(&failure),
        }
    }

    fn repeat_flags(&self) -> &[String] {
        &self.repeat_flags
    }
}
