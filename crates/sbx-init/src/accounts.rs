//! The account of a command: `-u` looked up in the sandbox's own `passwd` and `group`. Pure.

use sbx_proto::inside::{AGENT, AGENT_NAME};
use sbx_proto::plan::Mode;
use sbx_sys::credentials::Credentials;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) home: String,
    pub(crate) shell: String,
    pub(crate) credentials: Credentials,
}

/// `spec` is `name|uid[:group|gid]`, the agent when absent. The files are the sandbox's and may be hostile: the ids that
/// they name are ids of the sandbox's user namespace, whatever they are.
pub(crate) fn find(
    spec: Option<&str>,
    mode: Mode,
    passwd: &str,
    group: &str,
) -> Result<Account, String> {
    let spec = spec.unwrap_or(AGENT_NAME);
    let (user, wanted_group) = match spec.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (spec, None),
    };
    if mode == Mode::Single {
        return single(user, wanted_group);
    }
    let entry = passwd_entry(user, passwd);
    let uid = match (&entry, user.parse::<u32>()) {
        (Some(entry), _) => entry.uid,
        (None, Ok(uid)) => uid,
        (None, Err(_)) => return Err(format!("unable to find user `{user}` in the sandbox")),
    };
    let gid = match wanted_group {
        Some(group_name) => group_id(group_name, group)
            .ok_or_else(|| format!("unable to find group `{group_name}` in the sandbox"))?,
        None => entry.as_ref().map_or(0, |entry| entry.gid),
    };
    if uid > 65_535 || gid > 65_535 {
        return Err(format!("`{spec}` is outside the sandbox's 65536 ids"));
    }
    let name = entry
        .as_ref()
        .map_or_else(|| uid.to_string(), |e| e.name.clone());
    // An explicit group replaces the user's supplementary groups, as in docker.
    let groups = match wanted_group {
        Some(_) => vec![gid],
        None => groups_of(&name, gid, group),
    };
    Ok(Account {
        home: entry
            .as_ref()
            .map_or_else(|| "/".to_owned(), |e| e.home.clone()),
        shell: entry.map_or_else(|| "/bin/sh".to_owned(), |e| e.shell),
        name,
        credentials: Credentials { uid, gid, groups },
    })
}

/// With one id, `agent` and `root` are two names for it.
fn single(user: &str, group: Option<&str>) -> Result<Account, String> {
    let (name, home, id, groups) = match user {
        "agent" | "1000" => (AGENT_NAME, "/home/agent", AGENT, ["agent", "1000"]),
        "root" | "0" => ("root", "/root", 0, ["root", "0"]),
        other => {
            return Err(format!(
                "user `{other}` does not exist: this sandbox runs with one id, as `agent` or (by name only) `root`"
            ));
        }
    };
    if let Some(group) = group.filter(|group| !groups.contains(group)) {
        return Err(format!(
            "group `{group}` does not exist: this sandbox runs with one id"
        ));
    }
    Ok(Account {
        name: name.into(),
        home: home.into(),
        shell: "/bin/bash".into(),
        credentials: Credentials {
            uid: id,
            gid: id,
            groups: vec![],
        },
    })
}

struct PasswdEntry {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
    shell: String,
}

fn passwd_entry(user: &str, passwd: &str) -> Option<PasswdEntry> {
    let entries = passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1)?.to_owned();
        let shell = fields.next().unwrap_or_default().to_owned();
        Some(PasswdEntry {
            name,
            uid,
            gid,
            home,
            shell,
        })
    });
    let number = user.parse::<u32>().ok();
    let mut by_number = None;
    for entry in entries {
        if entry.name == user {
            return Some(entry);
        }
        if number == Some(entry.uid) && by_number.is_none() {
            by_number = Some(entry);
        }
    }
    by_number
}

fn group_id(wanted: &str, group: &str) -> Option<u32> {
    group
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            Some((fields.next()?, fields.nth(1)?.parse().ok()?))
        })
        .find(|(name, _)| *name == wanted)
        .map(|(_, gid)| gid)
        .or_else(|| wanted.parse().ok())
}

const MAX_GROUPS: usize = 1024;

fn groups_of(name: &str, primary: u32, group: &str) -> Vec<u32> {
    let mut groups = vec![primary];
    for line in group.lines() {
        // The kernel's limit is 65,536; a hostile file must not make an exec fail or slow.
        if groups.len() == MAX_GROUPS {
            break;
        }
        let mut fields = line.split(':');
        let (Some(gid), Some(members)) =
            (fields.nth(2).and_then(|g| g.parse().ok()), fields.next())
        else {
            continue;
        };
        if gid <= 65_535
            && !groups.contains(&gid)
            && members.split(',').any(|member| member == name)
        {
            groups.push(gid);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/home/agent:/bin/bash\nbad line\nwww:x:33:33::/var/www:/usr/sbin/nologin\n";
    const GROUP: &str =
        "root:x:0:\nsudo:x:27:agent\nagent:x:1000:\nwww:x:33:\ndocker:x:999:agent,www\n";

    fn credentials(spec: Option<&str>) -> (u32, u32, Vec<u32>) {
        let found = find(spec, Mode::Root, PASSWD, GROUP).unwrap().credentials;
        (found.uid, found.gid, found.groups)
    }

    #[test]
    fn users_and_groups_by_name_and_number() {
        assert_eq!(credentials(None), (1000, 1000, vec![1000, 27, 999]));
        assert_eq!(credentials(Some("root")), (0, 0, vec![0]));
        assert_eq!(credentials(Some("33")), (33, 33, vec![33, 999]));
        assert_eq!(credentials(Some("4711")), (4711, 0, vec![0]));
        assert_eq!(credentials(Some("www:sudo")), (33, 27, vec![27]));
        assert_eq!(credentials(Some("www:28")), (33, 28, vec![28]));
        for wrong in ["missing", "www:nothere", "70000", "1:70000", ""] {
            assert!(
                find(Some(wrong), Mode::Root, PASSWD, GROUP).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn with_one_id_there_are_agent_and_root_by_name() {
        let uid = |spec| find(spec, Mode::Single, "", "").map(|a| a.credentials.uid);
        assert_eq!(uid(None), Ok(1000));
        assert_eq!(uid(Some("root")), Ok(0));
        assert!(uid(Some("33")).is_err());
        assert!(uid(Some("root:sudo")).is_err());
    }
}
