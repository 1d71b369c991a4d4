//! Plain HTTP: every request on a connection is judged by itself, and passed on as it came.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use sbx_policy::{Host, Protocol, Target, is_host_alias};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::answer::{self, deny_tunnel, plain, say_and_end};
use crate::audit::{Entrance, Via};
use crate::conn::{Conn, fill};
use crate::dial::{dial_any, reset};
use crate::forward::{self, Words};
use crate::gate::Judged;
use crate::journey::{self, Journey};
use crate::limits::Place;
use crate::outlet::Shared;
use crate::tunnel::{Counters, relay, write_all};
use crate::wire::http1::{
    BodyKind, BodyTracker, HeadError, MAX_HEAD, RequestHead, Target as Form, parse_request,
    parse_response,
};

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
    fn entrance(self) -> (Entrance, Via) {
        match self {
            Self::Forward => (Entrance::Http, Via::Forward),
            Self::Transparent(_) => (Entrance::Transparent, Via::Transparent),
        }
    }
}

/// A connection to an origin that another request may use.
struct Upstream {
    stream: TcpStream,
    address: SocketAddr,
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
        let judged = judge(shared, &target, side).await;
        if !judged.allowed() || !shared.audit.is_healthy() {
            return deny(shared, conn, side, &head, &judged).await;
        }
        match exchange(shared, &mut conn, side, &head, &judged, kept.take()).await {
            Some(upstream) => kept = Some(upstream),
            None => return,
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
    if judged.allowed() {
        return unrecordable(conn, side).await;
    }
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

/// What cannot be put on record does not happen.
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
    let named = head.authority().map(ToString::to_string);
    let (host, port) = dialled(side);
    let host = named.unwrap_or(host);
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
    let granted = b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec();
    let (judged, needs) = shared.gate.judge_tunnel(&target).await;
    if !judged.allowed() {
        journey::record_denial(&shared.audit, Entrance::Connect, Via::Forward, &judged);
        if write_all(&conn.stream, &granted).await.is_ok() {
            deny_tunnel(shared, conn, &judged.target, &judged.verdict).await;
        }
        return;
    }
    if !shared.audit.is_healthy() {
        return unrecordable(conn, Side::Forward).await;
    }
    let words = Words {
        granted,
        failed: plain("502 Bad Gateway", &format!("{target} does not answer")),
    };
    forward::tunnel(shared, conn, Entrance::Connect, (judged, needs), words).await;
}

/// One request and its response. What is left of the connections may be used again.
async fn exchange(
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
    let fits = |kept: &Upstream| judged.addresses.contains(&kept.address) && kept.is_usable();
    let mut upstream = match kept.filter(fits) {
        Some(kept) => kept,
        None => match dial_any(&shared.dial, &judged.addresses).await {
            Ok((stream, address)) => Upstream {
                stream,
                address,
                ahead: Vec::new(),
            },
            Err(error) => {
                let words = format!("{} does not answer: {error}", judged.target);
                journey.failed(&error);
                match side {
                    Side::Forward => {
                        say_and_end(&conn.stream, &plain("502 Bad Gateway", &words)).await;
                    }
                    // Its Drop closes the connection.
                    Side::Transparent(_) => {}
                }
                return None;
            }
        },
    };
    let address = upstream.address;
    let counters = journey.counters();
    let mut reusable = false;
    let work = async {
        let client = &conn.stream;
        reusable = pass(
            client,
            &mut conn.ahead,
            &mut upstream,
            head,
            &bytes,
            &counters,
        )
        .await?;
        Ok(())
    };
    journey.guard(&shared.gate, judged, address, work).await;
    reusable.then_some(upstream)
}

/// The head as the origin gets it.
fn outgoing(head: &RequestHead, side: Side, judged: &Judged) -> Result<Vec<u8>, HeadError> {
    // The host's own services know themselves by another name.
    let own =
        is_host_alias(&judged.target.host).then(|| format!("localhost:{}", judged.target.port));
    match (side, &own) {
        (Side::Transparent(_), None) => Ok(head.bytes().to_vec()),
        (Side::Transparent(_) | Side::Forward, _) => {
            let path = head.target().origin_form().unwrap_or("/");
            head.rewrite(path, own.as_deref())
        }
    }
}

/// True when both connections can carry another request.
async fn pass(
    client: &TcpStream,
    ahead: &mut Vec<u8>,
    upstream: &mut Upstream,
    head: &RequestHead,
    bytes: &[u8],
    counters: &Counters,
) -> io::Result<bool> {
    let Upstream {
        stream: origin,
        ahead: received,
        ..
    } = upstream;
    write_all(origin, bytes).await?;
    counters.add_sent(bytes.len());
    let mut sent = head.body() == BodyKind::None;
    let end = {
        let sending = send_body(client, ahead, origin, head.body(), counters);
        let receiving = receive(origin, received, client, head.method(), counters);
        tokio::pin!(sending, receiving);
        loop {
            tokio::select! {
                done = &mut sending, if !sent => {
                    sent = true;
                    if let Err(error) = done {
                        // The origin may have answered without reading everything.
                        if error.kind() != io::ErrorKind::BrokenPipe { return Err(error); }
                    }
                }
                end = &mut receiving => break end?,
            }
        }
    };
    match end {
        End::Switched => {
            write_all(origin, ahead).await?;
            counters.add_sent(ahead.len());
            *ahead = Vec::new();
            write_all(client, received).await?;
            counters.add_received(received.len());
            *received = Vec::new();
            relay(client, origin, counters).await?;
            Ok(false)
        }
        End::Response { keep_alive } => Ok(sent && keep_alive && head.keep_alive()),
    }
}

async fn send_body(
    client: &TcpStream,
    ahead: &mut Vec<u8>,
    origin: &TcpStream,
    kind: BodyKind,
    counters: &Counters,
) -> io::Result<()> {
    let mut body = BodyTracker::new(kind);
    while !body.is_done() {
        if ahead.is_empty() && !fill(client, ahead).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        move_body(&mut body, ahead, origin, |bytes| counters.add_sent(bytes)).await?;
    }
    Ok(())
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
    method: &str,
    counters: &Counters,
) -> io::Result<End> {
    let count = |bytes: usize| counters.add_received(bytes);
    let head = loop {
        let Some((head, length)) = parse_response(received).map_err(io::Error::other)? else {
            if !fill(origin, received).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            continue;
        };
        write_all(client, head.bytes()).await?;
        count(length);
        received.drain(..length);
        if head.is_switching() {
            return Ok(End::Switched);
        }
        if !head.is_interim() {
            break head;
        }
    };
    let kind = head.body(method);
    let mut body = BodyTracker::new(kind);
    while !body.is_done() {
        if received.is_empty() && !fill(origin, received).await? {
            body.end_of_input().map_err(io::Error::other)?;
            break;
        }
        move_body(&mut body, received, client, count).await?;
    }
    if received.is_empty() {
        *received = Vec::new();
    }
    let keep_alive = head.keep_alive() && kind != BodyKind::UntilClose;
    Ok(End::Response { keep_alive })
}

/// Passes on what is there of a body.
async fn move_body(
    body: &mut BodyTracker,
    bytes: &mut Vec<u8>,
    to: &TcpStream,
    count: impl Fn(usize),
) -> io::Result<()> {
    let length = body.advance(bytes).map_err(io::Error::other)?;
    write_all(to, bytes.get(..length).unwrap_or_default()).await?;
    count(length);
    bytes.drain(..length);
    Ok(())
}
