//! The questions that `doctor` asks: none of them changes anything.

use crabbox_core::process::Cancel;
use crabbox_core::provider::{Check, Class, Health};
use crabbox_core::{Code, Failure};
use serde_json::{Value, json};

use super::kubectl::{self, Answer, Kubectl, Refusal};
use super::objects::{CLAIM_GROUP, CORE_GROUP, VERSION};
use super::settings::Config;

/// The verbs of a run, and no more: group, resource, subresource, verbs.
const RULES: [(&str, &str, &str, &[&str]); 5] = [
    (
        CLAIM_GROUP,
        "sandboxclaims",
        "",
        &["get", "create", "delete"],
    ),
    (CLAIM_GROUP, "sandboxwarmpools", "", &["get"]),
    (CORE_GROUP, "sandboxes", "", &["get"]),
    ("", "pods", "", &["get", "list"]),
    ("", "pods", "exec", &["create"]),
];

const CRDS: [(&str, &[&str]); 2] = [
    (CORE_GROUP, &["sandboxes"]),
    (CLAIM_GROUP, &["sandboxclaims", "sandboxwarmpools"]),
];

/// Every check is shown, also after one has failed. Four processes.
pub(super) fn checks(kubectl: &Kubectl, config: &Config, cancel: &Cancel) -> Vec<Check> {
    let program = kubectl.program().display().to_string();
    let mut checks = vec![
        ok(
            "kubectl",
            format!("program={program} context={}", config.context),
        )
        .detail("tool", "kubectl")
        .detail("path", program),
    ];
    for (group, resources) in CRDS {
        let path = format!("/apis/{group}/{VERSION}");
        let served = kubectl.get_raw(&path, cancel).map(|bytes| names(&bytes));
        for resource in resources {
            checks.push(crd(group, resource, &served));
        }
    }
    checks.push(warm_pool(kubectl, config, cancel));
    checks.extend(rbac(kubectl, config, cancel));
    checks
}

/// Where there is nothing to ask.
pub(super) fn missing(failure: &Failure) -> Vec<Check> {
    vec![bad("kubectl", failure)]
}

fn crd(group: &str, resource: &str, served: &Result<Vec<String>, Refusal>) -> Check {
    let name = format!("crd.{resource}");
    let what = format!("{resource}.{group} {VERSION}");
    match served {
        Ok(names) if names.iter().any(|name| name == resource) => ok(&name, what),
        Ok(_) => bad(&name, &not_served(&what)),
        Err(refusal) if refusal.answer == Answer::NotServed => {
            bad(&name, &not_served(&what).because(&*refusal.failure))
        }
        // That the cluster did not say anything says nothing about it.
        Err(refusal) => bad(&name, &refusal.failure),
    }
}

fn not_served(what: &str) -> Failure {
    Failure::new(Code::Provider, format!("the cluster does not serve {what}"))
        .hint("install Agent Sandbox v0.5.0rc1 or newer with its extensions")
}

fn names(bytes: &[u8]) -> Vec<String> {
    let value: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let resources = value.get("resources").and_then(Value::as_array);
    let name = |one: &Value| one.get("name").and_then(Value::as_str).map(str::to_owned);
    resources.into_iter().flatten().filter_map(name).collect()
}

fn warm_pool(kubectl: &Kubectl, config: &Config, cancel: &Cancel) -> Check {
    let name = "warm_pool";
    let object = kubectl::pool_object(&config.warm_pool);
    let what = format!("{} namespace={}", config.warm_pool, config.namespace);
    match kubectl.exists(&object, cancel) {
        Ok(true) => ok(name, what),
        Ok(false) => {
            let message = format!(
                "namespace {} has no SandboxWarmPool {:?}",
                config.namespace, config.warm_pool
            );
            let failure = Failure::new(Code::Config, message);
            bad(
                name,
                &failure.hint("set agentSandbox.warmPool and agentSandbox.namespace"),
            )
        }
        Err(refusal) => bad(name, &refusal.failure),
    }
}

/// All of it in one request: reviews are answered and not kept.
fn rbac(kubectl: &Kubectl, config: &Config, cancel: &Cancel) -> Vec<Check> {
    let review = |group: &str, resource: &str, subresource: &str, verb: &str| {
        json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "namespace": config.namespace, "verb": verb, "group": group,
                "resource": resource, "subresource": subresource,
            }},
        })
    };
    let mut reviews = Vec::new();
    for (group, resource, subresource, verbs) in RULES {
        for verb in verbs {
            reviews.push(review(group, resource, subresource, verb));
        }
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": reviews});
    let answers = kubectl
        .review(list.to_string().into_bytes(), cancel)
        .map(|bytes| answers(&bytes));
    RULES
        .iter()
        .map(|(group, resource, subresource, verbs)| {
            let resource = match *subresource {
                "" => (*resource).to_owned(),
                subresource => format!("{resource}/{subresource}"),
            };
            let name = format!("rbac.{resource}");
            let what = match *group {
                "" => format!("{} {resource}", verbs.join(",")),
                group => format!("{} {group}/{resource}", verbs.join(",")),
            };
            let what = format!("{what} namespace={}", config.namespace);
            match &answers {
                Err(refusal) => bad(&name, &refusal.failure),
                Ok(answers) => verdict(&name, what, &resource, verbs, answers),
            }
        })
        .collect()
}

fn verdict(
    name: &str,
    what: String,
    resource: &str,
    verbs: &[&str],
    answers: &[(String, String, bool)],
) -> Check {
    let allowed = |verb: &&&str| {
        let matches = |(of, asked, _): &&(String, String, bool)| of == resource && asked == **verb;
        answers
            .iter()
            .find(matches)
            .is_some_and(|(_, _, allowed)| *allowed)
    };
    let denied: Vec<_> = verbs
        .iter()
        .filter(|verb| !allowed(verb))
        .copied()
        .collect();
    if denied.is_empty() {
        return ok(name, what);
    }
    let denied = denied.join(",");
    let message = format!("agent-sandbox RBAC denied: {denied} {resource} ({what} needed)");
    let failure = Failure::new(Code::Denied, message);
    bad(
        name,
        &failure.hint(format!(
            "ask the cluster's operator for {denied} on {resource}"
        )),
    )
}

/// Resource, verb, and whether it is allowed.
fn answers(bytes: &[u8]) -> Vec<(String, String, bool)> {
    let mut answers = Vec::new();
    let values = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
    for value in values.filter_map(Result::ok) {
        let items = value.get("items").and_then(Value::as_array).cloned();
        for review in items.unwrap_or_else(|| vec![value]) {
            let attributes = review.pointer("/spec/resourceAttributes");
            let text = |key: &str| {
                let value = attributes
                    .and_then(|all| all.get(key))
                    .and_then(Value::as_str);
                value.unwrap_or("").to_owned()
            };
            let resource = match text("subresource").as_str() {
                "" => text("resource"),
                subresource => format!("{}/{subresource}", text("resource")),
            };
            let allowed = review.pointer("/status/allowed").and_then(Value::as_bool);
            answers.push((resource, text("verb"), allowed == Some(true)));
        }
    }
    answers
}

fn ok(name: &str, message: String) -> Check {
    Check::new(Health::Ok, name, message).detail("mutation", "false")
}

fn bad(name: &str, failure: &Failure) -> Check {
    Check::of_failure(Health::Failed, name, failure)
        .class(Class::of(failure))
        .detail("mutation", "false")
}
