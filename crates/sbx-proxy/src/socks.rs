//! SOCKS5: a tunnel to a name or an address.

use sbx_policy::{Host, Target};
use tokio::time::{Duration, Instant};

use crate::answer::send_and_close;
use crate::audit::{Entrance, Via};
use crate::conn::Conn;
use crate::limits::Slot;
use crate::proxy::Shared;
use crate::record::{record_denial, record_malformed};
use crate::transport::write_all;
use crate::tunnel::{Replies, carry};
use crate::wire::socks5::{
    Address, Greeting, METHOD_NO_AUTH, NO_METHOD, Reply, Request, SOCKS4_REFUSED, SocksError,
    parse_greeting, parse_request,
};

const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) async fn serve(shared: &Shared, mut conn: Conn, mut slot: Slot) {
    let target = match negotiate(&mut conn).await {
        Ok(Some(request)) => target(request).map_err(|reason| (reason, Reply::Failure)),
        Ok(None) => return,
        Err(error) => Err((error.to_string(), error.reply())),
    };
    slot.set_busy();
    let target = match target {
        Ok(target) => target,
        Err((reason, reply)) => {
            let (entrance, via) = (Entrance::Socks5, Via::Forward);
            record_malformed(&shared.audit, entrance, via, "", None, &reason);
            return send_and_close(&*conn.transport, &reply.bytes()).await;
        }
    };
    // What cannot be put on record does not happen, not even a lookup.
    if !shared.audit.is_healthy() {
        return send_and_close(&*conn.transport, &Reply::Failure.bytes()).await;
    }
    let (decision, needs) = shared.gate.decide_tunnel(&target).await;
    if !decision.allowed() {
        record_denial(&shared.audit, Entrance::Socks5, Via::Forward, &decision);
        // The protocol has no room for the reason; the log has it.
        return send_and_close(&*conn.transport, &Reply::NotAllowed.bytes()).await;
    }
    let replies = Replies {
        granted: Reply::Succeeded.bytes(),
        failed: Reply::HostUnreachable.bytes(),
    };
    carry(shared, conn, Entrance::Socks5, (decision, needs), replies).await;
}

/// The request; none when the client is gone.
async fn negotiate(conn: &mut Conn) -> Result<Option<Request>, SocksError> {
    let deadline = Instant::now() + NEGOTIATION_TIMEOUT;
    let mut greeted = false;
    loop {
        if !greeted && let Some((greeting, length)) = parse_greeting(&conn.buffered)? {
            conn.consume(length);
            let (answer, goes_on): (&[u8], bool) = match greeting {
                Greeting::Socks5 { no_auth: true } => (&METHOD_NO_AUTH, true),
                Greeting::Socks5 { no_auth: false } => (&NO_METHOD, false),
                Greeting::Socks4 => (&SOCKS4_REFUSED, false),
            };
            if write_all(&*conn.transport, answer).await.is_err() || !goes_on {
                return Ok(None);
            }
            greeted = true;
            continue;
        }
        if greeted && let Some((request, length)) = parse_request(&conn.buffered)? {
            conn.consume(length);
            return Ok(Some(request));
        }
        if !matches!(conn.fill_until(deadline).await, Ok(true)) {
            return Ok(None);
        }
    }
}

fn target(request: Request) -> Result<Target, String> {
    let host = match request.address {
        Address::Ip(ip) => Host::Ip(ip.to_canonical()),
        Address::Name(name) => Host::parse(&name).map_err(|error| error.to_string())?,
    };
    Ok(Target {
        host,
        port: request.port,
    })
}
