//! A stateful provider with archive sync, on the public trait alone. Each call can be made to fail, before or after it had
//! its effect.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crabbox_core::claims::{Claim, ClaimStore, LeaseId, OperationLock, Reclaim, SlugChoice};
use crabbox_core::command::{Assignments, Rules};
use crabbox_core::env::{AllowList, AllowSources, Forwarded, Request, Reserved};
use crabbox_core::lifecycle::{
    self, Context, Job, Keep, Outcome, Report, RunRequest, Streams, Sync, Target, Terms,
};
use crabbox_core::process::{Cancel, Output, Relay, Stdin};
use crabbox_core::provider::{
    ArchiveSync, BusyLease, Check, CreateFailure, Created, EXPIRED, Execution, ExpiredLease,
    Labels, LeasePlan, MISSING, NewLease, Observed, Phase, Provider, Readiness, Removal, Spec,
    Staged, StopBy, SyncMode, SyncPhases, Upload, Use, Verified, Workspace, WorkspaceKind,
};
use crabbox_core::settings::ProviderTable;
use crabbox_core::sync::{Allow, Compression, Limits, Options, Source, Tree};
use crabbox_core::{Code, Failure};
use tempfile::TempDir;

pub(crate) const SPEC: Spec = Spec {
    name: "test-archive",
    family: "test",
    kind: "delegated-run",
    category: "test",
    targets: &["linux"],
    features: &["archive-sync"],
    runtime: &[],
    evidence: &[],
    lifecycle: &[],
    coordinator: "never",
    table: ProviderTable {
        name: "test-archive",
        section: "testArchive",
        settings: &[],
    },
    lease_prefix: "t_",
    fixed_lease_id: true,
    workspace: WorkspaceKind::Archive,
    command: Rules {
        shell: &["sh", "-lc"],
        assignments: Assignments::Strict,
        host_paths: false,
    },
    stop_by: StopBy::LeaseId,
    absence_is_proof: false,
    expired: ExpiredLease::Remove,
    busy: BusyLease::Skip,
    ports: false,
    copy: false,
    build_cache: false,
    instead_of_class: "",
    instead_of_type: "",
    credentials: &[],
};

pub(crate) type Files = BTreeMap<String, String>;

#[derive(Debug, Clone, Default)]
pub(crate) struct Sandbox {
    pub(crate) uid: String,
    pub(crate) tree: Files,
    pub(crate) archive: bool,
    pub(crate) staged: Option<Files>,
    pub(crate) previous: Option<Files>,
    polls: u32,
}

/// When a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// It is refused.
    Before,
    /// It took effect, and the answer was lost.
    After,
    /// A part of it took effect.
    Halfway,
}

#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) sandboxes: BTreeMap<String, Sandbox>,
    pub(crate) calls: Vec<String>,
    pub(crate) fail: BTreeMap<&'static str, When>,
    /// How often a new sandbox is not ready.
    pub(crate) polls: u32,
    /// The final id of the next lease.
    pub(crate) final_id: Option<&'static str>,
    pub(crate) forget_missing: bool,
    /// The provider says that the time of every lease is over.
    pub(crate) expired: bool,
    pub(crate) upload_delay: Duration,
    /// Uploads end after their lease.
    pub(crate) upload_outlives: bool,
    /// Commands end after their lease.
    pub(crate) outlive: bool,
    /// Where trees went and commands ran.
    pub(crate) places: Vec<String>,
    created: u32,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Fake(Arc<Mutex<World>>);

impl Fake {
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// Records the call, and whether it is to fail.
    fn call(&self, name: &'static str) -> Option<When> {
        let mut world = self.world();
        world.calls.push(name.to_owned());
        world.fail.get(name).copied()
    }

    fn change(
        &self,
        name: &'static str,
        claim: &Claim,
        change: impl FnOnce(&mut Sandbox, bool),
    ) -> Result<(), Failure> {
        let when = self.call(name);
        if when == Some(When::Before) {
            return Err(failed(name));
        }
        let mut world = self.world();
        let sandbox = world
            .sandboxes
            .get_mut(key(claim))
            .ok_or_else(|| Failure::new(Code::NotFound, "no such sandbox"))?;
        change(sandbox, when == Some(When::Halfway));
        match when {
            Some(_) => Err(failed(name)),
            None => Ok(()),
        }
    }
}

