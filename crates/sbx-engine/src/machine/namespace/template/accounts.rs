//! The sandbox's own users and groups: the host's system accounts, `root`, `agent`, and no human of the host.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use sbx_proto::inside::AGENT;

use super::TemplateError;
use super::copy::{present, write_file};
use super::error::At as _;

const NOBODY: u32 = 65534;
const SUDO: u32 = 27;

/// Writes `passwd`, `group`, `shadow` and `gshadow` from the host's first two.
pub(super) fn write(host_etc: &Path, etc: &Path) -> Result<(), TemplateError> {
    let passwd = host_etc.join("passwd");
    let group = host_etc.join("group");
    let shell = if host_etc.with_file_name("bin").join("bash").exists() {
        "/bin/bash"
    } else {
        "/bin/sh"
    };
    let accounts = compose(
        shell,
        &present(fs::read_to_string(&passwd))
            .at("read", &passwd)?
            .unwrap_or_default(),
        &present(fs::read_to_string(&group))
            .at("read", &group)?
            .unwrap_or_default(),
    );
    write_file(&etc.join("passwd"), &accounts.passwd, 0o644)?;
    write_file(&etc.join("group"), &accounts.group, 0o644)?;
    write_file(&etc.join("shadow"), &accounts.shadow, 0o600)?;
    write_file(&etc.join("gshadow"), &accounts.gshadow, 0o600)
}

/// The uid of a name in the text of a `passwd` file.
pub(super) fn uid_of(passwd: &str, name: &str) -> Option<u32> {
    passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find_map(|fields| match fields.as_slice() {
            [user, _, uid, ..] if *user == name => uid.parse().ok(),
            _ => None,
        })
}

#[derive(Debug, PartialEq, Eq)]
struct Accounts {
    passwd: String,
    group: String,
    shadow: String,
    gshadow: String,
}

fn compose(shell: &str, host_passwd: &str, host_group: &str) -> Accounts {
    let mut passwd = format!("root:x:0:0:root:/root:{shell}\n");
    let mut users = BTreeSet::from(["root", "agent"]);
    for line in host_passwd.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, gecos, home, login] = fields.as_slice() else {
            continue;
        };
        if is_system(uid) && users.insert(name) {
            // The host's password field may hold a hash on old systems.
            push(
                &mut passwd,
                format_args!("{name}:x:{uid}:{gid}:{gecos}:{home}:{login}\n"),
            );
        }
    }
    push(
        &mut passwd,
        format_args!("agent:x:{AGENT}:{AGENT}:agent:/home/agent:{shell}\n"),
    );
    let group = compose_groups(host_group, &users);
    let locked = |text: &str, end: &str| -> String {
        text.lines().filter_map(|line| line.split(':').next()).fold(
            String::new(),
            |mut out, name| {
                push(&mut out, format_args!("{name}:*:{end}\n"));
                out
            },
        )
    };
    Accounts {
        shadow: locked(&passwd, "::::::"),
        gshadow: locked(&group, ":"),
        passwd,
        group,
    }
}

fn compose_groups(host: &str, users: &BTreeSet<&str>) -> String {
    let mut out = String::from("root:x:0:\n");
    let mut names = BTreeSet::from(["root", "agent"]);
    let mut gids = BTreeSet::from([0, AGENT]);
    for line in host.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, gid, members] = fields.as_slice() else {
            continue;
        };
        if !is_system(gid) || !names.insert(name) {
            continue;
        }
        gids.extend(gid.parse::<u32>());
        let mut kept: Vec<&str> = members
            .split(',')
            .filter(|member| *member != "agent" && users.contains(member))
            .collect();
        if *name == "sudo" {
            kept.push("agent");
        }
        push(
            &mut out,
            format_args!("{name}:x:{gid}:{}\n", kept.join(",")),
        );
    }
    if !names.contains("sudo") {
        let gid = std::iter::once(SUDO)
            .chain((100..AGENT).rev())
            .find(|gid| !gids.contains(gid))
            .unwrap_or(SUDO);
        push(&mut out, format_args!("sudo:x:{gid}:agent\n"));
    }
    push(&mut out, format_args!("agent:x:{AGENT}:\n"));
    out
}

fn is_system(id: &str) -> bool {
    id.parse::<u32>()
        .is_ok_and(|id| (id != 0 && id < AGENT) || id == NOBODY)
}

fn push(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    out.write_fmt(line).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn humans_and_passwords_stay_outside() {
        let accounts = compose(
            "/bin/bash",
            "root:$6$hash:0:0:r:/root:/bin/zsh\ndaemon:x:1:1:d:/usr/sbin:/usr/sbin/nologin\nbob:x:1000:1000:Bob:/home/bob:/bin/bash\n\
             eve:x:1001:1001::/home/eve:/bin/sh\nagent:x:500:500::/a:/bin/sh\nold:$1$h:7:7::/x:/bin/sh\nbad:line\n\
             nobody:x:65534:65534:n:/nonexistent:/usr/sbin/nologin\n",
            "root:x:0:bob\nsudo:x:31:bob,daemon\nbob:x:1000:\ndocker:x:999:bob\nnogroup:x:65534:\n",
        );
        assert_eq!(
            accounts,
            Accounts {
                passwd: "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:d:/usr/sbin:/usr/sbin/nologin\nold:x:7:7::/x:/bin/sh\n\
                    nobody:x:65534:65534:n:/nonexistent:/usr/sbin/nologin\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n".into(),
                group: "root:x:0:\nsudo:x:31:daemon,agent\ndocker:x:999:\nnogroup:x:65534:\nagent:x:1000:\n".into(),
                shadow: "root:*:::::::\ndaemon:*:::::::\nold:*:::::::\nnobody:*:::::::\nagent:*:::::::\n".into(),
                gshadow: "root:*::\nsudo:*::\ndocker:*::\nnogroup:*::\nagent:*::\n".into(),
            }
        );
    }

    #[test]
    fn sudo_takes_a_free_number() {
        assert!(
            compose("/bin/sh", "", "mysql:x:27:\n")
                .group
                .contains("sudo:x:999:agent\n")
        );
        assert!(
            compose("/bin/sh", "", "")
                .group
                .contains("sudo:x:27:agent\n")
        );
        assert_eq!(uid_of("_apt:x:42:65534::/:/x\n", "_apt"), Some(42));
    }
}
