//! The lifecycle API of the server.

use std::collections::BTreeMap;
use std::sync::Arc;

use crabbox_core::printable;
use hyper::Method;
use hyper::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::http::{Call, Http, HttpError};
use super::secrets::Secrets;
use super::url::{ApiUrl, DataUrl, encode};

/// The port of execd in every sandbox.
const EXECD_PORT: u16 = 44772;
pub(super) const KEY_HEADER: HeaderName = HeaderName::from_static("open-sandbox-api-key");
/// The metadata of our sandboxes.
pub(super) const OURS: &str = "crabbox";
pub(super) const NAME: &str = "crabbox.name";
pub(super) const CLAIM: &str = "crabbox.claim";
/// Headers that an endpoint may not set: they frame the request, or are ours.
const RESERVED: [&str; 9] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "upgrade",
    "te",
    "trailer",
    "open-sandbox-api-key",
];
const MAX_ID: usize = 128;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateRequest<'a> {
    pub(super) image: Image<'a>,
    pub(super) timeout: u64,
    pub(super) resource_limits: BTreeMap<&'static str, &'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) secure_access: bool,
    pub(super) metadata: BTreeMap<&'static str, &'a str>,
    pub(super) entrypoint: [&'static str; 3],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) platform: Option<Platform<'a>>,
}

#[derive(Debug, Serialize)]
pub(super) struct Image<'a> {
    pub(super) uri: &'a str,
}

#[derive(Debug, Serialize)]
pub(super) struct Platform<'a> {
    pub(super) os: &'a str,
    pub(super) arch: &'a str,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sandbox {
    pub(super) id: String,
    #[serde(default)]
    pub(super) status: Status,
    #[serde(default)]
    metadata: Option<BTreeMap<String, serde_json::Value>>,
    #[serde(default)]
    pub(super) expires_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) state: String,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Page {
    #[serde(default)]
    items: Vec<Sandbox>,
}

#[derive(Debug, Deserialize)]
struct EndpointAnswer {
    endpoint: String,
    #[serde(default)]
    headers: Option<BTreeMap<String, String>>,
}

/// How execd of one sandbox is reached.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    pub(super) url: DataUrl,
    /// Sent with every request.
    pub(super) headers: HeaderMap,
}

/// The phase that a state means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Running,
    Paused,
    /// It may still become ready.
    Changing,
    /// It never will.
    Over,
}

pub(super) struct Api {
    pub(super) http: Http,
    pub(super) url: ApiUrl,
    key: HeaderValue,
    pub(super) secrets: Arc<Secrets>,
    use_server_proxy: bool,
}

impl Api {
    pub(super) fn new(
        http: Http,
        url: ApiUrl,
        key: HeaderValue,
        secrets: Arc<Secrets>,
        use_server_proxy: bool,
    ) -> Self {
        Self {
            http,
            url,
            key,
            secrets,
            use_server_proxy,
        }
    }

    fn call(&self, method: Method, call: &str) -> Call {
        let json = HeaderValue::from_static("application/json");
        Call::new(method, &self.url.origin, self.url.path(call))
            .follow_redirects()
            .header(KEY_HEADER, self.key.clone())
            .header(ACCEPT, json)
    }

    pub(super) async fn create(&self, request: &CreateRequest<'_>) -> Result<Sandbox, HttpError> {
        let call = self.call(Method::POST, "/sandboxes").json(request)?;
        self.http.json::<Sandbox>(call).await?.checked()
    }

    pub(super) async fn get(&self, id: &str) -> Result<Sandbox, HttpError> {
        let call = self.call(Method::GET, &format!("/sandboxes/{}", encode(id)));
        let sandbox: Sandbox = self.http.json(call).await?;
        match sandbox.id == id {
            true => Ok(sandbox),
            false => Err(HttpError::Malformed(
                "it is about another sandbox".to_owned(),
            )),
        }
    }

    pub(super) async fn delete(&self, id: &str) -> Result<(), HttpError> {
        let call = self.call(Method::DELETE, &format!("/sandboxes/{}", encode(id)));
        self.http.done(call).await
    }

    pub(super) async fn resume(&self, id: &str) -> Result<(), HttpError> {
        let call = self.call(Method::POST, &format!("/sandboxes/{}/resume", encode(id)));
        self.http.done(call).await
    }

    /// The sandboxes with this mark of ours.
    pub(super) async fn with_claim(&self, scope: &str) -> Result<Vec<Sandbox>, HttpError> {
        // A form within a query: encoded twice.
        let filter = encode(&format!("{CLAIM}={}", encode(scope)));
        let call = self.call(
            Method::GET,
            &format!("/sandboxes?metadata={filter}&pageSize=100"),
        );
        let page: Page = self.http.json(call).await?;
        let ours = page
            .items
            .into_iter()
            .filter(|one| one.claim() == Some(scope));
        ours.map(Sandbox::checked).collect()
    }

    /// A request that any valid key may make.
    pub(super) async fn probe(&self) -> Result<(), HttpError> {
        let call = self.call(Method::GET, "/sandboxes?pageSize=1");
        self.http.json::<Page>(call).await.map(drop)
    }

