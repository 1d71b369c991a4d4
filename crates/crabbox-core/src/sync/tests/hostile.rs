//! What a checkout can make git do, and that it does not.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use super::*;
use crate::sync::plan::dirty_delta;

/// A script in the checkout that leaves a file behind.
fn trap(checkout: &Checkout, then: &str) -> (PathBuf, PathBuf) {
    let proof = checkout.root.join("trap-sprung");
    let script = checkout.script("trap", &format!("touch '{}'\n{then}", proof.display()));
    (script, proof)
}

/// The plan runs all that a sync runs, and `status` besides.
fn plan(checkout: &Checkout) {
    let manifest = listed(checkout);
    dirty_delta(&manifest, Some(&checkout.discover())).unwrap();
    checkout.discover().name();
}

#[test]
fn configured_programs_do_not_run() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    checkout.write("a", "1\n");
    checkout.commit();
    let (trap, proof) = trap(&checkout, "cat");
    let trap = trap.to_str().unwrap();
    for key in [
        "core.fsmonitor",
        "core.pager",
        "pager.ls-files",
        "pager.status",
        "pager.rev-parse",
        "core.sshCommand",
        "core.askPass",
        "core.editor",
        "core.alternateRefsCommand",
        "diff.external",
        "gpg.program",
        "credential.helper",
        "alias.ls-files",
    ] {
        checkout.git(&["config", key, trap]);
    }
    let hooks = checkout.root.join(".git/hooks");
    fs::create_dir_all(&hooks).unwrap();
    for hook in ["post-index-change", "fsmonitor-watchman", "post-checkout"] {
        fs::copy(trap, hooks.join(hook)).unwrap();
    }
    plan(&checkout);
    assert!(!proof.exists());
    // The trap is a good one: git alone falls into it.
    checkout.git(&["status"]);
    assert!(proof.exists());
}

#[test]
fn filters_do_not_run() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    checkout.write("a", "1\n");
    checkout.write("b", "1\n");
    checkout.write("c", "1\n");
    checkout.commit();
    let (trap, proof) = trap(&checkout, "cat");
    let trap = trap.to_str().unwrap();
    checkout.write(".gitattributes", "a filter=evil\nb filter=e=v.il\n");
    checkout.write(".git/info/attributes", "c filter=own\n");
    checkout.git(&["config", "--global", "filter.own.clean", trap]);
    for (key, value) in [
        ("filter.evil.clean", trap),
        ("filter.evil.required", "true"),
        ("filter.e=v.il.clean", trap),
        ("filter.e=v.il.process", trap),
    ] {
        checkout.git(&["config", key, value]);
    }
    // Of the same length, so that git has to compare the contents.
    checkout.write("a", "2\n");
    checkout.write("b", "2\n");
    checkout.write("c", "2\n");
    plan(&checkout);
    assert!(!proof.exists());
    let manifest = listed(&checkout);
    let delta = dirty_delta(&manifest, Some(&checkout.discover())).unwrap();
    // `a`, `b`, `c`, `.gitattributes` and the trap.
    assert_eq!(delta.files, 5);
    checkout.git(&["config", "--unset", "filter.e=v.il.process"]);
    checkout.git(&["status"]);
    assert!(proof.exists(), "git alone runs them");
}

