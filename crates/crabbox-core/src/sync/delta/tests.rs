use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::*;
use crate::process::Cancel;
use crate::provider::SyncPhases;
use crate::sync::{Allow, Compression, Limits, Options, Prepared, Source, Tree};

/// A tree here, a directory that plays the sandbox, and the conversation between them.
struct Bench {
    dir: tempfile::TempDir,
    shell: &'static [&'static str],
}

/// What a sync said last, and what it sent.
struct Synced {
    said: Vec<String>,
    sent: Option<usize>,
    stderr: String,
}

fn write(path: &Path, text: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    File::create(path).unwrap().write_all(text).unwrap();
}

impl Bench {
    fn new(shell: &'static [&'static str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("here")).unwrap();
        fs::create_dir(dir.path().join("there")).unwrap();
        let bench = Self { dir, shell };
        for (path, text) in [
            ("a", "a"),
            ("src/main", "fn"),
            ("src/a b\n'c", "odd"),
            ("-rf", "x"),
        ] {
            write(&bench.here(path), text.as_bytes());
        }
        symlink("src/main -> x", bench.here("link")).unwrap();
        let script = fs::Permissions::from_mode(0o755);
        fs::set_permissions(bench.here("a"), script).unwrap();
        bench
    }

    fn here(&self, path: &str) -> PathBuf {
        self.dir.path().join("here").join(path)
    }

    /// The workdir has a name that needs quotes.
    fn there(&self, path: &str) -> PathBuf {
        self.dir.path().join("there/work 'dir").join(path)
    }

    fn prepared(&self) -> Prepared {
        let options = Options {
            exclude: Vec::new(),
            include: Vec::new(),
            limits: Limits::default(),
            allow: Allow::UpToLimits,
            mode: SyncMode::Replace,
            fingerprint: true,
            full: false,
            timeout: None,
        };
        let tree = Tree {
            root: &self.here(""),
            repository: None,
            source: Source::Walk,
            temp: self.dir.path(),
        };
        let mut phases = SyncPhases::new(std::time::Instant::now());
        Prepared::list(&tree, &options, &mut phases, &|_| {}).unwrap()
    }

    fn shell(&self, script: &[u8]) -> std::process::Child {
        let loader = format!("eval \"$(dd bs=1 count={} 2>/dev/null)\"", script.len());
        let mut child = Command::new(self.shell[0])
            .args(&self.shell[1..])
            .args(["-c", &loader])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.as_mut().unwrap().write_all(script).unwrap();
        child
    }

    /// `lose` is how many bytes of the archive's end do not arrive.
    fn sync(&self, mode: SyncMode, list: bool, lose: usize) -> Synced {
        let prepared = self.prepared();
        let workdir = self.there("");
        let workdir = workdir.as_os_str().as_encoded_bytes();
        let workdir = workdir.strip_suffix(b"/").unwrap_or(workdir);
        let mut child = self.shell(&inside::sync_script(workdir, "0a0b0c", mode, list));
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        let hello = line(&mut out);
        assert_eq!(hello, "0a0b0c hello gnu=yes gzip=yes");
        let mut stdin = child.stdin.take().unwrap();
        let listing = if list {
            listing(&mut out)
        } else {
            String::new()
        };
        let cancel = Cancel::new();
        let (delta, sent);
        if list {
            let remote = RemoteTree::parse(listing.as_bytes()).unwrap();
            delta = prepared.delta(&remote, mode).unwrap();
            sent = Some(delta.send.len());
        } else {
            delta = Delta::default();
            sent = None;
        }
        if list && delta.is_empty() {
            stdin.write_all(b"none\n").unwrap();
        } else {
            let whole;
            let part;
            let packed = if list {
                let changes = delta.changes(prepared.manifest());
                let changes = match mode {
                    SyncMode::Replace => changes,
                    SyncMode::Merge => Vec::new(),
                };
                let answer = format!("delta plain {}\n", changes.len());
                stdin.write_all(answer.as_bytes()).unwrap();
                stdin.write_all(&changes).unwrap();
                part = prepared.part(&delta, Compression::None, &cancel).unwrap();
                &part
            } else {
                stdin.write_all(b"full plain 0\n").unwrap();
                whole = prepared.archive(Compression::None, &cancel).unwrap();
                whole
            };
            let mut bytes = Vec::new();
            let mut reader = packed
                .open_with_last(&inside::complete_name("0a0b0c"))
                .unwrap();
            reader.read_to_end(&mut bytes).unwrap();
            bytes.truncate(bytes.len() - lose);
            // A script that failed does not read it.
            let _ = stdin.write_all(&bytes);
        }
        drop(stdin);
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        let mut stderr = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        child.wait().unwrap();
        let said = rest
            .lines()
            .map(|line| line.replace("0a0b0c ", ""))
            .collect();
        Synced { said, sent, stderr }
    }

    /// The sandbox has the tree and nothing else.
    fn assert_same(&self) {
        let diff = Command::new("diff")
            .args(["-r", "--no-dereference"])
            .args([self.here(""), self.there("")])
            .output()
            .unwrap();
        assert!(
            diff.status.success(),
            "{}",
            String::from_utf8_lossy(&diff.stdout)
        );
    }
}

