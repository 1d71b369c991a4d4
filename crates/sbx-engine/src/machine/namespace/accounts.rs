//! Ids that belong to accounts of this machine, which no sandbox of root may have.
//!
//! The name service (nsswitch.conf(5)) is asked by `getent`: it loads modules of others and may wait for a network, neither
//! of which belongs into the daemon. Where it does not answer, there are the files.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use sbx_proto::OsBytes;

use super::ids::{Span, find, spans};

/// How long what was found holds.
pub(super) const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// How long the name service may take.
const GETENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Of a list of accounts.
const MAX_LIST: usize = 64 << 20;

/// Uids and gids of all accounts, and all subordinate ranges.
pub(super) fn in_use() -> Vec<Span> {
    let dirs = ["/usr/bin", "/bin"].map(Into::into);
    let getent = find(&dirs.iter().collect::<Vec<_>>(), "getent");
    in_use_with(getent.as_ref().map(OsBytes::as_path))
}

/// The same, with this program for the name service.
fn in_use_with(getent: Option<&Path>) -> Vec<Span> {
    let file = |name: &str| fs::read_to_string(format!("/etc/{name}")).unwrap_or_default();
    let mut texts = vec![file("passwd"), file("group")];
    // Both are asked before either is waited for.
    let ask = |database| getent.and_then(|getent| ask(getent, database).ok());
    for child in ["passwd", "group"].map(ask).into_iter().flatten() {
        match answer(child, GETENT_TIMEOUT) {
            Ok(text) => texts.push(text),
            Err(error) => tracing::warn!(%error, "the name service does not list its accounts"),
        }
    }
    let mut found: Vec<_> = texts.iter().flat_map(|text| ids(text)).collect();
    for name in ["subuid", "subgid"] {
        found.extend(spans(&file(name), |_| true));
    }
    found
}

fn ask(getent: &Path, database: &str) -> io::Result<Child> {
    Command::new(getent)
        .arg(database)
        .env_clear()
        .current_dir(Path::new("/"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

/// What it prints until it closes its output. It is ended when that takes too long.
fn answer(mut child: Child, limit: Duration) -> io::Result<String> {
    let output = child.stdout.take().map(OwnedFd::from);
    let read = output.map_or_else(|| Ok(Vec::new()), |output| read_within(&output, limit));
    if read.is_err() {
        let _ = child.kill();
    }
    let _ = child.wait();
    read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn read_within(output: &OwnedFd, limit: Duration) -> io::Result<Vec<u8>> {
    let until = Instant::now() + limit;
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(output, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&timeout)))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let count = rustix::io::retry_on_intr(|| rustix::io::read(output, &mut piece))?;
        if count == 0 {
            return Ok(bytes);
        }
        bytes.extend_from_slice(piece.get(..count).unwrap_or_default());
        if bytes.len() > MAX_LIST {
            return Err(io::Error::other("the list is too long"));
        }
    }
}

/// The third and, of an account, the fourth field: `name:password:uid:gid:…`, `name:password:gid:members`.
fn ids(text: &str) -> BTreeSet<Span> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let fields = lines.flat_map(|line| line.split(':').skip(2).take(2));
    let ids = fields.filter_map(|field| field.parse().ok());
    ids.map(|first| Span { first, count: 1 }).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn one(first: u32) -> Span {
        Span { first, count: 1 }
    }

    #[test]
    fn ids_of_users_and_groups() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nldap:*:536870999:7::/:\n+::::::\n# x:x:5:5\n";
        assert_eq!(
            ids(passwd),
            BTreeSet::from([one(0), one(7), one(536_870_999)])
        );
        let group = "wheel:x:10:\nteam:x:1879048000:alice,bob\n12:x:y:13\n";
        assert_eq!(
            ids(group),
            BTreeSet::from([one(10), one(13), one(1_879_048_000)])
        );
    }

    #[test]
    fn this_machine_knows_root_and_every_subordinate_range() {
        let found = in_use();
        assert!(found.contains(&one(0)));
        for name in ["subuid", "subgid"] {
            let text = fs::read_to_string(format!("/etc/{name}")).unwrap_or_default();
            for span in spans(&text, |_| true) {
                assert!(found.contains(&span), "{span:?}");
            }
        }
    }

    /// As of a directory service, whose accounts are in no file.
    #[test]
    fn accounts_that_only_the_name_service_knows_are_in_use() {
        let place = tempfile::tempdir().unwrap();
        let (written, getent) = (place.path().join("written"), place.path().join("getent"));
        let script = "#!/bin/sh\n\
            case $1 in\n\
            passwd) echo 'ldap:*:1879048123:1879048124::/:' ;;\n\
            group) echo 'team:*:1879048125:' ;;\n\
            esac\n";
        let mut file = fs::File::create(&written).unwrap();
        file.write_all(script.as_bytes()).unwrap();
        drop(file);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&written, mode).unwrap();
        // A process that is forked meanwhile would have what this process writes open for writing.
        let copied = Command::new("cp").args([&written, &getent]).status();
        assert!(copied.unwrap().success());
        let found = in_use_with(Some(&getent));
        for id in [1_879_048_123, 1_879_048_124, 1_879_048_125] {
            assert!(found.contains(&one(id)), "{id}");
            assert!(!in_use_with(None).contains(&one(id)), "{id}");
        }
    }

    #[test]
    fn a_name_service_that_hangs_is_not_waited_for() {
        let mut hanging = Command::new("sleep");
        let child = hanging.arg("1000").stdout(Stdio::piped()).spawn().unwrap();
        let error = answer(child, Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
