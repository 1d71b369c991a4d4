//! `docker-sandbox`: sandboxes of this machine, through the `sbx` command line.
//!
//! Its contract with the engine is the command line and the JSON alone, so that our own engine and Docker's are the same
//! to it. Two things differ where the engine says that it is ours: it tells who ended a command and whether anything was
//! denied meanwhile, and it is believed when `rm` says that a sandbox is gone. So a run is three calls of it: `create`,
//! `exec`, `rm`. Of any other engine the list is the only proof of a removal.

mod argv;
mod build_cache;
mod client;
mod doctor;
mod engine;
mod env_file_probe;
mod parse;
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
use crabbox_core::env::{EnvFile, env_file_bytes};
use crabbox_core::git::{Env, Repository};
use crabbox_core::process::{Cancel, StatusMemfd, Stdin};
use crabbox_core::provider::{
    BuildCache, BusyLease, Check, ClearedCaches, CopyRequest, CreateFailure, Created, Denials,
    Execution, ExpiredLease, HostContext, Labels, LeasePlan, NewLease, Notices, Observed, Phase,
    PortsRequest, Provider, Removal, RunEnd, Spec, StopBy, Use, Verified, Workspace, WorkspaceKind,
};
use crabbox_core::search_path::is_program;
use crabbox_core::settings::{Origin, Settings};
use crabbox_core::{Code, Failure};
use jiff::Timestamp;

use argv::{Attach, OwnFlags};
use client::{Client, EndedBy, Status};
use engine::{By, EngineIdentity, EngineMismatch, Found};
use parse::{Listed, Suggested};
use settings::{Cli, Config, First};

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

/// The longest name that sbx takes.
const MAX_NAME: usize = 63;
const NAME_PREFIX: &str = "crabbox-";
/// Variables of ours that say where a command runs: it can do without them.
const RESERVED_PREFIX: &str = "CRABBOX_";
/// Labels of a claim.
const SANDBOX: &str = "sandbox";
const CLONE: &str = "clone";
/// The label of a sandbox that goes with its run.
const ONE_SHOT: &str = "one-shot";
/// The program that created it; where that keeps its sandboxes is the claim's scope.
const ENGINE: &str = "engine";
/// The states of a sandbox that only another engine knows, and of one whose engine no longer exists.
const OTHER_ENGINE: &str = "other-engine";
const ENGINE_MISSING: &str = "engine-missing";

