//! Programs that know of no proxy: they dial an address of the world, and the kernel redirects them here.
//!
//! What is asked of the policy depends on what the client sends first (its [`Opening`]): a TLS ClientHello or a request
//! names a host, anything else is decided by the address alone. Some protocols let the server speak first, so a client
//! may be silent for two reasons: it is slow, or it waits for a banner. The connection is one state machine:
//!
//! ```text
//! Sniff ──opening──────────────────────────────► Decide ──► Relay(Clear | Prefix)   (dialled in Decide)
//!   │ silent                                     ▲   │ └──► Http                    (each request by itself)
//!   ├─ allowed by address ──► AwaitSpeaker ──client sends──┘
//!   │                            │ server sends first, or neither
//!   │                            └─────────────► Relay(Unclassified)
//!   └─ a name could allow it ──► AwaitName ──────► Decide
//! ```
//!
//! Whatever the order, no byte of the client leaves before it was decided about with what the client said: else silence
//! would be a way around the rules for names. A state that denies or fails ends in `Closed`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sbx_policy::{Kind, Protocol};

use crate::audit::{Entrance, Via};
use crate::conn::{Conn, fill};
use crate::entry::Entry;
use crate::gate::GateDecision;
use crate::http;
use crate::limits::Slot;
use crate::opening::{Opening, forward_prefix, read_opening};
use crate::proxy::Shared;
use crate::record::{record_denial, record_malformed};
use crate::relay::{Broken, Counters, both, pump};
use crate::session::Session;
use crate::transport::{Transport, write_all};

/// A client that has sent nothing by then may be waiting for the server to speak first.
const SPEAK_DELAY: Duration = Duration::from_millis(300);
/// A client that may not go there by the address alone has that long to send a name that changes it.
const NAME_TIMEOUT: Duration = Duration::from_secs(5);
/// For either side to speak, once the server is dialled.
const SPEAKER_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a connection is.
enum State<'a> {
    /// The first bytes of the client are awaited for a moment.
    Sniff,
    /// The address alone is not allowed; a name may be.
    AwaitName,
    /// The opening is known. The leg is there if the server was dialled before the client spoke.
    Decide(Opening, Option<Leg<'a>>),
    /// The client is silent and the server dialled: whichever speaks first shows what it is.
    AwaitSpeaker(Leg<'a>),
    /// Bytes go both ways until the end.
    Relay(Leg<'a>, Outbound),
    /// Each request is decided by itself.
    Http,
    Closed,
}

/// How much of what the client sends may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outbound {
    /// Everything: its opening was decided.
    Clear,
    /// As long as no request comes of it: see [`forward_prefix`].
    Prefix,
    /// Nothing before its opening is there and decided: the server spoke first.
    Unclassified,
}

impl Outbound {
    fn after(opening: &Opening) -> Self {
        match opening {
            Opening::Prefix => Self::Prefix,
            Opening::Tls { .. }
            | Opening::Http
            | Opening::Http2
            | Opening::Other
            | Opening::Silent
            | Opening::HalfClosed
            | Opening::Malformed(_)
            | Opening::Lost => Self::Clear,
        }
    }
}

/// The half of a connection between here and the server, and the decision that opened it.
struct Leg<'a> {
    decision: GateDecision,
    session: Session<'a>,
    upstream: Box<dyn Transport>,
    /// What the server has sent already.
    received: Vec<u8>,
    address: SocketAddr,
}

pub(crate) async fn serve(shared: &Shared, conn: Conn, dialled: SocketAddr, slot: Slot) {
    let mut client = Client {
        shared,
        conn,
        dialled,
        slot,
        by_address: None,
    };
    let mut state = State::Sniff;
    loop {
        state = match state {
            State::Sniff => client.sniff().await,
            State::AwaitName => client.await_name().await,
            State::Decide(opening, leg) => client.decide(opening, leg).await,
            State::AwaitSpeaker(leg) => client.await_speaker(leg).await,
            State::Relay(leg, outbound) => return client.relay(leg, outbound).await,
            State::Http => {
                let entry = Entry::Transparent(dialled);
                return http::serve(shared, client.conn, entry, client.slot).await;
            }
            State::Closed => return,
        }
    }
}

struct Client<'a> {
    shared: &'a Shared,
    conn: Conn,
    dialled: SocketAddr,
    slot: Slot,
    /// What was decided about the address alone, so that it is asked once.
    by_address: Option<GateDecision>,
}

