//! The programs as they are installed: one that is missing, what the daemon's says by itself, what is linked into them.

use std::fs;
use std::process::Command;

use super::{Home, said_alone};
use crate::harness::copy_program;

pub(super) const TESTS: &[(&str, fn())] = &[
    ("a_daemon_that_is_missing", a_daemon_that_is_missing),
    ("the_daemons_own_words", the_daemons_own_words),
    (
        "no_program_has_a_resolver_in_it",
        no_program_has_a_resolver_in_it,
    ),
];

fn a_daemon_that_is_missing() {
    let home = Home::new();
    let alone = home.path().join("sbx");
    copy_program(env!("CARGO_BIN_EXE_sbx").as_ref(), &alone);
    let sbx = |args: &[&str]| {
        let mut command = Command::new(&alone);
        command.args(args).env("PATH", "/usr/bin:/bin");
        said_alone(command.current_dir("/"), &home)
    };
    let workspace = tempfile::tempdir().unwrap();
    let path = workspace.path().to_str().unwrap();
    for args in [
        &["create", "--name", "box", "shell", path][..],
        &["daemon", "start"],
        &["daemon", "start", "-d"],
        &["daemon", "restart"],
        &["policy", "check", "network", "192.0.2.1"],
    ] {
        let (code, _, err) = sbx(args);
        assert_eq!(code, Some(1), "{args:?}: {err}");
        assert!(
            err.contains("hint: install ") && err.ends_with("sandboxd` is missing\n"),
            "{args:?}: {err}"
        );
    }
    assert!(!home.path().join(".docker").exists());
    let (code, out, _) = sbx(&["diagnose"]);
    assert_eq!(code, Some(1));
    assert!(
        out.contains("✗ Daemon binary: ") && out.contains("! Sudo binary: "),
        "{out}"
    );
}

fn the_daemons_own_words() {
    let home = Home::new();
    let sandboxd = |word: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandboxd"));
        said_alone(command.arg(word), &home)
    };
    for word in ["--help", "-h"] {
        let (code, out, err) = sandboxd(word);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert!(out.contains("Usage: sandboxd"), "{out}");
    }
    let version = format!("sandboxd {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(sandboxd("--version"), (Some(0), version, String::new()));
    for word in ["--bogus", "-d", "start"] {
        let said = format!("hint: sandboxd --help\nerror: unexpected argument `{word}`\n");
        assert_eq!(sandboxd(word), (Some(2), String::new(), said));
    }
    // Nothing was asked.
    let (code, out, err) = sandboxd("--check-network");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.starts_with(r#"{"Err":{"message":"#), "{out}");
    assert!(home.is_untouched());
}

/// Whoever looks up names takes libc from the machine, with the modules that belong to it.
fn no_program_has_a_resolver_in_it() {
    // What `getaddrinfo` reads, and nothing else of libc.
    const SETTINGS: &[u8] = b"/etc/gai.conf";
    for program in [
        env!("CARGO_BIN_EXE_sbx"),
        env!("CARGO_BIN_EXE_sandboxd"),
        env!("CARGO_BIN_EXE_sbx-init"),
        env!("CARGO_BIN_EXE_sbx-sudo"),
    ] {
        let bytes = fs::read(program).unwrap();
        let found = bytes.windows(SETTINGS.len()).any(|part| part == SETTINGS);
        assert!(!found, "{program} has libc in it and looks up names");
    }
}
