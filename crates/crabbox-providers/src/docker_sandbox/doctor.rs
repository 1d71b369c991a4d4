//! The questions that `doctor` asks: none of them changes anything.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crabbox_core::process::{Cancel, Captured, Reason};
use crabbox_core::provider::{ADVICE, Check, Class, Health};
use crabbox_core::{Code, Failure};

use super::argv;
use super::client::{Client, is_tolerated};
use super::engine::By;
use super::parse::{self, BASELINE, Engine, Finding};

/// What one question may take of the time for all of them: one that hangs leaves some for the others.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// The engine's own check that says what keeps a sandbox in.
const ISOLATION: &str = "Virtualization";

const DIAGNOSE: &str = "sbx_diagnose";

/// The same checks where there is nothing to ask.
pub(super) fn missing(failure: &Failure) -> Vec<Check> {
    let reason = "no sbx found";
    vec![
        bad(Health::Missing, "sbx_engine", failure),
        check(Health::Missing, "sbx_version", reason.to_owned()).class(Class::Tool),
        skipped("sbx_compatibility", reason),
        skipped("sbx_inventory", reason),
        skipped(DIAGNOSE, reason),
    ]
}

/// Every check is shown, also after one has failed.
pub(super) fn checks(client: &Client, cancel: &Cancel) -> Vec<Check> {
    let mut checks = vec![engine(client)];
    let mut is_own = false;
    match ask(cancel, |cancel| client.version(cancel)) {
        Err(unanswered) => {
            checks.push(unanswered.check("sbx_version", version_health(client, &unanswered)));
            checks.push(skipped("sbx_compatibility", "the version is not known"));
        }
        Ok(version) => {
            let line = version.first_line.clone();
            checks.push(
                check(Health::Ok, "sbx_version", format!("version={line}")).detail("version", line),
            );
            is_own = version.engine == Engine::Own;
            checks.push(compatibility(&version));
        }
    }
    checks.push(match ask(cancel, |cancel| client.list(cancel)) {
        Ok(all) => check(Health::Ok, "sbx_inventory", format!("leases={}", all.len()))
            .detail("leases", all.len().to_string()),
        Err(unanswered) => unanswered.check("sbx_inventory", Health::Failed),
    });
    checks.extend(diagnosis(client, is_own, cancel));
    checks
}

/// Why there is no answer.
enum Unanswered {
    Failed(Failure),
    /// It was not asked: what became of other questions is not its fault.
    NotAsked(Reason),
}

impl Unanswered {
    fn check(&self, name: &str, status: Health) -> Check {
        match self {
            Self::Failed(failure) => bad(status, name, failure),
            Self::NotAsked(Reason::Late) => skipped(name, "the time for all checks is over"),
            Self::NotAsked(reason) => skipped(name, &reason.to_string()),
        }
    }
}

/// One question, within its share of the time.
fn ask<T>(
    cancel: &Cancel,
    question: impl FnOnce(&Cancel) -> Result<T, Failure>,
) -> Result<T, Unanswered> {
    if let Some(reason) = cancel.reason() {
        return Err(Unanswered::NotAsked(reason));
    }
    question(&cancel.until(Instant::now() + CALL_TIMEOUT)).map_err(Unanswered::Failed)
}

/// A run goes on with another engine that does not tell its version, so the verdict does as well. Ours always tells it.
fn version_health(client: &Client, unanswered: &Unanswered) -> Health {
    let own = client.found.by == By::Bundled || client.is_known_own();
    match unanswered {
        Unanswered::Failed(failure) if !own && is_tolerated(failure) => Health::Warn,
        Unanswered::Failed(_) | Unanswered::NotAsked(_) => Health::Failed,
    }
}

fn engine(client: &Client) -> Check {
    let program = client.found.program.display().to_string();
    let by = client.found.by.as_str();
    check(
        Health::Ok,
        "sbx_engine",
        format!("program={program} found={by}"),
    )
    .detail("tool", "sbx")
    .detail("path", program.clone())
    .detail("source", by)
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

/// Our own engine fails a check only where it could create no sandbox. What another one means by it is not known, and one
/// that cannot diagnose itself may still work.
fn diagnosis(client: &Client, is_own: bool, cancel: &Cancel) -> Vec<Check> {
    let said = match ask(cancel, |cancel| client.look(argv::diagnose(), cancel)) {
        Ok(said) => said,
        Err(unanswered) => {
            let check = unanswered.check(DIAGNOSE, Health::Warn);
            return vec![check.detail("optional", "true")];
        }
    };
    let findings = parse::diagnosis(&said.stdout);
    let mut checks = vec![match complaint(client, said, findings.as_ref()) {
        Some(failure) if is_own => bad(Health::Failed, DIAGNOSE, &failure),
        Some(failure) => optional(&failure),
        None => {
            let count = findings.as_ref().map_or(0, BTreeMap::len);
            check(Health::Ok, DIAGNOSE, format!("checks={count}"))
        }
    }];
    let warned = findings.iter().flatten();
    let warned = warned.filter(|(_, finding)| finding.status == "warn");
    checks.extend(warned.map(|(name, finding)| warning(name, finding)));
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
        .collect();
    let texts: Vec<_> = bad
        .iter()
        .map(|(name, finding)| format!("{name}: {}", finding.text()))
        .collect();
    let mut failed = Failure::new(Code::Provider, texts.join("; "));
    let hints = bad.iter().map(|(_, finding)| finding.hint.clone());
    failed.hints = hints.filter(|hint| !hint.is_empty()).collect();
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

/// What works worse than it could, by a name like ours.
fn warning(name: &str, finding: &Finding) -> Check {
    let name: String = name
        .chars()
        .map(|c| match c.is_ascii_alphanumeric() {
            true => c.to_ascii_lowercase(),
            false => '_',
        })
        .collect();
    let warning = check(Health::Warn, &format!("sbx_{name}"), finding.text());
    match finding.hint.is_empty() {
        true => warning,
        false => warning.detail(ADVICE, finding.hint.clone()),
    }
}

fn optional(failure: &Failure) -> Check {
    bad(Health::Warn, DIAGNOSE, failure).detail("optional", "true")
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

#[cfg(test)]
mod tests {
    use super::super::engine::Found;
    use super::*;

    #[test]
    fn what_was_not_asked_has_not_failed() {
        let found = Found {
            program: "/bin/false".into(),
            by: By::Setting,
        };
        let state = tempfile::tempdir().unwrap();
        let client = Client::new(found, state.path(), &crabbox_core::git::Env::new());
        let late = Cancel::new().until(Instant::now());
        let shown: Vec<_> = checks(&client, &late)
            .into_iter()
            .map(|check| {
                format!(
                    "{} {}: {}",
                    check.status.as_str(),
                    check.check,
                    check.message
                )
            })
            .collect();
        let over = "not checked: the time for all checks is over";
        assert_eq!(
            shown,
            [
                "ok sbx_engine: program=/bin/false found=dockerSandbox.cliPath".to_owned(),
                format!("skip sbx_version: {over}"),
                "skip sbx_compatibility: not checked: the version is not known".to_owned(),
                format!("skip sbx_inventory: {over}"),
                format!("skip sbx_diagnose: {over}"),
            ]
        );
    }
}