impl<'a> Client<'a> {
    async fn sniff(&mut self) -> State<'a> {
        let opening = read_opening(&mut self.conn, SPEAK_DELAY).await;
        if !self.shared.audit.is_healthy() {
            let entry = Entry::Transparent(self.dialled);
            entry.fail_unrecordable(&self.conn).await;
            return State::Closed;
        }
        if !matches!(opening, Opening::Silent) {
            return State::Decide(opening, None);
        }
        let decision = self.question().ask(&opening).await;
        if decision.allowed() {
            self.slot.set_busy();
            let leg = self.dial(decision, Via::Network).await;
            return leg.map_or(State::Closed, State::AwaitSpeaker);
        }
        // Perhaps it is only slow, and its name says more than its address. But no name undoes an explicit denial, and
        // none opens a port that no rule allows.
        let open = self.shared.gate.opens_port(self.dialled.port());
        if open && decision.verdict.kind != Kind::Explicit {
            return State::AwaitName;
        }
        State::Decide(opening, None)
    }

    async fn await_name(&mut self) -> State<'a> {
        State::Decide(read_opening(&mut self.conn, NAME_TIMEOUT).await, None)
    }

    async fn decide(&mut self, opening: Opening, leg: Option<Leg<'a>>) -> State<'a> {
        self.slot.set_busy();
        match (&opening, leg) {
            // The server that was dialled for a silent client is not used: each request is dialled for by itself.
            (Opening::Http, _) => State::Http,
            (Opening::Malformed(reason), _) => {
                let (host, port) = (self.dialled.ip().to_string(), Some(self.dialled.port()));
                let (entrance, via) = (Entrance::Transparent, Via::Transparent);
                record_malformed(&self.shared.audit, entrance, via, &host, port, reason);
                self.conn.transport.reset();
                State::Closed
            }
            // It was allowed to go there in silence.
            (Opening::Silent | Opening::HalfClosed | Opening::Lost, Some(leg)) => {
                State::Relay(leg, Outbound::Clear)
            }
            (_, leg) => {
                let decision = self.question().ask(&opening).await;
                self.enter(&opening, decision, leg).await
            }
        }
    }

    /// Acts on a decision.
    async fn enter(
        &mut self,
        opening: &Opening,
        decision: GateDecision,
        leg: Option<Leg<'a>>,
    ) -> State<'a> {
        let via = via(opening);
        if !decision.allowed() {
            record_denial(&self.shared.audit, Entrance::Transparent, via, &decision);
            self.conn.transport.reset();
            return State::Closed;
        }
        if matches!(opening, Opening::Lost) {
            // Allowed, and it broke before it said anything.
            return State::Closed;
        }
        let leg = match leg {
            Some(mut leg) => {
                leg.session.retarget(via, &decision);
                leg.decision = decision;
                Some(leg)
            }
            None => self.dial(decision, via).await,
        };
        leg.map_or(State::Closed, |leg| {
            State::Relay(leg, Outbound::after(opening))
        })
    }

    async fn await_speaker(&mut self, mut leg: Leg<'a>) -> State<'a> {
        let mut client_first = false;
        let waiting = async {
            client_first = tokio::select! {
                biased;
                _ = self.conn.fill() => true,
                _ = fill(&*leg.upstream, &mut leg.received) => false,
                () = tokio::time::sleep(SPEAKER_TIMEOUT) => false,
            };
            Ok(())
        };
        let (gate, decision) = (&self.shared.gate, &leg.decision);
        if leg
            .session
            .guard(gate, decision, leg.address, waiting)
            .await
        {
            self.conn.transport.reset();
            return State::Closed;
        }
        if !client_first {
            return State::Relay(leg, Outbound::Unclassified);
        }
        // It was only slow: what it says counts, as if it had said it at once.
        let opening = read_opening(&mut self.conn, SPEAKER_TIMEOUT).await;
        State::Decide(opening, Some(leg))
    }

    /// Until the end of the connection.
    async fn relay(mut self, mut leg: Leg<'a>, outbound: Outbound) {
        let counters = leg.session.counters();
        let client = Arc::clone(&self.conn.transport);
        let mut question = Question {
            shared: self.shared,
            dialled: self.dialled,
            by_address: &mut self.by_address,
        };
        let (conn, upstream) = (&mut self.conn, &*leg.upstream);
        let received = std::mem::take(&mut leg.received);
        let work = async {
            let sending = async {
                let outbound = match outbound {
                    Outbound::Unclassified => question.late_opening(conn).await?,
                    Outbound::Clear | Outbound::Prefix => outbound,
                };
                send(conn, upstream, outbound, &counters).await
            };
            let receiving = async {
                let count = |bytes| counters.add_received(bytes);
                write_all(&*client, &received).await.map_err(Broken::To)?;
                count(received.len());
                drop(received);
                pump(upstream, &*client, count).await
            };
            both(sending, receiving).await
        };
        let (gate, decision) = (&self.shared.gate, &leg.decision);
        if leg.session.guard(gate, decision, leg.address, work).await {
            client.reset();
            leg.upstream.reset();
        }
    }

    async fn dial(&mut self, decision: GateDecision, via: Via) -> Option<Leg<'a>> {
        let (shared, entrance) = (self.shared, Entrance::Transparent);
        let mut session = Session::begin(&shared.audit, entrance, via, &decision);
        match shared.dialer.connect(&decision.addresses).await {
            Ok((upstream, address)) => Some(Leg {
                decision,
                session,
                upstream,
                received: Vec::new(),
                address,
            }),
            Err(error) => {
                session.failed(error);
                self.conn.transport.reset();
                None
            }
        }
    }

    fn question(&mut self) -> Question<'_> {
        Question {
            shared: self.shared,
            dialled: self.dialled,
            by_address: &mut self.by_address,
        }
    }
}