    pub(super) async fn endpoint(&self, id: &str) -> Result<Endpoint, HttpError> {
        let call = format!(
            "/sandboxes/{}/endpoints/{EXECD_PORT}?use_server_proxy={}",
            encode(id),
            self.use_server_proxy
        );
        let answer: EndpointAnswer = self.http.json(self.call(Method::GET, &call)).await?;
        let said = answer.headers.unwrap_or_default();
        self.secrets.add(said.values().cloned());
        let url = DataUrl::parse(&answer.endpoint, &self.url).map_err(HttpError::Refused)?;
        self.secrets.add(url.secrets());
        let mut headers = endpoint_headers(&said).map_err(HttpError::Refused)?;
        // The server's proxy asks for it and does not pass it on. A direct endpoint is in the sandbox's hands.
        if self.use_server_proxy && url.is_proxy_of(&self.url, id) {
            headers.insert(KEY_HEADER, self.key.clone());
        }
        Ok(Endpoint { url, headers })
    }
}

fn endpoint_headers(said: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in said {
        let refuse = |why: &str| format!("opensandbox sandbox endpoint header {name:?} {why}");
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refuse("is invalid"))?;
        if RESERVED.contains(&parsed.as_str()) {
            return Err(refuse("may not be set by the server"));
        }
        let mut value = HeaderValue::from_str(value).map_err(|_| refuse("has an invalid value"))?;
        value.set_sensitive(true);
        match headers.insert(parsed, value.clone()) {
            Some(before) if before != value => return Err(refuse("has two values")),
            Some(_) | None => {}
        }
    }
    Ok(headers)
}

impl Sandbox {
    /// An id becomes part of paths and file names.
    fn checked(self) -> Result<Self, HttpError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let fits = (1..=MAX_ID).contains(&self.id.len());
        match fits && self.id.bytes().all(plain) && !self.id.starts_with('.') {
            true => Ok(self),
            false => Err(HttpError::Malformed(
                "it has no usable sandbox id".to_owned(),
            )),
        }
    }

    /// The mark that says whose it is.
    pub(super) fn claim(&self) -> Option<&str> {
        self.metadata.as_ref()?.get(CLAIM)?.as_str()
    }

    pub(super) fn stage(&self) -> Stage {
        match self.status.state.to_ascii_lowercase().as_str() {
            // Older servers say nothing about a sandbox that runs.
            "" | "running" | "ready" | "started" | "active" => Stage::Running,
            "paused" => Stage::Paused,
            "terminated" | "stopped" | "failed" | "error" | "killed" | "deleted" | "stopping" => {
                Stage::Over
            }
            _ => Stage::Changing,
        }
    }

    /// The state in our own words, for `list` and `status`.
    pub(super) fn state(&self) -> String {
        match self.status.state.as_str() {
            "" => "running".to_owned(),
            state => state.to_ascii_lowercase(),
        }
    }

    /// Why it is in that state, as far as the server says.
    pub(super) fn explanation(&self) -> String {
        let Status {
            state,
            reason,
            message,
        } = &self.status;
        let said = [reason.as_deref(), message.as_deref()];
        let said: Vec<_> = said
            .into_iter()
            .flatten()
            .filter(|text| !text.is_empty())
            .collect();
        // It becomes part of one line.
        printable(&match said.is_empty() {
            true => state.clone(),
            false => format!("{state}: {}", said.join(": ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(text: &str) -> Result<Sandbox, String> {
        let sandbox: Sandbox = serde_json::from_str(text).map_err(|error| error.to_string())?;
        sandbox.checked().map_err(|error| error.to_string())
    }

    #[test]
    fn what_the_server_says_is_read_leniently_and_ids_strictly() {
        let full = sandbox(
            r#"{"id":"8536f358","status":{"state":"Running","reason":"R","message":null},"metadata":{"crabbox.claim":"ep-x"},"expiresAt":"2026-11-18T07:44:13.859963Z","new":1}"#,
        )
        .unwrap();
        assert_eq!(full.claim(), Some("ep-x"));
        assert_eq!(
            (full.stage(), full.state().as_str()),
            (Stage::Running, "running")
        );
        assert!(full.expires_at.is_some());
        let bare = sandbox(r#"{"id":"a","metadata":null}"#).unwrap();
        assert_eq!((bare.claim(), bare.stage()), (None, Stage::Running));
        for bad in ["", "../x", "a/b", "a b", ".hidden", "a\\u0000", "ä"] {
            assert!(sandbox(&format!(r#"{{"id":"{bad}"}}"#)).is_err(), "{bad}");
        }
        for (state, stage) in [
            ("Paused", Stage::Paused),
            ("Pending", Stage::Changing),
            ("Novel", Stage::Changing),
            ("Failed", Stage::Over),
            ("Terminated", Stage::Over),
        ] {
            let text = format!(r#"{{"id":"a","status":{{"state":"{state}"}}}}"#);
            assert_eq!(sandbox(&text).unwrap().stage(), stage);
        }
    }

    #[test]
    fn headers_of_an_endpoint_cannot_take_over_a_request() {
        let headers = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            endpoint_headers(&pairs.collect())
        };
        let good = headers(&[("OpenSandbox-Secure-Access", "token-1")]).unwrap();
        assert_eq!(good.get("opensandbox-secure-access").unwrap(), "token-1");
        assert!(headers(&[("X-A", "1"), ("x-a", "1")]).is_ok());
        for bad in [
            &[("X-A", "1"), ("x-a", "2")][..],
            &[("Host", "evil")],
            &[("Transfer-Encoding", "chunked")],
            &[("OPEN-SANDBOX-API-KEY", "k")],
            &[("X A", "1")],
            &[("X-A", "1\r\nX-B: 2")],
        ] {
            assert!(headers(bad).is_err(), "{bad:?}");
        }
    }
}
