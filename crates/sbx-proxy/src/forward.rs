//! The proxy that clients know of: HTTP proxy and SOCKS5 on one port.

use std::time::Duration;

use crate::audit::{Entrance, Via};
use crate::conn::Conn;
use crate::dial::{dial_any, reset};
use crate::gate::{Judged, Needs};
use crate::http::Side;
use crate::journey::Journey;
use crate::limits::Place;
use crate::outlet::Shared;
use crate::sniff::{First, first};
use crate::tunnel::{relay, write_all};
use crate::{http, socks};

/// From the connection to the first byte.
pub(crate) const FIRST_PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn serve(shared: &Shared, mut conn: Conn, place: Place) {
    match conn.first_bytes(FIRST_PATIENCE).await {
        Ok(true) => {}
        Ok(false) | Err(_) => return,
    }
    match conn.ahead.first() {
        Some(4 | 5) => socks::serve(shared, conn, place).await,
        Some(_) | None => http::serve(shared, conn, Side::Forward, place).await,
    }
}

/// What a client of CONNECT or SOCKS5 hears.
pub(crate) struct Words {
    pub(crate) granted: Vec<u8>,
    /// The destination does not answer.
    pub(crate) failed: Vec<u8>,
}

/// Carries a tunnel from the verdict to its end.
pub(crate) async fn tunnel(
    shared: &Shared,
    mut conn: Conn,
    entrance: Entrance,
    (judged, needs): (Judged, Needs),
    words: Words,
) {
    let mut journey = Journey::begin(&shared.audit, entrance, Via::ForwardBypass, &judged);
    let (upstream, address) = match dial_any(&shared.dial, &judged.addresses).await {
        Ok(dialled) => dialled,
        Err(error) => {
            journey.failed(&error);
            // The client may be gone as well.
            let _ = write_all(&conn.stream, &words.failed).await;
            return;
        }
    };
    if write_all(&conn.stream, &words.granted).await.is_err() {
        journey.failed("the client left");
        return;
    }
    if needs == Needs::Web && !speaks_web(&mut conn).await {
        journey.failed("cut: the rule is about HTTP and HTTPS only");
        return;
    }
    let counters = journey.counters();
    let work = async {
        write_all(&upstream, &conn.ahead).await?;
        counters.add_sent(conn.ahead.len());
        conn.ahead = Vec::new();
        relay(&conn.stream, &upstream, &counters).await
    };
    if journey.guard(&shared.gate, &judged, address, work).await {
        reset(&conn.stream);
        reset(&upstream);
    }
}

async fn speaks_web(conn: &mut Conn) -> bool {
    matches!(
        first(conn, FIRST_PATIENCE).await,
        First::Tls { .. } | First::Http | First::Http2
    )
}
