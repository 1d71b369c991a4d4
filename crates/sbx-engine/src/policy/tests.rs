use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use sbx_api::ErrorCode;
use sbx_api::policy::ProxyConfigChange;
use sbx_policy::{Protocol, Target};
use tempfile::TempDir;

use super::*;
use crate::error::chain;
use crate::sandbox::record::tests::any_example;

struct Place {
    temp: TempDir,
    state: StateDir,
    book: PolicyBook,
}

fn place() -> Place {
    let temp = tempfile::tempdir().unwrap();
    let state = StateDir::locate(temp.path(), Some(&temp.path().join("state"))).unwrap();
    let book = PolicyBook::new(&state, temp.path().join("default.json"));
    Place { temp, state, book }
}

fn claimed() -> Place {
    let place = place();
    place.state.claim().unwrap();
    place
}

impl Place {
    fn sandbox(&self, name: &str) -> SandboxName {
        let name = SandboxName::parse(name).unwrap();
        fs::create_dir_all(self.state.sandbox(&name).path()).unwrap();
        name
    }

    fn put(&self, path: &Path, text: &str) {
        use std::io::Write;
        let mut file = fs::File::create(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn allowed(&self, sandbox: Option<&str>, target: &str) -> bool {
        let target = Target::parse_loose(target).unwrap();
        let scope = scope(sandbox, None).unwrap();
        let policy = self.book.policy_for(&scope).unwrap();
        policy.decide(&target, Protocol::Web, now()).allowed
    }

    fn add(
        &self,
        decision: RuleDecision,
        sandbox: Option<&str>,
        resources: &str,
    ) -> Result<Changed, PolicyBookError> {
        let request = RuleRequest {
            decision,
            sandbox: sandbox.map(str::to_owned),
            repo: None,
            resources: vec![resources.to_owned()],
            for_seconds: None,
            allow_private: false,
        };
        self.book.add(&request, now())
    }
}

fn whose(sandbox: &str) -> Scope {
    Scope::Sandbox(sandbox.to_owned())
}

fn now() -> Timestamp {
    "2026-01-29T10:15:25Z".parse().unwrap()
}

fn removal(sandbox: Option<&str>, id: Option<&str>, resources: &[&str]) -> RuleRemoval {
    RuleRemoval {
        sandbox: sandbox.map(str::to_owned),
        repo: None,
        id: id.map(str::to_owned),
        resources: resources.iter().map(|text| (*text).to_owned()).collect(),
    }
}

#[test]
fn reading_creates_nothing_and_balanced_holds() {
    let place = place();
    assert_eq!(place.book.load().unwrap(), None);
    assert_eq!(
        place.book.rules_for(&Scope::Global).unwrap(),
        preset(Preset::Balanced)
    );
    assert_eq!(place.book.all_rules().unwrap().0, preset(Preset::Balanced));
    assert!(place.allowed(Some("ab"), "github.com"));
    assert!(!place.allowed(Some("ab"), "example.org"));
    assert_eq!(fs::read_dir(place.temp.path()).unwrap().count(), 0);
}

#[test]
fn a_preset_is_chosen_once() {
    let place = claimed();
    assert_eq!(place.book.init("deny-all", now()).unwrap(), Preset::DenyAll);
    assert!(!place.allowed(None, "github.com"));
    let error = place.book.init("allow-all", now()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Conflict);
    assert_eq!(error.hint().as_deref(), Some("sbx policy reset"));
    assert!(place.book.init("open", now()).is_err());
    assert_eq!(place.book.ensure_chosen(now()).unwrap(), None);
    let mode = fs::metadata(place.book.path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    place.book.reset().unwrap();
    place.book.reset().unwrap();
    assert_eq!(place.book.load().unwrap(), None);
}

#[test]
fn the_notice_comes_once() {
    let place = claimed();
    let notice = place.book.ensure_chosen(now()).unwrap().unwrap();
    assert!(notice.contains("balanced"));
    assert_eq!(place.book.ensure_chosen(now()).unwrap(), None);
    place.book.reset().unwrap();
    let changed = place.add(RuleDecision::Allow, None, "a.test").unwrap();
    assert_eq!(changed.notice, Some(notice));
    assert_eq!(place.book.ensure_chosen(now()).unwrap(), None);
    // A create that brings denials chooses the preset before the user can be told.
    place.book.reset().unwrap();
    let name = place.sandbox("ab");
    let denied = parse_resources(&["x.test".into()]).unwrap();
    place
        .book
        .begin_sandbox(&name, denied, ProxyFile::Copied, now())
        .unwrap();
    assert_eq!(place.book.ensure_chosen(now()).unwrap(), Some(notice));
    assert_eq!(place.book.ensure_chosen(now()).unwrap(), None);
}

#[test]
fn rules_hold_where_they_belong() {
    let place = claimed();
    place.book.init("deny-all", now()).unwrap();
    let all = place
        .add(RuleDecision::Allow, None, "a.test:443,*.b.test")
        .unwrap();
    assert_eq!(all.rules[0].policy_id, "local-policy");
    assert_eq!(all.rules[0].resources, ["a.test:443", "*.b.test"]);
    let one = place
        .add(RuleDecision::Allow, Some("ab"), "c.test")
        .unwrap();
    assert_eq!(one.rules[0].scope, "sandbox:ab");
    assert!(place.allowed(None, "a.test") && place.allowed(Some("ab"), "x.b.test"));
    assert!(place.allowed(Some("ab"), "c.test"));
    assert!(!place.allowed(None, "c.test") && !place.allowed(Some("cd"), "c.test"));
    assert_eq!(place.book.all_rules().unwrap().0.len(), 3);

    let again = place.add(RuleDecision::Allow, None, "a.test:443").unwrap();
    assert!(again.rules.is_empty());
    assert_eq!(again.existing[0].rule_id, all.rules[0].id);
    let conflict = place
        .add(RuleDecision::Deny, None, "a.test:443")
        .unwrap_err();
    assert_eq!(conflict.code(), ErrorCode::Conflict);
    // Not the rule, which says more than that.
    let hint = "sbx policy rm network --resource a.test:443";
    assert_eq!(conflict.hint().as_deref(), Some(hint));
    for bad in ["*", "a.test:0", "https://a.test"] {
        let error = place.add(RuleDecision::Allow, None, bad).unwrap_err();
        assert_eq!(error.code(), ErrorCode::BadRequest, "{bad}");
    }
    let error = place
        .add(RuleDecision::Allow, Some("a/b"), "a.test")
        .unwrap_err();
    assert!(matches!(error, PolicyBookError::Name(_)));
}

#[test]
fn rules_and_their_resources_are_removed() {
    let place = claimed();
    place.book.init("deny-all", now()).unwrap();
    let scoped = place
        .add(RuleDecision::Allow, Some("ab"), "a.test,b.test")
        .unwrap();
    let id = scoped.rules[0].id.as_str();
    let remove = |removal| place.book.remove(&removal, now());
    let wrong_scope = remove(removal(None, Some(id), &[])).unwrap_err();
    let hint = format!("sbx policy rm network --sandbox ab --id {id}");
    assert_eq!(wrong_scope.hint(), Some(hint));
    let part = remove(removal(Some("ab"), None, &["a.test"])).unwrap();
    assert_eq!(part.rules[0].resources, ["a.test"]);
    assert_eq!(part.remaining[0].resources, ["b.test"]);
    assert_eq!(part.remaining[0].id, id);
    assert!(!place.allowed(Some("ab"), "a.test") && place.allowed(Some("ab"), "b.test"));
    let rest = remove(removal(Some("ab"), Some(id), &[])).unwrap();
    assert_eq!(
        (rest.rules[0].id.as_str(), &rest.rules[0].resources),
        (id, &vec!["b.test".to_owned()])
    );
    assert!(rest.remaining.is_empty());
    for (request, code) in [
        (removal(Some("ab"), Some(id), &[]), ErrorCode::NotFound),
        (removal(None, None, &["z.test"]), ErrorCode::NotFound),
        (removal(None, None, &[]), ErrorCode::BadRequest),
        (
            removal(None, Some("default-deny-all"), &[]),
            ErrorCode::Conflict,
        ),
    ] {
        assert_eq!(remove(request).unwrap_err().code(), code);
    }
}

/// The preset alone is most of a megabyte in the end.
#[test]
fn sandboxes_with_the_same_rules_share_them() {
    let place = claimed();
    let policy = |sandbox| place.book.policy_for(&whose(sandbox)).unwrap();
    let (ab, cd) = (policy("ab"), policy("cd"));
    assert!(std::ptr::eq(ab.rules(), cd.rules()));
    place
        .add(RuleDecision::Allow, Some("ab"), "a.test")
        .unwrap();
    assert!(place.allowed(Some("ab"), "a.test") && !place.allowed(Some("cd"), "a.test"));
}

/// A rule of a repository concerns its sandboxes, and its denials hold for them.
#[test]
fn rules_of_a_repository() {
    let place = claimed();
    place.book.init("deny-all", now()).unwrap();
    let name = place.sandbox("ab");
    let record = any_example("ab");
    record
        .write(&place.state.sandbox(&name), Durability::Soon)
        .unwrap();
    let path = record.workspaces[0]
        .path
        .as_path()
        .to_str()
        .unwrap()
        .to_owned();
    let add = |decision, repo: &str, resources: &str| {
        let request = RuleRequest {
            decision,
            sandbox: None,
            repo: Some(repo.to_owned()),
            resources: vec![resources.to_owned()],
            for_seconds: None,
            allow_private: false,
        };
        place.book.add(&request, now())
    };
    let added = add(RuleDecision::Allow, &path, "a.test").unwrap().rules;
    let shown = format!("repo:{path}");
    assert_eq!((&added[0].scope, &added[0].applies_to), (&shown, &shown));
    add(RuleDecision::Allow, "/elsewhere", "b.test").unwrap();
    assert!(place.allowed(Some("ab"), "a.test") && !place.allowed(Some("ab"), "b.test"));
    // Neither for those of other directories nor for all.
    place.sandbox("cd");
    assert!(!place.allowed(Some("cd"), "a.test") && !place.allowed(None, "a.test"));
    place
        .add(RuleDecision::Allow, Some("ab"), "c.test")
        .unwrap();
    add(RuleDecision::Deny, &path, "c.test").unwrap();
    assert!(!place.allowed(Some("ab"), "c.test"));
    // A later sandbox of the same name and directory has them too.
    place.book.forget_sandbox(&name).unwrap();
    assert!(place.allowed(Some("ab"), "a.test"));
    let conflict = add(RuleDecision::Deny, &path, "a.test").unwrap_err();
    let hint = format!("sbx policy rm network --repo {path} --resource a.test");
    assert_eq!(conflict.hint().as_deref(), Some(hint.as_str()));
    let wrong_scope = removal(None, Some(&added[0].id), &[]);
    let error = place.book.remove(&wrong_scope, now()).unwrap_err();
    let hint = format!("sbx policy rm network --repo {path} --id {}", added[0].id);
    assert_eq!(error.hint().as_deref(), Some(hint.as_str()));
    let right = RuleRemoval {
        repo: Some(path.clone()),
        ..wrong_scope
    };
    place.book.remove(&right, now()).unwrap();
    assert!(!place.allowed(Some("ab"), "a.test"));
    for bad in ["", "relative", "/a/../b", "/a/", "/"] {
        let error = add(RuleDecision::Allow, bad, "a.test").unwrap_err();
        assert_eq!(error.code(), ErrorCode::BadRequest, "{bad}");
    }
    let both = RuleRemoval {
        sandbox: Some("ab".into()),
        ..right
    };
    let error = place.book.remove(&both, now()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::BadRequest);
    // A record that cannot be read could hide a denial.
    place.put(&place.state.sandbox(&name).record(), "nonsense");
    assert!(place.book.policy_for(&whose("ab")).is_err());
}

#[test]
fn a_rule_ends_by_itself() {
    let place = claimed();
    place.book.init("deny-all", now()).unwrap();
    let request = |for_seconds| RuleRequest {
        decision: RuleDecision::Allow,
        sandbox: None,
        repo: None,
        resources: vec!["a.test".into()],
        for_seconds: Some(for_seconds),
        allow_private: false,
    };
    let added = place.book.add(&request(600), now()).unwrap();
    let expires: Timestamp = "2026-01-29T10:25:25Z".parse().unwrap();
    assert_eq!(added.rules[0].expires_at, Some(expires));
    let rules = place.book.rules_for(&Scope::Global).unwrap();
    assert_eq!(shown(&rules[0], now()).status, "active");
    assert_eq!(shown(&rules[0], expires).status, "inactive");
    for bad in [0, u64::MAX] {
        let error = place.book.add(&request(bad), now()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::BadRequest);
    }
    // A day later it is not even shown.
    let later = expires + SignedDuration::from_hours(25);
    let mut other = request(600);
    other.resources = vec!["b.test".into()];
    place.book.add(&other, later).unwrap();
    let names: Vec<_> = place.book.load().unwrap().unwrap().rules;
    assert_eq!(names.len(), 1);
}

/// Clocks that a test sets: seconds that are added to the time of day, and seconds since boot.
#[derive(Clone, Default)]
struct Clocks(Arc<Mutex<(i64, u64)>>);

impl Clocks {
    fn set(&self, time_of_day: i64, since_boot: u64) {
        *lock(&self.0) = (time_of_day, since_boot);
    }

    /// A daemon that begins now.
    fn book(&self, place: &Place) -> PolicyBook {
        let clocks = self.clone();
        let clock = SteadyClock::new(move || {
            let (time_of_day, since_boot) = *lock(&clocks.0);
            ClockReading {
                time_of_day: now() + SignedDuration::from_secs(time_of_day),
                since_boot: Duration::from_secs(since_boot),
            }
        });
        PolicyBook::with_clock(&place.state, place.temp.path().join("default.json"), clock)
    }

    fn time_of_day(&self) -> Timestamp {
        now() + SignedDuration::from_secs(lock(&self.0).0)
    }

    fn allow(&self, book: &PolicyBook, resource: &str) {
        let request = RuleRequest {
            decision: RuleDecision::Allow,
            sandbox: None,
            repo: None,
            resources: vec![resource.into()],
            for_seconds: Some(600),
            allow_private: false,
        };
        book.add(&request, self.time_of_day()).unwrap();
    }
}

/// As the gate asks.
fn opens(book: &PolicyBook, target: &str) -> bool {
    let target = Target::parse_loose(target).unwrap();
    let policy = book.policy_for(&Scope::Global).unwrap();
    let now = book.clock().now();
    policy.decide(&target, Protocol::Web, now).allowed
}

#[test]
fn a_rule_lasts_as_long_as_was_said_whatever_the_clock_is_set_to() {
    let (place, clocks) = (claimed(), Clocks::default());
    let book = clocks.book(&place);
    book.init("deny-all", now()).unwrap();
    clocks.allow(&book, "a.test");
    assert_eq!(book.end_rules().unwrap(), Some(Duration::from_secs(600)));
    // A day ahead, and a year back.
    for time_of_day in [86_400, -31_536_000] {
        clocks.set(time_of_day, 599);
        assert!(opens(&book, "a.test"), "{time_of_day}");
        assert_eq!(book.end_rules().unwrap(), Some(Duration::from_secs(1)));
    }
    clocks.set(-31_536_000, 600);
    assert!(!opens(&book, "a.test"));
}

#[test]
fn what_has_ended_once_stays_ended() {
    let (place, clocks) = (claimed(), Clocks::default());
    let book = clocks.book(&place);
    book.init("deny-all", now()).unwrap();
    clocks.allow(&book, "a.test");
    clocks.set(600, 600);
    assert!(!opens(&book, "a.test"));
    assert_eq!(book.end_rules().unwrap(), None);
    // Back to before it was made: for this daemon, for the next one, and for people.
    clocks.set(-3600, 601);
    assert!(!opens(&book, "a.test"));
    let next = clocks.book(&place);
    assert!(!opens(&next, "a.test"));
    let rules = next.rules_for(&Scope::Global).unwrap();
    let status = shown(&rules[0], clocks.time_of_day()).status;
    assert_eq!(status, "inactive");
    // It does not stand in the way of a new one, which lasts its time.
    clocks.allow(&next, "a.test");
    assert!(opens(&next, "a.test"));
    clocks.set(-3600, 1201);
    assert!(!opens(&next, "a.test"));
}

#[test]
fn every_change_writes_down_what_has_ended() {
    let (place, clocks) = (claimed(), Clocks::default());
    let book = clocks.book(&place);
    book.init("deny-all", now()).unwrap();
    clocks.allow(&book, "a.test");
    clocks.set(600, 600);
    clocks.allow(&book, "b.test");
    clocks.set(0, 601);
    assert!(!opens(&clocks.book(&place), "a.test"));
    // A daemon that begins after the end has not seen it last, and a person who edits the file means what it says.
    clocks.set(1300, 700);
    let late = clocks.book(&place);
    late.end_rules().unwrap();
    clocks.set(0, 701);
    assert!(!opens(&late, "b.test"));
    let path = place.book.path();
    let text = fs::read_to_string(&path).unwrap();
    let edited = text.replace("\"expired\": true,", "");
    place.put(&path, &edited.replace("2026-01-29", "2026-01-30"));
    assert!(opens(&late, "b.test"));
}

#[test]
fn a_damaged_file_allows_nothing_and_can_be_reset() {
    let place = claimed();
    for text in ["", "{", r#"{"version":9}"#, r#"{"version":1,"novel":1}"#] {
        place.put(&place.book.path(), text);
        let error = place.book.rules_for(&Scope::Global).unwrap_err();
        let said = chain(&error);
        assert!(
            said.contains("policy.json") && said.contains("nothing is allowed"),
            "{said}"
        );
        assert!(error.hint().unwrap().contains("sbx policy reset"));
        assert!(place.book.policy_for(&whose("ab")).is_err());
        assert!(place.book.init("balanced", now()).is_err());
        assert!(place.add(RuleDecision::Deny, None, "a.test").is_err());
        assert!(place.book.forget_sandbox(&place.sandbox("ab")).is_err());
        assert_eq!(fs::read_to_string(place.book.path()).unwrap(), text);
    }
    place.book.reset().unwrap();
    assert!(place.book.rules_for(&Scope::Global).is_ok());
}

#[test]
fn a_sandbox_begins_clean_and_takes_its_rules_with_it() {
    let place = claimed();
    place.book.init("allow-all", now()).unwrap();
    let name = place.sandbox("ab");
    place
        .add(RuleDecision::Allow, Some("ab"), "left.test")
        .unwrap();
    let denied = parse_resources(&["a.test,b.test".into(), "c.test".into()]).unwrap();
    place
        .book
        .begin_sandbox(&name, denied, ProxyFile::Copied, now())
        .unwrap();
    let own = |rule: &Rule| rule.scope != Scope::Global;
    let rules: Vec<Rule> = place.book.rules_for(&whose("ab")).unwrap();
    let rules: Vec<Rule> = rules.into_iter().filter(own).collect();
    assert_eq!(rules.len(), 1);
    assert_eq!(
        (rules[0].name.as_str(), rules[0].resources.len()),
        ("deny-network", 3)
    );
    assert!(!place.allowed(Some("ab"), "c.test") && place.allowed(Some("ab"), "d.test"));
    place.book.forget_sandbox(&name).unwrap();
    assert!(place.allowed(Some("ab"), "c.test"));
    assert!(parse_resources(&["a.test".into(), "*".into()]).is_err());
}

#[test]
fn the_default_settings_are_copied_and_hand_edits_count() {
    let place = claimed();
    place.book.init("deny-all", now()).unwrap();
    let name = place.sandbox("ab");
    let default = place.temp.path().join("default.json");
    place.put(&default, r#"{"network":{"allowedDomains":["*.a.test"]}}"#);
    place
        .book
        .begin_sandbox(&name, Vec::new(), ProxyFile::Copied, now())
        .unwrap();
    assert!(place.allowed(Some("ab"), "x.y.a.test"));
    assert!(!place.allowed(None, "x.a.test"));
    let own = place.state.sandbox(&name).path().join("proxy-config.json");
    place.put(
        &own,
        r#"{"policy":"allow","network":{"blockedDomains":["b.test"]}}"#,
    );
    assert!(place.allowed(Some("ab"), "c.test") && !place.allowed(Some("ab"), "b.test"));
    let ids: Vec<String> = place
        .book
        .all_rules()
        .unwrap()
        .0
        .into_iter()
        .map(|r| r.id)
        .collect();
    assert!(
        ids.contains(&"proxy-config:ab:policy-allow".to_owned()),
        "{ids:?}"
    );
    place.put(&own, "nonsense");
    let error = place.book.rules_for(&whose("ab")).unwrap_err();
    assert!(chain(&error).contains("ab/proxy-config.json"));
    assert!(
        place.book.rules_for(&Scope::Global).is_ok() && place.book.rules_for(&whose("cd")).is_ok()
    );
    // Those of the others are listed, and it is named.
    let (rules, broken) = place.book.all_rules().unwrap();
    assert!(!rules.is_empty());
    assert!(chain(&broken.unwrap()).contains("ab/proxy-config.json"));
    assert!(place.book.unreadable().is_some());
    place.put(&default, "nonsense");
    let error = place
        .book
        .begin_sandbox(&name, Vec::new(), ProxyFile::Copied, now())
        .unwrap_err();
    assert!(error.hint().unwrap().contains("default.json"));
}

#[test]
fn older_settings_change_all_or_nothing() {
    let place = claimed();
    let name = place.sandbox("ab");
    assert_eq!(place.book.proxy_config(&name).unwrap(), None);
    let mut change = ProxyConfigChange {
        policy: Some("deny".into()),
        allow_host: vec!["*.a.test".into()],
        block_cidr: vec!["10.0.0.0/8".into()],
        ..ProxyConfigChange::default()
    };
    let config = place.book.change_proxy_config(&name, &change).unwrap();
    assert_eq!(
        place.book.proxy_config(&name).unwrap(),
        Some(config.clone())
    );
    for bad in ["a.test", "10.0.0.1/8", "x/y", "::1:443"] {
        change.block_cidr = vec!["10.0.0.0/9".into(), bad.into()];
        let error = place.book.change_proxy_config(&name, &change).unwrap_err();
        assert_eq!(error.code(), ErrorCode::BadRequest, "{bad}");
    }
    change.policy = Some("maybe".into());
    assert!(place.book.change_proxy_config(&name, &change).is_err());
    assert_eq!(place.book.proxy_config(&name).unwrap(), Some(config));
}

#[test]
fn the_default_settings_move_with_sbx_home() {
    let home = Path::new("/home/u");
    assert_eq!(
        default_proxy_config(home, None),
        Path::new("/home/u/.sandboxd/proxy-config.json")
    );
    assert_eq!(
        default_proxy_config(home, Some(Path::new("/s"))),
        Path::new("/s/proxy-config.json")
    );
}

#[test]
fn answers_say_what_would_change_them() {
    let place = claimed();
    place.book.init("deny-all", now()).unwrap();
    place
        .add(RuleDecision::Deny, None, "bad.test,worse.test")
        .unwrap();
    let ask = |sandbox, asked: &str| {
        let target = Target::parse_loose(asked).unwrap();
        let scope = scope(sandbox, None).unwrap();
        let policy = place.book.policy_for(&scope).unwrap();
        let verdict = policy.decide(&target, Protocol::Web, now());
        answer(&Question {
            scope: &scope,
            asked,
            target: &target,
            verdict: &verdict,
            other: None,
            narrowed: place.book.narrowed(&scope, now()).unwrap().as_deref(),
            addresses: &[],
        })
    };
    let implicit = serde_json::to_value(ask(Some("ab"), "https://a.test/v1")).unwrap();
    assert_eq!(
        implicit,
        serde_json::json!({
            "action": "net:connect:tcp", "allowed": false, "context": "sandbox:ab",
            "deny_kind": "implicit", "governance": {"active": false},
            "reason": "No matching allow rule (default deny)", "resource_type": "net:domain",
            "resource_value": "a.test:443", "target": "https://a.test/v1", "type": "network",
            "addresses": [], "hint": "sbx policy allow network --sandbox ab a.test:443",
        })
    );
    let explicit = ask(None, "bad.test");
    assert_eq!(explicit.deny_kind.as_deref(), Some("explicit"));
    let hint = "sbx policy rm network --resource bad.test && sbx policy allow network bad.test:443";
    assert_eq!(explicit.hint.as_deref(), Some(hint));
    let host = ask(Some("ab"), "host.docker.internal:8080");
    assert_eq!(host.resource_value, "localhost:8080");
    let hint = "sbx policy allow network --sandbox ab localhost:8080";
    assert_eq!(host.hint.as_deref(), Some(hint));
}

#[test]
fn older_settings_that_take_something_away_are_named() {
    let place = claimed();
    place.book.init("allow-all", now()).unwrap();
    let name = place.sandbox("ab");
    assert_eq!(place.book.narrowed(&whose("ab"), now()).unwrap(), None);
    let change = ProxyConfigChange {
        policy: Some("deny".into()),
        ..ProxyConfigChange::default()
    };
    place.book.change_proxy_config(&name, &change).unwrap();
    let said = place.book.narrowed(&whose("ab"), now()).unwrap().unwrap();
    for word in ["vm/ab/proxy-config.json", "`deny`", "`default-allow-all`"] {
        assert!(said.contains(word), "{said}");
    }
    let rules = place.book.rules_for(&whose("ab")).unwrap();
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0].id, "proxy-config:ab:policy-deny");
    let target = Target::parse_loose("a.test").unwrap();
    let policy = place.book.policy_for(&whose("ab")).unwrap();
    let answer = answer(&Question {
        scope: &whose("ab"),
        asked: "a.test",
        target: &target,
        verdict: &policy.decide(&target, Protocol::Web, now()),
        other: None,
        narrowed: Some(&said),
        addresses: &[],
    });
    assert!(answer.reason.unwrap().ends_with(&said));
    assert_eq!(place.book.narrowed(&Scope::Global, now()).unwrap(), None);
    // A rule that has ended opens nothing that could be taken away.
    let request = RuleRequest {
        sandbox: Some("ab".into()),
        repo: None,
        decision: RuleDecision::Allow,
        resources: vec!["**:443".into()],
        for_seconds: Some(60),
        allow_private: false,
    };
    let added = place.book.add(&request, now()).unwrap().rules;
    let later = now() + SignedDuration::from_secs(61);
    let said = |at| place.book.narrowed(&whose("ab"), at).unwrap().unwrap();
    assert!(said(now()).contains(&added[0].name), "{}", said(now()));
    assert!(!said(later).contains(&added[0].name), "{}", said(later));
}

/// A reader must not wait for the writer of a pipe, nor believe what it cannot watch.
#[test]
fn rules_are_read_from_a_plain_file_only() {
    let place = claimed();
    let path = place.book.path();
    place.put(&path.with_extension("other"), "{}");
    type Make = fn(&Path) -> io::Result<()>;
    let cases: [(Make, &str); 3] = [
        (
            |path| {
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                rustix::fs::mkfifoat(rustix::fs::CWD, path, mode).map_err(Into::into)
            },
            "not a regular file",
        ),
        (|path| fs::create_dir(path), "not a regular file"),
        (
            |path| std::os::unix::fs::symlink(path.with_extension("other"), path),
            "it is a symbolic link",
        ),
    ];
    for (make, words) in cases {
        make(&path).unwrap();
        let error = place.book.load().unwrap_err();
        let said = chain(&error);
        assert!(said.contains(words), "{said}");
        fs::remove_file(&path)
            .or_else(|_| fs::remove_dir(&path))
            .unwrap();
    }
    assert!(place.book.load().unwrap().is_none());
}

#[test]
fn what_an_interrupted_write_left_is_swept() {
    let place = claimed();
    place.book.init("deny-all", now()).unwrap();
    let root = place.book.path().parent().unwrap().to_owned();
    let left = root.join(".policy.json.123.4.tmp");
    let other = root.join(".else.tmp");
    for file in [&left, &other] {
        place.put(file, "");
    }
    place.book.sweep();
    assert!(!left.exists() && other.exists());
    assert!(place.book.load().unwrap().is_some());
}

#[test]
fn allows_that_would_open_nothing_are_refused() {
    let place = claimed();
    for (resource, meant) in [
        ("localhost", Some("write `localhost:PORT`")),
        ("x.localhost:80", Some("write `localhost:80`")),
        ("host.docker.internal:8001", Some("write `localhost:8001`")),
        ("gateway.docker.internal:80", None),
    ] {
        let error = place.add(RuleDecision::Allow, None, resource).unwrap_err();
        assert_eq!(error.code(), ErrorCode::BadRequest, "{resource}");
        assert_eq!(error.hint().as_deref(), meant, "{resource}");
        // Beside what others allow, a denial says something.
        place.add(RuleDecision::Deny, None, resource).unwrap();
    }
    place
        .add(RuleDecision::Allow, None, "localhost:8001")
        .unwrap();
}
