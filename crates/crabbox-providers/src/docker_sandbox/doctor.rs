//! The questions that `doctor` asks: none of them changes anything.

use std::collections::BTreeMap;

use crabbox_core::process::{Cancel, Captured};
use crabbox_core::provider::{Check, Class, Health};
use crabbox_core::{Code, Failure};

use super::argv;
use super::client::Client;
use super::parse::{self, BASELINE, Engine, Finding};

/// The engine's own check that says what keeps a sandbox in.
const ISOLATION: &str = "Virtualization";

/// The same checks where there is nothing to ask.
pub(super) fn missing(failure: &Failure) -> Vec<Check> {
    let reason = "there is no sbx to ask";
    vec![
        bad(Health::Missing, "sbx_engine", failure),
        check(Health::Missing, "sbx_version", reason.to_owned()).class(Class::Tool),
        skipped("sbx_compatibility", reason),
        skipped("sbx_inventory", reason),
        skipped("sbx_diagnose", reason),
    ]
}

/// Every check is shown, also after one has failed.
pub(super) fn checks(client: &Client, cancel: &Cancel) -> Vec<Check> {
    let mut checks = vec![engine(client)];
    match client.version(cancel) {
        Err(failure) => {
            checks.push(bad(Health::Failed, "sbx_version", &failure));
            checks.push(skipped("sbx_compatibility", "the version is not known"));
        }
        Ok(version) => {
            let line = version.first_line.clone();
            checks.push(
                check(Health::Ok, "sbx_version", format!("version={line}")).detail("version", line),
            );
            checks.push(compatibility(&version));
        }
    }
    checks.push(match client.list(cancel) {
        Ok(all) => check(Health::Ok, "sbx_inventory", format!("leases={}", all.len()))
            .detail("leases", all.len().to_string()),
        Err(failure) => bad(Health::Failed, "sbx_inventory", &failure),
    });
    checks.extend(diagnosis(client, cancel));
    checks
}

fn engine(client: &Client) -> Check {
    let program = client.found.program.display().to_string();
    let by = client.found.by.as_str();
    check(
        Health::Ok,
        "sbx_engine",
        format!("program={program} found={by}"),
    )
    .detail("program", program)
    .detail("found", by)
}

fn compatibility(version: &parse::Version) -> Check {
    let key = match version.engine {
        Engine::Own => "contract",
        Engine::Foreign => "baseline",
    };
    if version.compatible {
        return check(
            Health::Ok,
            "sbx_compatibility",
            format!("sbx_compatibility=ok {key}={BASELINE}"),
        )
        .detail(key, BASELINE);
    }
    let message =
        format!("sbx_compatibility=best-effort: not the validated {BASELINE} on both sides");
    check(Health::Warn, "sbx_compatibility", message).detail(key, BASELINE)
}

/// Optional: an engine that cannot diagnose itself may still work.
fn diagnosis(client: &Client, cancel: &Cancel) -> Vec<Check> {
    let said = match client.look(argv::diagnose(), cancel) {
        Ok(said) => said,
        Err(failure) => return vec![optional(&failure)],
    };
    let findings = parse::diagnosis(&said.stdout);
    let mut checks = vec![match complaint(client, said, findings.as_ref()) {
        Some(failure) => optional(&failure),
        None => {
            let count = findings.as_ref().map_or(0, BTreeMap::len);
            check(Health::Ok, "sbx_diagnose", format!("checks={count}"))
        }
    }];
    if let Some(isolation) = findings.as_ref().and_then(|all| all.get(ISOLATION)) {
        let message = isolation.message.clone();
        checks.push(check(Health::Ok, "sbx_isolation", message));
    }
    checks
}

/// The checks that failed, and what the engine says besides.
fn complaint(
    client: &Client,
    said: Captured,
    findings: Option<&BTreeMap<String, Finding>>,
) -> Option<Failure> {
    let Some(findings) = findings else {
        let no_checks = "`sbx diagnose` printed no checks";
        return Some(match said.end.success() {
            true => Failure::new(Code::ProviderMalformed, no_checks),
            false => client.failure(&said),
        });
    };
    let bad: Vec<_> = findings
        .iter()
        .filter(|(_, finding)| finding.status == "fail")
        .map(|(name, finding)| match finding.hint.as_str() {
            "" => format!("{name}: {}", finding.message),
            hint => format!("{name}: {} (hint: {hint})", finding.message),
        })
        .collect();
    let failed = Failure::new(Code::Provider, bad.join("; "));
    // What it printed was read: the rest is on stderr.
    let mut rest = said;
    rest.stdout.clear();
    match (bad.is_empty(), rest.end.success()) {
        (true, true) => None,
        (true, false) => Some(client.failure(&rest)),
        (false, false) if !rest.stderr.is_empty() => Some(failed.and(&client.failure(&rest))),
        (false, _) => Some(failed),
    }
}

fn optional(failure: &Failure) -> Check {
    bad(Health::Warn, "sbx_diagnose", failure).detail("optional", "true")
}

fn skipped(name: &str, reason: &str) -> Check {
    check(Health::Skip, name, format!("not checked: {reason}"))
}

fn bad(status: Health, name: &str, failure: &Failure) -> Check {
    harmless(Check::of_failure(status, name, failure).class(Class::of(failure)))
}

fn check(status: Health, name: &str, message: String) -> Check {
    harmless(Check::new(status, name, message))
}

fn harmless(check: Check) -> Check {
    check.detail("mutation", "false")
}
