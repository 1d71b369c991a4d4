//! From the bytes of a configuration file to a tree in which every key and value knows its place.
//!
//! The only file that knows which YAML library is used. Scalars stay texts, exactly as they are written: what they
//! mean depends on the setting (`template: 1.10` is a name, and `on` is a yes only where a yes is wanted).

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{
    Location, MergeKeyPolicy, MessageFormatter, Options, Spanned, UserMessageFormatter,
};

use super::source::{Position, Show, Source, SourceFile, printable};
use crate::failure::{Code, Failure};

/// Far above any real file, and cheap to parse.
const MAX_BYTES: usize = 1024 * 1024;
const MAX_DEPTH: usize = 32;
const MAX_NODES: usize = 50_000;
const MAX_ALIASES: usize = 100;
const MAX_REPLAYED: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) at: Position,
    pub(super) shape: Shape,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shape {
    Null,
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) at: Position,
    pub(super) name: String,
}

/// A parsed file.
#[derive(Debug)]
pub(super) struct Document<'a> {
    pub(super) source: Source<'a>,
    pub(super) root: Node,
}

/// Reads one document. An empty file is a null.
pub(super) fn parse(file: &SourceFile) -> Result<Document<'_>, Failure> {
    let refuse = |what: String| {
        let message = format!("parse config {}: {what}", file.path.display());
        Err(Failure::new(Code::Config, message))
    };
    if file.bytes.len() > MAX_BYTES {
        return refuse(format!("larger than {} KiB", MAX_BYTES / 1024));
    }
    let text = match std::str::from_utf8(&file.bytes) {
        Ok(text) => text,
        Err(error) => {
            let before = file.bytes.iter().take(error.valid_up_to());
            let line = before.filter(|byte| **byte == b'\n').count() + 1;
            return refuse(format!("line {line}: not UTF-8"));
        }
    };
    let source = Source {
        path: &file.path,
        text,
    };
    match serde_saphyr::from_str_with_options::<Spanned<Raw<'_>>>(text, options()) {
        Ok(raw) => Ok(Document {
            source,
            root: node(raw, text),
        }),
        Err(error) => {
            let error = error.without_snippet();
            let what = printable(&UserMessageFormatter.format_message(error));
            match error.location() {
                Some(location) => Err(source.failure(place(location), Show::Line, &what)),
                None => refuse(what),
            }
        }
    }
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 4 * MAX_NODES,
            max_aliases: MAX_ALIASES,
            max_anchors: MAX_ALIASES,
            max_merge_keys: MAX_ALIASES,
            max_total_scalar_bytes: 2 * MAX_BYTES,
            max_documents: 2,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED,
            max_replay_stack_depth: MAX_DEPTH,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Merge,
        strict_booleans: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

/// What the library hands over. Numbers and booleans come interpreted; their text is taken from the file again.
enum Raw<'a> {
    Null,
    Text(std::borrow::Cow<'a, str>),
    Interpreted,
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<String>, Spanned<Self>)>),
}

impl<'de> Deserialize<'de> for Raw<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping, a list or a value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Raw::Interpreted)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Raw::Interpreted)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Raw::Interpreted)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Raw::Interpreted)
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Raw::Text(text.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Raw::Text(text.to_owned().into()))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(Raw::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Raw::Map(map))
    }
}

fn node(raw: Spanned<Raw<'_>>, text: &str) -> Node {
    let shape = match raw.value {
        Raw::Null => Shape::Null,
        Raw::Text(scalar) => Shape::Scalar(scalar.into_owned()),
        Raw::Interpreted => Shape::Scalar(written(raw.defined, text).to_owned()),
        Raw::List(items) => Shape::List(items.into_iter().map(|item| node(item, text)).collect()),
        Raw::Map(entries) => Shape::Map(
            entries
                .into_iter()
                .map(|(key, value)| {
                    let key = Key {
                        at: place(key.referenced),
                        name: key.value,
                    };
                    (key, node(value, text))
                })
                .collect(),
        ),
    };
    Node {
        at: place(raw.referenced),
        shape,
    }
}

/// A plain scalar as it stands in the file.
fn written(location: Location, text: &str) -> &str {
    let span = location.span();
    let range = || {
        let start = usize::try_from(span.byte_offset()?).ok()?;
        let len = usize::try_from(span.byte_len()?).ok()?;
        text.get(start..start.checked_add(len)?)
    };
    range().unwrap_or_default().trim()
}

