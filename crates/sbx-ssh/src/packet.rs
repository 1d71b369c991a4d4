//! The binary packet protocol (RFC 4253 section 6).

use aws_lc_rs::rand;

use crate::Error;
use crate::cipher::{Cipher, TAG};

/// RFC 4253 asks for 35000; a channel's data is never more than [`crate::connection::MAX_DATA`].
const MAX_PACKET: usize = 64 << 10;
const MIN_PADDING: usize = 4;
const PLAIN_BLOCK: usize = 8;
const CIPHER_BLOCK: usize = 16;

/// What came from the client.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    buffer: Vec<u8>,
    /// How much of it has been used.
    used: usize,
    cipher: Option<Cipher>,
    sequence: u32,
}

impl Inbound {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.used > 0 {
            self.buffer.drain(..self.used);
            self.used = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// A line before the first packet, of at most `limit` bytes with its end.
    pub(crate) fn line(&mut self, limit: usize) -> Result<Option<Vec<u8>>, Error> {
        let rest = self.buffer.get(self.used..).unwrap_or_default();
        let searched = rest.get(..limit).unwrap_or(rest);
        let Some(end) = searched.iter().position(|byte| *byte == b'\n') else {
            return match rest.len() {
                length if length >= limit => Err(Error::Version),
                _ => Ok(None),
            };
        };
        let line = rest.get(..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
        self.used += end + 1;
        Ok(Some(line))
    }

    /// The payload of the next packet and its number.
    pub(crate) fn next(&mut self) -> Result<Option<(Vec<u8>, u32)>, Error> {
        let rest = self.buffer.get_mut(self.used..).unwrap_or_default();
        let Some((length, body)) = rest.split_first_chunk_mut::<4>() else {
            return Ok(None);
        };
        let length = *length;
        let size = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        let (whole, tag) = match self.cipher {
            None => (size.wrapping_add(4).is_multiple_of(PLAIN_BLOCK), 0),
            Some(_) => (size.is_multiple_of(CIPHER_BLOCK), TAG),
        };
        if !whole || size == 0 || size > MAX_PACKET {
            return Err(Error::PacketLength);
        }
        let Some(body) = body.get_mut(..size + tag) else {
            return Ok(None);
        };
        let plain = match &mut self.cipher {
            None => &*body,
            Some(cipher) => cipher.open(length, body)?,
        };
        let (padding, rest) = plain.split_first().ok_or(Error::PacketLength)?;
        let padding = usize::from(*padding);
        let end = rest.len().checked_sub(padding).ok_or(Error::PacketLength)?;
        if padding < MIN_PADDING || end == 0 {
            return Err(Error::PacketLength);
        }
        let payload = rest.get(..end).ok_or(Error::PacketLength)?.to_vec();
        self.used += 4 + size + tag;
        let number = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        Ok(Some((payload, number)))
    }

    pub(crate) fn set_cipher(&mut self, cipher: Cipher) {
        self.cipher = Some(cipher);
    }

    pub(crate) fn reset_sequence(&mut self) {
        self.sequence = 0;
    }
}

/// What goes to the client. Nothing needs the number of a packet that is sent.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    cipher: Option<Cipher>,
}

impl Outbound {
    /// Appends the payload as a packet.
    pub(crate) fn push(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        // The length counts for the alignment only while it is encrypted, or nothing is.
        let (block, aligned) = match self.cipher {
            None => (PLAIN_BLOCK, 4 + 1 + payload.len()),
            Some(_) => (CIPHER_BLOCK, 1 + payload.len()),
        };
        let mut padding = block - aligned % block;
        if padding < MIN_PADDING {
            padding += block;
        }
        let size = u32::try_from(1 + payload.len() + padding).map_err(|_| Error::PacketLength)?;
        let length = size.to_be_bytes();
        out.extend_from_slice(&length);
        let start = out.len();
        out.push(u8::try_from(padding).map_err(|_| Error::PacketLength)?);
        out.extend_from_slice(payload);
        let mut random = [0; 2 * CIPHER_BLOCK];
        let random = random.get_mut(..padding).ok_or(Error::PacketLength)?;
        rand::fill(random)?;
        out.extend_from_slice(random);
        if let Some(cipher) = &mut self.cipher {
            let tag = cipher.seal(length, out.get_mut(start..).unwrap_or_default())?;
            out.extend_from_slice(&tag);
        }
        Ok(())
    }

    pub(crate) fn set_cipher(&mut self, cipher: Cipher) {
        self.cipher = Some(cipher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cipher::Suite;

    fn cipher() -> Cipher {
        Cipher::new(Suite::Aes256Gcm, &[7; 32], &[9; 12]).unwrap()
    }

    #[test]
    fn packets_come_as_they_were_sent_also_byte_by_byte() {
        for encrypted in [false, true] {
            let (mut inbound, mut outbound) = (Inbound::default(), Outbound::default());
            if encrypted {
                inbound.set_cipher(cipher());
                outbound.set_cipher(cipher());
            }
            let payloads: Vec<Vec<u8>> = (1..200).map(|size| vec![3; size]).collect();
            let mut bytes = Vec::new();
            for payload in &payloads {
                outbound.push(payload, &mut bytes).unwrap();
            }
            let mut come = Vec::new();
            for byte in bytes {
                inbound.push(&[byte]);
                while let Some((payload, number)) = inbound.next().unwrap() {
                    assert_eq!(number as usize, come.len());
                    come.push(payload);
                }
            }
            assert_eq!(come, payloads);
        }
    }

    #[test]
    fn a_changed_packet_is_refused() {
        let mut outbound = Outbound::default();
        outbound.set_cipher(cipher());
        let mut bytes = Vec::new();
        outbound.push(b"payload", &mut bytes).unwrap();
        for place in 4..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            let mut inbound = Inbound::default();
            inbound.set_cipher(cipher());
            inbound.push(&changed);
            assert_eq!(inbound.next(), Err(Error::Integrity), "{place}");
        }
    }

    #[test]
    fn lengths_that_cannot_be() {
        for bytes in [
            &b"\0\0\0\0"[..],
            b"\xff\xff\xff\xff",
            b"\0\x01\0\x04\0\0",
            b"\0\0\0\x0c\xff00000000000",
            b"\0\0\0\x0c\x0b00000000000",
            b"\0\0\0\x0c\x0300000000000",
        ] {
            let mut inbound = Inbound::default();
            inbound.push(bytes);
            assert_eq!(inbound.next(), Err(Error::PacketLength), "{bytes:?}");
        }
    }

    #[test]
    fn a_line_has_a_limit() {
        let mut inbound = Inbound::default();
        inbound.push(b"SSH-2.0-x\r\nmore");
        assert_eq!(inbound.line(255), Ok(Some(b"SSH-2.0-x".to_vec())));
        assert_eq!(inbound.line(255), Ok(None));
        inbound.push(&[b'x'; 255]);
        assert_eq!(inbound.line(255), Err(Error::Version));
    }
}
