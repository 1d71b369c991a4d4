//! `docker-sandbox`: sandboxes of this machine, through the `sbx` command line.
//!
//! Its contract with the engine is the command line and the JSON alone, so that our own engine and Docker's are the same
//! to it. Two things differ where the engine says that it is ours: it tells who ended a command and whether anything was
//! denied meanwhile, and it is believed when `rm` says that a sandbox is gone. So a run is three calls of it: `create`,
//! `exec`, `rm`. Of any other engine the list is the only proof of a removal.

mod argv;
mod build_cache;
mod client;
mod creator;
mod doctor;
mod engine;
mod env_file_probe;
mod exec;
mod name;
mod observe;
mod parse;
mod remove;
mod settings;
mod shown_command;
mod state_dir;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crabbox_core::claims::{Claim, LeaseId, OperationLock, random_hex};
use crabbox_core::command::{Assignments, Rules, display};
use crabbox_core::git::{Env, Repository};
use crabbox_core::process::Cancel;
use crabbox_core::provider::{
    BuildCache, BusyLease, Check, ClearedCaches, CopyRequest, CreateFailure, Created, Denials,
    Execution, ExpiredLease, HostContext, Labels, LeasePlan, NewLease, Notices, Observed,
    PortsRequest, Provider, Removal, RunEnd, Spec, StopBy, Use, Verified, Workspace, WorkspaceKind,
};
use crabbox_core::settings::{Origin, Settings};
use crabbox_core::{Code, Failure};
use jiff::Timestamp;

use argv::OwnFlags;
use client::Client;
use creator::{BUNDLED, called_for_people};
use engine::By;
use name::{new_name, sandbox_name};
use parse::{Listed, Suggested};
use settings::{Cli, Config};

pub(crate) const SPEC: Spec = Spec {
    name: "docker-sandbox",
    family: "docker-sandbox",
    kind: "delegated-run",
    category: "local-sandbox",
    targets: &["linux"],
    features: &["run-session", "mcp-attachments", "cleanup"],
    runtime: &["delegated-command", "local-runtime", "local-sandbox"],
    evidence: &["session"],
    lifecycle: &["cleanup", "run-session"],
    coordinator: "never",
    table: settings::TABLE,
    lease_prefix: "dsbx_",
    fixed_lease_id: false,
    workspace: WorkspaceKind::Mounted,
    command: Rules {
        shell: &["sh", "-lc"],
        assignments: Assignments::Strict,
        host_paths: true,
    },
    stop_by: StopBy::Slug,
    absence_is_proof: true,
    expired: ExpiredLease::Refuse,
    busy: BusyLease::Skip,
    ports: true,
    copy: true,
    build_cache: true,
    instead_of_class: "--docker-sandbox-cpus and --docker-sandbox-memory",
    instead_of_type: "--docker-sandbox-template",
    credentials: &[],
};

/// Labels of a claim.
const SANDBOX: &str = "sandbox";
const CLONE: &str = "clone";
/// The label of a sandbox that goes with its run.
const ONE_SHOT: &str = "one-shot";
/// The program that created it; where that keeps its sandboxes is the claim's scope.
const ENGINE: &str = "engine";

/// The constructor for the registry.
pub(crate) fn open(settings: &Settings, host: &HostContext) -> Box<dyn Provider> {
    Box::new(DockerSandbox::new(settings, host))
}

#[derive(Debug)]
struct DockerSandbox {
    config: Config,
    /// Reported where a sandbox is to be used or created: removing one must not fail for it.
    valid: Result<(), Failure>,
    /// The same for people.
    valid_for_people: Result<(), Failure>,
    /// Not found: reported by the first operation that needs it.
    client: Result<Client, Failure>,
    state: PathBuf,
    /// For git, and to know one engine from another.
    env: Env,
    repeat_flags: Vec<String>,
    /// Whether a person reads what is said: then the engine is called by its own name.
    watched: bool,
    /// The engine said that nothing was denied while the last command ran.
    nothing_denied: AtomicBool,
}

