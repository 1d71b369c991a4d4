//! Rules and the files that hold them.

use std::str::FromStr;

use jiff::Timestamp;
use sbx_policy::{
    Decision, Host, Pattern, Policy, PolicyFile, Protocol, ProxyConfig, Rule, Scope, Target,
    Traffic,
};
use sbx_proxy::wire::http1::Authority;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// What was read can be written and read again, and the two readers of authorities agree on the host.
pub fn fuzz_host_pattern(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    if let Ok(pattern) = Pattern::from_str(text) {
        assert_eq!(Pattern::from_str(&pattern.to_string()), Ok(pattern));
    }
    if let Ok(host) = Host::parse(text) {
        assert_eq!(Host::parse(&host.to_string()), Ok(host.clone()));
        assert!(Pattern::exact(host.clone(), None).matches_host(&host));
        assert!(Pattern::everything().matches_host(&host));
    }
    if let Ok(target) = Target::parse_authority(text, Some(443)) {
        assert_eq!(
            Target::parse_authority(&target.to_string(), None),
            Ok(target.clone())
        );
        assert!(Pattern::exact(target.host.clone(), Some(target.port)).matches(&target));
    }
    if let Ok(authority) = Authority::parse(text) {
        let (raw, read) = (
            Target::parse_authority(text, Some(80)),
            authority.to_string(),
        );
        assert_eq!(raw.ok(), Target::parse_authority(&read, Some(80)).ok());
        assert_eq!(Authority::parse(&read), Ok(authority));
    }
    if let Ok(list) = Pattern::parse_list(text) {
        let written: Vec<String> = list.iter().map(Pattern::to_string).collect();
        assert_eq!(Pattern::parse_list(&written.join(",")), Ok(list));
    }
}

/// What was read can be written and read again, and no rule opens what another denies.
pub fn fuzz_policy_file(data: &[u8]) {
    let Some(file) = str::from_utf8(data)
        .ok()
        .and_then(|text| PolicyFile::parse(text).ok())
    else {
        return;
    };
    let again = file.to_json().and_then(|json| PolicyFile::parse(&json));
    assert_eq!(again.ok().as_ref(), Some(&file));
    for scope in [Scope::Global, Scope::Sandbox("s".to_owned())] {
        check_denials(file.rules_for(&scope, Some("/r")));
    }
}

/// What was read can be written and read again, and what it blocks is blocked.
pub fn fuzz_proxy_config(data: &[u8]) {
    let Some(config) = str::from_utf8(data)
        .ok()
        .and_then(|text| ProxyConfig::parse(text).ok())
    else {
        return;
    };
    let again = config.to_json().and_then(|json| ProxyConfig::parse(&json));
    assert_eq!(again.ok().as_ref(), Some(&config));
    let rules = config.rules("s");
    let narrowed = config.narrow(rules.clone());
    assert!(narrowed.iter().all(|rule| rules.contains(rule)));
    check_denials(narrowed);
}

/// Every exact host of a deny rule is denied, whatever else the rules say.
fn check_denials(rules: Vec<Rule>) {
    let policy = Policy::compile(rules);
    for rule in policy.rules() {
        if rule.decision != Decision::Deny || rule.traffic != Traffic::Any || rule.is_expired(NOW) {
            continue;
        }
        for pattern in rule
            .resources
            .iter()
            .filter(|pattern| pattern.is_exact_host())
        {
            let text = match pattern.to_string() {
                address
                    if pattern.is_address()
                        && pattern.port().is_none()
                        && address.contains(':') =>
                {
                    format!("[{address}]")
                }
                text => text,
            };
            let Ok(target) = Target::parse_authority(&text, Some(443)) else {
                continue;
            };
            for protocol in [Protocol::Web, Protocol::Other] {
                assert!(
                    !policy.decide(&target, protocol, NOW).allowed,
                    "{pattern} is denied but allowed"
                );
            }
        }
    }
}
