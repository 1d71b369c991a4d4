//! Slugs: the short names of leases that people type.
//!
//! A [`Slug`] is always in normal form. Whether one is free is only known under the lock of the store; the choice
//! among names is made here, from the slugs that are taken.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::lease_id::LeaseId;
use crate::{Code, Failure};

/// Leaves room for a prefix and a hash in a name of 63 characters, which is what a DNS label can hold.
const MAX_REQUESTED: usize = 41;
const ATTEMPTS: u32 = 20;
const ADJECTIVES: [&str; 14] = [
    "amber", "blue", "brisk", "coral", "crimson", "golden", "harbor", "jade", "pearl", "quick",
    "silver", "swift", "tidal", "violet",
];
const NOUNS: [&str; 8] = [
    "barnacle", "crab", "crayfish", "hermit", "krill", "lobster", "prawn", "shrimp",
];

/// Lower-case letters, digits and single inner dashes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Slug(String);

/// Which slug a new claim is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlugChoice {
    /// Exactly this one, or none at all: a script that asked for a name goes on to use that name.
    Requested(Slug),
    /// Any that is free.
    Generated,
    /// No slug: a record that is not found by name.
    None,
}

impl Slug {
    /// The normal form: other characters, however many in a row, become one dash.
    pub fn normalize(text: &str) -> Option<Self> {
        let mut slug = String::with_capacity(text.len());
        for c in text.chars() {
            let c = c.to_ascii_lowercase();
            if c.is_ascii_lowercase() || c.is_ascii_digit() {
                slug.push(c);
            } else if !slug.is_empty() && !slug.ends_with('-') {
                slug.push('-');
            }
        }
        if slug.ends_with('-') {
            slug.pop();
        }
        (!slug.is_empty()).then_some(Self(slug))
    }

    /// What the user asked for.
    pub fn request(text: &str) -> Result<Self, Failure> {
        let Some(slug) = Self::normalize(text) else {
            return Err(Failure::usage(format!(
                "invalid slug `{}`: needs at least one letter or digit",
                crate::printable(text)
            )));
        };
        let length = slug.0.len();
        if length > MAX_REQUESTED {
            return Err(Failure::usage(format!(
                "slug `{slug}` is too long: {length} characters, maximum {MAX_REQUESTED}"
            )));
        }
        Ok(slug)
    }

