//! The directories on the way to the last path, each with what is known of it: paths that come sorted need it once.

/// What is known of each component of a directory.
pub(super) struct Levels<T> {
    dir: Vec<u8>,
    /// Where each component of `dir` ends, and what is known there.
    known: Vec<(usize, T)>,
}

impl<T> Levels<T> {
    pub(super) fn new() -> Self {
        Self {
            dir: Vec::new(),
            known: Vec::new(),
        }
    }

    /// Of the directory that was entered last; `None` is the root.
    pub(super) fn last(&self) -> Option<&T> {
        self.known.last().map(|(_, what)| what)
    }

    /// Goes to `dir`. `learn` is asked about each directory on the way that is not known yet, with what is known of
    /// the one above it, its path and its name. When it fails, the way up to there has been gone.
    pub(super) fn enter<E>(
        &mut self,
        dir: &[u8],
        mut learn: impl FnMut(Option<&T>, &[u8], &[u8]) -> Result<T, E>,
    ) -> Result<(), E> {
        if self.dir == dir {
            return Ok(());
        }
        while let Some((end, _)) = self.known.last() {
            let above = self.dir.get(..*end) == dir.get(..*end);
            if above && matches!(dir.get(*end), None | Some(b'/')) {
                break;
            }
            self.known.pop();
        }
        let mut end = self.known.last().map_or(0, |(end, _)| *end);
        self.dir.truncate(end);
        while end < dir.len() {
            let from = if end == 0 { 0 } else { end + 1 };
            let rest = dir.get(from..).unwrap_or_default();
            let name = rest.split(|&byte| byte == b'/').next().unwrap_or_default();
            end = from + name.len();
            let path = dir.get(..end).unwrap_or_default();
            let what = learn(self.last(), path, name)?;
            let more = path.get(self.dir.len()..).unwrap_or_default();
            self.dir.extend_from_slice(more);
            self.known.push((end, what));
        }
        Ok(())
    }
}

/// The directory of a path, empty for the root, and its name in it.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|&byte| byte == b'/');
    match slash.and_then(|at| path.split_at_checked(at)) {
        Some((dir, name)) => (dir, name.get(1..).unwrap_or_default()),
        None => (&[], path),
    }
}
