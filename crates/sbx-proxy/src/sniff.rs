//! What a client says first on a connection that nobody announced.

use std::io;
use std::time::Duration;

use sbx_policy::{Host, Protocol};
use tokio::time::Instant;

use crate::conn::Conn;
use crate::wire::sniff::{Traffic, classify};

/// From the first byte to the end of a hello or a head.
const PATIENCE: Duration = Duration::from_secs(20);
/// The type of TLS's first record.
const HANDSHAKE: u8 = 0x16;
/// HTTP/2 without TLS: what it is for is compressed, so it is judged by its address.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug)]
pub(crate) enum First {
    /// TLS, to the host that it names.
    Tls {
        host: Option<Host>,
    },
    /// A request head; it is still in the connection's buffer.
    Http,
    Http2,
    Other,
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
            Self::Other | Self::Silent | Self::Mute | Self::Bad(_) | Self::Gone => Protocol::Other,
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
        let told = if conn.ahead.starts_with(HTTP2) {
            return First::Http2;
        } else if HTTP2.starts_with(&conn.ahead) {
            Traffic::NeedMore
        } else {
            classify(&conn.ahead)
        };
        return match told {
            Traffic::NeedMore => match conn.fill_until(deadline).await {
                Ok(true) => continue,
                // What began as HTTP or TLS is not called something else for being cut short.
                Ok(false) if conn.ahead.contains(&b' ') || conn.ahead.starts_with(&[HANDSHAKE]) => {
                    First::Bad("its first message does not end".into())
                }
                // Something short and then nothing: a protocol that is neither.
                Ok(false) => First::Other,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    First::Bad("its first message does not end".into())
                }
                Err(_) => First::Gone,
            },
            Traffic::Tls(hello) => match hello.server_name.as_deref().map(Host::parse) {
                None => First::Tls { host: None },
                Some(Ok(host)) => First::Tls { host: Some(host) },
                Some(Err(error)) => First::Bad(error.to_string()),
            },
            Traffic::BadTls => First::Bad("its TLS hello is malformed".into()),
            Traffic::Http(..) => First::Http,
            Traffic::BadHttp(error) => First::Bad(error.to_string()),
            Traffic::Other => First::Other,
        };
    }
}
