//! The other modules know no backend's internals.

use std::fs;
use std::path::{Path, PathBuf};

/// What is spelt out in the sources of the namespace backend only.
const INTERNALS: &[&str] = &["plan::Mode", "ids.mode", "namespace::"];
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
        // Unit tests may build a record.
        let code = text.split("#[cfg(test)]").next().unwrap();
        for word in INTERNALS {
            assert!(!code.contains(word), "{}: {word}", name.display());
        }
    }
}
