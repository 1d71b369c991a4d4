//! The first flight of a TLS client, read for the name it asks for. Nothing is decrypted and nothing is consumed: the
//! same bytes go to the origin, or to our own TLS stack.

use std::net::Ipv4Addr;

/// The longest hello that is read; with a post-quantum key share they have about 2 KiB.
pub const MAX_HELLO: usize = 16 * 1024;

/// The most bytes that are ever needed: a hello of [`MAX_HELLO`] in records that are not absurdly short.
pub const MAX_SNIFFED: usize = 2 * MAX_HELLO;

const MAX_RECORD: usize = 16 * 1024;
const HANDSHAKE: u8 = 22;
/// All record types: change cipher spec, alert, handshake, application data, heartbeat.
const FIRST_TYPE: u8 = 20;
const LAST_TYPE: u8 = 24;
const CLIENT_HELLO: u8 = 1;
/// The first byte of every version.
const MAJOR: u8 = 3;
const RECORD_HEADER: usize = 5;
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
/// Encrypted Client Hello, and the drafts that came before it.
const ENCRYPTED_HELLO: &[u16] = &[0xfe0d, 0xfe08, 0xfe09, 0xfe0a, 0xffce];

/// What a client's first bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sniff {
    NeedMore,
    NotTls,
    Hello(ClientHello),
    /// TLS by its first bytes, but not a hello that every implementation reads alike.
    Malformed,
}

/// What a client hello says in the clear.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// In lower case, never an address.
    pub server_name: Option<String>,
    /// In the client's order of preference.
    pub alpn: Vec<Vec<u8>>,
    /// Whether an encrypted hello comes along: `server_name` may then be the name of a relay. Browsers also send
    /// random bytes in its place (RFC 8701).
    pub ech: bool,
}

/// Reads the hello at the start of `bytes`.
///
/// Servers differ in which versions of the first record they take, and some take any: a hello in one that is not
/// known is refused, since some server would read the name in it. So is a record of another type: some servers skip an
/// alert, and read the hello behind it.
pub fn sniff(bytes: &[u8]) -> Sniff {
    match bytes {
        [HANDSHAKE, MAJOR, 0..=4, ..] => {}
        [] | [FIRST_TYPE..=LAST_TYPE] | [HANDSHAKE, MAJOR] => return Sniff::NeedMore,
        [kind @ FIRST_TYPE..=LAST_TYPE, MAJOR, ..] if *kind != HANDSHAKE => {
            return Sniff::Malformed;
        }
        [HANDSHAKE, MAJOR, ..] | [HANDSHAKE, _, _, _, _, CLIENT_HELLO, ..] => {
            return Sniff::Malformed;
        }
        [HANDSHAKE, ..] if bytes.len() <= RECORD_HEADER => return Sniff::NeedMore,
        _ => return Sniff::NotTls,
    }
    match handshake(bytes) {
        Ok(message) => match hello(&message) {
            Some(hello) => Sniff::Hello(hello),
            None => Sniff::Malformed,
        },
        Err(Incomplete::NeedMore) if bytes.len() < MAX_SNIFFED => Sniff::NeedMore,
        Err(Incomplete::NeedMore | Incomplete::Malformed) => Sniff::Malformed,
    }
}

/// Whether it is too little for TLS, or would be TLS of a version that there is not: short of a hello, it may be another
/// protocol.
pub(super) fn may_be_another_protocol(bytes: &[u8]) -> bool {
    match bytes {
        [kind] => *kind != HANDSHAKE,
        [HANDSHAKE, major, ..] => *major != MAJOR,
        _ => false,
    }
}

enum Incomplete {
    NeedMore,
    Malformed,
}

/// Puts the client hello together from its records. It ends where a record ends: nothing may follow it before the
/// server has answered.
fn handshake(bytes: &[u8]) -> Result<Vec<u8>, Incomplete> {
    let mut records = bytes
        .get(..bytes.len().min(MAX_SNIFFED))
        .unwrap_or_default();
    let mut message = Vec::new();
    // What the records seen so far hold once they have arrived in full.
    let mut declared = 0;
    loop {
        let (payload, length, rest) = record(records)?;
        declared += length;
        message.extend_from_slice(payload);
        if let Some(expected) = message_length(&message)? {
            if declared > expected {
                return Err(Incomplete::Malformed);
            }
            if message.len() == expected {
                return Ok(message);
            }
        }
        if payload.len() < length {
            return Err(Incomplete::NeedMore);
        }
        records = rest;
    }
}

