//! `sbx network proxy`

use sbx_api::policy::ProxyConfigChange;
use sbx_policy::{Decision, OlderPattern, Origin, ProxyConfig, ProxyMode, Rule, Scope};

use crate::client::{Absent, Client};
use crate::commands::policy::{book, existing};
use crate::context::Context;
use crate::failure::{Failure, Kind};

/// Show or change the older network settings of a sandbox
///
/// The settings are stored in the sandbox's `proxy-config.json` and apply in addition to the rules of `sbx policy`:
/// either can allow, and a block of either wins. Here `*.example.com` matches every name below example.com and `*`
/// everything; `--policy allow` allows HTTP and HTTPS only. Without options the settings are shown.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "sbx network proxy SANDBOX [OPTIONS]",
    after_help = "Examples:\n  sbx network proxy dev\n  sbx network proxy dev --policy deny --allow-host api.example.com\n  \
                  sbx network proxy dev --block-cidr 10.0.0.0/8"
)]
pub(crate) struct Args {
    /// Name of the sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
    /// Default for hosts that are not listed
    #[arg(long, value_parser = ["allow", "deny"])]
    policy: Option<String>,
    /// Allow a host (can be repeated, like the options below)
    #[arg(long, value_name = "HOST")]
    allow_host: Vec<String>,
    /// Block a host
    #[arg(long, value_name = "HOST")]
    block_host: Vec<String>,
    /// Never intercept TLS to a host
    #[arg(long, value_name = "HOST")]
    bypass_host: Vec<String>,
    /// Allow a network
    #[arg(long, value_name = "CIDR")]
    allow_cidr: Vec<String>,
    /// Block a network
    #[arg(long, value_name = "CIDR")]
    block_cidr: Vec<String>,
    /// Never intercept TLS to a network
    #[arg(long, value_name = "CIDR")]
    bypass_cidr: Vec<String>,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let name = existing(context, &args.sandbox)?;
    let change = ProxyConfigChange {
        policy: args.policy.clone(),
        allow_host: args.allow_host.clone(),
        block_host: args.block_host.clone(),
        bypass_host: args.bypass_host.clone(),
        allow_cidr: args.allow_cidr.clone(),
        block_cidr: args.block_cidr.clone(),
        bypass_cidr: args.bypass_cidr.clone(),
    };
    let config = if change == ProxyConfigChange::default() {
        book(context)?.proxy_config(&name)?
    } else {
        let client = Client::new(context, Absent::Start)?;
        let state = client.change_proxy_config(&args.sandbox, &change)?;
        let config = state.config.map(serde_json::from_value).transpose();
        config.map_err(|error| {
            let message = format!("invalid answer from the daemon: {error}");
            Failure::new(Kind::Engine, message)
        })?
    };
    let rules = book(context)?.rules_for(&Scope::Sandbox(name.to_string()))?;
    if let Some(note) = config
        .as_ref()
        .and_then(|c| still_open(c, &args.sandbox, &rules))
    {
        context.ui.note(note);
    }
    context.ui.data(to_text(config.as_ref()))
}

/// A note on allow rules that `--policy deny` does not override.
fn still_open(config: &ProxyConfig, name: &str, rules: &[Rule]) -> Option<String> {
    let others: Vec<&Rule> = (rules.iter())
        .filter(|rule| rule.decision == Decision::Allow && rule.origin != Origin::ProxyConfig)
        .collect();
    if config.policy != Some(ProxyMode::Deny) || others.is_empty() {
        return None;
    }
    let count: usize = others.iter().map(|rule| rule.resources.len()).sum();
    Some(format!(
        "Note: other rules still allow {count} resource(s), see: sbx policy ls {name} --wide --decision allow\n\
         To deny one: sbx policy deny network --sandbox {name} RESOURCE\n\
         To deny everything for all sandboxes: sbx policy reset, then sbx policy init deny-all"
    ))
}

/// Labelled lines, in the order of the file.
fn to_text(config: Option<&ProxyConfig>) -> String {
    let Some(config) = config else {
        return "No proxy-config.json: only the rules of `sbx policy` apply.\n".to_owned();
    };
    let policy = match config.policy {
        Some(ProxyMode::Allow) => "allow",
        Some(ProxyMode::Deny) => "deny",
        None => "as set by `sbx policy`",
    };
    let mut text = format!("Policy:          {policy}\n");
    let network = &config.network;
    for (label, entries) in [
        ("Allowed hosts:", &network.allowed_domains),
        ("Blocked hosts:", &network.blocked_domains),
        ("Bypassed hosts:", &network.bypass_domains),
        ("Allowed CIDRs:", &network.allow_cidr),
        ("Blocked CIDRs:", &network.block_cidr),
        ("Bypassed CIDRs:", &network.bypass_cidr),
    ] {
        let entries: Vec<String> = entries.iter().map(OlderPattern::to_string).collect();
        if !entries.is_empty() {
            text.push_str(&format!("{label:<17}{}\n", entries.join(", ")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_in_words() {
        let config = ProxyConfig::parse(
            r#"{"policy": "deny",
                "network": {"allowedDomains": ["a.test", "*.b.test"], "blockCIDR": ["10.0.0.0/8"]}}"#,
        );
        let config = config.unwrap();
        assert_eq!(
            to_text(Some(&config)),
            "Policy:          deny\nAllowed hosts:   a.test, *.b.test\nBlocked CIDRs:   10.0.0.0/8\n"
        );
        assert!(to_text(None).starts_with("No proxy-config.json"));
    }

    #[test]
    fn remaining_allow_rules_are_mentioned() {
        let of = |json: &str| ProxyConfig::parse(json).unwrap();
        let others = sbx_policy::preset(sbx_policy::Preset::Balanced);
        let deny = of(r#"{"policy": "deny", "network": {"allowedDomains": ["a.test"]}}"#);
        let note = still_open(&deny, "dev", &others).unwrap();
        assert!(
            note.contains("sbx policy deny network --sandbox dev RESOURCE"),
            "{note}"
        );
        // Its own allows are what it is for.
        assert_eq!(still_open(&deny, "dev", &deny.rules("dev")), None);
        assert_eq!(still_open(&of("{}"), "dev", &others), None);
    }
}
