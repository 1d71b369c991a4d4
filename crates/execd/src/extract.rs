//! Bodies and queries of requests. What cannot be read is refused in the protocol's own form.

use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use execd_proto::error::Code;
use serde::de::DeserializeOwned;

use crate::reply::Failure;

/// A body of JSON.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

/// The parameters behind `?`.
#[derive(Debug)]
pub(crate) struct Parameters<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        match axum::Json::<T>::from_request(request, state).await {
            Ok(axum::Json(value)) => Ok(Self(value)),
            Err(rejected) => Err(Failure::body(rejected.body_text())),
        }
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(value)) => Ok(Self(value)),
            Err(rejected) => {
                let message = rejected.body_text();
                Err(Failure::new(Code::InvalidRequestBody, message))
            }
        }
    }
}
