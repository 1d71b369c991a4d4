use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::Code;
use crate::process::Stream;
use crate::redact::Redactor;
use crate::timing::{ErrorKind, RunStatus};

const SMALL: Bounds = Bounds {
    runs: 10,
    bytes: 1 << 20,
    log: 64,
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn begin(id: &str, second: i64) -> Begin {
    Begin {
        run_id: format!("run_{id}"),
        provider: "p".to_owned(),
        lease_id: String::new(),
        slug: String::new(),
        repo_root: "/repo".to_owned(),
        command: "deploy --token hunter2 exact".to_owned(),
        terminal: false,
        merged: false,
        label: Some("for hunter2".to_owned()),
        started_at: at(second),
    }
}

fn finish(second: i64) -> Finish {
    Finish {
        ended_at: at(second),
        exit_code: Some(7),
        status: RunStatus::Failed,
        error_kind: Some(ErrorKind::CommandExit),
        timing: None,
    }
}

/// A finished run.
fn record(store: &RunStore, id: &str, second: i64, slug: &str) {
    let mut run = store.begin(begin(id, second), Redactor::default()).unwrap();
    run.leased("l_1", slug).unwrap();
    run.finish(finish(second + 1)).unwrap();
}

fn record_file(runs: &Path, id: &str) -> PathBuf {
    runs.join(format!("{id}.json"))
}

/// Makes a run's process one that is dead.
fn mark_dead(state: &Path, id: &str) {
    let path = record_file(&state.join("runs"), &format!("run_{id}"));
    let text = fs::read_to_string(&path).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let started = json["process"]["startTime"].as_u64().unwrap();
    json["process"]["startTime"] = (started + 1).into();
    let fresh = path.with_extension("fresh");
    let mut file = fs::File::create(&fresh).unwrap();
    writeln!(file, "{json}").unwrap();
    fs::rename(fresh, path).unwrap();
}

fn ids(store: &RunStore) -> Vec<String> {
    let runs = store.list().unwrap().runs;
    runs.into_iter().map(|run| run.run_id).collect()
}

fn log(store: &RunStore, id: &str, stream: Stream) -> String {
    let mut text = String::new();
    if let Some(mut file) = store.read_log(&format!("run_{id}"), stream).unwrap() {
        file.read_to_string(&mut text).unwrap();
    }
    text
}

#[test]
fn a_run_is_written_down_from_beginning_to_end() {
    let state = tempfile::tempdir().unwrap();
    let store = RunStore::new(state.path(), Bounds::default());
    assert_eq!(store.list().unwrap(), Listing::default());

    let redactor = Redactor::new(["hunter2"]);
    let mut run = store.begin(begin("0a", 0), redactor).unwrap();
    let running = store.find("latest").unwrap();
    assert_eq!(running.run_status, Status::Running);
    assert_eq!(running.command, "deploy --token [redacted] exact");
    assert_eq!(running.label.as_deref(), Some("for [redacted]"));

    run.leased("l_1", "blue-crab").unwrap();
    run.log(Stream::Stdout).append(b"it is hun");
    run.log(Stream::Stdout).append(b"ter2!\n");
    run.log(Stream::Stderr).append(b"warning\n");
    // What was written so far can be read while it runs.
    assert_eq!(log(&store, "0a", Stream::Stdout), "it is [redacted]!\n");

    let ended = run.finish(finish(5)).unwrap();
    assert_eq!(store.find("blue-crab").unwrap(), ended);
    assert_eq!(log(&store, "0a", Stream::Stderr), "warning\n");
    let text = serde_json::to_string(&ended).unwrap();
    // The last field is this process.
    let (shown, _) = text.split_once(r#","process":"#).unwrap();
    assert_eq!(
        shown,
        r#"{"runId":"run_0a","provider":"p","leaseId":"l_1","slug":"blue-crab","repoRoot":"/repo","command":"deploy --token [redacted] exact","startedAt":"2027-01-15T08:00:00Z","endedAt":"2027-01-15T08:00:05Z","exitCode":7,"runStatus":"failed","errorKind":"command-exit","label":"for [redacted]","stdout":{"bytes":15,"stored":18,"truncated":false},"stderr":{"bytes":8,"stored":8,"truncated":false}"#
    );
}

#[test]
fn everything_is_the_users_alone() {
    let state = tempfile::tempdir().unwrap();
    let store = RunStore::new(state.path(), Bounds::default());
    record(&store, "0a", 0, "s");
    let run = store.begin(begin("0b", 0), Redactor::default()).unwrap();
    run.log(Stream::Stdout).append(b"x");
    let mode = |path: &str| {
        let found = fs::metadata(state.path().join("runs").join(path)).unwrap();
        found.permissions().mode() & 0o7777
    };
    assert_eq!(mode(""), 0o700);
    let mut names: Vec<String> = fs::read_dir(state.path().join("runs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    // No file is created for a stream without output.
    let expected = ["run_0a.json", "run_0b.json", "run_0b.stdout.log"];
    assert_eq!(names, expected);
    for file in expected {
        assert_eq!(mode(file), 0o600, "{file}");
    }
    assert_eq!(log(&store, "0a", Stream::Stdout), "");
}

#[test]
fn the_last_whole_line_counts() {
    let state = tempfile::tempdir().unwrap();
    let store = RunStore::new(state.path(), SMALL);
    record(&store, "0a", 0, "s");
    let path = record_file(&state.path().join("runs"), "run_0a");
    let whole = fs::read(&path).unwrap();
    let ends: Vec<usize> = (1..=whole.len())
        .filter(|end| whole[end - 1] == b'\n')
        .collect();
    // Begun, leased, finished.
    assert_eq!(ends.len(), 3);
    for cut in 0..=whole.len() {
        fs::File::create(&path)
            .unwrap()
            .write_all(&whole[..cut])
            .unwrap();
        let lines = ends.iter().filter(|end| **end <= cut).count();
        let listing = store.list().unwrap();
        let shown: Vec<(Status, &str)> = listing
            .runs
            .iter()
            .map(|run| (run.run_status, run.slug.as_str()))
            .collect();
        let expected: &[(Status, &str)] = match lines {
            0 => &[],
            1 => &[(Status::Running, "")],
            2 => &[(Status::Running, "s")],
            _ => &[(Status::Failed, "s")],
        };
        assert_eq!(shown, expected, "{cut}");
        assert_eq!(listing.problems.len(), usize::from(lines == 0 && cut > 0));
    }
}

#[test]
fn a_run_whose_process_died_was_interrupted() {
    let state = tempfile::tempdir().unwrap();
    let store = RunStore::new(state.path(), SMALL);
    drop(store.begin(begin("0a", 0), Redactor::default()).unwrap());
    assert_eq!(store.find("latest").unwrap().run_status, Status::Running);
    mark_dead(state.path(), "0a");
    let interrupted = store.find("latest").unwrap();
    assert_eq!(interrupted.run_status, Status::Interrupted);
    assert_eq!(interrupted.ended_at, None);
    // One that had ended did end.
    record(&store, "0b", 1, "s");
    mark_dead(state.path(), "0b");
    assert_eq!(store.find("latest").unwrap().run_status, Status::Failed);
}

#[test]
fn runs_are_found_by_id_beginning_slug_and_age() {
    let state = tempfile::tempdir().unwrap();
    let store = RunStore::new(state.path(), SMALL);
    assert_eq!(store.find("latest").unwrap_err().code, Code::NotFound);
    record(&store, "abc1", 1, "blue-crab");
    record(&store, "abc2", 3, "blue-crab");
    record(&store, "abc", 2, "red-crab");
    let find = |which: &str| store.find(which).map(|run| run.run_id);
    assert_eq!(find("latest").unwrap(), "run_abc2");
    assert_eq!(find("blue-crab").unwrap(), "run_abc2");
    assert_eq!(find("red-crab").unwrap(), "run_abc");
    assert_eq!(find("run_abc").unwrap(), "run_abc");
    assert_eq!(find("run_abc1").unwrap(), "run_abc1");
    assert_eq!(find("abc1").unwrap(), "run_abc1");
    let several = find("ab").unwrap_err();
    assert_eq!(several.code, Code::Usage);
    assert_eq!(
        several.message,
        "`ab` is ambiguous, it matches 3 runs: run_abc2, run_abc, run_abc1"
    );
    for missing in ["", "xyz", "run_f", "blue"] {
        assert_eq!(find(missing).unwrap_err().code, Code::NotFound, "{missing}");
    }
}

#[test]
fn ids_never_leave_the_directory() {
    let state = tempfile::tempdir().unwrap();
    let store = RunStore::new(state.path(), SMALL);
    for bad in ["../x", "run_", "run_..", "run_a/b", "run_G", ""] {
        assert!(store.read_log(bad, Stream::Stdout).is_err(), "{bad}");
        let begin = Begin {
            run_id: bad.to_owned(),
            ..begin("0", 0)
        };
        assert!(store.begin(begin, Redactor::default()).is_err(), "{bad}");
    }
    // An id that is taken is not taken over.
    record(&store, "0a", 0, "s");
    let again = store.begin(begin("0a", 5), Redactor::default());
    assert_eq!(again.unwrap_err().code, Code::State);
    assert_eq!(store.find("0a").unwrap().started_at, at(0));
    assert_eq!(fs::read_dir(state.path().join("runs")).unwrap().count(), 1);
}

#[test]
fn damaged_records_are_problems_and_break_nothing() {
    let state = tempfile::tempdir().unwrap();
    let store = RunStore::new(state.path(), SMALL);
    for (id, second) in [("01", 1), ("02", 2), ("03", 3), ("04", 4)] {
        record(&store, id, second, "s");
    }
    let runs = state.path().join("runs");
    let write = |id: &str, text: &str| {
        let mut file = fs::File::create(record_file(&runs, id)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    write("run_01", "{");
    let other = fs::read_to_string(record_file(&runs, "run_03")).unwrap();
    write("run_02", &other);
    fs::remove_file(record_file(&runs, "run_04")).unwrap();
    fs::create_dir(record_file(&runs, "run_05")).unwrap();
    fs::File::create(record_file(&runs, "run_06")).unwrap();
    fs::File::create(runs.join("note.txt")).unwrap();
    let listing = store.list().unwrap();
    assert_eq!(ids(&store), ["run_03"]);
    let mut problems: Vec<&str> = listing
        .problems
        .iter()
        .map(|problem| problem.run_id.as_str())
        .collect();
    problems.sort_unstable();
    assert_eq!(problems, ["run_01", "run_02", "run_05"]);
    assert_eq!(store.find("latest").unwrap().run_id, "run_03");
}

#[test]
fn the_oldest_runs_go_and_live_ones_stay() {
    let state = tempfile::tempdir().unwrap();
    let store = RunStore::new(state.path(), SMALL);
    for second in 0..10 {
        record(&store, &format!("{second:02}"), second, "s");
        mark_dead(state.path(), &format!("{second:02}"));
    }
    store.prune(at(100)).unwrap();
    assert_eq!(ids(&store).len(), 10);
    // The oldest of all lives.
    drop(store.begin(begin("aa", -5), Redactor::default()).unwrap());
    store.prune(at(100)).unwrap();
    let kept = ids(&store);
    assert_eq!(kept.len(), 9);
    assert_eq!(kept.first().map(String::as_str), Some("run_09"));
    assert_eq!(kept.last().map(String::as_str), Some("run_aa"));
    assert!(!kept.contains(&"run_01".to_owned()));
}

#[test]
fn bytes_are_bounded_too() {
    let state = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        bytes: 100_000,
        log: 40_000,
        ..SMALL
    };
    let store = RunStore::new(state.path(), bounds);
    for second in 0..4 {
        let id = format!("{second:02}");
        let run = store
            .begin(begin(&id, second), Redactor::default())
            .unwrap();
        run.log(Stream::Stdout).append(&[b'x'; 30_000]);
        run.finish(finish(second)).unwrap();
        mark_dead(state.path(), &id);
    }
    store.prune(at(100)).unwrap();
    assert_eq!(ids(&store), ["run_03", "run_02"]);
}

#[test]
fn what_killed_processes_left_is_swept() {
    let state = tempfile::tempdir().unwrap();
    let store = RunStore::new(state.path(), Bounds { runs: 0, ..SMALL });
    record(&store, "0a", 0, "s");
    mark_dead(state.path(), "0a");
    let live = store.begin(begin("0c", 1), Redactor::default()).unwrap();
    live.log(Stream::Stderr).append(b"x");
    let runs = state.path().join("runs");
    for name in ["run_0b.stdout.log", "run_0b.stderr.log", "else.stdout.log"] {
        fs::File::create(runs.join(name)).unwrap();
    }
    store.prune(at(100)).unwrap();
    let mut left: Vec<String> = fs::read_dir(&runs)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    let expected = [
        ".lock",
        "else.stdout.log",
        "run_0c.json",
        "run_0c.stderr.log",
    ];
    assert_eq!(left, expected);
}

#[test]
fn many_may_write_list_and_prune_at_once() {
    let state = tempfile::tempdir().unwrap();
    let store = RunStore::new(state.path(), Bounds { runs: 5, ..SMALL });
    std::thread::scope(|scope| {
        for thread in 0..4_i64 {
            let (store, state) = (&store, state.path());
            scope.spawn(move || {
                for turn in 0..25_i64 {
                    let id = format!("{thread:02}{turn:02}");
                    record(store, &id, turn, "s");
                    mark_dead(state, &id);
                    // By the clock of the files: a record that is only being made is not old.
                    store.prune(Timestamp::now()).unwrap();
                    // Whatever is removed meanwhile, nothing is seen half.
                    assert_eq!(store.list().unwrap().problems, []);
                }
            });
        }
    });
    store.prune(at(100)).unwrap();
    let listing = store.list().unwrap();
    assert_eq!(listing.problems, []);
    assert!(listing.runs.len() <= 5, "{}", listing.runs.len());
}

/// The log of a stream that came in pieces.
fn stored(text: &[u8], piece: usize, cap: usize, redactor: &Redactor) -> (String, LogInfo) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let log = RunLog::new(path.clone(), redactor, cap);
    for piece in text.chunks(piece) {
        log.append(piece);
    }
    let info = log.finish();
    log.append(b"late");
    let text = fs::read_to_string(path).unwrap_or_default();
    assert_eq!(info.stored, text.len() as u64);
    (text, info)
}

#[test]
fn bug_16_of_a_long_log_the_beginning_and_the_end_are_kept() {
    let text: String = (0..100).map(|n| format!("{n:03}\n")).collect();
    let none = Redactor::default();
    for piece in [1, 7, 400] {
        let (shown, info) = stored(text.as_bytes(), piece, 16, &none);
        assert_eq!(shown, "000\n001\n\n[... 384 bytes omitted ...]\n098\n099\n");
        let expected = LogInfo {
            bytes: 400,
            stored: shown.len() as u64,
            truncated: true,
        };
        assert_eq!(info, expected);
        let (whole, info) = stored(text.as_bytes(), piece, 400, &none);
        assert_eq!(whole, text);
        assert!(!info.truncated);
    }
}

#[test]
fn a_log_that_cannot_be_written_does_not_fail_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("no/log");
    let log = RunLog::new(nowhere, &Redactor::default(), 64);
    log.append(b"text");
    let expected = LogInfo {
        bytes: 4,
        stored: 0,
        truncated: true,
    };
    assert_eq!(log.finish(), expected);
}

proptest! {
    #[test]
    fn no_cut_shows_a_part_of_a_secret(
        before in 0_usize..60,
        between in 0_usize..60,
        after in 0_usize..60,
        piece in 1_usize..20,
        cap in 2_usize..60,
    ) {
        let secret = "0123456789";
        let text = format!(
            "{}{secret}{}{secret}{}",
            "a".repeat(before), "b".repeat(between), "c".repeat(after),
        );
        let redactor = Redactor::new([secret]);
        let (shown, info) = stored(text.as_bytes(), piece, cap, &redactor);
        prop_assert_eq!(info.bytes, text.len() as u64);
        let shown: String = shown
            .lines()
            .filter(|line| !line.starts_with("[... "))
            .collect();
        prop_assert!(!shown.contains(|char: char| char.is_ascii_digit()), "{}", shown);
    }

    #[test]
    fn a_short_log_is_whole(text in "[ab\n]{0,64}", piece in 1_usize..70) {
        let (shown, info) = stored(text.as_bytes(), piece, 64, &Redactor::default());
        prop_assert_eq!(&shown, &text);
        prop_assert!(!info.truncated);
    }
}
