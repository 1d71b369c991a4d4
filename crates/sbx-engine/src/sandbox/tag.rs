//! Names of saved templates: `NAME[:TAG]`, as Docker writes references of images (distribution/reference), without a digest.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

const LATEST: &str = "latest";
/// What the template of this machine's own system is called.
const HOST: &str = "host";
/// Docker's own registry is meant where none is named.
const USUAL: [&str; 2] = ["docker.io/library/", "docker.io/"];
const MAX_REPOSITORY: usize = 255;
const MAX_TAG: usize = 128;

/// A valid one, always with its tag.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tag {
    repository: String,
    tag: String,
}

#[derive(Debug, Error, PartialEq, Eq)]
#[error("invalid template name `{}`: {reason}", name.escape_debug())]
pub struct TagError {
    name: String,
    reason: &'static str,
}

impl TagError {
    pub fn hint(&self) -> String {
        "a name is like `my-template:v1`: lower-case letters, digits and single `.`, `_`, `-`, `/` between them".to_owned()
    }
}

impl Tag {
    pub fn parse(text: &str) -> Result<Self, TagError> {
        let refused = |reason| TagError {
            name: text.to_owned(),
            reason,
        };
        if text.contains('@') {
            return Err(refused("digests are not supported"));
        }
        let usual = USUAL.iter().find_map(|usual| text.strip_prefix(usual));
        let name = usual.unwrap_or(text);
        // A colon before the last slash is that of a port.
        let (repository, tag) = match name.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, tag),
            Some(_) | None => (name, LATEST),
        };
        if !is_tag(tag) {
            return Err(refused("invalid tag after the colon"));
        }
        if !is_repository(repository) {
            return Err(refused("invalid name before the tag"));
        }
        if repository == HOST {
            return Err(refused("`host` is reserved for this machine's own system"));
        }
        Ok(Self {
            repository: repository.to_owned(),
            tag: tag.to_owned(),
        })
    }

    pub fn repository(&self) -> &str {
        &self.repository
    }

    pub fn tag(&self) -> &str {
        &self.tag
    }
}

/// `[\w][\w.-]{0,127}`
fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let bytes = tag.as_bytes();
    bytes.len() <= MAX_TAG
        && bytes.first().is_some_and(|first| word(*first))
        && bytes.iter().all(|byte| word(*byte) || b".-".contains(byte))
}

/// Components between slashes, of which the first may be a registry.
fn is_repository(name: &str) -> bool {
    let mut parts = name.split('/').peekable();
    let several = name.contains('/');
    let like_a_registry = |part: &&str| *part == "localhost" || part.contains(['.', ':']);
    // What looks like a registry but is not may still be a path component.
    parts.next_if(|first| several && like_a_registry(first) && is_registry(first));
    name.len() <= MAX_REPOSITORY && parts.all(is_component)
}

fn is_registry(name: &str) -> bool {
    let (host, port) = name.split_once(':').unwrap_or((name, "0"));
    let label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(inner)
    };
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    digits && host.split('.').all(label)
}

/// Lower-case letters and digits with separators between them: one `.`, one or two `_`, any number of `-`.
fn is_component(part: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = part.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    let separators = part.split(|it: char| it.is_ascii_lowercase() || it.is_ascii_digit());
    ends.iter().all(|end| end.is_some_and(|end| word(*end)))
        && separators.into_iter().all(|between| {
            matches!(between, "" | "." | "_" | "__") || between.bytes().all(|it| it == b'-')
        })
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.repository, self.tag)
    }
}

impl From<Tag> for String {
    fn from(tag: Tag) -> Self {
        tag.to_string()
    }
}

impl TryFrom<String> for Tag {
    type Error = TagError;

    fn try_from(text: String) -> Result<Self, TagError> {
        Self::parse(&text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_as_docker_writes_them() {
        for (given, name) in [
            ("my-template:v1", "my-template:v1"),
            ("my-template", "my-template:latest"),
            ("docker.io/library/a:B_1", "a:B_1"),
            ("docker.io/team/a", "team/a:latest"),
            ("localhost:5000/a", "localhost:5000/a:latest"),
            (
                "host.example:5000/a__b/c--d:x.y",
                "host.example:5000/a__b/c--d:x.y",
            ),
        ] {
            assert_eq!(Tag::parse(given).unwrap().to_string(), name, "{given}");
        }
        let (long, long_tag) = ("a".repeat(256), format!("a:{}", "b".repeat(129)));
        for bad in [
            "",
            ":",
            ":v1",
            "a:",
            "A",
            "a..b",
            "a___b",
            "-a",
            "a-",
            "a/",
            "/a",
            "a//b",
            "a b",
            "a:b:c",
            "../a",
            "a/..",
            "a:..",
            "a@sha256:0",
            "a:b/c",
            "host",
            "host:v1",
            "docker.io/library/host",
            "x.y:/a",
            "-.x/a",
            "ü",
            &long,
            &long_tag,
        ] {
            assert!(Tag::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_means_the_same(text in "\\PC{0,40}") {
            if let Ok(tag) = Tag::parse(&text) {
                let shown = tag.to_string();
                prop_assert!(shown.bytes().all(|it| it.is_ascii_alphanumeric() || b"._-/:".contains(&it)));
                prop_assert!(!shown.split('/').any(|part| part == ".." || part.is_empty()));
                prop_assert_eq!(Tag::parse(&shown), Ok(tag));
            }
        }

        #[test]
        fn every_reference_of_the_grammar_is_taken(
            text in "([a-z][a-z0-9]{0,5}(\\.[a-z]{1,4}){1,2}(:[0-9]{1,4})?/)?[a-z0-9]{1,5}(([._]|__|-{1,3})[a-z0-9]{1,4}){0,2}(/[a-z0-9]{1,4}){0,2}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,20})?"
        ) {
            let usual = USUAL.iter().any(|usual| text.starts_with(usual));
            let is_host = text == HOST || text.starts_with("host:");
            prop_assert_eq!(Tag::parse(&text).is_ok(), !is_host || usual, "{}", text);
        }
    }
}
