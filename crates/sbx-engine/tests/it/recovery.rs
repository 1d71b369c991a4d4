//! Records and inits of a daemon that is gone.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use sbx_api::policy::{RuleDecision, RuleRequest};
use sbx_api::{Caller, CreateRequest, KeepRequest, Limits, Sandbox, Status, WorkspaceRequest};
use sbx_engine::engine::Removal;
use sbx_engine::machine::egress::NoEgress;
use sbx_engine::machine::ingress::NoIngress;
use sbx_engine::machine::namespace::Namespace;
use sbx_engine::machine::namespace::helper::Helper;
use sbx_engine::machine::namespace::ids::Facts;
use sbx_engine::machine::{Backend, Machines, Template};
use sbx_engine::policy::PolicyBook;
use sbx_engine::sandbox::record::{
    InitProcess, Record, TemplateRecord, VERSION, WorkspaceKind, WorkspaceRecord,
};
use sbx_engine::{Config, Engine, EngineError, SandboxName, StateDir};
use sbx_proto::SPOKEN;
use sbx_proto::exec::Request;
use sbx_proto::plan::{IdRange, Ids, Mode};

use crate::fake_init::{FakeInit, Manner};

const ID: &str = "11111111-1111-4111-8111-111111111111";

#[test]
fn a_running_sandbox_is_taken_over_and_can_be_stopped() {
    let world = World::new();
    let init = world.running("kept", Manner::Honest { running: 2 }, None);
    let engine = world.recover();
    let kept = engine.inspect("kept").unwrap();
    assert_eq!((kept.status, kept.sessions), (Status::Running, 2));
    assert!(!engine.start("kept").unwrap().started);
    assert!(
        engine.remove("kept", None, Removal::WhenIdle).is_err(),
        "commands run in it"
    );
    let stopped = engine.stop("kept").unwrap();
    assert_eq!(stopped.status, Status::Stopped);
    assert_eq!(stopped.stop_reason.as_deref(), Some("user"));
    assert_eq!(init.requests.iter().take(2).count(), 2);
    engine.remove("kept", None, Removal::WhenIdle).unwrap();
    assert_eq!(world.state.names().unwrap(), vec![]);
}

#[test]
fn a_removal_by_force_gives_no_grace() {
    let world = World::new();
    for (removal, expected) in [(Removal::WhenIdle, 3000), (Removal::Forced, 0)] {
        let init = world.running("gone", Manner::Honest { running: 0 }, None);
        world.recover().remove("gone", None, removal).unwrap();
        let grace = init.requests.iter().find_map(|request| match request {
            Request::Shutdown { grace_ms, .. } => Some(grace_ms),
            _ => None,
        });
        assert_eq!(grace, Some(expected));
    }
}

#[test]
fn files_are_due_until_an_init_or_the_daemon_has_handed_them_over() {
    let world = World::new();
    let _honest = world.running("honest", Manner::Honest { running: 0 }, None);
    let _killed = world.running("killed", Manner::Garbage, None);
    for name in ["honest", "killed"] {
        let dir = world.state.sandbox(&SandboxName::parse(name).unwrap());
        let init = Record::read(&dir).unwrap().init;
        world.record(name, |record| {
            record.status = Status::Running;
            record.init = init;
            // Ids of its own, and a workspace that does not exist.
            record.ids.mode = Mode::Root;
            record.workspaces = vec![nonexistent()];
        });
    }
    let engine = world.recover();
    engine.stop("honest").unwrap();
    let due = |name: &str| {
        let dir = world.state.sandbox(&SandboxName::parse(name).unwrap());
        let limit = Instant::now() + Duration::from_secs(20);
        // The daemon knows a moment before the disk does.
        loop {
            let record = Record::read(&dir).unwrap();
            if record.status == Status::Stopped {
                return record.hand_over_due;
            }
            assert!(Instant::now() < limit, "{record:?}");
            std::thread::yield_now();
        }
    };
    assert_eq!((due("honest"), due("killed")), (false, true));
    // A missing workspace must not prevent the removal.
    engine.remove("killed", None, Removal::Forced).unwrap();
}