fn line(out: &mut impl std::io::BufRead) -> String {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    line.trim_end_matches('\n').to_owned()
}

fn listing(out: &mut impl std::io::BufRead) -> String {
    let mut listing = String::new();
    loop {
        let line = line(out);
        if line == "0a0b0c listed 0" {
            return listing;
        }
        assert!(!line.is_empty(), "the list has no end");
        listing.push_str(&line);
        listing.push('\n');
    }
}

const SHELLS: [&[&str]; 2] = [&["sh"], &["bash"]];
const DONE: [&str; 3] = ["unpacked", "replaced", "finished"];

#[test]
fn only_what_differs_is_sent_and_the_result_is_the_same() {
    for shell in SHELLS {
        let bench = Bench::new(shell);
        let first = bench.sync(SyncMode::Replace, false, 0);
        assert_eq!(first.said, DONE, "{}", first.stderr);
        bench.assert_same();
        let again = bench.sync(SyncMode::Replace, true, 0);
        assert_eq!(
            (again.said, again.sent),
            (vec!["finished".to_owned()], Some(0))
        );

        // Changed here: content, kind, a new file where a directory was, gone.
        write(&bench.here("src/main"), b"fn main");
        fs::remove_file(bench.here("-rf")).unwrap();
        fs::remove_file(bench.here("link")).unwrap();
        write(&bench.here("link/deep/er"), b"now a directory");
        // Changed there: touched, replaced by a directory, a link out of the tree, stale things.
        write(&bench.there("a"), b"b");
        fs::remove_file(bench.there("src/a b\n'c")).unwrap();
        write(&bench.there("src/a b\n'c/x"), b"stale");
        write(&bench.there("node_modules/x/y"), b"stale");
        write(&bench.there("..odd/.x"), b"stale");
        fs::create_dir_all(bench.there("empty/dir")).unwrap();
        symlink("/etc/passwd", bench.there("src/passwd")).unwrap();
        let delta = bench.sync(SyncMode::Replace, true, 0);
        assert_eq!(delta.said, DONE, "{}", delta.stderr);
        assert_eq!(delta.sent, Some(4));
        bench.assert_same();
        assert_eq!(fs::read_dir(bench.there("")).unwrap().count(), 3);
    }
}

#[test]
fn merging_leaves_what_is_there() {
    let bench = Bench::new(SHELLS[0]);
    assert_eq!(
        bench.sync(SyncMode::Merge, false, 0).said,
        ["unpacked", "finished"]
    );
    write(&bench.there("made"), b"there");
    write(&bench.here("a"), b"other");
    let delta = bench.sync(SyncMode::Merge, true, 0);
    assert_eq!(
        (delta.said.len(), delta.sent),
        (2, Some(1)),
        "{}",
        delta.stderr
    );
    assert_eq!(fs::read(bench.there("made")).unwrap(), b"there");
    assert_eq!(fs::read(bench.there("a")).unwrap(), b"other");
    assert_eq!(bench.sync(SyncMode::Merge, true, 0).sent, Some(0));
}

