use sbx_proto::rfc4251::Malformed;
use thiserror::Error;

/// Why a connection cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    #[error("the client does not speak SSH 2")]
    Version,
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("a packet has a wrong length")]
    PacketLength,
    #[error("a packet was changed on its way")]
    Integrity,
    #[error("client and server have no {0} in common")]
    NoCommon(&'static str),
    #[error("the key exchange failed")]
    KeyExchange,
    #[error("message {0} is not allowed now")]
    Unexpected(u8),
    #[error("data beyond the window of a channel")]
    Window,
    #[error("a message about an unknown channel")]
    NoChannel,
    #[error("too many packets with one key")]
    Exhausted,
    #[error("no random numbers, or no memory for keys")]
    Crypto,
    /// It has left by itself.
    #[error("the client disconnected")]
    Disconnected,
}

impl From<aws_lc_rs::error::Unspecified> for Error {
    fn from(_: aws_lc_rs::error::Unspecified) -> Self {
        Self::Crypto
    }
}
