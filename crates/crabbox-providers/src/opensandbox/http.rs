//! The HTTP client of this provider: HTTP/1.1 over kept connections, TLS with the machine's trust store.
//!
//! It starts with the first request. Every request has a deadline and a cancellation ([`Http::wait`]), every answer a size
//! limit. Redirects are followed for the lifecycle API only, within scheme, host and port: an answer of a sandbox must not
//! choose the next request. Nothing is retried, except on a kept connection that the server had
//! closed before the request was sent.

mod body;
mod connect;
mod error;
mod proxy;
mod wait;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crabbox_core::process::Cancel;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

pub(super) use body::{Body, Part};
pub(super) use connect::Stream;
pub(super) use error::HttpError;
pub(super) use proxy::Proxies;
pub(super) use wait::{canceled, unless_silent, within};

use super::url::Origin;
use connect::Connector;

/// Of one answer that is read as a whole.
pub(super) const MAX_JSON: usize = 4 << 20;
const MAX_ERROR: usize = 64 << 10;
const MAX_REDIRECTS: usize = 10;
const MAX_IDLE: usize = 8;
const AGENT: &str = concat!("crabbox/", env!("CARGO_PKG_VERSION"));
const REQUEST_ID: &str = "x-request-id";

pub(super) struct Http {
    runtime: Runtime,
    connector: Connector,
    idle: Mutex<BTreeMap<Origin, Vec<SendRequest<Body>>>>,
}

/// One request.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) origin: Origin,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
    /// Whether the one who answers may name another path of the same origin.
    follow: bool,
    /// A status that is an answer like a success.
    accept: Option<StatusCode>,
}

/// An answer whose body is still to be read. Its connection is kept once the body is.
pub(super) struct Answer<'h> {
    http: &'h Http,
    origin: Origin,
    sender: Option<SendRequest<Body>>,
    response: Response<Incoming>,
}

impl Call {
    pub(super) fn new(method: Method, origin: &Origin, path: String) -> Self {
        Self {
            method,
            origin: origin.clone(),
            path,
            headers: HeaderMap::new(),
            body: Body::empty(),
            follow: false,
            accept: None,
        }
    }

    /// For a server that we trust with the key.
    #[must_use]
    pub(super) fn follow_redirects(mut self) -> Self {
        self.follow = true;
        self
    }

    #[must_use]
    pub(super) fn accept(mut self, status: StatusCode) -> Self {
        self.accept = Some(status);
        self
    }

    #[must_use]
    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    #[must_use]
    pub(super) fn body(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    /// With a body of JSON.
    pub(super) fn json(self, value: &impl serde::Serialize) -> Result<Self, HttpError> {
        let bytes = serde_json::to_vec(value)
            .map_err(|error| HttpError::Malformed(format!("request: {error}")))?;
        let json = HeaderValue::from_static("application/json");
        Ok(self
            .header(hyper::header::CONTENT_TYPE, json)
            .body(Body::bytes(bytes)))
    }
}

impl Http {
    pub(super) fn new(proxies: Proxies) -> Result<Self, HttpError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| HttpError::Local(error.to_string()))?;
        Ok(Self {
            runtime,
            connector: Connector::new(proxies),
            idle: Mutex::default(),
        })
    }

    /// Waits for `work`, no longer than `limit` and no longer than the user wants.
    pub(super) fn wait<T>(
        &self,
        limit: Duration,
        cancel: &Cancel,
        work: impl Future<Output = Result<T, HttpError>>,
    ) -> Result<T, HttpError> {
        self.runtime.block_on(within(limit, cancel, work))
    }

    /// Without a limit: `work` has its own.
    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// The answer, if its status is a success or one that the call accepts.
    pub(super) async fn open(&self, mut call: Call) -> Result<Answer<'_>, HttpError> {
        for _ in 0..=MAX_REDIRECTS {
            let again = call.body.again();
            let answer = self.send(&mut call).await?;
            let status = answer.response.status();
            if status.is_success()
                || status == StatusCode::SWITCHING_PROTOCOLS
                || call.accept == Some(status)
            {
                return Ok(answer);
            }
            if !status.is_redirection() {
                return Err(answer.into_error().await);
            }
            if !call.follow {
                let message = "opensandbox refused a redirect by a sandbox";
                return Err(HttpError::Redirect(message.to_owned()));
            }
            call.path = redirect(&call, &answer)?;
            match again {
                Some(body) if keeps_method(status, &call.method) => call.body = body,
                Some(_) | None => return Err(answer.into_error().await),
            }
        }
        Err(HttpError::Redirect("too many redirects".to_owned()))
    }

    /// An answer as JSON.
    pub(super) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, HttpError> {
        let bytes = self.open(call).await?.bytes(MAX_JSON).await?;
        serde_json::from_slice(&bytes)
            // Without the text, which may carry secrets.
            .map_err(|error| {
                HttpError::Malformed(format!("invalid JSON at column {}", error.column()))
            })
    }

    /// A call whose answer's body says nothing.
    pub(super) async fn done(&self, call: Call) -> Result<(), HttpError> {
        self.open(call).await?.bytes(MAX_JSON).await.map(drop)
    }

    /// A connection of its own, for a protocol that begins as HTTP.
    pub(super) async fn connect(&self, origin: &Origin) -> Result<Stream, HttpError> {
        self.connector.connect(origin).await
    }

    async fn send(&self, call: &mut Call) -> Result<Answer<'_>, HttpError> {
        let mut request = call.request()?;
        loop {
            let (mut sender, kept) = match self.take_idle(&call.origin) {
                Some(sender) => (sender, true),
                None => (self.handshake(&call.origin).await?, false),
            };
            // Its task may not have noticed the end of the answer before, or that the server has closed it.
            if kept && sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => {
                    return Ok(Answer {
                        http: self,
                        origin: call.origin.clone(),
                        sender: Some(sender),
                        response,
                    });
                }
                // The server had closed it, and the request was not sent.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if kept => request = unsent,
                    Some(_) | None => return Err(HttpError::lost(&error.into_error())),
                },
            }
        }
    }

    async fn handshake(&self, origin: &Origin) -> Result<SendRequest<Body>, HttpError> {
        let stream = self.connector.connect(origin).await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| HttpError::lost(&error))?;
        // It ends with an error when the server does; the request that uses it reports it.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn take_idle(&self, origin: &Origin) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let senders = idle.get_mut(origin)?;
        while let Some(sender) = senders.pop() {
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, origin: &Origin, sender: SendRequest<Body>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let senders = idle.entry(origin.clone()).or_default();
        if senders.len() < MAX_IDLE {
            senders.push(sender);
        }
    }
}

