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

use crabbox_core::claims::{Claim, LeaseId, OperationLock, State as ClaimState, random_hex};
use crabbox_core::command::{Assignments, Rules};
use crabbox_core::process::Cancel;
use crabbox_core::provider::{
    ArchiveSync, BusyLease, Check, CreateFailure, Created, EXPIRED, Execution, ExpiredLease,
    HostContext, Labels, LeasePlan, MISSING, NewLease, Observed, Provider, Readiness, Removal,
    RunEnd, Spec, StopBy, Use, Verified, Workspace, WorkspaceKind,
};
use crabbox_core::settings::{Origin, Settings};
use crabbox_core::timing::format_ms;
use crabbox_core::{Code, Failure};

use chain::{Chain, Expected, Over, Stage, State};
use exec::{Ended, Pod};
use kubectl::{Kubectl, pod_object, pool_object, sandbox_object};
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
    busy: BusyLease::Wait,
    ports: false,
    copy: false,
    build_cache: false,
    instead_of_class: "the resources of the warm pool's SandboxTemplate",
    instead_of_type: "--agent-sandbox-warm-pool",
    credentials: &["KUBECONFIG"],
};

/// How old a proof may be when it is used, from its answer on.
const PROOF_TIMEOUT: Duration = Duration::from_millis(300);

/// How long an API server that comes back may deny what is allowed.
const RESTART_TIMEOUT: Duration = Duration::from_secs(15);

/// How the denial of what every look asks for is told.
const GET_CLAIMS: &str = "get sandboxclaims ";

/// After so many looks a claim is watched, for so long at a time.
const WATCH_FROM: u32 = 6;
const WATCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Between a watch and the next look, for a server that ends each watch at once.
const WATCH_DELAY: Duration = Duration::from_millis(50);

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
    /// KUBECONFIG, where it has several entries: no flag can say the same.
    repeat_variable: Option<String>,
    /// The last look that proved a whole chain.
    proof: Mutex<Option<Proof>>,
    wait: Mutex<Option<ReadyWait>>,
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
struct ReadyWait {
    lease: LeaseId,
    stage: Stage,
    /// What each stage has taken so far, and until when.
    times: StageTimes,
    at: Instant,
    looks: u32,
    sandbox: Option<String>,
    /// When the cluster last did not answer.
    unanswered: Option<Instant>,
    /// When it last did.
    answered: Option<Instant>,
}

#[derive(Debug, Clone, Copy, Default)]
struct StageTimes {
    sandbox: Duration,
    pod: Duration,
}

impl StageTimes {
    fn of(&mut self, stage: Stage) -> &mut Duration {
        match stage {
            Stage::Sandbox => &mut self.sandbox,
            Stage::Pod => &mut self.pod,
        }
    }
}

/// The readiness poll of a lease: how often it was looked at, and the time left.
struct PollState {
    looks: u32,
    /// Of the stage's time; `None` where it has no limit.
    left: Option<Duration>,
}

