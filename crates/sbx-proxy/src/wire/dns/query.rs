//! A query.

/// The types that are answered.
pub mod rtype {
    pub const A: u16 = 1;
    pub const CNAME: u16 = 5;
    pub const PTR: u16 = 12;
    pub const AAAA: u16 = 28;
    pub const OPT: u16 = 41;
    pub const HTTPS: u16 = 65;
    pub const ANY: u16 = 255;
}

pub mod class {
    pub const IN: u16 = 1;
}

/// The longest query that is read. Real ones stay below 512 bytes, even with options.
pub const MAX_QUERY: usize = 4096;

/// An answer over UDP never exceeds this, whatever the client says: it is what fits every path without fragments.
pub(super) const MAX_UDP: u16 = 1232;
/// What every client takes (RFC 1035 section 2.3.4).
const MIN_UDP: u16 = 512;

pub(super) const HEADER: usize = 12;

/// A query with its one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    pub id: u16,
    /// In lower case, without the final dot; `.` for the root.
    pub name: String,
    pub qtype: u16,
    pub qclass: u16,
    /// Recursion is desired.
    pub rd: bool,
    /// The size of answer that the client takes over UDP, if it speaks EDNS.
    pub edns_size: Option<u16>,
    /// The question as sent: clients check that the case of its letters comes back (0x20).
    pub question: Vec<u8>,
    pub(super) tcp: bool,
}

impl Query {
    /// The query came over TCP: its answer is not cut short.
    #[must_use]
    pub fn over_tcp(self) -> Self {
        Self { tcp: true, ..self }
    }

    /// The longest answer that the client takes.
    pub fn limit(&self) -> usize {
        let udp = self.edns_size.unwrap_or(MIN_UDP).clamp(MIN_UDP, MAX_UDP);
        usize::from(if self.tcp { u16::MAX } else { udp })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DnsError {
    #[error("the message is shorter than a DNS header")]
    TooShort,
    #[error("the message is too long")]
    TooLong,
    #[error("the message is not a query")]
    NotAQuery,
    #[error("the message asks for something other than a lookup")]
    BadOpcode,
    #[error(
        "the message does not have exactly one question, or has records that are not allowed in a query"
    )]
    BadCounts,
    #[error("the name is malformed")]
    BadName,
    #[error("the name has characters that no host name has")]
    UnsupportedName,
    #[error("the message is truncated")]
    Truncated,
    #[error("the message has a record other than one EDNS option")]
    BadAdditional,
    #[error("bytes follow the message")]
    TrailingBytes,
}

/// Parses a whole message.
pub fn parse_query(message: &[u8]) -> Result<Query, DnsError> {
    let (header, body) = message
        .split_first_chunk::<HEADER>()
        .ok_or(DnsError::TooShort)?;
    if message.len() > MAX_QUERY {
        return Err(DnsError::TooLong);
    }
    let additional = check_header(header)?;
    let (name, name_length) = read_name(body)?;
    let question = body.get(..name_length + 4).ok_or(DnsError::Truncated)?;
    let mut rest = Reader(body.get(name_length..).ok_or(DnsError::Truncated)?);
    let (qtype, qclass) = (rest.u16()?, rest.u16()?);
    let edns_size = if additional == 0 {
        None
    } else {
        Some(edns(&mut rest)?)
    };
    if !rest.0.is_empty() {
        return Err(DnsError::TrailingBytes);
    }
    let [id_high, id_low, flags, ..] = *header;
    Ok(Query {
        id: u16::from_be_bytes([id_high, id_low]),
        name,
        qtype,
        qclass,
        rd: flags & 1 != 0,
        edns_size,
        question: question.to_vec(),
        tcp: false,
    })
}

/// Returns the number of additional records: none or one.
fn check_header(header: &[u8; HEADER]) -> Result<u8, DnsError> {
    let [_, _, flags, _, counts @ ..] = *header;
    if flags & 0x80 != 0 {
        return Err(DnsError::NotAQuery);
    }
    if flags & 0x78 != 0 {
        return Err(DnsError::BadOpcode);
    }
    match counts {
        // A truncated query (flag 0x02) makes no sense.
        [0, 1, 0, 0, 0, 0, 0, additional @ 0..=1] if flags & 0x02 == 0 => Ok(additional),
        _ => Err(DnsError::BadCounts),
    }
}

/// The name and its length on the wire. A pointer has nothing to point to in a query.
fn read_name(bytes: &[u8]) -> Result<(String, usize), DnsError> {
    let mut name = String::new();
    let mut at = 0;
    loop {
        let length = usize::from(*bytes.get(at).ok_or(DnsError::Truncated)?);
        at += 1;
        if length == 0 {
            break;
        }
        // The final zero byte counts towards the 255 that RFC 1035 allows.
        if length > 63 || at + length + 1 > 255 {
            return Err(DnsError::BadName);
        }
        let label = bytes.get(at..at + length).ok_or(DnsError::Truncated)?;
        if !label
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
        {
            return Err(DnsError::UnsupportedName);
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.extend(
            label
                .iter()
                .map(|byte| char::from(byte.to_ascii_lowercase())),
        );
        at += length;
    }
    if name.is_empty() {
        name.push('.');
    }
    Ok((name, at))
}

/// The OPT pseudo-record (RFC 6891): the client's size. Its options, such as cookies, are ignored.
fn edns(rest: &mut Reader<'_>) -> Result<u16, DnsError> {
    if rest.u8()? != 0 || rest.u16()? != rtype::OPT {
        return Err(DnsError::BadAdditional);
    }
    let size = rest.u16()?;
    let (_extended_code, version) = (rest.u8()?, rest.u8()?);
    if version != 0 {
        return Err(DnsError::BadAdditional);
    }
    rest.u16()?;
    let length = usize::from(rest.u16()?);
    let (_options, after) = rest.0.split_at_checked(length).ok_or(DnsError::Truncated)?;
    rest.0 = after;
    Ok(size)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn u8(&mut self) -> Result<u8, DnsError> {
        let (first, rest) = self.0.split_first().ok_or(DnsError::Truncated)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, DnsError> {
        let (first, rest) = self.0.split_first_chunk::<2>().ok_or(DnsError::Truncated)?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*first))
    }
}
