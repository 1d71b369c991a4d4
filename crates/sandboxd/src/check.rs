//! `policy check`: what enforcement would say, asked of a daemon or of its program alone.

use std::io;

use jiff::Timestamp;
use sbx_api::policy::{CheckAnswer, CheckRequest};
use sbx_api::{ErrorBody, ErrorCode};
use sbx_engine::EngineError;
use sbx_engine::policy::{self, PolicyBook, Question};
use sbx_policy::{Protocol, Scope, Target};
use sbx_proxy::{Gate, system_lookup};

use crate::egress::idle_gate;
use crate::reply::Failure;

/// The answer of a gate; `narrowed` is what [`narrowed`] says.
pub(crate) async fn answer(
    gate: &Gate,
    narrowed: Option<&str>,
    request: &CheckRequest,
) -> Result<CheckAnswer, Failure> {
    let target = Target::parse_loose(&request.target)
        .map_err(|error| Failure::new(ErrorCode::BadRequest, error.to_string()))?;
    let protocol = Protocol::of_url(&request.target);
    let checked = gate.check(&target, protocol).await;
    Ok(policy::answer(&Question {
        scope: &scope(request)?,
        asked: &request.target,
        target: &target,
        verdict: &checked.decision.verdict,
        other: checked.other.as_ref().map(|other| &other.verdict),
        narrowed,
        addresses: &checked.decision.addresses,
    }))
}

/// What the older settings take away. Settings that cannot be read are said to be so by the answer itself.
pub(crate) fn narrowed(book: &PolicyBook, scope: &Scope) -> Option<String> {
    book.narrowed(scope, Timestamp::now()).unwrap_or_default()
}

/// Whom the question is about.
pub(crate) fn scope(request: &CheckRequest) -> Result<Scope, Failure> {
    let scope = policy::scope(request.sandbox.as_deref(), request.repo.as_deref());
    Ok(scope.map_err(EngineError::from)?)
}

/// The same without a daemon. Reads the files of the rules, starts nothing and makes nothing.
///
/// For `sbx`, which must not look up names itself: see `docs/decisions/0006-static-linking.md`.
pub fn check_offline(book: &PolicyBook, request: &CheckRequest) -> Result<CheckAnswer, ErrorBody> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(no_lookup)?;
    let scope = scope(request).map_err(Failure::into_body)?;
    let gate = idle_gate(book, &scope, system_lookup().map_err(no_lookup)?);
    let narrowed = narrowed(book, &scope);
    let answered = runtime.block_on(answer(&gate, narrowed.as_deref(), request));
    answered.map_err(Failure::into_body)
}

fn no_lookup(error: io::Error) -> ErrorBody {
    ErrorBody {
        message: format!("cannot look up names: {error}"),
        code: ErrorCode::Engine,
        hint: None,
    }
}
