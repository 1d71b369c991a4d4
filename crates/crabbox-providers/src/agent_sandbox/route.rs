//! The flags and the variable with which another command line reaches the same cluster, namespace and pool.

use crabbox_core::settings::{Origin, Settings};

use super::SPEC;
use super::settings::Config;

/// What flags and variables say of the route. Another terminal has the files, but not the variables of this one.
pub(super) fn repeat_flags(settings: &Settings, config: &Config) -> Vec<String> {
    let section = SPEC.table.section;
    let said = |key: &str| match settings.origin(section, key) {
        Some(Origin::Flag { .. } | Origin::Environment { .. }) => {
            Some(settings.text(section, key).to_owned())
        }
        Some(_) | None => None,
    };
    let mut flags = Vec::new();
    for setting in SPEC.table.settings.iter().filter(|one| is_route(one.key)) {
        let value = match (setting.key, config.only_kubeconfig()) {
            ("kubeconfig", Some(path)) => Some(path),
            (key, _) => said(key),
        };
        if let (Some(flag), Some(value)) = (setting.flag, value) {
            flags.extend([format!("--{flag}"), value]);
        }
    }
    flags
}

/// Without these another command line finds another cluster or pool.
fn is_route(key: &str) -> bool {
    matches!(
        key,
        "kubectl" | "kubeconfig" | "context" | "namespace" | "warmPool" | "container"
    )
}
