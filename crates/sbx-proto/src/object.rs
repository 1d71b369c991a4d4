//! Structs from JSON objects and nothing else, in requests and in files that others write.
//!
//! What serde derives also takes an array for a struct, field after field in the order in which we happen to declare
//! them: `[]` would be a file whose every setting is the default, which is to say that nothing is denied.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};

/// The object that the bytes are.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(bytes).map(|Object(value)| value)
}

/// For a field, as `deserialize_with`.
pub fn object<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_map(OfMap(PhantomData))
}

/// For a field with a list, as `deserialize_with`.
pub fn objects<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let objects = Vec::<Object<T>>::deserialize(deserializer)?;
    Ok(objects.into_iter().map(|Object(value)| value).collect())
}

struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        object(deserializer).map(Self)
    }
}

struct OfMap<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OfMap<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Pair {
        a: u8,
        b: u8,
    }

    #[derive(Debug, serde::Deserialize)]
    struct Nested {
        #[serde(deserialize_with = "object")]
        one: Pair,
        #[serde(deserialize_with = "objects")]
        many: Vec<Pair>,
    }

    #[test]
    fn only_objects_are() {
        let pair: Pair = from_slice(b"\n {\"a\": 1, \"b\": 2} ").unwrap();
        assert_eq!((pair.a, pair.b), (1, 2));
        for text in ["[1, 2]", "[]", "null", "1", "\"{}\""] {
            let error = from_slice::<Pair>(text.as_bytes()).unwrap_err();
            assert!(
                error.to_string().contains("expected an object"),
                "{text}: {error}"
            );
        }
        let others = ["", " ", "}", "{", "{} {}", r#"{"a": 1, "b": 2, "c": 3}"#];
        for text in others {
            assert!(from_slice::<Pair>(text.as_bytes()).is_err(), "{text}");
        }
        assert!(
            from_slice::<BTreeMap<String, u8>>(b"{}")
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn fields_are_objects_too() {
        let parse = |text: &str| from_slice::<Nested>(text.as_bytes());
        let nested = parse(r#"{"one": {"a": 1, "b": 2}, "many": [{"a": 3, "b": 4}]}"#).unwrap();
        assert_eq!((nested.one.a, nested.many[0].b), (1, 4));
        assert!(parse(r#"{"one": [1, 2], "many": []}"#).is_err());
        assert!(parse(r#"{"one": {"a": 1, "b": 2}, "many": [[3, 4]]}"#).is_err());
    }
}
