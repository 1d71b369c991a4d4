//! Error answers: `{"code": ..., "message": ...}` with an HTTP status.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    InvalidRequestBody,
    MissingQuery,
    InvalidFile,
    InvalidFileContent,
    InvalidFileMetadata,
    FileNotFound,
    ContextNotFound,
    RuntimeError,
    NotSupported,
    AlreadyConnected,
    #[serde(other)]
    Unknown,
}

impl Code {
    pub fn status(self) -> u16 {
        match self {
            Self::InvalidRequestBody
            | Self::MissingQuery
            | Self::InvalidFile
            | Self::InvalidFileContent
            | Self::InvalidFileMetadata => 400,
            Self::FileNotFound | Self::ContextNotFound => 404,
            Self::AlreadyConnected => 409,
            Self::NotSupported => 501,
            Self::RuntimeError | Self::Unknown => 500,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub code: Code,
    pub message: String,
}

impl ErrorBody {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}
