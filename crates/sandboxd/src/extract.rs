//! Parts of a request, with our own errors when they are not what they should be.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body as RawBody, Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use jiff::Timestamp;
use sbx_api::ErrorCode;
use sbx_proto::object;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::reply::Failure;

/// What a request may weigh.
const MAX_BODY: usize = 1 << 20;
/// What is still read of one that weighs more, and for how long: many clients look for the answer only when they have
/// sent everything, and see a broken connection otherwise.
const MAX_DRAINED: usize = 64 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The body as a JSON object, whatever its content type says.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Failure> {
        let bytes = read(request.into_body()).await?;
        object::from_slice(&bytes)
            .map(Self)
            .map_err(|e| invalid_body(&e))
    }
}

/// The body of a route that has none: nothing at all, or an object with nothing in it. Anything else would be ignored, so it is
/// refused.
pub(crate) struct NoBody;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

impl<S: Send + Sync> FromRequest<S> for NoBody {
    type Rejection = Failure;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Failure> {
        let bytes = read(request.into_body()).await?;
        if bytes.is_empty() {
            return Ok(Self);
        }
        match object::from_slice(&bytes) {
            Ok(Empty {}) => Ok(Self),
            Err(e) => Err(invalid_body(&e)),
        }
    }
}

fn invalid_body(error: &serde_json::Error) -> Failure {
    let message = format!("invalid request body: {error}");
    Failure::new(ErrorCode::BadRequest, message)
}

async fn read(mut body: RawBody) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    while let Some(piece) = next(&mut body).await? {
        if bytes.len() + piece.len() > MAX_BODY {
            discard(body).await;
            return Err(Failure::new(
                ErrorCode::TooLarge,
                format!("the body has more than {MAX_BODY} bytes"),
            ));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// Reads what a client still sends, within limits. Whether it comes to its end or not, the answer is the same.
pub(crate) async fn discard(mut body: RawBody) {
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, drain(&mut body)).await;
}

async fn drain(body: &mut RawBody) {
    let mut drained = 0;
    while let Ok(Some(piece)) = next(body).await
        && drained < MAX_DRAINED
    {
        drained += piece.len();
    }
}

/// The next bytes, `None` at the end.
async fn next(body: &mut RawBody) -> Result<Option<Bytes>, Failure> {
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            None => return Ok(None),
            Some(Ok(frame)) => {
                // Trailers say nothing to us.
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
            Some(Err(error)) => {
                return Err(Failure::new(
                    ErrorCode::BadRequest,
                    format!("cannot read the request body: {error}"),
                ));
            }
        }
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

/// `?disk=true`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UsageQuery {
    #[serde(default)]
    pub(crate) disk: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for UsageQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Query::<Self>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(query),
            Err(e) => Err(Failure::new(ErrorCode::BadRequest, e.body_text())),
        }
    }
}

/// `?force=true&id=UUID`, or `?id=UUID&stopped_at=TIME`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RemoveQuery {
    #[serde(default)]
    pub(crate) force: bool,
    pub(crate) id: Option<String>,
    pub(crate) stopped_at: Option<Timestamp>,
}

impl<S: Send + Sync> FromRequestParts<S> for RemoveQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Query::<Self>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(query),
            Err(e) => Err(Failure::new(ErrorCode::BadRequest, e.body_text())),
        }
    }
}
