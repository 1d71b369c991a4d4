//! Files that root (or another id) made in a workspace are given to the agent, who is the caller outside.
//!
//! Runs in init's own mount namespace, where nothing from inside can be mounted over a workspace, or in a helper's when
//! init was killed; and with the outer user namespace's power only: ids of the sandbox's range can be changed, no others.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode as FileMode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use sbx_proto::inside::AGENT;
use sbx_proto::plan::Node;
use sbx_sys::credentials::with_fsuid;
use thiserror::Error;

/// Who files of other host users seem to belong to.
const NOBODY: u32 = 65534;

/// As coarse as the kernel's clock for files is: it may be a tick behind.
const TICK: i64 = 10_000_000;
/// Times of some file systems are that coarse. Their nanoseconds are zero.
const COARSE: i64 = 2_000_000_000;

/// Directories of a walk that stay open. Whoever moves what is below one of them ends no walk.
const HELD: usize = 32;
/// No name inside is that long.
const DEPTH: usize = 10_000;

/// How much is done about one hand-over. Other sandboxes may have the same workspace, and change it under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// For all workspaces together.
    pub(crate) limit: Duration,
    /// How often a workspace is walked through in which something moves.
    pub(crate) walks: u32,
}

impl Patience {
    /// Somebody waits for the exit status. What is left is for the next command, or for the stop.
    pub(crate) const AFTER_A_COMMAND: Self = Self {
        limit: Duration::from_secs(5),
        walks: 1,
    };
    /// Less than what the daemon has. What is left is for its helper.
    pub(crate) const AT_THE_STOP: Self = Self {
        limit: Duration::from_millis(1500),
        walks: 2,
    };

    /// No init is there any more.
    pub(crate) fn within(limit: Duration) -> Self {
        Self { limit, walks: 4 }
    }
}

/// Why something may not be the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Error)]
pub(crate) enum Left {
    #[error("the kernel does not let some have another owner")]
    Denied,
    #[error("something moves the files")]
    Moved,
    #[error("a workspace cannot be opened")]
    Closed,
    #[error("directories lie too deep")]
    Depth,
    #[error("it takes too long")]
    Time,
}

/// Walks every workspace, from its directory as it was mounted: the names that lead to it can be changed from
/// inside. What cannot be changed (a file of some other host user) is left alone, and so is what nobody has changed
/// since `made_at` (nanoseconds of the Unix epoch): other programs that use subordinate ids have files of theirs.
/// `spared` is left alone with everything below it.
pub(crate) fn hand_over(
    workspaces: &[OwnedFd],
    made_at: i64,
    spared: &[Node],
    patience: Patience,
) -> Result<(), Left> {
    let rules = Rules {
        made_at,
        spared,
        until: Instant::now() + patience.limit,
    };
    let mut left = Ok(());
    for workspace in workspaces {
        // One that cannot be walked through is no reason to leave out the next.
        left = left.and(hand_over_one(workspace, &rules, patience.walks));
    }
    left
}

fn hand_over_one(workspace: &OwnedFd, rules: &Rules<'_>, walks: u32) -> Result<(), Left> {
    let mut left = Ok(());
    for _ in 0..walks {
        // Opened anew: what is read here must not be what another walk has read already.
        let (root, eyes) = match open_root(workspace) {
            Ok(opened) => opened,
            // Nobody inside gets in.
            Err(Errno::ACCESS | Errno::PERM) => return Ok(()),
            Err(_) => return Err(Left::Closed),
        };
        if rustix::fs::fstat(&root).is_ok_and(|stat| is_to_be_given(&stat, rules.made_at)) {
            let (uid, gid) = (Uid::from_raw(AGENT), Gid::from_raw(AGENT));
            let _ = rustix::fs::fchown(&root, Some(uid), Some(gid));
        }
        left = Walk::new(rules).run(root, eyes);
        match left {
            // What was moved may lie where the walk had been.
            Err(Left::Moved) => {}
            Ok(()) | Err(Left::Denied | Left::Closed | Left::Depth | Left::Time) => return left,
        }
    }
    left
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Who looks into a directory. Root has power over files of which it knows both ids; where the group is none of the
/// sandbox's, the agent may get in where root does not, and `sudo` from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Eyes {
    Root,
    Agent,
}

impl Eyes {
    fn look<T>(self, work: impl FnOnce() -> T) -> T {
        match self {
            Self::Root => work(),
            Self::Agent => with_fsuid(AGENT, work),
        }
    }

    fn others(self) -> Self {
        match self {
            Self::Root => Self::Agent,
            Self::Agent => Self::Root,
        }
    }
}

