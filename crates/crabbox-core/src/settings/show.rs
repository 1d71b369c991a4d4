//! What `config show` prints: every value, and where it came from. No setting holds a credential.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value as Json;

use super::core_table::{EXCLUDE, PROVIDER};
use super::origin::{Origin, ShownOrigin};
use super::resolved::{Entry, Settings};
use super::source::printable;
use super::table::Kind;
use super::value::Value;
use crate::{OrderedMap, sync};

/// One flat object: top-level settings, one object per section, and `profiles`, `ignored` and `origins`.
#[derive(Debug, Serialize)]
pub struct Shown<'s> {
    #[serde(flatten)]
    settings: OrderedMap<Field>,
    profiles: BTreeMap<&'s str, ShownProfile<'s>>,
    ignored: Vec<ShownIgnored<'s>>,
    origins: OrderedMap<ShownOrigin>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Field {
    Value(Json),
    Section(OrderedMap<Json>),
}

/// Names only: a profile's values may be anything.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownProfile<'s> {
    env: Vec<&'s str>,
    env_allow: &'s [String],
}

#[derive(Debug, Serialize)]
struct ShownIgnored<'s> {
    key: &'s str,
    file: String,
    line: u64,
}

pub fn show_json(settings: &Settings) -> Shown<'_> {
    let profiles = settings.profiles.iter().map(|(name, profile)| {
        let shown = ShownProfile {
            env: profile.env.keys().map(String::as_str).collect(),
            env_allow: &profile.allow,
        };
        (name.as_str(), shown)
    });
    let ignored = settings.ignored.iter().map(|ignored| ShownIgnored {
        key: &ignored.key,
        file: ignored.file.display().to_string(),
        line: ignored.line,
    });
    let origins = settings.entries().iter();
    Shown {
        settings: fields(settings).collect(),
        profiles: profiles.collect(),
        ignored: ignored.collect(),
        origins: origins
            .map(|entry| (entry.setting.path(), origin(entry)))
            .collect(),
    }
}

fn origin(entry: &Entry) -> ShownOrigin {
    let mut shown = entry.origin.shown();
    shown.also = entry.also.iter().map(Origin::shown).collect();
    // The built-in part is a default.
    if entry.setting.path() == EXCLUDE && entry.origin != Origin::Default {
        shown.also.push(Origin::Default.shown());
    }
    shown
}

/// Top-level settings, then the sections.
fn fields(settings: &Settings) -> impl Iterator<Item = (String, Field)> {
    let value = |entry: &Entry| (entry.setting.key.to_owned(), value_json(entry));
    let top = within(settings, None).flat_map(move |entry| {
        let (key, json) = value(entry);
        let mut fields = vec![(key, json)];
        if entry.setting.key == PROVIDER {
            let selected = entry.origin.is_choice();
            fields.push(("providerSelected".to_owned(), selected.into()));
            fields.push(("providerSource".to_owned(), entry.origin.source().into()));
        }
        fields
    });
    let sections = sections(settings).into_iter().map(move |section| {
        let own = within(settings, Some(section)).map(value);
        (section.to_owned(), Field::Section(own.collect()))
    });
    top.map(|(key, json)| (key, Field::Value(json)))
        .chain(sections)
}

fn within<'s>(
    settings: &'s Settings,
    section: Option<&'static str>,
) -> impl Iterator<Item = &'s Entry> {
    let entries = settings.entries().iter();
    entries.filter(move |entry| entry.setting.section == section)
}

/// Each once, in the order of the tables.
fn sections(settings: &Settings) -> Vec<&'static str> {
    let mut sections = Vec::new();
    for entry in settings.entries() {
        if let Some(section) = entry.setting.section
            && !sections.contains(&section)
        {
            sections.push(section);
        }
    }
    sections
}

fn value_json(entry: &Entry) -> Json {
    let value = shown(entry);
    match value {
        Value::Text(text) => text.into(),
        Value::Count(count) => count.into(),
        Value::Bool(yes) => yes.into(),
        Value::Duration(_) => value.to_text().into(),
        Value::List(list) => list.into(),
    }
}

/// The value that holds: without secrets, and with what holds whatever is configured.
fn shown(entry: &Entry) -> Value {
    match (&entry.value, entry.setting.kind) {
        (Value::Text(url), Kind::Url) => Value::Text(without_secrets(url)),
        (Value::List(own), _) if entry.setting.path() == EXCLUDE => {
            Value::List(sync::built_in().chain(own.iter().cloned()).collect())
        }
        (value, _) => value.clone(),
    }
}

/// `config=<path>`, then one line per section.
pub fn show_text(settings: &Settings, config: Option<&Path>) -> String {
    let config = config.map_or_else(|| "-".to_owned(), |path| path.display().to_string());
    let mut lines = vec![format!("config={}", printable(&config))];
    lines.push(line(None, within(settings, None)));
    for section in sections(settings) {
        lines.push(line(Some(section), within(settings, Some(section))));
    }
    for ignored in &settings.ignored {
        let (key, file) = (&ignored.key, ignored.file.display().to_string());
        lines.push(format!(
            "ignored key={} file={} line={}",
            printable(key),
            printable(&file),
            ignored.line
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn line<'a>(section: Option<&str>, entries: impl Iterator<Item = &'a Entry>) -> String {
    let mut words: Vec<String> = section.map(snake_case).into_iter().collect();
    for entry in entries {
        let setting = entry.setting;
        let label = setting
            .label
            .map_or_else(|| snake_case(setting.key), str::to_owned);
        let text = match shown(entry).to_text().as_str() {
            "" => "-".to_owned(),
            text => printable(text),
        };
        words.push(format!("{label}={text}"));
        if section.is_none() && setting.key == PROVIDER {
            words.push(format!("provider_source={}", entry.origin.source()));
        }
    }
    words.join(" ")
}

/// `gitSeed` is `git_seed`, and `platformOS` is `platform_os`.
fn snake_case(key: &str) -> String {
    let mut snake = String::new();
    let mut after_lower = false;
    for c in key.chars() {
        if c.is_ascii_uppercase() && after_lower {
            snake.push('_');
        }
        after_lower = !c.is_ascii_uppercase();
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

/// A URL without user, password, query and fragment. What is no URL loses them all the same.
fn without_secrets(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let url = url.get(..end).unwrap_or_default();
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    let (authority, path) = match rest.find(['/', '\\']) {
        Some(at) => rest.split_at_checked(at).unwrap_or((rest, "")),
        None => (rest, ""),
    };
    // A password with a slash that is not escaped has the `@` behind it.
    let (authority, path) = match path.rsplit_once('@') {
        Some((_, path)) => ("", path),
        None => (authority, path),
    };
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    format!("{scheme}{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses() {
        assert_eq!(snake_case("gitSeed"), "git_seed");
        assert_eq!(snake_case("platformOS"), "platform_os");
        assert_eq!(snake_case("madeUp"), "made_up");
        for (url, shown) in [
            ("", ""),
            ("https://host/v1", "https://host/v1"),
            ("https://u:p@host:8080/v1?key=s#f", "https://host:8080/v1"),
            ("u:p@host/x", "host/x"),
            ("https://u:p/w@host/x", "https://host/x"),
            ("https://host?token=s", "https://host"),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
    }
}
