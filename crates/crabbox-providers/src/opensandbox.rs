//! `opensandbox`: sandboxes of an OpenSandbox server, through its HTTP API.
//!
//! The server creates and ends sandboxes; the daemon in each of them, execd, runs commands and takes files. Whose a sandbox
//! is, says a random mark that is in the claim and in the sandbox's metadata: it is compared before every use.

mod api;
mod create;
mod exec;
mod execd;
mod http;
mod lifetime;
mod observe;
mod script;
mod secrets;
mod settings;
mod stdin;
mod survivors;
mod terminal;
mod transfer;
mod url;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crabbox_core::claims::{Claim, LeaseId, OperationLock, State, random_hex};
use crabbox_core::command::{Assignments, Rules};
use crabbox_core::process::Cancel;
use crabbox_core::provider::{
    ArchiveSync, BusyLease, Check, CreateFailure, Created, Demand, Execution, ExpiredLease,
    HostContext, Labels, LeasePlan, MISSING, NewLease, Notices, Observed, Provider, Readiness,
    Removal, Spec, StopBy, Use, Verified, Workspace, WorkspaceKind,
};
use crabbox_core::settings::{Origin, Settings};
use crabbox_core::{Code, Failure};
use hyper::header::HeaderValue;
use jiff::Timestamp;

use api::{Api, Endpoint, Sandbox, Stage};
use execd::Execd;
use http::{Http, HttpError, Proxies};
use secrets::Secrets;
use settings::Config;

pub(crate) const SPEC: Spec = Spec {
    name: "opensandbox",
    family: "opensandbox",
    kind: "delegated-run",
    category: "delegated-sandbox",
    targets: &["linux"],
    features: &["archive-sync", "cleanup", "run-session"],
    runtime: &["delegated-command", "managed-sandbox"],
    evidence: &["session"],
    lifecycle: &["cleanup", "run-session"],
    coordinator: "never",
    table: settings::TABLE,
    lease_prefix: "osbx_",
    fixed_lease_id: false,
    workspace: WorkspaceKind::Archive,
    command: Rules {
        shell: &["bash", "-lc"],
        assignments: Assignments::Loose,
        host_paths: false,
    },
    stop_by: StopBy::LeaseId,
    absence_is_proof: false,
    expired: ExpiredLease::Refuse,
    busy: BusyLease::Skip,
    ports: false,
    copy: false,
    build_cache: false,
    instead_of_class: "--opensandbox-cpu and --opensandbox-memory",
    instead_of_type: "--opensandbox-cpu and --opensandbox-memory",
    credentials: &KEYS,
};

/// Where the key comes from, in this order.
const KEYS: [&str; 2] = ["CRABBOX_OPENSANDBOX_API_KEY", "OPEN_SANDBOX_API_KEY"];
/// How a lease is called whose sandbox has no id yet.
const RECOVERY_PREFIX: &str = "osbxr_";
const LIFECYCLE_TIMEOUT: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
const READY_TIMEOUT: Duration = Duration::from_secs(300);
/// Pauses between two looks at a sandbox that is not ready, after one that failed, and at its daemon.
const STATE_INTERVAL: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
const PING_INTERVAL: Duration = Duration::from_millis(200);
/// How long an answer about a sandbox may be used again by the step that follows it at once.
const REUSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Labels of a claim.
const SANDBOX: &str = "sandbox";
const NAME: &str = "name";
const EXPIRES: &str = "expires";

/// The constructor for the registry.
pub(crate) fn open(settings: &Settings, host: &HostContext) -> Box<dyn Provider> {
    Box::new(OpenSandbox::new(settings, host))
}

/// What the server says about the sandbox of a claim.
enum Asked {
    /// Proved to be ours.
    Found(Sandbox),
    /// The server does not know it.
    Unknown,
    Failed(HttpError),
}

pub(super) struct OpenSandbox {
    config: Config,
    /// Reported where a sandbox is to be used or created.
    valid: Result<(), Failure>,
    key: Option<String>,
    proxies: Proxies,
    /// Started by the first request.
    api: OnceLock<Result<Api, Failure>>,
    endpoints: Mutex<BTreeMap<String, Arc<Endpoint>>>,
    /// What the last look at a sandbox found.
    last: Mutex<Option<(Instant, Sandbox)>>,
    secrets: Arc<Secrets>,
    notices: Notices,
    repeat_flags: Vec<String>,
}

