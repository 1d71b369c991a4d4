//! Upload and download.

use std::io::{self, Write};
use std::path::Path;

use axum::body::Body;
use axum::extract::{Multipart, RawQuery};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use execd_proto::error::Code;
use execd_proto::files::Attributes;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use super::{blocking, expand, first, info, query_values};
use crate::reply::{Failure, Reply};

const MAX_METADATA: usize = 64 * 1024;
const CHUNK: usize = 256 * 1024;

/// Pairs of parts: `metadata` (JSON, with a file name of its own: the official daemon demands it), then `file`.
pub(crate) async fn upload(mut form: Multipart) -> Reply {
    let mut pending: Option<Attributes> = None;
    let mut count = 0_usize;
    while let Some(mut field) = form.next_field().await.map_err(invalid_content)? {
        match field.name() {
            Some("metadata") => {
                if field.file_name().is_none() {
                    return Err(invalid_metadata("metadata part without a file name"));
                }
                pending = Some(read_metadata(&mut field).await?);
            }
            Some("file") => {
                let attributes = pending
                    .take()
                    .ok_or_else(|| invalid_metadata("file part without metadata"))?;
                store(&attributes, &mut field).await?;
                count += 1;
            }
            Some(_) | None => {}
        }
    }
    match (count, pending) {
        (0, _) | (_, Some(_)) => Err(Failure::new(Code::InvalidFile, "no file part")),
        (_, None) => Ok(().into_response()),
    }
}

fn invalid_content(error: axum::extract::multipart::MultipartError) -> Failure {
    Failure::new(Code::InvalidFileContent, error.body_text())
}

fn invalid_metadata(message: &str) -> Failure {
    Failure::new(Code::InvalidFileMetadata, message)
}

async fn read_metadata(field: &mut axum::extract::multipart::Field<'_>) -> Reply<Attributes> {
    let mut text = Vec::new();
    while let Some(chunk) = field.chunk().await.map_err(invalid_content)? {
        if text.len() + chunk.len() > MAX_METADATA {
            return Err(invalid_metadata("metadata is too long"));
        }
        text.extend_from_slice(&chunk);
    }
    let attributes: Attributes = serde_json::from_slice(&text)
        .map_err(|error| invalid_metadata(&format!("invalid metadata: {error}")))?;
    if attributes.path.is_empty() {
        return Err(invalid_metadata("path is required"));
    }
    Ok(attributes)
}

async fn store(
    attributes: &Attributes,
    field: &mut axum::extract::multipart::Field<'_>,
) -> Reply<()> {
    let path = expand(&attributes.path);
    let failed = |error: io::Error| Failure::file(&path, &error);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    // With a mode to come, a new file is the owner's alone until it has it.
    let mode = if attributes.mode.is_some() {
        0o600
    } else {
        0o666
    };
    let mut file = tokio::fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&path)
        .await
        .map_err(failed)?;
    while let Some(chunk) = field.chunk().await.map_err(invalid_content)? {
        file.write_all(&chunk).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    // What was written to a device or a pipe is not stored, and its permissions are other programs' as well.
    if !file.metadata().await.map_err(failed)?.is_file() {
        return Ok(());
    }
    file.sync_all().await.map_err(failed)?;
    info::apply_to(&file.into_std().await, &path, attributes)
}

