//! One file against the tables: which settings it sets, where, and which keys belong to other programs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::core_table::is_foreign_key;
use super::jobs::{self, JobSpec};
use super::presets::{self, Preset};
use super::profiles::{self, ProfileLayer};
use super::source::{Position, Show, Source, printable};
use super::suggest::nearest;
use super::table::{Entries, Kind, ProviderTable, Setting, Trust};
use super::value::{self, Value};
use super::value_location::ValueLocation;
use super::yaml::{Document, Key, Node, Shape};
use crate::failure::Failure;

/// Every row that there is.
#[derive(Debug)]
pub(super) struct Catalogue<'a> {
    pub(super) core: &'static [Setting],
    pub(super) providers: &'a [ProviderTable],
    /// Sections that are known but have no table.
    pub(super) foreign_sections: &'a [&'a str],
}

/// A key that is known and has no effect here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    pub key: String,
    pub file: PathBuf,
    pub line: u64,
}

/// What one file says.
#[derive(Debug, Default)]
pub(super) struct FileLayer {
    pub(super) assigned: Vec<Assigned>,
    pub(super) profiles: BTreeMap<String, ProfileLayer>,
    pub(super) presets: BTreeMap<String, Preset>,
    pub(super) jobs: BTreeMap<String, JobSpec>,
    pub(super) ignored: Vec<Ignored>,
}

#[derive(Debug)]
pub(super) struct Assigned {
    pub(super) setting: &'static Setting,
    pub(super) value: Value,
    pub(super) at: Position,
    pub(super) location: ValueLocation,
}

const PROFILES: &str = "profiles";
const PRESETS: &str = "presets";
const JOBS: &str = "jobs";

impl<'a> Catalogue<'a> {
    pub(super) fn settings(&self) -> impl Iterator<Item = &'static Setting> + use<'a> {
        let providers = self.providers.iter().flat_map(|table| table.settings);
        self.core.iter().chain(providers)
    }

    /// Everything that `document` message, or the first thing in it that is wrong.
    pub(super) fn read(&self, document: &Document<'_>) -> Result<FileLayer, Failure> {
        let mut layer = FileLayer::default();
        let Document { source, root } = document;
        for (key, node) in mapping(source, "", root)? {
            let path = key.name.as_str();
            if path == PROFILES {
                profiles::read(source, node, &mut layer)?;
            } else if path == PRESETS {
                layer.presets = presets::read(source, PRESETS, node)?;
            } else if path == JOBS {
                layer.jobs = jobs::read(self, source, node)?;
            } else if path.contains('.') {
                // A dotted path is not a valid key, although the tables would find it.
                return Err(source.unknown_key(key.at, path, None));
            } else if self.find(path).is_some() || !self.is_section(path) {
                self.read_key(source, path, key, node, &mut layer)?;
            } else {
                for (inner, node) in mapping(source, path, node)? {
                    let path = format!("{path}.{}", inner.name);
                    self.read_key(source, &path, inner, node, &mut layer)?;
                }
            }
        }
        Ok(layer)
    }

    fn read_key(
        &self,
        source: &Source<'_>,
        path: &str,
        key: &Key,
        node: &Node,
        layer: &mut FileLayer,
    ) -> Result<(), Failure> {
        let foreign = is_foreign_key(path) || self.foreign_sections.contains(&path);
        // Other programs have a section where we have a value.
        let found = self.find(path);
        let found = found.filter(|_| !(foreign && matches!(node.shape, Shape::Map(_))));
        let Some(setting) = found else {
            if foreign {
                layer
                    .ignored
                    .push(Ignored::new(source, path.to_owned(), key.at));
                return Ok(());
            }
            return Err(source.unknown_key(key.at, path, self.meant(path)));
        };
        refuse_in_files(source, setting, path, key)?;
        if let Some(other) = layer.assigned.iter().find(|other| other.setting == setting) {
            let what = format!("`{path}` is already set on line {}", other.at.line);
            return Err(source.failure(key.at, Show::Line, &what));
        }
        if let Some(value) = setting_value(source, setting, path, node)? {
            // A list may be spread over many lines: its key stands for it.
            let at = match node.shape {
                Shape::List(_) => key.at,
                Shape::Null | Shape::Scalar(_) | Shape::Map(_) => node.at,
            };
            layer.assigned.push(Assigned {
                setting,
                value,
                at: key.at,
                location: ValueLocation::new(source, at),
            });
        }
        Ok(())
    }

