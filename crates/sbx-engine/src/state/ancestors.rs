//! Directories above the state directory. A user who can rename one of them can put another directory in its place, with
//! sockets that get the next command and its environment.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const GROUP_WRITE: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// Only the owners of a directory's entries, and its own, may rename them.
const STICKY: u32 = 0o1000;
/// How the kernel shows ids that have no place in the user namespace, unless it was told another number.
const OVERFLOW_ID: u32 = 65_534;

/// What decides whether a directory's entries can be renamed by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Facts {
    owner: u32,
    group: u32,
    mode: u32,
}

/// Who asks.
#[derive(Debug)]
struct Caller {
    uid: u32,
    /// A group that no other account is in.
    own_group: Option<u32>,
    /// Ids of other user namespaces are all shown as [`OVERFLOW_ID`].
    in_user_namespace: bool,
}

/// The directory above `root`, by its name or by where links lead, in which another user can rename the next one.
pub(super) fn renamable(root: &Path) -> Option<PathBuf> {
    let real = root.ancestors().find_map(|above| {
        let real = fs::canonicalize(above).ok()?;
        Some(real.join(root.strip_prefix(above).ok()?))
    });
    let names = [Some(root.to_path_buf()), real];
    let above: BTreeSet<PathBuf> = names
        .iter()
        .flatten()
        .flat_map(|name| name.ancestors().skip(1))
        .map(Path::to_path_buf)
        .collect();
    let mut caller = None;
    above.into_iter().find(|dir| {
        let Ok(meta) = fs::metadata(dir) else {
            return false; // made by us, later
        };
        let caller = caller.get_or_insert_with(Caller::this_process);
        !caller.trusts(Facts::of(&meta))
    })
}

impl Facts {
    fn of(meta: &Metadata) -> Self {
        Self {
            owner: meta.uid(),
            group: meta.gid(),
            mode: meta.mode(),
        }
    }
}

impl Caller {
    fn this_process() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let is_own = is_private_group(&text("/etc/passwd"), &text("/etc/group"), uid, gid);
        let map = text("/proc/self/uid_map");
        Self {
            uid,
            own_group: is_own.then_some(gid),
            in_user_namespace: !map.split_whitespace().eq(["0", "0", "4294967295"]),
        }
    }

    fn trusts(&self, dir: Facts) -> bool {
        let owner_is_known = dir.owner == 0 || dir.owner == self.uid;
        let owner_is_outside = self.in_user_namespace && dir.owner == OVERFLOW_ID;
        let group_is_trusted = dir.group == 0 || self.own_group == Some(dir.group);
        let by_group = dir.mode & GROUP_WRITE != 0 && !group_is_trusted;
        let by_others = dir.mode & OTHERS_WRITE != 0;
        (owner_is_known || owner_is_outside) && (dir.mode & STICKY != 0 || !(by_group || by_others))
    }
}

/// Many systems give each user a group of the same name, and a umask by which it may write everything.
fn is_private_group(passwd: &str, group: &str, uid: u32, gid: u32) -> bool {
    let field = |line: &str, n: usize| line.split(':').nth(n).map(str::to_owned);
    let number = |line: &str, n: usize| field(line, n).and_then(|text| text.parse::<u32>().ok());
    let others_have_it = passwd
        .lines()
        .any(|line| number(line, 3) == Some(gid) && number(line, 2) != Some(uid));
    let user = passwd.lines().find(|line| number(line, 2) == Some(uid));
    let user = user.and_then(|line| field(line, 0));
    let members = group
        .lines()
        .filter(|line| number(line, 2) == Some(gid))
        .filter_map(|line| field(line, 3))
        .collect::<Vec<_>>()
        .join(",");
    let mut members = members.split(',').map(str::trim);
    let only_caller = members.all(|member| member.is_empty() || Some(member) == user.as_deref());
    !others_have_it && only_caller
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn users_that_can_rename_entries_of_a_directory() {
        let caller = Caller {
            uid: 1000,
            own_group: Some(1000),
            in_user_namespace: false,
        };
        let trusts = |owner, group, mode| caller.trusts(Facts { owner, group, mode });
        assert!(trusts(0, 0, 0o755) && trusts(1000, 1000, 0o700) && trusts(0, 0, 0o1777));
        assert!(trusts(1000, 1000, 0o775) && trusts(0, 0, 0o775));
        // Another owner, also of a sticky one; another group; others.
        assert!(!trusts(1001, 1000, 0o755) && !trusts(1001, 0, 0o1777));
        assert!(!trusts(1000, 100, 0o775) && !trusts(0, 0, 0o777));
        assert!(trusts(1000, 100, 0o1775));
        assert!(!trusts(OVERFLOW_ID, 0, 0o755));
        let nested = Caller {
            in_user_namespace: true,
            ..caller
        };
        let outside = Facts {
            owner: OVERFLOW_ID,
            group: OVERFLOW_ID,
            mode: 0o755,
        };
        assert!(nested.trusts(outside));
    }

    #[test]
    fn a_group_of_one_user() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:\nbob:x:1001:100::/:\neve:x:1002:100::/:\n";
        let group = "ann:x:1000:\nusers:x:100:\nteam:x:200:ann,bob\nmine:x:201:ann\n";
        let is_private = |uid, gid| is_private_group(passwd, group, uid, gid);
        assert!(is_private(1000, 1000) && is_private(1000, 201) && is_private(0, 0));
        assert!(!is_private(1001, 100) && !is_private(1000, 200));
    }

    #[test]
    fn directories_are_looked_at_by_name_and_where_links_lead() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        for name in ["open/mine", "closed"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o777)).unwrap();
        symlink(at("open/mine"), at("closed/link")).unwrap();
        symlink(at("closed"), at("open/link")).unwrap();
        assert_eq!(renamable(&at("closed/state")), None);
        assert_eq!(renamable(&at("closed/new/state")), None);
        for name in [
            "open/state",
            "open/mine/a/b",
            "closed/link/state",
            "open/link/state",
        ] {
            assert_eq!(renamable(&at(name)), Some(at("open")), "{name}");
        }
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(renamable(&at("open/mine/a")), None);
    }
}
