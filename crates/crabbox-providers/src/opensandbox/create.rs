//! Creating a sandbox and removing it, also when the answer to the creation was lost.
//!
//! A lease is recorded before its sandbox exists, under an id of its own (`osbxr_...`). If the answer is lost, the sandbox is
//! searched for by its ownership mark and deleted; if it is not found in time, the record stays for `cleanup`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crabbox_core::claims::{Claim, LeaseId};
use crabbox_core::process::Cancel;
use crabbox_core::provider::{CreateFailure, Created, Labels, Left, MISSING, Removal, Verified};
use crabbox_core::{Code, Failure};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::api::{Api, CLAIM, CreateRequest, Image, OURS, Platform};
use super::{
    LIFECYCLE_TIMEOUT, NAME, OpenSandbox, READY_TIMEOUT, RECOVERY_PREFIX, SANDBOX, SPEC, api,
    expiry, lifetime,
};

/// How long a sandbox of a lost answer may take to appear in the server's list.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(15);
const RECOVERY_INTERVAL: Duration = Duration::from_millis(250);
/// A label of a claim: in seconds.
const LIFETIME: &str = "lifetime";
/// The longest metadata value.
const MAX_NAME: usize = 63;

/// Why the record of a lost answer stays.
const AWAITING: &str = "awaiting sandbox visibility or expiration";

/// No sandbox outlives what was asked for, with a while for the server to start it.
fn is_over(claim: &Claim, now: Timestamp) -> bool {
    let age = Duration::try_from(now.duration_since(claim.claimed_at)).unwrap_or(Duration::ZERO);
    let lifetime = claim
        .labels
        .get(LIFETIME)
        .and_then(|text| text.parse().ok());
    let lifetime = Duration::from_secs(lifetime.unwrap_or(claim.ttl_seconds));
    age > lifetime.saturating_add(READY_TIMEOUT)
}

/// The id of a lease whose sandbox has none yet.
pub(super) fn recovery_id(scope: &str) -> String {
    let digest = Sha256::digest(scope.as_bytes());
    let hex: String = digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{RECOVERY_PREFIX}{hex}")
}

pub(super) fn plan_labels(repository: &str, lifetime: Duration, random: &str) -> Labels {
    Labels::from([
        (NAME.to_owned(), name(repository, random)),
        (LIFETIME.to_owned(), lifetime::seconds(lifetime).to_string()),
    ])
}

/// `crabbox-<repository>-<6 hex>`, as metadata takes it.
fn name(repository: &str, random: &str) -> String {
    let mut plain = String::new();
    for c in repository.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_alphanumeric() {
            plain.push(c);
        } else if !plain.is_empty() && !plain.ends_with('-') {
            plain.push('-');
        }
    }
    let room = MAX_NAME - "crabbox--".len() - random.len();
    let plain = plain.get(..room).unwrap_or(&plain).trim_matches('-');
    let plain = if plain.is_empty() { "repo" } else { plain };
    format!("crabbox-{plain}-{random}")
}

impl OpenSandbox {
    fn request<'a>(&'a self, claim: &'a Claim) -> CreateRequest<'a> {
        let config = &self.config;
        let label = |key: &str| claim.labels.get(key).map(String::as_str);
        let limits = [("cpu", &config.cpu), ("memory", &config.memory)];
        let platform = Platform {
            os: &config.platform_os,
            arch: &config.platform_arch,
        };
        CreateRequest {
            image: Image { uri: &config.image },
            timeout: label(LIFETIME)
                .and_then(|text| text.parse().ok())
                .unwrap_or_else(|| {
                    let ttl = Duration::from_secs(claim.ttl_seconds);
                    lifetime::seconds(lifetime::planned(config, ttl))
                }),
            resource_limits: limits
                .into_iter()
                .filter(|(_, value)| !value.is_empty())
                .map(|(key, value)| (key, value.as_str()))
                .collect(),
            secure_access: config.secure_access,
            metadata: BTreeMap::from([
                (OURS, "true"),
                (api::NAME, label(NAME).unwrap_or("crabbox")),
                (CLAIM, claim.provider_scope.as_str()),
            ]),
            entrypoint: ["tail", "-f", "/dev/null"],
            platform: Some(platform).filter(|platform| !platform.os.is_empty()),
        }
    }

    pub(super) fn create_sandbox(
        &self,
        claim: &Claim,
        cancel: &Cancel,
    ) -> Result<Created, CreateFailure> {
        let api = self.api().map_err(CreateFailure::nothing_created)?;
        let request = self.request(claim);
        // The server may pull the image before it answers.
        let created = api.http.wait(READY_TIMEOUT, cancel, api.create(&request));
        let sandbox = created.map_err(|error| {
            let left = match error.is_ambiguous() {
                true => Left::MaybeSandbox,
                false => Left::Nothing,
            };
            let mut failure = error.into_failure("create");
            if left == Left::MaybeSandbox {
                let recovery = &claim.lease_id;
                failure = failure.and(&Failure::new(
                    Code::Provider,
                    format!("a sandbox may have been created all the same: recovery={recovery}"),
                ));
            }
            CreateFailure {
                failure: Box::new(failure),
                left,
            }
        })?;
        let id = format!("{}{}", SPEC.lease_prefix, sandbox.id);
        let mut labels = expiry(&sandbox);
        labels.insert(SANDBOX.to_owned(), sandbox.id.clone());
        Ok(Created {
            lease_id: Some(LeaseId::parse(&id)?),
            labels,
            notice: None,
        })
    }

