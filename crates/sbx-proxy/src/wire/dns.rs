//! DNS messages (RFC 1035) as far as a stub resolver speaks: queries with one question in, answers out.
//!
//! Only names made of letters, digits, `-` and `_` are let through, so that a name means the same to policy, to the
//! log and to the resolver behind us. Resolving, and remembering what was answered, are left to the caller.

mod answer;
mod query;
mod reverse;

#[cfg(test)]
mod tests;

pub use answer::{
    answer_addresses, answer_ptr, empty, error_reply, formerr, nxdomain, refused, servfail,
};
pub use query::{DnsError, MAX_QUERY, Query, class, parse_query, rtype};
pub use reverse::reverse_name;

/// The message at the start of a TCP stream and the bytes it took with its length (RFC 1035 section 4.2.2).
pub fn take_framed(input: &[u8]) -> Option<(&[u8], usize)> {
    let (length, rest) = input.split_first_chunk::<2>()?;
    let length = usize::from(u16::from_be_bytes(*length));
    rest.get(..length).map(|message| (message, length + 2))
}

/// The message with its length before it, as TCP carries it. No builder here makes one that is too long.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let mut out = length.to_be_bytes().to_vec();
    out.extend_from_slice(message.get(..usize::from(length)).unwrap_or_default());
    out
}
