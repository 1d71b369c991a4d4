//! Checks of the security documents: every test that the table of attacks names exists, and no table cell is too long.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use libtest_mimic::Trial;

use crate::escape;
use crate::harness::trial;

const MAX_CELL_WORDS: usize = 40;

/// Where tests of attacks are.
const CRATES: [&str; 10] = [
    "fuzz-targets",
    "sandboxd",
    "sbx",
    "sbx-copy",
    "sbx-engine",
    "sbx-init",
    "sbx-policy",
    "sbx-proxy",
    "sbx-sftp",
    "sbx-ssh",
];

pub(crate) fn trials() -> Vec<Trial> {
    let tests: [(&str, fn()); 2] = [
        ("every_named_test_exists", every_named_test_exists),
        ("no_table_cell_is_too_long", no_table_cell_is_too_long),
    ];
    let tests = tests.into_iter();
    tests
        .map(|(name, test)| trial(format!("documents::{name}"), test))
        .collect()
}

fn document(name: &str) -> String {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(repository.join("docs/engine").join(name)).unwrap()
}

fn is_test_name(text: &str) -> bool {
    text.matches('_').count() >= 2
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

fn every_named_test_exists() {
    let some_modes = escape::SOME_MODES.iter().map(|(_, tests)| *tests);
    let all = escape::TESTS.iter().copied().chain(some_modes).flatten();
    let tests: BTreeSet<_> = all.map(|(name, _)| *name).collect();
    let text = document("attacks.md");
    let quoted = text.split('`').skip(1).step_by(2);
    let named: BTreeSet<_> = quoted
        .filter(|name| is_test_name(name) && *name != "no_new_privs")
        .collect();
    assert!(named.len() > 80, "{}", named.len());
    let mut missing: BTreeSet<_> = named.difference(&tests).copied().collect();
    // The other ones are unit tests, fuzz targets, or tests of other areas.
    for name in CRATES {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        find_tests(&crates.join(name), &mut missing);
    }
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

/// Takes away what is defined as a test in the sources below `dir`.
fn find_tests(dir: &Path, missing: &mut BTreeSet<&str>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_tests(&path, missing);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            missing.retain(|name| {
                let unit = format!("fn {name}(");
                let registered = format!("::{name}\"");
                !text.contains(&unit) && !text.contains(&registered)
            });
        }
    }
}

fn no_table_cell_is_too_long() {
    for name in ["attacks.md", "network.md", "security.md", "workspaces.md"] {
        let text = document(name);
        let rows = text
            .lines()
            .filter(|line| line.trim_start().starts_with('|'));
        for cell in rows.flat_map(|row| row.split('|')) {
            let words = cell.split_whitespace().count();
            assert!(words <= MAX_CELL_WORDS, "{name}: {words} words: {cell}");
        }
    }
}
