//! Lines of the audit log, made from what the gate decided.

use std::net::SocketAddr;

use jiff::Timestamp;
use sbx_policy::{Kind, Verdict};

use crate::audit::{Audit, Entrance, Line, Outcome, Phase, Via};
use crate::gate::GateDecision;

/// A denial, on record at once.
pub(crate) fn record_denial(audit: &Audit, entrance: Entrance, via: Via, decision: &GateDecision) {
    audit.write(&Line {
        host: decision.target.host.to_string(),
        port: Some(decision.target.port),
        ..line(audit, entrance, via, &decision.verdict)
    });
}

/// Something that named no target that could be checked.
pub(crate) fn record_malformed(
    audit: &Audit,
    entrance: Entrance,
    via: Via,
    host: &str,
    port: Option<u16>,
    reason: &str,
) {
    audit.write(&Line {
        host: host.chars().take(300).collect(),
        port,
        ..blank(audit, entrance, via, Outcome::Deny, reason)
    });
}

/// A question for records that are not answered.
pub(crate) fn record_unanswered(audit: &Audit, host: &str, reason: &str) {
    audit.write(&Line {
        host: host.to_owned(),
        deny_kind: Some(Kind::RecordType),
        ..blank(audit, Entrance::Dns, Via::Dns, Outcome::Deny, reason)
    });
}

/// A name that was asked for.
pub(crate) fn record_lookup(audit: &Audit, host: &str, verdict: &Verdict) {
    audit.write(&Line {
        host: host.to_owned(),
        ..line(audit, Entrance::Dns, Via::Dns, verdict)
    });
}

pub(crate) fn line(audit: &Audit, entrance: Entrance, via: Via, verdict: &Verdict) -> Line {
    let outcome = if verdict.allowed {
        Outcome::Allow
    } else {
        Outcome::Deny
    };
    Line {
        // That it was denied for.
        address: refused_address(verdict),
        deny_kind: (!verdict.allowed).then_some(verdict.kind),
        rule: verdict.rule.as_ref().map(|rule| rule.id.clone()),
        rule_name: verdict.rule.as_ref().map(|rule| rule.name.clone()),
        ..blank(audit, entrance, via, outcome, &verdict.reason)
    }
}

fn refused_address(verdict: &Verdict) -> Option<SocketAddr> {
    let opens = verdict.opens.as_ref()?;
    Some(SocketAddr::new(opens.address()?, opens.port()?))
}

fn blank(audit: &Audit, entrance: Entrance, via: Via, verdict: Outcome, reason: &str) -> Line {
    Line {
        time: Timestamp::now(),
        sandbox: audit.sandbox().to_owned(),
        id: audit.next_id(),
        entrance,
        proxy: via,
        host: String::new(),
        port: None,
        address: None,
        verdict,
        deny_kind: Some(Kind::Malformed),
        rule: None,
        rule_name: None,
        reason: reason.to_owned(),
        sent: 0,
        received: 0,
        duration_ms: 0,
        phase: Phase::Closed,
        error: None,
        first: None,
        count: 1,
    }
}
