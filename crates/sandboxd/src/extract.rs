//! Parts of a request, with our own errors when they are not what they should be.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use sbx_api::ErrorCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::reply::Failure;

/// The body as JSON, whatever its content type says.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = Bytes::from_request(request, state).await.map_err(|e| {
            let code = if e.status() == StatusCode::PAYLOAD_TOO_LARGE {
                ErrorCode::TooLarge
            } else {
                ErrorCode::BadRequest
            };
            Failure::new(code, format!("cannot take the body: {}", e.body_text()))
        })?;
        serde_json::from_slice(&bytes).map(Self).map_err(|e| {
            Failure::new(
                ErrorCode::BadRequest,
                format!("the body is not what this route takes: {e}"),
            )
        })
    }
}

/// The sandbox that the path names.
pub(crate) struct Name(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(e) => Err(Failure::new(ErrorCode::BadRequest, e.body_text())),
        }
    }
}

/// `?force=true`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Force {
    #[serde(default)]
    pub(crate) force: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for Force {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Query::<Self>::from_request_parts(parts, state).await {
            Ok(Query(force)) => Ok(force),
            Err(e) => Err(Failure::new(ErrorCode::BadRequest, e.body_text())),
        }
    }
}
