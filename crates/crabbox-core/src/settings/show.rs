//! What `config show` prints: every value, and where it came from. No setting holds a credential.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::core_table::PROVIDER;
use super::origin::Origin;
use super::resolved::{Entry, Settings};
use super::source::printable;
use super::table::Kind;
use super::value::Value;

/// One flat object: top-level settings, one object per section, and `profiles`, `ignored` and `origins`.
pub fn show_json(settings: &Settings) -> Json {
    let mut object = Map::new();
    let mut origins = Map::new();
    for entry in settings.entries() {
        let setting = entry.setting;
        match setting.section {
            Some(section) => {
                let section = object.entry(section).or_insert_with(|| json!({}));
                if let Json::Object(section) = section {
                    section.insert(setting.key.to_owned(), value_json(entry));
                }
            }
            None => {
                object.insert(setting.key.to_owned(), value_json(entry));
                if setting.key == PROVIDER {
                    let selected = entry.origin != Origin::Default;
                    object.insert("providerSelected".to_owned(), selected.into());
                    object.insert("providerSource".to_owned(), entry.origin.source().into());
                }
            }
        }
        origins.insert(setting.path(), entry.origin.to_json());
    }
    object.insert("profiles".to_owned(), profiles_json(settings));
    let ignored = settings.ignored.iter().map(|ignored| {
        json!({
            "key": ignored.key,
            "file": ignored.file.display().to_string(),
            "line": ignored.line,
        })
    });
    object.insert("ignored".to_owned(), ignored.collect());
    object.insert("origins".to_owned(), Json::Object(origins));
    Json::Object(object)
}

/// Names only: a profile's values may be anything.
fn profiles_json(settings: &Settings) -> Json {
    let profiles = settings.profiles.iter().map(|(name, profile)| {
        let env: Vec<&str> = profile.env.keys().map(String::as_str).collect();
        (
            name.clone(),
            json!({ "env": env, "envAllow": profile.allow }),
        )
    });
    Json::Object(profiles.collect())
}

fn value_json(entry: &Entry) -> Json {
    match (&entry.value, entry.setting.kind) {
        (Value::Text(url), Kind::Url) => without_secrets(url).into(),
        (Value::Text(text), _) => text.as_str().into(),
        (Value::Count(count), _) => (*count).into(),
        (Value::Bool(yes), _) => (*yes).into(),
        (Value::Duration(_), _) => entry.value.to_text().into(),
        (Value::List(list), _) => list.as_slice().into(),
    }
}

/// `config=<path>`, then one line per section.
pub fn show_text(settings: &Settings, config: &Path) -> String {
    let mut lines = vec![format!(
        "config={}",
        printable(&config.display().to_string())
    )];
    let core = settings.entries().iter();
    lines.push(line(
        None,
        core.filter(|entry| entry.setting.section.is_none()),
    ));
    let mut sections: Vec<&str> = Vec::new();
    for entry in settings.entries() {
        if let Some(section) = entry.setting.section
            && !sections.contains(&section)
        {
            sections.push(section);
        }
    }
    for section in sections {
        let entries = settings.entries().iter();
        let own = entries.filter(|entry| entry.setting.section == Some(section));
        lines.push(line(Some(section), own));
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
        let text = match (&entry.value, setting.kind) {
            (Value::Text(url), Kind::Url) => without_secrets(url),
            (value, _) => value.to_text(),
        };
        let text = match text.as_str() {
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