impl DockerSandbox {
    /// Starts no process.
    fn new(settings: &Settings, host: &HostContext) -> Self {
        let config = Config::from(settings, host);
        let client =
            engine::find(&config.cli, host).map(|found| Client::new(found, &host.state, &host.env));
        let validate = |called: &str| {
            let valid = config.validate(called).map_err(|(key, message)| {
                let failure = Failure::new(Code::Config, message);
                settings.with_location(SPEC.table.section, key, failure)
            });
            valid.and_then(|()| build_cache::check_clone(&config, settings))
        };
        let valid = validate(SPEC.name);
        let valid_for_people = match &client {
            Ok(Client { found, .. }) => {
                validate(&called_for_people(found, found.by == By::Bundled))
            }
            Err(_) => valid.clone(),
        };
        let flag = match settings.origin(SPEC.table.section, "cliPath") {
            Some(Origin::Flag { name }) => Some(*name),
            _ => None,
        };
        let repeat_flags = match (flag, &config.cli) {
            (Some(name), Cli::Named(program)) => {
                vec![format!("--{name}"), program.to_string_lossy().into_owned()]
            }
            (None, _) | (_, Cli::Default(_)) => Vec::new(),
        };
        Self {
            config,
            valid,
            valid_for_people,
            client,
            state: host.state.clone(),
            env: host.env.clone(),
            repeat_flags,
            watched: false,
            nothing_denied: AtomicBool::new(false),
        }
    }

    fn client(&self) -> Result<&Client, Failure> {
        self.client.as_ref().map_err(Clone::clone)
    }

    /// Clones are only made of the main checkout of a repository.
    fn check_clone(&self, workspace: &Workspace) -> Result<(), Failure> {
        if !self.config.clone {
            return Ok(());
        }
        let called = self.called();
        let needs = format!("{called} --clone requires a normal Git repository workspace");
        let repository = Repository::discover(&workspace.root, &self.env)
            .map_err(|failure| Failure::new(failure.code, format!("{needs}: {failure}")))?;
        match repository {
            None => Err(Failure::new(
                Code::Config,
                format!("{needs}: `{}` is not one", workspace.root.display()),
            )),
            Some(repository) if repository.is_linked_worktree() => Err(Failure::new(
                Code::Config,
                format!("{needs}: linked Git worktrees are not supported"),
            )),
            Some(_) => Ok(()),
        }
    }
}

/// Another engine mounts the worktree alone; what it would make of the flag is not known.
fn no_git_write() -> Failure {
    Failure::new(
        Code::ProviderMissing,
        "--git-write needs the bundled engine; this `sbx` is another one",
    )
    .hint("use the bundled engine, or leave --git-write out")
}

/// A rule that the next sandbox of this repository has as well.
fn allow_command(client: &Client, workspace: &Workspace, resources: &str) -> String {
    let root = workspace.root.to_string_lossy();
    let words = [
        "sbx", "policy", "allow", "network", "--repo", &root, resources,
    ];
    client.hint(&display(&words))
}

fn is_clone(claim: &Claim) -> bool {
    claim.labels.get(CLONE).is_some_and(|value| value == "true")
}

impl Provider for DockerSandbox {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn validate(&self) -> Result<(), Failure> {
        match self.watched {
            false => self.valid.clone(),
            true => self.valid_for_people.clone(),
        }
    }

    fn runner(&self) -> String {
        match &self.client {
            Ok(client) if client.found.by == By::Bundled => BUNDLED.to_owned(),
            Ok(client) => format!("sbx at {}", client.found.program.display()),
            Err(_) => "no sbx".to_owned(),
        }
    }

    fn called(&self) -> String {
        let client = self.client.as_ref();
        client.map_or_else(
            |_| SPEC.name.to_owned(),
            |client| self.called_through(client),
        )
    }

