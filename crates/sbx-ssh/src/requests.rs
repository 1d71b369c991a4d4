//! Requests about a session (RFC 4254 section 6).

use sbx_proto::rfc4251::{Malformed, Reader};

use crate::connection::{Start, Terminal};

/// More than `execve` takes is of no use.
const MAX_TEXT: usize = 128 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Terminal(Terminal),
    Variable(Vec<u8>, Vec<u8>),
    Start(Start),
    Resize { rows: u16, cols: u16 },
    Signal(String),
}

/// `None` for what is not offered: agents, X11, other subsystems.
pub(crate) fn parse(kind: &str, reader: &mut Reader<'_>) -> Result<Option<Request>, Malformed> {
    Ok(match kind {
        "pty-req" => {
            let kind = reader.string()?.to_vec();
            let (rows, cols) = size(reader)?;
            // Modes of the client's own terminal, which is raw by now: those of a new terminal are good.
            reader.string()?;
            let plain = !kind.contains(&0);
            plain.then_some(Request::Terminal(Terminal { kind, rows, cols }))
        }
        "env" => {
            let (name, value) = (reader.string()?, reader.string()?);
            let usable = !name.is_empty()
                && !name.iter().any(|byte| matches!(byte, 0 | b'='))
                && !value.contains(&0)
                && name.len() + value.len() <= MAX_TEXT;
            usable.then(|| Request::Variable(name.to_vec(), value.to_vec()))
        }
        "shell" => Some(Request::Start(Start::Shell)),
        "exec" => {
            let command = reader.string()?;
            let usable = !command.contains(&0) && command.len() <= MAX_TEXT;
            usable.then(|| Request::Start(Start::Exec(command.to_vec())))
        }
        "subsystem" => (reader.string()? == b"sftp").then_some(Request::Start(Start::Sftp)),
        "window-change" => {
            let (rows, cols) = size(reader)?;
            Some(Request::Resize { rows, cols })
        }
        "signal" => Some(Request::Signal(reader.text()?.to_owned())),
        _ => None,
    })
}

/// Rows and columns; the size in pixels that follows is not used.
fn size(reader: &mut Reader<'_>) -> Result<(u16, u16), Malformed> {
    let (cols, rows) = (reader.u32()?, reader.u32()?);
    let _pixels = (reader.u32()?, reader.u32()?);
    let short = |size: u32| u16::try_from(size).unwrap_or(u16::MAX);
    Ok((short(rows), short(cols)))
}
