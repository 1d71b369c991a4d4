use std::fs;

use super::*;
use crate::{Code, Failure};

#[test]
fn a_claim_lives_from_create_to_remove() {
    let place = Place::new();
    let created = place.create("x_1");
    assert_eq!(created.revision().len(), 32);
    assert_eq!(created.state, State::Creating);
    assert_eq!(created.slug, Some(Slug::generate(&lease("x_1"))));
    assert_eq!(
        place.store.read(&lease("x_1")).unwrap(),
        Some(created.clone())
    );

    let ready = place.store.replace(&created, created.ready()).unwrap();
    assert_eq!(ready.state, State::Ready);
    // The creator of a lease that is not kept is still responsible for it.
    assert_eq!(ready.creator, created.creator);
    assert_eq!(created.kept().ready().creator, None);
    assert_ne!(ready.revision(), created.revision());
    assert_eq!(
        place.store.read(&lease("x_1")).unwrap(),
        Some(ready.clone())
    );

    place.store.remove(&ready).unwrap();
    assert_eq!(place.store.read(&lease("x_1")).unwrap(), None);
    assert_eq!(place.store.scan().unwrap(), Scan::default());
}

#[test]
fn reads_create_nothing_and_take_no_lock() {
    let place = Place::new();
    assert_eq!(place.store.read(&lease("x_1")).unwrap(), None);
    assert_eq!(place.store.scan().unwrap(), Scan::default());
    assert_eq!(place.store.find("x_1", ProviderFilter::All).unwrap(), None);
    assert!(!place.state().exists());

    place.create("x_1");
    let locks = place.state().join("claim-locks");
    fs::remove_dir_all(&locks).unwrap();
    place.store.read(&lease("x_1")).unwrap().unwrap();
    place.store.scan().unwrap();
    place.store.find("x_1", ProviderFilter::All).unwrap();
    assert!(!locks.exists());
}

#[test]
fn everything_is_the_users_alone() {
    let place = Place::new();
    let created = place.create("x_1");
    place.store.replace(&created, created.ready()).unwrap();
    assert_eq!(mode(&place.state()), 0o700);
    assert_eq!(mode(&place.state().join("claims")), 0o700);
    assert_eq!(mode(&place.state().join("claim-locks")), 0o700);
    assert_eq!(mode(&place.file("x_1.json")), 0o600);
    for lock in fs::read_dir(place.state().join("claim-locks")).unwrap() {
        assert_eq!(mode(&lock.unwrap().path()), 0o600);
    }
}

#[test]
fn names_of_locks_are_of_leases_only() {
    let place = Place::new();
    place.create("x_1");
    let wait = Wait::none();
    drop(place.store.operation(&lease("x_1"), "crabbox run", wait));
    let names = fs::read_dir(place.state().join("claim-locks")).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "slug-allocation.lock",
            "x_1.json.lock",
            "x_1.operation.lock"
        ]
    );
}

#[test]
fn a_claim_that_changed_is_left_alone() {
    let place = Place::new();
    let created = place.create("x_1");
    let ready = place.store.replace(&created, created.ready()).unwrap();
    for failure in [
        place.store.replace(&created, created.ready()).unwrap_err(),
        place.store.remove(&created).unwrap_err(),
    ] {
        assert_eq!(failure.code, Code::ClaimChanged);
        assert_eq!(failure.message, "lease x_1 claim changed; retry");
    }
    assert_eq!(
        place.store.read(&lease("x_1")).unwrap(),
        Some(ready.clone())
    );

    // A change that kept the revision counts as well, and so does one by a version with fields that we do not know.
    let text = fs::read_to_string(place.file("x_1.json")).unwrap();
    let text = text.replacen('{', "{\n  \"future\": 1,", 1);
    write(&place.file("x_1.json"), text.as_bytes());
    assert_eq!(
        place.store.remove(&ready).unwrap_err().code,
        Code::ClaimChanged
    );
    let current = place.store.read(&lease("x_1")).unwrap().unwrap();
    place.store.remove(&current).unwrap();
    assert_eq!(
        place.store.remove(&current).unwrap_err().code,
        Code::ClaimChanged
    );
    assert_eq!(
        place
            .store
            .replace(&current, current.clone())
            .unwrap_err()
            .code,
        Code::ClaimChanged
    );
}

