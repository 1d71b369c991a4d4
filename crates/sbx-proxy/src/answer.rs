//! What the proxy itself says to an HTTP client.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use jiff::Timestamp;
use sbx_policy::{Host, Target, Verdict};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::ca::{ALPN, ALPN_H2};
use crate::conn::Conn;
use crate::denial::{self, Form};
use crate::outlet::Shared;
use crate::tunnel::write_all;
use crate::wire::h2;
use crate::wire::http1::{MAX_HEAD, RequestHead, parse_request};
use crate::wire::tls::{self, Sniff};

/// The fatal alert `no_application_protocol`, in a record.
const NO_PROTOCOL: [u8; 7] = [21, 3, 3, 0, 2, 2, 120];

/// For a denied client to take its answer.
const PATIENCE: Duration = Duration::from_secs(10);

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

/// The same over HTTP/2.
async fn deny_over_h2(
    shared: &Shared,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    target: &Target,
    verdict: &Verdict,
) -> io::Result<()> {
    let (mut bytes, mut told) = (Vec::new(), 0);
    let last = loop {
        let opening = match h2::read_opening(&bytes) {
            Ok(opening) => opening,
            Err(error) => break error.goaway(),
        };
        let news = opening.replies.get(told..).unwrap_or_default();
        stream.write_all(news).await?;
        stream.flush().await?;
        told = opening.replies.len();
        if let Some(request) = opening.request {
            let form = Form::accepted(request.accept());
            let (media, body) = denial::body(form, shared.audit.sandbox(), target, verdict);
            break request.answer(403, media, &body);
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
    };
    stream.write_all(&last).await?;
    finish(stream).await
}

/// Ends what we say, and waits for the rest of a request that nobody wanted.
async fn finish(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = Vec::new();
    while stream.read_buf(&mut rest).await? > 0 {
        rest.clear();
    }
    Ok(())
}

/// Says it, then lets the client read it: closing at once while it still sends would take the answer away.
pub(crate) async fn say_and_end(stream: &TcpStream, answer: &[u8]) {
    let said = async {
        write_all(stream, answer).await?;
        linger(stream).await
    };
    // A client that is gone needs no answer.
    let _ = timeout(PATIENCE, said).await;
}

/// Lets a client read what it was told before it was done: it may need to say the rest of its own first.
pub(crate) async fn end(stream: &TcpStream) {
    let _ = timeout(PATIENCE, linger(stream)).await;
}

async fn linger(stream: &TcpStream) -> io::Result<()> {
    rustix::net::shutdown(stream, rustix::net::Shutdown::Write)?;
    let mut rest = Vec::new();
    while crate::conn::fill(stream, &mut rest).await? {
        rest.clear();
    }
    Ok(())
}

/// Tells the client of a denied tunnel why: it has been told that the tunnel is there, and now speaks TLS to whom
/// it believes to be the host.
pub(crate) async fn deny_tunnel(
    shared: &Shared,
    mut conn: Conn,
    target: &Target,
    verdict: &Verdict,
) {
    let told = async {
        while conn.ahead.is_empty() {
            if !conn.fill().await? {
                return Ok(());
            }
        }
        match conn.ahead.first() {
            // A TLS handshake record.
            Some(0x16) => deny_over_tls(shared, conn, target, verdict).await,
            _ => deny_plainly(shared, conn, target, verdict).await,
        }
    };
    let ended: Result<io::Result<()>, _> = timeout(PATIENCE, told).await;
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
        if conn.ahead.starts_with(h2::PREFACE) {
            return deny_over_h2(shared, Replay::of(conn)?, target, verdict).await;
        }
        let may_be_h2 = h2::PREFACE.starts_with(&conn.ahead);
        match parse_request(&conn.ahead) {
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
    say_and_end(&conn.stream, &answer).await;
    Ok(())
}

async fn deny_over_tls(
    shared: &Shared,
    mut conn: Conn,
    target: &Target,
    verdict: &Verdict,
) -> io::Result<()> {
    let hello = loop {
        match tls::sniff(&conn.ahead) {
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
        say_and_end(&conn.stream, &NO_PROTOCOL).await;
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
    let mut tls = TlsAcceptor::from(config).accept(Replay::of(conn)?).await?;
    if tls.get_ref().1.alpn_protocol() == Some(ALPN_H2) {
        return deny_over_h2(shared, tls, target, verdict).await;
    }
    let mut bytes = Vec::new();
    let head = loop {
        match parse_request(&bytes) {
            Ok(Some((head, _))) => break Some(head),
            Ok(None) if bytes.len() < MAX_HEAD => {
                if tls.read_buf(&mut bytes).await? == 0 {
                    break None;
                }
            }
            Ok(None) | Err(_) => break None,
        }
    };
    let answer = denial(shared.audit.sandbox(), target, verdict, head.as_ref());
    tls.write_all(&answer).await?;
    finish(tls).await
}

/// A connection of which some bytes were read already.
struct Replay {
    ahead: Vec<u8>,
    stream: TcpStream,
}

impl Replay {
    fn of(conn: Conn) -> io::Result<Self> {
        let stream = Arc::into_inner(conn.stream)
            .ok_or_else(|| io::Error::other("the connection is in use"))?;
        Ok(Self {
            ahead: conn.ahead,
            stream,
        })
    }
}

impl AsyncRead for Replay {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let count = buf.remaining().min(self.ahead.len());
        let bytes: Vec<u8> = self.ahead.drain(..count).collect();
        buf.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Replay {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
