//! What the proxy itself says to an HTTP client.

use std::io;
use std::time::Duration;

use jiff::Timestamp;
use sbx_policy::{Host, Target, Verdict};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::ca::{ALPN, ALPN_H2};
use crate::conn::{Conn, fill};
use crate::denial::{self, Form};
use crate::proxy::Shared;
use crate::transport::{AsyncTransport, Transport, shutdown, write_all};
use crate::wire::h2;
use crate::wire::http1::{MAX_HEAD, RequestHead, parse_request};
use crate::wire::tls::{self, Sniff};

/// The fatal alert `no_application_protocol`, in a record.
const NO_PROTOCOL: [u8; 7] = [21, 3, 3, 0, 2, 2, 120];

/// For a denied client to take its answer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A whole response after which the connection ends.
pub(crate) fn response(status: &str, media: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {length}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nVia: 1.1 sbx\r\n\r\n{body}"
    )
    .into_bytes()
}

pub(crate) fn plain(status: &str, text: &str) -> Vec<u8> {
    response(status, "text/plain; charset=utf-8", &format!("{text}\n"))
}

/// The response to a request that the policy denies.
pub(crate) fn denial(
    sandbox: &str,
    target: &Target,
    verdict: &Verdict,
    head: Option<&RequestHead>,
) -> Vec<u8> {
    let accept = head
        .and_then(|head| head.headers().get("accept"))
        .and_then(|value| std::str::from_utf8(value).ok());
    let (media, body) = denial::body(Form::accepted(accept), sandbox, target, verdict);
    response("403 Forbidden", media, &body)
}

/// The same over HTTP/2 (RFC 9113).
async fn deny_over_h2(
    shared: &Shared,
    mut conn: Conn,
    target: &Target,
    verdict: &Verdict,
) -> io::Result<()> {
    // Our SETTINGS come before everything else (RFC 9113, section 3.4), also before an error.
    let mut told = 0;
    if let Ok(opening) = h2::read_opening(&[]) {
        write_all(&*conn.transport, &opening.replies).await?;
        told = opening.replies.len();
    }
    let last = loop {
        let opening = match h2::read_opening(&conn.buffered) {
            Ok(opening) => opening,
            Err(error) => break error.goaway(),
        };
        let news = opening.replies.get(told..).unwrap_or_default();
        write_all(&*conn.transport, news).await?;
        told = opening.replies.len();
        if let Some(request) = opening.request {
            let form = Form::accepted(request.accept());
            let (media, body) = denial::body(form, shared.audit.sandbox(), target, verdict);
            break request.answer(403, media, &body);
        }
        if !conn.fill().await? {
            return Ok(());
        }
    };
    write_all(&*conn.transport, &last).await?;
    drain(&*conn.transport).await
}

/// Sends the answer, then lets the client read it: closing at once while it still sends would make the kernel reset the
/// connection and take the answer away.
pub(crate) async fn send_and_close(to: &dyn Transport, answer: &[u8]) {
    let sent = async {
        write_all(to, answer).await?;
        drain(to).await
    };
    // A client that is gone needs no answer.
    let _ = timeout(DRAIN_TIMEOUT, sent).await;
}

/// Closes after an answer that came before the client had sent everything, which it may need to do before it reads.
pub(crate) async fn close_gracefully(transport: &dyn Transport) {
    let _ = timeout(DRAIN_TIMEOUT, drain(transport)).await;
}

/// Ends our direction, and discards what the client still sends.
async fn drain(transport: &dyn Transport) -> io::Result<()> {
    shutdown(transport).await?;
    let mut rest = Vec::new();
    while fill(transport, &mut rest).await? {
        rest.clear();
    }
    Ok(())
}

/// Tells the client of a denied tunnel why. It was told that the tunnel is established, and now speaks TLS to what it
/// takes for the origin.
pub(crate) async fn deny_tunnel(
    shared: &Shared,
    mut conn: Conn,
    target: &Target,
    verdict: &Verdict,
) {
    let told = async {
        while conn.buffered.is_empty() {
            if !conn.fill().await? {
                return Ok(());
            }
        }
        match conn.buffered.first() {
            // A TLS handshake record.
            Some(0x16) => deny_over_tls(shared, conn, target, verdict).await,
            _ => deny_plainly(shared, conn, target, verdict).await,
        }
    };
    let ended: Result<io::Result<()>, _> = timeout(DRAIN_TIMEOUT, told).await;
    if let Ok(Err(error)) = ended {
        tracing::debug!(%error, "a denied client left");
    }
}

async fn deny_plainly(
    shared: &Shared,
    mut conn: Conn,
    target: &Target,
    verdict: &Verdict,
) -> io::Result<()> {
    let head = loop {
        if conn.buffered.starts_with(h2::PREFACE) {
            return deny_over_h2(shared, conn, target, verdict).await;
        }
        let may_be_h2 = h2::PREFACE.starts_with(&conn.buffered);
        match parse_request(&conn.buffered) {
            Ok(Some((head, _))) => break head,
            // Another protocol: there is no way to tell.
            Err(_) if !may_be_h2 => return Ok(()),
            Ok(None) | Err(_) => {
                if !conn.fill().await? {
                    return Ok(());
                }
            }
        }
    };
    let answer = denial(shared.audit.sandbox(), target, verdict, Some(&head));
    send_and_close(&*conn.transport, &answer).await;
    Ok(())
}

async fn deny_over_tls(
    shared: &Shared,
    mut conn: Conn,
    target: &Target,
    verdict: &Verdict,
) -> io::Result<()> {
    let hello = loop {
        match tls::sniff(&conn.buffered) {
            Sniff::NeedMore => {
                if !conn.fill().await? {
                    return Ok(());
                }
            }
            Sniff::Hello(hello) => break hello,
            Sniff::NotTls | Sniff::Malformed => return Ok(()),
        }
    };
    if !hello.alpn.is_empty() && !ALPN.iter().any(|ours| hello.alpn.iter().any(|p| p == ours)) {
        send_and_close(&*conn.transport, &NO_PROTOCOL).await;
        return Ok(());
    }
    // The client checks the name that it asked for.
    let host = hello
        .server_name
        .and_then(|name| Host::parse(&name).ok())
        .unwrap_or_else(|| target.host.clone());
    let config = shared
        .authority
        .impersonate(&host, Timestamp::now())
        .map_err(io::Error::other)?;
    let tls = TlsAcceptor::from(config).accept(conn).await?;
    let over_h2 = tls.get_ref().1.alpn_protocol() == Some(ALPN_H2);
    let mut conn = Conn::new(AsyncTransport::new(tls));
    if over_h2 {
        return deny_over_h2(shared, conn, target, verdict).await;
    }
    let head = loop {
        match parse_request(&conn.buffered) {
            Ok(Some((head, _))) => break Some(head),
            Ok(None) if conn.buffered.len() < MAX_HEAD => {
                if !conn.fill().await? {
                    break None;
                }
            }
            Ok(None) | Err(_) => break None,
        }
    };
    let answer = denial(shared.audit.sandbox(), target, verdict, head.as_ref());
    write_all(&*conn.transport, &answer).await?;
    drain(&*conn.transport).await
}
