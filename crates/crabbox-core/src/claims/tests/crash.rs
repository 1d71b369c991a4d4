//! Damaged, foreign and half-written files.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};
use std::{ffi::OsStr, fs, fs::File};

use proptest::prelude::*;

use super::super::files;
use super::*;
use crate::Code;

const TEMP: &str = ".claim-abc123.tmp";

fn problems(place: &Place) -> Vec<(String, ProblemCode)> {
    let problems = place.store.scan().unwrap().problems;
    problems.into_iter().map(|p| (p.file, p.code)).collect()
}

/// Gap of the original: one bad claim broke `list` for all.
#[test]
fn one_damaged_file_breaks_nothing_else() {
    use ProblemCode::*;
    let place = Place::new();
    let good = place.slugged("x_5", "blue-crab").unwrap();
    place.put("a.json", "{");
    place.put("b.json", "{}");
    place.put("c.json", r#"{"leaseID":"other"}"#);
    place.put("d.json", r#"{"leaseID":"d"}"#);
    place.put("e.json", vec![b' '; files::MAX_BYTES + 1]);
    place.put("z.json", "");
    place.put("bad\nname.json", "{}");
    place.put("notes.txt", "not a claim at all");
    fs::create_dir(place.file("f.json")).unwrap();
    symlink(place.file("x_5.json"), place.file("g.json")).unwrap();
    symlink("/nowhere/at/all", place.file("h.json")).unwrap();
    let pipe = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, place.file("i.json"), kind, pipe, 0).unwrap();
    write(&place.file("").join(OsStr::from_bytes(b"\xff.json")), b"{}");

    let scan = place.store.scan().unwrap();
    assert_eq!(scan.claims, std::slice::from_ref(&good));
    let named = |file: &str, code| (file.to_owned(), code);
    assert_eq!(
        problems(&place),
        [
            named("a.json", InvalidJson),
            named("b.json", EmptyLeaseId),
            named("sha256:0ca75a73cd29808b", InvalidFilename),
            named("c.json", LeaseIdMismatch),
            named("d.json", InvalidClaim),
            named("e.json", ClaimTooLarge),
            named("f.json", NonRegularFile),
            named("g.json", NonRegularFile),
            named("h.json", NonRegularFile),
            named("i.json", NonRegularFile),
            named("z.json", InvalidJson),
            named("sha256:a124b6199a9962f0", InvalidFilename),
        ]
    );

    // All others work as before: look-up, allocation of slugs of both kinds, writing.
    let find = |text| place.store.find(text, ProviderFilter::All);
    assert_eq!(find("blue-crab").unwrap(), Some(good.clone()));
    assert_eq!(find("no-such").unwrap(), None);
    place.create("x_6");
    place.slugged("x_7", "red-crab").unwrap();
    let ready = place.store.replace(&good, good.ready()).unwrap();
    place.store.remove(&ready).unwrap();

    // A damaged claim is an error only for a caller that asks for exactly that one.
    for id in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "z"] {
        let failure = find(id).unwrap_err();
        assert_eq!(failure.code, Code::State, "{id}");
        assert!(
            failure.message.contains(&format!("`{id}.json`")),
            "{failure}"
        );
        assert_eq!(place.store.read(&lease(id)), Err(failure));
    }
    let misfiled = find("c").unwrap_err().message;
    assert!(misfiled.contains("refusing misfiled claim"), "{misfiled}");
}

#[test]
fn a_file_that_may_not_be_read_is_a_problem_of_its_own() {
    // Every process may open this file, but a read at offset 0 fails.
    let fault = files::read(Path::new("/proc/self/mem"));
    assert_eq!(fault.unwrap_err().code, ProblemCode::ReadError);

    let place = Place::new();
    place.create("x_1");
    let hidden = fs::Permissions::from_mode(0o000);
    fs::set_permissions(place.file("x_1.json"), hidden).unwrap();
    if File::open(place.file("x_1.json")).is_ok() {
        // For root nothing is hidden.
        return;
    }
    let expected = ("x_1.json".to_owned(), ProblemCode::ReadError);
    assert_eq!(problems(&place), [expected]);
}

#[test]
fn many_problems_are_cut_short() {
    let place = Place::new();
    for number in 0..100 {
        place.put(&format!("x_{number:03}.json"), "{");
    }
    assert_eq!(problems(&place).len(), 100);
    assert!(
        problems(&place)
            .iter()
            .all(|(_, code)| *code == ProblemCode::InvalidJson)
    );
    place.put("x_100.json", "{");
    let problems = place.store.scan().unwrap().problems;
    assert_eq!(problems.len(), 100);
    let last = problems.last().unwrap();
    assert_eq!(last.code, ProblemCode::ProblemsTruncated);
    assert_eq!(last.message, "2 more problems not shown");
}

