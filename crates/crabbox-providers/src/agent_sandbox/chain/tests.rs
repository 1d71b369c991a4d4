//! Objects of real controllers, in every state that they were seen in.

use crabbox_core::claims::{Claim, Creator, Intent, LeaseId};
use serde_json::{Value, json};

use super::*;

const VERSIONS: [(&str, &str); 2] = [
    (
        "v0.5.6",
        include_str!("../../../tests/data/agent-sandbox/v0.5.6.json"),
    ),
    (
        "v1.0.3",
        include_str!("../../../tests/data/agent-sandbox/v1.0.3.json"),
    ),
];

/// A state as one look shows it, with the claim made ours.
struct Sample {
    objects: Value,
}

impl Sample {
    fn new(version: &str, name: &str) -> Self {
        let all: Value = serde_json::from_str(version).unwrap();
        let mut objects = all[name].clone();
        assert!(objects.is_object(), "{name}");
        let claim = &mut objects["claim"];
        if claim.is_object() {
            claim["metadata"]["labels"] =
                json!({PROVIDER: "agent-sandbox", LEASE_ID: "asbx_0123456789ab"});
            claim["metadata"]["annotations"][SCOPE] = json!("scope");
            claim["metadata"]["annotations"][NONCE] = json!("nonce");
            claim["spec"]["warmPoolRef"]["name"] = json!("linux-pool");
            claim["spec"]["lifecycle"] =
                json!({"shutdownTime": "2026-11-17T14:00:00Z", "shutdownPolicy": "Retain"});
        }
        Self { objects }
    }

    fn with(mut self, pointer: &str, value: Value) -> Self {
        *self.objects.pointer_mut(pointer).unwrap() = value;
        self
    }

    fn seen(&self) -> Seen {
        let items: Vec<_> = ["claim", "sandbox", "pod"]
            .iter()
            .filter_map(|key| self.objects.get(key).cloned())
            .collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        Seen::parse(list.to_string().as_bytes()).unwrap()
    }

    fn state(&self, claim: &Claim) -> Result<State, Failure> {
        let seen = self.seen();
        expected(claim).state(seen.claims.first().unwrap(), &seen)
    }
}

fn expected(claim: &Claim) -> Expected<'_> {
    Expected {
        claim,
        scope: "scope",
        warm_pool: "linux-pool",
        container: "",
    }
}

fn local() -> Claim {
    let intent = Intent {
        lease_id: LeaseId::parse("asbx_0123456789ab").unwrap(),
        provider: "agent-sandbox".to_owned(),
        provider_scope: String::new(),
        repo_root: None,
        idle_timeout_seconds: 60,
        ttl_seconds: 3600,
        keep: true,
        labels: Labels::from([(labels::NONCE.to_owned(), "nonce".to_owned())]),
        creator: Creator::current(),
    };
    let mut claim = Claim::intended(intent, "2026-11-17T13:00:00Z".parse().unwrap());
    claim.expires_at = Some("2026-11-17T14:00:00Z".parse().unwrap());
    claim
}

/// As it is after the lease became ready.
fn pinned(chain: &Chain) -> Claim {
    let mut claim = local();
    claim.labels.extend(chain.labels());
    claim
}

fn ready(sample: &Sample) -> Chain {
    match sample.state(&local()).unwrap() {
        State::Ready(chain) => *chain,
        other => panic!("{other:?}"),
    }
}

#[test]
fn warm_and_cold_claims_of_both_controllers_become_ready() {
    for (name, version) in VERSIONS {
        let warm = ready(&Sample::new(version, "warm-ready"));
        assert_eq!(warm.pod, warm.sandbox, "{name}");
        assert_eq!(warm.container, "worker");
        assert!(warm.container_id.starts_with("containerd://"));
        ready(&Sample::new(version, "cold-ready"));
        // With everything pinned, the same look proves it again.
        let claim = pinned(&warm);
        let state = Sample::new(version, "warm-ready").state(&claim).unwrap();
        assert_eq!(state, State::Ready(Box::new(warm)));
    }
}

#[test]
fn a_lease_that_is_not_ready_names_what_it_waits_for() {
    for (_, version) in VERSIONS {
        for (name, words) in [
            ("warm-just-created", "SandboxClaim"),
            ("stuck-noimage", "Image"),
            ("stuck-unsched", "nschedul"),
            ("stuck-crash", "CrashLoopBackOff"),
            ("pending-no-controller", "first condition"),
            ("multiple-pods", "MultiplePods"),
            ("suspended", "Suspended"),
        ] {
            let state = Sample::new(version, name).state(&local()).unwrap();
            let State::Waiting(_, why) = state else {
                panic!("{name}: {state:?}");
            };
            assert!(why.contains(words), "{name}: {why}");
        }
    }
}