impl OpenSandbox {
    fn new(settings: &Settings, host: &HostContext) -> Self {
        let config = Config::from(settings);
        let valid = config.validate().map_err(|(key, message)| {
            let failure = Failure::new(Code::Config, message);
            settings.with_location(SPEC.table.section, key, failure)
        });
        let variable = |name: &str| {
            let value = host.env.get(std::ffi::OsStr::new(name))?.to_str()?.trim();
            (!value.is_empty()).then(|| value.to_owned())
        };
        let key = KEYS.iter().find_map(|name| variable(name));
        let secrets = Arc::new(Secrets::default());
        secrets.add(key.clone());
        let repeat_flags = match settings.origin(SPEC.table.section, "apiURL") {
            Some(Origin::Flag { name }) => vec![format!("--{name}"), config.api_url.clone()],
            _ => Vec::new(),
        };
        Self {
            config,
            valid,
            key,
            proxies: Proxies::from(&host.env),
            api: OnceLock::new(),
            endpoints: Mutex::default(),
            last: Mutex::default(),
            secrets,
            notices: Notices::default(),
            repeat_flags,
        }
    }

    /// No error leaves without this.
    fn cleaned<T>(&self, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        work().map_err(|failure| self.secrets.clean(failure))
    }

    fn key(&self) -> Result<HeaderValue, Failure> {
        let Some(key) = &self.key else {
            let message = format!(
                "provider=opensandbox needs an API key; set {} or {}",
                KEYS[0], KEYS[1]
            );
            return Err(Failure::new(Code::Config, message));
        };
        let mut key = HeaderValue::from_str(key).map_err(|_| {
            let message = "the opensandbox API key has characters that a header cannot carry";
            Failure::new(Code::Config, message)
        })?;
        key.set_sensitive(true);
        Ok(key)
    }