fn open_root(workspace: &OwnedFd) -> rustix::io::Result<(OwnedFd, Eyes)> {
    let open = |eyes: Eyes| {
        let opened =
            eyes.look(|| rustix::fs::openat(workspace, c".", DIRECTORY, FileMode::empty()));
        opened.map(|dir| (dir, eyes))
    };
    match open(Eyes::Root) {
        Err(Errno::ACCESS | Errno::PERM) => open(Eyes::Agent),
        other => other,
    }
}

/// A directory in one that has these eyes, and who looks into that.
fn open_below(dir: &OwnedFd, name: &CStr, eyes: Eyes) -> rustix::io::Result<(OwnedFd, Eyes)> {
    match eyes.look(|| rustix::fs::openat(dir, name, DIRECTORY, FileMode::empty())) {
        Ok(below) => return Ok((below, eyes)),
        Err(Errno::ACCESS | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    let flags = DIRECTORY.union(OFlags::PATH);
    let place = eyes.look(|| rustix::fs::openat(dir, name, flags, FileMode::empty()))?;
    let others = eyes.others();
    let below = others.look(|| rustix::fs::openat(&place, c".", DIRECTORY, FileMode::empty()))?;
    Ok((below, others))
}

/// The directory above one that `below` can look into, for those who look into that: they need not have a way in.
fn open_above(dir: &OwnedFd, below: Eyes, above: Eyes) -> Option<OwnedFd> {
    let flags = DIRECTORY.union(OFlags::PATH);
    let place = below.look(|| rustix::fs::openat(dir, c"..", flags, FileMode::empty()));
    let place = place.ok()?;
    let opened = above.look(|| rustix::fs::openat(&place, c".", DIRECTORY, FileMode::empty()));
    opened.ok()
}

/// What is left alone, and when all of it ends.
struct Rules<'a> {
    made_at: i64,
    spared: &'a [Node],
    until: Instant,
}

/// A directory on the way to the current one: who it is, and what is still to be visited in it.
struct Level {
    identity: Node,
    eyes: Eyes,
    /// None of one that lies deep, until the walk comes back to it.
    dir: Option<OwnedFd>,
    subdirectories: Vec<CString>,
}

/// Depth first with a bounded number of descriptors, whatever the depth.
struct Walk<'a> {
    rules: &'a Rules<'a>,
    levels: Vec<Level>,
    left: Result<(), Left>,
}

impl<'a> Walk<'a> {
    fn new(rules: &'a Rules<'a>) -> Self {
        Self {
            rules,
            levels: Vec::new(),
            left: Ok(()),
        }
    }

    fn run(mut self, root: OwnedFd, eyes: Eyes) -> Result<(), Left> {
        self.enter(root, eyes)?;
        while !self.levels.is_empty() {
            self.step()?;
        }
        self.left
    }

    /// Visits one more directory, or leaves one.
    fn step(&mut self) -> Result<(), Left> {
        let Some(level) = self.levels.last_mut() else {
            return Ok(());
        };
        let (Some(name), Some(dir)) = (level.subdirectories.pop(), &level.dir) else {
            self.leave();
            return Ok(());
        };
        match open_below(dir, &name, level.eyes) {
            Ok((below, eyes)) => return self.enter(below, eyes),
            // Closed, and somebody else's.
            Err(Errno::ACCESS | Errno::PERM) => {}
            // It was there a moment ago.
            Err(_) => self.note(Left::Moved),
        }
        Ok(())
    }

    fn enter(&mut self, dir: OwnedFd, eyes: Eyes) -> Result<(), Left> {
        let Ok(stat) = rustix::fs::fstat(&dir) else {
            self.note(Left::Moved);
            return Ok(());
        };
        let identity = identity(&stat);
        // Looked at again when it is open: it may have been put there meanwhile. Not where the walk begins.
        if !self.levels.is_empty() && self.rules.spared.contains(&identity) {
            return Ok(());
        }
        // Moved below itself, or shown there by a mount: it is being visited.
        if self.levels.iter().any(|above| above.identity == identity) {
            return Ok(());
        }
        if self.levels.len() >= DEPTH {
            self.note(Left::Depth);
            return Ok(());
        }
        let subdirectories = self.give_all(&dir, eyes)?;
        if self.levels.len() > HELD
            && let Some(above) = self.levels.last_mut()
        {
            above.dir = None;
        }
        self.levels.push(Level {
            identity,
            eyes,
            dir: Some(dir),
            subdirectories,
        });
        Ok(())
    }

