//! Programs that know of no proxy: they dial an address of the world and end up here.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sbx_policy::Kind;
use tokio::net::TcpStream;

use crate::audit::{Entrance, Via};
use crate::conn::Conn;
use crate::dial::{dial_any, reset};
use crate::gate::Judged;
use crate::http::{self, Side, unrecordable};
use crate::journey::{self, Journey};
use crate::limits::Place;
use crate::outlet::Shared;
use crate::sniff::{First, first, follow};
use crate::tunnel::{Broken, both, pump, write_all};

/// Who has said nothing by then may be waiting for the other side to speak first.
const SILENCE: Duration = Duration::from_millis(300);
/// Who may not go there by the address alone has that long to say a name that changes it.
const SLOW: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn serve(shared: &Shared, mut conn: Conn, dialled: SocketAddr, mut place: Place) {
    let mut said = first(&mut conn, SILENCE).await;
    if !shared.audit.is_healthy() {
        return unrecordable(conn, Side::Transparent(dialled)).await;
    }
    if matches!(said, First::Silent) {
        let judged = judge(shared, dialled, &said).await;
        if judged.allowed() {
            place.set_busy();
            return listen(shared, conn, dialled, &judged, place).await;
        }
        // Perhaps it is only slow, and its name says more than its address; no name undoes a denial, and none opens a
        // port that no rule speaks of.
        let open = shared.gate.opens_port(dialled.port());
        if open && judged.verdict.kind != Kind::Explicit {
            said = first(&mut conn, SLOW).await;
        }
    }
    place.set_busy();
    spoken(shared, conn, dialled, &said, place).await;
}

/// The client spoke first, as most do.
async fn spoken(shared: &Shared, conn: Conn, dialled: SocketAddr, said: &First, place: Place) {
    match said {
        First::Http => {
            let side = Side::Transparent(dialled);
            return http::serve(shared, conn, side, place).await;
        }
        First::Bad(reason) => {
            let (host, port) = (dialled.ip().to_string(), Some(dialled.port()));
            let (entrance, via) = (Entrance::Transparent, Via::Transparent);
            journey::record_nonsense(&shared.audit, entrance, via, &host, port, reason);
            return reset(&conn.stream);
        }
        First::Gone
        | First::Mute
        | First::Tls { .. }
        | First::Http2
        | First::Other
        | First::Word
        | First::Silent => {}
    }
    let judged = judge(shared, dialled, said).await;
    if !judged.allowed() {
        return deny(shared, &conn, said, &judged);
    }
    if matches!(said, First::Gone) {
        // Allowed, and it broke before it said anything.
        return;
    }
    let mut journey = Journey::begin(&shared.audit, Entrance::Transparent, via(said), &judged);
    if let Some((upstream, address)) = dial(shared, &conn, &judged, &mut journey).await {
        let leg = Leg {
            shared,
            dialled,
            upstream,
            address,
        };
        let begun = Begun::by(said);
        leg.carry(conn, &judged, &mut journey, begun).await;
    }
}

/// The client may wait for the other side to speak first, so that side is dialled.
async fn listen(
    shared: &Shared,
    mut conn: Conn,
    dialled: SocketAddr,
    judged: &Judged,
    place: Place,
) {
    let mut journey = Journey::begin(&shared.audit, Entrance::Transparent, Via::Network, judged);
    let Some((upstream, address)) = dial(shared, &conn, judged, &mut journey).await else {
        return;
    };
    let mut spoke = false;
    let waiting = async {
        spoke = client_is_first(&mut conn, &upstream).await;
        Ok(())
    };
    let cut = journey.guard(&shared.gate, judged, address, waiting).await;
    if cut {
        return reset(&conn.stream);
    }
    let leg = Leg {
        shared,
        dialled,
        upstream,
        address,
    };
    if !spoke {
        return leg.carry(conn, judged, &mut journey, Begun::Not).await;
    }
    // It was only slow: what it says counts, as if it had said it at once.
    let said = first(&mut conn, PATIENCE).await;
    match said {
        First::Tls { .. } | First::Http2 | First::Other | First::Word => {}
        First::Http | First::Bad(_) => {
            // Each request is judged, and dialled for, by itself.
            drop((journey, leg));
            return spoken(shared, conn, dialled, &said, place).await;
        }
        First::Silent | First::Mute | First::Gone => {
            let begun = Begun::by(&said);
            return leg.carry(conn, judged, &mut journey, begun).await;
        }
    }
    let judged = judge(shared, dialled, &said).await;
    if judged.allowed() {
        journey.became(via(&said), &judged);
        let begun = Begun::by(&said);
        leg.carry(conn, &judged, &mut journey, begun).await;
    } else {
        deny(shared, &conn, &said, &judged);
    }
}