/// Replaces a file's content and keeps its inode, owner and mode.
pub(super) fn overwrite(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = std::fs::File::options()
        .write(true)
        .truncate(true)
        .open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// `GET /files/download`, whole or one byte range (RFC 9110, section 14).
pub(crate) async fn download(RawQuery(query): RawQuery, headers: HeaderMap) -> Reply {
    let path = expand(&first(query.as_deref(), "path")?);
    let failed = |error: io::Error| Failure::file(&path, &error);
    let mut file = tokio::fs::File::open(&path).await.map_err(failed)?;
    let metadata = file.metadata().await.map_err(failed)?;
    if metadata.is_dir() {
        let message = format!("{}: is a directory", path.display());
        return Err(Failure::new(Code::InvalidFile, message));
    }
    if let Some(lines) = Lines::asked(query.as_deref())? {
        let file = file.into_std().await;
        let text = blocking(move || {
            lines
                .read(file)
                .map_err(|error| Failure::file(&path, &error))
        });
        let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
        return Ok((kind, text.await?).into_response());
    }
    let size = metadata.len();
    let range = headers.get(header::RANGE);
    let range = range.and_then(|value| value.to_str().ok());
    let Some(range) = range else {
        return Ok(content(file, size, StatusCode::OK, None));
    };
    let Some((start, end)) = parse_range(range, size) else {
        let unsatisfied = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
        return Ok((StatusCode::RANGE_NOT_SATISFIABLE, unsatisfied).into_response());
    };
    file.seek(io::SeekFrom::Start(start))
        .await
        .map_err(failed)?;
    let described = format!("bytes {start}-{}/{size}", end - 1);
    let length = end - start;
    Ok(content(
        file,
        length,
        StatusCode::PARTIAL_CONTENT,
        Some(described),
    ))
}

/// Lines of a file, instead of bytes.
#[derive(Debug, PartialEq, Eq)]
struct Lines {
    /// The first one is 1.
    offset: u64,
    limit: Option<u64>,
}

impl Lines {
    fn asked(query: Option<&str>) -> Reply<Option<Self>> {
        let number = |name: &str| {
            let text = query_values(query, name).pop();
            let parse = |text: String| match text.parse::<u64>() {
                Ok(number) if number > 0 => Ok(number),
                _ => Err(Failure::body(format!("{name} must be a number of lines"))),
            };
            text.map(parse).transpose()
        };
        Ok(match (number("offset")?, number("limit")?) {
            (None, None) => None,
            (offset, limit) => Some(Self {
                offset: offset.unwrap_or(1),
                limit,
            }),
        })
    }

    /// Only what is asked for is in memory.
    fn read(&self, file: std::fs::File) -> io::Result<Vec<u8>> {
        let mut file = io::BufReader::new(file);
        for _ in 1..self.offset {
            if io::BufRead::skip_until(&mut file, b'\n')? == 0 {
                return Ok(Vec::new());
            }
        }
        let mut text = Vec::new();
        let mut left = self.limit;
        while left != Some(0) && io::BufRead::read_until(&mut file, b'\n', &mut text)? > 0 {
            left = left.map(|left| left - 1);
        }
        Ok(text)
    }
}

fn content(
    file: tokio::fs::File,
    length: u64,
    status: StatusCode,
    range: Option<String>,
) -> Response {
    let chunks = futures_util::stream::try_unfold(file.take(length), |mut file| async move {
        let mut buffer = Vec::with_capacity(CHUNK);
        let count = (&mut file)
            .take(CHUNK as u64)
            .read_to_end(&mut buffer)
            .await?;
        Ok::<_, io::Error>((count > 0).then_some((buffer, file)))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let values = [
        (
            header::CONTENT_TYPE,
            Some("application/octet-stream".to_owned()),
        ),
        (header::ACCEPT_RANGES, Some("bytes".to_owned())),
        (header::CONTENT_LENGTH, Some(length.to_string())),
        (header::CONTENT_RANGE, range),
    ];
    for (name, value) in values {
        if let Some(value) = value.and_then(|value| value.parse().ok()) {
            headers.insert(name, value);
        }
    }
    response
}

/// The half-open range that one `bytes=` range selects, or none where it cannot be satisfied.
fn parse_range(text: &str, size: u64) -> Option<(u64, u64)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let (start, end) = match (first.trim(), last.trim()) {
        ("", suffix) => (size.saturating_sub(suffix.parse().ok()?), size),
        (first, "") => (first.parse().ok()?, size),
        (first, last) => {
            let last: u64 = last.parse().ok()?;
            (first.parse().ok()?, last.saturating_add(1).min(size))
        }
    };
    (start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let read = |query: &str| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"one\ntwo\n\nfour").unwrap();
            io::Seek::rewind(&mut file).unwrap();
            let lines = Lines::asked(Some(query)).unwrap().unwrap();
            String::from_utf8(lines.read(file).unwrap()).unwrap()
        };
        assert_eq!(read("offset=2&limit=1"), "two\n");
        assert_eq!(read("limit=2"), "one\ntwo\n");
        assert_eq!(read("offset=3"), "\nfour");
        assert_eq!(read("offset=9"), "");
        assert_eq!(Lines::asked(Some("path=x")).unwrap(), None);
        assert!(Lines::asked(Some("offset=0")).is_err());
        assert!(Lines::asked(Some("limit=x")).is_err());
    }

    #[test]
    fn ranges() {
        assert_eq!(parse_range("bytes=0-9", 100), Some((0, 10)));
        assert_eq!(parse_range("bytes=90-", 100), Some((90, 100)));
        assert_eq!(parse_range("bytes=-5", 100), Some((95, 100)));
        assert_eq!(parse_range("bytes=0-999", 100), Some((0, 100)));
        assert_eq!(parse_range("bytes=100-", 100), None);
        assert_eq!(parse_range("bytes=5-2", 100), None);
        assert_eq!(parse_range("items=1-2", 100), None);
        assert_eq!(parse_range("bytes=-0", 100), None);
    }
}
