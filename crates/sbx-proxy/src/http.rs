//! Plain HTTP: every request on a connection is judged by itself, and passed on as it came.

use std::net::SocketAddr;
use std::time::Duration;

use sbx_policy::{Host, Protocol, Target};
use tokio::time::Instant;

use crate::answer::{self, deny_tunnel, plain, say_and_end};
use crate::audit::{Entrance, Via};
use crate::conn::Conn;
use crate::dial::reset;
use crate::exchange::{Upstream, exchange};
use crate::forward::{self, Words};
use crate::gate::Judged;
use crate::journey;
use crate::limits::Place;
use crate::outlet::Shared;
use crate::tunnel::write_all;
use crate::wire::http1::{HeadError, MAX_HEAD, RequestHead, Target as Form, parse_request};

/// From the first byte of a head to its last.
const HEAD_PATIENCE: Duration = Duration::from_secs(20);
/// Between two requests.
const IDLE_PATIENCE: Duration = Duration::from_secs(75);

/// How the client came here.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Side {
    /// It knows that this is a proxy.
    Forward,
    /// It dialled this address.
    Transparent(SocketAddr),
}

impl Side {
    pub(crate) fn entrance(self) -> (Entrance, Via) {
        match self {
            Self::Forward => (Entrance::Http, Via::Forward),
            Self::Transparent(_) => (Entrance::Transparent, Via::Transparent),
        }
    }
}

pub(crate) async fn serve(shared: &Shared, mut conn: Conn, side: Side, mut place: Place) {
    let mut kept: Option<Upstream> = None;
    loop {
        let (head, length) = match read_head(&mut conn).await {
            Ok(Some(read)) => read,
            Ok(None) => return,
            Err(error) => return refuse(shared, conn, side, error).await,
        };
        place.set_busy();
        conn.used(length);
        if let (Side::Forward, Form::Authority(authority)) = (side, head.target()) {
            let authority = authority.to_string();
            return connect(shared, conn, &authority).await;
        }
        let target = match target(&head, side) {
            Ok(target) => target,
            Err(reason) => return refuse_target(shared, conn, side, &head, &reason).await,
        };
        if !shared.audit.is_healthy() {
            return unrecordable(conn, side).await;
        }
        let judged = judge(shared, &target, side).await;
        if !judged.allowed() {
            return deny(shared, conn, side, &head, &judged).await;
        }
        match exchange(shared, &mut conn, side, &head, &judged, kept.take()).await {
            Some(upstream) => kept = Some(upstream),
            None => return,
        }
        if conn.ahead.is_empty() {
            place.set_waiting();
        }
    }
}

enum ReadError {
    Head(HeadError),
    Gone,
}

/// A whole head and its length; none when the client is done.
async fn read_head(conn: &mut Conn) -> Result<Option<(RequestHead, usize)>, ReadError> {
    match conn.first_bytes(IDLE_PATIENCE).await {
        Ok(true) => {}
        Ok(false) | Err(_) => return Ok(None),
    }
    // No method begins like that; TLS to the proxy itself does.
    if !matches!(conn.ahead.first(), Some(b'\r' | b'!'..=b'~')) {
        return Err(ReadError::Head(HeadError::BadMethod));
    }
    let deadline = Instant::now() + HEAD_PATIENCE;
    loop {
        match parse_request(&conn.ahead) {
            Ok(Some(parsed)) => return Ok(Some(parsed)),
            Ok(None) if conn.ahead.len() > MAX_HEAD => {
                return Err(ReadError::Head(HeadError::TooLarge));
            }
            Ok(None) => match conn.fill_until(deadline).await {
                Ok(true) => {}
                Ok(false) | Err(_) => return Err(ReadError::Gone),
            },
            Err(error) => return Err(ReadError::Head(error)),
        }
    }
}

/// What a request is for, whoever it was dialled to.
fn target(head: &RequestHead, side: Side) -> Result<Target, String> {
    let (authority, port) = match (side, head.target()) {
        (Side::Forward, Form::Absolute { authority, .. }) => (Some(authority), 80),
        (Side::Forward, Form::Origin(_) | Form::Asterisk | Form::Authority(_)) => {
            return Err("this is a proxy: it takes `GET http://host/path` and `CONNECT`".into());
        }
        (Side::Transparent(dialled), Form::Origin(_) | Form::Asterisk) => {
            (head.host(), dialled.port())
        }
        // A server takes this form too (RFC 9112, 3.2.2), and the header says the same.
        (Side::Transparent(dialled), Form::Absolute { authority, .. })
            if head.host().is_some() && authority.port().unwrap_or(80) == dialled.port() =>
        {
            (Some(authority), dialled.port())
        }
        (Side::Transparent(_), Form::Absolute { .. } | Form::Authority(_)) => {
            return Err("a request for a proxy was sent to another address".into());
        }
    };
    match (authority, side) {
        (Some(authority), Side::Forward) => {
            Target::parse_authority(&authority.to_string(), Some(port)).map_err(|e| e.to_string())
        }
        // The port that was dialled counts, whatever the header says.
        (Some(authority), Side::Transparent(_)) => Host::parse(authority.host())
            .map(|host| Target { host, port })
            .map_err(|e| e.to_string()),
        (None, Side::Transparent(dialled)) => Ok(Target {
            host: Host::Ip(dialled.ip()),
            port,
        }),
        (None, Side::Forward) => Err("the request names no host".into()),
    }
}

