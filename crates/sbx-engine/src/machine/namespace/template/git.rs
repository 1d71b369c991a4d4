//! What git inside knows of its user: below everything that a repository or the user inside says.

use sbx_api::Caller;

/// Read by git through [`INCLUDE`].
pub(super) const FILE: &str = "etc/gitconfig.sbx";
/// The end of the system's configuration.
pub(super) const INCLUDE: &str = "[include]\n\tpath = /etc/gitconfig.sbx\n";

/// As configuration, not as `GIT_AUTHOR_NAME`: `git config user.name` has to answer as well. Not as variables
/// either, which would be stronger than a repository's own identity.
pub(super) fn config(caller: &Caller) -> String {
    // A read-only workspace or a tool chain may belong to an id that does not exist inside.
    let mut text = String::from("[safe]\n\tdirectory = *\n");
    let user = [("name", &caller.git_name), ("email", &caller.git_email)];
    for (key, value) in user {
        if let Some(value) = value {
            text.push_str(&format!("[user]\n\t{key} = {}\n", quoted(value)));
        }
    }
    text
}

fn quoted(value: &str) -> String {
    let mut quoted = String::from("\"");
    for c in value.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => {} // git refuses them
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn git_reads_what_was_written() {
        let caller = Caller {
            git_name: Some("O'Brien \"the $(id)\" \\ # ; x\n[core]\tpager=id".into()),
            git_email: Some("ann@example.org".into()),
            ..Caller::default()
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        crate::state::write_atomic(
            dir.path(),
            "config",
            config(&caller).as_bytes(),
            crate::state::Durability::Soon,
        )
        .unwrap();
        let get = |key: &str| {
            let asked = Command::new("git")
                .args(["config", "-z", "-f"])
                .arg(&path)
                .arg(key)
                .output()
                .unwrap();
            String::from_utf8(asked.stdout).unwrap()
        };
        assert_eq!(
            get("user.name").trim_end_matches('\0'),
            caller.git_name.unwrap()
        );
        assert_eq!(get("user.email"), "ann@example.org\0");
        assert_eq!(get("safe.directory"), "*\0");
        assert_eq!(get("core.pager"), "");
    }
}