/// What people call the engine that came with us.
const BUNDLED: &str = "bundled engine";

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

    /// `scope` is that of the claim, if there is one already.
    fn identity(&self, client: &Client, scope: &str) -> Option<EngineIdentity> {
        let own = self.is_bundled(client)
            || client.is_known_own()
            || scope.starts_with(engine::XDG_STATE_HOME);
        EngineIdentity::of(&client.found.program, &self.env, own)
    }

    /// Also where a claim names the program that came with us.
    fn is_bundled(&self, client: &Client) -> bool {
        let found = self.client.as_ref().map(|client| &client.found);
        found.is_ok_and(|found| found.by == By::Bundled && found.program == client.found.program)
    }

    /// How messages about an engine begin: programs know them by the name of the provider.
    fn called_through(&self, client: &Client) -> String {
        match self.watched {
            false => SPEC.name.to_owned(),
            true => called_for_people(&client.found, self.is_bundled(client)),
        }
    }

    /// The same for the engine of a claim.
    fn called_for(&self, claim: &Claim) -> String {
        let client = self.client_for(claim);
        client.map_or_else(
            |_| SPEC.name.to_owned(),
            |client| self.called_through(&client),
        )
    }

    /// The engine of a lease that exists: the one that its claim records, unless the user names one. What is found by
    /// a look-up may be another one by now.
    fn client_for(&self, claim: &Claim) -> Result<Client, Failure> {
        let recorded = claim.labels.get(ENGINE).map(Path::new);
        let recorded = recorded.filter(|program| program.is_absolute() && is_program(program));
        match (&self.config.cli, recorded) {
            (Cli::Default(_), Some(program)) => {
                let found = Found {
                    program: program.to_path_buf(),
                    by: By::Claim,
                };
                Ok(match &self.client {
                    // What is known of it need not be asked again.
                    Ok(client) if client.found.program == found.program => client.found_as(found),
                    Ok(_) | Err(_) => Client::new(found, &self.state, &self.env),
                })
            }
            (Cli::Default(_), None) | (Cli::Named(_), _) => self.client().cloned(),
        }
    }

    /// How the engine in use differs from the one that created the sandbox.
    fn mismatch(&self, claim: &Claim) -> Option<Mismatch> {
        let here = self.identity(&self.client_for(claim).ok()?, &claim.provider_scope)?;
        let creator = EngineIdentity {
            state_dir: Some(claim.provider_scope.clone()).filter(|dir| !dir.is_empty())?,
            program: claim.labels.get(ENGINE)?.clone(),
        };
        let kind = here.mismatch(&creator)?;
        Some(Mismatch {
            kind,
            here,
            creator,
        })
    }

    /// Whether the claim says that the engine in use created the sandbox. An old claim says nothing.
    fn is_creator(&self, claim: &Claim) -> bool {
        let says = !claim.provider_scope.is_empty() && claim.labels.contains_key(ENGINE);
        says && self.mismatch(claim).is_none()
    }

    /// Whether the engine in use is the one that created the sandbox, before anything is done with one of that name.
    fn same_engine(&self, claim: &Claim) -> Result<(), Failure> {
        match self.mismatch(claim) {
            None => Ok(()),
            Some(mismatch) if mismatch.kind == EngineMismatch::ProgramGone => Ok(()),
            Some(mismatch) => Err(mismatch.failure(claim, &self.called_for(claim))),
        }
    }

    /// The same for what is done without a look at the list.
    fn same_engine_now(&self, claim: &Claim, cancel: &Cancel) -> Result<(), Failure> {
        self.same_engine(claim)?;
        match self.unproved(claim) {
            Some(failure) => {
                let listed = self.client_for(claim)?.find(sandbox_name(claim), cancel)?;
                listed.map_or(Err(failure), |_| Ok(()))
            }
            None => Ok(()),
        }
    }

    /// That a sandbox is not in this engine's list proves nothing if another engine created it. `Some` says so, and how
    /// to ask that one.
    fn unproved(&self, claim: &Claim) -> Option<Failure> {
        let mismatch = self.mismatch(claim)?;
        Some(mismatch.failure(claim, &self.called_for(claim)))
    }

    /// What is said of a sandbox that is not in the list.
    fn not_listed(&self, claim: &Claim) -> Failure {
        self.unproved(claim)
            .unwrap_or_else(|| absent(sandbox_name(claim), &self.called_for(claim)))
    }

    fn observe_one(&self, claim: &Claim, all: &[Listed]) -> Observed {
        let name = sandbox_name(claim);
        let listed = all.iter().find(|one| one.name == name);
        let mismatch = self.mismatch(claim).map(|mismatch| mismatch.kind);
        let (state, phase) = match (listed, mismatch) {
            (_, Some(EngineMismatch::StateDir | EngineMismatch::Program)) => {
                (OTHER_ENGINE, Phase::Unknown)
            }
            (Some(listed), None | Some(EngineMismatch::ProgramGone)) => return seen(listed),
            (None, Some(EngineMismatch::ProgramGone)) => (ENGINE_MISSING, Phase::Unknown),
            (None, None) => ("missing", Phase::Absent),
        };
        Observed {
            state: state.to_owned(),
            phase,
            labels: BTreeMap::from([(SANDBOX.to_owned(), name.to_owned())]),
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

    /// The engine failed, not the command. Perhaps because there is no such sandbox any more.
    fn engine_failure(
        &self,
        client: &Client,
        claim: &Claim,
        code: i32,
        said: &str,
        cancel: &Cancel,
    ) -> Failure {
        if let Ok(None) = client.find(sandbox_name(claim), cancel) {
            return self.not_listed(claim);
        }
        let called = self.called_through(client);
        let message = format!("{called} run failed: `sbx exec` exited {code}");
        // Without a choice of the provider, where there was none: it would be one of the engine as well.
        let is_default = self.config.cli == Cli::Default(First::Bundled);
        let doctor = match is_default && self.is_bundled(client) {
            true => "crabbox doctor".to_owned(),
            false => self.command("doctor"),
        };
        let mut failure = Failure::new(Code::Provider, message).hint(doctor);
        if !said.is_empty() {
            failure.causes.push(said.to_owned());
        }
        failure
    }
}

/// How messages for people begin.
fn called_for_people(found: &Found, is_bundled: bool) -> String {
    match is_bundled {
        true => format!("{BUNDLED}:"),
        false => format!("sbx at {}:", found.program.display()),
    }
}

/// Two engines that are not the same.
#[derive(Debug)]
struct Mismatch {
    kind: EngineMismatch,
    here: EngineIdentity,
    creator: EngineIdentity,
}

impl Mismatch {
    /// `called`: how the message begins.
    fn failure(self, claim: &Claim, called: &str) -> Failure {
        let name = sandbox_name(claim);
        let Self {
            kind,
            here,
            creator,
        } = self;
        let (there, now, with) = match kind {
            EngineMismatch::StateDir => {
                let without = match creator.state_dir.starts_with("SBX_HOME=") {
                    true => "",
                    false => "without SBX_HOME and ",
                };
                let with = format!("{without}with {}", creator.state_dir);
                (creator.state_dir, here.state_dir, with)
            }
            EngineMismatch::Program => {
                let with = format!("with --docker-sandbox-cli {}", creator.program);
                (creator.program, here.program, with)
            }
            EngineMismatch::ProgramGone => return engine_missing(claim, called, &here, &creator),
        };
        let message = format!(
            "{called} sandbox {name:?} was created by another engine, with {there}, and not by this one, with {now}"
        );
        Failure::new(Code::Config, message).hint(format!("the same command {with}"))
    }
}

/// No engine is left whose list would prove anything.
fn engine_missing(
    claim: &Claim,
    called: &str,
    here: &EngineIdentity,
    creator: &EngineIdentity,
) -> Failure {
    let name = sandbox_name(claim);
    let message = format!(
        "{called} sandbox {name:?} was created with {}, which no longer exists; {} does not list it, but that does not prove that it is gone",
        creator.program, here.program
    );
    let forget = format!("crabbox claims forget {}", SPEC.shown_id(claim));
    Failure::new(Code::ProviderMissing, message)
        .hint("the same command with --docker-sandbox-cli and where that program is now")
        .hint(format!(
            "{forget} removes only the record; the sandbox may still exist"
        ))
}

fn absent(name: &str, called: &str) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("{called} sandbox {name:?} is not present in sbx inventory"),
    )
}

