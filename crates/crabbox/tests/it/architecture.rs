//! The edges between crates that `docs/architecture.md` states.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
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

/// Comments and tests may give a provider as an example.
#[test]
fn the_sources_of_the_core_name_no_provider() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crabbox-core/src");
    let names: Vec<String> = crabbox_providers::specs()
        .map(|spec| letters(spec.name))
        .collect();
    assert!(names.len() >= 3, "{names:?}");
    let mut files = Vec::new();
    sources(&core, &mut files);
    assert!(files.len() > 50);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in without_tests(&text) {
            let line = letters(line.split("// ").next().unwrap_or_default());
            let named = names.iter().find(|name| line.contains(*name));
            assert_eq!(named, None, "{}:{number}", file.display());
        }
    }
}

/// All spellings of a name are one: `agent-sandbox`, `agent_sandbox`, `agentSandbox`, `AgentSandbox`.
fn letters(text: &str) -> String {
    let letters = text.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Without modules of tests.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "tests" {
                sources(&path, found);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// The numbered lines, without comments of their own line and without items behind `#[cfg(test)]`. Relies on the layout of
/// rustfmt: an item ends with `;`, or with a brace at its own indentation.
fn without_tests(text: &str) -> Vec<(usize, &str)> {
    let mut kept = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let code = line.trim_start();
        if code.starts_with("#[cfg(test)]") {
            let indent = line.len() - code.len();
            for (_, item) in lines.by_ref() {
                let code = item.trim_start();
                let ends = code.starts_with('}') || !code.starts_with("#[") && code.ends_with(';');
                if ends && item.len() - code.len() == indent {
                    break;
                }
            }
        } else if !code.starts_with("//") {
            kept.push((index + 1, line));
        }
    }
    kept
}

#[test]
fn items_behind_cfg_test_are_left_out_and_what_follows_is_not() {
    let text = "a\n#[cfg(test)]\nmod tests;\nb\n    #[cfg(test)]\n    #[must_use]\n    fn f() {\n        g();\n    }\n    // c\nd";
    let kept: Vec<&str> = without_tests(text).iter().map(|(_, line)| *line).collect();
    assert_eq!(kept, ["a", "b", "d"]);
}

/// The engine's crates that each of them reaches. A new edge belongs here and in the document.
#[test]
fn the_engines_crates_depend_on_these_only() {
    let edges: [(&str, &[&str]); 10] = [
        ("sbx-sys", &[]),
        ("sbx-proto", &[]),
        ("sbx-copy", &[]),
        ("sbx-ssh", &["sbx-proto"]),
        ("sbx-sftp", &["sbx-proto"]),
        ("sbx-policy", &["sbx-proto"]),
        ("sbx-api", &["sbx-proto"]),
        (
            "sbx-init",
            &["sbx-copy", "sbx-proto", "sbx-sftp", "sbx-sys"],
        ),
        ("sbx-proxy", &["sbx-policy", "sbx-proto", "sbx-sys"]),
        (
            "sbx-engine",
            &["sbx-api", "sbx-policy", "sbx-proto", "sbx-sys"],
        ),
    ];
    let workspace = Workspace::read();
    for (name, expected) in edges {
        workspace.declared(name);
        let reached = workspace.reached(name);
        let engine: Vec<&str> = reached
            .iter()
            .map(String::as_str)
            .filter(|other| is_engine(other))
            .collect();
        assert_eq!(engine, expected, "{name}");
    }
    let listed = |name: &&String| edges.iter().any(|(known, _)| known == name);
    let programs: Vec<&String> = workspace
        .declared
        .keys()
        .filter(|name| is_engine(name) && !listed(name))
        .collect();
    assert_eq!(programs, ["sandboxd", "sbx"]);
    assert!(!workspace.reached("sandboxd").contains("sbx"));
}

#[test]
fn contracts_and_policy_do_no_io() {
    let workspace = Workspace::read();
    for name in [
        "sbx-proto",
        "sbx-policy",
        "sbx-api",
        "sbx-ssh",
        "execd-proto",
    ] {
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