#[test]
fn a_deadline_that_passed_without_a_daemon_counts() {
    let world = World::new();
    let past = Timestamp::now() - SignedDuration::from_secs(5);
    let _idle = world.running("idle", Manner::Honest { running: 0 }, Some(past));
    let _busy = world.running("busy", Manner::Honest { running: 1 }, Some(past));
    let engine = world.recover();
    let idle = wait_for(&engine, "idle", |s| s.status == Status::Stopped);
    assert_eq!(idle.stop_reason.as_deref(), Some("idle"));
    let busy = engine.inspect("busy").unwrap();
    assert_eq!((busy.status, busy.stop_at), (Status::Running, None));
    engine.stop_for_good();
    let busy = engine.inspect("busy").unwrap();
    assert_eq!(busy.stop_reason.as_deref(), Some("daemon stop"));
}

#[test]
fn an_init_that_got_a_command_meanwhile_goes_on() {
    let world = World::new();
    let past = Timestamp::now() - SignedDuration::from_secs(5);
    let init = world.running("busy", Manner::Secretive, Some(past));
    let engine = world.recover();
    let asked = |expected: bool| {
        init.requests.iter().find_map(|request| match request {
            Request::Shutdown { if_idle, .. } => Some(if_idle == expected),
            _ => None,
        })
    };
    assert_eq!(asked(true), Some(true));
    let busy = wait_for(&engine, "busy", |s| s.stop_at > Some(past));
    assert_eq!((busy.status, busy.stop_reason), (Status::Running, None));
    assert!(!engine.start("busy").unwrap().started);
    let stopped = engine.stop("busy").unwrap();
    assert_eq!(asked(false), Some(true));
    assert_eq!(stopped.stop_reason.as_deref(), Some("user"));
}

#[test]
fn what_is_known_to_run_is_not_killed_on_suspicion() {
    let world = World::new();
    let init = world.running("slow", Manner::Deaf, None);
    let engine = world.recover();
    let error = engine.remove("slow", None, Removal::WhenIdle).unwrap_err();
    assert!(
        matches!(error, EngineError::Busy { sessions: 1, .. }),
        "{error}"
    );
    let asked = init.requests.iter().find_map(|request| match request {
        Request::Shutdown { if_idle, .. } => Some(if_idle),
        _ => None,
    });
    assert_eq!(asked, Some(true));
    let slow = engine.inspect("slow").unwrap();
    assert_eq!(slow.status, Status::Running);
    assert!(!engine.start("slow").unwrap().started, "it is in use");
}

#[test]
fn a_stop_of_all_is_not_the_end() {
    let world = World::new();
    let _init = world.running("kept", Manner::Honest { running: 1 }, None);
    // Its start fails, for a reason of its own.
    world.record("lost", |record| {
        record.workspaces = vec![nonexistent()];
    });
    let engine = world.recover();
    engine.stop_all("policy reset");
    let kept = engine.inspect("kept").unwrap();
    assert_eq!(kept.stop_reason.as_deref(), Some("policy reset"));
    let error = engine.start("lost").unwrap_err();
    assert!(matches!(error, EngineError::Workspace(_)), "{error}");
}

#[test]
fn nothing_starts_while_all_are_stopped() {
    let world = World::new();
    world.record("stopped", |_| {});
    let engine = world.recover();
    engine.stop_for_good();
    let error = engine.start("stopped").unwrap_err();
    assert!(matches!(error, EngineError::Closed), "{error}");
    let workspace = tempfile::tempdir().unwrap();
    let error = engine
        .create(request("late", workspace.path()))
        .unwrap_err();
    assert!(matches!(error, EngineError::Closed), "{error}");
    assert_eq!(world.state.names().unwrap().len(), 1);
}

#[test]
fn one_that_cannot_be_read_is_ended_before_it_is_removed() {
    let world = World::new();
    let init = world.running("bad", Manner::Honest { running: 1 }, None);
    let dir = world.state.sandbox(&SandboxName::parse("bad").unwrap());
    File::create(dir.record()).unwrap();
    let engine = world.recover();
    let shown = engine.inspect("bad").unwrap();
    assert_eq!(
        (shown.status, shown.stop_reason.as_deref()),
        (Status::Running, Some("damaged"))
    );
    engine.remove("bad", None, Removal::Forced).unwrap();
    let mut requests = init.requests.iter();
    assert!(requests.any(|request| matches!(request, Request::Shutdown { .. })));
    assert!(!dir.path().exists() && engine.list().is_empty());
}

