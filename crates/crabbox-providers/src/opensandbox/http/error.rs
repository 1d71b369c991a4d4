//! What can go wrong with a request, in kinds that decide what may be done next.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crabbox_core::process::Reason;
use crabbox_core::settings::format_duration;
use crabbox_core::{Code, Failure};
use serde::Deserialize;

#[derive(Debug)]
pub(in crate::opensandbox) enum HttpError {
    /// Nothing was sent. `down`: the address was right and no program listens there, or not yet.
    Connect {
        to: String,
        cause: String,
        down: bool,
    },
    /// The certificate is not trusted, or the handshake failed. Nothing was sent.
    Tls {
        to: String,
        cause: String,
    },
    Timeout(Duration),
    Canceled(Reason),
    /// It was sent, and the connection ended before the answer was complete.
    Lost(String),
    TooLarge(usize),
    /// The answer is not understood.
    Malformed(String),
    Status {
        status: u16,
        code: String,
        message: String,
        request_id: Option<String>,
    },
    Redirect(String),
    /// A setting is wrong: nothing was sent.
    Refused(String),
    /// Something on this machine failed.
    Local(String),
}

/// The server's own errors, and those of its framework for invalid requests.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ErrorBody {
    code: String,
    message: String,
    error: Option<serde_json::Value>,
    detail: Option<serde_json::Value>,
}

const MAX_SHOWN: usize = 600;
const IMAGE_PULL_FAILED: &str = "::SANDBOX_IMAGE_PULL_FAILED";

impl HttpError {
    pub(super) fn lost(error: &hyper::Error) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self::Lost(text)
    }

    pub(super) fn status(status: u16, body: &[u8], request_id: Option<String>) -> Self {
        let parsed: ErrorBody = serde_json::from_slice(body).unwrap_or_default();
        let text = match (&parsed.message, &parsed.error, &parsed.detail) {
            (message, _, _) if !message.is_empty() => message.clone(),
            (_, Some(error), _) => shown(error),
            (_, _, Some(detail)) => shown(detail),
            (_, None, None) => String::from_utf8_lossy(body).into_owned(),
        };
        let text: String = text.trim().chars().take(MAX_SHOWN).collect();
        Self::Status {
            status,
            code: parsed.code,
            message: text,
            request_id,
        }
    }

    pub(in crate::opensandbox) fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { status: 404, .. })
    }

    /// Whether the same request may succeed a moment later, as long as a sandbox starts.
    pub(in crate::opensandbox) fn is_pending(&self) -> bool {
        match self {
            Self::Connect { down, .. } => *down,
            Self::Timeout(_) | Self::Lost(_) => true,
            Self::Status { status, .. } => {
                matches!(status, 404 | 409 | 425 | 429) || *status >= 500
            }
            Self::Tls { .. }
            | Self::Canceled(_)
            | Self::TooLarge(_)
            | Self::Malformed(_)
            | Self::Redirect(_)
            | Self::Refused(_)
            | Self::Local(_) => false,
        }
    }

    /// Whether the request may have had its effect all the same.
    pub(in crate::opensandbox) fn is_ambiguous(&self) -> bool {
        match self {
            Self::Timeout(_)
            | Self::Canceled(_)
            | Self::Lost(_)
            | Self::TooLarge(_)
            | Self::Malformed(_) => true,
            // The server says that it came no further than to look for the image.
            Self::Status { code, .. } if code.ends_with(IMAGE_PULL_FAILED) => false,
            Self::Status { status, .. } => matches!(status, 408 | 429) || *status >= 500,
            Self::Connect { .. }
            | Self::Tls { .. }
            | Self::Redirect(_)
            | Self::Refused(_)
            | Self::Local(_) => false,
        }
    }

    /// As a failure of what was attempted.
    pub(in crate::opensandbox) fn into_failure(self, what: &str) -> Failure {
        let code = match &self {
            Self::Timeout(_) | Self::Canceled(Reason::Late) => Code::Timeout,
            Self::Canceled(_) => Code::Canceled,
            Self::TooLarge(_) | Self::Malformed(_) => Code::ProviderMalformed,
            Self::Refused(_) => Code::Config,
            Self::Local(_) => Code::Local,
            Self::Connect { .. }
            | Self::Tls { .. }
            | Self::Lost(_)
            | Self::Status { .. }
            | Self::Redirect(_) => Code::Provider,
        };
        let hint = match &self {
            Self::Status {
                status: 401 | 403, ..
            } => Some("check CRABBOX_OPENSANDBOX_API_KEY"),
            Self::Connect { .. } | Self::Tls { .. } => {
                Some("crabbox doctor --provider opensandbox")
            }
            _ => None,
        };
        let failure = Failure::new(code, format!("opensandbox {what} failed")).because(&self);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

fn shown(value: &serde_json::Value) -> String {
    // FastAPI repeats the whole input in each entry: its message says what is wrong.
    let entries = value.as_array().into_iter().flatten();
    let said: Vec<_> = entries
        .filter_map(|entry| {
            let message = entry.get("msg")?.as_str()?;
            let place = entry.get("loc").map(ToString::to_string);
            Some(format!("{message} at {}", place.unwrap_or_default()))
        })
        .collect();
    match (said.is_empty(), value.as_str()) {
        (false, _) => said.join("; "),
        (true, Some(text)) => text.to_owned(),
        (true, None) => match (value.get("code"), value.get("message")) {
            (Some(code), Some(message)) => format!("{code}: {message}"),
            _ => value.to_string(),
        },
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { to, cause, .. } => write!(f, "cannot connect to {to}: {cause}"),
            Self::Tls { to, cause } => write!(f, "TLS with {to}: {cause}"),
            Self::Timeout(limit) => write!(f, "no answer within {}", format_duration(*limit)),
            Self::Canceled(reason) => write!(f, "{reason}"),
            Self::Lost(cause) => write!(f, "connection lost: {cause}"),
            Self::TooLarge(limit) => write!(f, "the answer is longer than {limit} bytes"),
            Self::Malformed(cause) => write!(f, "malformed answer: {cause}"),
            Self::Status {
                status,
                code,
                message,
                request_id,
            } => {
                write!(f, "HTTP {status}")?;
                if !code.is_empty() {
                    write!(f, " {code}")?;
                }
                if !message.is_empty() {
                    write!(f, ": {message}")?;
                }
                match request_id {
                    Some(id) => write!(f, " (request_id: {id})"),
                    None => Ok(()),
                }
            }
            Self::Redirect(text) | Self::Refused(text) | Self::Local(text) => f.write_str(text),
        }
    }
}

