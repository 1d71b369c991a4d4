//! The record of one lease, and its JSON.
//!
//! Fields that the original also has are spelled as it spells them. Fields that we do not know stay as they are: they
//! belong to a newer version.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};

use super::binding::RepoRoot;
use super::creator::Creator;
use super::files::MAX_BYTES;
use super::lease_id::LeaseId;
use super::problem::{Fault, ProblemCode};
use super::slug::Slug;
use crate::{Code, Failure};

/// The label of a lease whose id the user chose.
pub const FIXED: &str = "fixed";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    #[serde(rename = "leaseID")]
    pub lease_id: LeaseId,
    /// 32 hex digits, new with every write. Only the store sets it.
    #[serde(default)]
    pub(super) revision: String,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "slug_unless_empty"
    )]
    pub slug: Option<Slug>,
    pub provider: String,
    /// Which of the provider's endpoints, clusters or accounts; empty where there is only one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider_scope: String,
    /// Absent in a claim that no repository has taken yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_root: Option<RepoRoot>,
    pub claimed_at: Timestamp,
    pub last_used_at: Timestamp,
    /// 0: it may be idle for ever.
    #[serde(default)]
    pub idle_timeout_seconds: u64,
    /// 0: it has no end. What counts is `expires_at`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ttl_seconds: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(default)]
    pub state: State,
    /// Whether it outlives the run that made it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub keep: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Who makes the sandbox, as long as it is being made, and removes it after its only run if it is not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<Creator>,
    /// Whether another program wrote it: the original, which has fewer fields. A write makes it ours.
    #[serde(skip)]
    pub(super) foreign: bool,
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The sandbox may exist or not.
    Creating,
    /// Also what a claim without a state means: the original records only sandboxes that exist.
    #[default]
    Ready,
    /// A process began to remove the sandbox.
    Releasing,
}

/// What is known before the sandbox exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    pub lease_id: LeaseId,
    pub provider: String,
    pub provider_scope: String,
    pub repo_root: Option<RepoRoot>,
    pub idle_timeout_seconds: u64,
    pub ttl_seconds: u64,
    pub keep: bool,
    pub labels: BTreeMap<String, String>,
    pub creator: Creator,
}

impl Claim {
    /// The record of something that is about to be created.
    pub fn intended(intent: Intent, now: Timestamp) -> Self {
        let now = whole_seconds(now);
        Self {
            lease_id: intent.lease_id,
            revision: String::new(),
            slug: None,
            provider: intent.provider,
            provider_scope: intent.provider_scope,
            repo_root: intent.repo_root,
            claimed_at: now,
            last_used_at: now,
            idle_timeout_seconds: intent.idle_timeout_seconds,
            ttl_seconds: intent.ttl_seconds,
            expires_at: after(now, intent.ttl_seconds),
            state: State::Creating,
            keep: intent.keep,
            labels: intent.labels,
            creator: Some(intent.creator),
            foreign: false,
            rest: Map::new(),
        }
    }

    /// The same claim once its sandbox exists.
    #[must_use]
    pub fn ready(&self) -> Self {
        Self {
            state: State::Ready,
            creator: self.creator.clone().filter(|_| !self.keep),
            ..self.clone()
        }
    }

    /// The same claim when its sandbox stays after all.
    #[must_use]
    pub fn kept(&self) -> Self {
        Self {
            keep: true,
            creator: None,
            ..self.clone()
        }
    }

    /// The same claim before its sandbox is removed.
    #[must_use]
    pub fn releasing(&self) -> Self {
        Self {
            state: State::Releasing,
            creator: None,
            ..self.clone()
        }
    }

    /// Whether the user chose its id.
    pub fn is_fixed(&self) -> bool {
        self.labels.contains_key(FIXED)
    }

    pub fn slug_str(&self) -> Option<&str> {
        self.slug.as_ref().map(Slug::as_str)
    }

    /// What its provider calls the sandbox, where it has a name of its own.
    pub fn sandbox(&self) -> Option<&str> {
        self.labels.get("sandbox").map(String::as_str)
    }