#[test]
fn one_whose_directory_was_removed_can_be_removed() {
    let world = World::new();
    let dir = world.record("gone", |_| {});
    let engine = world.recover();
    std::fs::remove_dir_all(dir).unwrap();
    engine.remove("gone", None, Removal::WhenIdle).unwrap();
    assert!(engine.list().is_empty());
}

#[test]
fn an_init_that_answers_garbage_is_killed() {
    let world = World::new();
    let _init = world.running("bad", Manner::Garbage, None);
    let engine = world.recover();
    let bad = wait_for(&engine, "bad", |s| s.status == Status::Stopped);
    assert_eq!(
        bad.stop_reason.as_deref(),
        Some("init violated the protocol")
    );
}

#[test]
fn an_init_of_before_an_upgrade_is_taken_over() {
    for version in SPOKEN {
        let world = World::new();
        let mut init = world.running("older", Manner::Speaks(version), None);
        let engine = world.recover();
        let older = engine.inspect("older").unwrap();
        assert_eq!((older.status, older.sessions), (Status::Running, 1));
        assert!(init.lives(), "version {version}");
        let stopped = engine.stop("older").unwrap();
        assert_eq!(stopped.stop_reason.as_deref(), Some("user"));
    }
}

#[test]
fn an_init_of_an_unknown_version_is_ended() {
    for version in [SPOKEN.start() - 1, SPOKEN.end() + 1] {
        let world = World::new();
        let mut init = world.running("other", Manner::Speaks(version), None);
        let engine = world.recover();
        let other = engine.inspect("other").unwrap();
        assert_eq!(other.status, Status::Stopped);
        let reason = other.stop_reason.as_deref();
        assert_eq!(reason, Some("started by another version of sbx"));
        assert!(!init.lives(), "version {version}");
        engine.remove("other", None, Removal::WhenIdle).unwrap();
    }
}

#[test]
fn what_does_not_prove_itself_is_not_running() {
    let world = World::new();
    let _impostor = world.running("impostor", Manner::Impostor, None);
    let _false = world.running("false", Manner::FalseListeners, None);
    world.record("dead", |record| record.status = Status::Running);
    world.record("rebooted", |record| {
        record.status = Status::Running;
        record.init = Some(InitProcess {
            pid: i32::try_from(std::process::id()).unwrap(),
            start_time: 1,
            boot_id: "another".into(),
        });
    });
    let engine = world.recover();
    let reasons: Vec<_> = engine
        .list()
        .into_iter()
        .map(|s| (s.name, s.status, s.stop_reason.unwrap()))
        .collect();
    let row = |name: &str, reason: &str| (name.to_owned(), Status::Stopped, reason.to_owned());
    assert_eq!(
        reasons,
        [
            row("dead", "crashed"),
            row("false", "crashed"),
            row("impostor", "crashed"),
            row("rebooted", "host restarted"),
        ]
    );
}

#[test]
fn interrupted_creates_and_removes_are_finished() {
    let world = World::new();
    for (name, status) in [("created", Status::Creating), ("removed", Status::Removing)] {
        let dir = world.record(name, |record| record.status = status);
        std::fs::create_dir_all(dir.join("layers/root/upper/deep/er")).unwrap();
        File::create(dir.join("output.0.log")).unwrap();
    }
    let unborn = world.state.sandboxes().join("unborn");
    std::fs::create_dir(&unborn).unwrap();
    File::create(unborn.join(".sandbox.json.1.1.tmp")).unwrap();
    world.record("stopped", |_| {});
    let engine = world.recover();
    let limit = Instant::now() + Duration::from_secs(20);
    while engine.list().len() > 1 && Instant::now() < limit {
        std::thread::yield_now();
    }
    let left: Vec<_> = world.state.names().unwrap();
    assert_eq!(left, [SandboxName::parse("stopped").unwrap()]);
}

