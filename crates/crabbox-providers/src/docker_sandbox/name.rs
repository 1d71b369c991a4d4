//! Names of sandboxes.

use crabbox_core::claims::Claim;

use super::SPEC;

/// The longest name that sbx takes.
const MAX_NAME: usize = 63;
const NAME_PREFIX: &str = "crabbox-";

/// The claim says it; the lease id does as well.
pub(super) fn sandbox_name(claim: &Claim) -> &str {
    let by_id = claim.lease_id.as_str();
    claim
        .sandbox()
        .or_else(|| by_id.strip_prefix(SPEC.lease_prefix))
        .unwrap_or(by_id)
}

/// `crabbox-<repository>-<6 hex>`, with what is too long cut out of the repository's name.
pub(super) fn new_name(repository: &str, random: &str) -> String {
    let mut name = String::new();
    for c in repository.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_alphanumeric() {
            name.push(c);
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    let name = name.trim_matches('-');
    let name = name.strip_prefix(NAME_PREFIX).unwrap_or(name);
    let room = MAX_NAME - NAME_PREFIX.len() - 1 - random.len();
    let name = name.get(..room).unwrap_or(name).trim_matches('-');
    let name = if name.is_empty() { "repo" } else { name };
    format!("{NAME_PREFIX}{name}-{random}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_are_for() {
        assert_eq!(new_name("my-app", "1a2b3c"), "crabbox-my-app-1a2b3c");
        assert_eq!(
            new_name("crabbox-My_App!", "1a2b3c"),
            "crabbox-my-app-1a2b3c"
        );
        assert_eq!(new_name("Ünïcode", "1a2b3c"), "crabbox-n-code-1a2b3c");
        assert_eq!(new_name("", "1a2b3c"), "crabbox-repo-1a2b3c");
        let long = new_name(&"x".repeat(200), "1a2b3c");
        assert_eq!(long.len(), MAX_NAME);
        assert!(long.ends_with("x-1a2b3c"));
    }
}
