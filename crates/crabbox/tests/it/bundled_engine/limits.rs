//! CPUs and memory of a sandbox of our engine.

use super::Own;
use crate::world::{Ran, blocked};

#[test]
fn cpus_and_memory_reach_the_engine() {
    let Some(own) = Own::new() else { return };
    let limits = [
        "--docker-sandbox-cpus",
        "1",
        "--docker-sandbox-memory",
        "512m",
    ];
    let made = own.crabbox(&[&["warmup", "--slug", "small"], &limits[..]].concat());
    if made.code != 0 && made.err.contains("cannot enforce") {
        // An ordinary user without a control group of its own: it is told why.
        made.says("hint: run sbx as root");
        blocked("no control group can be used here");
        return own.is_clean();
    }
    made.exits(0);
    let lease = own.world.claim_names().remove(0);
    let sandbox = lease.trim_start_matches("dsbx_");
    let shown = own.sbx(&["inspect", "--json", sandbox]).exits(0).json();
    let shown = shown.get(0).unwrap_or(&shown);
    assert_eq!(shown["limits"]["cpu_millis"], 1000, "{shown}");
    assert_eq!(shown["limits"]["memory_bytes"], 512 << 20, "{shown}");
    own.crabbox(&["stop", "small"]).exits(0);
    own.is_clean();
}

/// More than any machine has: what cannot be enforced wherever this runs.
const TOO_MANY: &str = "100000";

#[test]
fn limits_of_a_repository_are_best_effort_with_one_warning() {
    let Some(own) = Own::new() else { return };
    let yaml = format!("dockerSandbox:\n  cpus: {TOO_MANY}\n");
    own.world.repo_config(&yaml);
    let ran = own.crabbox(&["run", "--", "true"]).exits(0);
    let told = |line: &&str| line.starts_with("warning: ") && line.contains("does not apply");
    let warnings: Vec<&str> = ran.err.lines().filter(told).collect();
    assert_eq!(warnings.len(), 1, "{}", ran.err);
    assert!(warnings[0].contains("CPUs"), "{}", ran.err);
    own.is_clean();
}

#[test]
fn limits_of_the_user_are_enforced_or_refused() {
    let Some(own) = Own::new() else { return };
    let refused = |ran: Ran| {
        assert_ne!(ran.code, 0, "{}", ran.err);
        assert!(!ran.err.contains("does not apply"), "{}", ran.err);
        own.is_clean();
    };
    refused(own.crabbox(&["run", "--docker-sandbox-cpus", TOO_MANY, "--", "true"]));
    let mut by_variable = own.command(&["run", "--", "true"]);
    by_variable.env("CRABBOX_DOCKER_SANDBOX_CPUS", TOO_MANY);
    refused(Ran::from(by_variable.output().unwrap()));
    // Also where the repository says the same: the user's word is the stronger one.
    let yaml = format!("dockerSandbox:\n  cpus: {TOO_MANY}\n");
    own.world.repo_config(&yaml);
    refused(own.crabbox(&["run", "--docker-sandbox-cpus", TOO_MANY, "--", "true"]));
    std::fs::remove_file(own.world.repo().join(".crabbox.yaml")).unwrap();
    own.world.user_config(&yaml);
    refused(own.crabbox(&["run", "--", "true"]));
}