    /// The name that follows from the lease id alone: two words, and enough of its SHA-256 that two leases of one user
    /// hardly ever share a name.
    pub fn generate(lease: &LeaseId) -> Self {
        let hash = fnv1a(lease.as_str());
        let adjective = word(&ADJECTIVES, hash % 14);
        let noun = word(&NOUNS, hash / 14 % 8);
        Self(format!("{adjective}-{noun}-{}", lease.fingerprint()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn with_suffix(&self, hash: u32) -> Self {
        Self(format!("{}-{:04x}", self.0, hash & 0xffff))
    }
}

impl SlugChoice {
    /// The slug for `lease`, given who has which.
    pub(super) fn resolve(
        &self,
        lease: &LeaseId,
        taken: &BTreeMap<Slug, LeaseId>,
    ) -> Result<Option<Slug>, Failure> {
        match self {
            Self::None => Ok(None),
            Self::Requested(slug) => match taken.get(slug) {
                None => Ok(Some(slug.clone())),
                Some(holder) => Err(Failure::usage(format!(
                    "slug `{slug}` is taken by lease {holder}"
                ))
                .hint(format!(
                    "choose another slug, or run `crabbox stop {holder}`"
                ))),
            },
            Self::Generated => generate_free(lease, taken).map(Some).ok_or_else(|| {
                Failure::new(Code::State, format!("no free slug for lease {lease}"))
                    .hint("choose one with --slug")
            }),
        }
    }
}

fn generate_free(lease: &LeaseId, taken: &BTreeMap<Slug, LeaseId>) -> Option<Slug> {
    let base = Slug::generate(lease);
    let numbered = (0..ATTEMPTS).map(|attempt| fnv1a(&format!("{lease}-{attempt}")));
    let last = std::iter::once_with(|| fnv1a(lease.as_str()));
    let suffixed = numbered.chain(last).map(|hash| base.with_suffix(hash));
    std::iter::once(base.clone())
        .chain(suffixed)
        .find(|slug| !taken.contains_key(slug))
}

fn word(words: &[&'static str], number: u32) -> &'static str {
    let number = usize::try_from(number).unwrap_or_default();
    words.get(number).copied().unwrap_or_default()
}

fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

impl fmt::Display for Slug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Slug {
    type Error = String;

    /// For what is stored: only the normal form is one of ours.
    fn try_from(text: String) -> Result<Self, String> {
        match Self::normalize(&text) {
            Some(slug) if slug.0 == text => Ok(slug),
            Some(_) | None => Err("slug is not in normal form".to_owned()),
        }
    }
}

impl From<Slug> for String {
    fn from(slug: Slug) -> Self {
        slug.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lease(text: &str) -> LeaseId {
        LeaseId::parse(text).unwrap()
    }

    fn slug(text: &str) -> Slug {
        Slug::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn generated_slugs() {
        for (id, expected) in [
            ("cbx_000000000001", "tidal-lobster-86af4510"),
            ("cbx_abcdef123456", "blue-prawn-f1876f78"),
            ("cbx_deadbeefcafe", "silver-crab-282c5ba7"),
            ("dsbx_crabbox-my-app-1a2b3c", "tidal-crayfish-98f668da"),
            ("asbx_abcdef123456", "amber-barnacle-9a17236a"),
            ("osbx_sb-test123", "tidal-crab-bcb9ff54"),
        ] {
            assert_eq!(Slug::generate(&lease(id)).as_str(), expected, "{id}");
        }
    }

    #[test]
    fn normal_form() {
        for (text, expected) in [
            ("Blue Lobster", Some("blue-lobster")),
            ("--a__b//c--", Some("a-b-c")),
            ("größe", Some("gr-e")),
            ("X9", Some("x9")),
            ("", None),
            ("-_-", None),
            ("日本", None),
        ] {
            let found = Slug::normalize(text);
            assert_eq!(found.as_ref().map(Slug::as_str), expected, "{text}");
        }
    }

    #[test]
    fn requested_slugs_have_a_limit_after_normalising() {
        let longest = "a".repeat(41);
        assert_eq!(Slug::request(&longest).unwrap().as_str(), longest);
        assert!(Slug::request(&format!("--{longest}--")).is_ok());
        let failure = Slug::request(&"a".repeat(42)).unwrap_err();
        assert_eq!(failure.code, Code::Usage);
        assert!(failure.message.contains("maximum 41"), "{failure}");
        let failure = Slug::request(" -- ").unwrap_err();
        assert_eq!(
            failure.message,
            "invalid slug ` -- `: needs at least one letter or digit"
        );
    }

    #[test]
    fn only_the_normal_form_is_read_back() {
        for text in ["A", "a--b", "-a", "a-", "", "a b"] {
            assert!(Slug::try_from(text.to_owned()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_requested_slug_is_never_renamed() {
        let taken = BTreeMap::from([(slug("blue-crab"), lease("x_1"))]);
        let choice = SlugChoice::Requested(slug("blue-crab"));
        let failure = choice.resolve(&lease("x_2"), &taken).unwrap_err();
        assert_eq!(failure.code, Code::Usage);
        assert_eq!(failure.message, "slug `blue-crab` is taken by lease x_1");
        let choice = SlugChoice::Requested(slug("blue-prawn"));
        let settled = choice.resolve(&lease("x_2"), &taken).unwrap();
        assert_eq!(settled, Some(slug("blue-prawn")));
    }

    #[test]
    fn generated_slugs_evade_until_nothing_is_left() {
        let id = lease("cbx_abcdef123456");
        let other = lease("x_1");
        let mut taken = BTreeMap::new();
        let mut order = Vec::new();
        while let Ok(Some(slug)) = SlugChoice::Generated.resolve(&id, &taken) {
            taken.insert(slug.clone(), other.clone());
            order.push(slug);
        }
        assert_eq!(order.first(), Some(&slug("blue-prawn-f1876f78")));
        let first = fnv1a("cbx_abcdef123456-0") & 0xffff;
        assert_eq!(order[1], slug(&format!("blue-prawn-f1876f78-{first:04x}")));
        let last = fnv1a("cbx_abcdef123456") & 0xffff;
        assert_eq!(
            order.last(),
            Some(&slug(&format!("blue-prawn-f1876f78-{last:04x}")))
        );
        assert_eq!(order.len(), 22);
    }

    proptest! {
        #[test]
        fn the_normal_form_is_its_own(text in any::<String>()) {
            if let Some(slug) = Slug::normalize(&text) {
                prop_assert_eq!(Slug::normalize(slug.as_str()), Some(slug.clone()));
                prop_assert_eq!(Slug::try_from(slug.as_str().to_owned()), Ok(slug));
            }
        }

        #[test]
        fn every_lease_has_a_slug_that_could_be_requested(text in "[a-z0-9_-]{1,60}") {
            if let Ok(lease) = LeaseId::parse(&text) {
                let slug = Slug::generate(&lease);
                prop_assert_eq!(Slug::request(slug.as_str()).ok(), Some(slug));
            }
        }
    }
}