impl Error for HttpError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_errors_are_understood() {
        let said =
            |body: &str| HttpError::status(400, body.as_bytes(), Some("r1".into())).to_string();
        assert_eq!(
            said(r#"{"code":"DOCKER::X","message":"no"}"#),
            "HTTP 400 DOCKER::X: no (request_id: r1)"
        );
        assert_eq!(
            said(
                r#"{"detail":[{"type":"missing","loc":["body","image"],"msg":"Field required","input":{"k":"secret"}}]}"#
            ),
            "HTTP 400: Field required at [\"body\",\"image\"] (request_id: r1)"
        );
        assert_eq!(
            said(r#"{"error":"Unauthorized: bad token"}"#),
            "HTTP 400: Unauthorized: bad token (request_id: r1)"
        );
        assert_eq!(said("plain"), "HTTP 400: plain (request_id: r1)");
        assert!(said(&"x".repeat(10_000)).len() < 700);
    }

    #[test]
    fn an_unsent_request_is_not_ambiguous() {
        let refused = HttpError::Connect {
            to: "x".into(),
            cause: "refused".into(),
            down: true,
        };
        assert!(refused.is_pending() && !refused.is_ambiguous());
        let status = |status| HttpError::status(status, b"", None);
        for (code, pending, ambiguous) in [
            (400, false, false),
            (401, false, false),
            (404, true, false),
            (408, false, true),
            (429, true, true),
            (503, true, true),
        ] {
            assert_eq!(status(code).is_pending(), pending, "{code}");
            assert_eq!(status(code).is_ambiguous(), ambiguous, "{code}");
        }
        assert!(HttpError::Lost("reset".into()).is_ambiguous());
        let body = br#"{"code":"DOCKER::SANDBOX_IMAGE_PULL_FAILED","message":"x"}"#;
        assert!(!HttpError::status(500, body, None).is_ambiguous());
    }
}