/// The command did not begin, for a reason that is its own and not the engine's.
fn not_executed(code: i32, why: &str, called: &str) -> Failure {
    let mut failure = Failure::new(Code::CommandExit, format!("{called} run exited {code}"))
        .exits(u8::try_from(code).unwrap_or(1));
    if !why.is_empty() {
        failure.causes.push(why.to_owned());
    }
    failure
}

/// The claim says it; the lease id does as well.
fn sandbox_name(claim: &Claim) -> &str {
    let by_id = claim.lease_id.as_str();
    claim
        .sandbox()
        .or_else(|| by_id.strip_prefix(SPEC.lease_prefix))
        .unwrap_or(by_id)
}

/// Another engine mounts the worktree alone; what it would make of the flag is not known.
fn no_git_write() -> Failure {
    Failure::new(
        Code::ProviderMissing,
        "--git-write needs the bundled engine; this `sbx` is another one",
    )
    .hint("use the bundled engine, or leave --git-write out")
}

/// Our own engine answers when the sandbox cannot be reached and cannot come back, and lists every one that it has: its
/// answer is the proof.
fn remove_with_own(client: &Client, name: &str, cancel: &Cancel) -> Result<Removal, Failure> {
    match client.change(argv::remove(name), cancel) {
        Err(failure) if !parse::is_absence(&failure, name) => {
            Err(retry_removal(client, failure, name))
        }
        Ok(()) | Err(_) => Ok(Removal::Gone),
    }
}

