//! Selection of lines.

use jiff::Timestamp;
use sbx_policy::{Host, Pattern, Target};
use sbx_proxy::audit::{Line, Outcome, Via};

#[derive(Debug, Default)]
pub(crate) struct Filter {
    pub(crate) since: Option<Timestamp>,
    pub(crate) until: Option<Timestamp>,
    pub(crate) host: Option<Pattern>,
    pub(crate) verdict: Option<Outcome>,
    /// Include allowed DNS queries; every connection has one, so they are left out by default.
    pub(crate) dns: bool,
}

impl Filter {
    pub(crate) fn takes(&self, line: &Line) -> bool {
        self.since.is_none_or(|since| line.time >= since)
            && self.until.is_none_or(|until| line.time < until)
            && self.verdict.is_none_or(|verdict| line.verdict == verdict)
            && (self.dns || line.proxy != Via::Dns || line.verdict == Outcome::Deny)
            && self
                .host
                .as_ref()
                .is_none_or(|pattern| matches(pattern, line))
    }
}

fn matches(pattern: &Pattern, line: &Line) -> bool {
    let Ok(host) = Host::parse(&line.host) else {
        return false;
    };
    match line.port {
        Some(port) => pattern.matches(&Target { host, port }),
        None => pattern.matches_host(&host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlog::tests::line;

    #[test]
    fn every_condition_must_hold() {
        let denied = line("ab", "a.example.test", Outcome::Deny);
        let time = |text: &str| Some(text.parse().unwrap());
        let cases = [
            (Filter::default(), true),
            (
                Filter {
                    since: time("2026-01-29T10:15:25Z"),
                    ..Filter::default()
                },
                true,
            ),
            (
                Filter {
                    until: time("2026-01-29T10:15:25Z"),
                    ..Filter::default()
                },
                false,
            ),
            (
                Filter {
                    verdict: Some(Outcome::Allow),
                    ..Filter::default()
                },
                false,
            ),
            (
                Filter {
                    host: "*.example.test:443".parse().ok(),
                    ..Filter::default()
                },
                true,
            ),
            (
                Filter {
                    host: "*.example.test:80".parse().ok(),
                    ..Filter::default()
                },
                false,
            ),
        ];
        for (filter, taken) in cases {
            assert_eq!(filter.takes(&denied), taken, "{filter:?}");
        }
    }

    #[test]
    fn allowed_look_ups_are_left_out() {
        let mut lookup = line("ab", "a.test", Outcome::Allow);
        lookup.proxy = Via::Dns;
        lookup.port = None;
        assert!(!Filter::default().takes(&lookup));
        let all = Filter {
            dns: true,
            host: "a.test:22".parse().ok(),
            ..Filter::default()
        };
        assert!(all.takes(&lookup));
        lookup.verdict = Outcome::Deny;
        assert!(Filter::default().takes(&lookup));
    }
}
