//! IPv4 addresses as the WHATWG URL standard and `inet_aton` read them. A client library inside the sandbox may
//! understand `0x7f.1`; a policy that takes it for a name would check another destination than is dialled.

use std::net::Ipv4Addr;

pub(crate) enum Ipv4Reading {
    Address(Ipv4Addr),
    /// The last label is a number, but the whole is not an address: no resolver may be asked for it.
    Invalid,
    Name,
}

/// Reads a host in lower case without a trailing dot.
pub(crate) fn read(host: &str) -> Ipv4Reading {
    if !ends_in_number(host) {
        return Ipv4Reading::Name;
    }
    match parse(host) {
        Some(address) => Ipv4Reading::Address(address),
        None => Ipv4Reading::Invalid,
    }
}

fn ends_in_number(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or(host);
    let all_digits = !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit());
    all_digits || number(last).is_some()
}

fn parse(host: &str) -> Option<Ipv4Addr> {
    let parts = host.split('.').map(number).collect::<Option<Vec<u64>>>()?;
    let (last, leading) = parts.split_last()?;
    if leading.len() > 3 || leading.iter().any(|part| *part > 255) {
        return None;
    }
    let free_bytes = 4_u32.checked_sub(u32::try_from(leading.len()).ok()?)?;
    if *last >= 1_u64 << (8 * free_bytes) {
        return None;
    }
    let high = leading
        .iter()
        .zip([24_u32, 16, 8])
        .fold(0_u64, |sum, (part, shift)| sum | (part << shift));
    u32::try_from(high | last).ok().map(Ipv4Addr::from)
}

/// Decimal, octal with a leading zero, or hexadecimal. A bare `0x` is zero, as in browsers.
fn number(text: &str) -> Option<u64> {
    let (digits, radix) = if let Some(hex) = text.strip_prefix("0x") {
        (hex, 16)
    } else if text.len() > 1 && text.starts_with('0') {
        (text, 8)
    } else {
        (text, 10)
    };
    if digits.is_empty() {
        return (radix == 16).then_some(0);
    }
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    // More digits than u64 holds is far beyond any address; it stays a number, so that it is refused as one.
    Some(u64::from_str_radix(digits, radix).unwrap_or(u64::MAX))
}
