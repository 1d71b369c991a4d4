//! Every answer that is not 2xx, as JSON.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sbx_api::{ErrorBody, ErrorCode};
use sbx_engine::EngineError;
use sbx_engine::error::chain;

/// An [`ErrorBody`] and the status that belongs to it.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    body: ErrorBody,
}

impl Failure {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let status = match code {
            ErrorCode::BadRequest => StatusCode::BAD_REQUEST,
            ErrorCode::NotFound => StatusCode::NOT_FOUND,
            ErrorCode::Conflict | ErrorCode::VersionMismatch => StatusCode::CONFLICT,
            ErrorCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorCode::NotYet => StatusCode::NOT_IMPLEMENTED,
            ErrorCode::Engine => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self {
            status,
            body: ErrorBody {
                message: message.into(),
                code,
                hint: None,
            },
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.body.hint = Some(hint.into());
        self
    }

    pub(crate) fn into_body(self) -> ErrorBody {
        self.body
    }

    pub(crate) fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let mut failure = Self::new(error.code(), chain(&error));
        failure.body.hint = error.hint();
        failure
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}