pub(crate) fn failed(name: &str) -> Failure {
    Failure::new(Code::Provider, format!("{name} failed"))
}

fn key(claim: &Claim) -> &str {
    claim.sandbox().unwrap_or("-")
}

impl Provider for Fake {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn validate(&self) -> Result<(), Failure> {
        match self.world().fail.get("validate") {
            Some(_) => Err(Failure::new(Code::Config, "validate failed")),
            None => Ok(()),
        }
    }

    fn plan(&self, request: &NewLease<'_>) -> Result<LeasePlan, Failure> {
        if self.call("plan").is_some() {
            return Err(failed("plan"));
        }
        let number = self.world().created + 1;
        let name = format!("box-{number}");
        Ok(LeasePlan {
            lease_id: match request.lease_id {
                Some(id) => id.clone(),
                None => LeaseId::parse(&format!("t_{name}"))?,
            },
            scope: "scope".to_owned(),
            labels: Labels::from([("sandbox".to_owned(), name)]),
        })
    }

    fn create(
        &self,
        claim: &Claim,
        _workspace: &Workspace,
        _lock: &OperationLock,
        _cancel: &Cancel,
    ) -> Result<Created, CreateFailure> {
        let when = self.call("create");
        if when == Some(When::Before) {
            return Err(CreateFailure::nothing_created(failed("create")));
        }
        let mut world = self.world();
        world.created += 1;
        let uid = format!("uid-{}", world.created);
        let sandbox = Sandbox {
            uid: uid.clone(),
            polls: world.polls,
            ..Sandbox::default()
        };
        world.sandboxes.insert(key(claim).to_owned(), sandbox);
        if when.is_some() {
            return Err(failed("create").into());
        }
        Ok(Created {
            labels: Labels::from([("uid".to_owned(), uid)]),
            lease_id: world.final_id.map(|id| LeaseId::parse(id).unwrap()),
            notice: None,
        })
    }

    fn ready_timeout(&self) -> Option<Duration> {
        // Short only where it is waited for in vain.
        Some(match self.world().polls {
            u32::MAX => Duration::from_millis(200),
            _ => Duration::from_secs(60),
        })
    }

    fn poll_ready(&self, claim: &Claim, _cancel: &Cancel) -> Result<Readiness, Failure> {
        if self.call("poll_ready").is_some() {
            return Err(failed("poll_ready"));
        }
        let mut world = self.world();
        if world.expired {
            return Err(Failure::new(Code::Expired, "its time is over"));
        }
        let Some(sandbox) = world.sandboxes.get_mut(key(claim)) else {
            return Err(Failure::new(Code::NotFound, "no such sandbox"));
        };
        if sandbox.polls > 0 {
            sandbox.polls -= 1;
            return Ok(Readiness::NotYet {
                waiting_for: "the pod".to_owned(),
                retry_after: Duration::from_millis(1),
            });
        }
        Ok(Readiness::Ready(Labels::from([(
            "pod".to_owned(),
            "pod-1".to_owned(),
        )])))
    }

    fn verify(&self, claim: &Claim, intent: Use, _cancel: &Cancel) -> Result<Labels, Failure> {
        let name = match intent {
            Use::Reuse => "verify reuse",
            Use::Upload => "verify upload",
            Use::Replace => "verify replace",
            Use::Exec => "verify exec",
            Use::Attach => "verify attach",
            Use::Inspect => "verify inspect",
            Use::Remove => "verify remove",
        };
        if self.call(name).is_some() {
            return Err(failed(name));
        }
        let world = self.world();
        match (world.sandboxes.get(key(claim)), claim.labels.get("uid")) {
            (Some(sandbox), Some(uid)) if sandbox.uid != *uid => {
                let message = format!("sandbox {} is not the one of the claim", key(claim));
                Err(Failure::new(Code::NotOwned, message))
            }
            (None, _) if intent == Use::Reuse => {
                let why = if world.forget_missing { "" } else { "missing" };
                Ok(Labels::from([(MISSING.to_owned(), why.to_owned())]))
            }
            _ if intent == Use::Inspect && world.expired => Ok(Labels::from([(
                EXPIRED.to_owned(),
                "its time is over".to_owned(),
            )])),
            _ => Ok(Labels::new()),
        }
    }

