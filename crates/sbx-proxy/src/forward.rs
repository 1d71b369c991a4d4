//! The proxy that clients know of: an HTTP proxy and SOCKS5 on one port, told apart by the first byte.

use crate::conn::Conn;
use crate::entry::Entry;
use crate::limits::Slot;
use crate::proxy::{FIRST_BYTE_TIMEOUT, Shared};
use crate::{http, socks};

pub(crate) async fn serve(shared: &Shared, mut conn: Conn, slot: Slot) {
    match conn.first_bytes(FIRST_BYTE_TIMEOUT).await {
        Ok(true) => {}
        Ok(false) | Err(_) => return,
    }
    match conn.buffered.first() {
        // The version byte of SOCKS (RFC 1928, section 3): no HTTP method begins with it.
        Some(4 | 5) => socks::serve(shared, conn, slot).await,
        Some(_) | None => http::serve(shared, conn, Entry::Forward, slot).await,
    }
}
