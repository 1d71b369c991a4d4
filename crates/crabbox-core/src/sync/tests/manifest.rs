use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use crate::Code;
use crate::git::Repository;

#[test]
fn tracked_and_untracked_sorted_without_ignored_and_deleted() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    for path in ["b", "a/x", "a-b", "gone", "node_modules/m", "dir/was-file"] {
        checkout.write(path, "1234");
    }
    checkout.write(".gitignore", "*.o\n");
    checkout.write("dir/was-file", "");
    checkout.commit();
    checkout.write("new", "");
    checkout.write("x.o", "");
    fs::remove_file(checkout.root.join("gone")).unwrap();
    fs::remove_file(checkout.root.join("dir/was-file")).unwrap();
    checkout.write("dir/was-file/now-dir", "");
    let manifest = listed(&checkout);
    assert_eq!(
        paths(&manifest),
        [
            ".gitignore",
            "a-b",
            "a/x",
            "b",
            "dir/was-file/now-dir",
            "new"
        ]
    );
    assert_eq!(
        manifest.deleted,
        [&b"dir/was-file"[..], b"gone"].map(|path| RelPath::parse(path).unwrap())
    );
    assert_eq!(manifest.bytes, 4 + 12);
    let tracked: Vec<bool> = manifest.entries.iter().map(|e| e.tracked).collect();
    assert_eq!(tracked, [true, true, true, true, false, false]);
    assert_eq!(manifest.warnings(), Vec::<String>::new());
}

#[test]
fn any_name_will_do() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    let names: [&[u8]; 8] = [
        b"new\nline",
        b"tab\tname",
        "h\u{e9}llo \u{1f980}".as_bytes(),
        b"-rf",
        b"--help",
        b"\xff\xfe not text",
        b"quote\"d",
        b"? looks like a record",
    ];
    for (number, name) in names.iter().enumerate() {
        let dir = if number % 2 == 0 { "a" } else { "b\nc" };
        checkout.write(Path::new(dir).join(std::ffi::OsStr::from_bytes(name)), "");
        if number == 3 {
            checkout.git(&["add", "-A"]);
        }
    }
    let manifest = listed(&checkout);
    let mut expected: Vec<Vec<u8>> = names
        .iter()
        .enumerate()
        .map(|(number, name)| {
            let dir: &[u8] = if number % 2 == 0 { b"a/" } else { b"b\nc/" };
            [dir, name].concat()
        })
        .collect();
    expected.sort();
    let found: Vec<Vec<u8>> = manifest
        .entries
        .iter()
        .map(|entry| entry.path.as_bytes().to_vec())
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn symlinks_are_entries_and_are_not_followed() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    let outside = checkout.beside("outside");
    fs::create_dir(outside.join("d")).unwrap();
    fs::File::create(outside.join("d/secret")).unwrap();
    checkout.write("d/secret", "");
    checkout.commit();
    fs::remove_dir_all(checkout.root.join("d")).unwrap();
    symlink(outside.join("d"), checkout.root.join("d")).unwrap();
    symlink("/etc/passwd", checkout.root.join("passwd")).unwrap();
    let manifest = listed(&checkout);
    assert_eq!(paths(&manifest), ["d", "passwd"]);
    assert!(manifest.entries.iter().all(|e| e.kind == Kind::Symlink));
    assert_eq!(
        manifest.deleted,
        [RelPath::parse(b"d/secret").unwrap()],
        "reached through a symlink is not there"
    );
}

#[test]
fn submodules_and_nested_repositories_are_named_and_left_out() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    let inner = checkout.beside("inner");
    checkout.git_in(&inner, &["init", "-q"]);
    checkout.git_in(&inner, &["commit", "-q", "--allow-empty", "-m", "x"]);
    let url = inner.to_str().unwrap();
    checkout.git(&["submodule", "--quiet", "add", url, "sub"]);
    checkout.commit();
    checkout.git(&["clone", "-q", url, "nested/clone"]);
    checkout.write("nested/clone/file", "");
    checkout.write("nested/file", "");
    let manifest = listed(&checkout);
    assert_eq!(paths(&manifest), [".gitmodules", "nested/file"]);
    assert_eq!(
        manifest.warnings(),
        [
            "warning: submodules are not sent: sub",
            "warning: nested repositories are not sent: nested/clone",
        ]
    );
}