#[test]
fn a_missing_blob_is_not_fetched() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    checkout.write("dir/.gitignore", "x\n");
    checkout.write("dir/x", "");
    checkout.commit();
    let (trap, proof) = trap(&checkout, "exit 1");
    // A partial clone that lacks the blob of a file which is not checked out either.
    checkout.git(&["update-index", "--skip-worktree", "dir/.gitignore"]);
    fs::remove_file(checkout.root.join("dir/.gitignore")).unwrap();
    let blobs = checkout.root.join(".git/objects");
    for dir in fs::read_dir(&blobs).unwrap() {
        let dir = dir.unwrap();
        if dir.file_name().len() == 2 {
            fs::remove_dir_all(dir.path()).unwrap();
        }
    }
    for (key, value) in [
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", "ssh://host/repo"),
        ("core.sshCommand", trap.to_str().unwrap()),
    ] {
        checkout.git(&["config", key, value]);
    }
    // Whether git can go on without it does not matter.
    let _ = list_with(&checkout, &["dir/.gitignore"]);
    assert!(!proof.exists());
    let bare = ["ls-files", "--others", "--exclude-standard"];
    let _ = std::process::Command::new("git")
        .args(bare)
        .current_dir(&checkout.root)
        .env_clear()
        .envs(&checkout.env)
        .output();
    assert!(proof.exists(), "git alone fetches it");
}

#[test]
fn the_index_is_not_written() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    let file = checkout.write("a", "1");
    checkout.commit();
    let index = checkout.root.join(".git/index");
    let before = fs::read(&index).unwrap();
    let handle = fs::File::options().write(true).open(&file).unwrap();
    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    handle.set_times(times).unwrap();
    plan(&checkout);
    assert_eq!(before, fs::read(&index).unwrap());
}

#[test]
fn an_unsafe_path_in_the_index_is_refused() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    checkout.write("aa/aaaaaa", "");
    checkout.commit();
    // git would not take such a path, but a checkout comes with its index.
    let index = checkout.root.join(".git/index");
    let mut bytes = fs::read(&index).unwrap();
    let at = bytes
        .windows(9)
        .position(|window| window == b"aa/aaaaaa")
        .unwrap();
    bytes[at..at + 9].copy_from_slice(b"../secret");
    // Without a checksum, which git then does not check.
    let end = bytes.len() - 20;
    bytes[end..].fill(0);
    use std::io::Write as _;
    fs::File::create(&index).unwrap().write_all(&bytes).unwrap();
    let failure = list_with(&checkout, &[]).unwrap_err();
    assert_eq!(failure.code.exit_code(), 6);
    assert!(failure.to_string().contains("../secret"), "{failure}");
}

#[test]
fn git_is_asked_twice() {
    let Some(mut checkout) = Checkout::new() else {
        return;
    };
    checkout.write("a", "");
    checkout.commit();
    checkout.write("b", "");
    let log = checkout.beside("log").join("calls");
    let bin = checkout.beside("bin");
    let path = checkout.env[OsStr::new("PATH")].clone();
    let script = format!(
        "echo \"$@\" >> '{}'\nPATH='{}' exec git \"$@\"",
        log.display(),
        path.display()
    );
    checkout.script(bin.join("git"), &script);
    let with_bin = std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&path)));
    checkout.env.insert("PATH".into(), with_bin.unwrap());
    let calls = || fs::read_to_string(&log).unwrap().lines().count();
    let manifest = listed(&checkout);
    assert_eq!(manifest.entries.len(), 2);
    let stats = Archive::write(
        &manifest,
        &checkout.root,
        std::io::sink(),
        Compression::Gzip,
    );
    assert_eq!(stats.unwrap().files, 2);
    assert_eq!(calls(), 2);
    let repository = checkout.discover();
    repository.name();
    repository.name();
    assert_eq!(calls(), 3);
}

/// `git` as the user has it, with something that happens before one of its calls.
fn meddled(checkout: &mut Checkout, before: &str, then: &str) {
    let path = checkout.env.get(OsStr::new("PATH")).unwrap().clone();
    let real = crate::search_path::find(OsStr::new("git"), &path, &[]).unwrap();
    let real = real.display();
    let wrapper = checkout.script(
        "../bin/git",
        &format!("case \" $* \" in *' {before} '*) {then} ;; esac\nexec {real} \"$@\""),
    );
    let dirs = [wrapper.parent().unwrap().to_owned()];
    let dirs = dirs.into_iter().chain(std::env::split_paths(&path));
    let path = std::env::join_paths(dirs).unwrap();
    checkout.env.insert("PATH".into(), path);
}