    pub(super) fn remove_sandbox(
        &self,
        sandbox: &Verified<'_>,
        begin: &dyn Fn() -> Result<(), Failure>,
        cancel: &Cancel,
    ) -> Result<Removal, Failure> {
        let api = self.api()?;
        let claim = sandbox.claim();
        let Some(id) = claim.sandbox() else {
            return self.recover(api, claim, begin, cancel);
        };
        if sandbox.fact(MISSING).is_some() {
            return Ok(self.unknown(claim));
        }
        begin()?;
        self.forget_endpoint(id);
        match api.http.wait(LIFECYCLE_TIMEOUT, cancel, api.delete(id)) {
            Ok(()) => Ok(Removal::Gone),
            Err(error) if error.is_not_found() => Ok(self.unknown(claim)),
            Err(error) => Err(error.into_failure(&format!("delete of sandbox {id}"))),
        }
    }

    /// 404 proves nothing: another account gets it as well.
    fn unknown(&self, claim: &Claim) -> Removal {
        match self.config.forget_missing {
            true => Removal::Forgotten(format!(
                "opensandbox sandbox {} is not known to the server; only the record of lease {} was removed",
                claim.sandbox().unwrap_or("-"),
                claim.lease_id
            )),
            false => Removal::Missing(self.missing(claim)),
        }
    }

    /// Why a cleanup would leave a claim alone whose sandbox is not known; empty where it would remove the claim, none
    /// where there is a sandbox to remove after all.
    pub(super) fn why_missing(
        &self,
        claim: &Claim,
        cancel: &Cancel,
    ) -> Result<Option<String>, Failure> {
        if claim.sandbox().is_some() {
            return Ok(Some(match self.config.forget_missing {
                true => String::new(),
                false => self.missing(claim).message,
            }));
        }
        let api = self.api()?;
        let listed = api.with_claim(&claim.provider_scope);
        let found = api
            .http
            .wait(LIFECYCLE_TIMEOUT, cancel, listed)
            .map_err(|error| error.into_failure("recovery"))?;
        Ok(match (found.is_empty(), is_over(claim, Timestamp::now())) {
            (false, _) => None,
            (true, true) => Some(String::new()),
            (true, false) => Some(AWAITING.to_owned()),
        })
    }

    /// Removes the sandbox of a creation whose answer was lost, if there is one.
    fn recover(
        &self,
        api: &Api,
        claim: &Claim,
        begin: &dyn Fn() -> Result<(), Failure>,
        cancel: &Cancel,
    ) -> Result<Removal, Failure> {
        let age = Timestamp::now().duration_since(claim.claimed_at);
        let age = Duration::try_from(age).unwrap_or(Duration::ZERO);
        // One that was lost a while ago is visible by now, or will not be.
        let end =
            Instant::now() + RECOVERY_TIMEOUT.saturating_sub(age.saturating_sub(READY_TIMEOUT));
        loop {
            let listed = api.with_claim(&claim.provider_scope);
            let found = api
                .http
                .wait(LIFECYCLE_TIMEOUT, cancel, listed)
                .map_err(|error| error.into_failure("recovery"))?;
            if !found.is_empty() {
                begin()?;
                for sandbox in found {
                    match api
                        .http
                        .wait(LIFECYCLE_TIMEOUT, cancel, api.delete(&sandbox.id))
                    {
                        Ok(()) => {}
                        Err(error) if error.is_not_found() => {}
                        Err(error) => {
                            let what = format!("delete of sandbox {}", sandbox.id);
                            return Err(error.into_failure(&what));
                        }
                    }
                }
                return Ok(Removal::Gone);
            }
            if is_over(claim, Timestamp::now()) {
                return Ok(Removal::Gone);
            }
            let next = Instant::now() + RECOVERY_INTERVAL;
            if next >= end || cancel.sleep_until(next).is_some() {
                let message = format!("opensandbox recovery={} {AWAITING}", claim.lease_id);
                return Ok(Removal::Missing(
                    Failure::new(Code::Provider, message)
                        .hint("crabbox cleanup --provider opensandbox"),
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_metadata() {
        assert_eq!(name("My_App!", "1a2b3c"), "crabbox-my-app-1a2b3c");
        assert_eq!(name("", "1a2b3c"), "crabbox-repo-1a2b3c");
        assert_eq!(name(&"x".repeat(200), "1a2b3c").len(), MAX_NAME);
        let id = recovery_id("ep-a-own-b");
        assert_eq!(id.len(), RECOVERY_PREFIX.len() + 16);
    }
}