fn retry_removal(client: &Client, failure: Failure, name: &str) -> Failure {
    let hint = format!("run `sbx rm --force {name}` to retry cleanup");
    failure.hint(client.hint(&hint))
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

/// `crabbox-<repository>-<6 hex>`, with what is too long cut out of the repository's name.
fn new_name(repository: &str, random: &str) -> String {
    let mut name = String::new();
    for c in repository.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_alphanumeric() {
            name.push(c);
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    let name = name.trim_matches('-');
    let name = name.strip_prefix(NAME_PREFIX).unwrap_or(name);
    let room = MAX_NAME - NAME_PREFIX.len() - 1 - random.len();
    let name = name.get(..room).unwrap_or(name).trim_matches('-');
    let name = if name.is_empty() { "repo" } else { name };
    format!("{NAME_PREFIX}{name}-{random}")
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
        let claim = sandbox.claim();
        let client = self.client_for(claim)?;
        let known = client.known_or_foreign(cancel)?;
        let name = sandbox_name(claim);
        if known.may_ignore_env_file
            && exec
                .env
                .keys()
                .any(|name| !name.starts_with(RESERVED_PREFIX))
        {
            let called = self.called_through(&client);
            env_file_probe::prove(&client, &self.state, name, &called, cancel)?;
        }
        let env_file = EnvFile::create(&self.state, &env_file_bytes(exec.env))?;
        let status = match known.bundled {
            true => client::status()?,
            false => None,
        };
        let status_file = status.as_ref().map(StatusMemfd::path);
        let workdir = exec
            .workdir
            .map_or_else(|| self.workdir(exec.workspace), PathBuf::from);
        // Another engine gets a stdin only where the user asks for one: a script's own stdin is not meant for it.
        let stdin = match known.bundled || exec.interactive || exec.terminal {
            true => exec.stdin,
            false => Stdin::Null,
        };
        let attach = Attach {
            stdin: !matches!(stdin, Stdin::Null),
            terminal: exec.terminal,
            all_keys: known.bundled,
        };
        let argv = argv::exec(
            name,
            &workdir,
            env_file.path(),
            status_file.as_deref(),
            attach,
            &exec.argv,
        );
        let done = client.stream(argv, stdin, exec.stdout, exec.stderr, cancel)?;
        if let Some(failure) = done.lost() {
            return Err(failure);
        }
        let code = done.end.code();
        let status = status.map(client::read);
        let denied = status.as_ref().and_then(|status| status.as_ref()?.denied);
        self.nothing_denied
            .store(denied == Some(false), Ordering::Relaxed);
        if code == 0 {
            return Ok(0);
        }
        let ended_by = status.map(|status| status.map(|Status { ended_by, .. }| ended_by));
        match ended_by {
            Some(Some(EndedBy::Command)) => Ok(code),
            // There is no such program, or it cannot be executed.
            Some(Some(EndedBy::Engine { message })) if matches!(code, 126 | 127) => {
                Err(not_executed(code, &message, &self.called_through(&client)))
            }
            Some(Some(EndedBy::Engine { message })) => {
                Err(self.engine_failure(&client, claim, code, &message, cancel))
            }
            Some(None) => {
                // An engine that does not know the flag has been replaced.
                client.forget();
                Err(self.engine_failure(&client, claim, code, "", cancel))
            }
            // Another engine's codes are also a command's own. Without the sandbox it cannot have been one.
            None if matches!(code, 1 | 125) => match client.find(name, cancel) {
                Ok(None) => Err(self.not_listed(claim)),
                Err(failure) => Err(failure),
                Ok(Some(_)) => Ok(code),
            },
            None => Ok(code),
        }
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
        let claim = sandbox.claim();
        let (client, name) = (self.client_for(claim)?, sandbox_name(claim));
        if client.is_own(cancel) && self.is_creator(claim) {
            begin()?;
            return remove_with_own(&client, name, cancel);
        }
        let listed = client.find(name, cancel)?.is_some();
        if !listed && let Some(failure) = self.unproved(claim) {
            return Err(failure);
        }
        begin()?;
        // Also where the list does not show it: not every engine lists everything that it has.
        let removed = client.change(argv::remove(name), cancel);
        // Some versions exit with 0 and remove nothing, others fail where nothing is left to remove: the list decides.
        match (client.find(name, cancel), removed) {
            (Ok(None), Ok(())) => Ok(Removal::Gone),
            (Ok(None), Err(_)) if listed => Ok(Removal::Gone),
            (Ok(None), Err(failure)) if parse::is_absence(&failure, name) => Ok(Removal::Gone),
            (Ok(Some(_)), Ok(())) => Err(Failure::new(
                Code::Provider,
                format!("`sbx rm --force {name}` succeeded, but the sandbox still exists"),
            )),
            (_, Err(failure)) | (Err(failure), Ok(())) => Err(failure),
        }
        .map_err(|failure| retry_removal(&client, failure, name))
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

/// The engine stops an idle sandbox, and starts it for the next command: stopped is not over.
fn seen(listed: &Listed) -> Observed {
    let phase = match listed.state.as_str() {
        "running" | "ready" | "started" | "active" | "stopped" => Phase::Ready,
        "expired" | "failed" | "released" | "stopped_with_code" | "terminated" => Phase::Over,
        _ => Phase::NotYet,
    };
    let mut labels = BTreeMap::new();
    for (key, value) in [
        (SANDBOX, &listed.name),
        ("agent", &listed.agent),
        ("workspace", &listed.workspace),
        ("isolation", &listed.backend),
    ] {
        if !value.is_empty() {
            labels.insert(key.to_owned(), value.clone());
        }
    }
    Observed {
        state: listed.state.clone(),
        phase,
        labels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_are_for() {
        assert_eq!(new_name("my-app", "1a2b3c"), "crabbox-my-app-1a2b3c");
        assert_eq!(
            new_name("crabbox-My_App!", "1a2b3c"),
            "crabbox-my-app-1a2b3c"
        );
        assert_eq!(new_name("Ünïcode", "1a2b3c"), "crabbox-n-code-1a2b3c");
        assert_eq!(new_name("", "1a2b3c"), "crabbox-repo-1a2b3c");
        let long = new_name(&"x".repeat(200), "1a2b3c");
        assert_eq!(long.len(), MAX_NAME);
        assert!(long.ends_with("x-1a2b3c"));
    }

    #[test]
    fn bug_13_a_stopped_sandbox_can_run_commands() {
        let listed = |state: &str| Listed {
            id: "i".into(),
            name: "n".into(),
            state: state.into(),
            agent: String::new(),
            workspace: String::new(),
            backend: String::new(),
        };
        assert_eq!(seen(&listed("stopped")).phase, Phase::Ready);
        assert_eq!(seen(&listed("running")).phase, Phase::Ready);
        assert_eq!(seen(&listed("failed")).phase, Phase::Over);
        assert_eq!(seen(&listed("starting")).phase, Phase::NotYet);
    }
}
