//! Processes that a command may have left in the sandbox. A command that was stopped, or that was lost sight of, is never
//! taken to be over: what has the variable of its run is ended, and what stays is reported.

use std::time::Duration;

use crabbox_core::process::Cancel;
use crabbox_core::{Code, Failure};

use super::execd::{Execd, ScriptEnd};
use super::script;

const SCAN_TIMEOUT: Duration = Duration::from_secs(10);
/// The clocks of the two sides, and the moment between our start and the daemon's.
const AGE_SLACK: Duration = Duration::from_secs(2);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Survivors {
    None,
    Pids(Vec<String>),
    Unknown(String),
}

/// Looks for processes of a run that began so long ago, and ends them. Not cut short by the cancellation that made it
/// necessary.
pub(super) fn end(execd: &Execd<'_>, run_id: Option<&str>, age: Duration) -> Survivors {
    let Some(run_id) = run_id else {
        return Survivors::Unknown("the run has no id".to_owned());
    };
    let text = script::end_survivors(run_id, age.saturating_add(AGE_SLACK).as_secs());
    let patient = Cancel::new();
    let looked = execd
        .http
        .wait(SCAN_TIMEOUT, &patient, execd.script(&text, SCAN_TIMEOUT));
    match looked.map(ScriptEnd::check) {
        Ok(Ok(lines)) => Survivors::from(lines),
        Ok(Err(why)) => Survivors::Unknown(why),
        Err(error) => Survivors::Unknown(error.to_string()),
    }
}

impl Survivors {
    /// As the script says it.
    fn from(lines: Vec<String>) -> Self {
        let (unreadable, pids): (Vec<_>, Vec<_>) = lines
            .into_iter()
            .partition(|line| line.starts_with(script::UNREADABLE));
        if !pids.is_empty() {
            return Self::Pids(pids);
        }
        if unreadable.is_empty() {
            return Self::None;
        }
        let pids = unreadable.join(" ").replace(script::UNREADABLE, "");
        Self::Unknown(format!("whose these processes are cannot be read: {pids}"))
    }

    /// For people; none where nothing stayed.
    pub(super) fn report(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Pids(pids) => Some(format!(
                "processes of the command are still running in the sandbox: {}",
                pids.join(" ")
            )),
            Self::Unknown(why) => Some(format!(
                "the command may still be running in the sandbox: {why}"
            )),
        }
    }

    /// The failure of the command, with what it left.
    pub(super) fn add_to(&self, failure: Failure) -> Failure {
        let Some(report) = self.report() else {
            return failure;
        };
        // Not "canceled": that says only what the user knows.
        let code = match failure.code {
            Code::Canceled => Code::Provider,
            other => other,
        };
        let failure = failure.and(&Failure::new(Code::Provider, report));
        Failure { code, ..failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survivors_are_reported_even_when_canceled() {
        let canceled = || Failure::new(Code::Canceled, "canceled: interrupted");
        assert_eq!(Survivors::None.add_to(canceled()).code, Code::Canceled);
        let pids = Survivors::Pids(vec!["7".into()]).add_to(canceled());
        assert_eq!(pids.code, Code::Provider);
        assert!(pids.to_string().contains("still running in the sandbox: 7"));
        let unknown = Survivors::Unknown("refused".into()).add_to(canceled());
        assert!(unknown.to_string().contains("may still be running"));
    }

    #[test]
    fn a_process_that_cannot_be_told_is_reported_and_one_of_the_run_first() {
        let from = |lines: &[&str]| {
            let lines = lines.iter().map(|line| (*line).to_owned());
            Survivors::from(lines.collect()).report()
        };
        assert_eq!(from(&[]), None);
        assert_eq!(
            from(&["?7", "?8"]).unwrap(),
            "the command may still be running in the sandbox: whose these processes are cannot be read: 7 8"
        );
        let report = from(&["?7", "9"]).unwrap();
        assert!(report.ends_with("still running in the sandbox: 9"));
    }
}