/// What the gate is asked about a connection.
struct Question<'a> {
    shared: &'a Shared,
    dialled: SocketAddr,
    by_address: &'a mut Option<GateDecision>,
}

impl Question<'_> {
    async fn ask(&mut self, opening: &Opening) -> GateDecision {
        let gate = &self.shared.gate;
        match opening {
            Opening::Tls { host } => {
                let (dialled, host) = (self.dialled, host.as_ref());
                gate.decide_dialled(dialled, host, Protocol::Web).await
            }
            Opening::Http2 => gate.decide_unread(self.dialled).await,
            Opening::Http
            | Opening::Other
            | Opening::Prefix
            | Opening::Silent
            | Opening::HalfClosed
            | Opening::Malformed(_)
            | Opening::Lost => self.ask_address().await,
        }
    }

    /// Only the address is known, and the traffic is no HTTP or TLS: the answer stays as long as the rules do.
    async fn ask_address(&mut self) -> GateDecision {
        let gate = &self.shared.gate;
        let known = self.by_address.as_ref();
        if let Some(known) = known.filter(|known| known.is_current(gate.now())) {
            return known.clone();
        }
        let asked = gate.decide_dialled(self.dialled, None, Protocol::Other);
        self.by_address.insert(asked.await).clone()
    }

    /// Reads and decides what a client sends after the server has spoken.
    async fn late_opening(&mut self, conn: &mut Conn) -> Result<Outbound, Broken> {
        let cut = |reason: &str| Broken::From(io::Error::other(format!("cut: {reason}")));
        let opening = loop {
            match read_opening(conn, SPEAKER_TIMEOUT).await {
                Opening::Silent => {}
                opening => break opening,
            }
        };
        match &opening {
            Opening::Tls { .. } | Opening::Http2 | Opening::Other | Opening::Prefix => {}
            Opening::Lost | Opening::HalfClosed | Opening::Silent => return Ok(Outbound::Clear),
            // The server spoke first, which no HTTP server does.
            Opening::Http => return Err(cut("HTTP where another protocol began")),
            Opening::Malformed(reason) => return Err(cut(reason)),
        }
        let decision = self.ask(&opening).await;
        if decision.allowed() {
            return Ok(Outbound::after(&opening));
        }
        let (audit, via) = (&self.shared.audit, via(&opening));
        record_denial(audit, Entrance::Transparent, via, &decision);
        Err(cut(&decision.verdict.reason))
    }
}

/// The direction from the client to the server.
async fn send(
    conn: &mut Conn,
    upstream: &dyn Transport,
    outbound: Outbound,
    counters: &Counters,
) -> Result<(), Broken> {
    let count = |bytes| counters.add_sent(bytes);
    if outbound == Outbound::Prefix {
        forward_prefix(conn, upstream, count).await?;
    } else {
        let sent = write_all(upstream, &conn.buffered).await;
        sent.map_err(Broken::To)?;
        count(conn.buffered.len());
    }
    conn.buffered = Vec::new();
    pump(&*conn.transport, upstream, count).await
}

fn via(opening: &Opening) -> Via {
    match opening {
        Opening::Tls { .. } | Opening::Http | Opening::Http2 => Via::Transparent,
        Opening::Other
        | Opening::Prefix
        | Opening::Silent
        | Opening::HalfClosed
        | Opening::Malformed(_)
        | Opening::Lost => Via::Network,
    }
}