    fn archive(&self) -> Option<&dyn ArchiveSync> {
        Some(self)
    }

    fn workdir(&self, _workspace: &Workspace) -> PathBuf {
        PathBuf::from("/remote/dir")
    }

    /// Its output comes from no child process.
    fn exec(
        &self,
        sandbox: &Verified<'_>,
        exec: Execution<'_>,
        cancel: &Cancel,
    ) -> Result<i32, Failure> {
        let (relay, mut stdout, mut stderr) = Relay::open(exec.stdout, exec.stderr, cancel)?;
        let place = format!("exec {}", exec.workdir.unwrap_or("-"));
        self.world().places.push(place);
        if let (true, Some(end)) = (self.world().outlive, sandbox.claim().expires_at) {
            let left = end.duration_since(jiff::Timestamp::now());
            std::thread::sleep(Duration::try_from(left).unwrap_or_default());
        }
        let mut input = String::new();
        let mut stdin = exec.stdin.into_reader().unwrap();
        stdin.read_to_string(&mut input).unwrap();
        writeln!(stdout, "{} {input}", exec.argv.join(" ")).unwrap();
        writeln!(stderr, "on stderr").unwrap();
        drop((stdout, stderr));
        relay.finish()?;
        // A command may change any file.
        self.change("exec", sandbox.claim(), |sandbox, _| {
            sandbox
                .tree
                .insert("made".to_owned(), "by command".to_owned());
        })?;
        Ok(exec
            .argv
            .first()
            .and_then(|code| code.parse().ok())
            .unwrap_or(0))
    }

    fn observe(&self, claims: &[Claim], _cancel: &Cancel) -> Result<Vec<Observed>, Failure> {
        if self.call("observe").is_some() {
            return Err(failed("observe"));
        }
        let world = self.world();
        let observed = claims.iter().map(|claim| {
            let (state, phase) = match world.sandboxes.contains_key(key(claim)) {
                true => ("running", Phase::Ready),
                false => ("missing-or-inaccessible", Phase::Absent),
            };
            Observed {
                state: state.to_owned(),
                phase,
                labels: Labels::new(),
            }
        });
        Ok(observed.collect())
    }

    fn absent(&self, claim: &Claim) -> Failure {
        Failure::new(Code::NotFound, format!("no sandbox {}", key(claim)))
    }

    fn remove(
        &self,
        sandbox: &Verified<'_>,
        begin: &dyn Fn() -> Result<(), Failure>,
        _cancel: &Cancel,
    ) -> Result<Removal, Failure> {
        let when = self.call("remove");
        let claim = sandbox.claim();
        let mut world = self.world();
        if !world.sandboxes.contains_key(key(claim)) {
            return Ok(match world.forget_missing {
                true => Removal::Forgotten(format!("{} is forgotten", claim.lease_id)),
                false => Removal::Missing(Failure::new(Code::NotFound, "missing-or-inaccessible")),
            });
        }
        begin()?;
        if when == Some(When::Before) {
            return Err(failed("remove"));
        }
        world.sandboxes.remove(key(claim));
        match when {
            Some(_) => Err(failed("remove")),
            None => Ok(Removal::Gone),
        }
    }

    fn doctor(&self, _cancel: &Cancel) -> Vec<Check> {
        Vec::new()
    }
}

impl ArchiveSync for Fake {
    fn compression(&self) -> Compression {
        Compression::None
    }

    fn ensure_workdir(
        &self,
        sandbox: &Verified<'_>,
        _workdir: &Path,
        _cancel: &Cancel,
    ) -> Result<(), Failure> {
        self.change("ensure_workdir", sandbox.claim(), |_, _| {})
    }

