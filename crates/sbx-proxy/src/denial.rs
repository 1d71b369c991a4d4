//! What a client is told that may not go where it wants: what, why, and which command would allow it.

use std::fmt::Write as _;

use sbx_policy::{Kind, Scope, Target, Verdict, remedy};
use serde_json::json;

/// How the client would like to read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
}

impl Form {
    /// By the client's `Accept` header.
    pub(crate) fn accepted(accept: Option<&str>) -> Self {
        let json = accept.is_some_and(|accept| {
            accept.split(',').any(|kind| {
                let kind = kind.split(';').next().unwrap_or_default().trim();
                kind.eq_ignore_ascii_case("application/json") || kind.ends_with("+json")
            })
        });
        if json { Self::Json } else { Self::Text }
    }
}

/// The body of a denial and its media type.
pub(crate) fn body(
    form: Form,
    sandbox: &str,
    target: &Target,
    verdict: &Verdict,
) -> (&'static str, String) {
    match form {
        Form::Text => ("text/plain; charset=utf-8", text(sandbox, target, verdict)),
        Form::Json => ("application/json", json_text(sandbox, target, verdict)),
    }
}

fn text(sandbox: &str, target: &Target, verdict: &Verdict) -> String {
    let mut text = match verdict.kind {
        Kind::Explicit => format!("Blocked by local rule for {target}\n"),
        Kind::Allowed
        | Kind::Implicit
        | Kind::Address
        | Kind::Loopback
        | Kind::Malformed
        | Kind::RecordType => {
            format!("Blocked by network policy: domain {target}\n")
        }
    };
    // Writing to a string does not fail.
    match &verdict.rule {
        Some(rule) => {
            let _ = match rule.name == rule.id {
                true => writeln!(text, "  rule: {}", rule.id),
                false => writeln!(text, "  rule: {} ({})", rule.name, rule.id),
            };
            let _ = writeln!(text, "  origin: {}", rule.origin);
        }
        None => {
            let _ = writeln!(text, "  rule: none");
            let _ = writeln!(text, "  origin: default");
        }
    }
    let _ = writeln!(text, "  detail: {}", verdict.reason);
    if let Some(command) = remedy(&Scope::Sandbox(sandbox.to_owned()), target, verdict) {
        let _ = writeln!(text, "  hint: {command}");
    }
    text
}

fn json_text(sandbox: &str, target: &Target, verdict: &Verdict) -> String {
    let value = json!({
        "error": "blocked by network policy",
        "sandbox": sandbox,
        "target": target.to_string(),
        "host": target.host.to_string(),
        "port": target.port,
        "deny_kind": verdict.kind,
        "reason": verdict.reason,
        "rule": verdict.rule.as_ref().map(|rule| json!({
            "id": rule.id,
            "name": rule.name,
            "policy": rule.policy,
            "scope": rule.scope,
            "origin": rule.origin,
            "resource": rule.resource,
        })),
        "hint": remedy(&Scope::Sandbox(sandbox.to_owned()), target, verdict),
    });
    format!("{value}\n")
}