/// A cut at a member's end is not an error to tar: only the last member proves that all is there.
#[test]
fn an_archive_that_is_cut_off_changes_nothing() {
    for (list, lose) in [(false, 1024), (false, 1536), (false, 2000), (true, 1536)] {
        let bench = Bench::new(SHELLS[0]);
        bench.sync(SyncMode::Replace, false, 0);
        write(&bench.here("src/main"), b"changed");
        write(&bench.there("made"), b"there");
        let cut = bench.sync(SyncMode::Replace, list, lose);
        if lose == 1024 {
            // Only the end-of-archive blocks are missing.
            assert_eq!(cut.said, DONE);
            continue;
        }
        let said = cut.said.last().unwrap();
        assert!(said.starts_with("failed "), "{said}");
        assert_eq!(fs::read(bench.there("src/main")).unwrap(), b"fn");
        assert_eq!(fs::read(bench.there("made")).unwrap(), b"there");
        assert!(!bench.there(".crabbox-sync-0a0b0c").exists());
    }
}

#[test]
fn a_replacement_that_fails_is_rolled_back() {
    // `mv` fails when it is to move this name: in the first pass, and in the second.
    for (list, victim) in [
        (false, "stale"),
        (false, "src"),
        (true, "stale"),
        (true, "src/main"),
    ] {
        let bench = Bench::new(SHELLS[0]);
        bench.sync(SyncMode::Replace, false, 0);
        write(&bench.here("src/main"), b"changed");
        write(&bench.there("stale"), b"there");
        write(&bench.there("zz/stale"), b"there");
        let before = snapshot(&bench.there(""));
        // Only in a pass into the workdir, if it is of the new tree.
        let into = if victim == "stale" { "old" } else { "work" };
        let fake = format!(
            "mv() {{ for last; do :; done; case \"$last\" in *{into}*) for w; do [ \"$w\" = '{victim}' ] && return 1; done ;; esac; command mv \"$@\"; }}"
        );
        let script = [fake.as_bytes(), b"\n"].concat();
        let failed = with_prefix(&bench, &script, list);
        let last = failed.last().unwrap();
        assert_eq!(
            last, "failed the files could not be replaced; the old ones were put back",
            "{list} {victim}"
        );
        assert_eq!(snapshot(&bench.there("")), before, "{list} {victim}");
    }
}

/// The same conversation, with something before the script.
fn with_prefix(bench: &Bench, prefix: &[u8], list: bool) -> Vec<String> {
    let prepared = bench.prepared();
    let workdir = bench.there("");
    let workdir = workdir.as_os_str().as_encoded_bytes();
    let workdir = workdir.strip_suffix(b"/").unwrap_or(workdir);
    let script = inside::sync_script(workdir, "0a0b0c", SyncMode::Replace, list);
    let mut child = bench.shell(&[prefix, &script].concat());
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    line(&mut out);
    let listing = if list {
        listing(&mut out)
    } else {
        String::new()
    };
    let mut stdin = child.stdin.take().unwrap();
    let cancel = Cancel::new();
    let archive = if list {
        let remote = RemoteTree::parse(listing.as_bytes()).unwrap();
        let delta = prepared.delta(&remote, SyncMode::Replace).unwrap();
        let changes = delta.changes(prepared.manifest());
        writeln!(stdin, "delta gzip {}", changes.len()).unwrap();
        stdin.write_all(&changes).unwrap();
        prepared.part(&delta, Compression::None, &cancel).unwrap()
    } else {
        stdin.write_all(b"full gzip 0\n").unwrap();
        prepared
            .part(
                &Delta {
                    send: (0..prepared.manifest().entries.len()).collect(),
                    ..Delta::default()
                },
                Compression::None,
                &cancel,
            )
            .unwrap()
    };
    let mut bytes = Vec::new();
    let reader = archive
        .open_with_last(&inside::complete_name("0a0b0c"))
        .unwrap();
    let level = flate2::Compression::fast();
    flate2::read::GzEncoder::new(reader, level)
        .read_to_end(&mut bytes)
        .unwrap();
    stdin.write_all(&bytes).unwrap();
    drop(stdin);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    child.wait().unwrap();
    rest.lines()
        .map(|line| line.replace("0a0b0c ", ""))
        .collect()
}

