//! Bytes that arrive bit by bit.

use std::fmt::Debug;

/// Trying every prefix of a long input would slow the fuzzer down for little.
const MOST: usize = 128;

/// Lengths of prefixes of `data`: all, or as many as are worth trying.
pub(crate) fn lengths(data: &[u8]) -> impl Iterator<Item = usize> {
    let step = data.len() / MOST + 1;
    (0..data.len()).step_by(step)
}

/// Asserts that a parser which knows its answer early does not change it when more bytes arrive.
pub(crate) fn settles<T: PartialEq + Debug>(
    data: &[u8],
    undecided: &T,
    parse: impl Fn(&[u8]) -> T,
) -> T {
    let whole = parse(data);
    for length in lengths(data) {
        let answer = parse(data.get(..length).unwrap_or_default());
        assert!(
            answer == *undecided || answer == whole,
            "{answer:?} after {length} bytes, then {whole:?}"
        );
    }
    whole
}
