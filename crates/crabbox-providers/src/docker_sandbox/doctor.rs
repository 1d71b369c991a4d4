//! The questions that `doctor` asks: none of them changes anything.

use crabbox_core::Failure;
use crabbox_core::process::Cancel;
use crabbox_core::provider::{Check, Health};

use super::argv;
use super::client::Client;
use super::parse::{self, BASELINE, Engine};

/// The engine's own check that says what keeps a sandbox in.
const ISOLATION: &str = "Virtualization";

pub(super) fn missing(failure: &Failure) -> Check {
    check(Health::Missing, "sbx_version", failure.to_string())
        .detail("hint", failure.hints.join("; "))
}

/// Every check is shown, also after one has failed.
pub(super) fn checks(client: &Client, cancel: &Cancel) -> Vec<Check> {
    let mut checks = vec![engine(client)];
    match client.version(cancel) {
        Err(failure) => checks.push(failed("sbx_version", &failure)),
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
        Err(failure) => failed("sbx_inventory", &failure),
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
    let optional =
        |message: String| check(Health::Warn, "sbx_diagnose", message).detail("optional", "true");
    let said = match client.look(argv::diagnose(), cancel) {
        Ok(said) => said,
        Err(failure) => return vec![optional(failure.to_string())],
    };
    let Some(findings) = parse::diagnosis(&said.stdout) else {
        return vec![optional(format!(
            "`sbx diagnose` exited {} and printed no checks",
            said.end.code()
        ))];
    };
    let bad: Vec<_> = findings
        .iter()
        .filter(|(_, finding)| finding.status == "fail")
        .map(|(name, finding)| format!("{name}: {} (hint: {})", finding.message, finding.hint))
        .collect();
    let mut checks = vec![if bad.is_empty() {
        check(
            Health::Ok,
            "sbx_diagnose",
            format!("checks={}", findings.len()),
        )
    } else {
        optional(bad.join("; "))
    }];
    if let Some(isolation) = findings.get(ISOLATION) {
        checks.push(check(
            Health::Ok,
            "sbx_isolation",
            isolation.message.clone(),
        ));
    }
    checks
}

fn failed(name: &str, failure: &Failure) -> Check {
    check(Health::Failed, name, failure.to_string()).detail("hint", failure.hints.join("; "))
}

fn check(status: Health, name: &str, message: String) -> Check {
    Check::new(status, name, message).detail("mutation", "false")
}