#[test]
fn tracked_files_survive_the_ambiguous_built_ins_only() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    for path in [
        "dist/a",
        "dist/b",
        "target/c",
        "coverage/d",
        "x/.build/e",
        "dist/f",
        "dist/node_modules/g",
    ] {
        checkout.write(path, "");
    }
    symlink("a", checkout.root.join("dist/link")).unwrap();
    checkout.commit();
    checkout.write("dist/new", "");
    let manifest = listed(&checkout);
    let kept = [
        "coverage/d",
        "dist/a",
        "dist/b",
        "dist/f",
        "target/c",
        "x/.build/e",
    ];
    assert_eq!(paths(&manifest), kept);
    assert_eq!(
        manifest.warnings(),
        [
            "warning: protected 6 tracked files from built-in artifact excludes: \
          coverage/d (coverage), dist/a (dist), dist/b (dist), dist/f (dist), target/c (target) (+1 more)"
        ]
    );
    // The user's own word holds for tracked files too.
    let manifest = list_with(&checkout, &["dist"]).unwrap();
    assert_eq!(paths(&manifest), ["coverage/d", "target/c", "x/.build/e"]);
}

#[test]
fn the_ignore_file_of_the_repository_counts() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    checkout.write("a/secret.env", "");
    checkout.write("a/b", "");
    checkout.write(".crabboxignore", "**/*.env\n");
    assert_eq!(paths(&listed(&checkout)), [".crabboxignore", "a/b"]);
}

#[test]
fn a_partial_checkout_is_refused() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    for path in ["in/a", "out/b", "out/c", "d"] {
        checkout.write(path, "");
    }
    checkout.commit();
    checkout.git(&["sparse-checkout", "set", "--cone", "in"]);
    let failure = list_with(&checkout, &[]).unwrap_err();
    assert_eq!(failure.code, Code::Sync);
    assert_eq!(
        failure.message,
        format!(
            "build sync file list: {} is a partial checkout: 2 tracked paths are hidden by \
             sparse-checkout or skip-worktree: out/b, out/c",
            checkout.root.display()
        )
    );
    // What is not to be sent may be hidden.
    assert_eq!(
        paths(&list_with(&checkout, &["out"]).unwrap()),
        ["d", "in/a"]
    );
    checkout.git(&["sparse-checkout", "disable"]);
    assert_eq!(listed(&checkout).entries.len(), 4);
    // Marked but there: the tree is whole.
    checkout.git(&["update-index", "--skip-worktree", "d"]);
    assert_eq!(listed(&checkout).entries.len(), 4);
    fs::remove_file(checkout.root.join("d")).unwrap();
    assert!(list_with(&checkout, &[]).is_err());
}

#[test]
fn conflicts() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    checkout.write("a", "base\n");
    checkout.commit();
    checkout.git(&["checkout", "-qb", "other"]);
    checkout.write("a", "other\n");
    checkout.commit();
    checkout.git(&["checkout", "-q", "main"]);
    checkout.write("a", "main\n");
    checkout.commit();
    let merge = std::process::Command::new("git")
        .args(["merge", "-q", "other"])
        .current_dir(&checkout.root)
        .env_clear()
        .envs(&checkout.env)
        .output()
        .unwrap();
    assert!(!merge.status.success());
    // Between files: what lies there is sent, once.
    let manifest = listed(&checkout);
    assert_eq!(paths(&manifest), ["a"]);
    // Between a file and a submodule.
    let object = "1234567890123456789012345678901234567890";
    for stage in [
        format!("100644 {object} 2\tm"),
        format!("160000 {object} 3\tm"),
    ] {
        let script = format!("printf '%s\\n' '{stage}' | git update-index --index-info");
        let done = std::process::Command::new("sh")
            .args(["-c", &script])
            .current_dir(&checkout.root)
            .env_clear()
            .envs(&checkout.env)
            .status()
            .unwrap();
        assert!(done.success());
    }
    let failure = list_with(&checkout, &[]).unwrap_err();
    assert!(
        failure
            .message
            .ends_with("has conflicts between a file and a submodule: m"),
        "{failure}"
    );
    assert_eq!(paths(&list_with(&checkout, &["m"]).unwrap()), ["a"]);
}

