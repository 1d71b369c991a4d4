//! `presets.<name>`: commands with a name and with places for values, at the top level and in profiles.

use std::collections::BTreeMap;

use super::core_table::FOREIGN_PRESET_KEYS;
use super::layers::mapping;
use super::source::{Show, Source, printable};
use super::suggest::nearest;
use super::yaml::{Node, Shape};
use crate::command::is_identifier;
use crate::failure::Failure;

/// A command that `run --preset` runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preset {
    /// With `{{name}}` where values go.
    pub command: String,
    /// Whether the command is a script.
    pub shell: bool,
    pub env: BTreeMap<String, String>,
    pub preflight: bool,
    /// Keys that mean something to other providers only.
    pub unsupported: Vec<String>,
}

const KEYS: [&str; 4] = ["command", "shell", "env", "preflight"];

/// Reads the mapping under `path`, which is `presets` or that of a profile.
pub(super) fn read(
    source: &Source<'_>,
    path: &str,
    node: &Node,
) -> Result<BTreeMap<String, Preset>, Failure> {
    let mut presets = BTreeMap::new();
    for (name, body) in mapping(source, path, node)? {
        let path = format!("{path}.{}", name.name);
        let mut preset = Preset::default();
        for (key, value) in mapping(source, &path, body)? {
            let path = format!("{path}.{}", key.name);
            match key.name.as_str() {
                "command" => preset.command = text(source, &path, value)?,
                "shell" => preset.shell = boolean(source, &path, value)?,
                "preflight" => preset.preflight = boolean(source, &path, value)?,
                "env" => preset.env = variables(source, &path, value)?,
                key if FOREIGN_PRESET_KEYS.contains(&key) => {
                    preset
                        .unsupported
                        .extend(asks(value).then(|| key.to_owned()));
                }
                name => {
                    let known = KEYS.into_iter().chain(FOREIGN_PRESET_KEYS);
                    return Err(source.unknown_key(key.at, &path, nearest(name, known)));
                }
            }
        }
        if preset.command.trim().is_empty() {
            let what = format!("`{}` needs a `command`", printable(&path));
            return Err(source.failure(name.at, Show::Line, &what));
        }
        presets.insert(name.name.clone(), preset);
    }
    Ok(presets)
}

/// Whether a value that we cannot honour asks for anything.
pub(super) fn asks(node: &Node) -> bool {
    match &node.shape {
        Shape::Null => false,
        Shape::Scalar(text) => !matches!(text.as_str(), "" | "false" | "0"),
        Shape::List(items) => !items.is_empty(),
        Shape::Map(entries) => entries.iter().any(|(_, value)| asks(value)),
    }
}

pub(super) fn text(source: &Source<'_>, path: &str, node: &Node) -> Result<String, Failure> {
    match &node.shape {
        Shape::Scalar(text) if !text.contains('\0') => Ok(text.clone()),
        Shape::Null => Ok(String::new()),
        Shape::Scalar(_) | Shape::List(_) | Shape::Map(_) => {
            let what = format!("`{}` must be a string", printable(path));
            Err(source.failure(node.at, Show::UpToMark, &what))
        }
    }
}

pub(super) fn boolean(source: &Source<'_>, path: &str, node: &Node) -> Result<bool, Failure> {
    match &node.shape {
        Shape::Null => Ok(false),
        Shape::Scalar(text) if text == "true" => Ok(true),
        Shape::Scalar(text) if text == "false" => Ok(false),
        Shape::Scalar(_) | Shape::List(_) | Shape::Map(_) => {
            let what = format!("`{}` must be true or false", printable(path));
            Err(source.failure(node.at, Show::Line, &what))
        }
    }
}

fn variables(
    source: &Source<'_>,
    path: &str,
    node: &Node,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut variables = BTreeMap::new();
    for (key, value) in mapping(source, path, node)? {
        if !is_identifier(&key.name) {
            let what = format!("invalid variable name `{}`", printable(&key.name));
            return Err(source.failure(key.at, Show::UpToMark, &what));
        }
        let value = text(source, &format!("{path}.{}", key.name), value)?;
        variables.insert(key.name.clone(), value);
    }
    Ok(variables)
}
