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

use super::{expand, first, info};
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
    let mut file = tokio::fs::File::create(&path).await.map_err(failed)?;
    while let Some(chunk) = field.chunk().await.map_err(invalid_content)? {
        file.write_all(&chunk).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    file.sync_all().await.map_err(failed)?;
    info::apply(&path, attributes)
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
