//! `sbx diagnose`: its shape, and what it says of a state that cannot be used.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Home, write};

pub(super) const TESTS: &[(&str, fn())] = &[
    ("diagnose_has_its_shape", diagnose_has_its_shape),
    (
        "diagnose_explains_a_state_that_cannot_be_used",
        diagnose_explains_a_state_that_cannot_be_used,
    ),
];

fn diagnose_has_its_shape() {
    let home = Home::new();
    let said = home.line("diagnose --output json");
    let value: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(value["version"], "1.0");
    let checks = value["checks"].as_array().unwrap();
    // As printed, and in this order: what else is built with it has no say in that.
    let printed = said.out.lines().filter_map(|line| {
        let field = line.strip_prefix("      \"")?;
        field.split_once("\":").map(|(name, _)| name)
    });
    let fields = ["detail", "hint", "message", "name", "status"];
    assert_eq!(printed.collect::<Vec<_>>(), fields.repeat(checks.len()));
    let mut counted =
        std::collections::BTreeMap::from(["pass", "warn", "fail", "skip"].map(|s| (s, 0)));
    for check in checks {
        *counted.get_mut(check["status"].as_str().unwrap()).unwrap() += 1;
        if check["status"] == "fail" {
            assert_ne!(check["hint"], "", "{check}");
        }
    }
    assert_eq!(value["summary"], serde_json::json!(counted));
    assert_eq!(said.code, i32::from(counted["fail"] > 0));
    let text = home.line("diagnose").out;
    for group in ["Installation", "Platform", "Storage", "Connection"] {
        assert!(text.contains(group));
    }
    assert!(text.trim_end().ends_with("skipped"), "{text}");
    assert!(
        home.line("diagnose -o github-issue")
            .out
            .starts_with("### sbx ")
    );
}

fn diagnose_explains_a_state_that_cannot_be_used() {
    let home = Home::new();
    let file = home.path().join("file");
    write(&file, "");
    let broken = home.path().join("broken");
    fs::create_dir(&broken).unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o700)).unwrap();
    write(&broken.join("settings.json"), "{bad");
    let all = home.line("diagnose --json").out;
    let count = |text: &str| text.matches("\"name\": ").count();
    for (state, name, remedy) in [
        (broken.as_path(), "Settings", "settings.json', or remove it"),
        (&file, "Storage directories", "set SBX_HOME"),
        (&file.join("below"), "Storage directories", "set SBX_HOME"),
        (
            Path::new("relative"),
            "Storage directories",
            "set SBX_HOME to an absolute path",
        ),
    ] {
        let diagnose = |form: &str| {
            let mut command = home.command(["diagnose", form]);
            let output = command.env("SBX_HOME", state).output().unwrap();
            assert_eq!(
                (output.status.code(), output.stderr.as_slice()),
                (Some(1), &b""[..]),
                "{state:?}"
            );
            String::from_utf8(output.stdout).unwrap()
        };
        let json = diagnose("--json");
        assert_eq!(count(&json), count(&all), "{json}");
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let failed: Vec<_> = value["checks"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|check| check["status"] == "fail" && check["name"] == name)
            .collect();
        assert_eq!(failed.len(), 1, "{json}");
        assert!(
            failed[0]["hint"].as_str().unwrap().contains(remedy),
            "{json}"
        );
        let text = diagnose("--output=github-issue");
        assert!(text.contains(&format!("| {name} | fail |")), "{text}");
    }
    // Looking has changed nothing.
    assert_eq!(fs::read_dir(&broken).unwrap().count(), 1);
}