    /// Changes the owner of everything in one directory that was changed since. Returns the directories in it.
    fn give_all(&mut self, dir: &OwnedFd, eyes: Eyes) -> Result<Vec<CString>, Left> {
        let mut subdirectories = Vec::new();
        let Ok(entries) = eyes.look(|| Dir::read_from(dir)) else {
            self.note(Left::Moved);
            return Ok(subdirectories);
        };
        for entry in entries {
            if Instant::now() >= self.rules.until {
                return Err(Left::Time);
            }
            let Ok(entry) = entry else {
                self.note(Left::Moved);
                break;
            };
            let name = CString::from(entry.file_name());
            if name.as_c_str() == c"." || name.as_c_str() == c".." {
                continue;
            }
            let look = || rustix::fs::statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW);
            let Ok(stat) = eyes.look(look) else {
                self.note(Left::Moved);
                continue;
            };
            if self.rules.spared.contains(&identity(&stat)) {
                continue;
            }
            if is_to_be_given(&stat, self.rules.made_at) {
                self.give(dir, &name, &stat, eyes);
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                subdirectories.push(name);
            }
        }
        Ok(subdirectories)
    }

    fn give(&mut self, dir: &OwnedFd, name: &CStr, stat: &Stat, eyes: Eyes) {
        let (uid, gid) = (Uid::from_raw(AGENT), Gid::from_raw(AGENT));
        let given = match eyes {
            Eyes::Root => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(dir, name, Some(uid), Some(gid), flags)
            }
            Eyes::Agent => Err(Errno::PERM),
        };
        // What the agent made in a directory of a group outside is the caller's, and stays that group's.
        if given == Err(Errno::PERM)
            && stat.st_uid != AGENT
            && give_of_foreign_group(dir, name, eyes) == Err(Errno::PERM)
            && stat.st_uid != NOBODY
        {
            self.note(Left::Denied);
        }
    }

    /// Goes back to the directory above. A deep one is found by `..`, and it is looked at who that is: a hostile
    /// rename must not lead the walk out. Else the walk goes on where it has kept a directory open.
    fn leave(&mut self) {
        let Some(left) = self.levels.pop() else {
            return;
        };
        let Some(level) = self.levels.last_mut().filter(|level| level.dir.is_none()) else {
            return;
        };
        let above = left
            .dir
            .and_then(|dir| open_above(&dir, left.eyes, level.eyes));
        let same =
            |dir: &OwnedFd| rustix::fs::fstat(dir).is_ok_and(|s| identity(&s) == level.identity);
        match above.filter(same) {
            Some(dir) => level.dir = Some(dir),
            None => {
                self.note(Left::Moved);
                while self.levels.pop_if(|level| level.dir.is_none()).is_some() {}
            }
        }
    }

    /// The gravest counts.
    fn note(&mut self, left: Left) {
        self.left = Err(self.left.err().map_or(left, |before| before.max(left)));
    }
}

/// In a directory that passes its group on, one that has no id inside, even root may not change an owner: it has power
/// over files of which it knows both ids. The owner may give a file to a group of its own.
fn give_of_foreign_group(dir: &OwnedFd, name: &CStr, eyes: Eyes) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = eyes.look(|| rustix::fs::openat(dir, name, flags, FileMode::empty()))?;
    let chown = |uid, gid| rustix::fs::chownat(&file, c"", uid, gid, AtFlags::EMPTY_PATH);
    let (uid, gid) = (Uid::from_raw(AGENT), Gid::from_raw(AGENT));
    if chown(Some(uid), Some(gid)).is_ok() {
        return Ok(());
    }
    let owner = rustix::fs::fstat(&file)?.st_uid;
    with_fsuid(owner, || chown(None, Some(Gid::ROOT)))?;
    chown(Some(uid), Some(gid))
}

pub(crate) fn identity(stat: &Stat) -> Node {
    Node {
        device: stat.st_dev,
        inode: stat.st_ino,
    }
}

fn is_to_be_given(stat: &Stat, made_at: i64) -> bool {
    let others = stat.st_uid != AGENT || stat.st_gid != AGENT;
    others && changed_since(stat.st_ctime, stat.st_ctime_nsec as i64, made_at)
}