/// The next record: what has arrived of its payload, the length it will have, and what follows it.
fn record(bytes: &[u8]) -> Result<(&[u8], usize, &[u8]), Incomplete> {
    let (kind, version) = (bytes.first(), bytes.get(1..3));
    let known =
        matches!(kind, None | Some(&HANDSHAKE)) && matches!(version, None | Some([MAJOR, 0..=4]));
    if !known {
        return Err(Incomplete::Malformed);
    }
    let Some(([_, _, _, high, low], rest)) = bytes.split_first_chunk::<RECORD_HEADER>() else {
        return Err(Incomplete::NeedMore);
    };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    if length == 0 || length > MAX_RECORD {
        return Err(Incomplete::Malformed);
    }
    let (payload, rest) = rest.split_at_checked(length).unwrap_or((rest, &[]));
    Ok((payload, length, rest))
}

/// The length of the handshake message with its header, once that header has arrived.
fn message_length(message: &[u8]) -> Result<Option<usize>, Incomplete> {
    match message {
        [] | [CLIENT_HELLO] | [CLIENT_HELLO, _] | [CLIENT_HELLO, _, _] => Ok(None),
        [CLIENT_HELLO, a, b, c, ..] => {
            let length = usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).unwrap_or(usize::MAX);
            if length > MAX_HELLO {
                Err(Incomplete::Malformed)
            } else {
                Ok(Some(length + 4))
            }
        }
        _ => Err(Incomplete::Malformed),
    }
}

/// RFC 8446 section 4.1.2, all of it: a hello with bytes left over is one that others read differently.
fn hello(message: &[u8]) -> Option<ClientHello> {
    let mut body = Reader(message.get(4..)?);
    body.take(2 + 32)?;
    let session = body.vector8()?;
    let suites = body.vector16()?;
    let compression = body.vector8()?;
    if session.0.len() > 32
        || suites.0.is_empty()
        || suites.0.len() % 2 != 0
        || compression.0.is_empty()
    {
        return None;
    }
    if body.is_empty() {
        return Some(ClientHello::default());
    }
    let extensions = body.vector16()?;
    if body.is_empty() {
        read_extensions(extensions)
    } else {
        None
    }
}

fn read_extensions(mut extensions: Reader<'_>) -> Option<ClientHello> {
    let mut hello = ClientHello::default();
    let mut seen = Vec::new();
    while !extensions.is_empty() {
        let kind = extensions.u16()?;
        let data = extensions.vector16()?;
        if seen.contains(&kind) {
            return None;
        }
        seen.push(kind);
        match kind {
            SERVER_NAME => hello.server_name = Some(server_name(data)?),
            ALPN => hello.alpn = protocols(data)?,
            kind if ENCRYPTED_HELLO.contains(&kind) => hello.ech = true,
            _ => {}
        }
    }
    Some(hello)
}

/// RFC 6066 allows one name per type and has one type.
fn server_name(mut data: Reader<'_>) -> Option<String> {
    let mut names = data.vector16()?;
    let kind = names.u8()?;
    let name = names.vector16()?;
    if kind != 0 || !names.is_empty() || !data.is_empty() {
        return None;
    }
    let name = str::from_utf8(name.0).ok()?.to_ascii_lowercase();
    is_host_name(&name).then_some(name)
}

/// A name of letters, digits, `-` and `_` without a final dot, and nothing that some resolver takes for an address.
fn is_host_name(name: &str) -> bool {
    let label = |label: &str| {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(good)
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    name.len() <= 253 && name.split('.').all(label) && !numeric && name.parse::<Ipv4Addr>().is_err()
}

fn protocols(mut data: Reader<'_>) -> Option<Vec<Vec<u8>>> {
    let mut list = data.vector16()?;
    let mut protocols = Vec::new();
    while !list.is_empty() {
        let protocol = list.vector8()?;
        if protocol.is_empty() {
            return None;
        }
        protocols.push(protocol.0.to_vec());
    }
    (data.is_empty() && !protocols.is_empty()).then_some(protocols)
}

/// Takes TLS's presentation language from the front of a slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, length: usize) -> Option<Self> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(Self(taken))
    }

    fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        let (first, rest) = self.0.split_first_chunk::<2>()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*first))
    }

    fn vector8(&mut self) -> Option<Self> {
        let length = self.u8()?;
        self.take(usize::from(length))
    }

    fn vector16(&mut self) -> Option<Self> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }
}

#[cfg(test)]
mod tests;
