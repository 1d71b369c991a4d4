//! Where a message's body ends, told by `Content-Length` and `Transfer-Encoding`.

use super::headers::{Header, Headers};
use super::{BodyKind, HeadError, Version};

/// Lengths above this do not fit the signed integers that many origins count with.
const MAX_LENGTH: u64 = i64::MAX as u64;

/// The body of a request, which always has a certain end.
pub(super) fn of_request(headers: &Headers, version: Version) -> Result<BodyKind, HeadError> {
    refuse_lookalikes(headers)?;
    let length = one(headers, "content-length", HeadError::DuplicateContentLength)?;
    let encoding = one(
        headers,
        "transfer-encoding",
        HeadError::DuplicateTransferEncoding,
    )?;
    match (length, encoding) {
        (None, None) => Ok(BodyKind::None),
        (Some(_), Some(_)) => Err(HeadError::LengthAndEncoding),
        (Some(header), None) => header
            .plain_value()
            .and_then(length_value)
            .map(BodyKind::Length)
            .ok_or(HeadError::BadContentLength),
        (None, Some(_)) if version == Version::Http10 => Err(HeadError::TransferEncodingOnHttp10),
        (None, Some(header)) => match header.plain_value() {
            Some(value) if value.eq_ignore_ascii_case(b"chunked") => Ok(BodyKind::Chunked),
            Some(_) | None => Err(HeadError::BadTransferEncoding),
        },
    }
}

/// What a response says of its body, before its status and the request's method have their say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Declared {
    Nothing,
    Length(u64),
    Chunked,
}

/// Takes what RFC 9112 section 6 lets a recipient take: equal lengths said twice, other codings before `chunked`.
pub(super) fn of_response(headers: &Headers, version: Version) -> Result<Declared, HeadError> {
    let lengths = values(headers, "content-length");
    let codings = values(headers, "transfer-encoding");
    match (lengths.split_first(), codings.split_last()) {
        (None, None) => Ok(Declared::Nothing),
        (Some(_), Some(_)) => Err(HeadError::LengthAndEncoding),
        (Some((first, others)), None) => {
            if others.iter().any(|other| other != first) {
                return Err(HeadError::DuplicateContentLength);
            }
            length_value(first)
                .map(Declared::Length)
                .ok_or(HeadError::BadContentLength)
        }
        (None, Some(_)) if version == Version::Http10 => Err(HeadError::TransferEncodingOnHttp10),
        (None, Some((last, before))) => {
            let is_chunked = |coding: &&[u8]| coding.eq_ignore_ascii_case(b"chunked");
            let known = |coding: &&[u8]| {
                [&b"gzip"[..], b"x-gzip", b"deflate", b"compress"]
                    .iter()
                    .any(|k| coding.eq_ignore_ascii_case(k))
            };
            if is_chunked(last) && before.iter().all(known) {
                Ok(Declared::Chunked)
            } else {
                Err(HeadError::BadTransferEncoding)
            }
        }
    }
}

/// `Content_Length` reaches a CGI-like origin as the same variable as `Content-Length`.
fn refuse_lookalikes(headers: &Headers) -> Result<(), HeadError> {
    for header in headers.iter().filter(|header| header.name.contains('_')) {
        let name = header.name.replace('_', "-");
        if name.eq_ignore_ascii_case("content-length")
            || name.eq_ignore_ascii_case("transfer-encoding")
        {
            return Err(HeadError::BadHeaderName);
        }
    }
    Ok(())
}

fn one<'a>(
    headers: &'a Headers,
    name: &'a str,
    repeated: HeadError,
) -> Result<Option<Header<'a>>, HeadError> {
    let mut all = headers.all(name);
    let first = all.next();
    if all.next().is_some() {
        Err(repeated)
    } else {
        Ok(first)
    }
}

/// The elements of every field of this name. An empty field is an empty element, so that it is not overlooked.
fn values<'a>(headers: &'a Headers, name: &'a str) -> Vec<&'a [u8]> {
    headers
        .all(name)
        .flat_map(|header| header.value.split(|&byte| byte == b','))
        .map(<[u8]>::trim_ascii)
        .collect()
}

/// Digits only, without a leading zero that might be read as octal.
fn length_value(value: &[u8]) -> Option<u64> {
    let plain =
        value.iter().all(u8::is_ascii_digit) && (value.len() == 1 || !value.starts_with(b"0"));
    let number = str::from_utf8(value).ok().filter(|_| plain)?.parse().ok()?;
    (number <= MAX_LENGTH).then_some(number)
}
