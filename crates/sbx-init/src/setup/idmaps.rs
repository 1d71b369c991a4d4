//! Writing the id maps of a new user namespace (`/proc/PID/uid_map`, `gid_map`; user_namespaces(7)).
//!
//! Each map can be written once. Host root may map any range. An ordinary user may map only the own uid and gid, and the
//! gid only after `setgroups` is denied; ranges of `/etc/subuid` and `/etc/subgid` need the setuid programs `newuidmap`
//! and `newgidmap`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use sbx_proto::plan::{IdRange, Ids, Mappers, Mode};

use crate::error::{ErrorContext, SetupError, SetupResult};

/// Gives the user namespace of `pid` (a child of this process) its maps.
pub(super) fn write(pid: i32, ids: &Ids, mappers: Option<&Mappers>) -> SetupResult<()> {
    match ids.mode {
        Mode::Root => {
            write_file(pid, "uid_map", &lines(&ids.uid))?;
            write_file(pid, "gid_map", &lines(&ids.gid))
        }
        Mode::Subordinate => {
            let mappers = mappers.ok_or_else(|| {
                SetupError::new("map ids", "the plan does not say where `newuidmap` is")
            })?;
            run_mapper(mappers.uid.as_path(), pid, &ids.uid)?;
            run_mapper(mappers.gid.as_path(), pid, &ids.gid)
        }
        Mode::Single => {
            // Required by the kernel: dropping a group can grant access (a file with mode 0604, say).
            write_file(pid, "setgroups", "deny")?;
            write_file(pid, "uid_map", &lines(&ids.uid))?;
            write_file(pid, "gid_map", &lines(&ids.gid))
        }
    }
}

pub(super) fn lines(ranges: &[IdRange]) -> String {
    ranges
        .iter()
        .map(|r| format!("{} {} {}\n", r.inside, r.outside, r.count))
        .collect()
}

fn write_file(pid: i32, name: &str, text: &str) -> SetupResult<()> {
    let path = format!("/proc/{pid}/{name}");
    OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .doing(|| format!("write `{path}`"))
}

/// The setuid programs of the `uidmap` package check `/etc/subuid` and write the map.
fn run_mapper(program: &Path, pid: i32, ranges: &[IdRange]) -> SetupResult<()> {
    let mut command = Command::new(program);
    command.arg(pid.to_string());
    for range in ranges {
        command.args([range.inside, range.outside, range.count].map(|n| n.to_string()));
    }
    let output = command
        .output()
        .doing(|| format!("run `{}`", program.display()))?;
    if output.status.success() {
        Ok(())
    } else {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(SetupError::new(
            format!("map ids with `{}`", program.display()),
            message,
        ))
    }
}
