//! Hand-over: files that root or another id created in a workspace are given (`chown`) to the agent, which is the
//! workspace's owner on the host.
//!
//! It runs in init's mount namespace, where nothing from inside can be mounted over a workspace, or in a helper's if init
//! was killed. Its CAP_CHOWN is in the outer user namespace: the kernel lets it change ids of the sandbox's range and no
//! others. Programs inside may rename directories during the walk, so it goes by descriptors, one name at a time with
//! `O_NOFOLLOW`, and verifies device and inode before it trusts `..`. Only files whose ctime is after the creation of the
//! sandbox are changed: other programs of the user may use the same subordinate ids.

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

/// The id that unmapped ids appear as (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_ID: u32 = 65534;

/// The kernel's coarse clock, which file times come from, may be a tick behind.
const CLOCK_GRAIN_NS: i64 = 10_000_000;
/// Some file systems store times this coarsely; their nanoseconds are zero.
const COARSE_GRAIN_NS: i64 = 2_000_000_000;

/// How many directories of a walk stay open. A rename below them does not end the walk.
const MAX_OPEN_DIRS: usize = 32;
/// Deeper than any path that programs can name.
const MAX_DEPTH: usize = 10_000;

/// How much work one hand-over may do. Other sandboxes may share the workspace and change it during the walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// For all workspaces together.
    pub(crate) timeout: Duration,
    /// How often a workspace is walked if something moves in it.
    pub(crate) walks: u32,
}

impl Budget {
    /// A client waits for the exit status. The next command, or the stop, does the rest.
    pub(crate) const AFTER_COMMAND: Self = Self {
        timeout: Duration::from_secs(5),
        walks: 1,
    };
    /// Less than the daemon waits for init. Its helper does the rest.
    pub(crate) const AT_STOP: Self = Self {
        timeout: Duration::from_millis(1500),
        walks: 2,
    };

    /// For a helper, when init is dead.
    pub(crate) fn within(timeout: Duration) -> Self {
        Self { timeout, walks: 4 }
    }
}

/// Why some files may still have another owner. Ordered by severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Error)]
pub(crate) enum Incomplete {
    #[error("the kernel refused to change the owner of some files")]
    Denied,
    #[error("files were moved during the walk")]
    Moved,
    #[error("cannot open a workspace")]
    Unreadable,
    #[error("directories are nested too deeply")]
    TooDeep,
    #[error("timed out")]
    TimedOut,
}

/// Walks every workspace, starting from a descriptor of its root: the path that leads to it can be changed from inside.
/// Skipped are files of other host users, files whose last change was before `made_at` (nanoseconds since the Unix epoch),
/// and the directories in `excluded` with everything below them.
pub(crate) fn hand_over(
    workspaces: &[OwnedFd],
    made_at: i64,
    excluded: &[Node],
    budget: Budget,
) -> Result<(), Incomplete> {
    let rules = Rules {
        made_at,
        excluded,
        deadline: Instant::now() + budget.timeout,
    };
    let mut left = Ok(());
    for workspace in workspaces {
        // A failure in one workspace does not keep the next from being done.
        left = left.and(hand_over_one(workspace, &rules, budget.walks));
    }
    left
}

fn hand_over_one(workspace: &OwnedFd, rules: &Rules<'_>, walks: u32) -> Result<(), Incomplete> {
    let mut left = Ok(());
    for _ in 0..walks {
        // A new open file description: a duplicate would share the directory offset with other walks.
        let (root, read_as) = match open_root(workspace) {
            Ok(opened) => opened,
            // No id of the sandbox can enter, so none has made a file in it.
            Err(Errno::ACCESS | Errno::PERM) => return Ok(()),
            Err(_) => return Err(Incomplete::Unreadable),
        };
        if rustix::fs::fstat(&root).is_ok_and(|stat| needs_new_owner(&stat, rules.made_at)) {
            let (uid, gid) = (Uid::from_raw(AGENT), Gid::from_raw(AGENT));
            let _ = rustix::fs::fchown(&root, Some(uid), Some(gid));
        }
        left = Walk::new(rules).run(root, read_as);
        match left {
            // A moved directory may be where the walk had been already: walk again.
            Err(Incomplete::Moved) => {}
            Ok(())
            | Err(
                Incomplete::Denied
                | Incomplete::Unreadable
                | Incomplete::TooDeep
                | Incomplete::TimedOut,
            ) => return left,
        }
    }
    left
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Which file system uid a directory is read with. Capabilities of root apply only to inodes whose uid and gid are both
/// mapped (`capable_wrt_inode_uidgid`). Where the group is not, the agent may enter where root may not, and then `sudo`
/// from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadAs {
    Root,
    Agent,
}

