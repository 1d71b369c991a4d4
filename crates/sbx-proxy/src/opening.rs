//! What a client sends first on a connection of which only the address is known.

use std::io;
use std::time::Duration;

use sbx_policy::Host;
use tokio::time::Instant;

use crate::conn::Conn;
use crate::relay::Broken;
use crate::transport::{Transport, write_all};
use crate::wire::h2;
use crate::wire::sniff::{Traffic, classify, is_prefix};

/// From the first byte to the end of a hello or a head.
const OPENING_TIMEOUT: Duration = Duration::from_secs(20);
/// A client that pauses for so long after a prefix waits for an answer to it.
const PREFIX_DELAY: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(crate) enum Opening {
    /// TLS, to the host that it names.
    Tls {
        host: Option<Host>,
    },
    /// A request head; it is still in the connection's buffer.
    Http,
    /// HTTP/2 without TLS: each of its requests may name another host, and they are compressed. It is checked by its
    /// address, where no name is denied.
    Http2,
    Other,
    /// A word that a request could begin with, then a pause: as good as [`Self::Other`], as long as no request comes of
    /// it. See [`forward_prefix`].
    Prefix,
    /// Nothing yet.
    Silent,
    /// Nothing, and nothing will come: it only listens.
    HalfClosed,
    Malformed(String),
    /// The connection broke.
    Lost,
}

/// Reads as much as it takes to tell, and leaves it in the buffer. `timeout` is for the first byte.
pub(crate) async fn read_opening(conn: &mut Conn, timeout: Duration) -> Opening {
    match conn.first_bytes(timeout).await {
        Ok(true) => {}
        Ok(false) => return Opening::HalfClosed,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => return Opening::Silent,
        Err(_) => return Opening::Lost,
    }
    let deadline = Instant::now() + OPENING_TIMEOUT;
    loop {
        let begun = match classified(&conn.buffered) {
            Some(opening) => return opening,
            None => &conn.buffered,
        };
        let prefix = is_prefix(begun);
        let until = if prefix {
            deadline.min(Instant::now() + PREFIX_DELAY)
        } else {
            deadline
        };
        match conn.fill_until(until).await {
            Ok(true) => {}
            // Part of a line and then nothing: a protocol that is neither, since no origin serves that.
            Ok(false) if prefix => return Opening::Other,
            // What began as HTTP or TLS is not called something else for being cut short.
            Ok(false) => return Opening::Malformed(INCOMPLETE.into()),
            Err(error) if error.kind() != io::ErrorKind::TimedOut => return Opening::Lost,
            Err(_) if prefix => return Opening::Prefix,
            Err(_) => return Opening::Malformed(INCOMPLETE.into()),
        }
    }
}

const INCOMPLETE: &str = "its first message is incomplete";

/// What it is, once that can be told.
fn classified(bytes: &[u8]) -> Option<Opening> {
    if bytes.starts_with(h2::PREFACE) {
        return Some(Opening::Http2);
    }
    if h2::PREFACE.starts_with(bytes) {
        return None;
    }
    Some(match classify(bytes) {
        Traffic::NeedMore => return None,
        Traffic::Tls(hello) => match hello.server_name.as_deref().map(Host::parse) {
            None => Opening::Tls { host: None },
            Some(Ok(host)) => Opening::Tls { host: Some(host) },
            Some(Err(error)) => Opening::Malformed(error.to_string()),
        },
        Traffic::BadTls => Opening::Malformed("its TLS ClientHello is malformed".into()),
        Traffic::Http(..) => Opening::Http,
        Traffic::BadHttp(error) => Opening::Malformed(error.to_string()),
        Traffic::Other => Opening::Other,
    })
}

/// Passes a prefix on, and what follows it as long as it may be another protocol. A client that makes a request of it
/// after all would bypass the checks that requests go through, and is cut off before any of the rest is out.
pub(crate) async fn forward_prefix(
    conn: &mut Conn,
    upstream: &dyn Transport,
    count: impl Fn(usize),
) -> Result<(), Broken> {
    let cut = || {
        Broken::From(io::Error::other(
            "cut: a request that began as another protocol",
        ))
    };
    let mut sent = 0;
    loop {
        let opening = classified(&conn.buffered);
        match &opening {
            Some(Opening::Other) => {}
            Some(_) => return Err(cut()),
            None if is_prefix(&conn.buffered) => {}
            // A request, as it seems: it waits until that is sure.
            None => {
                if !conn.fill().await.map_err(Broken::From)? {
                    return Err(cut());
                }
                continue;
            }
        }
        let more = conn.buffered.get(sent..).unwrap_or_default();
        write_all(upstream, more).await.map_err(Broken::To)?;
        count(more.len());
        sent = conn.buffered.len();
        if opening.is_some() || !conn.fill().await.map_err(Broken::From)? {
            return Ok(());
        }
    }
}
