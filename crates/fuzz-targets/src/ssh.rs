//! What an SSH client sends before there are keys, what it sends about channels, and what an SFTP client asks for.

use sbx_sftp::request;
use sbx_ssh::{Connection, Event, HostKey, Server};

/// More than the windows of all channels that a connection can have.
const MAX_HELD: usize = 256 * (512 << 10);

/// Bytes of a whole connection: cut anywhere, they mean the same.
pub fn fuzz_ssh_opening(data: &[u8]) {
    let server = || HostKey::from_seed(&[7; HostKey::SEED]).map(Server::new);
    let (Ok(mut whole), Ok(mut pieces)) = (server(), server()) else {
        return;
    };
    let at_once = whole.receive(data);
    let mut received = Ok(());
    for byte in data {
        received = pieces.receive(&[*byte]);
        if received.is_err() {
            break;
        }
    }
    // Keys are new each time, so only what needs none is the same.
    assert_eq!(received.is_ok(), at_once.is_ok());
    assert!(whole.next_event().is_none(), "no user without keys");
}

/// Messages of a client whose user is known, each with two bytes of length before it.
pub fn fuzz_ssh_messages(mut data: &[u8]) {
    let mut connection = Connection::default();
    let mut held = 0;
    while let Some((length, rest)) = data.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (message, rest) = rest.split_at(length);
        data = rest;
        if connection.message(message).is_err() {
            return;
        }
        while let Some(event) = connection.next_event() {
            if let Event::Data(_, bytes) = event {
                held += bytes.len();
            }
        }
        assert!(held <= MAX_HELD, "data beyond all windows");
    }
}

pub fn fuzz_sftp_request(data: &[u8]) {
    // A message that cannot be read has no number either, or one that can be answered.
    if let Ok(numbered) = request::parse(data) {
        assert!(data.len() >= 5, "{numbered:?}");
    }
}
