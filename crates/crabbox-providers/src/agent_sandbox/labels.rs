//! What the local claim of a lease knows, by key.

use crabbox_core::claims::Claim;

/// The SandboxClaim.
pub(super) const CLAIM: &str = "claim";
pub(super) const CLAIM_UID: &str = "claim_uid";
/// Random, and written on the SandboxClaim: it tells ours from another one of the same name.
pub(super) const NONCE: &str = "claim_recovery_nonce";
pub(super) const NAMESPACE: &str = "namespace";
pub(super) const WARM_POOL: &str = "warm_pool";
/// Of a fixed lease.
pub(super) const WARM_POOL_UID: &str = "warm_pool_uid";
pub(super) const WORKDIR: &str = "workdir";
pub(super) const SANDBOX: &str = "sandbox";
pub(super) const SANDBOX_UID: &str = "sandbox_uid";
pub(super) const POD: &str = "pod";
pub(super) const POD_UID: &str = "pod_uid";
pub(super) const POD_IP: &str = "pod_ip";
pub(super) const CONTAINER: &str = "container";
pub(super) const CONTAINER_ID: &str = "container_id";

pub(super) fn get<'c>(claim: &'c Claim, key: &str) -> Option<&'c str> {
    let value = claim.labels.get(key).map(String::as_str);
    value.filter(|value| !value.is_empty())
}

/// What Kubernetes calls the SandboxClaim. It follows from the slug and the lease id, so that it is known before it exists.
pub(super) fn claim_name(claim: &Claim) -> String {
    get(claim, CLAIM).map_or_else(|| super::claim::name(claim), str::to_owned)
}