    fn upload(
        &self,
        sandbox: &Verified<'_>,
        upload: &Upload<'_>,
        phases: &mut SyncPhases,
        cancel: &Cancel,
    ) -> Result<Staged, Failure> {
        let delay = self.world().upload_delay;
        if !delay.is_zero()
            && cancel
                .sleep_until(std::time::Instant::now() + delay)
                .is_some()
        {
            self.world().calls.push("upload cut short".to_owned());
            return Err(Failure::new(Code::Timeout, "upload cut short"));
        }
        if let (true, Some(end)) = (self.world().upload_outlives, sandbox.claim().expires_at) {
            let left = end.duration_since(jiff::Timestamp::now());
            std::thread::sleep(Duration::try_from(left).unwrap_or_default());
        }
        let place = format!("upload {}", upload.workdir.display());
        self.world().places.push(place);
        let files = unpacked(upload, cancel)?;
        phases.begin("extract");
        self.change("upload", sandbox.claim(), |sandbox, halfway| {
            sandbox.archive = true;
            match (upload.mode, halfway) {
                (SyncMode::Replace, true) => sandbox.staged = Some(Files::new()),
                (SyncMode::Replace, false) => sandbox.staged = Some(files),
                (SyncMode::Merge, _) => sandbox.tree.extend(files),
            }
        })?;
        Ok(Staged {
            path: format!("/remote/.dir-{}", upload.nonce),
            finished: false,
        })
    }

    fn replace(
        &self,
        sandbox: &Verified<'_>,
        _upload: &Upload<'_>,
        _staged: &Staged,
        _cancel: &Cancel,
    ) -> Result<(), Failure> {
        self.change("replace", sandbox.claim(), |sandbox, halfway| {
            sandbox.previous = Some(std::mem::take(&mut sandbox.tree));
            if !halfway && let Some(staged) = sandbox.staged.take() {
                sandbox.tree = staged;
            }
        })
    }

    fn roll_back(
        &self,
        sandbox: &Verified<'_>,
        _upload: &Upload<'_>,
        _staged: &Staged,
        _cancel: &Cancel,
    ) -> Result<(), Failure> {
        self.change("roll_back", sandbox.claim(), |sandbox, _| {
            if let Some(previous) = sandbox.previous.take() {
                sandbox.tree = previous;
            }
        })
    }

    fn discard(
        &self,
        sandbox: &Verified<'_>,
        _upload: &Upload<'_>,
        _cancel: &Cancel,
    ) -> Result<(), Failure> {
        self.change("discard", sandbox.claim(), |sandbox, _| {
            sandbox.archive = false;
            sandbox.staged = None;
            sandbox.previous = None;
        })
    }
}

fn unpacked(upload: &Upload<'_>, cancel: &Cancel) -> Result<Files, Failure> {
    let packed = upload.archive(Compression::None, cancel)?;
    let mut archive = tar::Archive::new(packed.open().unwrap());
    let mut files = Files::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        files.insert(path, text);
    }
    Ok(files)
}

pub(crate) fn write(dir: &Path, name: &str, text: &str) {
    let mut file = std::fs::File::create(dir.join(name)).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// What was said, in order.
#[derive(Default)]
pub(crate) struct Lines(RefCell<Vec<String>>);

impl Report for Lines {
    fn line(&self, line: &str) {
        self.0.borrow_mut().push(line.to_owned());
    }

    fn progress(&self, _line: &str) {}
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A repository, a state directory and the provider.
pub(crate) struct Bench {
    state: TempDir,
    pub(crate) repo: TempDir,
    pub(crate) fake: Fake,
    pub(crate) store: ClaimStore,
    pub(crate) options: Options,
    pub(crate) lines: Lines,
    pub(crate) cancel: Cancel,
}

/// What differs between two runs.
pub(crate) struct Run<'a> {
    pub(crate) id: Option<&'a str>,
    pub(crate) keep: Keep,
    pub(crate) sync: bool,
    /// `None` is `--sync-only`.
    pub(crate) command: Option<&'a str>,
    pub(crate) workdir: Option<&'a str>,
}

impl Default for Run<'_> {
    fn default() -> Self {
        Self {
            id: None,
            keep: Keep::No,
            sync: true,
            command: Some("0"),
            workdir: None,
        }
    }
}