impl ReadAs {
    fn run<T>(self, work: impl FnOnce() -> T) -> T {
        match self {
            Self::Root => work(),
            Self::Agent => with_fsuid(AGENT, work),
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Root => Self::Agent,
            Self::Agent => Self::Root,
        }
    }
}

fn open_root(workspace: &OwnedFd) -> rustix::io::Result<(OwnedFd, ReadAs)> {
    let open = |read_as: ReadAs| {
        let opened =
            read_as.run(|| rustix::fs::openat(workspace, c".", DIRECTORY, FileMode::empty()));
        opened.map(|dir| (dir, read_as))
    };
    match open(ReadAs::Root) {
        Err(Errno::ACCESS | Errno::PERM) => open(ReadAs::Agent),
        other => other,
    }
}

/// Opens a subdirectory, and returns which uid can read it.
fn open_below(
    dir: &OwnedFd,
    name: &CStr,
    read_as: ReadAs,
) -> rustix::io::Result<(OwnedFd, ReadAs)> {
    match read_as.run(|| rustix::fs::openat(dir, name, DIRECTORY, FileMode::empty())) {
        Ok(below) => return Ok((below, read_as)),
        Err(Errno::ACCESS | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    let flags = DIRECTORY.union(OFlags::PATH);
    let place = read_as.run(|| rustix::fs::openat(dir, name, flags, FileMode::empty()))?;
    let others = read_as.other();
    let below = others.run(|| rustix::fs::openat(&place, c".", DIRECTORY, FileMode::empty()))?;
    Ok((below, others))
}

/// Opens the parent directory by `..`: found as the uid that can read `dir`, opened as the one that can read the parent.
fn open_above(dir: &OwnedFd, below: ReadAs, above: ReadAs) -> Option<OwnedFd> {
    let flags = DIRECTORY.union(OFlags::PATH);
    let place = below.run(|| rustix::fs::openat(dir, c"..", flags, FileMode::empty()));
    let place = place.ok()?;
    let opened = above.run(|| rustix::fs::openat(&place, c".", DIRECTORY, FileMode::empty()));
    opened.ok()
}

/// What is skipped, and when the walk ends.
struct Rules<'a> {
    made_at: i64,
    excluded: &'a [Node],
    deadline: Instant,
}

/// A directory on the path to the current one, and what is still to be visited in it.
struct Level {
    identity: Node,
    read_as: ReadAs,
    /// `None` below [`MAX_OPEN_DIRS`], until the walk returns to it.
    dir: Option<OwnedFd>,
    subdirectories: Vec<CString>,
}

/// A depth-first walk with a bounded number of open descriptors.
struct Walk<'a> {
    rules: &'a Rules<'a>,
    levels: Vec<Level>,
    left: Result<(), Incomplete>,
}

impl<'a> Walk<'a> {
    fn new(rules: &'a Rules<'a>) -> Self {
        Self {
            rules,
            levels: Vec::new(),
            left: Ok(()),
        }
    }

    fn run(mut self, root: OwnedFd, read_as: ReadAs) -> Result<(), Incomplete> {
        self.enter(root, read_as)?;
        while !self.levels.is_empty() {
            self.step()?;
        }
        self.left
    }

    /// Visits one more directory, or leaves one.
    fn step(&mut self) -> Result<(), Incomplete> {
        let Some(level) = self.levels.last_mut() else {
            return Ok(());
        };
        let (Some(name), Some(dir)) = (level.subdirectories.pop(), &level.dir) else {
            self.leave();
            return Ok(());
        };
        match open_below(dir, &name, level.read_as) {
            Ok((below, read_as)) => return self.enter(below, read_as),
            // Not accessible, so another user's.
            Err(Errno::ACCESS | Errno::PERM) => {}
            // It was listed a moment ago.
            Err(_) => self.note(Incomplete::Moved),
        }
        Ok(())
    }

