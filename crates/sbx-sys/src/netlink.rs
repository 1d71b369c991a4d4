//! Netlink (RFC 3549): building requests as bytes, and one exchange with the kernel.
//!
//! A request is a 16-byte header (`struct nlmsghdr`), a fixed header of its family, and attributes as type-length-value,
//! padded to four bytes. The kernel handles a request inside `send`, so its answers are readable when `send` returns.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// The size of `struct nlmsghdr`.
const HEADER: usize = 16;
/// The offset of `nlmsg_seq` in it.
const SEQUENCE: usize = 8;
/// `NLMSG_ERROR`: an error, or with error number 0 an acknowledgement.
const ERROR: u16 = 2;

const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
pub(crate) const ACK: u16 = libc::NLM_F_ACK as u16;
pub(crate) const CREATE: u16 = libc::NLM_F_CREATE as u16;
pub(crate) const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
pub(crate) const APPEND: u16 = libc::NLM_F_APPEND as u16;

/// Requests that are sent together; the sequence number of each is its position, from 1 on.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    count: u32,
}

impl Batch {
    /// Appends a request: `fixed` is the header of its family, `attributes` writes what follows.
    pub(crate) fn push(
        &mut self,
        kind: u16,
        flags: u16,
        fixed: &[u8],
        attributes: impl FnOnce(&mut Attributes<'_>),
    ) {
        self.count += 1;
        let start = self.bytes.len();
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        self.bytes.extend(self.count.to_ne_bytes());
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend(fixed);
        attributes(&mut Attributes(&mut self.bytes));
        // The length is known only now: it includes the attributes.
        let size = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        if let Some(length) = self.bytes.get_mut(start..start + 4) {
            length.copy_from_slice(&size.to_ne_bytes());
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Attributes: type, length and value; a value can be a list of attributes (`NLA_F_NESTED`).
pub(crate) struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.put(kind, |bytes| bytes.extend(value));
    }

    pub(crate) fn text(&mut self, kind: u16, value: &str) {
        self.put(kind, |bytes| {
            bytes.extend(value.as_bytes());
            bytes.push(0);
        });
    }

    /// A number in network byte order, as nf_tables has them.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub(crate) fn nested(&mut self, kind: u16, inner: impl FnOnce(&mut Attributes<'_>)) {
        self.put(kind | libc::NLA_F_NESTED as u16, |bytes| {
            inner(&mut Attributes(bytes));
        });
    }

    fn put(&mut self, kind: u16, value: impl FnOnce(&mut Vec<u8>)) {
        let start = self.0.len();
        self.0.extend(0_u16.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        value(self.0);
        let size = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        if let Some(length) = self.0.get_mut(start..start + 2) {
            length.copy_from_slice(&size.to_ne_bytes());
        }
        // Padding is not part of the attribute's length.
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// Sends the requests on a new socket.
fn send_batch(protocol: Option<Protocol>, batch: &Batch) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        protocol,
    )?;
    send(&socket, batch.bytes(), SendFlags::empty())?;
    Ok(socket)
}

/// Sends the requests and reads the acknowledgement of those numbered `acknowledged`, or the first error.
pub(crate) fn exchange(
    protocol: Option<Protocol>,
    batch: &Batch,
    acknowledged: impl IntoIterator<Item = u32>,
) -> io::Result<()> {
    let socket = send_batch(protocol, batch)?;
    let mut pending: Vec<u32> = acknowledged.into_iter().collect();
    let mut buffer = [0; 4096];
    while !pending.is_empty() {
        // The kernel answers before `send` returns: an answer that is missing now never comes.
        let (size, _) = recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
        for answer in answers(buffer.get(..size).unwrap_or_default()) {
            match answer.error {
                0 => pending.retain(|sequence| *sequence != answer.sequence),
                error => return Err(io::Error::from_raw_os_error(error)),
            }
        }
    }
    Ok(())
}

/// Sends one request and returns the type of the kernel's message and the bytes after its header.
pub(crate) fn query(protocol: Option<Protocol>, batch: &Batch) -> io::Result<(u16, Vec<u8>)> {
    let socket = send_batch(protocol, batch)?;
    let mut buffer = [0; 4096];
    let (size, _) = recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
    let message = buffer.get(..size).unwrap_or_default();
    if let Some(answer) = answers(message).first() {
        return Err(io::Error::from_raw_os_error(answer.error));
    }
    match (message.get(4..6), message.get(HEADER..)) {
        (Some(&[low, high]), Some(body)) => Ok((u16::from_ne_bytes([low, high]), body.to_vec())),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    sequence: u32,
    error: i32,
}

/// The acknowledgements and errors among the kernel's messages.
fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut found = Vec::new();
    while let (Some(size), Some(kind)) = (number(bytes, 0), bytes.get(4..6)) {
        let size = size as usize;
        if size < HEADER {
            break;
        }
        if *kind == ERROR.to_ne_bytes()
            && let (Some(sequence), Some(error)) = (number(bytes, SEQUENCE), number(bytes, HEADER))
        {
            // The kernel sends the negated error number.
            let error = error.cast_signed().saturating_neg();
            found.push(Answer { sequence, error });
        }
        bytes = bytes.get(size.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_include_nested_attributes_and_values_are_padded() {
        let mut batch = Batch::default();
        batch.push(7, ACK, &[1, 2, 3, 4], |list| {
            list.nested(9, |list| list.bytes(5, b"x"));
        });
        assert_eq!(batch.bytes().len(), 16 + 4 + 4 + 8);
        assert_eq!(number(batch.bytes(), 0), Some(32));
        assert_eq!(batch.bytes()[20..24], [12, 0, 9, 0x80]);
        assert_eq!(batch.bytes()[24..32], [5, 0, 5, 0, b'x', 0, 0, 0]);
    }

    #[test]
    fn answers_are_read_up_to_an_invalid_message() {
        let mut bytes = Vec::new();
        for (sequence, error) in [(1_u32, 0_i32), (2, -libc::ENOENT)] {
            bytes.extend(20_u32.to_ne_bytes());
            bytes.extend(ERROR.to_ne_bytes());
            bytes.extend([0; 2]);
            bytes.extend(sequence.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(error.to_ne_bytes());
        }
        bytes.extend([1; 8]);
        let answer = |sequence, error| Answer { sequence, error };
        assert_eq!(answers(&bytes), [answer(1, 0), answer(2, libc::ENOENT)]);
        assert_eq!(answers(&[0; 64]), []);
    }
}