/// The controller tries again by itself.
#[test]
fn what_the_controller_retries_is_waited_for() {
    for (_, version) in VERSIONS {
        for reason in ["ReconcilerError", "AdoptionConflict"] {
            let condition = json!([
                {"type": "Ready", "status": "False", "reason": reason, "message": "try again"}
            ]);
            let sample = Sample::new(version, "cold-pending")
                .with("/claim/status/conditions", condition)
                .with("/claim/status/sandbox", json!({}));
            let state = sample.state(&local()).unwrap();
            let State::Waiting(Stage::Sandbox, why) = state else {
                panic!("{reason}: {state:?}");
            };
            assert!(why.contains(reason), "{why}");
        }
    }
}

#[test]
fn what_never_becomes_ready_is_over_at_once() {
    for (_, version) in VERSIONS {
        for (name, over, words) in [
            ("expired-final", Over::Expired, "ClaimExpired"),
            ("expired-first", Over::Expired, "ClaimExpired"),
            ("finished-fail", Over::Failed, "PodFailed"),
            ("finished-succeed", Over::Failed, "PodSucceeded"),
            ("no-pool", Over::Failed, "WarmPoolNotFound"),
            ("no-template", Over::Failed, "TemplateNotFound"),
            ("bad-metadata", Over::Failed, "InvalidMetadata"),
            ("env-rejected", Over::Failed, "EnvVarsInjectionRejected"),
            ("pvc-rejected", Over::Failed, "VolumeClaimTemplatesError"),
            ("pod-deleted", Over::Failed, "PodFailed"),
            // The reason decides, also where it finished before or is being deleted.
            ("expired-at-birth", Over::Expired, "ClaimExpired"),
            ("finished-fail-ttl", Over::Expired, "ClaimExpired"),
            ("finished-succeed-ttl", Over::Expired, "ClaimExpired"),
            (
                "expired-policy-deleteforeground",
                Over::Expired,
                "ClaimExpired",
            ),
            ("sandbox-expired", Over::Expired, "SandboxExpired"),
        ] {
            let state = Sample::new(version, name).state(&local()).unwrap();
            let State::Over(was, why) = state else {
                panic!("{name}: {state:?}");
            };
            assert_eq!(was, over, "{name}");
            assert!(why.contains(words), "{name}: {why}");
        }
    }
}

#[test]
fn a_claim_that_is_not_ours_in_every_detail_is_refused() {
    let (_, version) = VERSIONS[1];
    let mut claim = local();
    let uid = Sample::new(version, "warm-ready").seen().claims[0]
        .metadata
        .uid
        .clone();
    claim.labels.insert(labels::CLAIM_UID.to_owned(), uid);
    let sample = || Sample::new(version, "warm-ready");
    sample().state(&claim).unwrap();
    for (pointer, value, words) in [
        ("/claim/metadata/uid", json!("other"), "UID"),
        ("/claim/metadata/labels", json!({}), "provider label"),
        (
            "/claim/metadata/annotations",
            json!({NONCE: "nonce"}),
            "scope",
        ),
        (
            "/claim/metadata/annotations",
            json!({SCOPE: "scope"}),
            "nonce",
        ),
        (
            "/claim/spec/warmPoolRef/name",
            json!("other-pool"),
            "warm pool",
        ),
        (
            "/claim/spec/lifecycle",
            json!({"shutdownTime": "2026-11-17T15:00:00Z", "shutdownPolicy": "Retain"}),
            "shutdown time",
        ),
        (
            "/claim/spec/lifecycle",
            json!({"shutdownTime": "2026-11-17T14:00:00Z", "shutdownPolicy": "Delete"}),
            "Retain",
        ),
        ("/claim/spec/lifecycle", json!({}), "shutdown time"),
    ] {
        let failure = sample().with(pointer, value).state(&claim).unwrap_err();
        assert_eq!(failure.code, Code::NotOwned);
        assert!(failure.message.contains(words), "{failure}");
    }
}

