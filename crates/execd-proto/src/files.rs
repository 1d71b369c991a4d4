//! Files: metadata, permissions, upload.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    pub path: String,
    #[serde(rename = "type")]
    pub kind: FileKind,
    pub size: u64,
    /// RFC 3339.
    pub modified_at: String,
    pub created_at: String,
    pub owner: String,
    pub group: String,
    pub mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Other,
}

/// Permission bits as the API writes them: a decimal number whose digits are the octal ones (`644`, `1777`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Mode(u32);

impl Mode {
    pub fn from_bits(bits: u32) -> Self {
        Self(bits & 0o7777)
    }

    pub fn bits(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Mode {
    type Error = String;

    fn try_from(written: u32) -> Result<Self, String> {
        u32::from_str_radix(&written.to_string(), 8)
            .ok()
            .filter(|bits| *bits <= 0o7777)
            .map(Self)
            .ok_or_else(|| format!("invalid mode `{written}`: expected octal digits such as 644"))
    }
}

impl From<Mode> for u32 {
    fn from(mode: Mode) -> Self {
        // Four octal digits always fit; the fallback cannot be reached.
        format!("{:o}", mode.0).parse().unwrap_or_default()
    }
}

/// The metadata part of an upload, and the values of `POST /directories` and `/files/permissions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    #[serde(default)]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rename {
    pub src: String,
    pub dest: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    pub old: String,
    pub new: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacementResult {
    #[serde(rename = "replacedCount")]
    pub replaced_count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_digits_in_decimal() {
        assert_eq!(Mode::try_from(644).unwrap().bits(), 0o644);
        assert_eq!(u32::from(Mode::from_bits(0o100_755)), 755);
        assert_eq!(u32::from(Mode::from_bits(0)), 0);
        for invalid in [8, 888, 77_777] {
            assert!(Mode::try_from(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn metadata_of_the_sdk_is_accepted() {
        let text = r#"{"path":"/a","owner":null,"group":null,"mode":755}"#;
        let attributes: Attributes = serde_json::from_str(text).unwrap();
        assert_eq!(attributes.mode.unwrap().bits(), 0o755);
    }
}
