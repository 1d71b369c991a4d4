//! From git's listing to a manifest: what the rules leave, as far as it is there.
//!
//! The listing is taken in pieces while git still writes it, and each piece is matched and looked up on a thread of its
//! own: a work tree of 20,000 files takes as long as `git status` does, which works likewise.

use std::path::Path;
use std::sync::{Mutex, mpsc};

use super::share::Share;
use super::{Manifest, cannot_list};
use crate::git::Repository;
use crate::sync::listing::ListingError;
use crate::sync::path::some_of;
use crate::sync::{RelPath, Rules};
use crate::{Code, Failure};

/// Not bound to the cores: on a cold disk the threads wait, and on a busy machine they get their share of it.
const THREADS: usize = 8;
const PIECE: usize = 32 << 10;
const MOST_EXAMPLES: usize = 5;

/// Lists with one git process.
pub(in crate::sync) fn from_git(
    repository: &Repository,
    rules: &Rules,
) -> Result<Manifest, Failure> {
    let root = repository.root();
    let (send, receive) = mpsc::channel();
    let receive = Mutex::new(receive);
    let (complaints, shares) = std::thread::scope(|scope| {
        let worker = || work(root, rules, &receive);
        let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(worker)).collect();
        let mut pieces = Pieces::default();
        let complaints = repository.ls_files(&mut |bytes| {
            pieces.push(bytes, |piece| drop(send.send(piece)));
        });
        let rest = pieces.end().map(|rest| {
            if let Some(piece) = rest {
                drop(send.send(piece));
            }
        });
        // The workers end when the sender is gone.
        drop(send);
        let shares: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        rest.map_err(|error| not_understood(&error))?;
        Ok::<_, Failure>((complaints?, shares))
    })?;
    let mut numbered = Vec::new();
    for of_worker in shares {
        numbered.extend(of_worker.map_err(|_| Failure::new(Code::Sync, LOST_THREAD))?);
    }
    numbered.sort_by_key(|(number, _)| *number);
    let mut whole = Share::default();
    for (_, share) in numbered {
        whole.append(share?);
    }
    finish(root, whole, complaints)
}

const LOST_THREAD: &str = "build sync file list: a thread that looked at files has ended early";

type Piece = (usize, Vec<u8>);

fn work(
    root: &Path,
    rules: &Rules,
    pieces: &Mutex<mpsc::Receiver<Piece>>,
) -> Vec<(usize, Result<Share, Failure>)> {
    let next = || {
        let pieces = pieces.lock().ok()?;
        pieces.recv().ok()
    };
    let mut shares = Vec::new();
    while let Some((number, piece)) = next() {
        shares.push((number, Share::of(root, rules, &piece)));
    }
    shares
}

/// Cuts a stream of records where one of them ends.
#[derive(Default)]
struct Pieces {
    rest: Vec<u8>,
    sent: usize,
}

impl Pieces {
    fn push(&mut self, bytes: &[u8], send: impl FnOnce(Piece)) {
        self.rest.extend_from_slice(bytes);
        if self.rest.len() < PIECE && self.sent > 0 {
            return;
        }
        let Some(end) = self.rest.iter().rposition(|&byte| byte == 0) else {
            return;
        };
        let rest = self.rest.split_off(end + 1);
        send((self.sent, std::mem::replace(&mut self.rest, rest)));
        self.sent += 1;
    }

    fn end(self) -> Result<Option<Piece>, ListingError> {
        match self.rest.last() {
            None => Ok(None),
            Some(0) => Ok(Some((self.sent, self.rest))),
            Some(_) => Err(ListingError::Truncated),
        }
    }
}

pub(super) fn not_understood(error: &ListingError) -> Failure {
    Failure::new(Code::Sync, "build sync file list").because(error)
}

fn finish(root: &Path, whole: Share, complaints: Vec<String>) -> Result<Manifest, Failure> {
    let mixed = whole.mixed_conflicts();
    if !mixed.is_empty() {
        let examples = some_of(&mixed, MOST_EXAMPLES);
        let why = format!("has conflicts between a file and a submodule: {examples}");
        return Err(cannot_list(root, why).hint("resolve them, or exclude these paths"));
    }
    if !whole.hidden.is_empty() {
        return Err(partial(root, &whole.hidden));
    }
    let mut manifest = Manifest {
        entries: whole.entries,
        bytes: 0,
        deleted: whole.deleted,
        protected: whole.protected,
        skipped: whole.skipped,
        complaints,
    };
    // git lists untracked paths first and each side of a conflict: two sorted runs, and equals side by side.
    manifest.entries.sort_by(|a, b| a.path.cmp(&b.path));
    manifest.entries.dedup_by(|a, b| a.path == b.path);
    manifest.deleted.dedup();
    manifest.protected.dedup();
    manifest.skipped.sort_by(|a, b| a.path.cmp(&b.path));
    manifest.skipped.dedup();
    let sizes = manifest.entries.iter().map(|entry| entry.size);
    manifest.bytes = sizes.fold(0, u64::saturating_add);
    Ok(manifest)
}

fn partial(root: &Path, hidden: &[RelPath]) -> Failure {
    let examples = some_of(hidden, MOST_EXAMPLES);
    let why = format!(
        "is a partial checkout: {} tracked paths are hidden by sparse-checkout or skip-worktree: {examples}",
        hidden.len()
    );
    cannot_list(root, why)
        .hint("run `git sparse-checkout disable`, or `git update-index --no-skip-worktree` on these paths")
        .hint("exclude these paths, or pass --no-sync")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_are_whole_records_in_order(
            records in prop::collection::vec(prop::collection::vec(1..=255_u8, 0..40), 0..60),
            cuts in prop::collection::vec(1..300_usize, 1..60),
        ) {
            let mut stream: Vec<u8> = Vec::new();
            for record in &records {
                stream.extend(record);
                stream.push(0);
            }
            let mut sent = Vec::new();
            let mut pieces = Pieces::default();
            let mut rest = &stream[..];
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                pieces.push(now, |piece| sent.push(piece));
                rest = later;
            }
            sent.extend(pieces.end().unwrap());
            prop_assert!(sent.iter().enumerate().all(|(at, (number, piece))| at == *number && piece.ends_with(&[0])));
            prop_assert_eq!(sent.into_iter().flat_map(|(_, piece)| piece).collect::<Vec<_>>(), stream);
        }
    }

    #[test]
    fn half_a_record_at_the_end_is_an_error() {
        let mut pieces = Pieces::default();
        pieces.push(b"? a\0? b", drop);
        assert_eq!(pieces.end(), Err(ListingError::Truncated));
    }
}