#[test]
fn rules_of_a_sandbox_that_is_gone_are_forgotten() {
    let world = World::new();
    let book = PolicyBook::new(&world.state, "/nowhere".into());
    let now = Timestamp::now();
    // A daemon was killed after it had put `gone` into the trash.
    for sandbox in [None, Some("gone"), Some("stopped"), Some("damaged")] {
        let request = RuleRequest {
            decision: RuleDecision::Allow,
            sandbox: sandbox.map(str::to_owned),
            repo: None,
            resources: vec![format!("{}.test", sandbox.unwrap_or("all"))],
            for_seconds: None,
            allow_private: false,
        };
        book.add(&request, now).unwrap();
    }
    world.record("stopped", |_| {});
    let damaged = world.record("damaged", |_| {});
    File::create(damaged.join("sandbox.json")).unwrap();
    world.recover();
    let rules = std::fs::read_to_string(world.state.root().join("policy.json")).unwrap();
    let kept =
        ["all", "stopped", "damaged", "gone"].map(|it| rules.contains(&format!("{it}.test")));
    assert_eq!(kept, [true, true, true, false], "{rules}");
    // Rules that cannot be read do not keep a daemon from starting.
    File::create(world.state.root().join("policy.json")).unwrap();
    assert_eq!(world.recover().list().len(), 2);
}

#[test]
fn what_has_no_record_can_be_removed() {
    let world = World::new();
    let left = world.state.sandboxes().join("left");
    std::fs::create_dir_all(left.join("layers/root/upper")).unwrap();
    let engine = world.recover();
    let shown = engine.list();
    let [shown] = &shown[..] else {
        panic!("{shown:?}")
    };
    assert_eq!(
        (shown.name.as_str(), shown.stop_reason.as_deref()),
        ("left", Some("damaged"))
    );
    engine.remove("left", None, Removal::WhenIdle).unwrap();
    assert!(!left.exists() && engine.list().is_empty());
}

#[test]
fn a_name_that_is_being_swept_can_be_taken() {
    let world = World::new();
    let workspace = tempfile::tempdir().unwrap();
    let templates = world.state.templates();
    std::fs::remove_dir(&templates).unwrap();
    File::create(&templates).unwrap();
    for round in 0..5 {
        let name = format!("half-made-{round}");
        let dir = world.record(&name, |record| record.status = Status::Creating);
        for n in 0..500 {
            std::fs::create_dir_all(dir.join(format!("layers/root/upper/{n}"))).unwrap();
        }
        let engine = world.recover();
        let request = request(&name, workspace.path());
        // It fails later, before a setup helper is needed: this program is not one.
        let error = engine.create(request).unwrap_err();
        assert!(matches!(error, EngineError::Template(_)), "{error}");
        assert_eq!(world.state.names().unwrap(), []);
    }
}

#[test]
fn keeping_is_recorded() {
    let world = World::new();
    let later = Timestamp::now() + SignedDuration::from_secs(1000);
    let _init = world.running("kept", Manner::Honest { running: 0 }, Some(later));
    let engine = world.recover();
    assert_eq!(engine.inspect("kept").unwrap().stop_at, Some(later));
    let keep = KeepRequest {
        keep_alive: true,
        temporary: false,
        id: None,
    };
    let kept = engine.keep("kept", &keep).unwrap();
    assert_eq!((kept.keep_alive, kept.stop_at), (true, None));
    let dir = world.state.sandbox(&SandboxName::parse("kept").unwrap());
    assert!(Record::read(&dir).unwrap().keep_alive);
    // Nor is one kept, or removed, that only has the name.
    let another = KeepRequest {
        id: Some("another".into()),
        ..keep
    };
    let refused = engine.keep("kept", &another);
    assert!(matches!(refused, Err(EngineError::NotFound(_))));
    let refused = engine.remove("kept", Some("another"), Removal::Forced);
    assert!(matches!(refused, Err(EngineError::NotFound(_))));
    engine
        .keep(
            "kept",
            &KeepRequest {
                id: Some(ID.into()),
                ..another
            },
        )
        .unwrap();
    engine.stop_for_good();
}

fn nonexistent() -> WorkspaceRecord {
    WorkspaceRecord {
        path: "/nonexistent".into(),
        given: None,
        target: None,
        masked: Vec::new(),
        masked_absent: Vec::new(),
        readonly: false,
        added: false,
        pending: None,
        kind: WorkspaceKind::Directory,
        uid: 1000,
        gid: 1000,
        identity: None,
    }
}

