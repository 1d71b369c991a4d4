use aws_lc_rs::rand;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sbx_proto::rfc4251::Writer;

use crate::Error;

/// The name of the algorithm (RFC 8709).
pub(crate) const ED25519: &str = "ssh-ed25519";

/// What the server proves itself with.
#[derive(Debug)]
pub struct HostKey(Ed25519KeyPair);

impl HostKey {
    /// The length of a private key.
    pub const SEED: usize = 32;

    /// A new private key, to be kept.
    pub fn generate() -> Result<[u8; Self::SEED], Error> {
        let mut seed = [0; Self::SEED];
        rand::fill(&mut seed)?;
        Ok(seed)
    }

    pub fn from_seed(seed: &[u8; Self::SEED]) -> Result<Self, Error> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed);
        pair.map(Self).map_err(|_| Error::Crypto)
    }

    /// The public key as a line of a `known_hosts` file has it, after the names.
    pub fn public_line(&self) -> String {
        format!("{ED25519} {}", STANDARD.encode(self.public_blob()))
    }

    pub(crate) fn public_blob(&self) -> Vec<u8> {
        Writer::default()
            .string(ED25519)
            .string(self.0.public_key())
            .finish()
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        Writer::default()
            .string(ED25519)
            .string(self.0.sign(message))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By `ssh-keygen -y` for the same seed (test 1 of RFC 8032).
    #[test]
    fn the_public_line() {
        let seed = [
            0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec,
            0x2c, 0xc4, 0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03,
            0x1c, 0xae, 0x7f, 0x60,
        ];
        let line = HostKey::from_seed(&seed).unwrap().public_line();
        assert_eq!(
            line,
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINdamAGCsQq31Uv+08lkBzoO4XLz2qYjJa8CGmj3B1Ea"
        );
    }
}
