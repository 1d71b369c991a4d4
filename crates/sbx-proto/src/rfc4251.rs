//! The data types of SSH (RFC 4251 section 5), which SFTP uses as well. All input is hostile: nothing is read beyond its
//! end, and nothing is allocated for a length that was only announced.

use thiserror::Error;

/// The bytes are not what the message must have there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a message is too short or malformed")]
pub struct Malformed;

/// Takes values from the front of a message.
#[derive(Debug, Clone)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.0.split_first().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    /// Everything but zero is true.
    pub fn boolean(&mut self) -> Result<bool, Malformed> {
        self.byte().map(|byte| byte != 0)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        let bytes = self.0.first_chunk().ok_or(Malformed)?;
        let value = u32::from_be_bytes(*bytes);
        self.take(4)?;
        Ok(value)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        let bytes = self.0.first_chunk().ok_or(Malformed)?;
        let value = u64::from_be_bytes(*bytes);
        self.take(8)?;
        Ok(value)
    }

    /// Any bytes, with their length before them.
    pub fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()?;
        self.take(usize::try_from(length).map_err(|_| Malformed)?)
    }

    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.string()?).map_err(|_| Malformed)
    }

    /// Names with commas between them, in the order of preference.
    pub fn name_list(&mut self) -> Result<Vec<&'a str>, Malformed> {
        let text = self.text()?;
        Ok(text.split(',').filter(|name| !name.is_empty()).collect())
    }
}

/// Builds a message.
#[derive(Debug, Clone, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// A message of this number (its first byte).
    pub fn message(number: u8) -> Self {
        Self(vec![number])
    }

    #[must_use]
    pub fn byte(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    #[must_use]
    pub fn boolean(self, value: bool) -> Self {
        self.byte(u8::from(value))
    }

    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// As they are, without a length.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Messages are far shorter than 4 GiB: see the limits of the callers.
    #[must_use]
    pub fn string(self, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.u32(length).raw(bytes)
    }

    /// A positive number of any size, from its bytes with the highest first.
    #[must_use]
    pub fn mpint(self, bytes: &[u8]) -> Self {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let digits = bytes.get(zeros..).unwrap_or_default();
        // With its highest bit set the number would be a negative one.
        if digits.first().is_some_and(|first| first & 0x80 != 0) {
            return self.string([&[0], digits].concat());
        }
        self.string(digits)
    }

    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let bytes = Writer::message(7)
            .boolean(true)
            .u32(0x0102_0304)
            .u64(5)
            .string("text")
            .string("a,b,,c")
            .finish();
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.byte(), Ok(7));
        assert_eq!(reader.boolean(), Ok(true));
        assert_eq!(reader.u32(), Ok(0x0102_0304));
        assert_eq!(reader.u64(), Ok(5));
        assert_eq!(reader.text(), Ok("text"));
        assert_eq!(reader.name_list(), Ok(vec!["a", "b", "c"]));
        assert!(reader.is_empty());
        assert_eq!(reader.byte(), Err(Malformed));
    }

    #[test]
    fn an_announced_length_is_not_believed() {
        let mut reader = Reader::new(b"\xff\xff\xff\xffabc");
        assert_eq!(reader.string(), Err(Malformed));
        assert_eq!(Reader::new(b"\0\0\0").u32(), Err(Malformed));
        assert_eq!(Reader::new(b"\0\0\0\x01\xff").text(), Err(Malformed));
    }

    /// The examples of RFC 4251.
    #[test]
    fn large_numbers() {
        let mpint = |bytes: &[u8]| Writer::default().mpint(bytes).finish();
        assert_eq!(mpint(&[0, 0]), [0, 0, 0, 0]);
        assert_eq!(mpint(&[0x80]), [0, 0, 0, 2, 0, 0x80]);
        let number = [0x09, 0xa3, 0x78, 0xf9, 0xb2, 0xe3, 0x32, 0xa7];
        assert_eq!(mpint(&number), [&[0, 0, 0, 8][..], &number].concat());
    }
}
