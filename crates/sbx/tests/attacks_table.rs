//! Checks of the security documents: every test that the table of attacks names exists, and no table cell is too long.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const MAX_CELL_WORDS: usize = 40;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document(name: &str) -> String {
    fs::read_to_string(repository().join("docs/engine").join(name)).unwrap()
}

/// The names of the tests below `tests/it/escape`: the first element of each `("name", function)` pair.
fn escape_tests(dir: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            escape_tests(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let mut parts = text.split('"');
            let mut before = parts.next().unwrap_or_default();
            while let (Some(quoted), Some(after)) = (parts.next(), parts.next()) {
                let is_pair = before.trim_end().ends_with('(') && after.starts_with(',');
                // Helpers take strings too: a test's name is a sentence.
                if is_pair && is_test_name(quoted) {
                    names.insert(quoted.to_owned());
                }
                before = after;
            }
        }
    }
}

fn is_test_name(text: &str) -> bool {
    text.matches('_').count() >= 2
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

fn named_tests() -> BTreeSet<String> {
    let text = document("attacks.md");
    let quoted = text.split('`').skip(1).step_by(2);
    let names = quoted.filter(|name| is_test_name(name) && *name != "no_new_privs");
    names.map(str::to_owned).collect()
}

#[test]
fn every_named_test_exists() {
    let mut tests = BTreeSet::new();
    escape_tests(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/escape"),
        &mut tests,
    );
    let named = named_tests();
    assert!(named.len() > 80, "{}", named.len());
    let missing: Vec<_> = named.difference(&tests).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

#[test]
fn no_table_cell_is_too_long() {
    for name in ["attacks.md", "security.md", "workspaces.md"] {
        let text = document(name);
        for row in text
            .lines()
            .filter(|line| line.trim_start().starts_with('|'))
        {
            for cell in row.split('|') {
                let words = cell.split_whitespace().count();
                assert!(words <= MAX_CELL_WORDS, "{name}: {words} words: {cell}");
            }
        }
    }
}
