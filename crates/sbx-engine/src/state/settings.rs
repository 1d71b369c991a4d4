//! `settings.json` of the state directory: the few things a user can change about the engine.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::machine::namespace::ModeOverride;

/// How long a sandbox without a command stays up.
pub(crate) const DEFAULT_AUTO_STOP_DELAY: Duration = Duration::from_secs(30);

const DEFAULT_CACHE_MIB: u64 = 10 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// `0` and `"off"` mean never.
    #[serde(rename = "auto_stop_seconds", deserialize_with = "auto_stop")]
    pub auto_stop: Option<Duration>,
    /// How large all build caches together may become.
    pub cache_max_mib: u64,
    /// Use less than what the machine offers.
    pub mode: Option<ModeOverride>,
}

impl Settings {
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache_max_mib.saturating_mul(1 << 20)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            auto_stop: Some(DEFAULT_AUTO_STOP_DELAY),
            cache_max_mib: DEFAULT_CACHE_MIB,
            mode: None,
        }
    }
}

fn auto_stop<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    if value.as_str() == Some("off") {
        return Ok(None);
    }
    let seconds = value
        .as_u64()
        .ok_or_else(|| D::Error::custom("`auto_stop_seconds` is a number of seconds or \"off\""))?;
    Ok((seconds != 0).then(|| Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_stop_values() {
        let parse = |text: &str| {
            serde_json::from_str::<Settings>(text)
                .map(|s| s.auto_stop)
                .map_err(|e| e.to_string())
        };
        assert_eq!(parse("{}"), Ok(Some(Duration::from_secs(30))));
        assert_eq!(
            parse(r#"{"auto_stop_seconds": 5}"#),
            Ok(Some(Duration::from_secs(5)))
        );
        assert_eq!(parse(r#"{"auto_stop_seconds": 0}"#), Ok(None));
        assert_eq!(parse(r#"{"auto_stop_seconds": "off"}"#), Ok(None));
        assert!(parse(r#"{"auto_stop_seconds": -1}"#).is_err());
        assert!(parse(r#"{"auto_stop_second": 1}"#).is_err());
    }
}
