//! Rules and verdicts as the API shows them.

use std::net::SocketAddr;

use jiff::Timestamp;
use sbx_api::policy::{CheckAnswer, Governance, OtherTcp, PolicyRule, RuleDecision};
use sbx_policy::{
    Decision, Host, Kind, Origin, Pattern, Rule, Scope, Target, Traffic, Verdict, is_host_alias,
    preset_reason, remedy,
};

/// `now` decides whether the rule is still one.
pub fn shown(rule: &Rule, now: Timestamp) -> PolicyRule {
    let applies_to = match &rule.scope {
        Scope::Global => "all".to_owned(),
        scope @ (Scope::Repo(_) | Scope::Sandbox(_)) => scope.to_string(),
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
        allow_private: rule.allow_private,
        expires_at: rule.expires,
        reason: match rule.origin {
            Origin::Preset => preset_reason(&rule.id),
            Origin::Local | Origin::Scoped | Origin::Kit | Origin::ProxyConfig => None,
        },
    }
}

/// A question of `policy check`, and what enforcement says to it.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    pub scope: &'a Scope,
    /// As it was typed.
    pub asked: &'a str,
    pub target: &'a Target,
    pub verdict: &'a Verdict,
    /// What anything but HTTP and HTTPS is told, if that differs.
    pub other: Option<&'a Verdict>,
    /// What [`PolicyBook::narrowed`](super::PolicyBook::narrowed) says.
    pub narrowed: Option<&'a str>,
    pub addresses: &'a [SocketAddr],
}

pub fn answer(question: &Question<'_>) -> CheckAnswer {
    let Question {
        scope,
        target,
        verdict,
        other,
        ..
    } = *question;
    let rule = verdict.rule.as_ref();
    // The name of this machine inside is decided as the name that rules have for it.
    let resource_value = if is_host_alias(&target.host) {
        format!("localhost:{}", target.port)
    } else {
        target.to_string()
    };
    CheckAnswer {
        action: "net:connect:tcp".into(),
        allowed: verdict.allowed,
        context: scope.to_string(),
        deny_kind: deny_kind(verdict),
        governance: Governance { active: false },
        origin: rule.map(|rule| rule.origin.as_str().to_owned()),
        reason: (!verdict.reason.is_empty()).then(|| match question.narrowed {
            // A user who has allowed everything wants to know why this is not allowed.
            Some(narrowed) if verdict.kind == Kind::Implicit => {
                format!("{}; {narrowed}", verdict.reason)
            }
            Some(_) | None => verdict.reason.clone(),
        }),
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
        hint: remedy(scope, target, verdict),
        other_tcp: other.map(|verdict| OtherTcp {
            allowed: verdict.allowed,
            deny_kind: deny_kind(verdict),
            reason: verdict.reason.clone(),
            hint: remedy(scope, target, verdict),
        }),
    }
}

fn deny_kind(verdict: &Verdict) -> Option<String> {
    (!verdict.allowed).then(|| verdict.kind.as_str().to_owned())
}
