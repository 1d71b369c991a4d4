//! What is kept of lines that the files have no more room for: one line for each target, with the first time, the last
//! and how many there were. So no number of repeats pushes out what happened before them.
//!
//! Targets are bounded as well, and a sandbox can make up any number of names. Those that were seen first stay by
//! themselves; of the later ones, names of one owner become one line (`*.example.com`), and then all become one (`*`).

use std::collections::BTreeMap;

use jiff::Timestamp;
use sbx_policy::{Host, Kind, registrable_domain};

use super::{Line, Outcome, Phase, Via};

/// Targets with a line of their own.
const MAX_TARGETS: usize = 8192;
/// Owners of names that have no line of their own.
const MAX_OWNERS: usize = 1024;
/// Connections whose end is not on record yet.
const MAX_OPEN: usize = 4096;
const ALL_OTHERS: &str = "*";

type Target = (
    Outcome,
    Via,
    String,
    Option<u16>,
    Option<Kind>,
    Option<String>,
);

/// Merges the lines of one connection: logged when opened, perhaps when its host became known, and when closed.
pub fn joined(lines: Vec<Line>) -> Vec<Line> {
    let mut open: BTreeMap<(String, Timestamp, u64), usize> = BTreeMap::new();
    let mut joined: Vec<Line> = Vec::with_capacity(lines.len());
    for line in lines {
        let key = (line.sandbox.clone(), line.time, line.id);
        let position = open.remove(&key).unwrap_or(joined.len());
        if line.phase == Phase::Open {
            open.insert(key, position);
        }
        match joined.get_mut(position) {
            Some(earlier) => *earlier = line,
            None => joined.push(line),
        }
    }
    joined
}

/// Merges the lines of one target. Connections that have not ended keep their lines, for the lines of their ends.
pub(super) fn merge(lines: Vec<Line>) -> Vec<Line> {
    let (mut open, ended): (Vec<_>, Vec<_>) = joined(lines)
        .into_iter()
        .partition(|line| line.phase == Phase::Open);
    // After a crash the ends of the oldest never come.
    let given_up = open.drain(..open.len().saturating_sub(MAX_OPEN));
    let mut targets = by_target(given_up.collect::<Vec<_>>().into_iter().chain(ended));
    if targets.len() > MAX_TARGETS {
        targets.sort_by_key(|line| line.first);
        let rest = targets.split_off(MAX_TARGETS);
        let mut owners = by_target(rest.into_iter().map(|line| named(line, owner)));
        if owners.len() > MAX_OWNERS {
            owners.sort_by_key(|line| line.first);
            let rest = owners.split_off(MAX_OWNERS);
            owners.extend(rest.into_iter().map(|line| named(line, |_| None)));
        }
        targets = by_target(targets.into_iter().chain(owners));
    }
    targets.extend(open);
    targets.sort_by_key(|line| line.time);
    targets
}

fn by_target(lines: impl Iterator<Item = Line>) -> Vec<Line> {
    let mut targets: BTreeMap<Target, Line> = BTreeMap::new();
    for mut line in lines {
        line.first.get_or_insert(line.time);
        line.phase = Phase::Closed;
        let key = (
            line.verdict,
            line.proxy,
            line.host.clone(),
            line.port,
            line.deny_kind,
            line.rule.clone(),
        );
        match targets.remove(&key) {
            None => targets.insert(key, line),
            Some(known) => targets.insert(key, sum(known, line)),
        };
    }
    targets.into_values().collect()
}

/// Both as one: what the later of the two says, and the numbers of both.
fn sum(a: Line, b: Line) -> Line {
    let (earlier, later) = if a.time <= b.time { (a, b) } else { (b, a) };
    Line {
        first: earlier.first.min(later.first),
        count: earlier.count.saturating_add(later.count),
        sent: earlier.sent.saturating_add(later.sent),
        received: earlier.received.saturating_add(later.received),
        duration_ms: earlier.duration_ms.saturating_add(later.duration_ms),
        address: later.address.or(earlier.address),
        error: later.error.or(earlier.error),
        ..later
    }
}

fn named(line: Line, owner: fn(&str) -> Option<String>) -> Line {
    Line {
        host: owner(&line.host).unwrap_or_else(|| ALL_OTHERS.into()),
        port: None,
        address: None,
        rule: None,
        rule_name: None,
        ..line
    }
}

/// All names of the owner of this one.
fn owner(host: &str) -> Option<String> {
    let host = host.strip_prefix("*.").unwrap_or(host);
    let host = Host::parse(host).ok()?;
    let domain = registrable_domain(host.as_name()?.as_str())?;
    Some(format!("*.{domain}"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::line_to;
    use super::*;

    fn at(seconds: i64, id: u64, host: &str) -> Line {
        Line {
            time: Timestamp::from_second(seconds).unwrap(),
            id,
            ..line_to(host)
        }
    }

    #[test]
    fn repeats_of_one_target_are_one_line() {
        let mut other_port = at(3, 3, "a.test");
        other_port.port = Some(80);
        let mut denied = at(4, 4, "a.test");
        denied.verdict = Outcome::Deny;
        let lines = vec![
            at(1, 1, "a.test"),
            at(2, 2, "b.test"),
            other_port,
            denied,
            at(5, 5, "a.test"),
        ];
        let merged = merge(lines);
        assert_eq!(merged.len(), 4);
        let again = merge([merged, vec![at(9, 9, "a.test")]].concat());
        let last = again.last().unwrap();
        assert_eq!((last.host.as_str(), last.count), ("a.test", 3));
        assert_eq!(last.first, Some(Timestamp::from_second(1).unwrap()));
        assert_eq!(last.time, Timestamp::from_second(9).unwrap());
        assert_eq!(last.sent, 3);
        assert_eq!(again.iter().map(|line| line.count).sum::<u64>(), 6);
    }

    #[test]
    fn a_connection_is_counted_once_wherever_its_lines_are() {
        let closed = at(1, 1, "a.test");
        let open = Line {
            phase: Phase::Open,
            sent: 0,
            ..closed.clone()
        };
        // Its target became known meanwhile.
        let unnamed = Line {
            host: "192.0.2.1".into(),
            ..open.clone()
        };
        for split in 0..=3 {
            let mut first = vec![unnamed.clone(), open.clone(), closed.clone()];
            let second = first.split_off(split);
            let merged = merge([merge(first), second].concat());
            assert_eq!(merged.len(), 1, "{split}: {merged:#?}");
            assert_eq!((merged[0].count, merged[0].sent), (1, 1));
            assert_eq!(merged[0].host, "a.test");
        }
    }

    #[test]
    fn made_up_names_push_out_no_target_that_was_there_before() {
        let mut lines = vec![at(0, 0, "evil.test")];
        let flood = MAX_TARGETS as i64 * 2;
        for n in 1..=flood {
            lines.push(at(n, n as u64, &format!("d{n}.flood.test")));
        }
        for n in 1..=flood {
            lines.push(at(flood + n, n as u64, &format!("owner{n}.test")));
        }
        let total = lines.len() as u64;
        let mut merged = Vec::new();
        for part in lines.chunks(5000) {
            merged = merge([merged, part.to_vec()].concat());
            assert!(merged.len() <= MAX_TARGETS + MAX_OWNERS + 1);
        }
        assert_eq!(merged.iter().map(|line| line.count).sum::<u64>(), total);
        let find = |host: &str| merged.iter().find(|line| line.host == host);
        assert_eq!(find("evil.test").unwrap().count, 1);
        assert!(find("*.flood.test").unwrap().count > 5000);
        assert!(find("*").unwrap().count > 5000);
    }
}
