//! `crabbox sync-plan`: what the settings and flags make of it.

use std::fs;

use serde_json::{Value, json};

use crate::world::{World, write};

/// A repository with `README` and three files more, of 1, 2 and 3 bytes.
fn world() -> World {
    let world = World::new();
    for (name, text) in [("src/a.rs", "1"), ("docs/b.md", "12"), ("big.bin", "123")] {
        write(&world.repo().join(name), text);
    }
    world
}

fn plan(world: &World, env: &[(&str, &str)], flags: &[&str]) -> Value {
    let args = [&["sync-plan", "--json"], flags].concat();
    world.with_env(env, &args).exits(0).json()
}

fn paths(sizes: &Value) -> Vec<&str> {
    let sizes = sizes.as_array().unwrap().iter();
    sizes.map(|size| size["path"].as_str().unwrap()).collect()
}

#[test]
fn the_limits_are_those_of_the_settings() {
    let world = world();
    let guardrail = plan(&world, &[], &[])["guardrail"].take();
    assert_eq!(
        guardrail["limits"],
        json!({
            "warnFiles": 50_000, "warnBytes": 5_368_709_120_u64,
            "failFiles": 150_000, "failBytes": 21_474_836_480_u64,
        })
    );
    assert_eq!(guardrail["status"], "ok");
    for (key, variable, limit, status, metric) in [
        ("warnFiles", "WARN_FILES", 4, "warning", "files"),
        ("warnBytes", "WARN_BYTES", 12, "warning", "bytes"),
        ("failFiles", "FAIL_FILES", 4, "failed", "files"),
        ("failBytes", "FAIL_BYTES", 12, "failed", "bytes"),
    ] {
        let checked = |env: &[(&str, &str)]| {
            let mut guardrail = plan(&world, env, &[])["guardrail"].take();
            assert_eq!(guardrail["limits"][key], limit, "{key}");
            let reason =
                json!({"status": status, "metric": metric, "actual": limit, "limit": limit});
            assert_eq!(guardrail["reasons"], json!([reason]), "{key}");
            guardrail["status"].take()
        };
        world.user_config(&format!("sync:\n  {key}: {limit}\n"));
        assert_eq!(checked(&[]), status, "{key}");
        world.user_config("");
        let variable = format!("CRABBOX_SYNC_{variable}");
        let env = [(variable.as_str(), &*limit.to_string())];
        assert_eq!(checked(&env), status, "{key}");
    }
}

#[test]
fn what_is_too_large_is_allowed_in_three_ways() {
    let world = world();
    let refused = "sync candidate too large: 4 files >= limit 2; use --force-sync-large or CRABBOX_SYNC_ALLOW_LARGE=1";
    let check = |env: &[(&str, &str)], flags: &[&str], allowed: bool| {
        let told = plan(&world, env, flags);
        assert_eq!(told["guardrail"]["allowLarge"], allowed);
        let status = if allowed { "ok" } else { "failed" };
        assert_eq!(told["guardrail"]["status"], status);
        let text = world.with_env(env, &[&["sync-plan"], flags].concat()).ok();
        assert_eq!(text.contains(refused), !allowed, "{text}");
    };
    world.user_config("sync:\n  failFiles: 2\n");
    check(&[], &[], false);
    check(&[], &["--force-sync-large"], true);
    check(&[("CRABBOX_SYNC_ALLOW_LARGE", "1")], &[], true);
    check(
        &[("CRABBOX_SYNC_ALLOW_LARGE", "1")],
        &["--force-sync-large=false"],
        false,
    );
    world.user_config("sync:\n  failFiles: 2\n  allowLarge: true\n");
    check(&[], &[], true);
}

#[test]
fn excludes_and_includes_of_all_files_count() {
    let world = world();
    world.user_config("sync:\n  exclude: ['*.bin']\n");
    world.repo_config("sync:\n  exclude: [docs]\n");
    let told = plan(&world, &[], &[]);
    assert_eq!(
        paths(&told["topFiles"]),
        [".crabbox.yaml", "README", "src/a.rs"]
    );
    world.repo_config("sync:\n  include: [src, docs, big.bin]\n");
    let told = plan(&world, &[], &[]);
    assert_eq!(paths(&told["topFiles"]), ["docs/b.md", "src/a.rs"]);
}

#[test]
fn the_twenty_largest_are_named_or_as_many_as_are_wanted() {
    let world = world();
    for number in 0..25 {
        write(
            &world.repo().join(format!("d{number:02}/x")),
            "x".repeat(100 + number),
        );
    }
    let told = plan(&world, &[], &[]);
    assert_eq!(told["candidate"]["files"], 29);
    assert_eq!(paths(&told["topFiles"]).len(), 20);
    assert_eq!(paths(&told["topDirs"]).len(), 20);
    let told = plan(&world, &[], &["--limit", "2"]);
    assert_eq!(paths(&told["topFiles"]), ["d24/x", "d23/x"]);
    assert_eq!(paths(&told["topDirs"]), ["d24", "d23"]);
    let told = plan(&world, &[], &["--limit=0"]);
    assert_eq!(paths(&told["topFiles"]), [""; 0]);
}

#[test]
fn a_directory_without_a_repository_is_listed_on_request() {
    let world = World::new();
    let plain = world.path("plain");
    fs::create_dir_all(&plain).unwrap();
    for (name, text) in [
        ("a.txt", "12345"),
        ("sub/b.txt", "123"),
        ("node_modules/c", "no"),
    ] {
        write(&plain.join(name), text);
    }
    write(&plain.join(".crabboxignore"), "sub\n");
    world.within(&plain, &["sync-plan", "--json"]).exits(6);
    let told = world.within(&plain, &["sync-plan", "--json", "--no-git"]);
    let told = told.exits(0).json();
    assert_eq!(paths(&told["topFiles"]), ["a.txt", ".crabboxignore"]);
    assert_eq!(
        told["dirtyDelta"], told["candidate"],
        "nothing is known of it"
    );
    assert_eq!(world.log().len(), 0);
}
