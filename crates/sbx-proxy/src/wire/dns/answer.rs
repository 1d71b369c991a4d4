//! Answers.

use std::net::IpAddr;

use super::query::{DnsError, HEADER, MAX_UDP, Query, class, rtype};

/// An OPT record without options.
const OPT_LENGTH: usize = 11;
/// A pointer to the question's name, which always starts right after the header.
const QUESTION_NAME: [u8; 2] = [0xc0, 0x0c];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    NoError = 0,
    FormErr = 1,
    ServFail = 2,
    NxDomain = 3,
    NotImp = 4,
    Refused = 5,
}

/// Answers a query for `A` or `AAAA` with those of the addresses that are of its kind; other types get an empty
/// answer. What does not fit is left out and the answer is marked as truncated, so that the client asks over TCP.
pub fn answer_addresses(query: &Query, addresses: &[IpAddr], ttl: u32) -> Vec<u8> {
    let data = addresses
        .iter()
        .filter_map(|address| match (query.qtype, address) {
            (rtype::A, IpAddr::V4(address)) => Some(address.octets().to_vec()),
            (rtype::AAAA, IpAddr::V6(address)) => Some(address.octets().to_vec()),
            _ => None,
        });
    build(
        query,
        Code::NoError,
        data.map(|data| record(query.qtype, ttl, &data)),
    )
}

/// Answers a query for `PTR` with a name; other types get an empty answer, and a name that DNS cannot hold fails.
pub fn answer_ptr(query: &Query, name: &str, ttl: u32) -> Vec<u8> {
    match encode_name(name) {
        Some(name) if query.qtype == rtype::PTR => build(
            query,
            Code::NoError,
            std::iter::once(record(rtype::PTR, ttl, &name)),
        ),
        Some(_) => empty(query),
        None => servfail(query),
    }
}

/// The name exists and has no record of this type.
pub fn empty(query: &Query) -> Vec<u8> {
    build(query, Code::NoError, std::iter::empty())
}

/// Policy does not let the name be resolved.
pub fn refused(query: &Query) -> Vec<u8> {
    build(query, Code::Refused, std::iter::empty())
}

/// The resolver behind us failed.
pub fn servfail(query: &Query) -> Vec<u8> {
    build(query, Code::ServFail, std::iter::empty())
}

pub fn nxdomain(query: &Query) -> Vec<u8> {
    build(query, Code::NxDomain, std::iter::empty())
}

/// Answers a message of which only the id could be read.
pub fn formerr(id: u16) -> Vec<u8> {
    header_only(id, 0, Code::FormErr)
}

/// The answer to a message that [`parse_query`](super::parse_query) refused, if it is to have one: answering an
/// answer would let two servers talk to each other forever.
pub fn error_reply(message: &[u8], error: DnsError) -> Option<Vec<u8>> {
    let &[high, low, flags] = message.first_chunk::<3>()?;
    let code = match error {
        DnsError::TooShort | DnsError::NotAQuery => return None,
        DnsError::BadOpcode => Code::NotImp,
        // The name may be fine in DNS; it is we who do not resolve it.
        DnsError::UnsupportedName => Code::Refused,
        DnsError::TooLong
        | DnsError::BadCounts
        | DnsError::BadName
        | DnsError::Truncated
        | DnsError::BadAdditional
        | DnsError::TrailingBytes => Code::FormErr,
    };
    // The opcode and "recursion desired" are copied.
    Some(header_only(
        u16::from_be_bytes([high, low]),
        flags & 0x79,
        code,
    ))
}

fn header_only(id: u16, copied_flags: u8, code: Code) -> Vec<u8> {
    let mut out = id.to_be_bytes().to_vec();
    out.extend_from_slice(&[0x80 | copied_flags, 0x80 | code as u8]);
    out.resize(HEADER, 0);
    out
}

fn build(query: &Query, code: Code, records: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let reserved = if query.edns_size.is_some() {
        OPT_LENGTH
    } else {
        0
    };
    let room = query
        .limit()
        .saturating_sub(HEADER + query.question.len() + reserved);
    let mut answers = Vec::new();
    let mut count: u16 = 0;
    let mut truncated = false;
    for record in records {
        if answers.len() + record.len() > room {
            truncated = true;
            break;
        }
        answers.extend_from_slice(&record);
        count = count.saturating_add(1);
    }
    let mut out = Vec::with_capacity(HEADER + query.question.len() + answers.len() + reserved);
    out.extend_from_slice(&query.id.to_be_bytes());
    out.extend_from_slice(&[
        0x80 | (u8::from(truncated) << 1) | u8::from(query.rd),
        0x80 | code as u8,
        0,
        1,
    ]);
    out.extend_from_slice(&count.to_be_bytes());
    out.extend_from_slice(&[0, 0, 0, u8::from(query.edns_size.is_some())]);
    out.extend_from_slice(&query.question);
    out.extend_from_slice(&answers);
    if query.edns_size.is_some() {
        out.push(0);
        out.extend_from_slice(&rtype::OPT.to_be_bytes());
        out.extend_from_slice(&MAX_UDP.to_be_bytes());
        out.extend_from_slice(&[0; 6]);
    }
    out
}

fn record(kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let mut out = QUESTION_NAME.to_vec();
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&class::IN.to_be_bytes());
    out.extend_from_slice(&ttl.to_be_bytes());
    out.extend_from_slice(&u16::try_from(data.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend_from_slice(data);
    out
}

/// The name on the wire, if its labels and its length are within bounds.
fn encode_name(name: &str) -> Option<Vec<u8>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut out = Vec::with_capacity(name.len() + 2);
    for label in name.split('.') {
        let length = u8::try_from(label.len())
            .ok()
            .filter(|length| (1..=63).contains(length))?;
        out.push(length);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    (out.len() <= 255).then_some(out)
}