    fn enter(&mut self, dir: OwnedFd, read_as: ReadAs) -> Result<(), Incomplete> {
        let Ok(stat) = rustix::fs::fstat(&dir) else {
            self.note(Incomplete::Moved);
            return Ok(());
        };
        let identity = identity(&stat);
        // Checked again now that it is open: it may have been swapped in meanwhile. Not for the root of the walk.
        if !self.levels.is_empty() && self.rules.excluded.contains(&identity) {
            return Ok(());
        }
        // A directory that was moved below itself, or is mounted there: it is being visited already.
        if self.levels.iter().any(|above| above.identity == identity) {
            return Ok(());
        }
        if self.levels.len() >= MAX_DEPTH {
            self.note(Incomplete::TooDeep);
            return Ok(());
        }
        let subdirectories = self.chown_entries(&dir, read_as)?;
        if self.levels.len() > MAX_OPEN_DIRS
            && let Some(above) = self.levels.last_mut()
        {
            above.dir = None;
        }
        self.levels.push(Level {
            identity,
            read_as,
            dir: Some(dir),
            subdirectories,
        });
        Ok(())
    }

    /// Changes the owner of the entries of one directory. Returns its subdirectories.
    fn chown_entries(
        &mut self,
        dir: &OwnedFd,
        read_as: ReadAs,
    ) -> Result<Vec<CString>, Incomplete> {
        let mut subdirectories = Vec::new();
        let Ok(entries) = read_as.run(|| Dir::read_from(dir)) else {
            self.note(Incomplete::Moved);
            return Ok(subdirectories);
        };
        for entry in entries {
            if Instant::now() >= self.rules.deadline {
                return Err(Incomplete::TimedOut);
            }
            let Ok(entry) = entry else {
                self.note(Incomplete::Moved);
                break;
            };
            let name = CString::from(entry.file_name());
            if name.as_c_str() == c"." || name.as_c_str() == c".." {
                continue;
            }
            let look = || rustix::fs::statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW);
            let Ok(stat) = read_as.run(look) else {
                self.note(Incomplete::Moved);
                continue;
            };
            if self.rules.excluded.contains(&identity(&stat)) {
                continue;
            }
            if needs_new_owner(&stat, self.rules.made_at) {
                self.chown_entry(dir, &name, &stat, read_as);
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                subdirectories.push(name);
            }
        }
        Ok(subdirectories)
    }

    fn chown_entry(&mut self, dir: &OwnedFd, name: &CStr, stat: &Stat, read_as: ReadAs) {
        let (uid, gid) = (Uid::from_raw(AGENT), Gid::from_raw(AGENT));
        let given = match read_as {
            ReadAs::Root => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(dir, name, Some(uid), Some(gid), flags)
            }
            ReadAs::Agent => Err(Errno::PERM),
        };
        // A file of the agent in a setgid directory of an unmapped group already belongs to the caller; its group stays.
        if given == Err(Errno::PERM)
            && stat.st_uid != AGENT
            && chown_with_foreign_group(dir, name, read_as) == Err(Errno::PERM)
            && stat.st_uid != OVERFLOW_ID
        {
            self.note(Incomplete::Denied);
        }
    }

    /// Returns to the parent. One that is not open is found by `..`, and its device and inode are compared: a hostile rename
    /// must not lead the walk out of the workspace. If they differ, the walk continues at the last directory that is open.
    fn leave(&mut self) {
        let Some(left) = self.levels.pop() else {
            return;
        };
        let Some(level) = self.levels.last_mut().filter(|level| level.dir.is_none()) else {
            return;
        };
        let above = left
            .dir
            .and_then(|dir| open_above(&dir, left.read_as, level.read_as));
        let same =
            |dir: &OwnedFd| rustix::fs::fstat(dir).is_ok_and(|s| identity(&s) == level.identity);
        match above.filter(same) {
            Some(dir) => level.dir = Some(dir),
            None => {
                self.note(Incomplete::Moved);
                while self.levels.pop_if(|level| level.dir.is_none()).is_some() {}
            }
        }
    }

    /// Keeps the most severe.
    fn note(&mut self, left: Incomplete) {
        self.left = Err(self.left.err().map_or(left, |before| before.max(left)));
    }
}

