//! Runs every fuzz target on its stored corpus, without a fuzzer.

use std::fs;
use std::path::{Path, PathBuf};

use fuzz_targets::TARGETS;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

#[test]
fn every_input_of_every_corpus_passes() {
    for (name, run) in TARGETS {
        let mut count = 0;
        for entry in fs::read_dir(corpus().join(name)).unwrap() {
            let path = entry.unwrap().path();
            let data = fs::read(&path).unwrap();
            let result = std::panic::catch_unwind(|| run(&data));
            assert!(result.is_ok(), "{name}: {} is a fault", path.display());
            count += 1;
        }
        assert!(count >= 15, "the corpus of {name} has only {count} inputs");
    }
}

/// A fault that a byte away from a stored input would show is found without a fuzzer as well.
#[test]
fn every_input_cut_short_or_with_a_flipped_byte_passes() {
    for (name, run) in TARGETS {
        for entry in fs::read_dir(corpus().join(name)).unwrap() {
            let data = fs::read(entry.unwrap().path()).unwrap();
            let step = data.len() / 64 + 1;
            for at in (0..data.len()).step_by(step) {
                run(&data[..at]);
                let mut changed = data.clone();
                changed[at] ^= 1 << (at % 8);
                run(&changed);
            }
        }
    }
}

#[test]
fn every_corpus_has_a_target() {
    let mut found: Vec<String> = fs::read_dir(corpus())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    let expected: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(found, expected);
}