#[test]
fn half_written_files_are_ignored_and_go_when_they_are_old() {
    let place = Place::new();
    let created = place.create("x_1");
    // Killed between the write and the rename: the old claim holds.
    place.put(TEMP, created.ready().encode().unwrap());
    assert_eq!(
        place.store.read(&lease("x_1")).unwrap(),
        Some(created.clone())
    );
    assert_eq!(problems(&place), []);

    // It may belong to a process that is about to rename it.
    place.create("x_2");
    assert!(place.file(TEMP).exists());

    let old = SystemTime::now() - Duration::from_secs(2 * 60 * 60);
    let file = File::options().write(true).open(place.file(TEMP)).unwrap();
    file.set_modified(old).unwrap();
    place.create("x_3");
    assert!(!place.file(TEMP).exists());
    assert_eq!(place.store.scan().unwrap().claims.len(), 3);
}

#[test]
fn leftovers_are_told_by_name_and_age() {
    let place = Place::new();
    place.put(TEMP, "");
    place.put("notes.txt", "");
    place.put("x.json", "");
    let dir = place.file("");
    let later = SystemTime::now() + Duration::from_secs(2 * 60 * 60);
    let earlier = SystemTime::now() - Duration::from_secs(2 * 60 * 60);
    files::sweep_leftovers(&dir, earlier);
    assert!(place.file(TEMP).exists());
    files::sweep_leftovers(&dir, later);
    assert!(!place.file(TEMP).exists());
    assert!(place.file("notes.txt").exists());
    assert!(place.file("x.json").exists());
}

#[test]
fn a_write_leaves_no_temporary_file() {
    let place = Place::new();
    let created = place.create("x_1");
    place.store.replace(&created, created.ready()).unwrap();
    place
        .store
        .create(claim("x_1"), &SlugChoice::Generated)
        .unwrap_err();
    let dir = place.file("");
    files::write(&dir, "x_1.json", b"", files::WriteMode::CreateNew).unwrap_err();
    let names = fs::read_dir(dir).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["x_1.json"]);
}

#[test]
fn a_directory_that_is_a_link_is_refused() {
    let place = Place::new();
    let elsewhere = place.temp.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::create_dir(place.state()).unwrap();
    symlink(&elsewhere, place.state().join("claims")).unwrap();
    for failure in [
        place.store.scan().unwrap_err(),
        place.store.read(&lease("x_1")).unwrap_err(),
        place
            .store
            .create(claim("x_1"), &SlugChoice::Generated)
            .unwrap_err(),
    ] {
        assert_eq!(failure.code, Code::State);
        assert!(
            failure.message.ends_with("it is a symbolic link"),
            "{failure}"
        );
    }
    assert_eq!(fs::read_dir(elsewhere).unwrap().count(), 0);
}

#[test]
fn a_directory_that_others_write_into_is_refused() {
    let place = Place::new();
    place.create("x_1");
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(place.file(""), open).unwrap();
    let failure = place.store.scan().unwrap_err();
    assert_eq!(failure.code, Code::State);
    assert!(
        failure.message.contains("writable by other users"),
        "{failure}"
    );
    let hint = failure.hints.first().unwrap();
    assert!(hint.starts_with("chmod 700 "), "{hint}");
}

#[test]
fn a_claim_that_is_a_link_is_not_written_through() {
    let place = Place::new();
    let created = place.create("x_1");
    let moved = place.temp.path().join("moved.json");
    fs::rename(place.file("x_1.json"), &moved).unwrap();
    symlink(&moved, place.file("x_1.json")).unwrap();
    for failure in [
        place.store.replace(&created, created.ready()).unwrap_err(),
        place.store.remove(&created).unwrap_err(),
    ] {
        assert_eq!(failure.code, Code::State);
        assert!(failure.message.contains("not a regular file"), "{failure}");
    }
    assert_eq!(fs::read(moved).unwrap(), created.encode().unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_file_makes_the_store_panic(
        name in "[ -~]{1,20}",
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let place = Place::new();
        let name = format!("{}.json", name.replace('/', "_"));
        place.put(&name, &bytes);
        let good = place.create("good_1");
        let scan = place.store.scan().unwrap();
        prop_assert_eq!(scan.claims, vec![good]);
        prop_assert_eq!(scan.problems.len(), 1);
        drop(place.store.find(&name, ProviderFilter::All));
        Listing::new(&place.store.scan().unwrap()).text();
    }
}
