//! What a client says first on a connection that nobody announced.

use std::io;
use std::time::Duration;

use sbx_policy::{Host, Protocol};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::conn::Conn;
use crate::tunnel::{Broken, write_all};
use crate::wire::h2;
use crate::wire::sniff::{Traffic, classify, is_word};

/// From the first byte to the end of a hello or a head.
const PATIENCE: Duration = Duration::from_secs(20);
/// Who pauses for so long after a word waits for an answer to it.
const PAUSE: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(crate) enum First {
    /// TLS, to the host that it names.
    Tls {
        host: Option<Host>,
    },
    /// A request head; it is still in the connection's buffer.
    Http,
    /// HTTP/2 without TLS: each of its requests may name another host, and they are compressed. It is judged by its
    /// address, where no name is denied.
    Http2,
    Other,
    /// A word and then a pause: as good as [`Self::Other`], as long as nothing else comes of it. See [`follow`].
    Word,
    /// Nothing yet.
    Silent,
    /// Nothing, and nothing will come: it only listens.
    Mute,
    Bad(String),
    Gone,
}

impl First {
    pub(crate) fn protocol(&self) -> Protocol {
        match self {
            Self::Tls { .. } | Self::Http | Self::Http2 => Protocol::Web,
            Self::Other | Self::Word | Self::Silent | Self::Mute | Self::Bad(_) | Self::Gone => {
                Protocol::Other
            }
        }
    }
}

/// Reads as much as it takes to tell, and leaves it in the buffer. `patience` is for the first byte.
pub(crate) async fn first(conn: &mut Conn, patience: Duration) -> First {
    match conn.first_bytes(patience).await {
        Ok(true) => {}
        Ok(false) => return First::Mute,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => return First::Silent,
        Err(_) => return First::Gone,
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = match told(&conn.ahead) {
            Some(said) => return said,
            None => &conn.ahead,
        };
        let word = is_word(said);
        let until = if word {
            deadline.min(Instant::now() + PAUSE)
        } else {
            deadline
        };
        match conn.fill_until(until).await {
            Ok(true) => {}
            // Part of a line and then nothing: a protocol that is neither, since no origin serves that.
            Ok(false) if word => return First::Other,
            // What began as HTTP or TLS is not called something else for being cut short.
            Ok(false) => return First::Bad(ENDLESS.into()),
            Err(error) if error.kind() != io::ErrorKind::TimedOut => return First::Gone,
            Err(_) if word => return First::Word,
            Err(_) => return First::Bad(ENDLESS.into()),
        }
    }
}

const ENDLESS: &str = "its first message does not end";

/// What it is, once that can be told.
fn told(bytes: &[u8]) -> Option<First> {
    if bytes.starts_with(h2::PREFACE) {
        return Some(First::Http2);
    }
    if h2::PREFACE.starts_with(bytes) {
        return None;
    }
    Some(match classify(bytes) {
        Traffic::NeedMore => return None,
        Traffic::Tls(hello) => match hello.server_name.as_deref().map(Host::parse) {
            None => First::Tls { host: None },
            Some(Ok(host)) => First::Tls { host: Some(host) },
            Some(Err(error)) => First::Bad(error.to_string()),
        },
        Traffic::BadTls => First::Bad("its TLS hello is malformed".into()),
        Traffic::Http(..) => First::Http,
        Traffic::BadHttp(error) => First::Bad(error.to_string()),
        Traffic::Other => First::Other,
    })
}

/// Passes a word on, and what follows it as long as it may be another protocol. Who makes a request of it after all
/// would go around what requests are judged by, and is cut off before any of that is out.
pub(crate) async fn follow(
    conn: &mut Conn,
    upstream: &TcpStream,
    count: impl Fn(usize),
) -> Result<(), Broken> {
    let cut = || Broken::From(io::Error::other("cut: a request that began as a word"));
    let mut sent = 0;
    loop {
        let told = told(&conn.ahead);
        match &told {
            Some(First::Other) => {}
            Some(_) => return Err(cut()),
            None if is_word(&conn.ahead) => {}
            // A request, as it seems: it waits until that is sure.
            None => {
                if !conn.fill().await.map_err(Broken::From)? {
                    return Err(cut());
                }
                continue;
            }
        }
        let more = conn.ahead.get(sent..).unwrap_or_default();
        write_all(upstream, more).await.map_err(Broken::To)?;
        count(more.len());
        sent = conn.ahead.len();
        if told.is_some() || !conn.fill().await.map_err(Broken::From)? {
            return Ok(());
        }
    }
}