/// In a setgid directory of an unmapped group even root may not chown: its capabilities need both ids to be mapped. The
/// owner, however, may change the group to one of its own; after that root may chown.
fn chown_with_foreign_group(dir: &OwnedFd, name: &CStr, read_as: ReadAs) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = read_as.run(|| rustix::fs::openat(dir, name, flags, FileMode::empty()))?;
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

fn needs_new_owner(stat: &Stat, made_at: i64) -> bool {
    let others = stat.st_uid != AGENT || stat.st_gid != AGENT;
    others && changed_since(stat.st_ctime, stat.st_ctime_nsec as i64, made_at)
}

/// Whether a file with this ctime can have been changed at or after `moment`.
fn changed_since(seconds: i64, nanoseconds: i64, moment: i64) -> bool {
    let slack = if nanoseconds == 0 {
        COARSE_GRAIN_NS
    } else {
        CLOCK_GRAIN_NS
    };
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

    /// No owner is changed: these tests are about the walk.
    fn rules(limit: Duration) -> Rules<'static> {
        Rules {
            made_at: i64::MAX,
            excluded: &[],
            deadline: Instant::now() + limit,
        }
    }

    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    fn open(path: &Path) -> OwnedFd {
        rustix::fs::open(path, DIRECTORY, FileMode::empty()).unwrap()
    }

    /// Walks until this is the current directory.
    fn walk_to(walk: &mut Walk<'_>, path: &Path) {
        let wanted = identity(&rustix::fs::stat(path).unwrap());
        while walk.levels.last().unwrap().identity != wanted {
            walk.step().unwrap();
        }
    }

    /// Finishes a walk: how many more directories it visits, and its result.
    fn rest(mut walk: Walk<'_>) -> (usize, Result<(), Incomplete>) {
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
        let rules = rules(TEST_TIMEOUT);
        let mut walk = Walk::new(&rules);
        walk.enter(open(temp.path()), ReadAs::Root).unwrap();
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
        let rules = rules(TEST_TIMEOUT);
        let mut walk = Walk::new(&rules);
        walk.enter(open(temp.path()), ReadAs::Root).unwrap();
        walk_to(&mut walk, &at("b"));
        let first = walk.levels[1].subdirectories.last().unwrap().clone();
        let first = first.into_string().unwrap();
        walk.step().unwrap();
        fs::rename(at("b").join(&first), at("away").join(&first)).unwrap();
        // Listed, and gone when its turn comes.
        walk.levels[0].subdirectories = vec![c"a".into()];
        fs::rename(at("a"), at("away/a")).unwrap();
        assert_eq!(rest(walk), (1, Err(Incomplete::Moved)));
    }

    #[test]
    fn a_deep_directory_is_found_again_by_dotdot_or_given_up() {
        let temp = tempfile::tempdir().unwrap();
        let deep = "d/".repeat(MAX_OPEN_DIRS + 20);
        fs::create_dir_all(temp.path().join(&deep).join("bottom")).unwrap();
        fs::create_dir(temp.path().join(&deep).join("other")).unwrap();
        let rules = rules(TEST_TIMEOUT);
        assert_eq!(
            Walk::new(&rules).run(open(temp.path()), ReadAs::Root),
            Ok(())
        );
        let mut walk = Walk::new(&rules);
        walk.enter(open(temp.path()), ReadAs::Root).unwrap();
        walk_to(&mut walk, &temp.path().join(&deep));
        // Nothing but the first ones is open.
        let open_dirs = walk.levels.iter().filter(|level| level.dir.is_some());
        assert_eq!(open_dirs.count(), MAX_OPEN_DIRS + 1);
        fs::rename(temp.path().join(&deep), temp.path().join("moved")).unwrap();
        assert_eq!(rest(walk), (2, Err(Incomplete::Moved)));
    }

    #[test]
    fn a_hand_over_ends_at_its_deadline() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("dir")).unwrap();
        let budget = |timeout| Budget { timeout, walks: 3 };
        let workspaces = [open(temp.path())];
        let hand_over = |limit| hand_over(&workspaces, i64::MAX, &[], budget(limit));
        assert_eq!(hand_over(TEST_TIMEOUT), Ok(()));
        assert_eq!(hand_over(Duration::ZERO), Err(Incomplete::TimedOut));
    }

    #[test]
    fn files_older_than_the_sandbox_are_skipped_with_the_clocks_grain_as_slack() {
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
