//! Which privilege mode the machine offers this caller, and how ids inside relate to ids outside.
//!
//! Pure functions over [`Facts`]; [`Facts::read`] is the only part that looks at the machine.
//!
//! - Root: each sandbox has a range of 65536 host ids of its own, between `FIRST_BASE` and `LAST_BASE`. No account that
//!   the name service lists has an id in it (`accounts`), no range of `/etc/subuid` and `/etc/subgid` overlaps it, and no
//!   other sandbox of root on this machine has it, whatever its state directory (`id_claims`).
//! - Subordinate: the caller's range of `/etc/subuid` is mapped by `newuidmap`, with a gap at [`AGENT`], where the
//!   caller's own id is. So the agent's files in a workspace are the caller's, without any hand-over.
//! - Single: an unprivileged process may map only its own id (`user_namespaces(7)`), which becomes the agent's.
//!
//! Host uid 0 is in no map of any mode.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::cgroup::Controllers;
use super::id_claims::IdClaims;
use sbx_proto::OsBytes;
use sbx_proto::inside::AGENT;
use sbx_proto::plan::{IdRange, Ids, Mappers, Mode};
use serde::Deserialize;
use thiserror::Error;

/// Ids that a sandbox has inside.
pub const RANGE: u32 = 65_536;
/// Above what systems hand out to users and to `/etc/subuid`.
const FIRST_BASE: u32 = 0x2000_0000;
const LAST_BASE: u32 = 0x7000_0000;
/// What the subordinate map takes of each file: all ids inside but the agent's.
const SUBORDINATE_NEEDED: u32 = RANGE - 1;
/// A map of ids has 340 lines at most, of 33 bytes.
const LONGEST_MAP: usize = 12 << 10;
/// More than one line of such a map.
const ONE_LINE: usize = 64;
/// Where `useradd` begins to hand out subordinate ids.
const FIRST_SUBORDINATE: u32 = 100_000;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum IdsError {
    #[error("no free range of {RANGE} ids is left for a sandbox")]
    Exhausted,
    #[error("no subordinate ids in /etc/subuid and /etc/subgid")]
    NoSubordinateIds,
    #[error("root is only root of a user namespace here, which has no ids for sandboxes")]
    Confined,
}

impl IdsError {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Exhausted | Self::NoSubordinateIds => "sbx diagnose",
            Self::Confined => CONFINED_REMEDY,
        }
    }
}

/// What helps root of a user namespace.
pub const CONFINED_REMEDY: &str = "run sbx outside of the user namespace (`unshare -r`, a rootless container), or in it as another user";

/// What helps a caller whose group is not the one of the account.
pub const OTHER_GROUP_REMEDY: &str =
    "leave the shell of `newgrp` or `sg` (or log in again), then `sbx daemon restart`";

/// A weaker mode than the strongest one, by the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModeOverride {
    Single,
    Subordinate,
}

/// A run of ids of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    pub first: u32,
    pub count: u32,
}

/// What the machine says about the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub uid: u32,
    pub gid: u32,
    /// The caller's subordinate ids, in the order of the files.
    pub subuid: Vec<Span>,
    pub subgid: Vec<Span>,
    /// Every subordinate range of the machine, of all users.
    pub reserved: Vec<Span>,
    /// `newuidmap` and `newgidmap` are installed, and know the caller: they refuse a user without a name.
    pub map_tools: Option<Mappers>,
    /// The caller's group is not the one that the account has, as after `newgrp`: the map tools refuse such a process.
    pub other_group: bool,
    /// The caller is in a user namespace that lacks the ids which sandboxes of root get: its root is another
    /// user outside.
    pub confined: bool,
    /// Where ranges of root's sandboxes are claimed; nowhere in other modes.
    pub claims: Option<IdClaims>,
    /// Control groups that sandboxes may be able to get.
    pub controllers: Controllers,
}

