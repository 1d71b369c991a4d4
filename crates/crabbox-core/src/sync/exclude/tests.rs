use proptest::prelude::*;

use super::*;
use crate::sync::RelPath;

fn rules(exclude: &[&str], include: &[&str], ignore: &str) -> Rules {
    let owned = |list: &[&str]| {
        list.iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    Rules::new(&owned(exclude), &owned(include), ignore.as_bytes()).unwrap()
}

fn decide<'r>(rules: &'r Rules, path: &str) -> Decision<'r> {
    rules.decide(&RelPath::parse(path.as_bytes()).unwrap())
}

fn kept(rules: &Rules, path: &str) -> bool {
    decide(rules, path) == Decision::Keep
}

#[test]
fn built_ins() {
    let rules = rules(&[], &[], "");
    for path in [
        "node_modules/a",
        "x/node_modules/a/b",
        "._a",
        "x/._a/b",
        ".yarn/cache/a",
        "a/.venv/b",
        "__pycache__",
        ".crabbox/env",
        "target/node_modules/a",
    ] {
        assert_eq!(decide(&rules, path), Decision::Drop, "{path}");
    }
    for (path, pattern) in [
        ("dist/a", "dist"),
        ("x/target/b", "target"),
        ("apps/web/.build/c", "apps/*/.build"),
        ("coverage", "coverage"),
    ] {
        assert_eq!(
            decide(&rules, path),
            Decision::DropUntracked(pattern),
            "{path}"
        );
    }
    for path in [
        "a",
        "src/target.rs",
        "x/.yarn/cache/a",
        ".gitignore",
        ".crabbox/config",
        "x/.crabbox/env",
        "distribution/a",
    ] {
        assert!(kept(&rules, path), "{path}");
    }
}

/// Every one of them, by its own name: none is dropped from the list unnoticed.
#[test]
fn all_built_ins_are_there() {
    let certain = [
        ".git",
        "._*",
        "node_modules",
        ".ignored",
        ".turbo",
        ".next",
        ".vite",
        ".parcel-cache",
        ".rollup.cache",
        ".cache",
        ".tmp",
        ".local",
        ".swiftpm",
        ".pnpm-store",
        ".npm",
        ".yarn/cache",
        ".venv",
        "__pycache__",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".gradle",
    ];
    let ambiguous = [
        "dist",
        "dist-runtime",
        "coverage",
        "playwright-report",
        "test-results",
        ".build",
        "apps/*/.build",
        "target",
    ];
    let protected = [
        ".crabbox/env",
        ".crabbox/scripts",
        ".crabbox/logs",
        ".crabbox/captures",
        ".crabbox/runs",
    ];
    let all = [&certain[..], &ambiguous, &protected].concat();
    assert_eq!(built_in().collect::<Vec<_>>(), all);
    let rules = rules(&[], &[], "");
    // No path can be made with `.git` in it.
    for pattern in certain[1..].iter().chain(&protected) {
        let path = format!("{}/a", pattern.replace('*', "x"));
        assert_eq!(decide(&rules, &path), Decision::Drop, "{path}");
    }
    for pattern in ambiguous {
        let path = format!("{}/a", pattern.replace('*', "x"));
        let decided = decide(&rules, &path);
        // What is in `apps/x/.build` is also in a `.build`.
        let said = [pattern, ".build"].map(Decision::DropUntracked);
        assert!(said.contains(&decided), "{path}: {decided:?}");
    }
}

#[test]
fn later_rules_win_and_can_bring_back() {
    let rules = rules(
        &["*.log", "!keep.log", "docs/*", "!node_modules/mine"],
        &[],
        "# comment\n\n  keep.log  \n!/docs/api\n\\!odd\n!dist/\n",
    );
    for (path, keep) in [
        ("a.log", false),
        ("x/a.log/b", false),
        ("keep.log", false),
        ("docs/a", false),
        ("docs/a/b", false),
        ("docs/api/b", true),
        ("docs", true),
        ("node_modules/mine/x", true),
        ("node_modules/other", false),
        ("!odd", false),
        ("odd", true),
        ("dist/x", true),
        ("# comment", true),
    ] {
        assert_eq!(kept(&rules, path), keep, "{path}");
    }
}

#[test]
fn patterns_count_as_written_and_as_globs() {
    let rules = rules(
        &[
            "app/[id]",
            "/only-root",
            "deep/**/x",
            "a/*/c",
            "./here",
            "build/",
        ],
        &[],
        "",
    );
    for (path, keep) in [
        ("app/[id]/page", false),
        ("app/i", false),
        ("app/x", true),
        ("only-root/a", false),
        ("x/only-root", true),
        ("deep/x", false),
        ("deep/a/b/x/y", false),
        ("deep/a/b", true),
        ("a/b/c/d", false),
        ("a/b/d", true),
        ("here", false),
        ("x/here", true),
        ("x/build/y", false),
    ] {
        assert_eq!(kept(&rules, path), keep, "{path}");
    }
}

