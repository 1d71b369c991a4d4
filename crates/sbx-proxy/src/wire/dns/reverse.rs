//! The names under which addresses are looked up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address that a name below `in-addr.arpa` or `ip6.arpa` stands for, if it is a whole one.
pub fn reverse_name(name: &str) -> Option<IpAddr> {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    if let Some(labels) = name.strip_suffix(".in-addr.arpa") {
        let mut octets = [0; 4];
        fill(&mut octets, labels, octet)?;
        return Some(IpAddr::V4(Ipv4Addr::from(octets)));
    }
    let labels = name.strip_suffix(".ip6.arpa")?;
    let mut nibbles = [0_u8; 32];
    fill(&mut nibbles, labels, nibble)?;
    let bits = nibbles
        .iter()
        .fold(0_u128, |bits, nibble| (bits << 4) | u128::from(*nibble));
    Some(IpAddr::V6(Ipv6Addr::from_bits(bits)))
}

/// Parses exactly as many labels as there are places; the first label is the last place.
fn fill<const N: usize>(
    places: &mut [u8; N],
    labels: &str,
    parse: fn(&str) -> Option<u8>,
) -> Option<()> {
    let mut labels = labels.split('.');
    for slot in places.iter_mut().rev() {
        *slot = parse(labels.next()?)?;
    }
    labels.next().is_none().then_some(())
}

/// Decimal without a sign or leading zeros: `010` is not `10`, nor is it 8.
fn octet(label: &str) -> Option<u8> {
    let plain = label.bytes().all(|byte| byte.is_ascii_digit())
        && (label.len() == 1 || !label.starts_with('0'));
    if plain { label.parse().ok() } else { None }
}

fn nibble(label: &str) -> Option<u8> {
    let mut characters = label.chars();
    let digit = characters.next()?.to_digit(16)?;
    characters
        .next()
        .is_none()
        .then_some(u8::try_from(digit).ok()?)
}
