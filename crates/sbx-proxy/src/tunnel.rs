//! A tunnel that a client asked for, by CONNECT or SOCKS5, from the decision to its end.

use crate::audit::{Entrance, Via};
use crate::conn::Conn;
use crate::gate::{GateDecision, Needs};
use crate::opening::{Opening, read_opening};
use crate::proxy::{FIRST_BYTE_TIMEOUT, Shared};
use crate::relay::relay;
use crate::session::Session;
use crate::transport::write_all;

/// What the client is told, in its own protocol.
pub(crate) struct Replies {
    pub(crate) granted: Vec<u8>,
    /// The origin does not answer.
    pub(crate) failed: Vec<u8>,
}

pub(crate) async fn carry(
    shared: &Shared,
    mut conn: Conn,
    entrance: Entrance,
    (decision, needs): (GateDecision, Needs),
    replies: Replies,
) {
    let mut session = Session::begin(&shared.audit, entrance, Via::ForwardBypass, &decision);
    let (upstream, address) = match shared.dialer.connect(&decision.addresses).await {
        Ok(dialled) => dialled,
        Err(error) => {
            session.failed(&error);
            // The client may be gone as well.
            let _ = write_all(&*conn.transport, &replies.failed).await;
            return;
        }
    };
    if write_all(&*conn.transport, &replies.granted).await.is_err() {
        session.failed("the client left");
        return;
    }
    if needs == Needs::Web && !speaks_web(&mut conn).await {
        session.failed("cut: the rule allows HTTP and HTTPS only");
        return;
    }
    let counters = session.counters();
    let work = async {
        write_all(&*upstream, &conn.buffered).await?;
        counters.add_sent(conn.buffered.len());
        conn.buffered = Vec::new();
        relay(&*conn.transport, &*upstream, &counters).await
    };
    if session.guard(&shared.gate, &decision, address, work).await {
        conn.transport.reset();
        upstream.reset();
    }
}

async fn speaks_web(conn: &mut Conn) -> bool {
    matches!(
        read_opening(conn, FIRST_BYTE_TIMEOUT).await,
        Opening::Tls { .. } | Opening::Http | Opening::Http2
    )
}
