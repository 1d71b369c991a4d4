//! Why a head is refused.

/// Why a request or response head is refused. No further byte can make it acceptable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    #[error("the head is larger than 64 KiB")]
    TooLarge,
    #[error("the head has too many headers")]
    TooManyHeaders,
    #[error("a line ends without a carriage return")]
    BareLf,
    #[error("a carriage return is not followed by a line feed")]
    BareCr,
    #[error("more than one empty line before the request")]
    LeadingEmptyLines,
    #[error("the request line is malformed")]
    BadRequestLine,
    #[error("the method is not a token")]
    BadMethod,
    #[error("the protocol version is not HTTP/1.0 or HTTP/1.1")]
    BadVersion,
    #[error("the request target is malformed or does not fit the method")]
    BadTarget,
    #[error("the request target has a scheme other than `http`")]
    UnsupportedScheme,
    #[error("the authority carries user information")]
    UserInfo,
    #[error("the authority is not a host with an optional port")]
    BadAuthority,
    #[error("CONNECT needs a host with a port, as in `host:443`")]
    NoPort,
    #[error("a header is folded over several lines")]
    ObsFold,
    #[error("a header's name is not a token")]
    BadHeaderName,
    #[error("a header's value has a forbidden byte")]
    BadHeaderValue,
    #[error("the `Host` header is missing")]
    MissingHost,
    #[error("the `Host` header is repeated")]
    DuplicateHost,
    #[error("the `Host` header is not a host with an optional port")]
    BadHost,
    #[error("the `Host` header and the request target name different hosts")]
    HostMismatch,
    #[error("the `Content-Length` header is not a plain number")]
    BadContentLength,
    #[error("the `Content-Length` header is repeated")]
    DuplicateContentLength,
    #[error("the `Transfer-Encoding` header is not understood")]
    BadTransferEncoding,
    #[error("the `Transfer-Encoding` header is repeated")]
    DuplicateTransferEncoding,
    #[error("HTTP/1.0 has no `Transfer-Encoding`")]
    TransferEncodingOnHttp10,
    #[error("both `Content-Length` and `Transfer-Encoding` are given")]
    LengthAndEncoding,
    #[error("the `Connection` header is malformed or names a header that must stay")]
    BadConnection,
    #[error("the `Expect` header is not `100-continue`")]
    BadExpect,
    #[error("the message may not have a body")]
    UnexpectedBody,
    #[error("the status line is malformed")]
    BadStatusLine,
}

impl HeadError {
    /// The status with which a refused request is answered.
    pub fn status(self) -> u16 {
        match self {
            Self::TooLarge | Self::TooManyHeaders => 431,
            Self::BadVersion => 505,
            Self::BadExpect => 417,
            Self::BadTransferEncoding => 501,
            Self::BareLf
            | Self::BareCr
            | Self::LeadingEmptyLines
            | Self::BadRequestLine
            | Self::BadMethod
            | Self::BadTarget
            | Self::UnsupportedScheme
            | Self::UserInfo
            | Self::BadAuthority
            | Self::NoPort
            | Self::ObsFold
            | Self::BadHeaderName
            | Self::BadHeaderValue
            | Self::MissingHost
            | Self::DuplicateHost
            | Self::BadHost
            | Self::HostMismatch
            | Self::BadContentLength
            | Self::DuplicateContentLength
            | Self::DuplicateTransferEncoding
            | Self::TransferEncodingOnHttp10
            | Self::LengthAndEncoding
            | Self::BadConnection
            | Self::UnexpectedBody
            | Self::BadStatusLine => 400,
        }
    }
}
