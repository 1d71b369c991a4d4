//! The edges between crates that `docs/architecture.md` states.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Crates of the workspace with all that they depend on, directly (`declared`) and through other crates of it (`reached`).
struct Workspace {
    declared: BTreeMap<String, BTreeSet<String>>,
}

impl Workspace {
    fn read() -> Self {
        let said = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(said.status.success(), "{said:?}");
        let metadata: Value = serde_json::from_slice(&said.stdout).unwrap();
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let mut declared = BTreeMap::new();
        for package in metadata["packages"].as_array().unwrap() {
            let dependencies = package["dependencies"].as_array().unwrap().iter();
            // Tests may use anything.
            let normal = dependencies.filter(|dependency| dependency["kind"] != "dev");
            let names = normal.map(|dependency| text(dependency, "name")).collect();
            declared.insert(text(package, "name"), names);
        }
        Self { declared }
    }

    fn declared(&self, name: &str) -> &BTreeSet<String> {
        self.declared
            .get(name)
            .unwrap_or_else(|| panic!("no crate {name}"))
    }

    fn reached(&self, name: &str) -> BTreeSet<String> {
        let mut reached = BTreeSet::new();
        let mut open = vec![name.to_owned()];
        while let Some(next) = open.pop() {
            for dependency in self.declared.get(&next).into_iter().flatten() {
                if reached.insert(dependency.clone()) {
                    open.push(dependency.clone());
                }
            }
        }
        reached
    }
}

fn is_engine(name: &str) -> bool {
    name == "sbx" || name == "sandboxd" || name.starts_with("sbx-")
}

#[test]
fn the_halves_share_no_code() {
    let workspace = Workspace::read();
    for name in workspace.declared.keys() {
        let reached = workspace.reached(name);
        if name.starts_with("crabbox") {
            assert!(
                !reached.iter().any(|other| is_engine(other)),
                "{name}: {reached:?}"
            );
        }
        if is_engine(name) {
            let crabbox = reached.iter().any(|other| other.starts_with("crabbox"));
            assert!(!crabbox, "{name}: {reached:?}");
        }
    }
}

#[test]
fn the_core_knows_no_provider() {
    let workspace = Workspace::read();
    let core = workspace.reached("crabbox-core");
    assert!(
        !core.iter().any(|name| name.starts_with("crabbox")),
        "{core:?}"
    );
    let providers = workspace.reached("crabbox-providers");
    assert!(providers.contains("crabbox-core") && !providers.contains("crabbox"));
}

#[test]
fn contracts_and_policy_do_no_io() {
    let workspace = Workspace::read();
    for name in ["sbx-proto", "sbx-policy", "sbx-api", "sbx-ssh"] {
        let reached = workspace.reached(name);
        for io in [
            "tokio",
            "rustix",
            "libc",
            "sbx-sys",
            "axum",
            "tracing-subscriber",
        ] {
            assert!(!reached.contains(io), "{name} uses {io}");
        }
    }
}

#[test]
fn only_the_daemons_and_the_http_provider_use_tokio() {
    let workspace = Workspace::read();
    for name in workspace.declared.keys() {
        let daemon = matches!(name.as_str(), "sandboxd" | "sbx-proxy" | "execd");
        let may = daemon || name == "crabbox-providers" || name.contains("fuzz");
        let uses = workspace
            .declared(name)
            .iter()
            .any(|other| other.starts_with("tokio"));
        assert!(may || !uses, "{name} uses tokio");
    }
    for name in ["sbx-engine", "sbx-init"] {
        assert!(!workspace.reached(name).contains("tokio"), "{name}");
    }
}

#[test]
fn execd_stands_beside_both_halves() {
    let workspace = Workspace::read();
    for name in ["execd", "execd-proto"] {
        let reached = workspace.reached(name);
        let other = |name: &String| is_engine(name) || name.starts_with("crabbox");
        assert!(!reached.iter().any(other), "{name}: {reached:?}");
    }
    let protocol = workspace.declared("execd-proto");
    let expected = ["serde", "serde_json"].map(str::to_owned);
    assert!(protocol.iter().eq(&expected), "{protocol:?}");
}

#[test]
fn the_engine_does_not_know_its_routes() {
    let workspace = Workspace::read();
    for name in [
        "sbx-engine",
        "sbx-init",
        "sbx-proxy",
        "sbx-policy",
        "sbx-proto",
        "sbx-api",
        "sbx-sftp",
        "sbx-ssh",
        "sbx-sys",
    ] {
        let reached = workspace.reached(name);
        assert!(
            !reached.contains("sandboxd") && !reached.contains("sbx"),
            "{name}"
        );
    }
    let sys = workspace.reached("sbx-sys");
    assert!(!sys.iter().any(|name| is_engine(name)), "{sys:?}");
}

/// Every crate takes the workspace's lints, which forbid unsafe code; only `sbx-sys` has lints of its own.
#[test]
fn only_one_crate_has_unsafe_code() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = std::fs::read_to_string(crates.join("../Cargo.toml")).unwrap();
    assert!(root.contains("unsafe_code = \"forbid\""));
    for entry in std::fs::read_dir(crates).unwrap() {
        let entry = entry.unwrap();
        let Ok(manifest) = std::fs::read_to_string(entry.path().join("Cargo.toml")) else {
            continue;
        };
        let name = entry.file_name().to_string_lossy().into_owned();
        let strict = manifest.contains("[lints]\nworkspace = true");
        assert_eq!(strict, name != "sbx-sys", "{name}");
    }
}
