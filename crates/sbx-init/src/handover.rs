//! Files that root (or another id) made in a workspace are given to the agent, who is the caller outside.
//!
//! Runs in init's own mount namespace, where nothing from inside can be mounted over a workspace, or in a helper's when
//! init was killed; and with the outer user namespace's power only: ids of the sandbox's range can be changed, no others.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode as FileMode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use sbx_proto::plan::Node;

const AGENT: u32 = 1000;

/// As coarse as the kernel's clock for files is: it may be a tick behind.
const TICK: i64 = 10_000_000;
/// Times of some file systems are that coarse. Their nanoseconds are zero.
const COARSE: i64 = 2_000_000_000;

/// Walks every workspace, from its directory as it was mounted: the names that lead to it can be changed from
/// inside. What cannot be changed (a file of some other host user) is left alone, and so is what nobody has changed
/// since `made_at` (nanoseconds of the Unix epoch): other programs that use subordinate ids have files of theirs.
/// `spared` is left alone with everything below it.
pub(crate) fn hand_over(workspaces: &[OwnedFd], made_at: i64, spared: &[Node]) {
    for workspace in workspaces {
        // Opened anew: what is read here must not be what another walk has read already.
        if let Ok(root) = rustix::fs::openat(workspace, c".", DIRECTORY, FileMode::empty()) {
            if rustix::fs::fstat(&root).is_ok_and(|stat| is_to_be_given(&stat, made_at)) {
                let (uid, gid) = (Uid::from_raw(AGENT), Gid::from_raw(AGENT));
                let _ = rustix::fs::fchown(&root, Some(uid), Some(gid));
            }
            // A directory that is moved under way ends the walk of that workspace; the next one goes on.
            let _ = walk(root, &Rules { made_at, spared });
        }
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// What is left alone.
struct Rules<'a> {
    made_at: i64,
    spared: &'a [Node],
}

/// A directory above the current one: who it was, and what is still to be visited in it.
struct Level {
    identity: Node,
    subdirectories: Vec<CString>,
}

/// Depth first with one open descriptor, whatever the depth. Going up is by `..`, checked against the
/// directory that was left: a hostile rename must not lead the walk out.
fn walk(root: OwnedFd, rules: &Rules<'_>) -> Result<(), Errno> {
    let mut current = root;
    let mut levels = vec![enter(current.as_fd(), rules)?];
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.subdirectories.pop() {
            let Ok(below) = rustix::fs::openat(&current, &name, DIRECTORY, FileMode::empty())
            else {
                continue;
            };
            current = below;
            levels.push(enter(current.as_fd(), rules)?);
            continue;
        }
        levels.pop();
        if let Some(above) = levels.last() {
            current = rustix::fs::openat(&current, c"..", DIRECTORY, FileMode::empty())?;
            if identity(&rustix::fs::fstat(&current)?) != above.identity {
                return Err(Errno::STALE);
            }
        }
    }
    Ok(())
}

/// Changes the owner of everything in one directory that was changed since.
fn enter(dir: BorrowedFd<'_>, rules: &Rules<'_>) -> Result<Level, Errno> {
    let mut subdirectories = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = CString::from(entry?.file_name());
        if name.as_c_str() == c"." || name.as_c_str() == c".." {
            continue;
        }
        let Ok(stat) = rustix::fs::statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        if rules.spared.contains(&identity(&stat)) {
            continue;
        }
        if is_to_be_given(&stat, rules.made_at) {
            let (uid, gid) = (Uid::from_raw(AGENT), Gid::from_raw(AGENT));
            let _ =
                rustix::fs::chownat(dir, &name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            subdirectories.push(name);
        }
    }
    Ok(Level {
        identity: identity(&rustix::fs::fstat(dir)?),
        subdirectories,
    })
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
    use super::*;

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