async fn judge(shared: &Shared, target: &Target, side: Side) -> Judged {
    match side {
        Side::Forward => shared.gate.judge(target, Protocol::Web).await,
        Side::Transparent(dialled) => {
            let gate = &shared.gate;
            gate.judge_dialled(dialled, Some(&target.host), Protocol::Web)
                .await
        }
    }
}

async fn deny(shared: &Shared, conn: Conn, side: Side, head: &RequestHead, judged: &Judged) {
    let (entrance, via) = side.entrance();
    journey::record_denial(&shared.audit, entrance, via, judged);
    match side {
        Side::Forward => {
            let sandbox = shared.audit.sandbox();
            let answer = answer::denial(sandbox, &judged.target, &judged.verdict, Some(head));
            say_and_end(&conn.stream, &answer).await;
        }
        Side::Transparent(_) => reset(&conn.stream),
    }
}

/// What cannot be put on record does not happen, not even a look-up.
pub(crate) async fn unrecordable(conn: Conn, side: Side) {
    match side {
        Side::Forward => {
            let words =
                "the network log cannot be written, so nothing is let out\nhint: sbx diagnose";
            say_and_end(&conn.stream, &plain("503 Service Unavailable", words)).await;
        }
        Side::Transparent(_) => reset(&conn.stream),
    }
}

async fn refuse(shared: &Shared, conn: Conn, side: Side, error: ReadError) {
    let ReadError::Head(error) = error else {
        return;
    };
    let (entrance, via) = side.entrance();
    let reason = format!("the request is refused: {error}");
    let dialled = dialled(side);
    journey::record_nonsense(&shared.audit, entrance, via, &dialled.0, dialled.1, &reason);
    match side {
        Side::Forward => {
            let status = match error.status() {
                431 => "431 Request Header Fields Too Large",
                505 => "505 HTTP Version Not Supported",
                _ => "400 Bad Request",
            };
            say_and_end(&conn.stream, &plain(status, &reason)).await;
        }
        Side::Transparent(_) => reset(&conn.stream),
    }
}

async fn refuse_target(shared: &Shared, conn: Conn, side: Side, head: &RequestHead, reason: &str) {
    let (entrance, via) = side.entrance();
    let (host, port) = match head.authority() {
        Some(named) => (named.host().to_owned(), named.port().or(dialled(side).1)),
        None => dialled(side),
    };
    journey::record_nonsense(&shared.audit, entrance, via, &host, port, reason);
    match side {
        Side::Forward => say_and_end(&conn.stream, &plain("400 Bad Request", reason)).await,
        Side::Transparent(_) => reset(&conn.stream),
    }
}

fn dialled(side: Side) -> (String, Option<u16>) {
    match side {
        Side::Forward => (String::new(), None),
        Side::Transparent(dialled) => (dialled.ip().to_string(), Some(dialled.port())),
    }
}

async fn connect(shared: &Shared, conn: Conn, authority: &str) {
    let target = match Target::parse_authority(authority, None) {
        Ok(target) => target,
        Err(error) => {
            let reason = error.to_string();
            let (audit, via) = (&shared.audit, Via::Forward);
            journey::record_nonsense(audit, Entrance::Connect, via, authority, None, &reason);
            return say_and_end(&conn.stream, &plain("400 Bad Request", &reason)).await;
        }
    };
    if !shared.audit.is_healthy() {
        return unrecordable(conn, Side::Forward).await;
    }
    let granted = b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec();
    let (judged, needs) = shared.gate.judge_tunnel(&target).await;
    if !judged.allowed() {
        journey::record_denial(&shared.audit, Entrance::Connect, Via::Forward, &judged);
        if (shared.bypass)(&judged.target.host) {
            // Most clients hide this answer, but nobody opens TLS that was to be left alone.
            let sandbox = shared.audit.sandbox();
            let answer = answer::denial(sandbox, &judged.target, &judged.verdict, None);
            return say_and_end(&conn.stream, &answer).await;
        }
        if write_all(&conn.stream, &granted).await.is_ok() {
            deny_tunnel(shared, conn, &judged.target, &judged.verdict).await;
        }
        return;
    }
    let words = Words {
        granted,
        failed: plain("502 Bad Gateway", &format!("{target} does not answer")),
    };
    forward::tunnel(shared, conn, Entrance::Connect, (judged, needs), words).await;
}
