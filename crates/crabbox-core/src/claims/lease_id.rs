//! Lease ids, and the random part of ids.
//!
//! A [`LeaseId`] is a file name on every system that the state may be copied to, and is printed as it is.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Code, Failure};

/// With every ending that we add it still fits into a file name.
const MAX_LENGTH: usize = 200;
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "conin$", "conout$"];

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LeaseId(String);

impl LeaseId {
    pub fn parse(text: &str) -> Result<Self, Failure> {
        match fault(text) {
            None => Ok(Self(text.to_owned())),
            Some(fault) => Err(Failure::usage(format!(
                "invalid lease id `{}`: {fault}",
                crate::printable(text)
            ))),
        }
    }

    /// `<prefix><12 hex>`, for leases that we name ourselves.
    pub fn random(prefix: &str) -> Result<Self, Failure> {
        Self::parse(&format!("{prefix}{}", random_hex(6)?))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a text is spelled as the id of a lease (`dsbx_...`, `cbx_...`) and not as a slug, which has no underscore.
    pub fn is_spelled(text: &str) -> bool {
        let Some((prefix, rest)) = text.split_once('_') else {
            return false;
        };
        let prefix = prefix.strip_suffix('r').unwrap_or(prefix);
        !rest.is_empty()
            && prefix.ends_with("bx")
            && prefix.bytes().all(|byte| byte.is_ascii_lowercase())
    }

    /// Eight hex digits that tell this lease from others, for names that are too short for the whole id.
    pub fn fingerprint(&self) -> String {
        let mut text = hex(&Sha256::digest(self.0.as_bytes()));
        text.truncate(8);
        text
    }
}

/// `run_<12 hex>`.
pub fn run_id() -> Result<String, Failure> {
    Ok(format!("run_{}", random_hex(6)?))
}

/// Two hex digits per byte.
pub fn random_hex(bytes: usize) -> Result<String, Failure> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).map_err(|e| {
        Failure::new(Code::Local, "cannot get random bytes from the system").because(&e)
    })?;
    Ok(hex(&random))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is wrong with it as a file name.
fn fault(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("empty");
    }
    if text.len() > MAX_LENGTH {
        return Some("too long");
    }
    if !text.chars().all(|c| c == ' ' || c.is_ascii_graphic()) {
        return Some("contains characters other than printable ASCII");
    }
    if text.contains(['/', '\\', '<', '>', ':', '"', '|', '?', '*']) {
        return Some("contains characters not allowed in file names");
    }
    if text.starts_with(' ') || text.ends_with(' ') {
        return Some("starts or ends with a space");
    }
    // Hidden files in the directory of claims are our temporary ones.
    if text.starts_with('.') || text.ends_with('.') {
        return Some("starts or ends with a dot");
    }
    is_device(text).then_some("reserved device name on Windows")
}

/// Windows looks only at what comes before the first dot.
fn is_device(text: &str) -> bool {
    let stem = text.split('.').next().unwrap_or_default();
    let stem = stem.trim_end_matches(' ').to_ascii_lowercase();
    let numbered = |prefix: &str| {
        stem.strip_prefix(prefix)
            .is_some_and(|rest| matches!(rest.as_bytes(), [b'0'..=b'9']))
    };
    DEVICES.contains(&stem.as_str()) || numbered("com") || numbered("lpt")
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for LeaseId {
    type Error = Failure;

    fn try_from(text: String) -> Result<Self, Failure> {
        Self::parse(&text)
    }
}

impl From<LeaseId> for String {
    fn from(id: LeaseId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_that_are_file_names_everywhere() {
        for id in [
            "dsbx_crabbox-my-app-1a2b3c",
            "osbx_a.b",
            "a b",
            "console",
            "com10",
            "x.con",
            &"a".repeat(200),
        ] {
            assert_eq!(LeaseId::parse(id).unwrap().as_str(), id);
        }
    }

    #[test]
    fn refused_ids() {
        let long = "a".repeat(201);
        for id in [
            "",
            "a/b",
            "a\\b",
            "..",
            ".",
            ".a",
            "a.",
            " a",
            "a ",
            "a:b",
            "a<b",
            "a>b",
            "a\"b",
            "a|b",
            "a?b",
            "a*b",
            "a\nb",
            "a\0b",
            "a\u{7f}b",
            "ü",
            "a\u{202e}b",
            "CON",
            "nul.x",
            "Com1",
            "lpt9.json",
            "aux .x",
            &long,
        ] {
            let failure = LeaseId::parse(id).unwrap_err();
            assert_eq!(failure.code, Code::Usage, "{id:?}");
            assert!(!failure.message.contains(['\n', '\0']), "{id:?}");
        }
    }

    #[test]
    fn ids_are_told_from_names_by_their_prefix() {
        for id in ["cbx_1", "dsbx_crabbox-a-1a2b3c", "asbx_0", "osbxr_0"] {
            assert!(LeaseId::is_spelled(id), "{id}");
        }
        for name in [
            "my_app", "bx", "dsbx-a", "dsbx_", "DSBX_a", "a bx_c", "_a", "",
        ] {
            assert!(!LeaseId::is_spelled(name), "{name}");
        }
    }

    #[test]
    fn the_fingerprint_is_the_hash() {
        let lease = LeaseId::parse("asbx_abcdef123456").unwrap();
        assert_eq!(lease.fingerprint(), "9a17236a");
    }

    #[test]
    fn random_ids_have_their_length_and_differ() {
        let ids: BTreeSet<_> = (0..100).map(|_| run_id().unwrap()).collect();
        assert_eq!(ids.len(), 100);
        assert!(ids.iter().all(|id| {
            let hex = id.strip_prefix("run_").unwrap();
            hex.len() == 12 && hex.bytes().all(|b| b.is_ascii_hexdigit())
        }));
        let lease = LeaseId::random("asbx_").unwrap();
        assert_eq!(lease.as_str().len(), "asbx_".len() + 12);
    }
}