#[test]
fn a_claim_keeps_its_name() {
    let place = Place::new();
    let created = place.create("x_1");
    let mut renamed = created.clone();
    renamed.slug = Slug::normalize("other");
    let mut moved = created.clone();
    moved.lease_id = lease("x_2");
    for new in [renamed, moved] {
        let failure = place.store.replace(&created, new).unwrap_err();
        assert_eq!(failure.code, Code::State);
    }
    assert_eq!(place.store.read(&lease("x_1")).unwrap(), Some(created));
}

#[test]
fn a_lease_is_claimed_once() {
    let place = Place::new();
    let created = place.create("x_1");
    let slug = created.slug.clone().unwrap();
    for choice in [
        SlugChoice::Generated,
        SlugChoice::Requested(slug),
        SlugChoice::None,
    ] {
        let failure = place.store.create(claim("x_1"), &choice).unwrap_err();
        assert_eq!(failure.code, Code::State);
        assert_eq!(failure.message, "lease x_1 is already claimed");
    }
    assert_eq!(place.store.read(&lease("x_1")).unwrap(), Some(created));

    // Also when the file that is there cannot be read.
    place.put("x_2.json", "garbage");
    let failure = place
        .store
        .create(claim("x_2"), &SlugChoice::Generated)
        .unwrap_err();
    assert_eq!(failure.message, "lease x_2 is already claimed");
    assert_eq!(fs::read(place.file("x_2.json")).unwrap(), b"garbage");
}

/// Gap of the original: the lease silently got another name than the one asked for.
#[test]
fn a_requested_slug_that_is_taken_is_an_error() {
    let place = Place::new();
    place.slugged("x_1", "Blue Crab").unwrap();
    let failure = place.slugged("x_2", "blue-crab").unwrap_err();
    assert_eq!(failure.code, Code::Usage);
    assert_eq!(failure.message, "slug `blue-crab` is taken by lease x_1");
    assert_eq!(place.store.read(&lease("x_2")).unwrap(), None);

    // The name that would be generated is taken: the generated one gets a suffix.
    let generated = Slug::generate(&lease("x_4"));
    place.slugged("x_3", generated.as_str()).unwrap();
    let evaded = place.create("x_4").slug.unwrap();
    assert!(evaded.as_str().starts_with(&format!("{generated}-")));
    assert_eq!(evaded.as_str().len(), generated.as_str().len() + 5);
}

#[test]
fn nameless_claims_do_not_get_in_each_others_way() {
    let place = Place::new();
    for id in ["x_1", "x_2"] {
        let created = place.store.create(claim(id), &SlugChoice::None);
        assert_eq!(created.unwrap().slug, None);
    }
}

#[test]
fn leases_are_found_by_id_and_by_slug() {
    let place = Place::new();
    let first = place.slugged("x_1", "blue-crab").unwrap();
    // A slug that is also another lease's id: the id wins.
    place.slugged("x_2", "x-3").unwrap();
    let third = place.slugged("x-3", "third").unwrap();
    let find = |text| place.store.find(text, ProviderFilter::All).unwrap();
    assert_eq!(find("x_1"), Some(first.clone()));
    assert_eq!(find("blue-crab"), Some(first.clone()));
    assert_eq!(find("Blue Crab"), Some(first.clone()));
    assert_eq!(find("x-3"), Some(third));
    for unknown in ["", "x_9", "blue", "../x_1", "--", "x_1.json"] {
        assert_eq!(find(unknown), None, "{unknown}");
    }
    let here = ProviderFilter::Only("somewhere");
    assert_eq!(place.store.find("blue-crab", here).unwrap(), Some(first));
    let elsewhere = ProviderFilter::Only("elsewhere");
    assert_eq!(place.store.find("blue-crab", elsewhere).unwrap(), None);
    let failure = place.store.find("x_1", elsewhere).unwrap_err();
    assert_eq!(failure.code, Code::Usage);
    assert_eq!(
        failure.message,
        "lease x_1 belongs to provider=somewhere, not to provider=elsewhere"
    );
}