/// True when the client is the first to speak or to leave, false when the other side is, or nobody.
async fn client_is_first(conn: &mut Conn, upstream: &TcpStream) -> bool {
    tokio::select! {
        biased;
        _ = conn.fill() => true,
        _ = upstream.readable() => false,
        () = tokio::time::sleep(PATIENCE) => false,
    }
}

async fn judge(shared: &Shared, dialled: SocketAddr, said: &First) -> Judged {
    let claimed = match said {
        First::Tls { host } => host.as_ref(),
        First::Http2 => return shared.gate.judge_unread(dialled).await,
        First::Http
        | First::Other
        | First::Word
        | First::Silent
        | First::Mute
        | First::Bad(_)
        | First::Gone => None,
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
        First::Other | First::Word | First::Silent | First::Mute | First::Bad(_) | First::Gone => {
            Via::Network
        }
    }
}

async fn dial(
    shared: &Shared,
    conn: &Conn,
    judged: &Judged,
    journey: &mut Journey<'_>,
) -> Option<(TcpStream, SocketAddr)> {
    match dial_any(&shared.dial, &judged.addresses).await {
        Ok(reached) => Some(reached),
        Err(error) => {
            journey.failed(error);
            reset(&conn.stream);
            None
        }
    }
}

/// The part of a connection between here and the world.
struct Leg<'a> {
    shared: &'a Shared,
    dialled: SocketAddr,
    upstream: TcpStream,
    address: SocketAddr,
}

/// How far a client has come with what it says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// It was judged by it.
    Whole,
    /// It was judged as if nothing else came of it.
    Word,
    Not,
}

impl Begun {
    fn by(said: &First) -> Self {
        match said {
            First::Word => Self::Word,
            First::Tls { .. }
            | First::Http
            | First::Http2
            | First::Other
            | First::Silent
            | First::Mute
            | First::Bad(_)
            | First::Gone => Self::Whole,
        }
    }
}

impl Leg<'_> {
    /// Until its end. What a silent client says first is judged before it goes out.
    async fn carry(
        self,
        mut conn: Conn,
        judged: &Judged,
        journey: &mut Journey<'_>,
        mut begun: Begun,
    ) {
        let (shared, upstream) = (self.shared, &self.upstream);
        let counters = journey.counters();
        let client = Arc::clone(&conn.stream);
        let work = async {
            let count = |bytes| counters.add_sent(bytes);
            let sending = async {
                if begun == Begun::Not {
                    let judged = speak_up(shared, &mut conn, self.dialled).await;
                    begun = judged.map_err(Broken::From)?;
                }
                if begun == Begun::Word {
                    follow(&mut conn, upstream, count).await?;
                } else {
                    let told = write_all(upstream, &conn.ahead).await;
                    told.map_err(Broken::To)?;
                    count(conn.ahead.len());
                }
                conn.ahead = Vec::new();
                pump(&client, upstream, count).await
            };
            let receiving = pump(upstream, &client, |bytes| counters.add_received(bytes));
            both(sending, receiving).await
        };
        if journey
            .guard(&shared.gate, judged, self.address, work)
            .await
        {
            reset(&client);
            reset(upstream);
        }
    }
}

/// The first words of a client that let the other side begin. Nothing of it goes out before it was judged by what
/// it says: else silence would be a way around its name.
async fn speak_up(shared: &Shared, conn: &mut Conn, dialled: SocketAddr) -> io::Result<Begun> {
    let said = loop {
        match first(conn, PATIENCE).await {
            First::Silent => {}
            said => break said,
        }
    };
    match &said {
        First::Tls { .. } | First::Http2 | First::Other | First::Word => {}
        First::Gone | First::Mute | First::Silent => return Ok(Begun::Whole),
        // The other side spoke first, which no HTTP server does.
        First::Http => return Err(io::Error::other("cut: HTTP where another protocol began")),
        First::Bad(reason) => return Err(io::Error::other(format!("cut: {reason}"))),
    }
    let judged = judge(shared, dialled, &said).await;
    if judged.allowed() {
        return Ok(Begun::by(&said));
    }
    journey::record_denial(&shared.audit, Entrance::Transparent, via(&said), &judged);
    Err(io::Error::other(format!("cut: {}", judged.verdict.reason)))
}