    fn api(&self) -> Result<&Api, Failure> {
        let open = || {
            let invalid = |message| Failure::new(Code::Config, message);
            let url = self.config.url().map_err(invalid)?;
            let key = self.key()?;
            let http = Http::new(self.proxies.clone())
                .map_err(|error| error.into_failure("HTTP client"))?;
            let secrets = Arc::clone(&self.secrets);
            Ok(Api::new(
                http,
                url,
                key,
                secrets,
                self.config.use_server_proxy,
            ))
        };
        self.api.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    /// Whether the claim is for this server at all.
    fn same_server(&self, claim: &Claim) -> Result<(), Failure> {
        self.scope_mismatch(claim).map_or(Ok(()), Err)
    }

    /// The sandbox of a claim, if it is proved to be ours. None where the server does not know it.
    fn find(&self, claim: &Claim, cancel: &Cancel) -> Result<Option<Sandbox>, Failure> {
        match self.ask(claim, cancel)? {
            Asked::Found(sandbox) => Ok(Some(sandbox)),
            Asked::Unknown => Ok(None),
            Asked::Failed(error) => Err(unseen(claim, error)),
        }
    }

    fn ask(&self, claim: &Claim, cancel: &Cancel) -> Result<Asked, Failure> {
        let api = self.api()?;
        self.same_server(claim)?;
        let Some(id) = claim.sandbox() else {
            return Ok(Asked::Unknown);
        };
        match api
            .http
            .wait(LIFECYCLE_TIMEOUT, cancel, self.look_up(api, id))
        {
            Ok(sandbox) => {
                owned(&sandbox, claim)?;
                let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
                *last = Some((Instant::now(), sandbox.clone()));
                Ok(Asked::Found(sandbox))
            }
            Err(error) if error.is_not_found() => Ok(Asked::Unknown),
            Err(error) => Ok(Asked::Failed(error)),
        }
    }

    /// The sandbox, and beside it, the first time, how its daemon is reached: the next step needs it. Whether there is an
    /// endpoint is that step's to find out.
    async fn look_up(&self, api: &Api, id: &str) -> Result<Sandbox, HttpError> {
        let known = || {
            self.endpoints
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if known().contains_key(id) {
            return api.get(id).await;
        }
        let (sandbox, endpoint) = tokio::join!(api.get(id), api.endpoint(id));
        if let (Ok(_), Ok(endpoint)) = (&sandbox, endpoint) {
            known().insert(id.to_owned(), Arc::new(endpoint));
        }
        sandbox
    }

    /// The same, where an answer from a moment ago is as good.
    fn ask_again(&self, claim: &Claim, cancel: &Cancel) -> Result<Asked, Failure> {
        let last = self
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match last {
            Some((at, sandbox))
                if Some(sandbox.id.as_str()) == claim.sandbox() && at.elapsed() < REUSE_TIMEOUT =>
            {
                Ok(Asked::Found(sandbox))
            }
            _ => self.ask(claim, cancel),
        }
    }

    fn endpoint(&self, api: &Api, id: &str, cancel: &Cancel) -> Result<Arc<Endpoint>, HttpError> {
        let known = || {
            self.endpoints
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(endpoint) = known().get(id) {
            return Ok(Arc::clone(endpoint));
        }
        let found = api.http.wait(LIFECYCLE_TIMEOUT, cancel, api.endpoint(id))?;
        let endpoint = Arc::new(found);
        known().insert(id.to_owned(), Arc::clone(&endpoint));
        Ok(endpoint)
    }

    fn forget_endpoint(&self, id: &str) {
        let mut known = self
            .endpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        known.remove(id);
    }

    /// The daemon of a sandbox that was just verified.
    fn execd(&self, sandbox: &Verified<'_>, cancel: &Cancel) -> Result<Execd<'_>, Failure> {
        let api = self.api()?;
        let id = sandbox_id(sandbox.claim())?;
        let endpoint = self
            .endpoint(api, id, cancel)
            .map_err(|error| error.into_failure("endpoint"))?;
        Ok(Execd {
            http: &api.http,
            endpoint,
            secrets: &self.secrets,
        })
    }

    fn missing(&self, claim: &Claim) -> Failure {
        let id = claim.sandbox().unwrap_or(claim.lease_id.as_str());
        let message = format!(
            "opensandbox sandbox {id} is missing or inaccessible: the server does not know it, which may also be because of the account or the server"
        );
        let stop = self.stop_command(claim);
        Failure::new(Code::NotFound, message).hint(format!(
            "{stop} --opensandbox-forget-missing removes only the record, once you know that the sandbox is gone"
        ))
    }

    fn poll_state(&self, claim: &Claim, cancel: &Cancel) -> Result<Readiness, Failure> {
        let api = self.api()?;
        let wait = |waiting_for: &str, retry_after| {
            Ok(Readiness::NotYet {
                waiting_for: self.secrets.text(waiting_for),
                retry_after,
            })
        };
        let looked = self.ask_again(claim, cancel)?;
        // The server has just said that it creates the sandbox: an answer that is missing says nothing against it. At the end
        // of the wait it is a failure, beside what was waited for before.
        let may_come = claim.state == State::Creating && cancel.reason().is_none();
        let sandbox = match looked {
            Asked::Found(sandbox) => sandbox,
            Asked::Unknown if may_come => {
                return wait("the server to know the sandbox: HTTP 404", RETRY_INTERVAL);
            }
            Asked::Unknown => return Err(self.missing(claim)),
            Asked::Failed(error) if may_come && error.is_pending() => {
                return wait(
                    &format!("the state of the sandbox: {error}"),
                    RETRY_INTERVAL,
                );
            }
            Asked::Failed(error) => return Err(unseen(claim, error)),
        };
        match sandbox.stage() {
            Stage::Running => {}
            Stage::Paused => {
                let line = format!("resuming opensandbox sandbox={}", sandbox.id);
                self.notices.say(&line);
                let resumed = api
                    .http
                    .wait(LIFECYCLE_TIMEOUT, cancel, api.resume(&sandbox.id));
                self.forget_endpoint(&sandbox.id);
                return match resumed {
                    Ok(()) => wait("the sandbox to resume", PING_INTERVAL),
                    Err(error) if error.is_pending() => {
                        wait("the sandbox to resume", STATE_INTERVAL)
                    }
                    Err(error) => Err(error.into_failure("resume")),
                };
            }
            Stage::Changing => return wait(&format!("state {}", sandbox.state()), STATE_INTERVAL),
            Stage::Over => {
                let message = format!(
                    "opensandbox sandbox {} is not usable: {}",
                    sandbox.id,
                    sandbox.explanation()
                );
                return Err(Failure::new(Code::NotFound, message).hint(self.stop_command(claim)));
            }
        }
        match self.ping(api, &sandbox.id, cancel) {
            Ok(()) => Ok(Readiness::Ready(expiry(&sandbox))),
            Err(error) if error.is_pending() => {
                self.forget_endpoint(&sandbox.id);
                wait(&format!("execd: {error}"), PING_INTERVAL)
            }
            Err(error) => Err(error.into_failure("execd health check")),
        }
    }

    fn ping(&self, api: &Api, id: &str, cancel: &Cancel) -> Result<(), HttpError> {
        let endpoint = self.endpoint(api, id, cancel)?;
        let execd = Execd {
            http: &api.http,
            endpoint,
            secrets: &self.secrets,
        };
        api.http.wait(PING_TIMEOUT, cancel, execd.ping())
    }

    /// What a use needs of a sandbox that is ours.
    fn fit(&self, claim: &Claim, sandbox: &Sandbox, intent: Use) -> Result<Labels, Failure> {
        if matches!(intent, Use::Exec | Use::Upload | Use::Replace | Use::Attach)
            && sandbox.stage() != Stage::Running
        {
            let message = format!(
                "opensandbox sandbox {} is {}",
                sandbox.id,
                sandbox.explanation()
            );
            return Err(Failure::new(Code::NotFound, message).hint(self.stop_command(claim)));
        }
        if intent == Use::Exec {
            lifetime::check_left(
                &sandbox.id,
                sandbox.expires_at,
                lifetime::command_budget(&self.config),
                "command budget",
                Timestamp::now(),
            )?;
        }
        Ok(Labels::new())
    }
}

/// A sandbox whose mark is another one is not ours, whatever its id.
fn owned(sandbox: &Sandbox, claim: &Claim) -> Result<(), Failure> {
    if !claim.provider_scope.is_empty() && sandbox.claim() == Some(claim.provider_scope.as_str()) {
        return Ok(());
    }
    let message = format!(
        "opensandbox sandbox {} does not carry the ownership mark of lease {}; it is left alone",
        sandbox.id, claim.lease_id
    );
    Err(Failure::new(Code::NotOwned, message))
}

fn unseen(claim: &Claim, error: HttpError) -> Failure {
    let id = claim.sandbox().unwrap_or_default();
    error.into_failure(&format!("look at sandbox {id}"))
}

fn sandbox_id(claim: &Claim) -> Result<&str, Failure> {
    claim.sandbox().ok_or_else(|| {
        let message = format!("lease {} has no sandbox yet", claim.lease_id);
        Failure::new(Code::NotFound, message)
    })
}

fn expiry(sandbox: &Sandbox) -> Labels {
    let expires = sandbox
        .expires_at
        .map(|at| (EXPIRES.to_owned(), at.to_string()));
    expires.into_iter().collect()
}

impl Provider for OpenSandbox {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn validate(&self) -> Result<(), Failure> {
        self.cleaned(|| {
            self.valid.clone()?;
            self.key().map(drop)
        })
    }

    fn listen(&mut self, notices: Notices) {
        self.notices = notices;
    }

    fn scope_mismatch(&self, claim: &Claim) -> Option<Failure> {
        // Without a usable address no command gets as far as a sandbox.
        let url = self.config.url().ok()?;
        if claim
            .provider_scope
            .starts_with(&format!("{}-own-", url.scope()))
        {
            return None;
        }
        let message = format!(
            "opensandbox lease {} belongs to a different API endpoint; {url} is in use",
            claim.lease_id
        );
        let failure = Failure::new(Code::NotOwned, message)
            .hint("the same command with --opensandbox-api-url and the server that created it");
        Some(self.secrets.clean(failure))
    }

    fn plan(&self, request: &NewLease<'_>) -> Result<LeasePlan, Failure> {
        self.cleaned(|| {
            let url = self
                .config
                .url()
                .map_err(|message| Failure::new(Code::Config, message))?;
            let scope = format!("{}-own-{}", url.scope(), random_hex(16)?);
            let lifetime = lifetime::planned(&self.config, request.ttl);
            Ok(LeasePlan {
                lease_id: LeaseId::parse(&create::recovery_id(&scope))?,
                labels: create::plan_labels(&request.workspace.name, lifetime, &random_hex(3)?),
                scope,
            })
        })
    }

    fn check_lifetime(&self, ttl: Duration, demand: Demand) -> Result<(), Failure> {
        lifetime::check_planned(&self.config, ttl, demand)
    }

    fn check_time_left(&self, claim: &Claim, demand: Demand) -> Result<(), Failure> {
        let expires = claim.labels.get(EXPIRES).and_then(|at| at.parse().ok());
        let id = claim.sandbox().unwrap_or(claim.lease_id.as_str());
        let what = match demand {
            Demand::Warmup => "default run budget",
            Demand::Run { .. } | Demand::SyncOnly => "sync/command budget",
        };
        let budget = lifetime::budget(&self.config, demand);
        lifetime::check_left(id, expires, budget, what, Timestamp::now())
    }

    fn create(
        &self,
        claim: &Claim,
        _workspace: &Workspace,
        _lock: &OperationLock,
        cancel: &Cancel,
    ) -> Result<Created, CreateFailure> {
        self.create_sandbox(claim, cancel)
            .map_err(|failed| CreateFailure {
                failure: Box::new(self.secrets.clean(*failed.failure)),
                left: failed.left,
            })
    }

    fn ready_timeout(&self) -> Option<Duration> {
        Some(READY_TIMEOUT)
    }

    fn poll_ready(&self, claim: &Claim, cancel: &Cancel) -> Result<Readiness, Failure> {
        self.cleaned(|| self.poll_state(claim, cancel))
    }

    fn verify(&self, claim: &Claim, intent: Use, cancel: &Cancel) -> Result<Labels, Failure> {
        self.cleaned(|| match self.find(claim, cancel)? {
            Some(sandbox) => self.fit(claim, &sandbox, intent),
            None if intent == Use::Remove => {
                Ok(Labels::from([(MISSING.to_owned(), String::new())]))
            }
            None if intent == Use::Inspect => {
                let why = self.why_missing(claim, cancel)?;
                Ok(why
                    .map(|why| (MISSING.to_owned(), why))
                    .into_iter()
                    .collect())
            }
            None => Err(self.missing(claim)),
        })
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
        self.cleaned(|| {
            let execd = self.execd(sandbox, cancel)?;
            let nonce = random_hex(12)?;
            let cwd = exec.workdir.map_or_else(
                || self.config.workdir.to_string_lossy().into_owned(),
                str::to_owned,
            );
            let job = exec::Job {
                cwd: &cwd,
                timeout: self.config.exec_timeout(),
                nonce: &nonce,
            };
            match exec.terminal {
                true => terminal::run(&execd, &job, exec, cancel),
                false => exec::run(&execd, &job, exec, cancel),
            }
        })
    }

    fn observe(&self, claims: &[Claim], cancel: &Cancel) -> Result<Vec<Observed>, Failure> {
        self.cleaned(|| self.observe_all(claims, cancel))
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
        self.cleaned(|| self.remove_sandbox(sandbox, begin, cancel))
    }

    fn doctor(&self, cancel: &Cancel) -> Vec<Check> {
        // What is wrong with the settings is a check of its own already.
        match self.validate() {
            Ok(()) => vec![self.check(None, cancel)],
            Err(_) => Vec::new(),
        }
    }

    fn doctor_counting(&self, leases: usize, cancel: &Cancel) -> Vec<Check> {
        match self.validate() {
            Ok(()) => vec![self.check(Some(leases), cancel)],
            Err(_) => Vec::new(),
        }
    }

    fn swept_subject(&self, claim: &Claim) -> String {
        match claim.sandbox() {
            Some(id) => format!("sandbox={id} lease={}", claim.lease_id),
            None => format!("recovery={}", claim.lease_id),
        }
    }

    fn repeat_flags(&self) -> &[String] {
        &self.repeat_flags
    }
}