#[test]
fn the_beginning_of_one_slug_is_enough_and_of_two_is_refused() {
    let place = Place::new();
    let first = place.slugged("x_1", "blue-crab").unwrap();
    let find = |text| place.store.find_by_prefix(text, ProviderFilter::All);
    assert_eq!(find("blu").unwrap(), Some(first.clone()));
    assert_eq!(find("Blue").unwrap(), Some(first));
    for none in ["", "x_1", "crab", "blue-crab-1"] {
        assert_eq!(find(none).unwrap(), None, "{none}");
    }
    place.slugged("x_2", "blue-prawn").unwrap();
    let failure = find("blue").unwrap_err();
    assert_eq!(failure.code, Code::Usage);
    assert_eq!(
        failure.message,
        "slug `blue` is ambiguous; use the whole slug or the lease id: \
         blue-crab (lease x_1, provider=somewhere), blue-prawn (lease x_2, provider=somewhere)"
    );
}

#[test]
fn a_lease_id_never_matches_a_slug() {
    let place = Place::new();
    place.slugged("x_1", "dsbx-crabbox-my-app").unwrap();
    for id in ["dsbx_crabbox-my-app", "dsbx_crabbox"] {
        let found = place.store.find(id, ProviderFilter::All).unwrap();
        assert_eq!(found, None, "{id}");
        let found = place.store.find_by_prefix(id, ProviderFilter::All).unwrap();
        assert_eq!(found, None, "{id}");
    }
    let spelled = place.store.find("dsbx crabbox my_app", ProviderFilter::All);
    assert!(spelled.unwrap().is_some());
}

#[test]
fn one_slug_of_two_providers_needs_an_answer() {
    let place = Place::new();
    let first = place.slugged("x_1", "blue-crab").unwrap();
    // Another program wrote this one.
    let text = fs::read_to_string(place.file("x_1.json")).unwrap();
    let text = text.replace("x_1", "y_1");
    place.put("y_1.json", text.replace("somewhere", "elsewhere"));
    let failure = place
        .store
        .find("blue-crab", ProviderFilter::All)
        .unwrap_err();
    assert_eq!(failure.code, Code::Usage);
    assert_eq!(
        failure.message,
        "slug `blue-crab` is ambiguous; use the lease id or --provider: \
         x_1 (provider=somewhere), y_1 (provider=elsewhere)"
    );
    let here = ProviderFilter::Only("somewhere");
    assert_eq!(place.store.find("blue-crab", here).unwrap(), Some(first));
    place.put("y_1.json", text);
    let failure = place.store.find("blue-crab", here).unwrap_err();
    assert!(
        failure.message.contains("use the lease id: x_1"),
        "{failure}"
    );
}

#[test]
fn an_update_is_made_to_what_is_there_by_now() {
    let place = Place::new();
    let store = &place.store;
    let first = place.create("x_1");
    let second = store.replace(&first, first.ready()).unwrap();
    // Its caller has read the first one.
    let third = store.update(&first.lease_id, |now| Ok(now.kept())).unwrap();
    assert_eq!((third.state, third.keep), (State::Ready, true));
    assert_ne!(third.revision(), second.revision());
    // Nothing is written where nothing changes.
    let same = store
        .update(&first.lease_id, |now| Ok(now.clone()))
        .unwrap();
    assert_eq!(same, third);
    let refused = Failure::new(Code::ClaimChanged, "no");
    let failed = store.update(&first.lease_id, |_| Err(refused.clone()));
    assert_eq!(failed.unwrap_err(), refused);
    store.remove(&third).unwrap();
    let gone = store.update(&first.lease_id, |now| Ok(now.clone()));
    assert_eq!(gone.unwrap_err().code, Code::NotFound);
}
