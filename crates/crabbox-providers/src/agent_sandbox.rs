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
mod missing;
mod objects;
mod proof;
mod ready;
mod route;
mod script;
mod settings;
mod sync;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crabbox_core::claims::{Claim, LeaseId, OperationLock, random_hex};
use crabbox_core::command::{Assignments, Rules};
use crabbox_core::process::Cancel;
use crabbox_core::provider::{
    ArchiveSync, BusyLease, Check, CreateFailure, Created, Execution, ExpiredLease, HostContext,
    Labels, LeasePlan, NewLease, Observed, Provider, Readiness, Removal, RunEnd, Spec, StopBy, Use,
    Verified, Workspace, WorkspaceKind,
};
use crabbox_core::settings::Settings;
use crabbox_core::{Code, Failure};

use chain::{Chain, Expected};
use exec::{Ended, Pod};
use kubectl::{Kubectl, pool_object};
use missing::was_being_deleted;
use proof::Proof;
use ready::ReadyWait;
use route::repeat_flags;
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
    /// When the server last said that it has created a claim.
    created: Mutex<Option<Instant>>,
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
            created: Mutex::default(),
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

    fn pool_uid(&self, cancel: &Cancel) -> Result<Option<String>, Failure> {
        let pool = pool_object(&self.config.warm_pool);
        Ok(self.kubectl()?.uid(&pool, cancel)?)
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
        *lock(&self.created) = Some(Instant::now());
        let pinned = pool.map(|uid| (labels::WARM_POOL_UID.to_owned(), uid));
        created.labels.extend(pinned);
        Ok(created)
    }

    fn poll_ready(&self, claim: &Claim, cancel: &Cancel) -> Result<Readiness, Failure> {
        self.poll(claim, cancel)
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
