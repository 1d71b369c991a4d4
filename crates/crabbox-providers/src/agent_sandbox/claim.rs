//! The SandboxClaim of a lease: its name, its manifest, its creation, its end, and what it looks like in between.

use std::time::{Duration, Instant};

use crabbox_core::claims::Claim;
use crabbox_core::lifecycle::within;
use crabbox_core::process::Cancel;
use crabbox_core::provider::{CreateFailure, Created, Labels, Observed, Phase, Removal};
use crabbox_core::timing::format_ms;
use crabbox_core::{Code, Failure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::AgentSandbox;
use super::chain::{self, Expected, Over, Stage, State};
use super::kubectl::{
    Answer, Kubectl, Refusal, claim_object, claims_path, pod_object, sandbox_object,
};
use super::labels;
use super::objects::{CLAIM_GROUP, ClaimObject, Seen, VERSION, parse_claim};
use super::settings::Config;

/// The longest name that Kubernetes takes for what a label names too.
const MAX_NAME: usize = 63;
/// How long a creation whose answer was lost is looked for.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(15);
/// For the look with which that time ends.
const LAST_LOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a deletion that waits for the pod may take.
const FOREGROUND_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// What Kubernetes stores of a scope: not the paths and names in it.
pub(super) fn fingerprint(scope: &str) -> String {
    let digest = Sha256::digest(scope.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `crabbox-<slug>-<8 hex of the lease id's hash>`, cut in the slug where it is too long.
pub(super) fn name(claim: &Claim) -> String {
    let hash = claim.lease_id.fingerprint();
    let slug = claim.slug_str().unwrap_or("lease");
    let room = MAX_NAME - "crabbox--".len() - hash.len();
    let slug = slug.get(..room).unwrap_or(slug).trim_matches('-');
    format!("crabbox-{slug}-{hash}")
}

fn manifest(expected: &Expected<'_>, config: &Config) -> Value {
    let claim = expected.claim;
    let container = match config.container.as_str() {
        "" => "default",
        container => container,
    };
    let mut spec = json!({"warmPoolRef": {"name": config.warm_pool}});
    if let (Some(end), Some(fields)) = (claim.expires_at, spec.as_object_mut()) {
        let lifecycle = json!({"shutdownTime": end.to_string(), "shutdownPolicy": "Retain"});
        fields.insert("lifecycle".to_owned(), lifecycle);
    }
    json!({
        "apiVersion": format!("{CLAIM_GROUP}/{VERSION}"),
        "kind": "SandboxClaim",
        "metadata": {
            "name": labels::claim_name(claim),
            "namespace": config.namespace,
            "labels": {
                chain::PROVIDER: super::SPEC.name,
                chain::LEASE_ID: claim.lease_id.as_str(),
                chain::SLUG: claim.slug_str().unwrap_or(""),
            },
            "annotations": {
                chain::SCOPE: expected.scope,
                chain::NONCE: labels::get(claim, labels::NONCE).unwrap_or(""),
                "crabbox.dev/workdir": config.workdir.display().to_string(),
                "crabbox.dev/container": container,
            },
        },
        "spec": spec,
    })
}

/// Creates it. Where the answer is lost, the object of that very name is looked for, and adopted only if everything about
/// it is ours.
pub(super) fn create(
    kubectl: &Kubectl,
    expected: &Expected<'_>,
    config: &Config,
    cancel: &Cancel,
) -> Result<Created, CreateFailure> {
    if let Some(reason) = cancel.reason() {
        let failure = reason.canceled(format!("canceled: {reason}"));
        return Err(CreateFailure::nothing_created(failure));
    }
    let path = format!("{}?fieldValidation=Strict", claims_path(&kubectl.namespace));
    let body = manifest(expected, config).to_string().into_bytes();
    let answered = kubectl.send_raw("create", &path, body, cancel);
    let lost = match answered {
        Ok(bytes) => match parse_claim(&bytes).and_then(|object| adopt(expected, &object)) {
            Ok(labels) => return Ok(created(labels, None)),
            Err(failure) => failure,
        },
        Err(Refusal { answer, failure }) => match answer {
            Answer::Refused | Answer::NotServed | Answer::NotFound | Answer::Conflict => {
                return Err(CreateFailure::nothing_created(*failure));
            }
            Answer::AlreadyExists | Answer::Unknown if failure.code != Code::ProviderMissing => {
                *failure
            }
            Answer::AlreadyExists | Answer::Unknown => {
                return Err(CreateFailure::nothing_created(*failure));
            }
        },
    };
    reconcile(kubectl, expected, lost)
}

/// A request that was cut short may still be carried out: a cancellation does not end the search, so that what comes late is
/// found, and given back by the caller.
fn reconcile(
    kubectl: &Kubectl,
    expected: &Expected<'_>,
    lost: Failure,
) -> Result<Created, CreateFailure> {
    within(RECONCILE_TIMEOUT + LAST_LOOK_TIMEOUT, |cancel| {
        look_for_created(kubectl, expected, lost, RECONCILE_TIMEOUT, cancel)
    })
}

fn look_for_created(
    kubectl: &Kubectl,
    expected: &Expected<'_>,
    lost: Failure,
    limit: Duration,
    cancel: &Cancel,
) -> Result<Created, CreateFailure> {
    let name = &labels::claim_name(expected.claim);
    let deadline = Instant::now() + limit;
    loop {
        let is_over = Instant::now() >= deadline;
        match kubectl.get_claim(name, cancel) {
            Ok(Some(object)) => {
                let labels = adopt(expected, &object)
                    .map_err(|failure| CreateFailure::nothing_created(failure.and(&lost)))?;
                let line =
                    format!("reconciled agent-sandbox claim={name} after ambiguous create result");
                return Ok(created(labels, Some(line)));
            }
            Ok(None) if is_over => return Err(CreateFailure::nothing_created(lost)),
            Ok(None) => {}
            Err(other) if is_over || cancel.is_set() => {
                return Err(lost.and(&other.failure).into());
            }
            Err(_) => {}
        }
        cancel.sleep_until(deadline.min(Instant::now() + POLL_INTERVAL));
    }
}

fn created(labels: Labels, notice: Option<String>) -> Created {
    Created {
        labels,
        lease_id: None,
        notice,
    }
}

fn adopt(expected: &Expected<'_>, object: &ClaimObject) -> Result<Labels, Failure> {
    expected.check(object)?;
    let meta = &object.metadata;
    Ok(Labels::from([
        (labels::CLAIM.to_owned(), meta.name.clone()),
        (labels::CLAIM_UID.to_owned(), meta.uid.clone()),
    ]))
}

/// Deletes exactly the object with this UID. The claim of a fixed lease is waited for, with its Sandbox and pod.
pub(super) fn delete(
    kubectl: &Kubectl,
    claim: &Claim,
    uid: &str,
    cancel: &Cancel,
) -> Result<Removal, Failure> {
    let name = &labels::claim_name(claim);
    let fixed = claim.is_fixed();
    let path = format!("{}/{name}", claims_path(&kubectl.namespace));
    let body = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": uid},
        "propagationPolicy": if fixed { "Foreground" } else { "Background" },
    });
    let until = Instant::now() + FOREGROUND_TIMEOUT;
    let bounded = cancel.until(until);
    let answered = kubectl.send_raw("delete", &path, body.to_string().into_bytes(), &bounded);
    match answered {
        Ok(bytes) if !fixed && is_success(&bytes) => return Ok(Removal::Gone),
        Ok(_) => {}
        // It was there a moment ago, with this UID.
        Err(refusal) if refusal.answer == Answer::NotFound => return Ok(Removal::Gone),
        Err(refusal) if refusal.answer == Answer::Conflict => {
            let message = format!("SandboxClaim {name:?} was replaced; it was not deleted");
            return Err(Failure::new(Code::NotOwned, message).because(&*refusal.failure));
        }
        Err(refusal) if matches!(refusal.answer, Answer::Refused | Answer::NotServed) => {
            return Err(*refusal.failure);
        }
        Err(refusal) => return check_gone(kubectl, name, uid, *refusal.failure, &bounded),
    }
    wait_until_gone(kubectl, name, uid, (until, FOREGROUND_TIMEOUT), cancel)
}

/// The answer was lost.
fn check_gone(
    kubectl: &Kubectl,
    name: &str,
    uid: &str,
    lost: Failure,
    cancel: &Cancel,
) -> Result<Removal, Failure> {
    match is_there(kubectl, name, uid, cancel) {
        Ok(false) => Ok(Removal::Gone),
        Ok(true) => Err(lost),
        Err(other) => Err(lost.and(&other)),
    }
}

/// The deadline also ends a request that is under way. `limit` is what it was counted from the beginning of the deletion.
fn wait_until_gone(
    kubectl: &Kubectl,
    name: &str,
    uid: &str,
    (deadline, limit): (Instant, Duration),
    cancel: &Cancel,
) -> Result<Removal, Failure> {
    let bounded = cancel.until(deadline);
    let late = |why: &str| {
        let message = format!("SandboxClaim {name:?} is being deleted, but is still there{why}");
        Failure::new(Code::Timeout, message)
    };
    loop {
        let looked = is_there(kubectl, name, uid, &bounded);
        let is_over = Instant::now() >= deadline;
        match looked {
            Ok(false) => return Ok(Removal::Gone),
            Ok(true) if is_over => return Err(late(&format!(" after {}", format_ms(limit)))),
            Err(failure) if is_over => {
                let message = format!(
                    "SandboxClaim {name:?} is being deleted, and is not known to be gone after {}",
                    format_ms(limit)
                );
                return Err(Failure::new(Code::Timeout, message).because(&failure));
            }
            Err(failure) if failure.code != Code::Provider => return Err(failure),
            Ok(true) | Err(_) => {}
        }
        let next = deadline.min(Instant::now() + POLL_INTERVAL);
        if cancel.sleep_until(next).is_some() {
            return Err(late(""));
        }
    }
}

fn is_there(kubectl: &Kubectl, name: &str, uid: &str, cancel: &Cancel) -> Result<bool, Failure> {
    let object = kubectl.get_claim(name, cancel)?;
    Ok(object.is_some_and(|object| object.metadata.uid == uid))
}

/// An object that is deleted at once is answered with a status; one that is not, with itself.
fn is_success(bytes: &[u8]) -> bool {
    let value: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    text("kind") == Some("Status") && text("status") == Some("Success")
}

/// All leases in two looks: at the claims, and at what they have.
pub(super) fn observe(
    provider: &AgentSandbox,
    claims: &[Claim],
    cancel: &Cancel,
) -> Result<Vec<Observed>, Failure> {
    let kubectl = provider.kubectl()?;
    let names: Vec<_> = claims
        .iter()
        .map(|claim| claim_object(&labels::claim_name(claim)))
        .collect();
    // Where there is only one, what is found out by asking for it alone is enough.
    let mut seen = match names.as_slice() {
        [_, _, ..] => kubectl.get(&names, cancel)?,
        _ => Seen::default(),
    };
    for claim in claims {
        let name = labels::claim_name(claim);
        if seen.claim(&name).is_none() {
            seen.claims.extend(kubectl.get_claim(&name, cancel)?);
        }
    }
    let mut below = Vec::new();
    for object in &seen.claims {
        let name = object.status.sandbox.name.as_str();
        let of = |claim: &&Claim| labels::claim_name(claim) == object.metadata.name;
        let pod = claims
            .iter()
            .find(of)
            .and_then(|claim| labels::get(claim, labels::POD));
        if !name.is_empty() {
            below.extend([sandbox_object(name), pod_object(pod.unwrap_or(name))]);
        }
    }
    if !below.is_empty() {
        seen.merge(kubectl.get(&below, cancel)?);
    }
    claims
        .iter()
        .map(|claim| observe_one(provider, claim, &seen, cancel))
        .collect()
}

/// What a look at everything says about one lease. A question that got no answer says nothing about it.
fn observe_one(
    provider: &AgentSandbox,
    claim: &Claim,
    seen: &Seen,
    cancel: &Cancel,
) -> Result<Observed, Failure> {
    let Some(object) = seen.claim(&labels::claim_name(claim)) else {
        return Ok(observed(
            "missing-or-inaccessible",
            Phase::Absent,
            claim,
            None,
        ));
    };
    let state = match provider.expected(claim).state(object, seen) {
        // Its pod has another name.
        Ok(State::LookAt { .. } | State::Select(_)) => provider
            .look(claim, cancel)
            .map(|(_, state)| state.unwrap_or(State::Select(String::new()))),
        state => state,
    };
    let why = |failure: &Failure| Some(failure.to_string());
    Ok(match state {
        Ok(State::Ready(chain)) => Observed {
            state: "running".to_owned(),
            phase: Phase::Ready,
            labels: with_claim(claim, chain.labels()),
        },
        Ok(State::Waiting(Stage::Sandbox | Stage::Pod, why)) => {
            observed("not-ready", Phase::NotYet, claim, Some(why))
        }
        Ok(State::LookAt { .. } | State::Select(_)) => {
            observed("not-ready", Phase::NotYet, claim, None)
        }
        Ok(State::Over(Over::Expired, why)) => observed("expired", Phase::Over, claim, Some(why)),
        Ok(State::Over(Over::Failed, why)) => observed("failed", Phase::Over, claim, Some(why)),
        Err(failure) if failure.code == Code::NotOwned => {
            observed("not-owned", Phase::Unknown, claim, why(&failure))
        }
        // The pod has no such container: that is known, and stays so.
        Err(failure) if failure.code == Code::NotFound => {
            observed("failed", Phase::Over, claim, why(&failure))
        }
        Err(failure) => return Err(failure),
    })
}

fn observed(state: &str, phase: Phase, claim: &Claim, why: Option<String>) -> Observed {
    let mut labels = with_claim(claim, Labels::new());
    labels.extend(why.map(|why| ("reason".to_owned(), why)));
    Observed {
        state: state.to_owned(),
        phase,
        labels,
    }
}

fn with_claim(claim: &Claim, mut labels: Labels) -> Labels {
    let name = labels::claim_name(claim);
    labels.insert(labels::CLAIM.to_owned(), name);
    labels
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use crabbox_core::claims::{Creator, Intent, LeaseId, Slug};
    use crabbox_core::provider::{HostContext, Left};

    use super::super::settings::tests::config;
    use super::*;

    fn claim(slug: &str) -> Claim {
        let intent = Intent {
            lease_id: LeaseId::parse("asbx_abcdef123456").unwrap(),
            provider: "agent-sandbox".to_owned(),
            provider_scope: String::new(),
            repo_root: None,
            idle_timeout_seconds: 60,
            ttl_seconds: 3600,
            keep: true,
            labels: Labels::new(),
            creator: Creator::current(),
        };
        let mut claim = Claim::intended(intent, jiff::Timestamp::UNIX_EPOCH);
        claim.slug = Slug::normalize(slug);
        assert!(claim.slug.is_some());
        claim
    }

    fn expected(claim: &Claim) -> Expected<'_> {
        Expected {
            claim,
            scope: "scope",
            warm_pool: "pool",
            container: "",
        }
    }

    fn named(slug: &str) -> String {
        name(&claim(slug))
    }

    /// The original's, and as long as Kubernetes takes.
    #[test]
    fn a_name_follows_from_slug_and_lease() {
        assert_eq!(named("blue-lobster"), "crabbox-blue-lobster-9a17236a");
        let room = "a".repeat(MAX_NAME - "crabbox--9a17236a".len());
        assert_eq!(named(&room), format!("crabbox-{room}-9a17236a"));
        for long in [format!("{room}b"), "ab-".repeat(40)] {
            let cut = named(&long);
            assert!(cut.len() <= MAX_NAME, "{cut}");
            assert!(
                cut.starts_with("crabbox-a") && cut.ends_with("-9a17236a"),
                "{cut}"
            );
            assert!(!cut.contains("--"), "{cut}");
        }
    }

    /// A kubectl that answers each call with what the script says.
    fn kubectl_of(dir: &std::path::Path, script: &str) -> Kubectl {
        let program = dir.join("kubectl");
        let text = format!("#!/bin/sh\n{script}\n");
        let mut file = fs::File::create(dir.join("new")).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        fs::set_permissions(dir.join("new"), fs::Permissions::from_mode(0o755)).unwrap();
        // A program that is open for writing in a child of another test cannot be executed.
        let copied = std::process::Command::new("cp")
            .args([&dir.join("new"), &program])
            .status();
        assert!(copied.unwrap().success());
        let mut config = config();
        config.kubectl = program.display().to_string();
        let host = HostContext {
            path: Default::default(),
            beside: None,
            checkouts: Vec::new(),
            root: dir.into(),
            cwd: dir.into(),
            state: dir.into(),
            env: Default::default(),
        };
        Kubectl::find(&config, &host).unwrap()
    }

    /// kubectl answers so where the resource type is not served: with the flag it says nothing at all.
    const API_GONE: &str = "case $* in *--ignore-not-found*) exit 0 ;; esac
echo 'Error from server (NotFound): the server could not find the requested resource' >&2
exit 1";

    /// A cluster in which the claim stays, whatever is asked.
    #[test]
    fn a_deletion_is_waited_for_no_longer_than_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let object = json!({
            "apiVersion": format!("{CLAIM_GROUP}/{VERSION}"),
            "kind": "SandboxClaim",
            "metadata": {"name": "one", "uid": "uid-1"},
        });
        let kubectl = kubectl_of(dir.path(), &format!("cat <<'END'\n{object}\nEND"));
        let cancel = Cancel::new();
        let limit = Duration::from_millis(300);
        let began = Instant::now();
        let wait = |kubectl: &Kubectl, uid: &str| {
            wait_until_gone(
                kubectl,
                "one",
                uid,
                (Instant::now() + limit, limit),
                &cancel,
            )
        };
        let late = wait(&kubectl, "uid-1").unwrap_err();
        assert!(began.elapsed() >= limit);
        assert_eq!(late.code, Code::Timeout);
        // On a loaded machine the look itself is cut short.
        let said = [
            "is still there after 300ms",
            "is not known to be gone after 300ms",
        ];
        assert!(
            said.iter().any(|said| late.message.ends_with(said)),
            "{late}"
        );
        // One that hangs is ended with the time.
        let hangs = kubectl_of(dir.path(), "exec sleep 600");
        let late = wait(&hangs, "uid-1").unwrap_err();
        assert_eq!(late.code, Code::Timeout);
        let said = "SandboxClaim \"one\" is being deleted, and is not known to be gone after 300ms";
        assert_eq!(late.message, said);
        // Another one under the same name: the old one is gone.
        let kubectl = kubectl_of(dir.path(), &format!("cat <<'END'\n{object}\nEND"));
        let minute = Duration::from_secs(60);
        let until = (Instant::now() + minute, minute);
        let gone = wait_until_gone(&kubectl, "one", "uid-2", until, &cancel).unwrap();
        assert!(matches!(gone, Removal::Gone), "{gone:?}");
        assert_eq!(FOREGROUND_TIMEOUT, Duration::from_secs(120));
    }

    /// An API that is not served says nothing about a claim of it: not that it is gone, and not that it was never created.
    #[test]
    fn an_api_that_is_gone_proves_nothing_about_a_claim() {
        let dir = tempfile::tempdir().unwrap();
        let kubectl = kubectl_of(dir.path(), API_GONE);
        let cancel = Cancel::new();
        let limit = Duration::from_millis(100);
        let until = (Instant::now() + limit, limit);
        let late = wait_until_gone(&kubectl, "one", "uid-1", until, &cancel).unwrap_err();
        assert_eq!(late.code, Code::Timeout);
        let claim = claim("blue-lobster");
        let expected = expected(&claim);
        let lost = || Failure::new(Code::Provider, "unexpected EOF");
        let left = look_for_created(&kubectl, &expected, lost(), limit, &cancel).unwrap_err();
        assert_eq!(left.left, Left::MaybeSandbox);
        // The very object: nothing was created.
        let name = name(&claim);
        let absent = format!(
            "echo 'Error from server (NotFound): sandboxclaims.{CLAIM_GROUP} \"{name}\" not found' >&2; exit 1"
        );
        let kubectl = kubectl_of(dir.path(), &absent);
        let left = look_for_created(&kubectl, &expected, lost(), limit, &cancel).unwrap_err();
        assert_eq!(left.left, Left::Nothing);
    }

    #[test]
    fn a_manifest_notes_workdir_and_container() {
        let claim = claim("blue-lobster");
        let expected = expected(&claim);
        let mut config = config();
        for (container, noted) in [("", "default"), ("main", "main")] {
            config.container = container.to_owned();
            let manifest = manifest(&expected, &config);
            let notes = &manifest["metadata"]["annotations"];
            assert_eq!(notes["crabbox.dev/container"], noted);
            let workdir = config.workdir.display().to_string();
            assert_eq!(notes["crabbox.dev/workdir"], workdir.as_str());
            assert_eq!(notes["crabbox.dev/provider-scope"], "scope");
        }
    }
}
