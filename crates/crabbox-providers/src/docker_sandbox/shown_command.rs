//! Commands of the engine as a user can type them: `sbx` may not be on PATH, or may be another engine there.

use std::ffi::OsStr;
use std::path::Path;

use crabbox_core::command::display;
use crabbox_core::git::Env;
use crabbox_core::search_path;

use super::engine::{NAME, XDG_STATE_HOME};
use super::state_dir;

/// `sbx` if that is this program, or else its path; before it the variable that says where our own engine keeps its
/// sandboxes, because the command may be typed in another shell.
pub(super) fn shown_program(program: &Path, env: &Env, own: bool) -> String {
    let path = env.get(OsStr::new("PATH"));
    let on_path = path
        .and_then(|path| search_path::find(OsStr::new(NAME), path, &[]).ok())
        .is_some_and(|found| found == program);
    let shown = match on_path {
        true => NAME.to_owned(),
        false => display(&[&program.to_string_lossy()]),
    };
    match own.then(|| state_variable(env)).flatten() {
        Some((name, value)) => format!("{name}={} {shown}", display(&[&value])),
        None => shown,
    }
}

fn state_variable(env: &Env) -> Option<(&'static str, String)> {
    let set = |name: &'static str| {
        let value = env.get(OsStr::new(name))?;
        (!value.is_empty()).then(|| (name, value.to_string_lossy().into_owned()))
    };
    set("SBX_HOME").or_else(|| set(XDG_STATE_HOME).filter(|_| state_dir::is_xdg(env)))
}

/// A hint with the program in place of each command `sbx`.
pub(super) fn with_program(hint: &str, shown: &str) -> String {
    let hint = hint.replace("`sbx ", &format!("`{shown} "));
    match hint.strip_prefix("sbx ") {
        Some(rest) => format!("{shown} {rest}"),
        None => hint,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn hints_name_a_program_that_can_be_started() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("sbx");
        drop(std::fs::File::create(&program).unwrap());
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let env = |pairs: &[(&str, &str)]| -> Env {
            let pairs = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into()));
            pairs.collect()
        };
        let path = dir.path().to_str().unwrap();
        let on_path = env(&[("PATH", path), ("SBX_HOME", "/a b")]);
        assert_eq!(shown_program(&program, &on_path, false), "sbx");
        assert_eq!(
            shown_program(&program, &on_path, true),
            "SBX_HOME='/a b' sbx"
        );
        let elsewhere = env(&[("PATH", "/nonexistent"), ("XDG_STATE_HOME", "/unused")]);
        let whole = program.to_str().unwrap();
        assert_eq!(shown_program(&program, &elsewhere, true), whole);
        // Where it decides, it is told.
        std::fs::create_dir_all(dir.path().join("state/sbx")).unwrap();
        drop(std::fs::File::create(dir.path().join("state/sbx/.sbx-owner")).unwrap());
        let state = dir.path().join("state");
        let state = state.to_str().unwrap();
        let moved = env(&[("HOME", "/nonexistent"), ("XDG_STATE_HOME", state)]);
        assert_eq!(
            shown_program(&program, &moved, true),
            format!("XDG_STATE_HOME={state} {whole}")
        );
    }

    #[test]
    fn every_command_of_a_hint_is_replaced() {
        for (hint, shown) in [
            ("sbx rm --force x", "/b/sbx rm --force x"),
            ("run `sbx login` and retry", "run `/b/sbx login` and retry"),
            (
                "install the standalone sbx CLI",
                "install the standalone sbx CLI",
            ),
        ] {
            assert_eq!(with_program(hint, "/b/sbx"), shown);
        }
    }
}