impl AgentSandbox {
    fn new(settings: &Settings, host: &HostContext) -> Self {
        let config = Config::from(settings, host);
        let valid = config.validate().map_err(|(key, message)| {
            let mut failure = Failure::new(Code::Config, message);
            failure.hints.extend(config.remedy(key));
            settings.with_location(SPEC.table.section, key, failure)
        });
        let scope = config.scope();
        Self {
            kubectl: Kubectl::find(&config, host),
            repeat_flags: repeat_flags(settings, &config),
            repeat_variable: config.kubeconfig_list(),
            config,
            valid,
            fingerprint: claim::fingerprint(&scope),
            scope,
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
        let recent = proof.at.elapsed() <= PROOF_TIMEOUT && proof.lease == claim.lease_id;
        recent.then_some(proof.chain)
    }

    /// One look at everything that belongs to a lease, and another one where the first shows what else to look at.
    fn look(&self, claim: &Claim, cancel: &Cancel) -> Result<(Seen, Option<State>), Failure> {
        let kubectl = self.kubectl()?;
        let name = labels::claim_name(claim);
        let known = labels::get(claim, labels::SANDBOX).map(str::to_owned);
        let known = known.or_else(|| self.waiting(claim).and_then(|wait| wait.sandbox));
        let mut below = Vec::new();
        if let Some(sandbox) = &known {
            let pod = labels::get(claim, labels::POD).unwrap_or(sandbox);
            below.extend([sandbox_object(sandbox), pod_object(pod)]);
        }
        let mut seen = kubectl.get_with_claim(&name, &below, cancel)?;
        let expected = self.expected(claim);
        // Three more looks at most: at a Sandbox and pod, at the pod that an annotation names, and by the selector.
        for _ in 0..4 {
            let Some(object) = seen.claim(&name) else {
                return Ok((seen, None));
            };
            let more = match expected.state(object, &seen)? {
                State::LookAt { sandbox, pod } => {
                    let below = [sandbox_object(&sandbox), pod_object(&pod)];
                    let again = kubectl.get_with_claim(&name, &below, cancel)?;
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
                    self.remember_proof(claim, &state);
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
    fn remember_proof(&self, claim: &Claim, state: &State) {
        *lock(&self.proof) = match state {
            State::Ready(chain) => Some(Proof {
                lease: claim.lease_id.clone(),
                chain: (**chain).clone(),
                at: Instant::now(),
            }),
            _ => None,
        };
    }

    /// Whether the next look may find what this one could not. An API server that has just come back denies what its
    /// authorizer has not read yet: also what it allowed a moment ago, where no look fell into the time that it was away.
    fn is_temporary(&self, claim: &Claim, failure: &Failure) -> bool {
        let is_recent = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < RESTART_TIMEOUT);
        match (failure.code, self.waiting(claim)) {
            (Code::Provider, _) => true,
            (Code::Denied, Some(wait)) => {
                let was_allowed = failure.message.contains(GET_CLAIMS);
                is_recent(wait.unanswered) || was_allowed && is_recent(wait.answered)
            }
            _ => false,
        }
    }

    fn note_unanswered(&self, failure: &Failure) {
        if let (Code::Provider, Some(wait)) = (failure.code, lock(&self.wait).as_mut()) {
            wait.unanswered = Some(Instant::now());
        }
    }

    fn waiting(&self, claim: &Claim) -> Option<ReadyWait> {
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
        let what = format!("SandboxClaim {name:?} is missing in Kubernetes, or not accessible");
        let failed = |why: &str| Failure::new(Code::NotFound, format!("{what}{why}"));
        if self.may_forget(claim) || was_being_deleted(claim) {
            return failed("");
        }
        if claim.is_fixed() {
            let id = &claim.lease_id;
            return failed("; local claim retained because its id was chosen").hint(format!(
                "confirm that it is gone in the intended cluster, then use crabbox claims forget {id}"
            ));
        }
        failed("; local claim retained because forgetMissing=false").hint(format!(
            "confirm that it is gone in the intended cluster, then use {}",
            self.forget_command(claim)
        ))
    }

    /// `crabbox stop` that forgets what is missing.
    fn forget_command(&self, claim: &Claim) -> String {
        let stop = self.stop_command(claim);
        let id = claim.lease_id.as_str();
        match stop.strip_suffix(id) {
            Some(before) => format!("{before}--agent-sandbox-forget-missing {id}"),
            None => format!("{stop} (with --agent-sandbox-forget-missing)"),
        }
    }

    fn pool_uid(&self, cancel: &Cancel) -> Result<Option<String>, Failure> {
        let pool = pool_object(&self.config.warm_pool);
        Ok(self.kubectl()?.uid(&pool, cancel)?)
    }

    fn may_forget(&self, claim: &Claim) -> bool {
        self.config.forget_missing && !claim.is_fixed()
    }

    /// What is said of a SandboxClaim that is not there. The one of a fixed lease whose deletion was begun, by its UID and
    /// after it was seen, is gone: only the wait for its pods was cut short.
    fn missing_fact(&self, claim: &Claim) -> Labels {
        let why = match self.may_forget(claim) || was_being_deleted(claim) {
            true => "",
            false => {
                "missing-or-inaccessible; set agentSandbox forgetMissing after confirming that it is gone"
            }
        };
        Labels::from([(MISSING.to_owned(), why.to_owned())])
    }

    /// For what changes or removes only the SandboxClaim.
    fn prove_claim(&self, claim: &Claim, cancel: &Cancel) -> Result<Labels, Failure> {
        let name = labels::claim_name(claim);
        let Some(object) = self.kubectl()?.get_claim(&name, cancel)? else {
            return Ok(self.missing_fact(claim));
        };
        self.expected(claim).check(&object)?;
        let mut facts = Labels::from([(labels::CLAIM_UID.to_owned(), object.metadata.uid.clone())]);
        if let Some(why) = chain::expired(&object) {
            facts.insert(EXPIRED.to_owned(), why);
        }
        Ok(facts)
    }

    /// The stage's own time limit. A look that failed (`seen` is `None`) changes no stage: its time counts all the same.
    fn count_look(
        &self,
        claim: &Claim,
        stage: Stage,
        why: &str,
        seen: Option<&Seen>,
    ) -> Result<PollState, Failure> {
        let now = Instant::now();
        let mut wait = self.waiting(claim).unwrap_or_else(|| ReadyWait {
            lease: claim.lease_id.clone(),
            stage,
            times: StageTimes::default(),
            at: now,
            looks: 0,
            sandbox: None,
            unanswered: None,
            answered: None,
        });
        *wait.times.of(wait.stage) += now.duration_since(wait.at);
        wait.at = now;
        wait.looks += 1;
        if let Some(seen) = seen {
            wait.answered = Some(now);
            wait.stage = stage;
            let name = labels::claim_name(claim);
            let sandbox = seen.claim(&name).map(|one| one.status.sandbox.name.clone());
            wait.sandbox = sandbox.filter(|name| !name.is_empty());
        }
        let (looks, stage) = (wait.looks, wait.stage);
        let spent = *wait.times.of(stage);
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
            Some(limit) if spent >= limit => {
                let limit = format_ms(limit);
                let message = format!(
                    "the {what} of lease {} was not ready within {limit} (class={class}): waiting for {why}",
                    claim.lease_id
                );
                Err(Failure::new(Code::Timeout, message))
            }
            Some(limit) => Ok(PollState {
                looks,
                left: Some(limit - spent),
            }),
            None => Ok(PollState { looks, left: None }),
        }
    }

    /// A claim that takes long is watched where that is allowed, and else looked at now and then: never for longer than the
    /// stage has left.
    fn retry_delay(
        &self,
        claim: &Claim,
        stage: Stage,
        seen: &Seen,
        next: &PollState,
        cancel: &Cancel,
    ) -> Duration {
        let limit = |time: Duration| next.left.map_or(time, |left| left.min(time));
        let polled = limit(chain::poll_interval(next.looks));
        let watchable = stage == Stage::Sandbox && !*lock(&self.unwatchable);
        let name = labels::claim_name(claim);
        let (Some(object), Ok(kubectl)) = (seen.claim(&name), self.kubectl()) else {
            return polled;
        };
        if next.looks < WATCH_FROM || !watchable {
            return polled;
        }
        let version = &object.metadata.resource_version;
        match kubectl.watch_claim(&name, version, limit(WATCH_TIMEOUT), cancel) {
            // Something has changed, or the time is over.
            true => WATCH_DELAY,
            false => {
                *lock(&self.unwatchable) = true;
                polled
            }
        }
    }

    /// Why a command has no proved end. One that was started is looked for, and ended.
    fn unproved(
        &self,
        claim: &Claim,
        started: bool,
        said: Option<String>,
        run_id: Option<&str>,
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
        let run_id = run_id.filter(|_| started);
        match (self.prove(claim, cancel), run_id) {
            (Ok(_), None) => failure,
            (Ok(chain), Some(run_id)) => match self.pod(&chain).map(|pod| pod.end(run_id)) {
                Ok(Ok(())) => failure,
                Ok(Err(left)) | Err(left) => failure.and(&left),
            },
            (Err(why), _)
                if matches!(why.code, Code::NotOwned | Code::Expired | Code::NotFound) =>
            {
                Failure {
                    causes: vec![why.to_string()],
                    code: why.code,
                    ..failure
                }
            }
            (Err(other), Some(_)) => {
                let pod = labels::get(claim, labels::POD).unwrap_or("-");
                failure.and(&exec::may_still_run(pod, &other))
            }
            (Err(other), None) => failure.and(&other),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn was_being_deleted(claim: &Claim) -> bool {
    let seen = labels::get(claim, labels::CLAIM_UID).is_some();
    claim.is_fixed() && claim.state == ClaimState::Releasing && seen
}

/// What flags and variables say of the route. Another terminal has the files, but not the variables of this one.
fn repeat_flags(settings: &Settings, config: &Config) -> Vec<String> {
    let section = SPEC.table.section;
    let said = |key: &str| match settings.origin(section, key) {
        Some(Origin::Flag { .. } | Origin::Environment { .. }) => {
            Some(settings.text(section, key).to_owned())
        }
        Some(_) | None => None,
    };
    let mut flags = Vec::new();
    for setting in SPEC.table.settings.iter().filter(|one| is_route(one.key)) {
        let value = match (setting.key, config.only_kubeconfig()) {
            ("kubeconfig", Some(path)) => Some(path),
            (key, _) => said(key),
        };
        if let (Some(flag), Some(value)) = (setting.flag, value) {
            flags.extend([format!("--{flag}"), value]);
        }
    }
    flags
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

    fn request_difference(
        &self,
        claim: &Claim,
        cancel: &Cancel,
    ) -> Result<Option<&'static str>, Failure> {
        let workdir = self.config.workdir.display().to_string();
        if labels::get(claim, labels::WORKDIR) != Some(workdir.as_str()) {
            return Ok(Some("workdir"));
        }
        let Some(pool) = labels::get(claim, labels::WARM_POOL_UID) else {
            return Ok(None);
        };
        let now = self.pool_uid(cancel)?;
        Ok((now.as_deref() != Some(pool)).then_some("warm pool"))
    }

    fn create(
        &self,
        claim: &Claim,
        _workspace: &Workspace,
        _lock: &OperationLock,
        cancel: &Cancel,
    ) -> Result<Created, CreateFailure> {
        let kubectl = self.kubectl().map_err(CreateFailure::nothing_created)?;
        // Another pool under the same name is another request.
        let pool = match claim.is_fixed() {
            true => self
                .pool_uid(cancel)
                .map_err(CreateFailure::nothing_created)?,
            false => None,
        };
        let mut created = claim::create(kubectl, &self.expected(claim), &self.config, cancel)?;
        let pinned = pool.map(|uid| (labels::WARM_POOL_UID.to_owned(), uid));
        created.labels.extend(pinned);
        Ok(created)
    }

    fn poll_ready(&self, claim: &Claim, cancel: &Cancel) -> Result<Readiness, Failure> {
        if let Some(chain) = self.recent_proof(claim) {
            return Ok(Readiness::Ready(chain.labels()));
        }
        let (seen, state) = match self.look(claim, cancel) {
            Ok(looked) => looked,
            // The cluster does not answer for a moment.
            Err(failure) if self.is_temporary(claim, &failure) => {
                let why = failure.to_string();
                let next = self.count_look(claim, Stage::Sandbox, &why, None)?;
                self.note_unanswered(&failure);
                let pause = chain::poll_interval(next.looks.max(9));
                return Ok(Readiness::NotYet {
                    waiting_for: why,
                    retry_after: next.left.map_or(pause, |left| left.min(pause)),
                });
            }
            Err(failure) => return Err(failure),
        };
        match state {
            Some(State::Ready(chain)) => Ok(Readiness::Ready(chain.labels())),
            Some(State::Over(over, why)) => Err(over_failure(claim, over, &why)),
            Some(State::Waiting(stage, why)) => {
                let next = self.count_look(claim, stage, &why, Some(&seen))?;
                Ok(Readiness::NotYet {
                    waiting_for: why,
                    retry_after: self.retry_delay(claim, stage, &seen, &next, cancel),
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
                    None => Ok(self.missing_fact(claim)),
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
        let run_id = exec.env.get("CRABBOX_RUN_ID").cloned();
        let ended = self.pod(&chain)?.run(exec, &workdir, timeout, cancel)?;
        match ended {
            Ended::Code(code) => Ok(code),
            Ended::Unproved { started, said } => {
                Err(self.unproved(claim, started, said, run_id.as_deref(), cancel))
            }
        }
    }

    fn observe(&self, claims: &[Claim], cancel: &Cancel) -> Result<Vec<Observed>, Failure> {
        claim::observe(self, claims, cancel)
    }

    fn was_seen(&self, claim: &Claim) -> bool {
        labels::get(claim, labels::CLAIM_UID).is_some()
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
            if was_being_deleted(claim) {
                return Ok(Removal::Gone);
            }
            return Ok(match self.may_forget(claim) {
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

    fn names(&self, claim: &Claim) -> String {
        let known = |key| labels::get(claim, key).unwrap_or("-");
        let name = labels::claim_name(claim);
        let (sandbox, pod) = (known(labels::SANDBOX), known(labels::POD));
        format!("claim={name} sandbox={sandbox} pod={pod}")
    }

    fn names_when_leased(&self, claim: &Claim) -> String {
        self.names(claim)
    }

    fn removed_name(&self, claim: &Claim) -> String {
        format!("claim={}", labels::claim_name(claim))
    }

    fn swept_subject(&self, claim: &Claim) -> String {
        format!("{} lease={}", self.removed_name(claim), claim.lease_id)
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

    fn repeat_variable(&self) -> Option<(&str, &str)> {
        let list = self.repeat_variable.as_deref()?;
        Some((settings::KUBECONFIG, list))
    }
}
