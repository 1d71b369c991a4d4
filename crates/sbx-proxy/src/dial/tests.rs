use std::collections::BTreeMap;
use std::sync::Mutex;

use tokio::io::DuplexStream;

use super::*;
use crate::transport::AsyncTransport;

/// What an address does when it is dialled.
#[derive(Clone, Copy)]
enum Answer {
    After(u64),
    RefusesAfter(u64),
    Never,
}
use Answer::{After, Never, RefusesAfter};

#[derive(Default)]
struct Log {
    /// Addresses and the milliseconds after the start at which they were dialled.
    dialled: Vec<(SocketAddr, u128)>,
    open: usize,
}

/// Counts attempts that were neither answered nor dropped.
struct Open(Arc<Mutex<Log>>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lock().unwrap().open -= 1;
    }
}

fn dialer(
    answers: &[(&str, Answer)],
    budget: ConnectionBudget,
) -> (Dialer, Vec<SocketAddr>, Arc<Mutex<Log>>) {
    let log = Arc::new(Mutex::new(Log::default()));
    let addresses: Vec<SocketAddr> = answers.iter().map(|(at, _)| at.parse().unwrap()).collect();
    let answers: BTreeMap<_, _> = (addresses.iter().copied())
        .zip(answers.iter().map(|(_, answer)| *answer))
        .collect();
    let (start, seen) = (Instant::now(), Arc::clone(&log));
    let dial: Dial = Arc::new(move |address| {
        let mut log = seen.lock().unwrap();
        log.dialled.push((address, start.elapsed().as_millis()));
        log.open += 1;
        let open = Open(Arc::clone(&seen));
        let answer = answers[&address];
        Box::pin(async move {
            let _open = open;
            let (wait, refused) = match answer {
                After(wait) => (wait, false),
                RefusesAfter(wait) => (wait, true),
                Never => std::future::pending().await,
            };
            tokio::time::sleep(Duration::from_millis(wait)).await;
            if refused {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let stream: DuplexStream = tokio::io::duplex(1).0;
            Ok(Box::new(AsyncTransport::new(stream)) as Box<dyn Transport>)
        })
    });
    (Dialer::new(dial, Arc::new(budget)), addresses, log)
}

const V4: [&str; 4] = ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1", "192.0.2.4:1"];
const V6: [&str; 2] = ["[2001:db8::1]:1", "[2001:db8::2]:1"];

fn roomy() -> ConnectionBudget {
    ConnectionBudget::with_room(100)
}

/// The address that won, after how long, and what was dialled when.
async fn race(
    answers: &[(&str, Answer)],
    budget: ConnectionBudget,
) -> (Result<String, io::ErrorKind>, u128, Vec<(String, u128)>) {
    let (dialer, addresses, log) = dialer(answers, budget);
    let start = Instant::now();
    let won = dialer.connect(&addresses).await;
    let took = start.elapsed().as_millis();
    let log = log.lock().unwrap();
    assert_eq!(log.open, 0, "attempts that lost are dropped");
    let dialled = log.dialled.iter();
    let won = won
        .map(|(_, at)| at.to_string())
        .map_err(|error| error.kind());
    (
        won,
        took,
        dialled.map(|(at, ms)| (at.to_string(), *ms)).collect(),
    )
}

fn times(expected: &[(&str, u128)]) -> Vec<(String, u128)> {
    expected
        .iter()
        .map(|(at, ms)| ((*at).into(), *ms))
        .collect()
}

#[test]
fn families_take_turns_and_the_first_address_stays_first() {
    let parse = |texts: &[&str]| -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    };
    let sorted = parse(&[V6[0], V6[1], V4[0], V4[1], V4[2]]);
    assert_eq!(
        interleave(&sorted),
        parse(&[V6[0], V4[0], V6[1], V4[1], V4[2]])
    );
    let sorted = parse(&[V4[0], V4[1], V6[0]]);
    assert_eq!(interleave(&sorted), parse(&[V4[0], V6[0], V4[1]]));
    assert_eq!(interleave(&[]), []);
}

#[tokio::test(start_paused = true)]
async fn an_address_that_answers_in_time_is_the_only_one_dialled() {
    let (won, took, dialled) = race(&[(V6[0], After(249)), (V4[0], After(0))], roomy()).await;
    assert_eq!((won, took), (Ok(V6[0].into()), 249));
    assert_eq!(dialled, times(&[(V6[0], 0)]));
}

#[tokio::test(start_paused = true)]
async fn a_black_hole_costs_a_quarter_of_a_second() {
    let answers = [(V6[0], Never), (V6[1], Never), (V4[0], After(30))];
    let (won, took, dialled) = race(&answers, roomy()).await;
    assert_eq!((won, took), (Ok(V4[0].into()), 280));
    assert_eq!(dialled, times(&[(V6[0], 0), (V4[0], 250)]));
}

#[tokio::test(start_paused = true)]
async fn a_slow_first_address_still_wins_if_it_answers_first() {
    let (won, took, _) = race(&[(V6[0], After(300)), (V4[0], After(100))], roomy()).await;
    assert_eq!((won, took), (Ok(V6[0].into()), 300));
}

#[tokio::test(start_paused = true)]
async fn a_failure_starts_the_next_attempt_at_once() {
    let answers = [
        (V4[0], RefusesAfter(10)),
        (V4[1], RefusesAfter(20)),
        (V4[2], Never),
        (V4[3], After(5)),
    ];
    let (won, took, dialled) = race(&answers, roomy()).await;
    assert_eq!((won, took), (Ok(V4[3].into()), 285));
    let expected = [(V4[0], 0), (V4[1], 10), (V4[2], 30), (V4[3], 280)];
    assert_eq!(dialled, times(&expected));
}

#[tokio::test(start_paused = true)]
async fn when_all_fail_the_last_error_is_reported() {
    let answers = [(V4[0], Never), (V4[1], RefusesAfter(5)), (V6[0], Never)];
    let (won, took, _) = race(&answers, roomy()).await;
    // V6 is second in turn and V4[1] third: the last to end is the timeout of the second.
    assert_eq!((won, took), (Err(io::ErrorKind::TimedOut), 15_250));
    assert_eq!(race(&[], roomy()).await.0, Err(io::ErrorKind::NotFound));
}

/// Where no descriptor is left for a second attempt, one address is tried after the other.
#[tokio::test(start_paused = true)]
async fn without_a_permit_attempts_do_not_overlap() {
    let budget = ConnectionBudget::with_races(100, 0);
    let answers = [(V4[0], Never), (V4[1], After(7))];
    let (won, took, dialled) = race(&answers, budget).await;
    assert_eq!((won, took), (Ok(V4[1].into()), 15_007));
    assert_eq!(dialled, times(&[(V4[0], 0), (V4[1], 15_000)]));
}

#[tokio::test(start_paused = true)]
async fn permits_are_given_back() {
    let budget = Arc::new(ConnectionBudget::with_races(100, 1));
    let (mut dialer, addresses, _) = dialer(&[(V4[0], Never), (V4[1], After(1))], roomy());
    dialer.budget = Arc::clone(&budget);
    for _ in 0..3 {
        dialer.connect(&addresses).await.unwrap();
    }
    let permit = budget.race().unwrap();
    assert!(budget.race().is_none());
    drop(permit);
    assert!(budget.race().is_some());
}