#[test]
fn our_own_files_are_never_brought_back() {
    let rules = rules(&["!.crabbox/env", "!**", "!.crabbox"], &[], "!*\n");
    for path in [
        ".crabbox/env",
        ".crabbox/scripts/a",
        ".crabbox/logs/x/y",
        ".crabbox/captures",
        ".crabbox/runs",
        ".CrabBox/ENV/a",
        ".crabbox/\u{17f}cripts",
    ] {
        assert_eq!(decide(&rules, path), Decision::Drop, "{path}");
    }
    assert!(kept(&rules, ".crabbox/environment"));
    assert!(kept(&rules, "node_modules/a"));
}

#[test]
fn only_what_is_included_from_the_root() {
    let rules = rules(&["src/gen"], &["src", "docs/*.md", "lib*", "/Makefile"], "");
    for (path, keep) in [
        ("src/a/b", true),
        ("src/gen/a", false),
        ("x/src/a", false),
        ("docs/a.md", true),
        ("docs/a/b.md", false),
        ("library/x/y", true),
        ("x/library", false),
        ("Makefile", true),
        ("README", false),
        ("src/node_modules/a", false),
    ] {
        assert_eq!(kept(&rules, path), keep, "{path}");
    }
    let everything = self::rules(&[], &["."], "");
    assert!(kept(&everything, "a/b"));
}

#[test]
fn a_malformed_pattern_is_named_with_its_place() {
    let failure = Rules::new(&["[a".to_owned()], &[], b"").unwrap_err();
    assert_eq!(failure.code, Code::Config);
    assert_eq!(
        failure.message,
        "sync.exclude: invalid pattern `[a`: unclosed `[`"
    );
    let failure = Rules::new(&[], &[], b"ok\nx\\\n").unwrap_err();
    assert_eq!(
        failure.message,
        ".crabboxignore:2: invalid pattern `x\\`: it ends with a backslash"
    );
}

#[test]
fn the_ignore_file_is_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let load = || Rules::load(dir.path(), &[], &[]);
    assert!(load().is_ok());
    let file = dir.path().join(IGNORE_FILE);
    std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
    assert!(load().unwrap_err().to_string().contains("symlink"));
    std::fs::remove_file(&file).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &file,
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert!(load().unwrap_err().to_string().contains("regular"));
}

/// The meaning, spelled out: every rule against every prefix of the path, the last that matches wins.
fn naive(rules: &[String], path: &str) -> bool {
    let mut keep = true;
    let prefixes: Vec<&str> = path
        .match_indices('/')
        .map(|(at, _)| &path[..at])
        .chain([path])
        .collect();
    for rule in rules {
        let (pattern, effect) = match rule.strip_prefix('!') {
            Some(pattern) => (pattern, true),
            None => (rule.as_str(), false),
        };
        let matches = |prefix: &&str| {
            if pattern.contains('/') {
                crate::sync::glob::PathGlob::parse(pattern.as_bytes())
                    .unwrap()
                    .matches(prefix.as_bytes())
            } else {
                let name = prefix.rsplit('/').next().unwrap();
                crate::sync::glob::Glob::parse(pattern.as_bytes())
                    .unwrap()
                    .matches(name.as_bytes())
            }
        };
        if prefixes.iter().any(matches) {
            keep = effect;
        }
    }
    keep
}

proptest! {
    #[test]
    fn as_the_naive_rules_say(
        exclude in prop::collection::vec("!?[ab*]{1,2}(/[ab*]{1,2}){0,2}", 0..6),
        mut paths in prop::collection::vec("[ab]{1,2}(/[ab]{1,2}){0,3}", 1..12),
        sorted in any::<bool>(),
    ) {
        if sorted {
            paths.sort();
        }
        let rules = Rules::new(&exclude, &[], b"").unwrap();
        let mut cursor = Cursor::new(&rules);
        for path in &paths {
            let expected = naive(&exclude, path);
            let parsed = RelPath::parse(path.as_bytes()).unwrap();
            prop_assert_eq!(cursor.decide(&parsed) == Decision::Keep, expected, "{}", path);
            prop_assert_eq!(kept(&rules, path), expected, "{}", path);
            // A dead end holds nothing that is kept.
            for (at, _) in path.match_indices('/') {
                let dir = RelPath::parse(&path.as_bytes()[..at]).unwrap();
                prop_assert!(!(expected && Cursor::new(&rules).is_dead_end(&dir)), "{}", path);
            }
        }
    }

    #[test]
    fn any_ignore_file_does(text in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = Rules::new(&[], &[], &text);
    }
}