#[test]
fn a_filter_that_appears_between_two_calls_does_not_run() {
    for before in ["rev-parse", "ls-files", "status", "config"] {
        let Some(mut checkout) = Checkout::new() else {
            return;
        };
        checkout.write("a", "1\n");
        checkout.write(".gitattributes", "* filter=evil diff=evil\n");
        checkout.commit();
        let (trap, proof) = trap(&checkout, "cat");
        checkout.write("a", "2\n");
        let section = format!(
            "[filter \"evil\"]\n\tclean = {0}\n[core]\n\tfsmonitor = {0}\n[diff \"evil\"]\n\ttextconv = {0}\n",
            trap.display()
        );
        let section = checkout.write("../section", &section);
        let config = checkout.root.join(".git/config");
        let append = format!("cat '{}' >> '{}'", section.display(), config.display());
        meddled(&mut checkout, before, &append);
        plan(&checkout);
        assert!(!proof.exists(), "{before}");
        let repository = fs::read(&config).unwrap();
        assert!(
            repository.ends_with(&fs::read(section).unwrap()),
            "{before}"
        );
        checkout.git(&["status"]);
        assert!(proof.exists(), "git alone runs it");
    }
}

#[test]
fn an_included_pipe_is_not_read() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    checkout.write("a", "1\n");
    checkout.commit();
    fifo(&checkout.root.join(".git/x"));
    checkout.git(&["config", "include.path", "x"]);
    // Without a writer git would wait for ever.
    plan(&checkout);
    let manifest = listed(&checkout);
    let delta = dirty_delta(&manifest, Some(&checkout.discover())).unwrap();
    assert_eq!(delta.files, 0);
}

#[test]
fn configuration_that_is_not_a_regular_file_is_an_error() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    checkout.git(&["config", "extensions.worktreeConfig", "true"]);
    checkout.discover();
    let discover = || crate::git::Repository::discover(&checkout.root, &checkout.env);
    for name in ["config.worktree", "config"] {
        let config = checkout.root.join(".git").join(name);
        drop(fs::remove_file(&config));
        fifo(&config);
        let failure = discover().unwrap_err();
        assert!(failure.message.contains(name), "{failure}");
        assert_eq!(failure.causes, ["not a regular file"]);
        fs::remove_file(&config).unwrap();
    }
}

#[test]
fn a_git_that_hangs_is_ended() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    checkout.write("a", "1\n");
    checkout.commit();
    fifo(&checkout.root.join(".gitignore"));
    let repository = checkout.discover().with_short_scan_timeout();
    let rules = Rules::load(&checkout.root, &[], &[]).unwrap();
    let failure = list(&checkout.root, Some(&repository), Source::Git, &rules).unwrap_err();
    assert!(failure.message.starts_with("git timed out: "), "{failure}");
}

#[test]
fn a_git_in_the_checkout_is_not_started() {
    let Some(mut checkout) = Checkout::new() else {
        return;
    };
    let (trap, proof) = trap(&checkout, "");
    fs::create_dir(checkout.root.join("bin")).unwrap();
    fs::copy(trap, checkout.root.join("bin/git")).unwrap();
    let path = checkout.env.get(OsStr::new("PATH")).unwrap().clone();
    let dirs = [checkout.root.join("bin")].into_iter();
    let both = dirs.clone().chain(std::env::split_paths(&path));
    let both = std::env::join_paths(both).unwrap();
    checkout.env.insert("PATH".into(), both);
    plan(&checkout);
    let only = std::env::join_paths(dirs).unwrap();
    checkout.env.insert("PATH".into(), only);
    let failure = crate::git::Repository::discover(&checkout.root, &checkout.env).unwrap_err();
    assert_eq!(failure.message, "`git` not found on PATH");
    assert!(
        failure
            .hints
            .iter()
            .any(|h| h.contains("inside the checkout")),
        "{failure:?}"
    );
    assert!(!proof.exists());
}
