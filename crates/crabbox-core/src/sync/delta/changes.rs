//! A delta as a script of the sandbox's shell.

use std::collections::BTreeMap;

use super::{Delta, parent};
use crate::sync::Manifest;

/// Paths on one line, and bytes of them: the line becomes the arguments of one program.
const MAX_PATHS: usize = 200;
const MAX_BYTES: usize = 60_000;

/// One word for any shell, whatever its bytes are.
pub fn shell_quote(bytes: &[u8]) -> Vec<u8> {
    let mut word = Vec::with_capacity(bytes.len() + 2);
    word.push(b'\'');
    for &byte in bytes {
        match byte {
            b'\'' => word.extend_from_slice(b"'\\''"),
            byte => word.push(byte),
        }
    }
    word.push(b'\'');
    word
}

impl Delta {
    /// Lines `displace DIR PATH...` and `install DIR PATH...`, which [`super::inside`] gives a meaning: paths are relative
    /// to the workdir, DIR is what they have in common.
    pub fn changes(&self, manifest: &Manifest) -> Vec<u8> {
        let mut script = Vec::new();
        let displaced = self.displaced.iter().map(Vec::as_slice);
        lines(&mut script, b"displace", displaced);
        let sent = self.sent(manifest).map(|entry| entry.path.as_bytes());
        lines(&mut script, b"install", sent);
        script
    }

    /// Removes what has to go from the current directory.
    pub(super) fn removal(&self) -> Vec<u8> {
        let mut script = Vec::new();
        for paths in chunks(self.displaced.iter().map(Vec::as_slice).collect()) {
            script.extend_from_slice(b"rm -rf --");
            words(&mut script, paths.into_iter());
            script.extend_from_slice(b" || exit 1\n");
        }
        script
    }
}

fn lines<'p>(script: &mut Vec<u8>, verb: &[u8], paths: impl Iterator<Item = &'p [u8]>) {
    let mut by_directory: BTreeMap<&[u8], Vec<&[u8]>> = BTreeMap::new();
    for path in paths {
        by_directory.entry(parent(path)).or_default().push(path);
    }
    for (dir, paths) in by_directory {
        let dir: &[u8] = if dir.is_empty() { b"." } else { dir };
        for paths in chunks(paths) {
            script.extend_from_slice(verb);
            words(script, std::iter::once(dir).chain(paths));
            script.extend_from_slice(b" || return 1\n");
        }
    }
}

fn words<'p>(script: &mut Vec<u8>, paths: impl Iterator<Item = &'p [u8]>) {
    for path in paths {
        script.push(b' ');
        script.extend(shell_quote(path));
    }
}

fn chunks(paths: Vec<&[u8]>) -> Vec<Vec<&[u8]>> {
    let mut chunks: Vec<Vec<&[u8]>> = Vec::new();
    let mut bytes = 0;
    for path in paths {
        match chunks.last_mut() {
            Some(last) if last.len() < MAX_PATHS && bytes + path.len() <= MAX_BYTES => {
                bytes += path.len();
                last.push(path);
            }
            _ => {
                bytes = path.len();
                chunks.push(vec![path]);
            }
        }
    }
    chunks
}