    fn listen(&mut self, notices: Notices) {
        self.watched = notices.is_watched();
        if let Ok(client) = &mut self.client {
            client.notices = notices;
        }
    }

    fn gives_terminal(&self, cancel: &Cancel) -> bool {
        self.client
            .as_ref()
            .is_ok_and(|client| client.is_own(cancel))
    }

    fn plan(&self, request: &NewLease<'_>) -> Result<LeasePlan, Failure> {
        let client = self.client()?;
        self.check_clone(request.workspace)?;
        let name = new_name(&request.workspace.name, &random_hex(3)?);
        let mut labels = BTreeMap::from([(SANDBOX.to_owned(), name.clone())]);
        if self.config.clone {
            labels.insert(CLONE.to_owned(), "true".to_owned());
        }
        if self.config.cache {
            labels.insert(build_cache::LABEL.to_owned(), "true".to_owned());
        }
        if request.one_shot && !self.config.clone {
            labels.insert(ONE_SHOT.to_owned(), "true".to_owned());
        }
        let identity = self.identity(client, "");
        if let Some(identity) = &identity {
            labels.insert(ENGINE.to_owned(), identity.program.clone());
        }
        Ok(LeasePlan {
            lease_id: LeaseId::parse(&format!("{}{name}", SPEC.lease_prefix))?,
            scope: identity.map_or_else(String::new, |identity| identity.state_dir),
            labels,
        })
    }

