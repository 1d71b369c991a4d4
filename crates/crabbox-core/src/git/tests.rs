//! Against the real git, in directories and with a home of their own.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use tempfile::TempDir;

use super::*;

/// A directory with a repository in `repo`, and an environment that knows nothing of this machine's.
pub(crate) struct Checkout {
    pub(crate) dir: TempDir,
    pub(crate) root: PathBuf,
    pub(crate) env: Env,
}

impl Checkout {
    /// None, and a line that says why, where there is no git.
    pub(crate) fn new() -> Option<Self> {
        Self::named("repo")
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "git is found in the PATH of the tests"
    )]
    fn named(name: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let mut env = Env::new();
        env.insert("PATH".into(), std::env::var_os("PATH").unwrap_or_default());
        env.insert("HOME".into(), base.join("home").into());
        env.insert("GIT_CONFIG_NOSYSTEM".into(), "1".into());
        if Git::find(&env, &[]).is_err() {
            writeln!(std::io::stderr(), "environment_blocked: git").unwrap();
            return None;
        }
        fs::create_dir(base.join("home")).unwrap();
        let root = base.join(name);
        fs::create_dir(&root).unwrap();
        let checkout = Self { dir, root, env };
        checkout.git(&["config", "--global", "user.name", "a"]);
        checkout.git(&["config", "--global", "user.email", "a@b"]);
        checkout.git(&["config", "--global", "init.defaultBranch", "main"]);
        checkout.git(&["config", "--global", "protocol.file.allow", "always"]);
        checkout.git(&["init", "-q"]);
        Some(checkout)
    }

    /// Runs git as a user would.
    pub(crate) fn git(&self, args: &[&str]) {
        self.git_in(&self.root, args);
    }

    pub(crate) fn git_in(&self, dir: &Path, args: &[&str]) {
        let output = Command::new("git")
            .args(args)
            .current_dir(dir)
            .env_clear()
            .envs(&self.env)
            .output()
            .unwrap();
        assert!(output.status.success(), "git {args:?}: {output:?}");
    }

    pub(crate) fn commit(&self) {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-qm", "x"]);
    }

    pub(crate) fn write(&self, path: impl AsRef<Path>, text: &str) -> PathBuf {
        let file = self.root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        File::create(&file)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        file
    }

    pub(crate) fn script(&self, path: impl AsRef<Path>, text: &str) -> PathBuf {
        let file = self.write(path, &format!("#!/bin/sh\n{text}\n"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    pub(crate) fn discover(&self) -> Repository {
        Repository::discover(&self.root, &self.env)
            .unwrap()
            .unwrap()
    }

    /// A directory that is not in the repository.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        let dir = self.root.parent().unwrap().join(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    }
}

#[test]
fn a_repository_is_found_from_anywhere_in_it() {
    let Some(checkout) = Checkout::named("re\npo --x") else {
        return;
    };
    let below = checkout.write("a/b/file", "");
    let found = Repository::discover(below.parent().unwrap(), &checkout.env);
    let found = found.unwrap().unwrap();
    assert_eq!(found.root(), checkout.root);
    assert_eq!(found.git_dir(), checkout.root.join(".git"));
    assert!(!found.is_linked_worktree());
    assert_eq!(found.name(), "re\npo --x");
}

#[test]
fn directories_without_a_work_tree_are_refused() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    let none = |dir: &Path| Repository::discover(dir, &checkout.env).unwrap().is_none();
    assert!(none(checkout.dir.path()));
    assert!(none(&checkout.root.join(".git")));
    let bare = checkout.beside("bare");
    checkout.git_in(&bare, &["init", "-q", "--bare"]);
    assert!(none(&bare));
    // Not there at all is neither a repository nor a missing git.
    let gone = Repository::discover(&checkout.root.join("gone"), &checkout.env).unwrap_err();
    assert_eq!(gone.code, Code::Local);
    assert!(gone.to_string().contains("gone"), "{gone}");
}

#[test]
fn a_missing_git_is_told_from_a_missing_repository() {
    let Some(mut checkout) = Checkout::new() else {
        return;
    };
    checkout.script("git", "touch ran");
    // The last two are relative: the current directory, and the checkout's own.
    let empty = checkout.beside("empty");
    let path = std::env::join_paths([empty.as_path(), Path::new(""), Path::new(".")]).unwrap();
    checkout.env.insert("PATH".into(), path);
    let failure = Repository::discover(&checkout.root, &checkout.env).unwrap_err();
    assert_eq!(failure.code, Code::Local);
    assert_eq!(failure.message, "`git` not found on PATH");
    assert!(!checkout.root.join("ran").exists());
}

#[test]
fn linked_work_trees_and_submodules() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    checkout.write("a", "");
    checkout.commit();
    let linked = checkout.root.parent().unwrap().join("linked");
    checkout.git(&["worktree", "add", "-q", linked.to_str().unwrap()]);
    let found = Repository::discover(&linked, &checkout.env)
        .unwrap()
        .unwrap();
    assert!(found.is_linked_worktree());
    assert_eq!(found.root(), linked);

    let outer = checkout.beside("outer");
    checkout.git_in(&outer, &["init", "-q"]);
    let url = checkout.root.to_str().unwrap();
    checkout.git_in(&outer, &["submodule", "--quiet", "add", url, "sub"]);
    let found = Repository::discover(&outer.join("sub"), &checkout.env)
        .unwrap()
        .unwrap();
    assert!(!found.is_linked_worktree());
    assert_eq!(found.root(), outer.join("sub"));
    assert_eq!(found.name(), "repo");
}

#[test]
fn the_name_comes_from_the_origin() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    let url = "git@example.org:team/Thing.git";
    checkout.git(&["remote", "add", "origin", url]);
    let found = checkout.discover();
    assert_eq!(found.name(), "Thing");
    assert_eq!(found.origin().as_deref(), Some(url));
}

