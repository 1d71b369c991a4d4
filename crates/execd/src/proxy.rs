//! `ANY /proxy/{port}/{path}`: a reverse proxy to servers on the sandbox's loopback, WebSocket upgrades included.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Hop-by-hop fields (RFC 9110, section 7.6.1) concern one connection and are not forwarded.
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
];

pub(crate) async fn root(Path(port): Path<u16>, request: Request) -> Response {
    forward(port, String::new(), request).await
}

pub(crate) async fn path(Path((port, path)): Path<(u16, String)>, request: Request) -> Response {
    forward(port, path, request).await
}

async fn forward(port: u16, _decoded: String, mut request: Request) -> Response {
    // The undecoded path is what the server must see.
    let prefix = format!("/proxy/{port}");
    let target = request
        .uri()
        .path_and_query()
        .map_or("/", PathAndQuery::as_str);
    let target = target.strip_prefix(&prefix).unwrap_or("/");
    let target = if target.starts_with('/') {
        target.to_owned()
    } else {
        format!("/{target}")
    };
    let Ok(uri) = target.parse::<Uri>() else {
        return bad_gateway("invalid path");
    };
    *request.uri_mut() = uri;
    let upgrade = upgrade_of(request.headers());
    strip_hop_by_hop(request.headers_mut());
    request.headers_mut().remove(crate::auth::TOKEN_HEADER);
    if let Ok(host) = format!("127.0.0.1:{port}").parse() {
        request.headers_mut().insert(header::HOST, host);
    }
    match exchange(port, request, upgrade).await {
        Ok(response) => response,
        Err(reason) => bad_gateway(&reason),
    }
}

async fn exchange(
    port: u16,
    mut request: Request,
    upgrade: Option<header::HeaderValue>,
) -> Result<Response, String> {
    let connect = TcpStream::connect(("127.0.0.1", port));
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect)
        .await
        .map_err(|_| format!("port {port}: connect timed out"))?
        .map_err(|error| format!("port {port}: {error}"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    // Its errors reach `send_request` or the body as well.
    tokio::spawn(connection.with_upgrades());
    let client_side = upgrade.map(|protocol| {
        let headers = request.headers_mut();
        headers.insert(
            header::CONNECTION,
            header::HeaderValue::from_static("upgrade"),
        );
        headers.insert(header::UPGRADE, protocol);
        hyper::upgrade::on(&mut request)
    });
    let mut response = sender
        .send_request(request)
        .await
        .map_err(|error| error.to_string())?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client_side) = client_side
    {
        let server_side = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            if let (Ok(client), Ok(server)) = (client_side.await, server_side.await) {
                let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
                // Either end may close first; both are closed then.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            }
        });
        return Ok(response.map(Body::new));
    }
    strip_hop_by_hop(response.headers_mut());
    Ok(response.map(Body::new))
}

fn upgrade_of(headers: &HeaderMap) -> Option<header::HeaderValue> {
    let connection = headers.get(header::CONNECTION)?.to_str().ok()?;
    let asked = connection
        .split(',')
        .any(|token| token.trim().eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| asked).cloned()
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(header::UPGRADE);
    headers.remove("keep-alive");
}

fn bad_gateway(reason: &str) -> Response {
    (StatusCode::BAD_GATEWAY, format!("{reason}\n")).into_response()
}
