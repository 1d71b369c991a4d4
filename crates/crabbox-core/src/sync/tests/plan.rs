use std::fs;

use super::*;
use crate::sync::plan::dirty_delta;

const LIMITS: Limits = Limits {
    warn_files: 3,
    warn_bytes: 0,
    fail_files: 100,
    fail_bytes: 1 << 30,
};

fn plan_of(checkout: &Checkout, limits: Limits, top: usize) -> Plan {
    let manifest = listed(checkout);
    let delta = dirty_delta(&manifest, Some(&checkout.discover())).unwrap();
    Plan::new(&manifest, delta, limits, Allow::UpToLimits, top)
}

fn some_tree() -> Option<Checkout> {
    let checkout = Checkout::new()?;
    checkout.write("src/a/b/c", &"x".repeat(2048));
    checkout.write("src/a/d", "12345");
    checkout.write("dist/e", "1");
    checkout.write("f", "22");
    checkout.write("gone", "");
    checkout.commit();
    checkout.write("src/a/d", "1234567");
    checkout.write("staged", "333");
    checkout.git(&["add", "staged"]);
    checkout.write("new\nname", "4444");
    fs::remove_file(checkout.root.join("gone")).unwrap();
    Some(checkout)
}

#[test]
fn for_programs() {
    let Some(checkout) = some_tree() else {
        return;
    };
    let plan = serde_json::to_value(plan_of(&checkout, LIMITS, 2)).unwrap();
    let expected = serde_json::json!({
        "candidate": { "files": 6, "bytes": 2065, "humanBytes": "2.0 KiB" },
        "dirtyDelta": { "files": 4, "bytes": 14, "humanBytes": "14 B" },
        "deletedTrackedPaths": 1,
        "protectedTrackedFiles": {
            "count": 1,
            "examples": [{ "path": "dist/e", "pattern": "dist" }],
        },
        "guardrail": {
            "scope": "candidate",
            "files": 6,
            "bytes": 2065,
            "humanBytes": "2.0 KiB",
            "limits": { "warnFiles": 3, "warnBytes": 0, "failFiles": 100, "failBytes": 1 << 30 },
            "allowLarge": false,
            "status": "warning",
            "reasons": [{ "status": "warning", "metric": "files", "actual": 6, "limit": 3 }],
        },
        "topFiles": [
            { "path": "src/a/b/c", "bytes": 2048, "humanBytes": "2.0 KiB" },
            { "path": "src/a/d", "bytes": 7, "humanBytes": "7 B" },
        ],
        "topDirs": [
            { "path": "src/a", "bytes": 2055, "humanBytes": "2.0 KiB" },
            { "path": ".", "bytes": 9, "humanBytes": "9 B" },
        ],
    });
    assert_eq!(plan, expected);
}

#[test]
fn for_people() {
    let Some(checkout) = some_tree() else {
        return;
    };
    insta::assert_snapshot!(plan_of(&checkout, LIMITS, 20).to_text(), @r"
    sync candidate: 6 files, 2.0 KiB
    dirty delta: 4 files, 14 B
    deleted tracked paths: 1
    warning: large sync candidate: 6 files >= warning threshold 3
    top files:
      2.0 KiB    src/a/b/c
      7 B        src/a/d
      4 B        new\nname
      3 B        staged
      2 B        f
      1 B        dist/e
    top dirs:
      2.0 KiB    src/a
      9 B        .
      1 B        dist
    ");
    let small = Limits {
        fail_files: 6,
        ..LIMITS
    };
    insta::assert_snapshot!(plan_of(&checkout, small, 1).to_text(), @r"
    sync candidate: 6 files, 2.0 KiB
    dirty delta: 4 files, 14 B
    deleted tracked paths: 1
    sync top dirs: .:3,src/a:2,dist:1
    sync candidate too large: 6 files >= limit 6; use --force-sync-large or CRABBOX_SYNC_ALLOW_LARGE=1
    top files:
      2.0 KiB    src/a/b/c
    top dirs:
      2.0 KiB    src/a
    ");
}

#[test]
fn without_a_repository_everything_is_new() {
    let dir = tempfile::tempdir().unwrap();
    fs::File::create(dir.path().join("a")).unwrap();
    let rules = Rules::new(&[], &[], b"").unwrap();
    let manifest = list(dir.path(), None, Source::Walk, &rules).unwrap();
    assert_eq!(dirty_delta(&manifest, None).unwrap().files, 1);
}

#[test]
fn a_repository_without_commits_has_a_plan() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    checkout.write("a", "1");
    checkout.git(&["add", "a"]);
    checkout.write("b", "1");
    let plan = plan_of(&checkout, Limits::default(), 20);
    assert_eq!(plan.dirty_delta.files, 2);
}
