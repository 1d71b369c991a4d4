//! SOCKS5: a tunnel to a name or an address.

use sbx_policy::{Host, Target};
use tokio::time::{Duration, Instant};

use crate::answer::say_and_end;
use crate::audit::{Entrance, Via};
use crate::conn::Conn;
use crate::forward::{Words, tunnel};
use crate::journey;
use crate::limits::Place;
use crate::outlet::Shared;
use crate::tunnel::write_all;
use crate::wire::socks5::{
    Address, Greeting, METHOD_NO_AUTH, NO_METHOD, Reply, Request, SOCKS4_REFUSED, SocksError,
    parse_greeting, parse_request,
};

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn serve(shared: &Shared, mut conn: Conn, mut place: Place) {
    let target = match negotiate(&mut conn).await {
        Ok(Some(request)) => target(request).map_err(|reason| (reason, Reply::Failure)),
        Ok(None) => return,
        Err(error) => Err((error.to_string(), error.reply())),
    };
    place.set_busy();
    let target = match target {
        Ok(target) => target,
        Err((reason, reply)) => {
            let (entrance, via) = (Entrance::Socks5, Via::Forward);
            journey::record_nonsense(&shared.audit, entrance, via, "", None, &reason);
            return say_and_end(&conn.stream, &reply.bytes()).await;
        }
    };
    // What cannot be put on record does not happen, not even a look-up.
    if !shared.audit.is_healthy() {
        return say_and_end(&conn.stream, &Reply::Failure.bytes()).await;
    }
    let (judged, needs) = shared.gate.judge_tunnel(&target).await;
    if !judged.allowed() {
        journey::record_denial(&shared.audit, Entrance::Socks5, Via::Forward, &judged);
        // The protocol has no room for the reason; the log has it.
        return say_and_end(&conn.stream, &Reply::NotAllowed.bytes()).await;
    }
    let words = Words {
        granted: Reply::Succeeded.bytes(),
        failed: Reply::HostUnreachable.bytes(),
    };
    tunnel(shared, conn, Entrance::Socks5, (judged, needs), words).await;
}

/// The request; none when there is nobody to answer any more.
async fn negotiate(conn: &mut Conn) -> Result<Option<Request>, SocksError> {
    let deadline = Instant::now() + PATIENCE;
    let mut greeted = false;
    loop {
        if !greeted && let Some((greeting, length)) = parse_greeting(&conn.ahead)? {
            conn.used(length);
            let (answer, goes_on): (&[u8], bool) = match greeting {
                Greeting::Socks5 { no_auth: true } => (&METHOD_NO_AUTH, true),
                Greeting::Socks5 { no_auth: false } => (&NO_METHOD, false),
                Greeting::Socks4 => (&SOCKS4_REFUSED, false),
            };
            if write_all(&conn.stream, answer).await.is_err() || !goes_on {
                return Ok(None);
            }
            greeted = true;
            continue;
        }
        if greeted && let Some((request, length)) = parse_request(&conn.ahead)? {
            conn.used(length);
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
