//! AES-GCM as SSH uses it (RFC 5647, under OpenSSH's names): the length of a packet is not encrypted but authenticated, and
//! the nonce is a counter that both sides keep.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, LessSafeKey, Nonce, UnboundKey};

use crate::Error;

pub(crate) const TAG: usize = 16;

/// More than a packet with the smallest content every microsecond for an hour. Below the 2^32 at which NIST SP 800-38D wants
/// a new key; clients ask for one much earlier.
const MAX_PACKETS: u64 = (1 << 32) - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suite {
    Aes256Gcm,
    Aes128Gcm,
}

impl Suite {
    pub(crate) const ALL: [Self; 2] = [Self::Aes256Gcm, Self::Aes128Gcm];
    pub(crate) const NONCE: usize = 12;

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Aes256Gcm => "aes256-gcm@openssh.com",
            Self::Aes128Gcm => "aes128-gcm@openssh.com",
        }
    }

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.name() == name)
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes256Gcm => &AES_256_GCM,
            Self::Aes128Gcm => &AES_128_GCM,
        }
    }
}

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Cipher {
    key: LessSafeKey,
    /// The part of the nonce that stays.
    fixed: [u8; 4],
    counter: u64,
    packets: u64,
}

impl Cipher {
    /// From material that may be longer than needed.
    pub(crate) fn new(suite: Suite, key: &[u8], nonce: &[u8]) -> Result<Self, Error> {
        let algorithm = suite.algorithm();
        let key = key.get(..algorithm.key_len()).ok_or(Error::Crypto)?;
        let (fixed, rest) = nonce.split_first_chunk().ok_or(Error::Crypto)?;
        let counter = rest.first_chunk().ok_or(Error::Crypto)?;
        Ok(Self {
            key: LessSafeKey::new(UnboundKey::new(algorithm, key)?),
            fixed: *fixed,
            counter: u64::from_be_bytes(*counter),
            packets: 0,
        })
    }

    fn next_nonce(&mut self) -> Result<Nonce, Error> {
        if self.packets >= MAX_PACKETS {
            return Err(Error::Exhausted);
        }
        self.packets += 1;
        let mut nonce = [0; Suite::NONCE];
        let (fixed, counter) = nonce.split_at_mut(self.fixed.len());
        fixed.copy_from_slice(&self.fixed);
        counter.copy_from_slice(&self.counter.to_be_bytes());
        self.counter = self.counter.wrapping_add(1);
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    /// Encrypts in place; the tag comes behind.
    pub(crate) fn seal(&mut self, length: [u8; 4], body: &mut [u8]) -> Result<[u8; TAG], Error> {
        let nonce = self.next_nonce()?;
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(length), body)?;
        tag.as_ref().try_into().map_err(|_| Error::Crypto)
    }

    /// Decrypts in place what ends with its tag.
    pub(crate) fn open<'a>(
        &mut self,
        length: [u8; 4],
        body: &'a mut [u8],
    ) -> Result<&'a [u8], Error> {
        let nonce = self.next_nonce()?;
        let opened = self.key.open_in_place(nonce, Aad::from(length), body);
        opened.map(|plain| &*plain).map_err(|_| Error::Integrity)
    }
}
