//! Which of its two places our own engine keeps its sandboxes in, by the rule of its documentation (`docs/engine/state.md`).

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crabbox_core::git::Env;

use super::engine::XDG_STATE_HOME;

/// In a directory that an engine of ours uses.
const MARKER: &str = ".sbx-owner";

/// Whether it is `$XDG_STATE_HOME/sbx`, because another product has files in `~/.docker/sandboxes`.
pub(super) fn is_xdg(env: &Env) -> bool {
    let dir = |name: &str| env.get(OsStr::new(name)).map(Path::new);
    let (Some(home), Some(states)) = (dir("HOME"), dir(XDG_STATE_HOME)) else {
        return false;
    };
    let usual = home.join(".docker/sandboxes");
    let is_claimed = |dir: &Path| dir.join(MARKER).exists();
    states.is_absolute()
        && !is_claimed(&usual)
        && (is_claimed(&states.join("sbx")) || is_foreign(&usual))
}

/// Whether there is anything in it that our engine would not take for its own before it claims the directory.
fn is_foreign(dir: &Path) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_empty_dir = |path: &Path| fs::read_dir(path).is_ok_and(|mut dir| dir.next().is_none());
    entries.into_iter().any(|entry| {
        let is_empty_file = || {
            entry
                .metadata()
                .is_ok_and(|meta| meta.is_file() && meta.len() == 0)
        };
        match entry.file_name().to_str() {
            Some("settings.json") => !entry.path().is_file(),
            Some("sandboxd.lock" | "sandboxd.log") => !is_empty_file(),
            Some("vm" | "templates" | "trash") => !is_empty_dir(&entry.path()),
            _ => true,
        }
    })
}
