//! What answers at the Docker socket of every sandbox until sandboxes have Docker daemons of their own: that there is
//! none, in the form in which Docker's clients print it.
//!
//! It is a socket of its own, and not the API's under another name: a Docker socket is something that people hand to
//! other programs.

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sbx_api::vm::VmError;

use crate::extract;

const REFUSAL: &str = "this sandbox has no Docker daemon: this version of sbx does not support private Docker daemons yet; \
     run commands in the sandbox with `sbx exec`";

pub(crate) fn router() -> Router {
    Router::new().fallback(refuse)
}

async fn refuse(body: Body) -> Response {
    // A client that is sending an image looks for the answer afterwards.
    extract::discard(body).await;
    let message = VmError {
        message: REFUSAL.to_owned(),
    };
    (StatusCode::NOT_IMPLEMENTED, axum::Json(message)).into_response()
}