fn place(location: Location) -> Position {
    Position {
        line: location.line(),
        column: location.column(),
        width: location.span().len(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(bytes: impl Into<Vec<u8>>) -> SourceFile {
        SourceFile {
            path: "/r/c.yaml".into(),
            canonical: "/r/c.yaml".into(),
            bytes: bytes.into(),
        }
    }

    fn tree(text: &str) -> String {
        brief(&parse(&file(text)).unwrap().root)
    }

    fn error(text: impl Into<Vec<u8>>) -> String {
        let failure = parse(&file(text)).unwrap_err();
        assert_eq!(failure.code, Code::Config);
        match failure.snippet {
            Some(snippet) => format!("{}\n{snippet}", failure.message),
            None => failure.message,
        }
    }

    /// Keys and list entries with their places, scalars quoted.
    fn brief(node: &Node) -> String {
        let at = |at: &Position| format!("{}:{}", at.line, at.column);
        match &node.shape {
            Shape::Null => "null".to_owned(),
            Shape::Scalar(text) => format!("{text:?}@{}", at(&node.at)),
            Shape::List(items) => {
                let items: Vec<_> = items.iter().map(brief).collect();
                format!("[{}]", items.join(", "))
            }
            Shape::Map(entries) => {
                let entries: Vec<_> = (entries.iter())
                    .map(|(key, node)| format!("{}@{}={}", key.name, at(&key.at), brief(node)))
                    .collect();
                format!("{{{}}}", entries.join(", "))
            }
        }
    }

    #[test]
    fn scalars_stay_as_they_are_written() {
        assert_eq!(
            tree(
                "a: 1.10\nb: yes\nc: True\nd: .nan\ne: 1e999\nf: 08\ng: ~\nh: \"true\"\ni: ''\nj:\n"
            ),
            r#"{a@1:1="1.10"@1:4, b@2:1="yes"@2:4, c@3:1="True"@3:4, d@4:1=".nan"@4:4, e@5:1="1e999"@5:4, f@6:1="08"@6:4, g@7:1=null, h@8:1="true"@8:4, i@9:1=""@9:4, j@10:1=null}"#
        );
        assert_eq!(
            tree("\u{feff}é: {ö: 1.50}\n"),
            r#"{é@1:1={ö@1:5="1.50"@1:8}}"#
        );
        assert_eq!(tree(""), "null");
        assert_eq!(tree("# nothing\n"), "null");
    }

    #[test]
    fn aliases_and_merges_are_at_the_place_that_uses_them() {
        assert_eq!(
            tree("x: &a [1, 2.50]\ny: *a\n"),
            r#"{x@1:1=["1"@1:8, "2.50"@1:11], y@2:1=["1"@2:4, "2.50"@2:4]}"#
        );
        assert_eq!(
            tree("b: &b {k: 1, l: 2}\nc:\n  <<: *b\n  k: 3\n"),
            r#"{b@1:1={k@1:8="1"@1:11, l@1:14="2"@1:17}, c@2:1={k@4:3="3"@4:6, l@3:7="2"@3:7}}"#
        );
    }

    #[test]
    fn errors_show_the_place() {
        assert_eq!(
            error("a: 1\n\"a\": 2\n"),
            "parse config /r/c.yaml: line 2 column 1: duplicate mapping key: a not allowed here\n  |\n2 | \"a\": 2\n  | ^^^"
        );
        assert_eq!(
            error("a: ["),
            "parse config /r/c.yaml: line 1 column 4: unclosed bracket '['\n  |\n1 | a: [\n  |    ^"
        );
        assert_eq!(
            error(b"a: 1\nb: \xff\n"),
            "parse config /r/c.yaml: line 2: not UTF-8"
        );
        for text in [
            "? [a]\n: b\n",
            "~: b",
            "a: !foo b",
            "a: 1\n---\nb: 2\n",
            "a: *b",
            "a: b: c",
        ] {
            assert!(
                error(text).starts_with("parse config /r/c.yaml: line "),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_too_much_is_refused() {
        assert_eq!(
            error(" ".repeat(MAX_BYTES + 1)),
            "parse config /r/c.yaml: larger than 1024 KiB"
        );
        error("[".repeat(500));
        error("- ".repeat(500));
        error("- a\n".repeat(MAX_NODES + 1));
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..8 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        error(bomb);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&file(bytes));
        }

        #[test]
        fn no_text_panics(text in "[-a-c:{}\\[\\]&*!|>'\"#%@?, \n\t~<0-9.\u{e9}\u{feff}]{0,60}") {
            let _ = parse(&file(text));
        }
    }
}
