//! Rules and verdicts as the API shows them.

use std::net::SocketAddr;

use jiff::Timestamp;
use sbx_api::policy::{CheckAnswer, Governance, PolicyRule, RuleDecision};
use sbx_policy::{
    Decision, Host, Kind, Origin, Pattern, Rule, Scope, Target, Traffic, Verdict, is_host_alias,
};

/// `now` decides whether the rule is still one.
pub fn shown(rule: &Rule, now: Timestamp) -> PolicyRule {
    let applies_to = match &rule.scope {
        Scope::Global => "all".to_owned(),
        scope @ Scope::Sandbox(_) => scope.to_string(),
    };
    let status = if rule.is_expired(now) {
        "inactive"
    } else {
        "active"
    };
    PolicyRule {
        id: rule.id.clone(),
        name: rule.name.clone(),
        policy_id: rule.policy.clone(),
        scope: rule.scope.to_string(),
        applies_to,
        resource_type: "network".into(),
        decision: match rule.decision {
            Decision::Allow => RuleDecision::Allow,
            Decision::Deny => RuleDecision::Deny,
        },
        resources: rule.resources.iter().map(Pattern::to_string).collect(),
        origin: rule.origin.as_str().into(),
        layer: "local".into(),
        status: status.into(),
        editable: rule.editable,
        sandbox_id: None,
        traffic: match rule.traffic {
            Traffic::Any => None,
            Traffic::Web => Some("web".into()),
        },
        expires_at: rule.expires,
    }
}

/// A question of `policy check`, and what enforcement says to it.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    pub sandbox: Option<&'a str>,
    /// As it was typed.
    pub asked: &'a str,
    pub target: &'a Target,
    pub verdict: &'a Verdict,
    pub addresses: &'a [SocketAddr],
}

pub fn answer(question: &Question<'_>) -> CheckAnswer {
    let Question {
        sandbox,
        target,
        verdict,
        ..
    } = *question;
    let rule = verdict.rule.as_ref();
    // The name of this machine inside is judged as the name that rules have for it.
    let resource_value = if is_host_alias(&target.host) {
        format!("localhost:{}", target.port)
    } else {
        target.to_string()
    };
    CheckAnswer {
        action: "net:connect:tcp".into(),
        allowed: verdict.allowed,
        context: sandbox.map_or_else(|| "global".to_owned(), |name| format!("sandbox:{name}")),
        deny_kind: (!verdict.allowed).then(|| verdict.kind.as_str().to_owned()),
        governance: Governance { active: false },
        origin: rule.map(|rule| rule.origin.as_str().to_owned()),
        reason: (!verdict.reason.is_empty()).then(|| verdict.reason.clone()),
        resource_type: match target.host {
            Host::Name(_) => "net:domain".into(),
            Host::Ip(_) => "net:ip".into(),
        },
        resource_value,
        rule: rule.map(|rule| rule.name.clone()),
        rule_id: rule.map(|rule| rule.id.clone()),
        target: question.asked.to_owned(),
        kind: "network".into(),
        addresses: question.addresses.iter().map(ToString::to_string).collect(),
        hint: remedy(sandbox, target, verdict),
    }
}

/// The command that changes the verdict, where there is one.
fn remedy(sandbox: Option<&str>, target: &Target, verdict: &Verdict) -> Option<String> {
    let scope = sandbox.map_or(String::new(), |name| format!(" --sandbox {name}"));
    let allow = |what: &str| Some(format!("sbx policy allow network{scope} {what}"));
    match verdict.kind {
        Kind::Allowed | Kind::Malformed => None,
        Kind::Explicit => {
            let rule = verdict.rule.as_ref()?;
            Some(match (rule.origin, &rule.scope) {
                (Origin::Local | Origin::Scoped, Scope::Global) => {
                    format!("sbx policy rm network --id {}", rule.id)
                }
                (Origin::Local | Origin::Scoped, Scope::Sandbox(name)) => {
                    format!("sbx policy rm network --sandbox {name} --id {}", rule.id)
                }
                (Origin::Preset | Origin::Kit | Origin::ProxyConfig, _) => {
                    format!("sbx policy inspect {}", rule.id)
                }
            })
        }
        Kind::Loopback => Some(format!(
            "sbx policy check network{scope} {}:{}",
            sbx_policy::HOST_ALIAS,
            target.port
        )),
        Kind::Implicit | Kind::Address if is_host_alias(&target.host) => {
            allow(&format!("localhost:{}", target.port))
        }
        Kind::Implicit | Kind::Address => allow(&target.to_string()),
    }
}
