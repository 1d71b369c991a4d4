//! The CONNECT method (RFC 9110, section 9.3.6): a tunnel through the HTTP proxy.

use sbx_policy::Target;

use crate::answer::{self, deny_tunnel, plain, send_and_close};
use crate::audit::{Entrance, Via};
use crate::conn::Conn;
use crate::entry::Entry;
use crate::proxy::Shared;
use crate::record::{record_denial, record_malformed};
use crate::transport::write_all;
use crate::tunnel::{Replies, carry};

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

pub(crate) async fn serve(shared: &Shared, conn: Conn, authority: &str) {
    let target = match Target::parse_authority(authority, None) {
        Ok(target) => target,
        Err(error) => {
            let reason = error.to_string();
            let (audit, via) = (&shared.audit, Via::Forward);
            record_malformed(audit, Entrance::Connect, via, authority, None, &reason);
            return send_and_close(&*conn.transport, &plain("400 Bad Request", &reason)).await;
        }
    };
    if !shared.audit.is_healthy() {
        return Entry::Forward.fail_unrecordable(&conn).await;
    }
    let (decision, needs) = shared.gate.decide_tunnel(&target).await;
    if !decision.allowed() {
        record_denial(&shared.audit, Entrance::Connect, Via::Forward, &decision);
        if (shared.bypass)(&decision.target.host) {
            // Most clients hide this answer, but the TLS of such a host is not opened.
            let sandbox = shared.audit.sandbox();
            let answer = answer::denial(sandbox, &decision.target, &decision.verdict, None);
            return send_and_close(&*conn.transport, &answer).await;
        }
        if write_all(&*conn.transport, ESTABLISHED).await.is_ok() {
            deny_tunnel(shared, conn, &decision.target, &decision.verdict).await;
        }
        return;
    }
    let replies = Replies {
        granted: ESTABLISHED.to_vec(),
        failed: plain("502 Bad Gateway", &format!("cannot connect to {target}")),
    };
    carry(shared, conn, Entrance::Connect, (decision, needs), replies).await;
}