fn snapshot(dir: &Path) -> String {
    let listed = Command::new("sh")
        .arg("-c")
        .arg("cd \"$1\" && find . | sort && cat $(find . -type f -name '[a-z]*' | sort | grep -v ' ')")
        .arg("sh")
        .arg(dir)
        .output()
        .unwrap();
    String::from_utf8_lossy(&listed.stdout).into_owned()
}

#[test]
fn a_replacement_that_was_cut_off_is_repaired() {
    let bench = Bench::new(SHELLS[0]);
    bench.sync(SyncMode::Replace, false, 0);
    let before = snapshot(&bench.there(""));
    let staging = bench.there(".crabbox-sync-0a0b0c");
    let repair = || {
        let workdir = bench.there("");
        let workdir = workdir.as_os_str().as_encoded_bytes();
        let workdir = workdir.strip_suffix(b"/").unwrap_or(workdir);
        let mut child = bench.shell(&inside::repair_script(workdir, "0a0b0c"));
        drop(child.stdin.take());
        let said = child.wait_with_output().unwrap();
        String::from_utf8(said.stdout).unwrap()
    };
    assert_eq!(repair(), "0a0b0c finished\n");
    for moved in [false, true] {
        write(&staging.join("new/a"), b"new");
        write(&staging.join("pid"), b"999999999\n");
        write(&staging.join("begun"), b"");
        fs::create_dir_all(staging.join("old")).unwrap();
        fs::rename(bench.there("src"), staging.join("old/src")).unwrap();
        if moved {
            for name in ["a", "-rf", "link"] {
                fs::rename(bench.there(name), staging.join("old").join(name)).unwrap();
            }
            write(&staging.join("moved"), b"");
            write(&bench.there("a"), b"new");
        }
        assert_eq!(repair(), "0a0b0c finished\n");
        assert_eq!(snapshot(&bench.there("")), before);
    }
    // What is finished is only cleared.
    write(&staging.join("begun"), b"");
    write(&staging.join("done"), b"");
    write(&staging.join("pid"), b"999999999\n");
    write(&staging.join("old/gone"), b"");
    assert_eq!(repair(), "0a0b0c finished\n");
    assert_eq!(snapshot(&bench.there("")), before);
}

#[test]
fn a_sibling_is_the_old_tree_without_what_has_to_go() {
    let bench = Bench::new(SHELLS[0]);
    bench.sync(SyncMode::Replace, false, 0);
    write(&bench.here("src/main"), b"changed");
    write(&bench.there("stale/x"), b"");
    let workdir = bench.there("");
    let workdir = workdir.as_os_str().as_encoded_bytes();
    let workdir = workdir.strip_suffix(b"/").unwrap_or(workdir);
    let list = listing_command(workdir, b".none");
    let listed = Command::new("sh")
        .arg("-c")
        .arg(str::from_utf8(&list).unwrap())
        .output()
        .unwrap();
    let remote = RemoteTree::parse(&listed.stdout).unwrap();
    let prepared = bench.prepared();
    let delta = prepared.delta(&remote, SyncMode::Replace).unwrap();
    let staging = bench.dir.path().join("there/.staging");
    let script = sibling::clone_script(&delta, workdir, staging.as_os_str().as_encoded_bytes());
    let mut child = bench.shell(&script);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(!staging.join("stale").exists());
    assert!(!staging.join("src/main").exists());
    assert_eq!(fs::read(staging.join("src/a b\n'c")).unwrap(), b"odd");
    let part = prepared
        .part(&delta, Compression::None, &Cancel::new())
        .unwrap();
    tar::Archive::new(part.open().unwrap())
        .unpack(&staging)
        .unwrap();
    let diff = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([bench.here(""), staging])
        .status()
        .unwrap();
    assert!(diff.success());
    assert_eq!(fs::read(bench.there("src/main")).unwrap(), b"fn");
}