    fn create(
        &self,
        claim: &Claim,
        workspace: &Workspace,
        lock: &OperationLock,
        cancel: &Cancel,
    ) -> Result<Created, CreateFailure> {
        if self.config.cache {
            self.client()
                .and_then(|client| build_cache::check_engine(client, cancel))
                .map_err(CreateFailure::nothing_created)?;
        }
        let created = self.client().and_then(|client| {
            if self.config.cache {
                client.notices.say(&build_cache::notice(workspace));
            }
            let own = client.is_own(cancel).then(|| OwnFlags {
                // The lease ends by our own rules; until then its background work goes on.
                idle_timeout: Duration::from_secs(claim.idle_timeout_seconds),
                progress: client.notices.is_watched(),
                cache: self.config.cache,
                one_shot: claim.labels.contains_key(ONE_SHOT),
            });
            if own.is_none() && self.config.git_write {
                return Err(no_git_write());
            }
            let argv = argv::create(sandbox_name(claim), &self.config, own, &workspace.root);
            client.create(argv, lock, cancel)
        });
        match created {
            Ok(()) => Ok(Created::default()),
            // The engine was not started.
            Err(failure) if failure.code == Code::ProviderMissing => {
                Err(CreateFailure::nothing_created(failure))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Which engine created it. Whether the sandbox is there is asked where the engine's own answer would not tell.
    fn verify(&self, claim: &Claim, intent: Use, cancel: &Cancel) -> Result<Labels, Failure> {
        match intent {
            Use::Exec | Use::Attach => self.same_engine_now(claim, cancel)?,
            Use::Remove => {
                self.client_for(claim)?;
                self.same_engine(claim)?;
            }
            // The engine mounts the workspace, and starts a stopped sandbox for the next command.
            Use::Reuse => {
                if let (Ok(client), Some(notice)) = (&self.client, build_cache::notice_of(claim)) {
                    client.notices.say(notice);
                }
            }
            Use::Upload | Use::Replace | Use::Inspect => {}
        }
        Ok(Labels::new())
    }

    fn workdir(&self, workspace: &Workspace) -> PathBuf {
        let workdir = self.config.workdir.as_ref();
        crabbox_core::settings::normalize_lexically(workdir.unwrap_or(&workspace.root))
    }

    fn exec(
        &self,
        sandbox: &Verified<'_>,
        exec: Execution<'_>,
        cancel: &Cancel,
    ) -> Result<i32, Failure> {
        self.run_command(sandbox, exec, cancel)
    }

    fn denials(
        &self,
        claim: &Claim,
        workspace: &Workspace,
        since: Timestamp,
        cancel: &Cancel,
    ) -> Result<Denials, Failure> {
        let client = self.client_for(claim)?;
        if !client.is_own(cancel) || self.nothing_denied.load(Ordering::Relaxed) {
            return Ok(Denials::default());
        }
        let argv = argv::denials(sandbox_name(claim), since);
        let said = client.capture(argv, client::QUERY_TIMEOUT, cancel)?;
        let suggested = Suggested::read(&said.stdout)?;
        let allow = suggested
            .resources()
            .map(|resources| allow_command(&client, workspace, &resources));
        Ok(Denials {
            targets: suggested.targets(),
            allow,
        })
    }

    fn observe(&self, claims: &[Claim], cancel: &Cancel) -> Result<Vec<Observed>, Failure> {
        // One list of each engine.
        let mut lists: BTreeMap<PathBuf, Vec<Listed>> = BTreeMap::new();
        let mut observed = Vec::with_capacity(claims.len());
        for claim in claims {
            let client = self.client_for(claim)?;
            let all = match lists.entry(client.found.program.clone()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(client.list(cancel)?),
            };
            observed.push(self.observe_one(claim, all));
        }
        Ok(observed)
    }

    fn absent(&self, claim: &Claim) -> Failure {
        self.not_listed(claim)
    }

    fn repeat_flags(&self) -> &[String] {
        &self.repeat_flags
    }

    fn remove(
        &self,
        sandbox: &Verified<'_>,
        begin: &dyn Fn() -> Result<(), Failure>,
        cancel: &Cancel,
    ) -> Result<Removal, Failure> {
        self.remove_sandbox(sandbox, begin, cancel)
    }

    fn manual_removal_reason(&self, claim: &Claim) -> Option<String> {
        is_clone(claim).then(|| "clone mode may hold commits that were not fetched".to_owned())
    }

    fn keep_after_run(&self, claim: &Claim, end: RunEnd, stop: &str) -> Option<String> {
        (end == RunEnd::Succeeded && is_clone(claim)).then(|| {
            let called = self.called_for(claim);
            format!("{called} clone run kept sandbox to preserve unfetched commits; cleanup manually with: {stop}")
        })
    }

    fn doctor(&self, cancel: &Cancel) -> Vec<Check> {
        match &self.client {
            Ok(client) => doctor::checks(client, cancel),
            Err(failure) => doctor::missing(failure),
        }
    }

    fn doctor_for(&self, claim: &Claim, cancel: &Cancel) -> Vec<Check> {
        match &self.client_for(claim) {
            Ok(client) => doctor::checks(client, cancel),
            Err(failure) => doctor::missing(failure),
        }
    }

    fn ports(
        &self,
        sandbox: &Verified<'_>,
        request: &PortsRequest,
        cancel: &Cancel,
    ) -> Result<Vec<u8>, Failure> {
        let argv = argv::ports(sandbox_name(sandbox.claim()), request);
        let said =
            self.client_for(sandbox.claim())?
                .capture(argv, client::QUERY_TIMEOUT, cancel)?;
        Ok(said.stdout)
    }

    fn copy(
        &self,
        sandbox: &Verified<'_>,
        request: &CopyRequest,
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        let argv = argv::copy(sandbox_name(sandbox.claim()), request);
        self.client_for(sandbox.claim())?.change(argv, cancel)
    }

    fn stop_sandbox_command(&self, sandbox: &str) -> Option<String> {
        let client = self.client.as_ref().ok()?;
        Some(client.hint(&display(&["sbx", "stop", sandbox])))
    }

    fn build_caches(&self, cancel: &Cancel) -> Result<Vec<BuildCache>, Failure> {
        build_cache::list(self.client()?, cancel)
    }

    fn clear_build_caches(
        &self,
        workspace: Option<&Path>,
        cancel: &Cancel,
    ) -> Result<ClearedCaches, Failure> {
        build_cache::clear(self.client()?, workspace, cancel)
    }
}
