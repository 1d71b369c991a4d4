//! The resolver of a sandbox: answers what the policy could allow, refuses and records the rest.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use sbx_policy::{Host, Verdict, is_gateway, is_host_alias, is_localhost};
use sbx_proto::net::{GATEWAY_V4, HOST_V4};
use sbx_sys::pktinfo::{recv_from_to, send_from};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::audit::{Entrance, Via};
use crate::conn::Conn;
use crate::limits::Slot;
use crate::proxy::Shared;
use crate::record::{record_lookup, record_malformed, record_unanswered};
use crate::resolver::CACHE_TIMEOUT;
use crate::transport::{Transport, write_all};
use crate::wire::dns::{
    Query, answer_addresses, answer_ptr, class, empty, error_reply, framed, nxdomain, parse_query,
    refused, reverse_name, rtype, servfail, take_framed,
};

/// Queries that are worked on at the same time; more wait in the socket, and then in the client.
const MAX_QUERIES: usize = 64;
/// A query over UDP is small.
const MAX_QUERY: usize = 1500;
/// The general kind of which HTTPS records are one.
const SVCB: u16 = 64;
const UNTOLD: &str = "records of type 12 (PTR) are answered for addresses that were looked up here";
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn serve_udp(shared: Arc<Shared>, socket: UdpSocket) {
    let socket = Arc::new(socket);
    let turns = Arc::new(Semaphore::new(MAX_QUERIES));
    let mut buffer = vec![0; MAX_QUERY];
    loop {
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else {
            return;
        };
        let received = socket
            .async_io(Interest::READABLE, || recv_from_to(&*socket, &mut buffer))
            .await;
        let datagram = match received {
            Ok(received) => received,
            Err(error) => {
                // An ICMP error for an earlier answer; a socket that is really broken fails again.
                tracing::debug!(%error, "cannot receive a query");
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
        };
        let message = buffer.get(..datagram.len).unwrap_or_default().to_vec();
        let (shared, socket) = (Arc::clone(&shared), Arc::clone(&socket));
        tokio::spawn(async move {
            if let Some(reply) = answer(&shared, &message, Over::Udp).await {
                let sent = socket
                    .async_io(Interest::WRITABLE, || {
                        send_from(&*socket, &reply, datagram.peer, datagram.local)
                    })
                    .await;
                if let Err(error) = sent {
                    tracing::debug!(%error, "cannot answer a query");
                }
            }
            drop(turn);
        });
    }
}

pub(crate) async fn serve_tcp(shared: Arc<Shared>, stream: impl Transport + 'static, _slot: Slot) {
    let mut conn = Conn::new(stream);
    let talk = async {
        loop {
            let Some((message, length)) = take_framed(&conn.buffered) else {
                if !conn.fill_until(Instant::now() + IDLE_TIMEOUT).await? {
                    return Ok(());
                }
                continue;
            };
            let message = message.to_vec();
            conn.consume(length);
            match answer(&shared, &message, Over::Tcp).await {
                Some(reply) => write_all(&*conn.transport, &framed(&reply)).await?,
                None => return Ok(()),
            }
        }
    };
    let ended: io::Result<()> = talk.await;
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of the resolver ended");
    }
}

#[derive(Debug, Clone, Copy)]
enum Over {
    Udp,
    Tcp,
}

async fn answer(shared: &Shared, message: &[u8], over: Over) -> Option<Vec<u8>> {
    let query = match parse_query(message) {
        Ok(query) => query,
        Err(error) => {
            let reason = format!("not a query that is answered: {error}");
            let (entrance, via) = (Entrance::Dns, Via::Dns);
            record_malformed(&shared.audit, entrance, via, "", None, &reason);
            return error_reply(message, error);
        }
    };
    let query = match over {
        Over::Udp => query,
        Over::Tcp => query.over_tcp(),
    };
    if query.qclass != class::IN {
        let reason = format!("class {} is not answered", query.qclass);
        return Some(refuse_records(shared, &query, &reason));
    }
    Some(match query.qtype {
        rtype::A | rtype::AAAA => addresses(shared, &query).await,
        rtype::PTR => pointer(shared, &query),
        // Nothing to say, and no way to carry anything.
        rtype::HTTPS | SVCB => match known(shared, &query).await {
            Ok(_) => empty(&query),
            Err(reply) => reply,
        },
        other => {
            let reason = format!("records of type {other} are not answered");
            refuse_records(shared, &query, &reason)
        }
    })
}

async fn addresses(shared: &Shared, query: &Query) -> Vec<u8> {
    match known(shared, query).await {
        Ok(found) => answer_addresses(query, &found, CACHE_TIMEOUT.as_secs() as u32),
        Err(reply) => reply,
    }
}

/// The addresses of a name that may be known, or what to say instead.
async fn known(shared: &Shared, query: &Query) -> Result<Vec<IpAddr>, Vec<u8>> {
    let host = match Host::parse(&query.name) {
        Ok(host @ Host::Name(_)) => host,
        Ok(Host::Ip(_)) => return Err(nxdomain(query)),
        Err(error) => {
            record_lookup(&shared.audit, &query.name, &Verdict::malformed(&error));
            return Err(refused(query));
        }
    };
    if let Some(own) = own_address(&host) {
        return Ok(own);
    }
    // A question is a way out too: what cannot be put on record is not asked.
    if !shared.audit.is_healthy() {
        return Err(refused(query));
    }
    let (verdict, found) = shared.gate.decide_lookup(&host).await;
    record_lookup(&shared.audit, &query.name, &verdict);
    if !verdict.allowed || !shared.audit.is_healthy() {
        return Err(refused(query));
    }
    match found {
        Ok(found) if found.is_empty() => Err(nxdomain(query)),
        Ok(found) => Ok(found),
        // The host's resolver says no more than that.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(servfail(query)),
        Err(_) => Err(nxdomain(query)),
    }
}

/// Names that mean something in the sandbox itself.
fn own_address(host: &Host) -> Option<Vec<IpAddr>> {
    if is_localhost(host) {
        return Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    if is_host_alias(host) {
        return Some(vec![HOST_V4.into()]);
    }
    is_gateway(host).then(|| vec![GATEWAY_V4.into()])
}

/// Only what this sandbox was told before: any other question would leave the machine.
fn pointer(shared: &Shared, query: &Query) -> Vec<u8> {
    let name = reverse_name(&query.name).and_then(|ip| shared.gate.name_of(ip));
    match name {
        Some(name) => answer_ptr(query, name.as_str(), CACHE_TIMEOUT.as_secs() as u32),
        None => refuse_records(shared, query, UNTOLD),
    }
}

/// Says no and puts it on record: the name in a question is itself data that would leave.
fn refuse_records(shared: &Shared, query: &Query, reason: &str) -> Vec<u8> {
    record_unanswered(&shared.audit, &query.name, reason);
    refused(query)
}