impl Facts {
    /// `path_dirs` are the directories of PATH, looked at after `/usr/bin`.
    pub fn read(path_dirs: &[PathBuf]) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (subuid, subgid) = (text("/etc/subuid"), text("/etc/subgid"));
        let (user, own_group) = account(&text("/etc/passwd"), uid).unzip();
        let mut reserved = spans(&subuid, |_| true);
        reserved.extend(spans(&subgid, |_| true));
        let mine = |owner: &str| owner == uid.to_string() || Some(owner) == user.as_deref();
        Self {
            uid,
            gid,
            subuid: spans(&subuid, mine),
            subgid: spans(&subgid, mine),
            reserved,
            map_tools: user.and_then(|_| map_tools(path_dirs)),
            other_group: own_group.is_some_and(|own| own != gid),
            confined: is_confined(),
            claims: (uid == 0).then(IdClaims::of_this_machine),
            controllers: if uid == 0 {
                Controllers::of_this_machine()
            } else {
                Controllers::delegated()
            },
        }
    }

    /// The first and last of [`RANGE`] ids that could become the caller's: no user has them as uids or gids.
    pub fn free_subordinate(&self) -> Option<(u32, u32)> {
        (FIRST_SUBORDINATE..FIRST_BASE)
            .step_by(RANGE as usize)
            .find(|first| !overlaps(*first, &self.reserved))
            .map(|first| (first, first + RANGE - 1))
    }

    /// Whether the caller would have subordinate ids in the group of the account.
    pub fn lacks_group(&self) -> bool {
        let own = Self {
            other_group: false,
            ..self.clone()
        };
        self.other_group && own.subordinate().is_some()
    }

    fn subordinate(&self) -> Option<(Span, Span)> {
        let enough = |spans: &[Span]| {
            spans
                .iter()
                .copied()
                .find(|s| s.count >= SUBORDINATE_NEEDED)
        };
        // newuidmap(1) and newgidmap(1) compare the real uid and gid of their caller with the account in `/etc/passwd`.
        self.map_tools.as_ref().filter(|_| !self.other_group)?;
        enough(&self.subuid).zip(enough(&self.subgid))
    }
}

/// Absolute paths: the helper that executes them has neither a PATH nor the caller's working directory.
fn map_tools(path_dirs: &[PathBuf]) -> Option<Mappers> {
    let usual = PathBuf::from("/usr/bin");
    let dirs: Vec<_> = [&usual].into_iter().chain(path_dirs).collect();
    Some(Mappers {
        uid: find(&dirs, "newuidmap")?,
        gid: find(&dirs, "newgidmap")?,
    })
}

pub(super) fn find(dirs: &[&PathBuf], tool: &str) -> Option<OsBytes> {
    dirs.iter()
        .filter(|dir| dir.is_absolute())
        .find_map(|dir| roots_own(&dir.join(tool)))
        .map(|path| path.as_path().into())
}

/// Where the file really is, if only root can have put it there: it is executed on the host, and a directory of the
/// caller's PATH may be one that programs in a sandbox write to.
fn roots_own(path: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(path).ok()?;
    let is_roots = |path: &Path| {
        fs::symlink_metadata(path).is_ok_and(|meta| meta.uid() == 0 && meta.mode() & 0o022 == 0)
    };
    (real.is_file() && real.ancestors().all(is_roots)).then_some(real)
}

/// The strongest mode, unless the settings ask for a weaker one. Root stays root: in the other modes the
/// caller's own id is in the map, and host uid 0 never may be.
pub fn pick_mode(facts: &Facts, wanted: Option<ModeOverride>) -> Mode {
    match (facts.uid, facts.subordinate(), wanted) {
        (0, _, _) => Mode::Root,
        (_, Some(_), None | Some(ModeOverride::Subordinate)) => Mode::Subordinate,
        (_, Some(_), Some(ModeOverride::Single)) | (_, None, _) => Mode::Single,
    }
}

/// The maps of a new sandbox. `used` are the bases that other sandboxes have.
pub fn maps(facts: &Facts, mode: Mode, used: Used<'_>) -> Result<Ids, IdsError> {
    let range = |inside, outside, count| IdRange {
        inside,
        outside,
        count,
    };
    let (uid, gid) = match mode {
        Mode::Root if facts.confined => return Err(IdsError::Confined),
        Mode::Root => {
            let base = used.free_base(&facts.reserved)?;
            (vec![range(0, base, RANGE)], vec![range(0, base, RANGE)])
        }
        Mode::Subordinate => {
            let (uids, gids) = facts.subordinate().ok_or(IdsError::NoSubordinateIds)?;
            (around_agent(uids, facts.uid), around_agent(gids, facts.gid))
        }
        Mode::Single => (
            vec![range(AGENT, facts.uid, 1)],
            vec![range(AGENT, facts.gid, 1)],
        ),
    };
    Ok(Ids { mode, uid, gid })
}

