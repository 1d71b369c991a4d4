//! Files and directories.
//!
//! A client of this API may run commands as well, so paths are not confined: `/files` can do what `/command` can.

mod info;
mod search;
mod transfer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use axum::Json;
use axum::extract::RawQuery;
use axum::response::IntoResponse;
use execd_proto::error::Code;
use execd_proto::files::{Attributes, FileInfo, Rename, Replacement, ReplacementResult};

pub(crate) use search::search;
pub(crate) use transfer::{download, upload};

use crate::extract;
use crate::reply::{Failure, Reply};

/// Expands `~`, `$NAME` and `${NAME}` with the daemon's environment, as the official daemon does.
pub(crate) fn expand(text: &str) -> PathBuf {
    let home = || lookup("HOME");
    let text = match text.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{}{rest}", home()),
        Some(_) | None => text.to_owned(),
    };
    let mut path = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('$') {
        path.push_str(before);
        let (name, remainder) = variable(after);
        match name {
            Some(name) => path.push_str(&lookup(name)),
            None => path.push('$'),
        }
        rest = remainder;
    }
    path.push_str(rest);
    PathBuf::from(path)
}

#[expect(
    clippy::disallowed_methods,
    reason = "paths of the API are defined in terms of this process's environment"
)]
fn lookup(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn variable(text: &str) -> (Option<&str>, &str) {
    if let Some((name, rest)) = text.strip_prefix('{').and_then(|text| text.split_once('}')) {
        return (Some(name), rest);
    }
    let end = text
        .find(|next: char| !next.is_ascii_alphanumeric() && next != '_')
        .unwrap_or(text.len());
    match text.split_at(end) {
        ("", _) => (None, text),
        (name, rest) => (Some(name), rest),
    }
}

/// All values of a query parameter that may be repeated.
pub(crate) fn query_values(query: Option<&str>, name: &str) -> Vec<String> {
    let pairs = query.unwrap_or_default().split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .filter(|(key, _)| *key == name)
        .map(|(_, value)| percent_decode(value))
        .collect()
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = (*first == b'%')
            .then(|| after.get(..2))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = after;
        match (hex, first) {
            (Some(byte), _) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            (None, b'+') => bytes.push(b' '),
            (None, other) => bytes.push(*other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn required(query: Option<&str>, name: &str) -> Reply<Vec<String>> {
    let values = query_values(query, name);
    if values.is_empty() {
        let message = format!("query parameter {name} is required");
        return Err(Failure::new(Code::MissingQuery, message));
    }
    Ok(values)
}

fn first(query: Option<&str>, name: &str) -> Reply<String> {
    Ok(required(query, name)?.swap_remove(0))
}

/// Work that may take long, away from the thread that serves everything.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Reply<T> + Send + 'static) -> Reply<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Failure::new(Code::RuntimeError, error.to_string()))?
}

pub(crate) async fn describe(RawQuery(query): RawQuery) -> Reply<Json<BTreeMap<String, FileInfo>>> {
    let mut infos = BTreeMap::new();
    for text in required(query.as_deref(), "path")? {
        let path = expand(&text);
        let info = info::read(&path).map_err(|error| Failure::file(&path, &error))?;
        infos.insert(text, info);
    }
    Ok(Json(infos))
}

pub(crate) async fn list(RawQuery(query): RawQuery) -> Reply<Json<Vec<FileInfo>>> {
    let query = query.as_deref();
    let path = expand(&first(query, "path")?);
    let depth = query_values(query, "depth").pop();
    let depth = depth.map_or(Ok(1), |text| text.parse::<usize>());
    let depth = depth.map_err(|_| Failure::new(Code::MissingQuery, "invalid depth"))?;
    blocking(move || list_to(path, depth)).await.map(Json)
}

fn list_to(path: PathBuf, depth: usize) -> Reply<Vec<FileInfo>> {
    let mut infos = Vec::new();
    let mut directories = vec![(path, depth)];
    while let Some((directory, depth)) = directories.pop() {
        let failed = |error: &std::io::Error| Failure::file(&directory, error);
        for entry in std::fs::read_dir(&directory).map_err(|error| failed(&error))? {
            let path = entry.map_err(|error| failed(&error))?.path();
            // An entry that vanished since the directory was read is not in it any more.
            let Ok(info) = info::read(&path) else {
                continue;
            };
            if depth > 1 && info.kind == execd_proto::files::FileKind::Directory {
                directories.push((path, depth - 1));
            }
            infos.push(info);
        }
    }
    infos.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(infos)
}

pub(crate) async fn remove(RawQuery(query): RawQuery) -> Reply {
    for text in required(query.as_deref(), "path")? {
        let path = expand(&text);
        std::fs::remove_file(&path).map_err(|error| Failure::file(&path, &error))?;
    }
    Ok(().into_response())
}

pub(crate) async fn remove_directories(RawQuery(query): RawQuery) -> Reply {
    let paths = required(query.as_deref(), "path")?;
    let remove = move || {
        for path in paths.iter().map(|text| expand(text)) {
            match std::fs::remove_dir_all(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Failure::file(&path, &error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    };
    blocking(remove).await.map(IntoResponse::into_response)
}

pub(crate) async fn make_directories(
    extract::Json(body): extract::Json<BTreeMap<String, Attributes>>,
) -> Reply {
    for (text, attributes) in body {
        let path = expand(&text);
        std::fs::create_dir_all(&path).map_err(|error| Failure::file(&path, &error))?;
        info::apply(&path, &attributes)?;
    }
    Ok(().into_response())
}

pub(crate) async fn change_permissions(
    extract::Json(body): extract::Json<BTreeMap<String, Attributes>>,
) -> Reply {
    for (text, attributes) in body {
        info::apply(&expand(&text), &attributes)?;
    }
    Ok(().into_response())
}

pub(crate) async fn rename(extract::Json(body): extract::Json<Vec<Rename>>) -> Reply {
    for Rename { src, dest } in body {
        let (from, to) = (expand(&src), expand(&dest));
        std::fs::rename(&from, &to).map_err(|error| Failure::file(&from, &error))?;
    }
    Ok(().into_response())
}

pub(crate) async fn replace(
    RawQuery(query): RawQuery,
    extract::Json(body): extract::Json<BTreeMap<String, Replacement>>,
) -> Reply {
    let verbose = query_values(query.as_deref(), "verbose").pop();
    let replace = move || {
        let mut results = BTreeMap::new();
        for (text, replacement) in body {
            let replaced_count = replace_in(&expand(&text), &replacement)?;
            results.insert(text, ReplacementResult { replaced_count });
        }
        Ok(results)
    };
    let results = blocking(replace).await?;
    if verbose.as_deref() == Some("true") {
        return Ok(Json(results).into_response());
    }
    Ok(().into_response())
}

fn replace_in(path: &Path, replacement: &Replacement) -> Reply<u64> {
    if replacement.old.is_empty() {
        return Err(Failure::body("old must not be empty"));
    }
    let content = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
    let count = content.matches(&replacement.old).count();
    if count > 0 {
        let content = content.replace(&replacement.old, &replacement.new);
        transfer::overwrite(path, content.as_bytes())
            .map_err(|error| Failure::file(path, &error))?;
    }
    Ok(u64::try_from(count).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_parameters_are_decoded() {
        let query = Some("path=%2Fa%20b&x=1&path=c%2");
        assert_eq!(query_values(query, "path"), ["/a b", "c%2"]);
        assert!(required(Some("paths=1"), "path").is_err());
    }

    #[test]
    fn paths_are_expanded() {
        let home = lookup("HOME");
        assert_eq!(expand("~/a"), PathBuf::from(format!("{home}/a")));
        assert_eq!(expand("${HOME}/a"), PathBuf::from(format!("{home}/a")));
        assert_eq!(expand("/a$/~b"), PathBuf::from("/a$/~b"));
    }
}
