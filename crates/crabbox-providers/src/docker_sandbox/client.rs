//! The `sbx` program at work.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crabbox_core::claims::OperationLock;
use crabbox_core::git::Env;
use crabbox_core::process::{
    Cancel, Captured, Limits, Output, StatusMemfd, Stdin, Streamed, Tool, Whose,
};
use crabbox_core::provider::Notices;
use crabbox_core::redact::Redactor;
use crabbox_core::{Code, Failure};
use serde::Deserialize;

use super::argv::{self, Argv};
use super::engine::{self, By, Found, Known};
use super::parse::{self, Listed, Version};
use super::shown_command::{shown_program, with_program};

/// For calls that change nothing.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(60);
/// For creating and removing a sandbox.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) found: Found,
    state: PathBuf,
    /// Of the user, who may type what a hint says.
    env: Env,
    redactor: Redactor,
    /// Asked at most once.
    known: OnceLock<Known>,
    /// Where the engine's own words go.
    pub(super) notices: Notices,
}

/// What our own engine says of a command's end in `--status-file`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Status {
    #[serde(flatten)]
    pub(super) ended_by: EndedBy,
    /// Whether the network policy denied the sandbox anything meanwhile. `None` where the engine cannot tell.
    #[serde(default)]
    pub(super) denied: Option<bool>,
}

/// Whether the command or the engine ended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "by", rename_all = "lowercase")]
pub(super) enum EndedBy {
    Command,
    Engine {
        /// Why there was no command that could have ended.
        #[serde(default)]
        message: String,
    },
}

impl Client {
    pub(super) fn new(found: Found, state: &Path, env: &Env) -> Self {
        Self {
            found,
            state: state.to_path_buf(),
            env: env.clone(),
            redactor: Redactor::default(),
            known: OnceLock::new(),
            notices: Notices::default(),
        }
    }

    /// The same program, found in another way.
    pub(super) fn found_as(&self, found: Found) -> Self {
        Self {
            found,
            ..self.clone()
        }
    }

    pub(super) fn version(&self, cancel: &Cancel) -> Result<Version, Failure> {
        self.ask_version(cancel).map(|(version, _)| version)
    }

    /// What is known of this engine, asking it if need be.
    pub(super) fn known(&self, cancel: &Cancel) -> Result<Known, Failure> {
        if let Some(known) = self.known.get() {
            return Ok(known.clone());
        }
        let known = match engine::recall(&self.state, &self.found.program) {
            Some(known) => known,
            None => self.ask_version(cancel)?.1,
        };
        Ok(self.known.get_or_init(|| known).clone())
    }

    /// Whether it is our own engine. One that cannot tell is not.
    pub(super) fn is_own(&self, cancel: &Cancel) -> bool {
        self.known_or_foreign(cancel)
            .is_ok_and(|known| known.bundled)
    }

    /// The same as far as that is known without a question.
    pub(super) fn is_known_own(&self) -> bool {
        match self.known.get() {
            Some(known) => known.bundled,
            None => {
                engine::recall(&self.state, &self.found.program).is_some_and(|known| known.bundled)
            }
        }
    }

    /// An engine that does not tell its version is another one's, and may be older than it looks: that is not a reason to
    /// fail a run whose sandbox exists.
    pub(super) fn known_or_foreign(&self, cancel: &Cancel) -> Result<Known, Failure> {
        match self.known(cancel) {
            Err(failure) if is_tolerated(&failure) => {
                let foreign = Known::foreign(&self.found.program);
                // Not asked again: it may take as long each time.
                Ok(self.known.get_or_init(|| foreign).clone())
            }
            known => known,
        }
    }

    /// How a user types this engine's program.
    pub(super) fn shown_program(&self) -> String {
        let own = self.found.by == By::Bundled || self.is_known_own();
        shown_program(&self.found.program, &self.env, own)
    }

    /// A hint whose commands can be typed.
    pub(super) fn hint(&self, hint: &str) -> String {
        with_program(hint, &self.shown_program())
    }

    /// What is known of this engine is to be asked again.
    pub(super) fn forget(&self) {
        engine::forget(&self.state);
    }

    fn ask_version(&self, cancel: &Cancel) -> Result<(Version, Known), Failure> {
        let said = self.capture(argv::version(), QUERY_TIMEOUT, cancel)?;
        let version = parse::version(&String::from_utf8_lossy(&said.stdout));
        if version.first_line.is_empty() {
            return Err(Failure::new(
                Code::ProviderMalformed,
                "`sbx version` printed nothing",
            ));
        }
        let known = engine::remember(&self.state, &self.found.program, &version);
        Ok((version, known))
    }

    pub(super) fn list(&self, cancel: &Cancel) -> Result<Vec<Listed>, Failure> {
        let said = self.capture(argv::list(), QUERY_TIMEOUT, cancel)?;
        parse::list(&said.stdout)
    }

    /// Proves what became of a sandbox by the engine's own list.
    pub(super) fn find(&self, name: &str, cancel: &Cancel) -> Result<Option<Listed>, Failure> {
        let all = self.list(cancel)?;
        Ok(all.into_iter().find(|one| one.name == name))
    }