/// The host id of root inside, in root mode.
pub fn base(ids: &Ids) -> Option<u32> {
    match ids.mode {
        Mode::Root => ids.uid.first().map(|range| range.outside),
        Mode::Subordinate | Mode::Single => None,
    }
}

/// The subordinate ids in order, with the caller's own id in the agent's place. The first is a line of its own: root
/// inside.
fn around_agent(span: Span, caller: u32) -> Vec<IdRange> {
    let range = |inside, outside, count| IdRange {
        inside,
        outside,
        count,
    };
    let below = span.first.saturating_add(1);
    let above = span.first.saturating_add(AGENT);
    vec![
        range(0, span.first, 1),
        range(1, below, AGENT - 1),
        range(AGENT, caller, 1),
        range(AGENT + 1, above, RANGE - AGENT - 1),
    ]
}

/// Which ranges of root's sandboxes are taken.
#[derive(Debug, Clone, Copy, Default)]
pub struct Used<'a> {
    pub bases: &'a [u32],
    /// Ids of accounts.
    pub accounts: &'a [Span],
    /// Any number: where to begin to look. Then few ranges are found that another state directory has claimed.
    pub start: u32,
}

impl Used<'_> {
    fn free_base(self, reserved: &[Span]) -> Result<u32, IdsError> {
        let ranges = (LAST_BASE - FIRST_BASE) / RANGE;
        (0..ranges)
            .map(|n| FIRST_BASE + (self.start % ranges + n) % ranges * RANGE)
            .find(|base| {
                let mut taken = [reserved, self.accounts].into_iter();
                !self.bases.contains(base) && !taken.any(|ids| overlaps(*base, ids))
            })
            .ok_or(IdsError::Exhausted)
    }
}

/// Whether one of the [`RANGE`] ids from `first` on is reserved.
fn overlaps(first: u32, reserved: &[Span]) -> bool {
    reserved.iter().any(|span| {
        first < span.first.saturating_add(span.count) && span.first < first.saturating_add(RANGE)
    })
}

/// [`Facts::confined`] of this process. Every command of root asks: in few system calls.
pub fn is_confined() -> bool {
    // The whole range of ids is mapped in the initial user namespace only, which has all groups as well.
    if has_everybody(&map_of_ids::<ONE_LINE>("/proc/self/uid_map")) {
        return false;
    }
    let map = map_of_ids::<LONGEST_MAP>;
    lacks_ranges(&map("/proc/self/uid_map")) || lacks_ranges(&map("/proc/self/gid_map"))
}

/// At most `N` bytes of it, by one system call.
fn map_of_ids<const N: usize>(path: &str) -> String {
    let mut bytes = [0; N];
    let count = File::open(path)
        .and_then(|mut file| file.read(&mut bytes))
        .unwrap_or(0);
    String::from_utf8_lossy(bytes.get(..count).unwrap_or_default()).into_owned()
}

fn has_everybody(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Whether a user namespace with that map has no ids for sandboxes of root. A map that cannot be read, on a
/// kernel without user namespaces, is not what is wrong.
fn lacks_ranges(map: &str) -> bool {
    let has_them = |line: &str| {
        let mut fields = line.split_whitespace();
        let first: Option<u64> = fields.next().and_then(|first| first.parse().ok());
        let count: Option<u64> = fields.nth(1).and_then(|count| count.parse().ok());
        first.zip(count).is_some_and(|(first, count)| {
            first <= u64::from(FIRST_BASE) && u64::from(LAST_BASE) <= first + count
        })
    };
    !map.is_empty() && !map.lines().any(has_them)
}

pub(super) fn spans(text: &str, mine: impl Fn(&str) -> bool) -> Vec<Span> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.trim().split(':');
            let owner = fields.next()?;
            let first = fields.next()?.parse().ok()?;
            let count = fields.next()?.parse().ok()?;
            mine(owner).then_some(Span { first, count })
        })
        .collect()
}

