//! How an HTTP client came to the proxy, which decides what it may be told.

use std::net::SocketAddr;

use crate::answer::{plain, send_and_close};
use crate::audit::{Entrance, Via};
use crate::conn::Conn;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Entry {
    /// The client knows that this is a proxy, and reads its answers.
    Forward,
    /// The client dialled this address. An answer would be taken for the origin's, so it gets none.
    Transparent(SocketAddr),
}

impl Entry {
    pub(crate) fn entrance(self) -> (Entrance, Via) {
        match self {
            Self::Forward => (Entrance::Http, Via::Forward),
            Self::Transparent(_) => (Entrance::Transparent, Via::Transparent),
        }
    }

    /// The address that the client dialled, for the audit log.
    pub(crate) fn dialled(self) -> (String, Option<u16>) {
        match self {
            Self::Forward => (String::new(), None),
            Self::Transparent(dialled) => (dialled.ip().to_string(), Some(dialled.port())),
        }
    }

    /// Ends a connection with an error of the proxy's own.
    pub(crate) async fn fail(self, conn: &Conn, status: &str, text: &str) {
        match self {
            Self::Forward => send_and_close(&*conn.transport, &plain(status, text)).await,
            Self::Transparent(_) => conn.transport.reset(),
        }
    }

    /// What cannot be put on record does not happen, not even a lookup.
    pub(crate) async fn fail_unrecordable(self, conn: &Conn) {
        let text =
            "cannot write the network log, so no traffic leaves the sandbox\nhint: sbx diagnose";
        self.fail(conn, "503 Service Unavailable", text).await;
    }
}