pub(crate) struct Ran {
    pub(crate) outcome: Outcome,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let (state, repo) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(repo.path(), "a.txt", "a");
        Self {
            store: ClaimStore::open(state.path()),
            state,
            repo,
            fake: Fake::default(),
            options: Options {
                exclude: Vec::new(),
                include: Vec::new(),
                limits: Limits::default(),
                allow: Allow::UpToLimits,
                mode: SyncMode::Replace,
                fingerprint: true,
                full: false,
                timeout: Some(Duration::from_secs(60)),
            },
            lines: Lines::default(),
            cancel: Cancel::new(),
        }
    }

    pub(crate) fn context(&self) -> Context<'_> {
        Context {
            provider: &self.fake,
            store: &self.store,
            cancel: &self.cancel,
            report: &self.lines,
        }
    }

    pub(crate) fn terms(&self, keep: bool) -> Terms {
        Terms {
            slug: SlugChoice::Generated,
            lease_id: None,
            ttl: Duration::from_secs(3600),
            idle_timeout: Duration::from_secs(60),
            keep,
            one_shot: false,
            labels: BTreeMap::new(),
        }
    }

    pub(crate) fn workspace(&self) -> Workspace {
        Workspace::new(self.repo.path(), "repo".to_owned())
    }

    pub(crate) fn fail(&self, call: &'static str, when: When) {
        self.fake.world().fail.insert(call, when);
    }

    pub(crate) fn warmup(&self) -> Claim {
        lifecycle::warmup(self.context(), &self.workspace(), &self.terms(true)).unwrap()
    }

    pub(crate) fn run(&self, run: Run<'_>) -> Ran {
        let terms = self.terms(run.keep == Keep::Yes);
        self.run_with(run, terms)
    }

    pub(crate) fn run_with(&self, run: Run<'_>, terms: Terms) -> Ran {
        let workspace = self.workspace();
        let (stdout, stderr) = (Shared::default(), Shared::default());
        let env = |claim: &Claim| {
            Forwarded::select(&Request {
                local: &BTreeMap::new(),
                allow: &AllowList::resolve(&AllowSources {
                    config: None,
                    variable: None,
                    profile: &[],
                    flags: &[],
                })?,
                files: &[],
                literals: &BTreeMap::new(),
                never: &[],
                reserved: Reserved {
                    run_id: "run_1",
                    lease_id: claim.lease_id.as_str(),
                    slug: "slug",
                },
            })
        };
        let tree = Tree {
            root: self.repo.path(),
            repository: None,
            source: Source::Walk,
            temp: self.state.path(),
        };
        let request = RunRequest {
            run_id: "run_1".to_owned(),
            workspace: &workspace,
            target: match run.id {
                None => Target::Fresh(terms),
                Some(id) => Target::Reuse {
                    identifier: id.to_owned(),
                    reclaim: Reclaim::No,
                    idle_timeout: Duration::from_secs(60),
                },
            },
            keep: run.keep,
            sync: match run.sync {
                true => Sync::Send {
                    tree,
                    options: &self.options,
                },
                false => Sync::Skip,
            },
            job: match run.command {
                Some(word) => Job::Command(vec![word.to_owned()]),
                None => Job::SyncOnly,
            },
            shown: run.command.unwrap_or_default().to_owned(),
            flags: Vec::new(),
            workdir: run.workdir.map(str::to_owned),
            label: None,
            env: &env,
            say_env: false,
            streams: Streams {
                stdin: Stdin::Bytes(b"input".to_vec()),
                interactive: false,
                terminal: false,
                stdout: Output::To(Box::new(stdout.clone())),
                stderr: Output::To(Box::new(stderr.clone())),
            },
        };
        let outcome = lifecycle::run(self.context(), request);
        let text = |shared: Shared| String::from_utf8(shared.0.lock().unwrap().clone()).unwrap();
        Ran {
            outcome,
            stdout: text(stdout),
            stderr: text(stderr),
        }
    }

    pub(crate) fn claims(&self) -> Vec<Claim> {
        self.store.scan().unwrap().claims
    }

    /// The calls since the last time.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.fake.world().calls)
    }

    pub(crate) fn said(&self) -> Vec<String> {
        self.lines.0.take()
    }

    pub(crate) fn sandbox(&self, name: &str) -> Option<Sandbox> {
        self.fake.world().sandboxes.get(name).cloned()
    }

    /// No archive is left in the state directory.
    pub(crate) fn temporary_files(&self) -> usize {
        let names = std::fs::read_dir(self.state.path()).unwrap();
        names
            .filter(|name| {
                let name = name.as_ref().unwrap().file_name();
                name.to_string_lossy().starts_with("crabbox-sync-")
            })
            .count()
    }
}
