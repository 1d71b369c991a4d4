//! The other modules know no backend's internals.

use std::fs;
use std::path::{Path, PathBuf};

/// What is spelt out in the sources of the namespace backend only.
const INTERNALS: &[&str] = &[
    "plan::Mode",
    "Mode::Root",
    "Mode::Subordinate",
    "Mode::Single",
    "ids.mode",
    "namespace::",
];
/// Files outside of it that have to name something: the dispatch, and where errors of all modules come together.
const EXCEPTIONS: &[&str] = &["machine.rs", "machine/tests.rs", "error.rs"];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn privilege_modes_are_known_to_the_namespace_backend_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    sources(&root, &mut found);
    assert!(found.len() > 50);
    for path in found {
        let name = path.strip_prefix(&root).unwrap();
        if name.starts_with("machine/namespace")
            || name == Path::new("machine/namespace.rs")
            || EXCEPTIONS.iter().any(|known| name == Path::new(known))
        {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = without_tests(&text);
        for word in INTERNALS {
            assert!(!code.contains(word), "{}: {word}", name.display());
        }
        for names in code.split("plan::{").skip(1) {
            let mut names = names.split('}').next().unwrap_or_default().split(',');
            let mode = names.any(|it| it.split_whitespace().next() == Some("Mode"));
            assert!(!mode, "{}: imports Mode", name.display());
        }
    }
}

/// Unit tests may build a record: without items behind `#[cfg(test)]`. Relies on the layout of rustfmt: an item ends with
/// `;`, or with a brace at its own indentation.
fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if !code.starts_with("#[cfg(test)]") {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        let indent = line.len() - code.len();
        for item in lines.by_ref() {
            let code = item.trim_start();
            let ends = code.starts_with('}') || !code.starts_with("#[") && code.ends_with(';');
            if ends && item.len() - code.len() == indent {
                break;
            }
        }
    }
    kept
}

#[test]
fn code_below_a_test_item_is_looked_at() {
    let text =
        "a\n#[cfg(test)]\nmod tests;\nb\n    #[cfg(test)]\n    fn f() {\n        g();\n    }\nc\n";
    assert_eq!(without_tests(text), "a\nb\nc\n");
}