#[test]
fn records_of_find() {
    let listing = b"d 755 4096 1794767953.0764344980 a b\0\0\n\
        f 5754 2 1577934245.0000000000 a b/x -> y\0\0\n\
        l 777 6 1794767953.5 l k\0q -> z\0\n\
        f 644 1 1794767953.0000000010 \xff\\\n0 listed 0\0\0\n\
        f 644 1 -1.5000000000 old\0\0\n\
        s 777 0 1.0 socket\0\0\n";
    let tree = RemoteTree::parse(listing).unwrap();
    let file = tree.get(b"a b/x -> y").unwrap();
    assert_eq!((file.mode, file.size), (0o5754, 2));
    assert_eq!(file.modified, Some((1_577_934_245, 0)));
    let link = tree.get(b"l k").unwrap();
    assert_eq!(link.kind, RemoteKind::Symlink(b"q -> z".to_vec()));
    assert_eq!(link.modified, Some((1_794_767_953, 500_000_000)));
    let odd = tree.get(b"\xff\\\n0 listed 0").unwrap();
    assert_eq!(odd.modified, Some((1_794_767_953, 1)));
    assert_eq!(tree.get(b"old").unwrap().modified, Some((-1, 500_000_000)));
    assert_eq!(tree.get(b"socket").unwrap().kind, RemoteKind::Other);
    assert_eq!(tree.iter().count(), 6);
    assert_eq!(RemoteTree::parse(b"").unwrap(), RemoteTree::default());
    for bad in [
        "f 644 1 1.0 cut",
        "f 644 1 1.0 cut\0",
        "f 644 1 1.0 cut\0\0",
        "f 644 1 1.0 \0\0\n",
        "f 644 1 1.0 /etc/passwd\0\0\n",
        "f 648 1 1.0 x\0\0\n",
        "f 644 -1 1.0 x\0\0\n",
        "f 644 1 1.0 x\0\0\nnonsense",
    ] {
        assert!(RemoteTree::parse(bad.as_bytes()).is_err(), "{bad}");
    }
    // A time that is not understood is no reason to believe that a file is as it was.
    let odd = RemoteTree::parse(b"f 644 1 1.x x\0\0\n").unwrap();
    assert_eq!(odd.get(b"x").unwrap().modified, None);
}

/// Both lists of one tree say the same.
#[test]
fn find_and_tar_list_the_same() {
    let bench = Bench::new(SHELLS[0]);
    symlink("nowhere -> x", bench.here("src/lost")).unwrap();
    write(&bench.here(".none/x"), b"");
    fs::set_permissions(bench.here("-rf"), fs::Permissions::from_mode(0o4751)).unwrap();
    let old = File::options().append(true).open(bench.here("a")).unwrap();
    old.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_millis(999_500))
        .unwrap();
    let here = bench.here("");
    let command = listing_command(here.as_os_str().as_encoded_bytes(), b".none");
    let command = String::from_utf8(command).unwrap();
    let list = |command: &str| {
        let listed = Command::new("sh").args(["-c", command]).output().unwrap();
        assert!(listed.status.success(), "{listed:?}");
        let tree = RemoteTree::parse(&listed.stdout).unwrap();
        // The size of a directory says nothing.
        let facts = |(path, entry): (&[u8], &RemoteEntry)| {
            let size = (entry.kind == RemoteKind::File).then_some(entry.size);
            let facts = (entry.kind.clone(), size, entry.mode, entry.modified);
            (path.to_vec(), facts)
        };
        (listed.stdout, tree.iter().map(facts).collect::<Vec<_>>())
    };
    let (found, by_find) = list(&command);
    let (archived, by_tar) = list(&command.replace("if find", "if false"));
    assert!(found.contains(&0) && !archived.contains(&0));
    assert_eq!(by_find.len(), 7);
    assert_eq!(by_find, by_tar);
}