    /// Its labels, and those that the provider shows now. The latter are newer.
    pub fn labels_and<'a>(
        &'a self,
        observed: &'a BTreeMap<String, String>,
    ) -> BTreeMap<&'a str, &'a str> {
        let labels = self.labels.iter().chain(observed);
        labels
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect()
    }

    /// Whether another program recorded it, and we have not written to it since.
    pub fn is_foreign(&self) -> bool {
        self.foreign
    }

    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// A field of another version, where it is text.
    pub(super) fn foreign_text(&self, key: &str) -> &str {
        self.rest.get(key).and_then(Value::as_str).unwrap_or("")
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, Failure> {
        let mut bytes = serde_json::to_vec_pretty(self).map_err(|e| {
            let message = format!("cannot encode the claim of lease {}", self.lease_id);
            Failure::new(Code::State, message).because(&e)
        })?;
        bytes.push(b'\n');
        if bytes.len() > MAX_BYTES {
            let message = format!("claim of lease {} is too large", self.lease_id);
            return Err(Failure::new(Code::State, message));
        }
        Ok(bytes)
    }

    /// The claim in the file of `lease`.
    pub(super) fn decode(lease: &LeaseId, bytes: &[u8]) -> Result<Self, Fault> {
        let value: Value = serde_json::from_slice(bytes).map_err(|e| {
            let message = format!("not valid JSON at line {} column {}", e.line(), e.column());
            Fault::new(ProblemCode::InvalidJson, message)
        })?;
        let Value::Object(fields) = &value else {
            return Err(Fault::new(ProblemCode::InvalidClaim, "not a JSON object"));
        };
        match fields.get("leaseID") {
            None => return Err(no_lease_id()),
            Some(Value::String(id)) if id.is_empty() => return Err(no_lease_id()),
            Some(Value::String(id)) if id != lease.as_str() => {
                let message = format!("refusing misfiled claim: file contains lease {id:?}");
                return Err(Fault::new(ProblemCode::LeaseIdMismatch, message));
            }
            // Anything but text is refused below, with the rest.
            Some(_) => {}
        }
        let foreign = !fields.contains_key("state");
        let mut claim: Self = serde_json::from_value(value)
            .map_err(|e| Fault::new(ProblemCode::InvalidClaim, e.to_string()))?;
        if claim.provider.is_empty() {
            let message = "missing provider";
            return Err(Fault::new(ProblemCode::InvalidClaim, message));
        }
        claim.foreign = foreign;
        Ok(claim)
    }
}

fn no_lease_id() -> Fault {
    Fault::new(ProblemCode::EmptyLeaseId, "missing lease id")
}

/// The original writes no slug as an empty one.
fn slug_unless_empty<'de, D: Deserializer<'de>>(source: D) -> Result<Option<Slug>, D::Error> {
    let text = String::deserialize(source)?;
    if text.is_empty() {
        return Ok(None);
    }
    Slug::try_from(text).map(Some).map_err(de::Error::custom)
}

