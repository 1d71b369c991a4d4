//! `--cache` and `crabbox cache`, as far as a stand-in for the engine can show it.

use crate::world::World;

const RUN: &[&str] = &["run", "--", "true"];

/// Whether the sandbox of a run was created with a build cache.
fn is_asked_for(world: &World, args: &[&str]) -> bool {
    world.forget_calls();
    world.crabbox(args).exits(0);
    world.call("create").argv.contains(&"--cache".to_owned())
}

#[test]
fn a_build_cache_is_the_users_to_ask_for() {
    let world = World::of_our_engine();
    assert!(!is_asked_for(&world, RUN), "off by default");
    assert!(is_asked_for(&world, &["run", "--cache", "--", "true"]));
    world.user_config("cache: true\n");
    assert!(is_asked_for(&world, RUN));
    assert!(!is_asked_for(
        &world,
        &["run", "--cache=false", "--", "true"]
    ));
    // One line says it, and where it is to be seen.
    let ran = world.crabbox(RUN).exits(0);
    let lines = ran.err.lines().filter(|line| line.contains("build cache"));
    assert_eq!(lines.count(), 1, "{}", ran.err);
    ran.says("crabbox cache clear");
    // Also for a lease that has it, which cannot be given one later.
    world.crabbox(&["warmup", "--slug", "kept"]).exits(0);
    let again = ["run", "--id", "kept", "--", "true"];
    world.crabbox(&again).exits(0).says("uses the build cache");
    let later = ["run", "--id", "kept", "--cache", "--", "true"];
    let ran = world.crabbox(&later).exits(2);
    assert!(ran.cause().starts_with("--cache only applies"));
}

#[test]
fn a_repository_never_asks_for_a_build_cache() {
    let world = World::of_our_engine();
    for value in ["true", "false"] {
        world.repo_config(&format!("cache: {value}\n"));
        world.forget_calls();
        let ran = world.crabbox(RUN).exits(2);
        assert!(
            ran.cause().contains("a repository may not set `cache`"),
            "{}",
            ran.err
        );
        assert!(!ran.err.contains("crabbox trust"), "{}", ran.err);
        assert_eq!(world.calls().len(), 0);
    }
    world.crabbox(&["trust"]);
    world
        .crabbox(RUN)
        .exits(2)
        .says("a repository may not set `cache`");
    // The original's section of that name means nothing here.
    world.repo_config("cache:\n  pnpm: true\n");
    assert!(!is_asked_for(&world, RUN));
    let shown = world.crabbox(&["config", "show", "--json"]).exits(0).json();
    assert_eq!(shown["ignored"][0]["key"], "cache");
    assert_eq!(shown["cache"], false);
}

#[test]
fn a_clone_has_no_build_cache() {
    let world = World::of_our_engine();
    let clone = ["run", "--docker-sandbox-clone", "--cache", "--", "true"];
    let ran = world.crabbox(&clone).exits(2);
    assert!(ran.cause().contains("clone mode"), "{}", ran.err);
    world.user_config("cache: true\n");
    world.repo_config("dockerSandbox:\n  clone: true\n");
    let ran = world.crabbox(RUN).exits(2);
    assert!(ran.cause().contains("clone mode"), "{}", ran.err);
    assert_eq!(world.calls().len(), 0);
}

#[test]
fn another_engine_or_provider_has_no_build_cache() {
    let world = World::new();
    let ran = world.crabbox(&["run", "--cache", "--", "true"]).exits(2);
    let words = format!(
        "sbx at {} keeps no build cache: only the bundled engine does",
        world.path("bin/sbx").display()
    );
    assert_eq!(ran.cause(), words);
    for args in [&["cache", "ls"][..], &["cache", "clear"]] {
        assert_eq!(world.crabbox(args).exits(2).cause(), words);
    }
    world.is_clean();
    let other = ["run", "--provider", "opensandbox", "--cache", "--", "true"];
    let ran = world.crabbox(&other).exits(2);
    assert_eq!(
        ran.cause(),
        "provider=opensandbox does not support --cache: it keeps no build cache"
    );
    let help = world.crabbox(&["run", "--provider", "opensandbox", "--help"]);
    assert!(!help.ok().contains("--cache"));
}
