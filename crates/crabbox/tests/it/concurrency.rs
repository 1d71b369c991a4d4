//! Sixteen of us at once on the same state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::world::{Ran, World};

const WORKERS: usize = 16;

/// How long to go on. The short form also ends after some rounds.
#[expect(
    clippy::disallowed_methods,
    reason = "the caller of the test chooses how long it takes"
)]
fn duration() -> Duration {
    let wanted = std::env::var_os("CRABBOX_CROWD_SECONDS").and_then(|text| text.into_string().ok());
    let seconds = wanted.and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(12))
}

fn run(world: &World, who: usize, args: &[&str]) -> Ran {
    let mut command = world.command(args);
    command.env("WHO", who.to_string());
    Ran::from(command.output().unwrap())
}

/// Each has its own leases, lists all and cleans up after all. No lease is lost, nothing is left, and no process removes
/// a sandbox of another one.
#[test]
fn sixteen_processes_share_one_state() {
    let world = World::new();
    world.foreign_sandbox("crabbox-my-app-000000");
    let until = Instant::now() + duration();
    // Leases that expire: every process that cleans up may remove them.
    let brief = Mutex::new(BTreeSet::new());
    let rounds: usize = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|who| {
                scope.spawn({
                    let (world, brief) = (&world, &brief);
                    move || work(world, who, until, brief)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum()
    });
    assert!(rounds >= WORKERS, "{rounds}");
    while !world.claim_names().is_empty() {
        run(&world, WORKERS, &["cleanup"]).exits(0);
    }
    assert_eq!(
        world.sandboxes(),
        ["crabbox-my-app-000000"],
        "after {rounds} rounds"
    );
    assert_eq!(world.env_dir(), [""; 0]);
    check_log(&world, &brief.into_inner().unwrap());
}

fn work(world: &World, who: usize, until: Instant, brief: &Mutex<BTreeSet<String>>) -> usize {
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < until {
        let slug = format!("w{who}-{rounds}");
        let made = run(world, who, &["warmup", "--slug", &slug, "--json"])
            .exits(0)
            .json();
        let lease = made["leaseId"].as_str().unwrap().to_owned();
        let ran = run(
            world,
            who,
            &["run", "--id", &slug, "--", "printenv", "CRABBOX_LEASE_ID"],
        )
        .exits(0);
        assert_eq!(ran.out.trim(), lease);
        match rounds % 4 {
            0 => drop(run(world, who, &["cleanup"]).exits(0)),
            1 => {
                let list = run(world, who, &["list", "--json"]).exits(0).json();
                let found = list
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|one| one["leaseId"] == lease.as_str());
                assert!(found, "{lease} is not listed");
            }
            2 => {
                let args = ["warmup", "--idle-timeout", "1s", "--json"];
                let made = run(world, who, &args).exits(0).json();
                brief
                    .lock()
                    .unwrap()
                    .insert(made["sandbox"].as_str().unwrap().to_owned());
            }
            _ => drop(run(world, who, &["run", "--", "sh", "-c", "exit 3"]).exits(3)),
        }
        assert_eq!(
            world.claim(&lease)["slug"],
            slug.as_str(),
            "the claim is lost"
        );
        run(world, who, &["stop", &slug]).exits(0);
        assert!(!world.claim_path(&lease).exists());
        rounds += 1;
    }
    rounds
}

/// What was made was removed once, and by its maker, unless its time was over.
fn check_log(world: &World, brief: &BTreeSet<String>) {
    let mut makers = BTreeMap::new();
    let mut removed = BTreeSet::new();
    for entry in world.log() {
        let (name, who) = (
            entry["name"].as_str().unwrap_or_default(),
            entry["who"].as_str().unwrap(),
        );
        if entry["event"] == "created" {
            makers.insert(name.to_owned(), who.to_owned());
        } else if entry["event"] == "removed" {
            assert!(removed.insert(name.to_owned()), "{name} was removed twice");
            assert!(
                brief.contains(name) || makers[name] == who,
                "{name} of {} was removed by {who}",
                makers[name]
            );
        } else if entry["event"] == "call" && entry["argv"][0] == "rm" {
            let name = entry["argv"][2].as_str().unwrap();
            assert!(makers.contains_key(name), "{name} is none of ours");
        }
    }
    let made: BTreeSet<_> = makers.into_keys().collect();
    assert_eq!(made, removed);
}
