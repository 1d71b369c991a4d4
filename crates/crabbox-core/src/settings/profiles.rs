//! `profiles.<name>`: variables that go with every command of a profile. The rest of a profile is for others.

use std::collections::BTreeMap;

use super::core_table::FOREIGN_PROFILE_KEYS;
use super::layers::{FileLayer, Ignored, entries, mapping};
use super::presets::{self, Preset};
use super::source::{Position, Show, Source, printable};
use super::suggest::nearest;
use super::table::Entries;
use super::yaml::{Key, Node, Shape};
use crate::failure::Failure;

/// What a profile adds to a command's environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProfileEnv {
    /// Variables with their values.
    pub env: BTreeMap<String, String>,
    /// More names for the list of variables that are taken from the caller; `NAME*` is a beginning.
    pub allow: Vec<String>,
    pub presets: BTreeMap<String, Preset>,
    /// Whether it wants checks of its own before a command, which only other providers make.
    pub doctor: bool,
}

/// What one file says about a profile.
#[derive(Debug, Default)]
pub(super) struct ProfileLayer {
    pub(super) env: BTreeMap<String, String>,
    pub(super) allow: Option<Allowed>,
    pub(super) presets: BTreeMap<String, Preset>,
    pub(super) doctor: Option<bool>,
}

#[derive(Debug)]
pub(super) struct Allowed {
    pub(super) names: Vec<String>,
    pub(super) at: Position,
}

const KEYS: [&str; 3] = ["env", "envAllow", "presets"];

/// Reads the mapping under `profiles`.
pub(super) fn read(source: &Source<'_>, node: &Node, layer: &mut FileLayer) -> Result<(), Failure> {
    for (name, body) in mapping(source, "profiles", node)? {
        let path = format!("profiles.{}", name.name);
        let mut profile = ProfileLayer::default();
        for (key, value) in mapping(source, &path, body)? {
            let path = format!("{path}.{}", key.name);
            match key.name.as_str() {
                "env" => read_env(source, &path, value, &mut profile)?,
                "envAllow" => profile.add(key, entries(source, &path, value, Entries::Variables)?),
                "presets" => profile.presets = presets::read(source, &path, value)?,
                name if FOREIGN_PROFILE_KEYS.contains(&name) => {
                    if name == "doctor" {
                        profile.doctor = enabled(value);
                    }
                    layer.ignored.push(Ignored::new(source, path, key.at));
                }
                name => {
                    let known = KEYS.into_iter().chain(FOREIGN_PROFILE_KEYS);
                    return Err(source.unknown_key(key.at, &path, nearest(name, known)));
                }
            }
        }
        layer.profiles.insert(name.name.clone(), profile);
    }
    Ok(())
}

/// `enabled` of a mapping that is otherwise none of ours.
fn enabled(node: &Node) -> Option<bool> {
    let Shape::Map(entries) = &node.shape else {
        return None;
    };
    let (_, value) = entries.iter().find(|(key, _)| key.name == "enabled")?;
    match &value.shape {
        Shape::Scalar(text) => Some(text == "true"),
        Shape::Null | Shape::List(_) | Shape::Map(_) => None,
    }
}

/// Variables with their values, and among them the older spelling of `envAllow`.
fn read_env(
    source: &Source<'_>,
    path: &str,
    node: &Node,
    profile: &mut ProfileLayer,
) -> Result<(), Failure> {
    for (key, value) in mapping(source, path, node)? {
        let path = format!("{path}.{}", key.name);
        if key.name == "allow" {
            profile.add(key, entries(source, &path, value, Entries::Variables)?);
            continue;
        }
        if !is_identifier(&key.name) {
            let what = format!("invalid variable name `{}`", printable(&key.name));
            return Err(source.failure(key.at, Show::UpToMark, &what));
        }
        let text = match &value.shape {
            Shape::Scalar(text) if !text.contains('\0') => text.clone(),
            Shape::Null => String::new(),
            Shape::Scalar(_) | Shape::List(_) | Shape::Map(_) => {
                let what = format!("`{}` must be a string", printable(&path));
                return Err(source.failure(key.at, Show::UpToMark, &what));
            }
        };
        profile.env.insert(key.name.clone(), text);
    }
    Ok(())
}

impl ProfileLayer {
    fn add(&mut self, key: &Key, names: Option<Vec<String>>) {
        let Some(names) = names else { return };
        match &mut self.allow {
            Some(allowed) => allowed.names.extend(names),
            None => self.allow = Some(Allowed { names, at: key.at }),
        }
    }
}

impl ProfileEnv {
    /// Puts a stronger file on top: values one by one, the list as a whole.
    pub(super) fn put(&mut self, layer: ProfileLayer) {
        self.env.extend(layer.env);
        self.presets.extend(layer.presets);
        self.doctor = layer.doctor.unwrap_or(self.doctor);
        if let Some(allowed) = layer.allow {
            self.allow = allowed.names;
        }
    }
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