fn request(name: &str, workspace: &Path) -> CreateRequest {
    CreateRequest {
        name: Some(name.to_owned()),
        agent: "shell".into(),
        workspaces: vec![WorkspaceRequest {
            path: workspace.to_str().unwrap().to_owned(),
            given: None,
            target: None,
            readonly: false,
        }],
        env: BTreeMap::new(),
        caller: Caller::default(),
        platform: None,
        deny_network: Vec::new(),
        idle_seconds: None,
        publish: Vec::new(),
        cache: false,
        git_write: false,
        temporary: false,
        limits: Limits::default(),
        limits_preferred: Vec::new(),
        template: None,
    }
}

struct World {
    state: StateDir,
    _temp: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::locate(temp.path(), Some(temp.path())).unwrap();
        state.claim().unwrap();
        Self { state, _temp: temp }
    }

    /// The daemon comes back.
    fn recover(&self) -> Engine {
        let namespace = Namespace::new(Facts::default(), Helper::new().unwrap(), None);
        let engine = Engine::new(Config {
            state: self.state.clone(),
            settings: self.state.settings().unwrap(),
            machines: Machines::new(namespace),
            egress: Arc::new(NoEgress),
            ingress: Arc::new(NoIngress),
            book: Arc::new(PolicyBook::new(&self.state, "/nowhere".into())),
        });
        engine.recover().unwrap();
        engine
    }

    fn record(&self, name: &str, change: impl FnOnce(&mut Record)) -> std::path::PathBuf {
        let mut record = record(name);
        change(&mut record);
        let dir = self.state.sandbox(&record.name);
        std::fs::create_dir_all(dir.path()).unwrap();
        record
            .write(&dir, sbx_engine::state::Durability::Soon)
            .unwrap();
        dir.path().to_owned()
    }

    fn running(&self, name: &str, manner: Manner, stop_at: Option<Timestamp>) -> FakeInit {
        let dir = self.record(name, |_| {});
        let init = FakeInit::start(&dir, ID, manner);
        self.record(name, |record| {
            record.status = Status::Running;
            record.stop_at = stop_at;
            record.init = Some(InitProcess {
                pid: init.pid(),
                start_time: sbx_sys::process::start_time(init.pid()).unwrap(),
                boot_id: boot_id(),
            });
        });
        init
    }
}

fn boot_id() -> String {
    let text = std::fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id")).unwrap();
    text.trim().to_owned()
}

fn record(name: &str) -> Record {
    // Everything belongs to the caller, so that no helper is needed to remove it.
    let caller = vec![IdRange {
        inside: 1000,
        outside: 1000,
        count: 1,
    }];
    Record {
        version: VERSION,
        name: SandboxName::parse(name).unwrap(),
        id: ID.into(),
        agent: "shell".into(),
        status: Status::Stopped,
        workspaces: Vec::new(),
        git: Vec::new(),
        env: BTreeMap::new(),
        caller: Caller::default(),
        sources: Vec::new(),
        backend: Backend::Namespace,
        ids: Ids {
            mode: Mode::Single,
            uid: caller.clone(),
            gid: caller,
        },
        template: TemplateRecord {
            name: Template::Host,
            fingerprint: None,
            started_with: None,
        },
        init: None,
        hand_over_due: false,
        network: None,
        created_at: Timestamp::UNIX_EPOCH,
        started_at: None,
        stopped_at: None,
        last_used_at: None,
        stop_reason: None,
        keep_alive: false,
        idle_seconds: None,
        cache: None,
        temporary: false,
        limits: Limits::default(),
        limits_required: Vec::new(),
        stop_at: None,
        mounts: Vec::new(),
        ports: Vec::new(),
        warnings: Vec::new(),
    }
}

fn wait_for(engine: &Engine, name: &str, done: impl Fn(&Sandbox) -> bool) -> Sandbox {
    let limit = Instant::now() + Duration::from_secs(20);
    loop {
        let sandbox = engine.inspect(name).unwrap();
        if done(&sandbox) {
            return sandbox;
        }
        assert!(Instant::now() < limit, "{sandbox:?}");
        std::thread::yield_now();
    }
}