/// The name and the group that the account database has for a user.
fn account(passwd: &str, uid: u32) -> Option<(String, u32)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let id: u32 = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        (id == uid).then(|| (name.to_owned(), group))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(inside: u32, outside: u32, count: u32) -> IdRange {
        IdRange {
            inside,
            outside,
            count,
        }
    }

    fn user(count: u32) -> Facts {
        let span = Span {
            first: 100_000,
            count,
        };
        Facts {
            uid: 1001,
            gid: 1002,
            subuid: vec![span],
            subgid: vec![span],
            reserved: vec![span],
            map_tools: Some(Mappers {
                uid: "/usr/bin/newuidmap".into(),
                gid: "/usr/bin/newgidmap".into(),
            }),
            other_group: false,
            confined: false,
            claims: None,
            controllers: Controllers::default(),
        }
    }

    #[test]
    fn a_mapper_that_another_user_may_have_planted_is_not_found() {
        let temp = tempfile::tempdir().unwrap();
        let planted = temp.path().to_owned();
        fs::copy("/bin/true", planted.join("true")).unwrap();
        let usual = PathBuf::from("/usr/bin");
        assert_eq!(find(&[&planted], "true"), None);
        let found = find(&[&planted, &usual], "true").unwrap();
        assert!(found.as_path().starts_with("/usr"), "{found:?}");
        // By a link to it, too.
        std::os::unix::fs::symlink("/usr/bin/true", planted.join("linked")).unwrap();
        assert!(find(&[&planted], "linked").is_some());
        std::os::unix::fs::symlink(planted.join("true"), planted.join("elsewhere")).unwrap();
        assert_eq!(find(&[&planted], "elsewhere"), None);
        // A directory is not a program, and a relative PATH entry is not used.
        let [lib, usr] = ["/usr/lib", "/usr"].map(PathBuf::from);
        assert_eq!(find(&[&usr], "lib"), None);
        assert_eq!(find(&[&lib, &PathBuf::from(".")], "true"), None);
    }

    #[test]
    fn a_range_with_an_account_in_it_is_passed_over() {
        let root = Facts::default();
        let base_with = |accounts: &[Span]| {
            let used = Used {
                accounts,
                ..Used::default()
            };
            base(&maps(&root, Mode::Root, used).unwrap()).unwrap()
        };
        assert_eq!(base_with(&[]), FIRST_BASE);
        let account = |first| Span { first, count: 1 };
        for first in [FIRST_BASE, FIRST_BASE + 1000, FIRST_BASE + RANGE - 1] {
            assert_eq!(base_with(&[account(first)]), FIRST_BASE + RANGE);
        }
        assert_eq!(base_with(&[account(FIRST_BASE + RANGE)]), FIRST_BASE);
    }

    #[test]
    fn root_of_a_user_namespace_is_not_the_hosts_root() {
        let machine = "         0          0 4294967295\n";
        let unshared = "         0       1001          1\n";
        let rootless = "         0       1001          1\n         1     100000      65536\n";
        let roomy = "         0          1 2147483647\n";
        let everybody = [machine, unshared, rootless, roomy, ""].map(has_everybody);
        assert_eq!(everybody, [true, false, false, false, false]);
        let lacking = [machine, unshared, rootless, roomy, ""].map(lacks_ranges);
        assert_eq!(lacking, [false, true, true, false, false]);
        let root = Facts {
            confined: true,
            ..Facts::default()
        };
        let mode = pick_mode(&root, None);
        assert_eq!(maps(&root, mode, Used::default()), Err(IdsError::Confined));
        let user = Facts {
            confined: true,
            ..user(65_536)
        };
        assert!(maps(&user, pick_mode(&user, None), Used::default()).is_ok());
    }

    #[test]
    fn the_strongest_mode_is_picked_and_can_only_be_weakened() {
        let root = Facts::default();
        assert_eq!(pick_mode(&root, None), Mode::Root);
        assert_eq!(pick_mode(&root, Some(ModeOverride::Single)), Mode::Root);
        let full = user(65_536);
        assert_eq!(pick_mode(&full, None), Mode::Subordinate);
        assert_eq!(pick_mode(&full, Some(ModeOverride::Single)), Mode::Single);
        assert_eq!(pick_mode(&user(65_535), None), Mode::Subordinate);
        assert_eq!(pick_mode(&user(65_534), None), Mode::Single);
        assert_eq!(
            pick_mode(&user(1), Some(ModeOverride::Subordinate)),
            Mode::Single
        );
        let no_tools = Facts {
            map_tools: None,
            ..user(65_536)
        };
        assert_eq!(pick_mode(&no_tools, None), Mode::Single);
        let regrouped = Facts {
            other_group: true,
            ..user(65_536)
        };
        assert_eq!(pick_mode(&regrouped, None), Mode::Single);
        assert!(regrouped.lacks_group() && !user(65_536).lacks_group());
        let poor = Facts {
            other_group: true,
            ..user(1)
        };
        assert!(!poor.lacks_group(), "the group takes nothing away");
    }

    #[test]
    fn an_account_has_a_name_and_a_group() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken:x:7\nme:x:1001:1002::/home/me:\n";
        let me = Some(("me".to_owned(), 1002));
        assert_eq!(account(passwd, 1001), me);
        assert_eq!([account(passwd, 7), account(passwd, 8)], [None, None]);
    }

    #[test]
    fn maps_of_each_mode() {
        let facts = user(65_536);
        assert_eq!(
            maps(&facts, Mode::Subordinate, Used::default()).unwrap(),
            Ids {
                mode: Mode::Subordinate,
                uid: vec![
                    range(0, 100_000, 1),
                    range(1, 100_001, 999),
                    range(1000, 1001, 1),
                    range(1001, 101_000, 64_535),
                ],
                gid: vec![
                    range(0, 100_000, 1),
                    range(1, 100_001, 999),
                    range(1000, 1002, 1),
                    range(1001, 101_000, 64_535),
                ],
            }
        );
        assert_eq!(
            maps(&facts, Mode::Single, Used::default()).unwrap(),
            Ids {
                mode: Mode::Single,
                uid: vec![range(1000, 1001, 1)],
                gid: vec![range(1000, 1002, 1)],
            }
        );
        let used = Used {
            bases: &[FIRST_BASE],
            ..Used::default()
        };
        let root = maps(&Facts::default(), Mode::Root, used).unwrap();
        assert_eq!(root.uid, vec![range(0, FIRST_BASE + RANGE, RANGE)]);
        assert_eq!(root.gid, root.uid);
        assert_eq!(base(&root), Some(FIRST_BASE + RANGE));
    }

    #[test]
    fn bases_keep_out_of_subordinate_ranges() {
        let reserved = [Span {
            first: FIRST_BASE + RANGE - 1,
            count: 2,
        }];
        let none = Used::default();
        assert_eq!(none.free_base(&reserved), Ok(FIRST_BASE + 2 * RANGE));
        let everything = [Span {
            first: 0,
            count: u32::MAX,
        }];
        assert_eq!(none.free_base(&everything), Err(IdsError::Exhausted));
    }

    #[test]
    fn every_base_is_found_from_anywhere() {
        let ranges = (LAST_BASE - FIRST_BASE) / RANGE;
        let all: Vec<u32> = (0..ranges).map(|n| FIRST_BASE + n * RANGE).collect();
        let (last, others) = all.split_last().unwrap();
        for start in [0, 1, ranges - 1, ranges, u32::MAX] {
            let free = |bases| {
                let used = Used {
                    bases,
                    start,
                    ..Used::default()
                };
                used.free_base(&[])
            };
            assert_eq!(free(&[]), Ok(FIRST_BASE + start % ranges * RANGE));
            assert_eq!(free(others), Ok(*last));
            assert_eq!(free(&all), Err(IdsError::Exhausted));
        }
    }

    #[test]
    fn the_range_of_a_remedy_is_free() {
        let free = |reserved: &[(u32, u32)]| {
            let span = |(first, count): &(u32, u32)| Span {
                first: *first,
                count: *count,
            };
            let facts = Facts {
                reserved: reserved.iter().map(span).collect(),
                ..Facts::default()
            };
            facts.free_subordinate()
        };
        assert_eq!(free(&[]), Some((100_000, 165_535)));
        assert_eq!(free(&[(165_536, 65_536)]), Some((100_000, 165_535)));
        let taken = [(165_535, 1), (231_072, 65_536), (50_000, 50_000)];
        assert_eq!(free(&taken), Some((165_536, 231_071)));
        assert_eq!(free(&[(0, u32::MAX)]), None);
    }

    #[test]
    fn sub_id_files() {
        let text = "ann:100000:65536\n# note\n1001:200000:10\nbob:x:1\nann:300000:5\n";
        let span = |first, count| Span { first, count };
        assert_eq!(
            spans(text, |owner| owner == "ann"),
            vec![span(100_000, 65_536), span(300_000, 5)]
        );
        assert_eq!(spans(text, |_| true).len(), 3);
    }
}
