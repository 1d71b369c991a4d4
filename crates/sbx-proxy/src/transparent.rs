//! Programs that know of no proxy: they dial an address of the world and end up here.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::audit::{Entrance, Via};
use crate::conn::Conn;
use crate::dial::{dial_any, reset};
use crate::gate::Judged;
use crate::http::{self, Side, unrecordable};
use crate::journey::{self, Journey};
use crate::limits::Place;
use crate::outlet::Shared;
use crate::sniff::{First, first};
use crate::tunnel::{pump, write_all};

/// Who has said nothing by then may be waiting for the other side to speak first.
const SILENCE: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn serve(shared: &Shared, mut conn: Conn, dialled: SocketAddr, mut place: Place) {
    let mut said = first(&mut conn, SILENCE).await;
    let mut judged = judge(shared, dialled, &said).await;
    let mut reached = None;
    if matches!(said, First::Silent) {
        if judged.allowed() && shared.audit.is_healthy() {
            place.set_busy();
            reached = dial_any(&shared.dial, &judged.addresses).await.ok();
        }
        // Perhaps it is only slow, and its name says more than its address.
        if wait_for_either(&mut conn, reached.as_ref().map(|(stream, _)| stream)).await {
            said = first(&mut conn, PATIENCE).await;
            judged = judge(shared, dialled, &said).await;
        }
    }
    place.set_busy();
    match said {
        First::Http => {
            let side = Side::Transparent(dialled);
            return http::serve(shared, conn, side, place).await;
        }
        First::Bad(reason) => {
            let (host, port) = (dialled.ip().to_string(), Some(dialled.port()));
            let (entrance, via) = (Entrance::Transparent, Via::Transparent);
            journey::record_nonsense(&shared.audit, entrance, via, &host, port, &reason);
            return reset(&conn.stream);
        }
        First::Gone | First::Tls { .. } | First::Http2 | First::Other | First::Silent => {}
    }
    if !judged.allowed() {
        return deny(shared, &conn, &said, &judged);
    }
    if matches!(said, First::Gone) {
        // Allowed, and it left before it said anything.
        return;
    }
    if !shared.audit.is_healthy() {
        return unrecordable(conn, Side::Transparent(dialled)).await;
    }
    carry(shared, conn, dialled, &said, &judged, reached).await;
}

/// True when the client is the first to speak (or to leave), false when the other side is, or nobody.
async fn wait_for_either(conn: &mut Conn, upstream: Option<&TcpStream>) -> bool {
    let other_side = async {
        match upstream {
            Some(upstream) => drop(upstream.readable().await),
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = conn.fill() => true,
        () = other_side => false,
        () = tokio::time::sleep(PATIENCE) => false,
    }
}

async fn judge(shared: &Shared, dialled: SocketAddr, said: &First) -> Judged {
    let claimed = match said {
        First::Tls { host } => host.as_ref(),
        First::Http | First::Http2 | First::Other | First::Silent | First::Bad(_) | First::Gone => {
            None
        }
    };
    let gate = &shared.gate;
    gate.judge_dialled(dialled, claimed, said.protocol()).await
}

fn deny(shared: &Shared, conn: &Conn, said: &First, judged: &Judged) {
    journey::record_denial(&shared.audit, Entrance::Transparent, via(said), judged);
    reset(&conn.stream);
}

fn via(said: &First) -> Via {
    match said {
        First::Tls { .. } | First::Http | First::Http2 => Via::Transparent,
        First::Other | First::Silent | First::Bad(_) | First::Gone => Via::Network,
    }
}

async fn carry(
    shared: &Shared,
    mut conn: Conn,
    dialled: SocketAddr,
    said: &First,
    judged: &Judged,
    reached: Option<(TcpStream, SocketAddr)>,
) {
    let mut journey = Journey::begin(&shared.audit, Entrance::Transparent, via(said), judged);
    let reached = match reached {
        Some(reached) => Ok(reached),
        None => dial_any(&shared.dial, &judged.addresses).await,
    };
    let (upstream, address) = match reached {
        Ok(reached) => reached,
        Err(error) => {
            journey.failed(error);
            return reset(&conn.stream);
        }
    };
    let counters = journey.counters();
    let silent = matches!(said, First::Silent);
    let client = Arc::clone(&conn.stream);
    let work = async {
        let sending = async {
            if silent {
                speak_up(shared, &mut conn, dialled).await?;
            }
            write_all(&upstream, &conn.ahead).await?;
            counters.add_sent(conn.ahead.len());
            conn.ahead = Vec::new();
            pump(&client, &upstream, |bytes| counters.add_sent(bytes)).await
        };
        let receiving = pump(&upstream, &client, |bytes| counters.add_received(bytes));
        tokio::try_join!(sending, receiving).map(drop)
    };
    journey.guard(&shared.gate, judged, address, work).await;
}

/// The first words of a client that let the other side begin. Nothing of it goes out before it was judged by what
/// it says: else silence would be a way around its name.
async fn speak_up(shared: &Shared, conn: &mut Conn, dialled: SocketAddr) -> io::Result<()> {
    let said = loop {
        match first(conn, PATIENCE).await {
            First::Silent => {}
            said => break said,
        }
    };
    match &said {
        First::Tls { .. } | First::Http2 | First::Other => {}
        First::Gone | First::Silent => return Ok(()),
        // The other side spoke first, which no HTTP server does.
        First::Http => return Err(io::Error::other("cut: HTTP where another protocol began")),
        First::Bad(reason) => return Err(io::Error::other(format!("cut: {reason}"))),
    }
    let judged = judge(shared, dialled, &said).await;
    if judged.allowed() {
        return Ok(());
    }
    journey::record_denial(&shared.audit, Entrance::Transparent, via(&said), &judged);
    Err(io::Error::other(format!("cut: {}", judged.verdict.reason)))
}
