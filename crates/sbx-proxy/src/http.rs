//! Plain HTTP: every request on a connection is checked by itself, and passed on as it came.

use std::time::Duration;

use sbx_policy::{Host, Protocol, Target};
use tokio::time::Instant;

use crate::answer::{self, send_and_close};
use crate::conn::Conn;
use crate::connect;
use crate::entry::Entry;
use crate::exchange::{Upstream, exchange};
use crate::gate::GateDecision;
use crate::limits::Slot;
use crate::proxy::Shared;
use crate::record::{record_denial, record_malformed};
use crate::wire::http1::{HeadError, MAX_HEAD, RequestHead, Target as Form, parse_request};

/// From the first byte of a head to its last.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

pub(crate) async fn serve(shared: &Shared, mut conn: Conn, entry: Entry, mut slot: Slot) {
    let mut kept: Option<Upstream> = None;
    loop {
        let (head, length) = match read_head(&mut conn).await {
            Ok(Some(read)) => read,
            Ok(None) => return,
            Err(error) => return refuse(shared, conn, entry, error).await,
        };
        slot.set_busy();
        conn.consume(length);
        if let (Entry::Forward, Form::Authority(authority)) = (entry, head.target()) {
            let authority = authority.to_string();
            return connect::serve(shared, conn, &authority).await;
        }
        let target = match target(&head, entry) {
            Ok(target) => target,
            Err(reason) => return refuse_target(shared, conn, entry, &head, &reason).await,
        };
        if !shared.audit.is_healthy() {
            return entry.fail_unrecordable(&conn).await;
        }
        let decision = decide(shared, &target, entry).await;
        if !decision.allowed() {
            return deny(shared, conn, entry, &head, &decision).await;
        }
        match exchange(shared, &mut conn, entry, &head, &decision, kept.take()).await {
            Some(upstream) => kept = Some(upstream),
            None => return,
        }
        if conn.buffered.is_empty() {
            slot.set_waiting();
        }
    }
}

enum ReadError {
    Head(HeadError),
    Gone,
}

/// A whole head and its length; none when the client is done.
async fn read_head(conn: &mut Conn) -> Result<Option<(RequestHead, usize)>, ReadError> {
    match conn.first_bytes(IDLE_TIMEOUT).await {
        Ok(true) => {}
        Ok(false) | Err(_) => return Ok(None),
    }
    // No method begins like that; TLS to the proxy itself does.
    if !matches!(conn.buffered.first(), Some(b'\r' | b'!'..=b'~')) {
        return Err(ReadError::Head(HeadError::BadMethod));
    }
    let deadline = Instant::now() + HEAD_TIMEOUT;
    loop {
        match parse_request(&conn.buffered) {
            Ok(Some(parsed)) => return Ok(Some(parsed)),
            Ok(None) if conn.buffered.len() > MAX_HEAD => {
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

/// What a request is for, whatever address was dialled.
fn target(head: &RequestHead, entry: Entry) -> Result<Target, String> {
    let (authority, port) = match (entry, head.target()) {
        (Entry::Forward, Form::Absolute { authority, .. }) => (Some(authority), 80),
        (Entry::Forward, Form::Origin(_) | Form::Asterisk | Form::Authority(_)) => {
            return Err("this is a proxy: it takes `GET http://host/path` and `CONNECT`".into());
        }
        (Entry::Transparent(dialled), Form::Origin(_) | Form::Asterisk) => {
            (head.host(), dialled.port())
        }
        // A server takes this form too (RFC 9112, 3.2.2), and the header says the same.
        (Entry::Transparent(dialled), Form::Absolute { authority, .. })
            if head.host().is_some() && authority.port().unwrap_or(80) == dialled.port() =>
        {
            (Some(authority), dialled.port())
        }
        (Entry::Transparent(_), Form::Absolute { .. } | Form::Authority(_)) => {
            return Err("a request for a proxy was sent to another address".into());
        }
    };
    match (authority, entry) {
        (Some(authority), Entry::Forward) => {
            Target::parse_authority(&authority.to_string(), Some(port)).map_err(|e| e.to_string())
        }
        // The port that was dialled counts, whatever the header says.
        (Some(authority), Entry::Transparent(_)) => Host::parse(authority.host())
            .map(|host| Target { host, port })
            .map_err(|e| e.to_string()),
        (None, Entry::Transparent(dialled)) => Ok(Target {
            host: Host::Ip(dialled.ip()),
            port,
        }),
        (None, Entry::Forward) => Err("the request names no host".into()),
    }
}

async fn decide(shared: &Shared, target: &Target, entry: Entry) -> GateDecision {
    match entry {
        Entry::Forward => shared.gate.decide_target(target, Protocol::Web).await,
        Entry::Transparent(dialled) => {
            let gate = &shared.gate;
            gate.decide_dialled(dialled, Some(&target.host), Protocol::Web)
                .await
        }
    }
}

async fn deny(
    shared: &Shared,
    conn: Conn,
    entry: Entry,
    head: &RequestHead,
    decision: &GateDecision,
) {
    let (entrance, via) = entry.entrance();
    record_denial(&shared.audit, entrance, via, decision);
    match entry {
        Entry::Forward => {
            let sandbox = shared.audit.sandbox();
            let answer = answer::denial(sandbox, &decision.target, &decision.verdict, Some(head));
            send_and_close(&*conn.transport, &answer).await;
        }
        Entry::Transparent(_) => conn.transport.reset(),
    }
}

async fn refuse(shared: &Shared, conn: Conn, entry: Entry, error: ReadError) {
    let ReadError::Head(error) = error else {
        return;
    };
    let (entrance, via) = entry.entrance();
    let reason = format!("invalid request: {error}");
    let dialled = entry.dialled();
    record_malformed(&shared.audit, entrance, via, &dialled.0, dialled.1, &reason);
    let status = match error.status() {
        431 => "431 Request Header Fields Too Large",
        505 => "505 HTTP Version Not Supported",
        _ => "400 Bad Request",
    };
    entry.fail(&conn, status, &reason).await;
}

async fn refuse_target(
    shared: &Shared,
    conn: Conn,
    entry: Entry,
    head: &RequestHead,
    reason: &str,
) {
    let (entrance, via) = entry.entrance();
    let (host, port) = match head.authority() {
        Some(named) => (named.host().to_owned(), named.port().or(entry.dialled().1)),
        None => entry.dialled(),
    };
    record_malformed(&shared.audit, entrance, via, &host, port, reason);
    entry.fail(&conn, "400 Bad Request", reason).await;
}
