//! How long a sandbox lives, and whether that is enough.
//!
//! The server ends a sandbox at a time that is fixed when it is created, and that is never moved. So a run that could not
//! finish before it is refused: before anything is created, when a lease is used again, after a warmup and after a sync.

use std::time::Duration;

use crabbox_core::provider::Demand;
use crabbox_core::settings::format_duration;
use crabbox_core::{Code, Failure};
use jiff::Timestamp;

use super::settings::Config;

/// On top of a command's own limit: what its start and end may take.
const START_AND_END_TIMEOUT: Duration = Duration::from_secs(30);
/// The server's own default, where neither `ttl` nor `timeoutSecs` says more.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
/// The shortest that the server takes.
const MIN_SECONDS: u64 = 60;

/// What the server is asked for.
pub(super) fn planned(config: &Config, ttl: Duration) -> Duration {
    let own = Duration::from_secs(config.timeout_secs);
    let known = [own, ttl].into_iter().filter(|limit| !limit.is_zero());
    known.min().unwrap_or(DEFAULT_TIMEOUT)
}

/// In whole seconds, at least the server's minimum.
pub(super) fn seconds(lifetime: Duration) -> u64 {
    lifetime.as_secs().max(MIN_SECONDS)
}

pub(super) fn command_budget(config: &Config) -> Duration {
    config.exec_timeout().saturating_add(START_AND_END_TIMEOUT)
}

/// How long one step of a sync may take in the sandbox: as long as the sync, else as a command.
pub(super) fn step(config: &Config) -> Duration {
    config.sync_timeout.unwrap_or_else(|| config.exec_timeout())
}

/// What it is reckoned to take. Without `sync.timeout`, that is as much for all of a sync as for a command; a longer one is
/// seen after it, when what is left is checked again.
pub(super) fn budget(config: &Config, demand: Demand) -> Duration {
    let command = command_budget(config);
    let sync = config.sync_timeout.unwrap_or(command);
    match demand {
        Demand::Run { sync: true } | Demand::Warmup => sync.saturating_add(command),
        // The workdir is made by a command as well.
        Demand::Run { sync: false } => command.saturating_add(command),
        Demand::SyncOnly => sync,
    }
}

/// Before anything is created.
pub(super) fn check_planned(config: &Config, ttl: Duration, demand: Demand) -> Result<(), Failure> {
    let (lifetime, budget) = (planned(config, ttl), budget(config, demand));
    if lifetime >= budget {
        return Ok(());
    }
    let message = format!(
        "opensandbox effective lifetime {} must cover sync/command budget {}",
        format_duration(lifetime),
        format_duration(budget)
    );
    Err(Failure::new(Code::Config, message).hint(
        "raise --ttl or --opensandbox-timeout-secs, or lower --opensandbox-exec-timeout-secs",
    ))
}

/// Of a sandbox that exists.
pub(super) fn check_left(
    id: &str,
    expires: Option<Timestamp>,
    budget: Duration,
    what: &str,
    now: Timestamp,
) -> Result<(), Failure> {
    let Some(expires) = expires else {
        let message =
            format!("opensandbox sandbox {id} has no expiration time; create a new sandbox");
        return Err(Failure::new(Code::Timeout, message));
    };
    let left = Duration::try_from(expires.duration_since(now)).unwrap_or(Duration::ZERO);
    if left >= budget {
        return Ok(());
    }
    let message = format!(
        "opensandbox sandbox {id} has {} remaining before its absolute TTL, less than the {} {what}; create a new sandbox",
        format_duration(Duration::from_secs(left.as_secs())),
        format_duration(budget)
    );
    Err(Failure::new(Code::Timeout, message).hint("crabbox run without --id makes a new one"))
}

#[cfg(test)]
mod tests {
    use super::super::settings::tests::config;
    use super::*;

    const fn secs(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn the_shorter_of_two_limits_counts() {
        let with = |timeout_secs| Config {
            timeout_secs,
            ..config()
        };
        assert_eq!(planned(&with(0), secs(5400)), secs(5400));
        assert_eq!(planned(&with(3600), secs(5400)), secs(3600));
        assert_eq!(planned(&with(7200), secs(5400)), secs(5400));
        assert_eq!(planned(&with(0), secs(0)), secs(600));
        assert_eq!(seconds(secs(5)), 60);
    }

    #[test]
    fn a_lifetime_that_is_too_short_is_refused_before_create() {
        let config = config();
        assert_eq!(budget(&config, Demand::Run { sync: true }), secs(900 + 630));
        assert_eq!(budget(&config, Demand::Run { sync: false }), secs(1260));
        assert_eq!(budget(&config, Demand::SyncOnly), secs(900));
        assert_eq!(step(&config), secs(900));
        let unlimited = Config {
            sync_timeout: None,
            ..config.clone()
        };
        assert_eq!(budget(&unlimited, Demand::SyncOnly), secs(630));
        assert_eq!(step(&unlimited), secs(600));
        let refused = check_planned(&config, secs(600), Demand::Warmup).unwrap_err();
        assert_eq!(
            refused.message,
            "opensandbox effective lifetime 10m0s must cover sync/command budget 25m30s"
        );
        assert_eq!(refused.code, Code::Config);
        check_planned(&config, secs(5400), Demand::Warmup).unwrap();
    }

    #[test]
    fn a_remaining_lifetime_below_the_budget_is_refused() {
        let now = Timestamp::UNIX_EPOCH;
        let expires = Some(now + secs(100));
        check_left("s", expires, secs(100), "b", now).unwrap();
        let short = check_left("s", expires, secs(101), "command budget", now).unwrap_err();
        assert_eq!(short.code, Code::Timeout);
        assert!(short.message.contains("has 1m40s remaining"), "{short}");
        assert!(check_left("s", None, secs(0), "b", now).is_err());
        assert!(check_left("s", Some(now - secs(5)), secs(1), "b", now).is_err());
    }
}