#[test]
fn a_pipe_in_the_place_of_a_tracked_file_is_named() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    let file = checkout.write("a", "");
    checkout.commit();
    fs::remove_file(&file).unwrap();
    fifo(&file);
    let manifest = listed(&checkout);
    assert_eq!(paths(&manifest), Vec::<String>::new());
    assert_eq!(
        manifest.warnings(),
        ["warning: pipes, sockets and devices are not sent: a"]
    );
}

#[test]
fn a_linked_work_tree_and_an_empty_repository() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    assert_eq!(listed(&checkout).entries, []);
    checkout.write("a", "");
    checkout.commit();
    let linked = checkout.root.join("trees/linked");
    checkout.git(&["worktree", "add", "-q", linked.to_str().unwrap()]);
    let rules = Rules::new(&[], &[], b"").unwrap();
    let repository = Repository::discover(&linked, &checkout.env)
        .unwrap()
        .unwrap();
    let manifest = list(&linked, Some(&repository), Source::Git, &rules).unwrap();
    assert_eq!(paths(&manifest), ["a"]);
    assert_eq!(paths(&listed(&checkout)), ["a"]);
}

#[test]
fn no_repository_is_an_error_that_says_what_to_do() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    let plain = checkout.beside("plain");
    let failure = check(&plain, None, Source::Git).unwrap_err();
    assert_eq!(failure.code.exit_code(), 6);
    assert_eq!(
        failure.message,
        format!(
            "build sync file list: {} is not a Git repository: run `git init` there, or pass --no-sync",
            plain.display()
        )
    );
}

#[test]
fn a_jujutsu_workspace_needs_its_git() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    let repository = checkout.discover();
    // Further out than the repository, and at its root: git says what is tracked.
    fs::create_dir(checkout.root.parent().unwrap().join(".jj")).unwrap();
    assert_eq!(
        check(&checkout.root, Some(&repository), Source::Git),
        Ok(())
    );
    fs::create_dir(checkout.root.join(".jj")).unwrap();
    assert_eq!(
        check(&checkout.root, Some(&repository), Source::Git),
        Ok(())
    );
    // Further in: the repository around it does not know it.
    fs::create_dir_all(checkout.root.join("ws/.jj")).unwrap();
    let inside = checkout.root.join("ws");
    for source in [Source::Git, Source::Walk] {
        let failure = check(&inside, Some(&repository), source).unwrap_err();
        assert_eq!(failure.code.exit_code(), 6);
        assert!(failure.message.contains("Jujutsu"), "{failure}");
    }
    let beside = checkout.beside("beside");
    let failure = check(&beside, None, Source::Git).unwrap_err();
    assert!(failure.message.contains("Jujutsu"), "{failure}");
}

#[test]
fn many_files_come_in_order() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    let mut expected = Vec::new();
    for number in 0..3000 {
        let path = format!("dir-{}/some-longer-file-name-{number}", number % 70);
        checkout.write(&path, "");
        expected.push(path);
        if number == 2500 {
            checkout.git(&["add", "-A"]);
        }
    }
    expected.sort();
    assert_eq!(paths(&listed(&checkout)), expected);
}

#[test]
fn the_fingerprint_follows_what_is_sent() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    let file = checkout.write("a", "1");
    checkout.write("b", "1");
    let print = || listed(&checkout).fingerprint();
    let first = print();
    assert_eq!(first.len(), 64);
    assert_eq!(first, print());
    // Tracked or not is nothing that is sent.
    checkout.commit();
    assert_eq!(first, print());
    let handle = fs::File::options().write(true).open(&file).unwrap();
    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    handle.set_times(times).unwrap();
    let touched = print();
    assert_ne!(first, touched);
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let executable = print();
    assert_ne!(touched, executable);
    fs::rename(&file, checkout.root.join("c")).unwrap();
    assert_ne!(executable, print());
}
