//! `run --timing-record`: the timing of a run as a line of a ledger.

use crabbox_core::Failure;
use crabbox_core::bench::{Ledger, Observation, Subject, command_fingerprint, fingerprint};
use crabbox_core::command::display;
use crabbox_core::git::{Repository, directory_name};
use crabbox_core::lifecycle::Outcome;
use crabbox_core::provider::Spec;
use crabbox_core::redact::Redactor;
use jiff::Timestamp;

use crate::app::App;

/// The ledger of `default|off|PATH`, opened before anything is made.
pub(super) fn open(app: &App<'_>, word: Option<&str>) -> Result<Option<Ledger>, Failure> {
    let path = match word {
        None | Some("off") => return Ok(None),
        Some("") => return Err(Failure::usage("--timing-record must not be empty")),
        Some("default") => return Ledger::open_default(&app.host.state()?).map(Some),
        Some(path) => app.host.cwd.join(path),
    };
    Ledger::open(&path).map(Some)
}

/// Writes the line. A run that cannot be recorded is what it was.
pub(super) fn append(
    app: &App<'_>,
    ledger: Option<Ledger>,
    words: &[String],
    spec: &Spec,
    outcome: &Outcome,
) {
    let Some(ledger) = ledger else {
        return;
    };
    let path = ledger.path().display().to_string();
    let root = app.root();
    let repository = Repository::discover(&root, &app.host.env).ok().flatten();
    let name = repository.as_ref().map(Repository::name);
    let head = repository.as_ref().and_then(Repository::head);
    let subject = Subject {
        command_fingerprint: command_fingerprint(words),
        command_display: Redactor::default().clean(&display(words)).into_owned(),
        repo_fingerprint: fingerprint(root.as_os_str().as_encoded_bytes()),
        repo_name: name.unwrap_or_else(|| directory_name(&root)),
        repo_head: head.unwrap_or_default(),
        provider_family: spec.family.to_owned(),
        provider_kind: spec.kind.to_owned(),
        provider_category: spec.category.to_owned(),
        cold_run: outcome.session.as_ref().map(|session| !session.reused),
    };
    let observation = Observation::of_run(Timestamp::now(), subject, outcome.timing.clone());
    app.ui.say(&match ledger.append(&observation) {
        Ok(()) => format!("benchmark timing record appended path={path} observations=1"),
        Err(failure) => format!("warning: {failure}"),
    });
}
