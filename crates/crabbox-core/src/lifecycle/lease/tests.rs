//! What no fake program could show at once: calls that time out, and other processes that come between.

use std::cell::RefCell;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::claims::{ClaimStore, LeaseId};
use crate::command::{Assignments, Rules};
use crate::lifecycle::Report;
use crate::process::Cancel;
use crate::provider::{
    BusyLease, Check, Created, Execution, LeasePlan, Observed, Provider, Removal, Spec, StopBy,
    Verified, WorkspaceKind,
};
use crate::settings::ProviderTable;

/// No process has this id.
const NO_PROCESS: u32 = u32::MAX;
const LONG_AGO: &str = "2020-01-01T00:00:00Z";

#[test]
fn a_removal_that_timed_out_is_told() {
    for state in [State::Creating, State::Ready] {
        let fixture = Fixture::new();
        fixture.orphan("s_1", state);
        let late = |_: &Claim| Err(Failure::new(Code::Timeout, "`sbx rm` took too long"));
        let said = fixture.sweep(&late);
        let warning =
            "warning: cannot remove lease s_1, whose creator died: `sbx rm` took too long";
        assert_eq!(said, [warning], "{state:?}");
        assert_eq!(fixture.store.scan().unwrap().claims.len(), 1);
    }
}

#[test]
fn an_orphan_that_is_in_use_is_left_alone() {
    let fixture = Fixture::new();
    let ready = fixture.orphan("s_1", State::Ready);
    let creating = fixture.orphan("s_2", State::Creating);
    let hold = |claim: &Claim| {
        let wait = Wait::none();
        fixture.store.operation(&claim.lease_id, "test", wait)
    };
    let _locks = (hold(&ready).unwrap(), hold(&creating).unwrap());
    let never = |claim: &Claim| panic!("{} is in use", claim.lease_id);
    // Of one that is still being made it is said why it stays.
    let said = fixture.sweep(&never);
    let warning =
        "warning: cannot remove lease s_2, whose creator died: lease s_2 is in use by process ";
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with(warning), "{said:?}");
}

#[test]
fn only_what_was_removed_is_said_to_be_removed() {
    let fixture = Fixture::new();
    fixture.orphan("s_1", State::Ready);
    let second = fixture.orphan("s_2", State::Ready);
    // While the first is removed, another process keeps the second.
    let keep_the_second = |claim: &Claim| {
        assert_eq!(claim.lease_id.as_str(), "s_1");
        fixture.store.replace(&second, second.kept()).map(drop)
    };
    let said = fixture.sweep(&keep_the_second);
    assert_eq!(said, ["removed lease=s_1 reason=its creator died"]);
    assert_eq!(fixture.store.scan().unwrap().claims.len(), 1);
}

#[test]
fn the_idle_time_of_what_stays_after_all_begins_when_the_command_ends() {
    let fixture = Fixture::new();
    let claim = fixture.orphan("s_1", State::Ready);
    assert!(claim.due(Timestamp::now()).is_some());
    let lock = fixture
        .store
        .operation(&claim.lease_id, "test", Wait::none());
    let lease = Lease {
        claim,
        origin: Origin::Fresh,
        synced: None,
        listed: None,
        lock: lock.unwrap(),
    };
    let kept = fixture.with(&|_| Ok(()), |context| keep(context, &lease));
    assert_eq!(kept.0, Ok(()));
    let claim = fixture.store.read(&lease.claim.lease_id).unwrap().unwrap();
    assert!(claim.keep);
    assert_eq!(claim.due(Timestamp::now()), None);
}

/// What a sandbox's removal comes to.
type Remove<'a> = &'a (dyn Fn(&Claim) -> Result<(), Failure> + Sync);

struct Fixture {
    _temp: TempDir,
    store: ClaimStore,
}