/// Whether something with this time of its last change can have been changed at or after `moment`.
fn changed_since(seconds: i64, nanoseconds: i64, moment: i64) -> bool {
    let slack = if nanoseconds == 0 { COARSE } else { TICK };
    let changed = seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds);
    changed.saturating_add(slack) >= moment
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Nothing is given: whose the files are does not matter here.
    fn rules(limit: Duration) -> Rules<'static> {
        Rules {
            made_at: i64::MAX,
            spared: &[],
            until: Instant::now() + limit,
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    fn open(path: &Path) -> OwnedFd {
        rustix::fs::open(path, DIRECTORY, FileMode::empty()).unwrap()
    }

    /// Walks until this directory is the current one.
    fn walk_to(walk: &mut Walk<'_>, path: &Path) {
        let wanted = identity(&rustix::fs::stat(path).unwrap());
        while walk.levels.last().unwrap().identity != wanted {
            walk.step().unwrap();
        }
    }

    /// The rest of a walk: how many directories it comes to, and what it leaves.
    fn rest(mut walk: Walk<'_>) -> (usize, Result<(), Left>) {
        let mut count = 0;
        while !walk.levels.is_empty() {
            let before = walk.levels.len();
            walk.step().unwrap();
            count += usize::from(walk.levels.len() > before);
        }
        (count, walk.left)
    }

    #[test]
    fn a_directory_that_is_moved_below_itself_is_visited_once() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        fs::create_dir_all(at("x/y/last")).unwrap();
        let rules = rules(LONG);
        let mut walk = Walk::new(&rules);
        walk.enter(open(temp.path()), Eyes::Root).unwrap();
        walk_to(&mut walk, &at("x/y"));
        fs::remove_dir(at("x/y/last")).unwrap();
        fs::rename(at("x/y"), at("y")).unwrap();
        fs::rename(at("x"), at("y/last")).unwrap();
        assert_eq!(rest(walk), (0, Ok(())));
    }

    #[test]
    fn a_directory_that_is_moved_away_ends_no_walk() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        for dir in ["a", "b/1", "b/2", "away"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        let rules = rules(LONG);
        let mut walk = Walk::new(&rules);
        walk.enter(open(temp.path()), Eyes::Root).unwrap();
        walk_to(&mut walk, &at("b"));
        let first = walk.levels[1].subdirectories.last().unwrap().clone();
        let first = first.into_string().unwrap();
        walk.step().unwrap();
        fs::rename(at("b").join(&first), at("away").join(&first)).unwrap();
        // Listed, and gone when its turn comes.
        walk.levels[0].subdirectories = vec![c"a".into()];
        fs::rename(at("a"), at("away/a")).unwrap();
        assert_eq!(rest(walk), (1, Err(Left::Moved)));
    }

    #[test]
    fn what_lies_deep_is_found_again_or_given_up() {
        let temp = tempfile::tempdir().unwrap();
        let deep = "d/".repeat(HELD + 20);
        fs::create_dir_all(temp.path().join(&deep).join("bottom")).unwrap();
        fs::create_dir(temp.path().join(&deep).join("other")).unwrap();
        let rules = rules(LONG);
        assert_eq!(Walk::new(&rules).run(open(temp.path()), Eyes::Root), Ok(()));
        let mut walk = Walk::new(&rules);
        walk.enter(open(temp.path()), Eyes::Root).unwrap();
        walk_to(&mut walk, &temp.path().join(&deep));
        // Nothing but the first ones is open.
        let open_dirs = walk.levels.iter().filter(|level| level.dir.is_some());
        assert_eq!(open_dirs.count(), HELD + 1);
        fs::rename(temp.path().join(&deep), temp.path().join("moved")).unwrap();
        assert_eq!(rest(walk), (2, Err(Left::Moved)));
    }

    #[test]
    fn it_ends_in_time_and_says_so() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("dir")).unwrap();
        let patience = |limit| Patience { limit, walks: 3 };
        let workspaces = [open(temp.path())];
        let hand_over = |limit| hand_over(&workspaces, i64::MAX, &[], patience(limit));
        assert_eq!(hand_over(LONG), Ok(()));
        assert_eq!(hand_over(Duration::ZERO), Err(Left::Time));
    }

    #[test]
    fn what_is_older_than_the_sandbox_by_more_than_the_clocks_grain_is_left_alone() {
        let made_at = 100 * 1_000_000_000 + 500_000_000;
        for (seconds, nanoseconds, expected) in [
            (100, 500_000_000, true),
            (100, 490_000_001, true),
            (100, 489_000_000, false),
            (101, 1, true),
            (99, 999_999_999, false),
            (100, 0, true),
            (99, 0, true),
            (98, 0, false),
            (i64::MAX, 1, true),
            (i64::MIN, 1, false),
        ] {
            assert_eq!(
                changed_since(seconds, nanoseconds, made_at),
                expected,
                "{seconds}.{nanoseconds}"
            );
        }
    }
}