/// Times in claims have no fractions.
pub(super) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// None for no time at all, and for one that is beyond what can be told.
pub(super) fn after(start: Timestamp, seconds: u64) -> Option<Timestamp> {
    if seconds == 0 {
        return None;
    }
    let seconds = i64::try_from(seconds).ok()?;
    start.checked_add(SignedDuration::from_secs(seconds)).ok()
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{claim, time};
    use super::*;

    #[test]
    fn the_file_is_what_the_original_would_read() {
        let mut claim = claim("dsbx_crabbox-app-1a2b3c").kept().ready();
        claim.revision = "0123456789abcdef0123456789abcdef".to_owned();
        claim.slug = Slug::normalize("tidal-crab");
        claim.labels.insert("pond".to_owned(), "north".to_owned());
        let text = String::from_utf8(claim.encode().unwrap()).unwrap();
        insta::assert_snapshot!(text, @r#"
        {
          "leaseID": "dsbx_crabbox-app-1a2b3c",
          "revision": "0123456789abcdef0123456789abcdef",
          "slug": "tidal-crab",
          "provider": "somewhere",
          "repoRoot": "/src/app",
          "claimedAt": "2026-08-01T12:00:00Z",
          "lastUsedAt": "2026-08-01T12:00:00Z",
          "idleTimeoutSeconds": 1800,
          "ttlSeconds": 5400,
          "expiresAt": "2026-08-01T13:30:00Z",
          "state": "ready",
          "keep": true,
          "labels": {
            "pond": "north"
          }
        }
        "#);
        assert!(text.ends_with("}\n"));
    }

    #[test]
    fn a_claim_of_the_original_is_ready() {
        let lease = LeaseId::parse("cbx_1").unwrap();
        let text = r#"{"leaseID":"cbx_1","provider":"p","claimedAt":"2026-08-01T12:00:00Z",
            "lastUsedAt":"2026-08-01T14:00:00.5+02:00","slug":"","sshPort":"22"}"#;
        let claim = Claim::decode(&lease, text.as_bytes()).unwrap();
        assert_eq!(claim.state, State::Ready);
        assert_eq!(claim.slug, None);
        assert_eq!(claim.foreign_text("sshPort"), "22");
        assert_eq!(whole_seconds(claim.last_used_at), claim.claimed_at);
    }

    #[test]
    fn fields_of_newer_versions_survive_a_rewrite() {
        let lease = LeaseId::parse("x_1").unwrap();
        let text = r#"{"leaseID":"x_1","future":{"b":[1,2.5,null],"a":"x"},"provider":"p",
            "claimedAt":"2026-08-01T12:00:00Z","lastUsedAt":"2026-08-01T12:00:00Z","zone":7}"#;
        let read = Claim::decode(&lease, text.as_bytes()).unwrap();
        assert!(read.is_foreign());
        let claim = Claim {
            foreign: false,
            ..read.releasing()
        };
        let again = Claim::decode(&lease, &claim.encode().unwrap()).unwrap();
        assert_eq!(again, claim);
        assert_eq!(again.rest.get("zone"), Some(&Value::from(7)));
        let future = again.rest.get("future").unwrap().to_string();
        assert_eq!(future, r#"{"a":"x","b":[1,2.5,null]}"#);
    }

    #[test]
    fn every_fault_has_its_code() {
        use ProblemCode::*;
        let times = r#""claimedAt":"2026-08-01T12:00:00Z","lastUsedAt":"2026-08-01T12:00:00Z""#;
        let lease = LeaseId::parse("x_1").unwrap();
        for (text, code) in [
            ("".to_owned(), InvalidJson),
            ("{".to_owned(), InvalidJson),
            ("[".repeat(100_000), InvalidJson),
            ("[]".to_owned(), InvalidClaim),
            ("{}".to_owned(), EmptyLeaseId),
            (r#"{"leaseID":""}"#.to_owned(), EmptyLeaseId),
            (r#"{"leaseID":5}"#.to_owned(), InvalidClaim),
            (r#"{"leaseID":"x_2"}"#.to_owned(), LeaseIdMismatch),
            (r#"{"leaseID":"x_1"}"#.to_owned(), InvalidClaim),
            (
                format!(r#"{{"leaseID":"x_1","provider":"",{times}}}"#),
                InvalidClaim,
            ),
            (
                format!(r#"{{"leaseID":"x_1","provider":"p","slug":"A b",{times}}}"#),
                InvalidClaim,
            ),
            (
                format!(r#"{{"leaseID":"x_1","provider":"p","idleTimeoutSeconds":-1,{times}}}"#),
                InvalidClaim,
            ),
            (
                format!(r#"{{"leaseID":"x_1","provider":"p","state":"odd",{times}}}"#),
                InvalidClaim,
            ),
            (
                r#"{"leaseID":"x_1","provider":"p","claimedAt":"soon","lastUsedAt":"now"}"#
                    .to_owned(),
                InvalidClaim,
            ),
        ] {
            let fault = Claim::decode(&lease, text.as_bytes()).unwrap_err();
            assert_eq!(fault.code, code, "{text:.80}: {}", fault.message);
        }
    }

    #[test]
    fn a_message_about_a_huge_value_is_short() {
        let lease = LeaseId::parse("x_1").unwrap();
        let text = format!(r#"{{"leaseID":"{}"}}"#, "ü".repeat(100_000));
        let fault = Claim::decode(&lease, text.as_bytes()).unwrap_err();
        assert_eq!(fault.code, ProblemCode::LeaseIdMismatch);
        assert!(fault.message.chars().count() <= 203, "{}", fault.message);
    }

    #[test]
    fn what_could_not_be_read_back_is_not_written() {
        let mut claim = claim("x_1");
        claim.labels.insert("k".to_owned(), "v".repeat(MAX_BYTES));
        assert_eq!(claim.encode().unwrap_err().code, Code::State);
    }

    #[test]
    fn times_lose_their_fractions() {
        let now = time("2026-08-01T12:00:00.999Z");
        assert_eq!(whole_seconds(now), time("2026-08-01T12:00:00Z"));
        assert_eq!(after(now, 0), None);
        assert_eq!(after(now, u64::MAX), None);
        assert_eq!(after(now, i64::MAX as u64), None);
    }

    proptest! {
        #[test]
        fn claims_survive_their_file(
            id in "[a-z]{1,5}_[a-z0-9-]{1,40}",
            slug in "[a-z]{1,9}",
            provider in ".{1,20}",
            scope in ".{0,20}",
            seconds in 0_i64..4_000_000_000,
            idle in any::<u64>(),
            keep in any::<bool>(),
            labels in proptest::collection::btree_map(".{0,10}", ".{0,10}", 0..5),
        ) {
            let mut claim = claim(&id);
            claim.slug = Slug::normalize(&slug);
            claim.provider = provider;
            claim.provider_scope = scope;
            claim.last_used_at = Timestamp::from_second(seconds).unwrap();
            claim.idle_timeout_seconds = idle;
            claim.keep = keep;
            claim.labels = labels;
            let bytes = claim.encode().unwrap();
            prop_assert_eq!(Claim::decode(&claim.lease_id, &bytes), Ok(claim));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            let lease = LeaseId::parse("x_1").unwrap();
            prop_assert!(Claim::decode(&lease, &bytes).is_err());
        }

        #[test]
        fn no_damage_makes_it_panic(at in 0_usize..400, byte in any::<u8>()) {
            let claim = claim("x_1");
            let mut bytes = claim.encode().unwrap();
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            drop(Claim::decode(&claim.lease_id, &bytes));
        }
    }
}
