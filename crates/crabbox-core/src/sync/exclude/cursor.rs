//! Asks the rules about many paths: what they say about a directory is asked once for all that is in it.

use super::builtin;
use super::{Decision, Rules};
use crate::sync::RelPath;

/// Best with sorted paths; right with any.
pub(crate) struct Cursor<'r> {
    rules: &'r Rules,
    /// The directory of the last path, and what holds at the end of each of its components.
    dir: Vec<u8>,
    levels: Vec<(usize, Holds)>,
}

#[derive(Clone, Copy, Default)]
struct Holds {
    winner: Option<usize>,
    included: bool,
}

impl<'r> Cursor<'r> {
    pub(crate) fn new(rules: &'r Rules) -> Self {
        Self {
            rules,
            dir: Vec::new(),
            levels: Vec::new(),
        }
    }

    pub(crate) fn judge(&mut self, path: &RelPath) -> Decision<'r> {
        let path = path.as_bytes();
        let holds = self.holds(path);
        if builtin::is_protected(path) || !holds.included {
            return Decision::Drop;
        }
        self.rules.decision(holds.winner)
    }

    /// Whether nothing below this directory can be sent, so that it need not be read.
    pub(crate) fn is_dead_end(&mut self, dir: &RelPath) -> bool {
        let dir = dir.as_bytes();
        let winner = self.holds(dir).winner;
        let dropped = self.rules.decision(winner) != Decision::Keep;
        builtin::is_protected(dir) || (dropped && self.rules.last_negation < winner)
    }

    fn holds(&mut self, path: &[u8]) -> Holds {
        let slash = path.iter().rposition(|&byte| byte == b'/');
        let dir = slash.and_then(|at| path.get(..at)).unwrap_or_default();
        if self.dir != dir {
            self.enter(dir);
        }
        self.below(path, dir.len())
    }

    fn enter(&mut self, dir: &[u8]) {
        let is_above = |end: usize, own: &[u8]| {
            own.get(..end) == dir.get(..end) && matches!(dir.get(end), None | Some(b'/'))
        };
        while let Some((end, _)) = self.levels.last() {
            if is_above(*end, &self.dir) {
                break;
            }
            self.levels.pop();
        }
        let mut known = self.levels.last().map_or(0, |(end, _)| *end);
        self.dir.truncate(known);
        while known < dir.len() {
            let from = if known == 0 { 0 } else { known + 1 };
            let rest = dir.get(from..).unwrap_or_default();
            let length = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
            let end = from + length;
            let level = dir.get(..end).unwrap_or_default();
            let holds = self.below(level, known);
            self.levels.push((end, holds));
            known = end;
        }
        self.dir.clear();
        self.dir.extend_from_slice(dir);
    }

    /// What holds at `path`, whose directory ends at `parent` and is the last level.
    fn below(&self, path: &[u8], parent: usize) -> Holds {
        let above = self.levels.last().map_or_else(
            || Holds {
                winner: None,
                included: self.rules.include.is_none(),
            },
            |(_, holds)| *holds,
        );
        let from = if parent == 0 { 0 } else { parent + 1 };
        let name = path.get(from..).unwrap_or_default();
        let include = self.rules.include.as_ref();
        Holds {
            winner: above.winner.max(self.rules.index.highest(path, name)),
            included: above.included || include.is_some_and(|i| i.highest(path, name).is_some()),
        }
    }
}