    /// It reads nothing. The lock is its stdin because that is what daemons, if it starts one, do not keep.
    pub(super) fn create(
        &self,
        argv: Argv,
        lock: &OperationLock,
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        let stdin = lock.share().map_or(Stdin::Null, Stdin::File);
        let (notices, own) = (self.notices.clone(), self.is_own(cancel));
        let tool = self.tool(argv).stdin(stdin).hear_stderr(move |line| {
            if parse::is_notice(line, own) {
                notices.say(line);
            }
        });
        self.succeed(tool, CHANGE_TIMEOUT, cancel).map(drop)
    }

    pub(super) fn change(&self, argv: Argv, cancel: &Cancel) -> Result<(), Failure> {
        self.capture(argv, CHANGE_TIMEOUT, cancel).map(drop)
    }

    /// Whatever it exits with, as long as it runs: its output is the answer.
    pub(super) fn look(&self, argv: Argv, cancel: &Cancel) -> Result<Captured, Failure> {
        self.tool(argv)
            .capture(&Limits::within(QUERY_TIMEOUT), cancel)
            .map_err(|error| self.explain(error.into_failure(Whose::Provider)))
    }

    /// A call that must succeed.
    pub(super) fn capture(
        &self,
        argv: Argv,
        timeout: Duration,
        cancel: &Cancel,
    ) -> Result<Captured, Failure> {
        self.succeed(self.tool(argv), timeout, cancel)
    }

    fn succeed(&self, tool: Tool, timeout: Duration, cancel: &Cancel) -> Result<Captured, Failure> {
        let said = tool
            .show_args()
            .capture(&Limits::within(timeout), cancel)
            .map_err(|error| self.explain(error.into_failure(Whose::Provider)))?;
        if said.end.success() {
            return Ok(said);
        }
        Err(self.failure(&said))
    }

    /// Of a call that did not succeed: what it said, and what to do about that.
    pub(super) fn failure(&self, said: &Captured) -> Failure {
        let words = said.said(&self.redactor).unwrap_or_default();
        let mut failure = said.failure(&self.redactor);
        if parse::is_unknown_flag(&words) {
            self.forget();
        }
        let mut hints = Vec::new();
        if let Some(error) =
            parse::engine_error(&said.stderr).or_else(|| parse::engine_error(&said.stdout))
        {
            let clean = |text: &str| self.redactor.clean(text).into_owned();
            failure.causes = vec![clean(&error.message)];
            hints.extend(error.hint.as_deref().map(clean));
        }
        for cause in std::mem::take(&mut failure.causes) {
            let (rest, own) = parse::without_hints(&cause);
            failure.causes.extend(rest);
            hints.extend(own);
        }
        hints.retain(|hint| parse::is_for_anyone(hint));
        hints.extend(parse::guidance(&words).map(str::to_owned));
        let hints = hints.iter().map(|hint| self.hint(hint));
        failure.hints.extend(hints);
        failure
    }

    pub(super) fn stream(
        &self,
        argv: Argv,
        stdin: Stdin,
        stdout: Output,
        stderr: Output,
        cancel: &Cancel,
    ) -> Result<Streamed, Failure> {
        let limits = Limits {
            grace: Duration::from_secs(10),
            ..Limits::default()
        };
        self.tool(argv)
            .stdin(stdin)
            .stream(stdout, stderr, &limits, cancel)
            .map_err(|error| self.explain(error.into_failure(Whose::Provider)))
    }

    fn tool(&self, argv: Argv) -> Tool {
        let words: Vec<OsString> = argv.into_words();
        Tool::new(&self.found.program).args(words)
    }

    /// What to do about a call that did not come to its end.
    fn explain(&self, failure: Failure) -> Failure {
        match failure.code {
            Code::ProviderMissing => failure.hint(engine::INSTALL),
            Code::Timeout => failure.hint(self.hint(parse::NO_ANSWER)),
            _ => failure,
        }
    }
}

/// Whether a run goes on when `sbx version` fails in this way, as with another product's engine.
pub(super) fn is_tolerated(failure: &Failure) -> bool {
    matches!(
        failure.code,
        Code::Provider | Code::ProviderMalformed | Code::Timeout
    )
}

/// Where the engine says whether the command ended by itself.
pub(super) fn status() -> Result<Option<StatusMemfd>, Failure> {
    StatusMemfd::new()
        .map_err(|error| Failure::new(Code::Local, "cannot get memory").because(&error))
}

/// `None` where the engine said nothing.
pub(super) fn read(status: StatusMemfd) -> Option<Status> {
    let bytes = status.read().ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_with_and_without_what_was_denied() {
        let read = |text: &str| serde_json::from_str::<Status>(text).unwrap();
        let old = read(r#"{"by":"command","code":7}"#);
        assert_eq!((old.ended_by, old.denied), (EndedBy::Command, None));
        let new = read(r#"{"by":"engine","code":127,"message":"no","denied":false}"#);
        let message = "no".to_owned();
        assert_eq!(new.ended_by, EndedBy::Engine { message });
        assert_eq!(new.denied, Some(false));
        assert!(serde_json::from_str::<Status>(r#"{"by":"else"}"#).is_err());
    }
}
