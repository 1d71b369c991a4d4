//! One HTTP request and its response, from one connection to the other.
//!
//! The body of the request and the response run side by side: an origin may answer before it has read all
//! of the body, and then the rest is not awaited. A kept connection to the origin may have been closed meanwhile; only
//! an idempotent request without a body is sent again then, once, on a new one (RFC 9110, 9.2.2). What was passed on
//! exactly decides whether either connection can be used for the next request.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use sbx_policy::{Target, is_host_alias};
use thiserror::Error;

use crate::answer::close_gracefully;
use crate::body::{BodyFailure, pass_body};
use crate::conn::{Conn, fill};
use crate::entry::Entry;
use crate::gate::GateDecision;
use crate::proxy::Shared;
use crate::relay::{Counters, relay};
use crate::session::Session;
use crate::transport::{Transport, shutdown, write_all};
use crate::wire::http1::{
    BodyError, BodyKind, BodyTracker, HeadError, RequestHead, parse_response,
};

/// Asking twice for these is the same as asking once (RFC 9110, 9.2.2).
const REPEATABLE: &[&str] = &["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];

/// A connection to an origin that another request may use.
pub(crate) struct Upstream {
    transport: Box<dyn Transport>,
    address: SocketAddr,
    /// What it was opened for, or last used for: that is on record.
    target: Target,
    buffered: Vec<u8>,
}

impl Upstream {
    /// Nothing was said since the last response, and the connection was not closed.
    fn is_usable(&self) -> bool {
        self.buffered.is_empty() && self.transport.is_idle()
    }
}

/// How a response ended.
enum Passed {
    /// Both connections can carry another request.
    Again,
    Last,
    /// The client has not said everything yet.
    Early,
}

#[derive(Debug, Error)]
enum ExchangeError {
    #[error("the client left: {0}")]
    Client(io::Error),
    #[error("invalid request body: {0}")]
    Body(#[from] BodyError),
    #[error("the origin failed: {0}")]
    Origin(io::Error),
    /// The client would take the end of the connection for the end of the body.
    #[error("the origin closed the connection early: {0}")]
    BrokenOff(io::Error),
    #[error("after the protocol upgrade: {0}")]
    Switched(io::Error),
}

/// What is left of the connections may be used again.
pub(crate) async fn exchange(
    shared: &Shared,
    conn: &mut Conn,
    entry: Entry,
    head: &RequestHead,
    decision: &GateDecision,
    kept: Option<Upstream>,
) -> Option<Upstream> {
    let (entrance, via) = entry.entrance();
    let mut session = Session::begin(&shared.audit, entrance, via, decision);
    let bytes = match outgoing(head, entry, decision) {
        Ok(bytes) => bytes,
        Err(error) => {
            session.failed(error);
            return None;
        }
    };
    let counters = session.counters();
    let fits = |kept: &Upstream| decision.addresses.contains(&kept.address) && kept.is_usable();
    let mut kept = kept.filter(fits);
    loop {
        let again = kept.is_some();
        let known = (kept.as_ref()).is_some_and(|kept| kept.target == decision.target);
        let mut upstream = match kept.take() {
            Some(kept) => kept,
            None => match dial(shared, decision).await {
                Ok(upstream) => upstream,
                Err(error) => {
                    session.failed(&error);
                    drop(session);
                    let text = format!("cannot connect to {}: {error}", decision.target);
                    entry.fail(conn, "502 Bad Gateway", &text).await;
                    return None;
                }
            },
        };
        let address = upstream.address;
        let mut ended = None;
        let work = async {
            let passed = pass(conn, &mut upstream, head, &bytes, &counters).await;
            let told = match &passed {
                Ok(_) => Ok(()),
                Err(error) => Err(io::Error::other(error.to_string())),
            };
            ended = Some(passed);
            told
        };
        if known {
            session.follows();
        }
        let cut = session.guard(&shared.gate, decision, address, work).await;
        upstream.target = decision.target.clone();
        let (Some(ended), false) = (ended, cut) else {
            conn.transport.reset();
            upstream.transport.reset();
            return None;
        };
        match ended {
            Ok(Passed::Again) => return Some(upstream),
            Ok(Passed::Last) => return None,
            Ok(Passed::Early) => {
                drop((session, upstream));
                close_gracefully(&*conn.transport).await;
                return None;
            }
            // The origin had said goodbye to a connection that was kept, and the request crossed it.
            Err(ExchangeError::Origin(_))
                if again && counters.received() == 0 && repeatable(head) =>
            {
                session.retry();
            }
            Err(error) => {
                drop((session, upstream));
                tell(conn, entry, decision, &error, counters.received()).await;
                return None;
            }
        }
    }
}

fn repeatable(head: &RequestHead) -> bool {
    REPEATABLE.contains(&head.method()) && !has_body(head.body())
}

async fn dial(shared: &Shared, decision: &GateDecision) -> io::Result<Upstream> {
    let (transport, address) = shared.dialer.connect(&decision.addresses).await?;
    Ok(Upstream {
        transport,
        address,
        target: decision.target.clone(),
        buffered: Vec::new(),
    })
}

/// What the client hears, if it can still be told.
async fn tell(
    conn: &Conn,
    entry: Entry,
    decision: &GateDecision,
    error: &ExchangeError,
    received: u64,
) {
    let status = match error {
        ExchangeError::Client(_) | ExchangeError::Switched(_) => return,
        ExchangeError::BrokenOff(_) => return conn.transport.reset(),
        ExchangeError::Body(_) | ExchangeError::Origin(_) if received > 0 => return,
        ExchangeError::Body(_) => "400 Bad Request",
        ExchangeError::Origin(_) => "502 Bad Gateway",
    };
    let text = format!("{}: {error}", decision.target);
    entry.fail(conn, status, &text).await;
}

/// The head as the origin gets it.
fn outgoing(
    head: &RequestHead,
    entry: Entry,
    decision: &GateDecision,
) -> Result<Vec<u8>, HeadError> {
    // The host's own services know themselves by another name.
    let own =
        is_host_alias(&decision.target.host).then(|| format!("localhost:{}", decision.target.port));
    // An offer to go on with HTTP/2 (h2c) is not passed on: its requests could not be read here.
    let offered = head.headers().get("upgrade").is_some() && head.upgrade().is_none();
    match (entry, &own) {
        (Entry::Transparent(_), None) if !offered => Ok(head.bytes().to_vec()),
        (Entry::Transparent(_) | Entry::Forward, _) => {
            let path = head.target().origin_form().unwrap_or("/");
            head.rewrite(path, own.as_deref())
        }
    }
}

fn has_body(kind: BodyKind) -> bool {
    !matches!(kind, BodyKind::None | BodyKind::Length(0))
}

async fn pass(
    conn: &mut Conn,
    upstream: &mut Upstream,
    head: &RequestHead,
    bytes: &[u8],
    counters: &Counters,
) -> Result<Passed, ExchangeError> {
    let (client, buffered) = (&*conn.transport, &mut conn.buffered);
    let (origin, received) = (&*upstream.transport, &mut upstream.buffered);
    write_all(origin, bytes)
        .await
        .map_err(ExchangeError::Origin)?;
    counters.add_sent(bytes.len());
    let (end, sent) = {
        let receiving = receive(origin, received, client, head, counters);
        tokio::pin!(receiving);
        let sending = send_body(client, buffered, origin, head.body(), counters);
        // An answer may come before the whole request was sent, and then the request need not be finished.
        match body_or_response(sending, receiving.as_mut()).await? {
            First::Response(end) => (end, false),
            First::Body { sent } => {
                let watching = watch_client(client, buffered, origin);
                let end = tokio::select! {
                    biased;
                    end = receiving => end?,
                    error = watching, if sent => return Err(ExchangeError::Client(error)),
                };
                (end, sent)
            }
        }
    };
    match end {
        End::Switched => {
            let switched = async {
                write_all(origin, buffered).await?;
                counters.add_sent(buffered.len());
                *buffered = Vec::new();
                write_all(client, received).await?;
                counters.add_received(received.len());
                *received = Vec::new();
                relay(client, origin, counters).await
            };
            switched.await.map_err(ExchangeError::Switched)?;
            Ok(Passed::Last)
        }
        End::Response { .. } if !sent => Ok(Passed::Early),
        End::Response { keep_alive: true } if head.keep_alive() => Ok(Passed::Again),
        End::Response { .. } => Ok(Passed::Last),
    }
}

enum First {
    Response(End),
    /// False when the origin did not take all of it: its answer may be on the way.
    Body {
        sent: bool,
    },
}

/// Whichever ends first: the body of the request, or the response.
async fn body_or_response(
    sending: impl Future<Output = Result<(), ExchangeError>>,
    receiving: impl Future<Output = Result<End, ExchangeError>>,
) -> Result<First, ExchangeError> {
    tokio::select! {
        biased;
        sent = sending => match sent {
            Ok(()) => Ok(First::Body { sent: true }),
            Err(ExchangeError::Origin(_)) => Ok(First::Body { sent: false }),
            Err(error) => Err(error),
        },
        end = receiving => end.map(First::Response),
    }
}

/// Watches a client that has sent its request and waits. If it ends its direction, so does the origin's connection,
/// which may still answer; if it sends the next request early, that is kept. Returns when the client is gone.
async fn watch_client(
    client: &dyn Transport,
    buffered: &mut Vec<u8>,
    origin: &dyn Transport,
) -> io::Error {
    let watching = async {
        if buffered.is_empty() {
            match fill(client, buffered).await {
                // That the origin is gone shows when it is read from.
                Ok(false) => drop(shutdown(origin).await),
                Ok(true) => {}
                Err(error) => return error,
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        error = watching => error,
        () = client.broken() => io::ErrorKind::ConnectionReset.into(),
    }
}

async fn send_body(
    client: &dyn Transport,
    buffered: &mut Vec<u8>,
    origin: &dyn Transport,
    kind: BodyKind,
    counters: &Counters,
) -> Result<(), ExchangeError> {
    let mut body = BodyTracker::new(kind);
    let count = |bytes| counters.add_sent(bytes);
    let passed = pass_body(client, buffered, origin, &mut body, count).await;
    passed.map_err(|failure| match failure {
        BodyFailure::Ended => ExchangeError::Client(io::ErrorKind::UnexpectedEof.into()),
        BodyFailure::From(error) => ExchangeError::Client(error),
        BodyFailure::Invalid(error) => ExchangeError::Body(error),
        BodyFailure::To(error) => ExchangeError::Origin(error),
    })
}

enum End {
    Response {
        keep_alive: bool,
    },
    /// Both entrys agreed on another protocol.
    Switched,
}

async fn receive(
    origin: &dyn Transport,
    received: &mut Vec<u8>,
    client: &dyn Transport,
    request: &RequestHead,
    counters: &Counters,
) -> Result<End, ExchangeError> {
    let malformed = |error| ExchangeError::Origin(io::Error::other(error));
    let head = loop {
        let Some((head, length)) = parse_response(received).map_err(malformed)? else {
            if !fill(origin, received)
                .await
                .map_err(ExchangeError::Origin)?
            {
                return Err(ExchangeError::Origin(io::ErrorKind::UnexpectedEof.into()));
            }
            continue;
        };
        if head.is_switching() && request.upgrade().is_none() {
            let error =
                io::Error::other("it switches to a protocol that the client did not ask for");
            return Err(ExchangeError::Origin(error));
        }
        let told = write_all(client, head.bytes()).await;
        told.map_err(ExchangeError::Client)?;
        counters.add_received(length);
        received.drain(..length);
        if head.is_switching() {
            return Ok(End::Switched);
        }
        if !head.is_interim() {
            break head;
        }
    };
    let kind = head.body(request.method());
    let until_close = kind == BodyKind::UntilClose;
    let broken = |error| match kind {
        BodyKind::UntilClose => ExchangeError::BrokenOff(error),
        BodyKind::None | BodyKind::Length(_) | BodyKind::Chunked => ExchangeError::Origin(error),
    };
    let mut body = BodyTracker::new(kind);
    let count = |bytes| counters.add_received(bytes);
    match pass_body(origin, received, client, &mut body, count).await {
        Ok(()) => {}
        Err(BodyFailure::Ended) => {
            let cut = body.end_of_input().map_err(io::Error::other);
            cut.map_err(broken)?;
        }
        Err(BodyFailure::From(error)) => return Err(broken(error)),
        Err(BodyFailure::Invalid(error)) => return Err(broken(io::Error::other(error))),
        Err(BodyFailure::To(error)) => return Err(ExchangeError::Client(error)),
    }
    if received.is_empty() {
        *received = Vec::new();
    }
    let keep_alive = head.keep_alive() && !until_close;
    Ok(End::Response { keep_alive })
}
