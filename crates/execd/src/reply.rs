//! Answers.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use execd_proto::error::{Code, ErrorBody};

/// A failed request.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) ErrorBody);

pub(crate) type Reply<T = Response> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self(ErrorBody::new(code, message))
    }

    /// An error of a file operation on `path`.
    pub(crate) fn file(path: &std::path::Path, error: &std::io::Error) -> Self {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => Code::FileNotFound,
            _ => Code::RuntimeError,
        };
        Self::new(code, format!("{}: {error}", path.display()))
    }

    pub(crate) fn body(error: impl std::fmt::Display) -> Self {
        Self::new(Code::InvalidRequestBody, error.to_string())
    }
}

impl From<ErrorBody> for Failure {
    fn from(body: ErrorBody) -> Self {
        Self(body)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.0)).into_response()
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_millis() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default()
}
