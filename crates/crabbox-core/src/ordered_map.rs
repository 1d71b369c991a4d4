//! A JSON object whose fields keep the order in which they came.

use serde::{Serialize, Serializer};

/// For names that are known only at run time; where they are known earlier, a struct does it.
#[derive(Debug, Clone)]
pub struct OrderedMap<T>(Vec<(String, T)>);

impl<T> FromIterator<(String, T)> for OrderedMap<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(fields: I) -> Self {
        Self(fields.into_iter().collect())
    }
}

impl<T: Serialize> Serialize for OrderedMap<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}