impl Call {
    fn request(&mut self) -> Result<Request<Body>, HttpError> {
        let uri: Uri = self
            .path
            .parse()
            .map_err(|_| HttpError::Malformed("request path".to_owned()))?;
        let host = HeaderValue::from_str(&self.origin.authority())
            .map_err(|_| HttpError::Malformed("host".to_owned()))?;
        let body = std::mem::replace(&mut self.body, Body::empty());
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        headers.insert(HOST, host);
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        Ok(request)
    }
}

/// 301, 302 and 303 turn other methods into GET, which would be another request.
fn keeps_method(status: StatusCode, method: &Method) -> bool {
    let strict = [
        StatusCode::TEMPORARY_REDIRECT,
        StatusCode::PERMANENT_REDIRECT,
    ];
    strict.contains(&status) || *method == Method::GET
}

/// The path that an answer redirects to, if it is of the same origin.
fn redirect(call: &Call, answer: &Answer<'_>) -> Result<String, HttpError> {
    let location = answer.response.headers().get(LOCATION);
    let location = location
        .and_then(|value| value.to_str().ok())
        .ok_or_else(|| HttpError::Redirect("redirect without a location".to_owned()))?;
    let target: Uri = location
        .parse()
        .map_err(|_| HttpError::Redirect("redirect to a malformed location".to_owned()))?;
    let origin = call.origin.to_string();
    let same = match (target.scheme_str(), target.authority()) {
        (None, None) => !location.starts_with("//"),
        (Some(scheme), Some(_)) => super::url::DataUrl::origin_of(&target, scheme)
            .is_ok_and(|target| target == call.origin),
        _ => false,
    };
    if !same {
        let host = target
            .authority()
            .map_or("another place", |host| host.host());
        let message = format!("opensandbox refused cross-origin redirect to {host} from {origin}");
        return Err(HttpError::Redirect(message));
    }
    match target.path_and_query() {
        Some(path) if path.as_str().starts_with('/') => Ok(path.as_str().to_owned()),
        _ => Err(HttpError::Redirect(
            "redirect to a relative path".to_owned(),
        )),
    }
}

impl Answer<'_> {
    pub(super) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    pub(super) fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The next piece of the body; none at its end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, HttpError> {
        loop {
            match self.response.body_mut().frame().await {
                None => {
                    if let Some(sender) = self.sender.take() {
                        self.http.keep(&self.origin, sender);
                    }
                    return Ok(None);
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Ok(Some(data)),
                    Err(_) => {} // trailers
                },
                Some(Err(error)) => return Err(HttpError::lost(&error)),
            }
        }
    }

    /// The whole body, if it is not longer than that.
    pub(super) async fn bytes(mut self, limit: usize) -> Result<Vec<u8>, HttpError> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.next().await? {
            if bytes.len() + piece.len() > limit {
                return Err(HttpError::TooLarge(limit));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    /// What an unsuccessful response says. Its body is read for a short while only: it may never end.
    async fn into_error(self) -> HttpError {
        let status = self.status().as_u16();
        let request_id = self.headers().get(REQUEST_ID);
        let request_id = request_id
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let started = Instant::now();
        let body = tokio::time::timeout(Duration::from_secs(5), self.bytes(MAX_ERROR)).await;
        let body = match body {
            Ok(Ok(body)) => body,
            Ok(Err(error)) => error.to_string().into_bytes(),
            Err(_) => format!("no body within {:?}", started.elapsed()).into_bytes(),
        };
        HttpError::status(status, &body, request_id)
    }
}
