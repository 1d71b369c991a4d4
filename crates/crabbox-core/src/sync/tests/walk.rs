use std::fs::{self, File};
use std::os::unix::fs::symlink;

use super::*;

#[test]
fn a_plain_directory_is_walked_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for path in [
        "b/z",
        "b/a",
        "b-",
        "a",
        ".git/config",
        "sub/.git/config",
        "sub/x",
        "node_modules/m/n",
        "dist/out",
        "keep/node_modules/mine/x",
        "secret.env",
        ".crabbox/env/a",
    ] {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        File::create(file).unwrap();
    }
    symlink("/etc", root.join("etc")).unwrap();
    symlink("..", root.join("loop")).unwrap();
    fifo(&root.join("pipe"));
    let exclude = ["!keep/node_modules/mine".to_owned()];
    let rules = Rules::new(&exclude, &[], b"*.env\n").unwrap();
    let manifest = list(root, None, Source::Walk, &rules).unwrap();
    assert_eq!(
        paths(&manifest),
        [
            "a",
            "b-",
            "b/a",
            "b/z",
            "etc",
            "keep/node_modules/mine/x",
            "loop",
            "sub/x"
        ]
    );
    assert!(manifest.entries.iter().all(|entry| !entry.tracked));
    assert_eq!(
        manifest.warnings(),
        ["warning: pipes, sockets and devices are not sent: pipe"]
    );
    assert_eq!(manifest, list(root, None, Source::Walk, &rules).unwrap());
}

#[test]
fn with_a_repository_git_is_asked_all_the_same() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    checkout.write(".gitignore", "ignored\n");
    checkout.write("ignored", "");
    let rules = Rules::new(&[], &[], b"").unwrap();
    let repository = checkout.discover();
    let manifest = list(&checkout.root, Some(&repository), Source::Walk, &rules).unwrap();
    assert_eq!(paths(&manifest), [".gitignore"]);
}

#[test]
fn a_directory_that_is_gone_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let rules = Rules::new(&[], &[], b"").unwrap();
    let failure = list(&dir.path().join("gone"), None, Source::Walk, &rules).unwrap_err();
    assert_eq!(failure.code.exit_code(), 6);
    assert!(failure.to_string().contains("gone"), "{failure}");
}
