//! One HTTP request and its response, from one connection to the other.

use std::io;
use std::net::SocketAddr;

use rustix::net::Shutdown;
use sbx_policy::{Target, is_host_alias};
use thiserror::Error;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::answer::{end, plain, say_and_end};
use crate::conn::{Conn, fill};
use crate::dial::{dial_any, reset};
use crate::gate::Judged;
use crate::http::Side;
use crate::journey::Journey;
use crate::outlet::Shared;
use crate::tunnel::{Counters, relay, write_all};
use crate::wire::http1::{
    BodyError, BodyKind, BodyTracker, HeadError, RequestHead, parse_response,
};

/// Asking twice for these is the same as asking once (RFC 9110, 9.2.2).
const REPEATABLE: &[&str] = &["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];

/// A connection to an origin that another request may use.
pub(crate) struct Upstream {
    stream: TcpStream,
    address: SocketAddr,
    /// What it was opened for, or last used for: that is on record.
    target: Target,
    ahead: Vec<u8>,
}

impl Upstream {
    /// Nothing was said since the last response, not even goodbye.
    fn is_usable(&self) -> bool {
        let mut byte = [0];
        self.ahead.is_empty()
            && self
                .stream
                .try_read(&mut byte)
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
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
enum Trouble {
    #[error("the client left: {0}")]
    Client(io::Error),
    #[error("the body of the request is refused: {0}")]
    Body(#[from] BodyError),
    #[error("the origin failed: {0}")]
    Origin(io::Error),
    /// The client would take the end of the connection for the end of the body.
    #[error("the origin broke off: {0}")]
    BrokenOff(io::Error),
    #[error("after the change of the protocol: {0}")]
    Switched(io::Error),
}

/// What is left of the connections may be used again.
pub(crate) async fn exchange(
    shared: &Shared,
    conn: &mut Conn,
    side: Side,
    head: &RequestHead,
    judged: &Judged,
    kept: Option<Upstream>,
) -> Option<Upstream> {
    let (entrance, via) = side.entrance();
    let mut journey = Journey::begin(&shared.audit, entrance, via, judged);
    let bytes = match outgoing(head, side, judged) {
        Ok(bytes) => bytes,
        Err(error) => {
            journey.failed(error);
            return None;
        }
    };
    let counters = journey.counters();
    let fits = |kept: &Upstream| judged.addresses.contains(&kept.address) && kept.is_usable();
    let mut kept = kept.filter(fits);
    loop {
        let again = kept.is_some();
        let known = (kept.as_ref()).is_some_and(|kept| kept.target == judged.target);
        let mut upstream = match kept.take() {
            Some(kept) => kept,
            None => match dial(shared, judged).await {
                Ok(upstream) => upstream,
                Err(error) => {
                    journey.failed(&error);
                    drop(journey);
                    let words = format!("{} does not answer: {error}", judged.target);
                    fail(conn, side, "502 Bad Gateway", &words).await;
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
                Err(trouble) => Err(io::Error::other(trouble.to_string())),
            };
            ended = Some(passed);
            told
        };
        if known {
            journey.follows();
        }
        let cut = journey.guard(&shared.gate, judged, address, work).await;
        upstream.target = judged.target.clone();
        let (Some(ended), false) = (ended, cut) else {
            reset(&conn.stream);
            reset(&upstream.stream);
            return None;
        };
        match ended {
            Ok(Passed::Again) => return Some(upstream),
            Ok(Passed::Last) => return None,
            Ok(Passed::Early) => {
                drop((journey, upstream));
                end(&conn.stream).await;
                return None;
            }
            // The origin had said goodbye to a connection that was kept, and the request crossed it.
            Err(Trouble::Origin(_)) if again && counters.received() == 0 && repeatable(head) => {
                journey.recovered();
            }
            Err(trouble) => {
                drop((journey, upstream));
                tell(conn, side, judged, &trouble, counters.received()).await;
                return None;
            }
        }
    }
}

fn repeatable(head: &RequestHead) -> bool {
    REPEATABLE.contains(&head.method()) && !has_body(head.body())
}

async fn dial(shared: &Shared, judged: &Judged) -> io::Result<Upstream> {
    let (stream, address) = dial_any(&shared.dial, &judged.addresses).await?;
    Ok(Upstream {
        stream,
        address,
        target: judged.target.clone(),
        ahead: Vec::new(),
    })
}

/// What the client hears, if it can still be told.
async fn tell(conn: &Conn, side: Side, judged: &Judged, trouble: &Trouble, received: u64) {
    let status = match trouble {
        Trouble::Client(_) | Trouble::Switched(_) => return,
        Trouble::BrokenOff(_) => return reset(&conn.stream),
        Trouble::Body(_) | Trouble::Origin(_) if received > 0 => return,
        Trouble::Body(_) => "400 Bad Request",
        Trouble::Origin(_) => "502 Bad Gateway",
    };
    let words = format!("{}: {trouble}", judged.target);
    fail(conn, side, status, &words).await;
}

async fn fail(conn: &Conn, side: Side, status: &str, words: &str) {
    match side {
        Side::Forward => say_and_end(&conn.stream, &plain(status, words)).await,
        Side::Transparent(_) => reset(&conn.stream),
    }
}

/// The head as the origin gets it.
fn outgoing(head: &RequestHead, side: Side, judged: &Judged) -> Result<Vec<u8>, HeadError> {
    // The host's own services know themselves by another name.
    let own =
        is_host_alias(&judged.target.host).then(|| format!("localhost:{}", judged.target.port));
    // An offer to go on with HTTP/2 is not passed on: nobody here could read it.
    let offered = head.headers().get("upgrade").is_some() && head.upgrade().is_none();
    match (side, &own) {
        (Side::Transparent(_), None) if !offered => Ok(head.bytes().to_vec()),
        (Side::Transparent(_) | Side::Forward, _) => {
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
) -> Result<Passed, Trouble> {
    let (client, ahead) = (&*conn.stream, &mut conn.ahead);
    let (origin, received) = (&upstream.stream, &mut upstream.ahead);
    write_all(origin, bytes).await.map_err(Trouble::Origin)?;
    counters.add_sent(bytes.len());
    let (mut sending_on, mut sent, mut more) = (true, false, false);
    let end = {
        let sending = send_body(client, ahead, origin, head.body(), counters);
        let receiving = receive(origin, received, client, head, counters);
        let farewell = farewell(client, origin);
        tokio::pin!(sending, receiving, farewell);
        loop {
            tokio::select! {
                biased;
                done = &mut sending, if sending_on => {
                    sending_on = false;
                    match done {
                        Ok(ahead) => (sent, more) = (true, ahead),
                        // The origin may have answered without reading everything.
                        Err(Trouble::Origin(_)) => {}
                        Err(trouble) => return Err(trouble),
                    }
                }
                end = &mut receiving => break end?,
                error = &mut farewell, if sent && !more => return Err(Trouble::Client(error)),
            }
        }
    };
    match end {
        End::Switched => {
            let switched = async {
                write_all(origin, ahead).await?;
                counters.add_sent(ahead.len());
                *ahead = Vec::new();
                write_all(client, received).await?;
                counters.add_received(received.len());
                *received = Vec::new();
                relay(client, origin, counters).await
            };
            switched.await.map_err(Trouble::Switched)?;
            Ok(Passed::Last)
        }
        End::Response { .. } if !sent => Ok(Passed::Early),
        End::Response { keep_alive: true } if head.keep_alive() => Ok(Passed::Again),
        End::Response { .. } => Ok(Passed::Last),
    }
}

/// A client that has said everything says goodbye to the origin too, which may still answer. Ends when the client
/// is gone for good.
async fn farewell(client: &TcpStream, origin: &TcpStream) -> io::Error {
    let goodbye = async {
        let mut byte = [0];
        if let Ok(0) = client.peek(&mut byte).await {
            // An origin that is gone is noticed by whoever reads from it.
            let _ = rustix::net::shutdown(origin, Shutdown::Write);
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = goodbye => {}
        _ = client.ready(Interest::ERROR) => {}
    }
    io::ErrorKind::ConnectionReset.into()
}

/// True when the client has said more than this body.
async fn send_body(
    client: &TcpStream,
    ahead: &mut Vec<u8>,
    origin: &TcpStream,
    kind: BodyKind,
    counters: &Counters,
) -> Result<bool, Trouble> {
    let mut body = BodyTracker::new(kind);
    while !body.is_done() {
        if ahead.is_empty() && !fill(client, ahead).await.map_err(Trouble::Client)? {
            return Err(Trouble::Client(io::ErrorKind::UnexpectedEof.into()));
        }
        let length = body.advance(ahead)?;
        let piece = ahead.get(..length).unwrap_or_default();
        write_all(origin, piece).await.map_err(Trouble::Origin)?;
        counters.add_sent(length);
        ahead.drain(..length);
    }
    Ok(!ahead.is_empty())
}

enum End {
    Response {
        keep_alive: bool,
    },
    /// Both sides agreed on another protocol.
    Switched,
}

async fn receive(
    origin: &TcpStream,
    received: &mut Vec<u8>,
    client: &TcpStream,
    request: &RequestHead,
    counters: &Counters,
) -> Result<End, Trouble> {
    let malformed = |error| Trouble::Origin(io::Error::other(error));
    let head = loop {
        let Some((head, length)) = parse_response(received).map_err(malformed)? else {
            if !fill(origin, received).await.map_err(Trouble::Origin)? {
                return Err(Trouble::Origin(io::ErrorKind::UnexpectedEof.into()));
            }
            continue;
        };
        if head.is_switching() && request.upgrade().is_none() {
            let error = io::Error::other("it changes to a protocol that nobody asked for");
            return Err(Trouble::Origin(error));
        }
        let told = write_all(client, head.bytes()).await;
        told.map_err(Trouble::Client)?;
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
        BodyKind::UntilClose => Trouble::BrokenOff(error),
        BodyKind::None | BodyKind::Length(_) | BodyKind::Chunked => Trouble::Origin(error),
    };
    let mut body = BodyTracker::new(kind);
    while !body.is_done() {
        if received.is_empty() && !fill(origin, received).await.map_err(broken)? {
            let cut = body.end_of_input().map_err(io::Error::other);
            cut.map_err(broken)?;
            break;
        }
        let length = body.advance(received).map_err(io::Error::other);
        let length = length.map_err(broken)?;
        let piece = received.get(..length).unwrap_or_default();
        write_all(client, piece).await.map_err(Trouble::Client)?;
        counters.add_received(length);
        received.drain(..length);
    }
    if received.is_empty() {
        *received = Vec::new();
    }
    let keep_alive = head.keep_alive() && !until_close;
    Ok(End::Response { keep_alive })
}