#[test]
fn a_chain_that_does_not_hold_together_or_changed_is_refused() {
    for (_, version) in VERSIONS {
        let sample = || Sample::new(version, "warm-ready");
        let chain = ready(&sample());
        let claim = pinned(&chain);
        for (pointer, value) in [
            ("/sandbox/metadata/ownerReferences/0/uid", json!("other")),
            (
                "/sandbox/metadata/ownerReferences/0/kind",
                json!("SandboxWarmPool"),
            ),
            (
                "/sandbox/metadata/ownerReferences/0/apiVersion",
                json!("other.group/v1beta1"),
            ),
            (
                "/sandbox/metadata/ownerReferences/0/controller",
                json!(false),
            ),
            (
                "/sandbox/metadata/labels/agents.x-k8s.io~1claim-uid",
                json!("other"),
            ),
        ] {
            let failure = sample().with(pointer, value).state(&local()).unwrap_err();
            assert_eq!(failure.code, Code::NotOwned, "{pointer}");
        }
        for (pointer, value) in [
            ("/claim/status/sandbox/name", json!("linux-pool-other")),
            ("/sandbox/metadata/uid", json!("other")),
            ("/pod/metadata/uid", json!("other")),
            (
                "/pod/status/containerStatuses/0/containerID",
                json!("containerd://other"),
            ),
        ] {
            let failure = sample().with(pointer, value).state(&claim).unwrap_err();
            assert_eq!(failure.code, Code::NotOwned, "{pointer}");
            assert!(failure.message.contains("nothing was sent"), "{failure}");
        }
        // An older stored version of the same group and kind is the same owner.
        let older = json!("extensions.agents.x-k8s.io/v1alpha1");
        let pointer = "/sandbox/metadata/ownerReferences/0/apiVersion";
        sample().with(pointer, older).state(&claim).unwrap();
        // A pod of another Sandbox is not taken.
        let pointer = "/pod/metadata/ownerReferences/0/uid";
        let state = sample()
            .with(pointer, json!("other"))
            .state(&claim)
            .unwrap();
        assert!(matches!(state, State::Select(_)), "{state:?}");
    }
}

#[test]
fn a_pod_on_its_way_out_looks_ready_and_is_not() {
    let (_, version) = VERSIONS[1];
    let mut sample = Sample::new(version, "warm-ready");
    sample.objects["pod"]["metadata"]["deletionTimestamp"] = json!("2026-11-17T13:30:00Z");
    let state = sample.state(&local()).unwrap();
    assert!(matches!(state, State::Waiting(Stage::Pod, _)), "{state:?}");
}

/// The pod keeps its UID, and its container has lost its files.
#[test]
fn a_restarted_container_is_another_one() {
    for (_, version) in VERSIONS {
        let before = ready(&Sample::new(version, "warm-ready"));
        let restarted = Sample::new(version, "container-restarted");
        let statuses = restarted.objects["pod"]["status"]["containerStatuses"].clone();
        assert_eq!(statuses[0]["restartCount"], 1);
        let sample =
            Sample::new(version, "warm-ready").with("/pod/status/containerStatuses", statuses);
        let after = ready(&sample);
        assert_eq!(after.pod_uid, before.pod_uid);
        let refused = sample.state(&pinned(&before)).unwrap_err();
        assert_eq!(refused.code, Code::NotOwned);
        assert!(refused.message.contains("was restarted"), "{refused}");
        assert!(matches!(sample.state(&pinned(&after)), Ok(State::Ready(_))));
    }
}

#[test]
fn a_container_is_chosen_once() {
    let (_, version) = VERSIONS[1];
    let two = json!([{"name": "worker"}, {"name": "sidecar"}]);
    let sample = Sample::new(version, "warm-ready").with("/pod/spec/containers", two);
    let seen = sample.seen();
    let pod = &seen.pods[0];
    let mut claim = local();
    assert_eq!(expected(&claim).container(pod).unwrap(), "worker");
    let explicit = Expected {
        container: "sidecar",
        ..expected(&claim)
    };
    assert_eq!(explicit.container(pod).unwrap(), "sidecar");
    let absent = Expected {
        container: "none",
        ..expected(&claim)
    };
    assert!(absent.container(pod).is_err());
    claim
        .labels
        .insert(labels::CONTAINER.to_owned(), "sidecar".to_owned());
    assert_eq!(expected(&claim).container(pod).unwrap(), "sidecar");
}

/// A pod that was deleted comes back under its name, and a claim gets another Sandbox: each is ready, and none is the one
/// that was pinned.
#[test]
fn what_comes_back_is_ready_for_a_new_lease_and_another_one_for_the_old() {
    for (version_name, version) in VERSIONS {
        for name in ["pod-recreated", "sandbox-deleted-later"] {
            let sample = Sample::new(version, name);
            let now = ready(&sample);
            let was = Chain {
                pod_uid: "before".to_owned(),
                ..now.clone()
            };
            let refused = sample.state(&pinned(&was)).unwrap_err();
            assert_eq!(refused.code, Code::NotOwned, "{version_name} {name}");
        }
        // The claim names a Sandbox that the look did not show.
        let state = Sample::new(version, "sandbox-deleted").state(&local());
        assert!(matches!(state, Ok(State::LookAt { .. })), "{state:?}");
    }
}
