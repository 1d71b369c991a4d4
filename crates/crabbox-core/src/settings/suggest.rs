//! What was probably meant.

/// The one of `known` that `word` is most likely a slip of, if any is near enough.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Longer words are no slips, and comparing them costs time.
    const LONGEST: usize = 64;
    if word.len() > LONGEST {
        return None;
    }
    let limit = (word.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|other| (distance(&word.to_lowercase(), &other.to_lowercase()), other))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, other)| other)
}

/// How many characters must be put in, taken out or replaced.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = i;
        let mut left = i + 1;
        for (above, y) in row.iter_mut().skip(1).zip(&b) {
            let replaced = corner + usize::from(x != *y);
            corner = *above;
            left = replaced.min(corner + 1).min(left + 1);
            *above = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_keys_get_a_suggestion_and_unrelated_ones_do_not() {
        let known = ["cliPath", "clone", "cpus", "memory"];
        assert_eq!(nearest("cliPth", known), Some("cliPath"));
        assert_eq!(nearest("clipath", known), Some("cliPath"));
        assert_eq!(nearest("memroy", known), Some("memory"));
        assert_eq!(nearest("network", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