    fn find(&self, path: &str) -> Option<&'static Setting> {
        self.settings().find(|setting| setting.answers_to(path))
    }

    /// Whether `name` is a mapping that rows stand in.
    fn is_section(&self, name: &str) -> bool {
        self.providers.iter().any(|table| table.section == name)
            || self.settings().any(|setting| {
                setting.section == Some(name)
                    || (setting.aliases.iter()).any(|alias| {
                        alias
                            .split_once('.')
                            .is_some_and(|(first, _)| first == name)
                    })
            })
    }

    /// The known key that the last part of `path` is most likely a slip of, among its neighbours.
    fn meant(&self, path: &str) -> Option<&'static str> {
        let (section, word) = match path.split_once('.') {
            Some((section, word)) => (Some(section), word),
            None => (None, path),
        };
        let here = self.settings().filter(|setting| setting.section == section);
        let mut known: Vec<&'static str> = here.map(|setting| setting.key).collect();
        if section.is_none() {
            known.extend([PROFILES, PRESETS, JOBS]);
            known.extend(self.settings().filter_map(|setting| setting.section));
        }
        nearest(word, known)
    }
}

fn refuse_in_files(
    source: &Source<'_>,
    setting: &Setting,
    path: &str,
    key: &Key,
) -> Result<(), Failure> {
    let instead = match setting.trust {
        Trust::OutsideFiles | Trust::FlagOnly => {
            let flag = setting.flag.map(|flag| format!("--{flag}"));
            flag.or_else(|| setting.env.first().map(|name| (*name).to_owned()))
        }
        Trust::Anyone
        | Trust::User
        | Trust::NeverRepository
        | Trust::ShorterThanUser
        | Trust::WithinUser
        | Trust::ConfiguredProvider
        | Trust::OwnProfile => return Ok(()),
    };
    let mut what = format!("`{path}` cannot be set in a file");
    if let Some(instead) = instead {
        what.push_str(&format!("; use {instead}"));
    }
    Err(source.failure(key.at, Show::UpToMark, &what))
}

/// The value of a row; `None` when the file leaves it to weaker sources.
fn setting_value(
    source: &Source<'_>,
    setting: &Setting,
    path: &str,
    node: &Node,
) -> Result<Option<Value>, Failure> {
    if let Kind::List(_) = setting.kind {
        return Ok(entries(source, path, node, setting.entries)?.map(Value::List));
    }
    let text = match &node.shape {
        Shape::Null => return Ok(None),
        Shape::Scalar(text) => text,
        Shape::List(_) | Shape::Map(_) => {
            let what = format!("`{path}` must be a single value");
            return Err(source.failure(node.at, Show::Line, &what));
        }
    };
    value::scalar(setting.kind, text).map_err(|problem| {
        source.failure(node.at, Show::Line, &problem.about(&format!("`{path}`")))
    })
}

/// The entries of a list of texts.
pub(super) fn entries(
    source: &Source<'_>,
    path: &str,
    node: &Node,
    entries: Entries,
) -> Result<Option<Vec<String>>, Failure> {
    let path = printable(path);
    let items = match &node.shape {
        Shape::Null => return Ok(None),
        Shape::List(items) => items,
        Shape::Scalar(_) | Shape::Map(_) => {
            let what = format!("`{path}` must be a list");
            return Err(source.failure(node.at, Show::Line, &what));
        }
    };
    let entry = |item: &Node| {
        let read = match &item.shape {
            Shape::Scalar(text) => value::entry(entries, text),
            Shape::Null => value::entry(entries, ""),
            Shape::List(_) | Shape::Map(_) => {
                Err(value::Problem::new("must be a list of single values"))
            }
        };
        read.map_err(|problem| {
            source.failure(item.at, Show::Line, &problem.about(&format!("`{path}`")))
        })
    };
    items.iter().map(entry).collect::<Result<_, _>>().map(Some)
}

/// The entries of a mapping. Nothing at all is an empty one.
pub(super) fn mapping<'n>(
    source: &Source<'_>,
    path: &str,
    node: &'n Node,
) -> Result<&'n [(Key, Node)], Failure> {
    match &node.shape {
        Shape::Map(entries) => Ok(entries),
        Shape::Null => Ok(&[]),
        Shape::Scalar(_) | Shape::List(_) => {
            let what = match path {
                "" => "the file must be a mapping of settings".to_owned(),
                path => format!("`{}` must be a mapping", printable(path)),
            };
            Err(source.failure(node.at, Show::Line, &what))
        }
    }
}

impl Ignored {
    pub(super) fn new(source: &Source<'_>, key: String, at: Position) -> Self {
        Self {
            key,
            file: source.path.to_owned(),
            line: at.line,
        }
    }
}
