//! The access token, where one is set.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::App;

pub(crate) const TOKEN_HEADER: &str = "x-execd-access-token";

pub(crate) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(TOKEN_HEADER);
    let given = given.map_or(&[][..], |value| value.as_bytes());
    match &app.token {
        Some(token) if !equal(token.as_bytes(), given) => {
            let body = serde_json::json!({
                "error": format!("Unauthorized: missing or invalid {TOKEN_HEADER} header")
            });
            (StatusCode::UNAUTHORIZED, axum::Json(body)).into_response()
        }
        Some(_) | None => next.run(request).await,
    }
}

/// Takes the same time wherever the first difference is, so that the token cannot be guessed byte by byte.
fn equal(secret: &[u8], given: &[u8]) -> bool {
    let differences = secret
        .iter()
        .zip(given)
        .fold(0_u8, |sum, (a, b)| sum | (a ^ b));
    secret.len() == given.len() && differences == 0
}
