//! Asks the rules about many paths: what they say about a directory is asked once for all that is in it.

use std::convert::Infallible;

use super::builtin;
use super::{Decision, Rules};
use crate::sync::RelPath;
use crate::sync::levels::{Levels, split};

/// Best with sorted paths; right with any.
pub(crate) struct Cursor<'r> {
    rules: &'r Rules,
    dirs: Levels<Holds>,
}

#[derive(Clone, Copy)]
struct Holds {
    winner: Option<usize>,
    included: bool,
}

impl<'r> Cursor<'r> {
    pub(crate) fn new(rules: &'r Rules) -> Self {
        Self {
            rules,
            dirs: Levels::new(),
        }
    }

    pub(crate) fn decide(&mut self, path: &RelPath) -> Decision<'r> {
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
        let rules = self.rules;
        let (dir, name) = split(path);
        let Ok(()) = self.dirs.enter(dir, |above, path, name| {
            Ok::<_, Infallible>(below(rules, above, path, name))
        });
        below(rules, self.dirs.last(), path, name)
    }
}

/// What holds at a path, given what holds at its directory.
fn below(rules: &Rules, above: Option<&Holds>, path: &[u8], name: &[u8]) -> Holds {
    let include = rules.include.as_ref();
    let above = above.copied().unwrap_or(Holds {
        winner: None,
        included: include.is_none(),
    });
    Holds {
        winner: above.winner.max(rules.index.highest(path, name)),
        included: above.included || include.is_some_and(|i| i.highest(path, name).is_some()),
    }
}
