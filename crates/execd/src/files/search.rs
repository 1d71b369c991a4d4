//! `GET /files/search`: files below a directory whose relative path matches a glob.

use std::path::{Path, PathBuf};

use axum::Json;
use axum::extract::RawQuery;
use execd_proto::files::{FileInfo, FileKind};

use super::{expand, first, info, query_values};
use crate::reply::{Failure, Reply};

pub(crate) async fn search(RawQuery(query): RawQuery) -> Reply<Json<Vec<FileInfo>>> {
    let query = query.as_deref();
    let root = expand(&first(query, "path")?);
    let pattern = query_values(query, "pattern").pop();
    let pattern = pattern
        .filter(|text| !text.is_empty())
        .unwrap_or("**".into());
    let walk = move || walk(&root, &pattern);
    let infos = tokio::task::spawn_blocking(walk).await;
    infos.map_err(Failure::body)?.map(Json)
}

fn walk(root: &Path, pattern: &str) -> Reply<Vec<FileInfo>> {
    let mut found = Vec::new();
    let mut directories: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if directory == root => return Err(Failure::file(root, &error)),
            // What cannot be read below the root is left out, as the official daemon does.
            Err(_) => continue,
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            let Ok(info) = info::read(&path) else {
                continue;
            };
            let relative = path.strip_prefix(root).unwrap_or(&path);
            if info.kind == FileKind::Directory {
                directories.push(path.clone());
            } else if matches(pattern, &relative.to_string_lossy()) {
                found.push(info);
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// `*` and `?` stay within one name, `**` crosses names. A pattern without a slash matches the file's name alone.
fn matches(pattern: &str, path: &str) -> bool {
    let text = match pattern.contains('/') || pattern.contains("**") {
        true => path,
        false => path.rsplit('/').next().unwrap_or(path),
    };
    glob(pattern.as_bytes(), text.as_bytes())
}

/// Backtracks to the last star only for each kind, so that hostile patterns cannot take exponential time.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    // reachable[i]: the pattern so far matches text[..i].
    let mut reachable = vec![false; text.len() + 1];
    if let Some(first) = reachable.first_mut() {
        *first = true;
    }
    let mut rest = pattern;
    while let Some((token, after)) = next_token(rest) {
        reachable = advance(&reachable, text, &token);
        rest = after;
    }
    reachable.last().copied().unwrap_or(false)
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    AnyByte,
    Star,
    DoubleStar,
}

fn next_token(pattern: &[u8]) -> Option<(Token, &[u8])> {
    if let Some(rest) = pattern.strip_prefix(b"**/") {
        return Some((Token::DoubleStar, rest));
    }
    if let Some(rest) = pattern.strip_prefix(b"**") {
        return Some((Token::DoubleStar, rest));
    }
    let (first, rest) = pattern.split_first()?;
    let token = match first {
        b'*' => Token::Star,
        b'?' => Token::AnyByte,
        other => Token::Byte(*other),
    };
    Some((token, rest))
}

fn advance(before: &[bool], text: &[u8], token: &Token) -> Vec<bool> {
    let mut after = vec![false; before.len()];
    let mut carried = false;
    for (index, slot) in after.iter_mut().enumerate() {
        let here = before.get(index).copied().unwrap_or(false);
        let previous = index.checked_sub(1);
        let byte = previous.and_then(|index| text.get(index)).copied();
        let from_previous = previous
            .and_then(|index| before.get(index))
            .copied()
            .unwrap_or(false);
        *slot = match token {
            Token::Byte(wanted) => from_previous && byte == Some(*wanted),
            Token::AnyByte => from_previous && byte.is_some_and(|byte| byte != b'/'),
            Token::Star => here || (carried && byte != Some(b'/')),
            Token::DoubleStar => here || carried,
        };
        carried = *slot;
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, path, expected) in [
            ("**", "a/b.txt", true),
            ("*.txt", "a/b.txt", true),
            ("*.txt", "a/b.rs", false),
            ("a/*.txt", "a/b.txt", true),
            ("a/*.txt", "a/c/b.txt", false),
            ("a/**/*.txt", "a/c/d/b.txt", true),
            ("a/**/*.txt", "a/b.txt", true),
            ("?.rs", "a.rs", true),
            ("?.rs", "ab.rs", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn hostile_patterns_end() {
        let pattern = "*a".repeat(200);
        assert!(!matches(&pattern, &"a".repeat(150)));
    }
}