#[test]
fn lines_of_tar() {
    let listing = b"drwxr-xr-x 0/0               0 2026-11-18 07:49:50.33542427 ./\n\
        -rwsr-xr-T 1000/100          2 2020-01-02 03:04:05           ./a\\ b/x\\ ->\\ y\n\
        lrwxrwxrwx 0/0               0 2026-11-18 07:49:50 ./l\\ k -> q\\ ->\\ z\n\
        -rw-r--r-- 0/0 1 2026-11-18 07:49:50.5 ./\\303\\251\\\\\\n\n\
        crw-rw-rw- 0/0             1,3 2026-11-18 07:49:50 ./null\n";
    let tree = RemoteTree::parse(listing).unwrap();
    let file = tree.get(b"a b/x -> y").unwrap();
    assert_eq!((file.mode, file.size), (0o5754, 2));
    assert_eq!(file.modified, Some((1_577_934_245, 0)));
    assert_eq!(
        tree.get(b"l k").unwrap().kind,
        RemoteKind::Symlink(b"q -> z".to_vec())
    );
    assert_eq!(
        tree.get("é\\\n".as_bytes()).unwrap().modified.unwrap().1,
        500_000_000
    );
    assert_eq!(tree.get(b"null").unwrap().kind, RemoteKind::Other);
    assert_eq!(tree.iter().count(), 4);
    for bad in [
        "nonsense",
        "-rw-r--r-- 0/0 1 2026-11-18 07:49:50.5 /etc/passwd",
    ] {
        assert!(RemoteTree::parse(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn a_file_that_may_have_changed_within_the_last_second_is_sent() {
    let bench = Bench::new(&["sh"]);
    let at = |second: u64| std::time::UNIX_EPOCH + std::time::Duration::from_secs(second);
    for (path, second) in [("a", 1000), ("src/main", 1009), ("-rf", 1010)] {
        let file = File::options().append(true).open(bench.here(path)).unwrap();
        file.set_modified(at(second)).unwrap();
    }
    for path in ["src/main", "-rf"] {
        let plain = fs::Permissions::from_mode(0o644);
        fs::set_permissions(bench.here(path), plain).unwrap();
    }
    let prepared = bench.prepared();
    let there = |path: &str, mode: &str, size: u64, second: &str| {
        format!("-{mode} 0/0 {size} 1970-01-01 {second} {path}\n")
    };
    let listing = [
        there("./a", "rwxr-xr-x", 1, "00:16:40"),
        there("./src/main", "rw-r--r--", 2, "00:16:49"),
        there("./-rf", "rw-r--r--", 1, "00:16:50"),
    ];
    let remote = RemoteTree::parse(listing.concat().as_bytes()).unwrap();
    let sent = |listed: Option<i64>| {
        if let Some(listed) = listed {
            prepared.trust_before(listed);
        }
        let delta = prepared.delta(&remote, SyncMode::Merge).unwrap();
        let mut sent: Vec<_> = delta
            .sent(prepared.manifest())
            .map(|entry| String::from_utf8_lossy(entry.path.as_bytes()).into_owned())
            .filter(|path| ["a", "src/main", "-rf"].contains(&path.as_str()))
            .collect();
        sent.sort();
        sent
    };
    assert_eq!(sent(None), Vec::<String>::new());
    assert_eq!(sent(Some(1012)), Vec::<String>::new());
    assert_eq!(sent(Some(1011)), ["-rf"]);
    assert_eq!(sent(Some(1010)), ["-rf", "src/main"]);
    assert_eq!(sent(Some(i64::MIN)), ["-rf", "a", "src/main"]);
}