#[test]
fn the_name_of_an_own_repository_needs_no_git() {
    let Some(checkout) = Checkout::named("directory") else {
        return;
    };
    checkout.git(&[
        "remote",
        "add",
        "origin",
        "https://git.test/team/project.git",
    ]);
    let inside = checkout.root.join("src");
    fs::create_dir(&inside).unwrap();
    let mut without_git = checkout.env.clone();
    without_git.insert("PATH".into(), checkout.root.clone().into());
    let name = |env: &Env| Repository::name_around(&inside, env);
    assert_eq!(name(&without_git).unwrap().as_deref(), Some("project"));
    assert_eq!(name(&checkout.env).unwrap().as_deref(), Some("project"));
    // Where something leads elsewhere, git decides.
    checkout.git(&["config", "core.worktree", ".."]);
    assert!(name(&without_git).is_err());
    checkout.git(&["config", "--unset", "core.worktree"]);
    without_git.insert("GIT_DIR".into(), checkout.root.join(".git").into());
    assert!(name(&without_git).is_err());
}

#[test]
fn names_in_urls() {
    let cases = [
        ("https://github.com/a/b", Some("b")),
        ("https://github.com/a/b.git/", Some("b")),
        ("ssh://git@host:22/a/b.git", Some("b")),
        ("host:b", Some("b")),
        ("/srv/git/b.git", Some("b")),
        ("../b", Some("b")),
        ("..", None),
        (".git", None),
        ("", None),
    ];
    for (url, name) in cases {
        assert_eq!(name_in_url(url), name, "{url}");
    }
}

#[test]
fn variables_that_place_the_repository_hold() {
    let Some(mut checkout) = Checkout::new() else {
        return;
    };
    let elsewhere = checkout.beside("elsewhere");
    checkout.env.insert("GIT_DIR".into(), "../repo/.git".into());
    checkout.env.insert("GIT_WORK_TREE".into(), ".".into());
    let found = Repository::discover(&elsewhere, &checkout.env)
        .unwrap()
        .unwrap();
    assert_eq!(found.root(), elsewhere);
    // Asked from another place, it is still the same repository.
    assert_eq!(found.name(), "elsewhere");
    assert_eq!(found.git_dir(), checkout.root.join(".git"));
}

#[test]
fn a_repository_cannot_choose_another_work_tree() {
    let Some(checkout) = Checkout::new() else {
        return;
    };
    checkout.git(&["config", "core.worktree", "../.."]);
    let failure = Repository::discover(&checkout.root, &checkout.env).unwrap_err();
    assert_eq!(failure.code, Code::Untrusted);
    assert!(
        failure.message.contains("not its own work tree"),
        "{failure}"
    );
}

#[test]
fn a_repository_of_another_user_is_refused_as_git_refuses_it() {
    let Some(mut checkout) = Checkout::new() else {
        return;
    };
    // What git itself has for testing this: every owner counts as another.
    let real = Git::find(&checkout.env, &[]).unwrap();
    let wrapper = checkout.script(
        "../bin/git",
        &format!(
            "GIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec {} \"$@\"",
            real.program().display()
        ),
    );
    let path = std::env::join_paths([wrapper.parent().unwrap()]).unwrap();
    checkout.env.insert("PATH".into(), path);
    let failure = Repository::discover(&checkout.root, &checkout.env).unwrap_err();
    assert_eq!(failure.code, Code::Local);
    assert!(
        failure.to_string().contains("dubious ownership"),
        "{failure}"
    );
    assert!(
        failure.hints.iter().any(|h| h.contains("safe.directory")),
        "{failure:?}"
    );
}

#[test]
fn only_what_places_a_repository_reaches_git() {
    let mut env = Env::new();
    for name in [
        "PATH",
        "HOME",
        "USER",
        "LANG",
        "LC_CTYPE",
        "TMPDIR",
        "TMP",
        "TEMP",
        "XDG_CONFIG_HOME",
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_CEILING_DIRECTORIES",
        "GIT_DISCOVERY_ACROSS_FILESYSTEM",
        "GIT_EXEC_PATH",
        "GIT_CONFIG_PARAMETERS",
        "GIT_CONFIG_COUNT",
        "GIT_TRACE",
        "GIT_SSH_COMMAND",
        "GIT_EXTERNAL_DIFF",
        "LD_PRELOAD",
        "SECRET",
    ] {
        env.insert(name.into(), "/usr/local/bin:/usr/bin:/bin".into());
    }
    let Ok(git) = Git::find(&env, &[]) else {
        writeln!(std::io::stderr(), "environment_blocked: git").unwrap();
        return;
    };
    let names: Vec<String> = git.variables();
    assert_eq!(
        names,
        [
            "CRABBOX_EMPTY",
            "GIT_ALLOW_PROTOCOL",
            "GIT_CEILING_DIRECTORIES",
            "GIT_DIR",
            "GIT_DISCOVERY_ACROSS_FILESYSTEM",
            "GIT_NO_LAZY_FETCH",
            "GIT_OPTIONAL_LOCKS",
            "GIT_TERMINAL_PROMPT",
            "GIT_WORK_TREE",
            "HOME",
            "LANG",
            "LC_ALL",
            "LC_CTYPE",
            "PATH",
            "TEMP",
            "TMP",
            "TMPDIR",
            "USER",
            "XDG_CONFIG_HOME",
        ]
    );
}

impl Repository {
    /// For a git that hangs.
    pub(crate) fn with_short_scan_timeout(mut self) -> Self {
        self.git.scan_timeout = std::time::Duration::from_millis(300);
        self
    }
}
