//! JSON documents that others write for us, in requests and in files.

use serde::de::{DeserializeOwned, Error as _};

/// The object that the bytes are. serde alone would also take an array of the fields in the order in which we happen to
/// declare them.
pub fn object<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    match first {
        Some(b'{') => serde_json::from_slice(bytes),
        _ => Err(serde_json::Error::custom("a JSON object is expected")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Pair {
        a: u8,
        b: u8,
    }

    #[test]
    fn only_objects_are() {
        let pair: Pair = object(b"\n {\"a\": 1, \"b\": 2} ").unwrap();
        assert_eq!((pair.a, pair.b), (1, 2));
        for text in ["", " ", "[1, 2]", "[]", "null", "1", "\"{}\"", "}"] {
            let error = object::<Pair>(text.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), "a JSON object is expected", "{text}");
        }
        for text in ["{", "{} {}", r#"{"a": 1, "b": 2, "c": 3}"#] {
            assert!(object::<Pair>(text.as_bytes()).is_err(), "{text}");
        }
        assert!(object::<BTreeMap<String, u8>>(b"{}").unwrap().is_empty());
    }
}
