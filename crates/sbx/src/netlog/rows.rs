//! Groups lines with the same sandbox, destination, way and verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::Timestamp;
use sbx_policy::Kind;
use sbx_proxy::audit::{Line, Outcome, Via};

/// The requests of a sandbox to one `host:port` by one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) sandbox: String,
    /// `host:port`; a DNS query has no port.
    pub(crate) host: String,
    /// Of the latest line that has one: dialled, or the reason of a denial.
    pub(crate) address: Option<IpAddr>,
    pub(crate) proxy: Via,
    pub(crate) verdict: Outcome,
    /// Of the latest line.
    pub(crate) rule: String,
    pub(crate) reason: String,
    pub(crate) last_seen: Timestamp,
    pub(crate) since: Timestamp,
    pub(crate) count: u64,
    /// How many connections were cut, and the reason of the latest.
    pub(crate) cut: u64,
    cut_reason: String,
}

impl Row {
    /// The reason of the decision, and of cut connections.
    pub(crate) fn outcome(&self) -> String {
        match self.cut {
            0 => self.reason.clone(),
            cut => format!("{}; {cut} cut: {}", self.reason, self.cut_reason),
        }
    }
}

/// One row per sandbox, `host:port`, way and verdict; the latest first.
pub(crate) fn rows(lines: &[Line]) -> Vec<Row> {
    let mut found: BTreeMap<(&str, String, &str, bool), Row> = BTreeMap::new();
    for line in lines {
        let host = place(line);
        let allowed = line.verdict == Outcome::Allow;
        let key = (
            line.sandbox.as_str(),
            host.clone(),
            via(line.proxy),
            allowed,
        );
        let row = found.entry(key).or_insert_with(|| Row {
            sandbox: line.sandbox.clone(),
            host,
            address: None,
            proxy: line.proxy,
            verdict: line.verdict,
            rule: String::new(),
            reason: String::new(),
            last_seen: line.time,
            since: line.time,
            count: 0,
            cut: 0,
            cut_reason: String::new(),
        });
        row.count += line.count;
        if let Some(why) = line.cut() {
            row.cut += 1;
            row.cut_reason = why.to_owned();
        }
        row.since = row.since.min(line.first.unwrap_or(line.time));
        if line.time >= row.last_seen {
            row.last_seen = line.time;
            row.address = line.address.map(|at| at.ip()).or(row.address);
            row.rule = line
                .rule_name
                .clone()
                .or_else(|| line.rule.clone())
                .unwrap_or_default();
            row.reason.clone_from(&line.reason);
        }
    }
    let mut rows: Vec<Row> = found.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.last_seen));
    rows
}

/// The number of different denied hosts.
pub(crate) fn denied_hosts(lines: &[Line]) -> usize {
    let denied = lines
        .iter()
        .filter(|line| line.verdict == Outcome::Deny && !is_unanswerable_query(line));
    let hosts: BTreeSet<&str> = denied.map(|line| line.host.as_str()).collect();
    hosts.len()
}

/// A DNS query that no rule could allow: of a record type that is never answered, or malformed.
pub(crate) fn is_unanswerable_query(line: &Line) -> bool {
    // Lines of older versions have a port instead of the kind.
    let records = line.deny_kind == Some(Kind::RecordType) || line.port.is_some();
    line.proxy == Via::Dns && (records || line.host.is_empty())
}

/// `host:port`, with brackets around an IPv6 address.
pub(crate) fn place(line: &Line) -> String {
    match line.port {
        Some(port) if line.host.contains(':') => format!("[{}]:{port}", line.host),
        Some(port) => format!("{}:{port}", line.host),
        None => line.host.clone(),
    }
}

/// The `PROXY` column.
pub(crate) fn via(via: Via) -> &'static str {
    match via {
        Via::Forward => "forward",
        Via::ForwardBypass => "forward-bypass",
        Via::Transparent => "transparent",
        Via::Network => "network",
        Via::Dns => "dns",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlog::tests::line;

    #[test]
    fn the_same_is_counted_and_the_latest_explains() {
        let first = line("ab", "a.test", Outcome::Deny);
        let mut second = first.clone();
        second.time = "2026-01-29T10:20:00Z".parse().unwrap();
        second.rule_name = Some("no-a".into());
        second.rule = Some("id".into());
        second.reason = "later".into();
        let allowed = line("ab", "a.test", Outcome::Allow);
        let rows = rows(&[first.clone(), allowed, second.clone()]);
        assert_eq!(rows.len(), 2);
        let expected = Row {
            sandbox: "ab".into(),
            host: "a.test:443".into(),
            address: None,
            proxy: Via::Forward,
            verdict: Outcome::Deny,
            rule: "no-a".into(),
            reason: "later".into(),
            last_seen: second.time,
            since: first.time,
            count: 2,
            cut: 0,
            cut_reason: String::new(),
        };
        assert_eq!(rows[0], expected);
    }

    #[test]
    fn a_line_for_several_counts_for_all_of_them() {
        let mut merged = line("ab", "a.test", Outcome::Allow);
        merged.count = 40;
        merged.first = "2026-01-28T00:00:00Z".parse().ok();
        merged.address = "192.0.2.1:443".parse().ok();
        let later = Line {
            time: "2026-01-30T00:00:00Z".parse().unwrap(),
            ..line("ab", "a.test", Outcome::Allow)
        };
        let rows = rows(&[merged.clone(), later.clone()]);
        assert_eq!((rows.len(), rows[0].count), (1, 41));
        assert_eq!(
            (Some(rows[0].since), rows[0].last_seen),
            (merged.first, later.time)
        );
        assert_eq!(rows[0].address, "192.0.2.1".parse().ok());
    }

    #[test]
    fn what_was_cut_is_told() {
        let whole = line("ab", "a.test", Outcome::Allow);
        let mut failed = whole.clone();
        failed.error = Some("Connection refused".into());
        let mut cut = whole.clone();
        cut.error = Some("cut: denied by rule no-a".into());
        let told = |lines: &[Line]| rows(lines)[0].outcome();
        assert_eq!(told(&[whole.clone(), failed]), whole.reason);
        let expected = format!("{}; 1 cut: denied by rule no-a", whole.reason);
        assert_eq!(told(&[whole.clone(), cut, whole]), expected);
    }

    #[test]
    fn refused_hosts_are_counted_once() {
        let connect = line("ab", "a.test", Outcome::Deny);
        let mut other_port = connect.clone();
        other_port.port = Some(80);
        let mut lookup = connect.clone();
        lookup.port = None;
        let mut only_lookup = lookup.clone();
        only_lookup.host = "b.test".into();
        let allowed = line("ab", "c.test", Outcome::Allow);
        let mut records = lookup.clone();
        records.proxy = Via::Dns;
        records.host = "d.test".into();
        records.deny_kind = Some(Kind::RecordType);
        let mut of_before = records.clone();
        of_before.host = "e.test".into();
        of_before.deny_kind = Some(Kind::Malformed);
        of_before.port = Some(53);
        let all = [
            records,
            of_before,
            connect.clone(),
            connect,
            other_port,
            lookup,
            only_lookup,
            allowed,
        ];
        assert_eq!(denied_hosts(&all), 2);
        assert_eq!(denied_hosts(&[]), 0);
    }

    #[test]
    fn addresses_with_colons_stand_in_brackets() {
        let mut six = line("ab", "2001:db8::1", Outcome::Deny);
        assert_eq!(place(&six), "[2001:db8::1]:443");
        six.port = None;
        assert_eq!(place(&six), "2001:db8::1");
    }
}