impl Fixture {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let store = ClaimStore::open(temp.path());
        Self { _temp: temp, store }
    }

    /// The claim of a dead process, last used long ago, and without a TTL.
    fn orphan(&self, id: &str, state: State) -> Claim {
        let intent = Intent {
            lease_id: LeaseId::parse(id).unwrap(),
            provider: SPEC.name.to_owned(),
            provider_scope: String::new(),
            repo_root: None,
            idle_timeout_seconds: 1800,
            ttl_seconds: 0,
            keep: false,
            labels: BTreeMap::new(),
            creator: Creator {
                pid: NO_PROCESS,
                ..Creator::current()
            },
        };
        let mut claim = Claim::intended(intent, LONG_AGO.parse().unwrap());
        claim.state = state;
        self.store.create(claim, &SlugChoice::Generated).unwrap()
    }

    fn sweep(&self, remove: Remove<'_>) -> Vec<String> {
        self.with(remove, sweep_orphans).1
    }

    /// What an operation came to, and what was said meanwhile.
    fn with<T>(
        &self,
        remove: Remove<'_>,
        operation: impl FnOnce(Context<'_>) -> T,
    ) -> (T, Vec<String>) {
        let said = RecordedReport::default();
        let done = operation(Context {
            provider: &RemoveOnly { remove },
            store: &self.store,
            cancel: &Cancel::new(),
            report: &said,
        });
        (done, said.0.into_inner())
    }
}

#[derive(Default)]
struct RecordedReport(RefCell<Vec<String>>);

impl Report for RecordedReport {
    fn line(&self, line: &str) {
        self.0.borrow_mut().push(line.to_owned());
    }

    fn progress(&self, _line: &str) {}
}

const SPEC: Spec = Spec {
    name: "remove-only",
    family: "",
    kind: "",
    category: "",
    targets: &[],
    features: &[],
    runtime: &[],
    evidence: &[],
    lifecycle: &[],
    coordinator: "",
    table: ProviderTable {
        name: "remove-only",
        section: "remove-only",
        settings: &[],
    },
    lease_prefix: "s_",
    fixed_lease_id: false,
    workspace: WorkspaceKind::Mounted,
    command: Rules {
        shell: &[],
        assignments: Assignments::Strict,
        host_paths: false,
    },
    stop_by: StopBy::Slug,
    absence_is_proof: true,
    expired: ExpiredLease::Refuse,
    busy: BusyLease::Skip,
    ports: false,
    copy: false,
    build_cache: false,
    instead_of_class: "",
    instead_of_type: "",
    credentials: &[],
};

/// A provider that can only remove.
struct RemoveOnly<'a> {
    remove: Remove<'a>,
}

impl Provider for RemoveOnly<'_> {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn validate(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn plan(&self, _request: &NewLease<'_>) -> Result<LeasePlan, Failure> {
        Err(self.unsupported("this"))
    }

    fn create(
        &self,
        _claim: &Claim,
        _workspace: &Workspace,
        _lock: &OperationLock,
        _cancel: &Cancel,
    ) -> Result<Created, CreateFailure> {
        Err(self.unsupported("this").into())
    }

    fn workdir(&self, workspace: &Workspace) -> PathBuf {
        workspace.root.clone()
    }

    fn verify(&self, _claim: &Claim, _intent: Use, _cancel: &Cancel) -> Result<Labels, Failure> {
        Ok(Labels::new())
    }

    fn exec(
        &self,
        _sandbox: &Verified<'_>,
        _exec: Execution<'_>,
        _cancel: &Cancel,
    ) -> Result<i32, Failure> {
        Err(self.unsupported("this"))
    }

    fn observe(&self, _claims: &[Claim], _cancel: &Cancel) -> Result<Vec<Observed>, Failure> {
        Err(self.unsupported("this"))
    }

    fn absent(&self, _claim: &Claim) -> Failure {
        self.unsupported("this")
    }

    fn remove(
        &self,
        sandbox: &Verified<'_>,
        begin: &dyn Fn() -> Result<(), Failure>,
        _cancel: &Cancel,
    ) -> Result<Removal, Failure> {
        begin()?;
        (self.remove)(sandbox.claim()).map(|()| Removal::Gone)
    }

    fn doctor(&self, _cancel: &Cancel) -> Vec<Check> {
        Vec::new()
    }
}
