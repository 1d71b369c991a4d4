//! "Did you mean": names that are similar to a mistyped one, by edit distance (Levenshtein).

/// Only this many characters are compared: the distance takes quadratic time.
const MAX_CHARS: usize = 128;

/// Up to three of `known` that `name` may be a typing error of, best first.
pub(crate) fn similar_names<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Vec<&'a str> {
    let limit = (name.chars().count() / 3).max(1);
    let mut close: Vec<_> = known
        .into_iter()
        .map(|other| (distance(name, other), other))
        .filter(|(distance, other)| {
            *distance <= limit || (name.len() >= 2 && other.starts_with(name))
        })
        .collect();
    close.sort_unstable();
    close.into_iter().take(3).map(|(_, other)| other).collect()
}

/// The number of insertions, deletions and replacements between the two.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(MAX_CHARS).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(MAX_CHARS).enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (y, above) in b.iter().zip(row.iter().skip(1)) {
            left = (above + 1)
                .min(left + 1)
                .min(diagonal + usize::from(x != *y));
            diagonal = *above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_found() {
        assert_eq!(
            similar_names("shell-ap", ["shell-app", "other", "shell-a"]),
            ["shell-a", "shell-app"]
        );
        assert!(similar_names("xyz", ["shell-app"]).is_empty());
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
